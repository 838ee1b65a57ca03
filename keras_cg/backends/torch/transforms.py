"""The rule under the transforms of torch.func and in forward mode, where a tensor belongs to a level.

Every level runs the function again, on its own tensors, and compares the rule with that of the first run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

# The stack of the running transforms has no public name (torch 2.13). If one of these is gone, importing this file
# fails, and with it the backend.
from torch._C import _functorch as functorch
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters, temporarily_pop_interpreter_stack
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from keras_cg.backends import torch as own
from keras_cg.backends.torch.tensors import describe, integers, is_floating, transforms_active, unwrap_if_dead, versions
from keras_cg.engine import linear, messages
from keras_cg.engine.contract import Function, Pullback

Tensors = Sequence[torch.Tensor]


def attach(fun: Function, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """Runs `fun` on tensors cut from every level, and notes which tensors of a level it captures."""
    if _forward_levels() > 1:
        raise messages.rule_dropped(
            "forward mode inside forward mode", "take one of the two derivatives in reverse, as torch.func.hessian does"
        )
    inputs = [tensor.detach() for tensor in tensors]
    before = versions(inputs)
    with _Operands(inputs) as operands:
        outputs, pullback = fun(*inputs)
    if versions(inputs) != before:
        raise messages.changed_argument(fun.name)
    captured = [*operands.captured.values()]
    variables: list[int] = []
    if any(map(is_differentiated, outputs)):
        variables = [place for place, tensor in enumerate(captured) if id(tensor) in operands.used]
        pullback.capture([describe(captured[place]) for place in variables])
    call = _Call(fun, pullback, captured, variables, outputs)
    return _Transformed.apply(call, *[output.detach() for output in outputs], *tensors, *captured)  # type: ignore[no-any-return, no-untyped-call]


class _Call:
    """What a call under a transform needs besides tensors.

    Attributes:
        captured: The tensors of a level that the function read besides its arguments.
        variables: Which of these its outputs hang on.
        specs: Shape, dtype and device of each output.
    """

    def __init__(
        self, fun: Function, pullback: Pullback, captured: Tensors, variables: Sequence[int], outputs: Tensors
    ):
        self.fun, self.first, self.captured, self.variables = fun, pullback, captured, variables
        self.specs = [(output.shape, output.dtype, output.device) for output in outputs]

    def gradients(
        self, saved: Tensors, cotangents: Sequence[Any], needs_grad: Sequence[bool] | None = None
    ) -> list[Any]:
        """One gradient for each argument, then for each captured tensor, by another run on the tensors of a level."""
        count = len(saved) - len(self.captured)
        captured = saved[count:]
        with _instead(self.captured, captured):
            _, pullback = self.fun(*saved[:count])
            self.first.check(pullback)
            gradients, others = pullback(cotangents, [captured[place] for place in self.variables], needs_grad)
        known = dict(zip(self.variables, others, strict=True))
        return [*gradients, *map(known.get, range(len(captured)))]


class _Transformed(torch.autograd.Function):
    """Outputs that were computed already, with the rule as their gradient in both modes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: _Call, *tensors: torch.Tensor) -> Any:
        # Not view_as: the tangent of a second output that is a view would be lost in forward mode (torch 2.13).
        return tuple([output.detach() for output in tensors[: len(call.specs)]])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.call, *tensors = inputs
        ctx.level = max([functorch.maybe_get_level(each) for each in tensors], default=-2)
        ctx.save_for_backward(*tensors[len(output) :])
        ctx.save_for_forward(*tensors[len(output) :])
        ctx.mark_non_differentiable(*integers(output))

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        call: _Call = ctx.call
        start = 1 + len(call.specs)
        saved = _below(_alive(ctx.saved_tensors), ctx.level)
        needs_grad = ctx.needs_input_grad[start : len(ctx.needs_input_grad) - len(call.captured)]
        return (*[None] * start, *call.gradients(saved, _alive(cotangents), needs_grad))

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor) -> Any:
        """The transpose of the rule, which is a linear map."""
        call: _Call = ctx.call
        # Without their own tangents, which no rule passes on: one that calls its own function would run without end.
        return _pushed(call, _unmoved(_alive(ctx.saved_tensors)), tangents[len(call.specs) :])


def _alive(tensors: Tensors) -> list[torch.Tensor]:
    """Tensors without the wrappers of a level that is over.

    A rule that opens a level of its own gives it the same number, and torch (2.13) would take a dead wrapper for one of
    it.
    """
    return list(map(unwrap_if_dead, tensors))


def _below(tensors: list[torch.Tensor], level: int) -> list[torch.Tensor]:
    """Tensors out of the level whose backward pass runs: only outer levels differentiate the gradient.

    A function need not be differentiable by itself, so it runs on what is differentiated only where it has to.
    """
    others = []
    for tensor in tensors:
        if functorch.is_gradtrackingtensor(tensor) and functorch.maybe_get_level(tensor) == level:
            tensor = functorch.get_unwrapped(tensor)
        others.append(tensor if torch.is_grad_enabled() else tensor.detach())
    return others


