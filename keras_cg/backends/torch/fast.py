"""The fast path: plain tensors in, plain floating-point tensors out, and no special state of torch.

Any other call continues in `attach_any`, `record` or `Attached.backward`, from the line where the difference shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from keras_cg.backends.torch.attach import Attached, Call, attach_any, attach_constant, copied, record
from keras_cg.backends.torch.tensors import (
    PRE_DISPATCH,
    dispatch_modes,
    dynamo_callback,
    hooks,
    is_autocast,
    is_included,
    is_plain,
    is_tracing,
    keeps_graph,
    sequence_number,
    transforms_active,
)
from keras_cg.engine import messages


def attach(fun: Any, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the outputs of `fun`, with the rule as their gradient."""
    if is_dynamo_compiling() or is_tracing() or transforms_active() or dispatch_modes() or not torch.is_grad_enabled():
        return attach_any(fun, tensors)
    if forward_ad._current_level >= 0 or is_included(PRE_DISPATCH) or is_autocast() or hooks(False) is not None:
        return attach_any(fun, tensors)
    if dynamo_callback() is not None or not (fun.is_ordinary or all(map(is_plain, tensors))):
        return attach_any(fun, tensors)
    for tensor in tensors:
        if tensor.requires_grad:
            break
    else:
        return attach_constant(fun, tensors) if fun.is_ordinary else attach_any(fun, tensors)
    inputs, watched, storages = [], [], set()
    try:
        for tensor in tensors:
            detached = tensor.detach()
            inputs.append(detached)
            watched.append((detached, tensor._version))
            storages.add(detached.untyped_storage().data_ptr())
    except RuntimeError:  # an inference tensor has no version, a sparse one no storage
        return attach_any(fun, tensors)
    start = sequence_number()
    outputs, pullback = fun.returned(inputs, fun.user(*inputs)) if fun.is_ordinary else fun(*inputs)
    for detached, version in watched:
        if detached._version != version:
            raise messages.changed_argument(fun.name)
    for output in outputs:
        is_usual = is_plain(output) and not output.requires_grad and output.layout is torch.strided
        storage = output.untyped_storage().data_ptr() if is_usual and output.is_floating_point() else None
        if storage is None or storage in storages:
            return record(fun, tensors, inputs, start, outputs, pullback)
        storages.add(storage)
        watched.append((output, output._version))
    call = Call()
    call.fun, call.count, call.pullback, call.storages = fun, len(inputs), pullback, storages
    if pullback.holds_anything():
        call.watched = watched
    results: tuple[Any, ...] = _apply((call, outputs), *tensors)
    return results


class _Ordinary(Attached):
    """`Attached` for such outputs."""

    @staticmethod
    def forward(ctx: Any, computed: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        ctx.call, outputs = computed
        ctx.save_for_backward(*tensors)
        return tuple([output.detach() for output in outputs])

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        call = ctx.call
        pullback = call.pullback
        if pullback is None or call.reads is not None or torch.is_grad_enabled():
            return Attached.backward(ctx, *cotangents)
        for tensor, version in call.watched:
            if tensor._version != version:
                return Attached.backward(ctx, *cotangents)
        gradients = copied(pullback(cotangents, (), ctx.needs_input_grad[1:])[0], call.storages)
        if not keeps_graph():
            call.pullback, call.watched = None, ()
        return None, *gradients


_apply: Callable[..., Any] = super(torch.autograd.Function, _Ordinary).apply
