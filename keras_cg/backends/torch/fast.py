"""The fast path: plain tensors in, one plain floating-point tensor out, and no special state of torch.

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
    is_tracing,
    keeps_graph,
    sequence_number,
    transforms_active,
)
from keras_cg.engine import messages
from keras_cg.engine.freezing import freeze


def attach(fun: Any, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the outputs of `fun`, with the rule as their gradient."""
    if not fun.is_ordinary or is_dynamo_compiling() or is_tracing() or transforms_active() or dispatch_modes():
        return attach_any(fun, tensors)
    if not torch.is_grad_enabled() or forward_ad._current_level >= 0 or is_included(PRE_DISPATCH) or is_autocast():
        return attach_any(fun, tensors)
    if hooks(False) is not None or dynamo_callback() is not None:
        return attach_any(fun, tensors)
    for tensor in tensors:
        if tensor.requires_grad:
            break
    else:
        return attach_constant(fun, tensors)
    inputs, watched, storages = [], [], []
    try:
        for tensor in tensors:
            detached = tensor.detach()
            inputs.append(detached)
            watched.append((detached, tensor._version))
            storages.append(detached.untyped_storage().data_ptr())
    except RuntimeError:  # an inference tensor has no version, a sparse one no storage
        return attach_any(fun, tensors)
    start = sequence_number()
    pair = fun.user(*inputs)
    for detached, version in watched:
        if detached._version != version:
            raise messages.changed_argument(fun.name)
    rule = fun.rule_of(pair)
    output: Any = None if rule is None else pair[0]
    is_usual = output is not None and not output.requires_grad and output.layout is torch.strided
    storage = output.untyped_storage().data_ptr() if is_usual and output.is_floating_point() else None
    if storage is None or storage in storages:
        return record(fun, tensors, inputs, start, *fun.returned(inputs, pair))
    storages.append(storage)
    call = Call()
    call.fun, call.count, call.inputs, call.rule, call.storages = fun, len(inputs), inputs, freeze(rule), storages
    if rule.__closure__ is not None or rule.__defaults__ is not None:
        watched.append((output, output._version))
        call.watched = watched
    return (_apply((call, output), *tensors),)


class _Ordinary(Attached):
    """`Attached` for one output."""

    @staticmethod
    def forward(ctx: Any, computed: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        ctx.call, output = computed
        ctx.save_for_backward(*tensors)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        call = ctx.call
        rule = call.rule
        if rule is None or cotangents[0] is None or torch.is_grad_enabled():
            return Attached.backward(ctx, *cotangents)
        for tensor, version in call.watched:
            if tensor._version != version:
                return Attached.backward(ctx, *cotangents)
        gradients = call.fun.gradients(call.inputs, rule, cotangents[0], ctx.needs_input_grad[1:])
        gradients = copied(gradients, call.storages)
        if not keeps_graph():
            call.rule, call.watched, call.inputs = None, (), ()
        return None, *gradients


_apply: Callable[..., Any] = super(torch.autograd.Function, _Ordinary).apply