def _unmoved(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors without their tangents at the innermost level. A vmap (torch 2.13) has none that could be looked at."""
    levels = retrieve_all_functorch_interpreters() if transforms_active() else []
    if levels and levels[-1].key() == TransformType.Vmap:
        return tensors
    return [forward_ad.unpack_dual(tensor).primal for tensor in tensors]  # type: ignore[no-untyped-call]


def _pushed(call: _Call, saved: Tensors, tangents: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
    """The tangents of the outputs: the vjp of `cotangents -> gradients`, if that is linear."""
    is_real = [dtype.is_floating_point or dtype.is_complex for _, dtype, _ in call.specs]
    pairs = zip(call.specs, is_real, strict=True)
    zeros = [torch.zeros(shape, dtype=dtype, device=device) for (shape, dtype, device), is_kept in pairs if is_kept]
    places = [place for place, tensor in enumerate(saved) if is_floating(tensor)]

    def pull(*cotangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arriving = iter(cotangents)
        gradients = call.gradients(saved, [next(arriving) if is_kept else None for is_kept in is_real])
        chosen = [(saved[place], gradients[place]) for place in places]
        return tuple([torch.zeros_like(tensor) if each is None else each for tensor, each in chosen])

    def pulled(cotangents: Tensors) -> tuple[torch.Tensor, ...]:
        return pull(*cotangents)

    def pushed(tangents: Tensors) -> tuple[torch.Tensor, ...]:
        return push(tuple(tangents))  # type: ignore[no-any-return]

    push = torch.func.vjp(pull, *zeros)[1]
    backend: Any = own
    conditions = linear.conditions(backend, pulled, zeros)
    conditions += linear.transposes(backend, pulled, pushed, zeros, [saved[place] for place in places])
    # Through NumPy, because no transform lets Python look at a value.
    if not all([own.to_numpy(condition).all() for condition in conditions]):
        raise messages.not_linear()
    given = [torch.zeros_like(saved[place]) if tangents[place] is None else tangents[place] for place in places]
    moved = iter(pushed(given))  # type: ignore[arg-type]
    return tuple([next(moved) if is_kept else None for is_kept in is_real])


# --- captured tensors ------------------------------------------------------------------------------------------------


class _Operands(TorchFunctionMode):
    """Notes the tensors of a level that a function reads and neither got nor made: it captured them.

    Attributes:
        captured: All of them, by identity.
        used: The identities of those that the derivative of something hangs on, in the order of their first use.
    """

    def __init__(self, given: Tensors):
        super().__init__()
        # The tensors stay alive, so that no identity is used twice.
        self.known = {id(tensor): tensor for tensor in given}
        self.captured: dict[int, torch.Tensor] = {}
        self.used: dict[int, None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        strangers = [each for each in _tensors((args, kwargs)) if id(each) not in self.known and _is_transformed(each)]
        self.captured.update((id(each), each) for each in strangers)
        result = func(*args, **(kwargs or {}))
        made = _tensors(result)
        self.known.update((id(each), each) for each in made if id(each) not in self.captured)
        if strangers and any(map(is_differentiated, made)):
            self.used.update((id(each), None) for each in strangers if is_differentiated(each))
        return result


class _Instead(TorchFunctionMode):
    """Lets operations use other tensors in the place of some."""

    def __init__(self, others: dict[int, torch.Tensor]):
        super().__init__()
        self.others = others

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def other(value: Any) -> Any:
            return self.others.get(id(value), value) if isinstance(value, torch.Tensor) else value

        args, kwargs = pytree.tree_map(other, (args, kwargs or {}))
        return func(*args, **kwargs)


@contextlib.contextmanager
def _instead(captured: Tensors, others: Tensors) -> Iterator[None]:
    """Lets a function that captured some tensors of one level read those of another."""
    if not captured:
        yield
        return
    with _Instead({id(one): two for one, two in zip(captured, others, strict=True)}):
        yield


def _tensors(nest: Any) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(nest) if isinstance(value, torch.Tensor)]


# --- levels ----------------------------------------------------------------------------------------------------------


def not_dual(outputs: tuple[Any, ...], pullback: Pullback) -> tuple[Any, ...]:
    """`outputs` of a run on what forward mode does not move."""
    if any(map(is_dual, outputs)):
        pullback.capture(["(a value that forward mode differentiates)"])
        raise messages.unserved_variables("torch", "in forward mode")
    return outputs


def is_forward(tensors: Tensors) -> bool:
    """Whether forward mode is at work, which no_grad does not stop."""
    return any(map(is_dual, tensors)) or (transforms_active() and _forward_levels() > 0)


def _forward_levels() -> int:
    """How many forward-mode transforms are running, one inside the other."""
    return sum(level.key() == TransformType.Jvp for level in retrieve_all_functorch_interpreters())


def is_dual(tensor: torch.Tensor) -> bool:
    """Whether forward mode moves a tensor at the innermost level."""
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def _is_pushed(tensor: torch.Tensor) -> bool:
    """Whether forward mode moves `tensor`, at the innermost of the running transforms or at an outer one."""
    if is_dual(tensor):
        return True
    levels = [level.level() for level in retrieve_all_functorch_interpreters()] if transforms_active() else []
    if not levels or functorch.maybe_get_level(tensor) >= levels[-1]:
        return False
    # A tensor is asked at the level where forward mode runs; inside of it the answer is always no (torch 2.13).
    with temporarily_pop_interpreter_stack():
        return _is_pushed(tensor)


def _is_transformed(tensor: torch.Tensor) -> bool:
    """Whether a tensor belongs to a level of some transform, or is differentiated without one."""
    return functorch.is_functorch_wrapped_tensor(tensor) or is_differentiated(tensor)


def is_differentiated(tensor: torch.Tensor) -> bool:
    """Whether any level of differentiation, forward or reverse, tracks `tensor`."""
    # A batched tensor cannot be asked; what it wraps can.
    while functorch.is_batchedtensor(tensor) or not (tensor.requires_grad or _is_pushed(tensor)):
        if not functorch.is_functorch_wrapped_tensor(tensor):
            return False
        tensor = functorch.get_unwrapped(tensor)
    return True
