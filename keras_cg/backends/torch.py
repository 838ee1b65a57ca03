"""The torch backend, on `torch.autograd.Function`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat.torch as namespace
import torch
import torch.utils._pytree as pytree

from keras_cg.backends import Function, Pullback

__all__ = ["asarray", "attach", "cast", "children", "dtype", "is_tensor", "namespace", "shape", "vjp"]


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def asarray(value: Any) -> Any:
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(value)


def shape(tensor: Any) -> tuple[int | None, ...]:
    return tuple(tensor.shape)


def dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def cast(value: Any, dtype: str) -> Any:
    return value.to(getattr(torch, dtype))


def children(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    # One level of a type registered with torch's own tree utility, which has no public name (torch 2.13).
    parts, spec = pytree.tree_flatten(value, is_leaf=lambda part: part is not value)
    if spec.is_leaf():
        return None
    return parts, lambda parts: pytree.tree_unflatten(parts, spec)


def attach(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
        return fun(*tensors)[0]
    # `fun` runs once, here, on values cut from the graph, and the Function below carries the result.
    outputs, pullback = fun(*[tensor.detach() for tensor in tensors])
    pullback.capture([_name(output) for output in outputs if output.requires_grad])
    return _Attach.apply(fun, pullback, len(outputs), *_distinct((*outputs, *tensors)))


def _distinct(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    # torch.compile (2.13) refuses a Function that gets one tensor twice; eagerly it is no matter.
    if not torch.compiler.is_compiling():
        return tensors
    found: list[torch.Tensor] = []
    for tensor in tensors:
        found.append(tensor.view_as(tensor) if any(tensor is other for other in found) else tensor)
    return found


def _name(output: torch.Tensor) -> str:
    return f"a tensor of shape {tuple(output.shape)} and dtype {dtype(output)}"


class _Attach(torch.autograd.Function):
    """Outputs that were computed already, with the rule as their gradient."""

    @staticmethod
    def forward(ctx: Any, fun: Function, pullback: Pullback, count: int, *tensors: torch.Tensor) -> Any:
        ctx.fun, ctx.pullback, ctx.count = fun, pullback, count
        ctx.save_for_backward(*tensors[count:])
        # An alias: the rule may have captured the output, which would then hold itself through its node.
        outputs = tuple(output.detach() for output in tensors[:count])
        ctx.mark_non_differentiable(*[each for each in outputs if not (each.is_floating_point() or each.is_complex())])
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        pullback = ctx.pullback
        if torch.is_grad_enabled():
            # Somebody differentiates this gradient: the rule must hang on the inputs.
            pullback = ctx.fun(*ctx.saved_tensors)[1]
        gradients, _ = pullback(cotangents)
        return (None, None, None, *[None] * ctx.count, *gradients)


def vjp(
    fun: Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]], tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], Callable[[Sequence[Any]], tuple[Any, ...]], tuple[Any, ...]]:
    outer = torch.is_grad_enabled()
    with torch.enable_grad():
        # Fresh leaves, or aliases that keep hanging on what somebody outside differentiates.
        inputs = [each.view_as(each) if outer and each.requires_grad else each.detach().requires_grad_() for each in tensors]
        outputs, aux = fun(*inputs)
    further = outer and _reaches_others((*outputs, *aux), inputs)

    def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
        used = [(out, cotangent) for out, cotangent in zip(outputs, cotangents, strict=True) if out.requires_grad]
        if not used:
            return tuple(torch.zeros_like(each) for each in inputs)
        return torch.autograd.grad(
            [out for out, _ in used],
            inputs,
            [cotangent for _, cotangent in used],
            create_graph=further,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )

    if further:
        return outputs, pullback, aux
    return tuple(each.detach() for each in outputs), pullback, tuple(each.detach() for each in aux)


def _reaches_others(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> bool:
    """Whether the graph of `outputs` has a leaf besides `inputs`, so that their gradient may be differentiated.

    Keeping a graph of every gradient would cost a second run of each function in it, and memory.
    """
    own = {id(each) for each in inputs if each.is_leaf}
    if any(each.is_leaf and each.requires_grad and id(each) not in own for each in outputs):
        return True
    stack = [each.grad_fn for each in outputs if each.grad_fn is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in own:
            return True
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return False
