"""Derivatives of any function by torch's own engines: autograd, and torch.func where a transform is running."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from keras_cg.backends.torch.attach import Call
from keras_cg.backends.torch.tensors import saveable, transforms_active
from keras_cg.engine.contract import PlainFunction, Tensors


def vjp(fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, Callable[[Sequence[Any]], Tensors], Tensors]:
    if torch.compiler.is_dynamo_compiling() or transforms_active():
        # There no tensor can be made a leaf; torch.func's own vjp nests.
        outputs, pull, aux = torch.func.vjp(fun, *tensors, has_aux=True)  # type: ignore[misc]
        return outputs, lambda cotangents: pull(tuple(cotangents)), aux
    outer = torch.is_grad_enabled()
    with _outside_inference(), torch.enable_grad():
        # Fresh leaves, or aliases that keep hanging on what somebody outside differentiates.
        inputs: list[Any] = [
            tensor.view_as(tensor) if outer and tensor.requires_grad else tensor.detach().requires_grad_()
            for tensor in saveable(tensors)
        ]
        outputs, aux = fun(*inputs)
    for tensor in inputs:
        if tensor.is_leaf:
            # Nobody else can differentiate with respect to this leaf, neither below nor in an outer call.
            tensor.is_spent = True
    further = outer and _is_wanted_outside((*outputs, *aux))
    reads: list[bool] = []
    if outer and not further:
        # A rule of ours may read what is differentiated outside and no output hangs on: it says so when it runs.
        for node in _nodes(outputs):
            call = getattr(node, "call", None)
            if isinstance(call, Call):
                call.leave_fast_path()
                call.reads = reads

    def pullback(cotangents: Sequence[Any]) -> Tensors:
        used = [(out, cotangent) for out, cotangent in zip(outputs, cotangents, strict=True) if out.requires_grad]
        if not used:
            return tuple(torch.zeros_like(tensor) for tensor in inputs)
        create_graph = further or (torch.is_grad_enabled() and any([tensor.requires_grad for tensor in cotangents]))
        with _outside_inference():
            differentiate = functools.partial(
                _differentiate, [out for out, _ in used], inputs, saveable([cotangent for _, cotangent in used])
            )
            gradients = differentiate(create_graph)
            if any(reads) and not create_graph and torch.is_grad_enabled():
                recorded = differentiate(True)
                # What a rule reads may as well be differentiated here alone; then nobody wants the graph.
                gradients = recorded if _is_wanted_outside(recorded) else gradients
            return tuple(map(_materialised, gradients))

    if further:
        return outputs, pullback, aux
    return tuple(output.detach() for output in outputs), pullback, tuple(other.detach() for other in aux)


def gradient(fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, Tensors, Tensors]:
    if torch.compiler.is_compiling() or not transforms_active():
        outputs, pullback, aux = vjp(fun, tensors)
        return outputs, pullback([torch.ones_like(output) for output in outputs]), aux

    def total(*tensors: torch.Tensor) -> tuple[torch.Tensor, Any]:
        (output,), aux = fun(*tensors)
        return output.sum(), ((output,), aux)

    # Pulled back while its level is open: a rule that opens a level of its own would otherwise get the same number.
    differentiated = torch.func.grad_and_value(total, argnums=tuple(range(len(tensors))), has_aux=True)
    gradients, (_, (outputs, aux)) = differentiated(*tensors)
    return outputs, gradients, aux


def _materialised(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros with memory of their own: forward mode of torch (2.13) leaves some without, which nobody can save."""
    return torch.zeros_like(tensor) if tensor._is_zerotensor() else tensor  # a method that torch does not document


def _differentiate(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
    create_graph: bool,
) -> Tensors:
    differentiate = functools.partial(
        torch.autograd.grad,
        outputs,
        inputs,
        cotangents,
        create_graph=create_graph,
        allow_unused=True,
        materialize_grads=True,
    )
    try:
        return differentiate(retain_graph=True)
    except RuntimeError as error:
        if "donated buffers" not in str(error):
            raise
        # What torch.compile (2.13) made may use the memory of what it saved for something else, and then serves
        # once; torch refuses the next call.
        return differentiate(retain_graph=False)


def _outside_inference() -> contextlib.AbstractContextManager[Any]:
    """Leaves inference mode, in which autograd records nothing, not even under enable_grad."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()


def _is_wanted_outside(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether `outputs` hang on a leaf of somebody else, so that their gradient may be differentiated.

    Keeping a graph of every gradient would cost a second run of each function in it, and memory.
    """
    leaves = [output for output in outputs if output.is_leaf and output.requires_grad]
    variables = (getattr(node, "variable", None) for node in _nodes(outputs))
    return any(leaf is not None and not hasattr(leaf, "is_spent") for leaf in (*leaves, *variables))


def _nodes(outputs: Sequence[torch.Tensor]) -> Iterator[Any]:
    """Every node of the graph that `outputs` hang on, once."""
    stack = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)


def jvp(fun: PlainFunction, tensors: Sequence[Any], tangents: Sequence[Any]) -> tuple[Tensors, Tensors, Tensors]:
    outputs, moved, aux = torch.func.jvp(fun, tuple(tensors), tuple(tangents), has_aux=True)  # type: ignore[misc]
    return outputs, moved, aux


def compiled(fun: Callable[..., Tensors]) -> Callable[..., Tensors] | None:
    # Traced and differentiated ahead of time, as always; what inductor makes of it afterwards takes long.
    return torch.compile(fun, fullgraph=True, backend="aot_eager")


def exported(fun: Callable[..., Tensors], tensors: Sequence[Any]) -> Callable[..., Tensors] | None:
    class Module(torch.nn.Module):
        def forward(self, *tensors: Any) -> Tensors:
            return fun(*tensors)

    with warnings.catch_warnings():
        # That there is no gradient in it, which whoever asks for this sees of the program itself.
        warnings.simplefilter("ignore")
        return torch.export.export(Module(), tuple(tensors)).module()


def devices() -> tuple[str, ...]:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ("cpu",)
    return ("cpu", *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())))


def stop_gradient(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()
