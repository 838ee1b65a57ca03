"""The ordinary call in eager mode: plain tensors in, one plain floating-point tensor out, nothing special going on.

`attach` does the same for every call. This file does it in one loop over the arguments, and hands over whatever turns
out to be unusual, before or after the function ran, and in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from keras_cg.backends.torch.attach import Attached, Call, attach_any, record, storage_of
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
    versions,
)
from keras_cg.engine import messages


def attach(fun: Any, tensors: Sequence[Any]) -> tuple[Any, ...]:
    if not fun.is_ordinary or torch.compiler.is_compiling() or is_tracing() or transforms_active():
        return attach_any(fun, tensors)
    if not torch.is_grad_enabled() or forward_ad._current_level >= 0 or dispatch_modes() or is_included(PRE_DISPATCH):
        return attach_any(fun, tensors)
    if hooks(False) is not None or is_autocast() or dynamo_callback() is not None:
        return attach_any(fun, tensors)
    before, storages, is_differentiated = [], [], False
    try:
        for tensor in tensors:
            if tensor.requires_grad:
                is_differentiated = True
            before.append(tensor._version)
            storages.append(tensor.untyped_storage().data_ptr())
    except RuntimeError:  # a tensor of inference mode, or one without memory of its own
        return attach_any(fun, tensors)
    start = sequence_number()
    if not is_differentiated:
        return _constant(fun, tensors, before, start)
    inputs = []
    for tensor in tensors:
        inputs.append(tensor.detach())
    outputs, pullback = fun.returned(inputs, fun.user(*inputs))
    for tensor, version in zip(tensors, before, strict=True):
        if tensor._version != version:
            raise messages.changed_argument(fun.name)
    output: Any = outputs[0] if len(outputs) == 1 else None
    is_usual = is_plain(output) and not output.requires_grad and output.is_floating_point()
    storage = output.untyped_storage().data_ptr() if is_usual and output.layout is torch.strided else None
    if storage is None or storage in storages:
        return record(fun, tensors, inputs, before, start, outputs, pullback)
    storages.append(storage)
    call = Call()
    call.fun, call.count, call.pullback, call.storages = fun, len(inputs), pullback, storages
    if pullback.holds_anything():
        call.watched, call.before = [*inputs, output], [*before, output._version]
    return (_apply(call, output, (), *tensors),)


def _constant(fun: Any, tensors: Sequence[Any], before: list[int], start: int) -> tuple[Any, ...]:
    """A call of which no argument is differentiated: there is a gradient only if the function captured something."""
    pair = fun.user(*tensors)
    if versions(tensors) != before:
        raise messages.changed_argument(fun.name)
    if type(pair) is tuple and len(pair) == 2 and is_plain(pair[0]) and not pair[0].requires_grad and callable(pair[1]):
        return pair[:1]
    return record(fun, tensors, tensors, before, start, *fun.returned(tensors, pair))


class _Ordinary(Attached):
    """`Attached` for one output."""

    @staticmethod
    def forward(ctx: Any, call: Call, output: Any, residuals: Any, *tensors: torch.Tensor) -> Any:
        ctx.call = call
        ctx.save_for_backward(*tensors)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        call = ctx.call
        pullback = call.pullback
        if pullback is None or call.reads is not None or torch.is_grad_enabled():
            return Attached.backward(ctx, *cotangents)
        for tensor, version in zip(call.watched, call.before, strict=True):
            if tensor._version != version:
                call.refuse_changes()
        gradients, _ = pullback(cotangents, (), ctx.needs_input_grad[3:])
        storages, results = call.storages, [None, None, None]
        for gradient in gradients:
            if gradient is not None and storage_of(gradient) in storages:
                gradient = gradient.clone()
            results.append(gradient)
        if not keeps_graph():
            call.pullback, call.watched, call.before = None, (), ()
        return tuple(results)


_apply: Callable[..., Any] = super(torch.autograd.Function, _Ordinary).apply
