"""Derivatives of any function by torch's own engines: autograd, and torch.func where a transform is running."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from keras_cg.backends.torch import transforms
from keras_cg.backends.torch.saved import call_of
from keras_cg.backends.torch.tensors import (
    edges,
    is_compiling,
    is_forward_open,
    leaves,
    saveable,
    transforms_active,
    uncompiled,
)
from keras_cg.engine.contract import PlainFunction, Tensors


# What is compiled by itself can be differentiated once (torch 2.13), and `fun` may be a derivative of it.
@uncompiled
def vjp(fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, Callable[[Sequence[Any]], Tensors], Tensors]:
    if torch.compiler.is_dynamo_compiling() or transforms_active() or is_forward_open():
        # Neither Dynamo nor a transform lets a tensor become a leaf, and a leaf has no tangent; torch.func's vjp nests.
        outputs, pull, aux = torch.func.vjp(fun, *tensors, has_aux=True)  # type: ignore[misc]
        return outputs, lambda cotangents: pull(tuple(cotangents)), aux
    outer = torch.is_grad_enabled()
    with _outside_inference(), torch.enable_grad():
        # New leaves; of a tensor that is differentiated outside, an alias that stays on its graph.
        inputs: list[Any] = [
            tensor.view_as(tensor) if outer and tensor.requires_grad else tensor.detach().requires_grad_()
            for tensor in saveable(tensors)
        ]
        outputs, aux = fun(*inputs)
    for tensor in inputs:
        if tensor.is_leaf:
            # No other code has this leaf, so nothing outside differentiates with respect to it.
            tensor.is_spent = True
    # What is wanted outside, and no flag: a rule may close over the pullback, and two runs of it would differ by that.
    further = (*outputs, *aux) if outer and _is_wanted_outside((*outputs, *aux)) else ()
    reads: list[bool] = []
    if outer and not further:
        # A rule may read a tensor that is differentiated outside, and that no output depends on: it tells when it runs.
        for node, _, _ in edges(outputs):
            call = call_of(node)
            if call is not None:
                call.reads = reads

    pullback = functools.partial(_pulled, outputs, inputs, further, reads)
    if further:
        return outputs, pullback, aux
    return tuple(output.detach() for output in outputs), pullback, tuple(other.detach() for other in aux)


@uncompiled
def _pulled(outputs: Tensors, inputs: list[Any], further: Tensors, reads: list[bool], cotangents: Tensors) -> Tensors:
    """Returns the gradients of `inputs`, with a graph if something outside may differentiate them."""
    used = [(out, cotangent) for out, cotangent in zip(outputs, cotangents, strict=True) if out.requires_grad]
    if not used:
        return tuple(torch.zeros_like(tensor) for tensor in inputs)
    is_recorded = torch.is_grad_enabled() and any([tensor.requires_grad for tensor in cotangents])
    create_graph = bool(further) or is_recorded
    with _outside_inference():
        starts, arrived = [out for out, _ in used], saveable([cotangent for _, cotangent in used])
        differentiate = functools.partial(_differentiate, starts, inputs, arrived)
        gradients = differentiate(create_graph)
        if any(reads) and not create_graph and torch.is_grad_enabled():
            recorded = differentiate(True)
            # The rule may have read one of `inputs`; then nothing outside needs the graph.
            gradients = recorded if _is_wanted_outside(recorded) else gradients
        return tuple(map(_materialised, gradients))


def gradient(fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, Tensors, Tensors]:
    if is_compiling() or not (transforms_active() or is_forward_open()):
        outputs, pullback, aux = vjp(fun, tensors)
        return outputs, pullback([torch.ones_like(output) for output in outputs]), aux

    def total(*tensors: torch.Tensor) -> tuple[torch.Tensor, Any]:
        (output,), aux = fun(*tensors)
        return output.sum(), ((output,), aux)

    # The pullback must run while its level is open: a level that the rule opens would get the same number.
    differentiated = torch.func.grad_and_value(total, argnums=tuple(range(len(tensors))), has_aux=True)
    gradients, (_, (outputs, aux)) = differentiated(*tensors)
    return outputs, gradients, aux


def needs_grad(tensors: Sequence[torch.Tensor]) -> list[bool]:
    if not is_compiling() and (transforms_active() or is_forward_open()):
        return [transforms.is_differentiated(tensor) for tensor in tensors]
    return [torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors]


def _materialised(tensor: torch.Tensor) -> torch.Tensor:
    """Gives zeros memory of their own: forward mode of torch (2.13) returns some without, which cannot be saved."""
    return torch.zeros_like(tensor) if tensor._is_zerotensor() else tensor  # torch does not document this method


def _differentiate(outputs: Any, inputs: Any, cotangents: Any, create_graph: bool) -> Tensors:
    differentiate = functools.partial(
        torch.autograd.grad, create_graph=create_graph, allow_unused=True, materialize_grads=True
    )
    try:
        return differentiate(outputs, inputs, cotangents, retain_graph=True)
    except RuntimeError as error:
        if "donated buffers" not in str(error):
            raise
        # A compiled program of torch (2.13) may write into the memory of what it saved; then it can run backward once.
        return differentiate(outputs, inputs, cotangents, retain_graph=False)


def _outside_inference() -> contextlib.AbstractContextManager[Any]:
    """Leaves inference mode, in which autograd records nothing, not even under enable_grad."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()


def _is_wanted_outside(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether the gradient of `outputs` may be differentiated: they depend on a leaf that is not one of ours.

    A graph of every gradient would cost memory, and a second run of each function in it.
    """
    return not all([hasattr(leaf, "is_spent") for leaf in leaves(outputs)])


def jvp(fun: PlainFunction, tensors: Sequence[Any], tangents: Sequence[Any]) -> tuple[Tensors, Tensors, Tensors]:
    outputs, pushed, aux = torch.func.jvp(fun, tuple(tensors), tuple(tangents), has_aux=True)  # type: ignore[misc]
    return outputs, pushed, aux


def compiled(fun: Callable[..., Tensors]) -> Callable[..., Tensors] | None:
    # This traces and differentiates ahead of time, as inductor does, whose own compilation takes long.
    return torch.compile(fun, fullgraph=True, backend="aot_eager")


def exported(fun: Callable[..., Tensors], tensors: Sequence[Any]) -> Callable[..., Tensors] | None:
    class Module(torch.nn.Module):
        def forward(self, *tensors: Any) -> Tensors:
            return fun(*tensors)

    with warnings.catch_warnings():
        # The warning that the program has no gradient: the checker, which asks for it, sees that itself.
        warnings.simplefilter("ignore")
        return torch.export.export(Module(), tuple(tensors)).module()


def devices() -> tuple[str, ...]:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ("cpu",)
    return ("cpu", *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())))


def stop_gradient(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()
