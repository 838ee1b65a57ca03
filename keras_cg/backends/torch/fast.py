"""The fast path: plain tensors in, one plain floating-point tensor out, and no special state of torch.

`attach` does here what `attach_any` does for every call. Any other call goes to `attach_any`, `record` or
`Attached.backward`, from the line where the difference shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import is_grad_enabled
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from keras_cg.backends.torch.attach import Attached, Call, attach_any, copied, record
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
from keras_cg.engine.freezing import freeze


def attach(fun: Any, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the outputs of `fun`, with the rule as their gradient."""
    if not fun.is_ordinary or is_dynamo_compiling() or is_tracing() or transforms_active() or dispatch_modes():
        return attach_any(fun, tensors)
    if not is_grad_enabled() or forward_ad._current_level >= 0 or is_included(PRE_DISPATCH) or is_autocast():
        return attach_any(fun, tensors)
    if hooks(False) is not None or dynamo_callback() is not None:
        return attach_any(fun, tensors)
    for tensor in tensors:
        if tensor.requires_grad:
            break
    else:
        return _constant(fun, tensors)
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
    output = None if rule is None else pair[0]
    if output is None or output.requires_grad or output.layout is not torch.strided or not output.is_floating_point():
        return record(fun, tensors, inputs, start, *fun.returned(inputs, pair))
    storage = output.untyped_storage().data_ptr()
    if storage in storages:
        return record(fun, tensors, inputs, start, *fun.returned(inputs, pair))
    storages.append(storage)
    call = Call()
    call.fun, call.count, call.inputs, call.rule, call.storages = fun, len(inputs), inputs, freeze(rule), storages
    if rule.__closure__ is not None or rule.__defaults__ is not None:
        watched.append((output, output._version))
        call.watched = watched
    return (_apply((call, output), *tensors),)


def _constant(fun: Any, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Calls `fun` where no argument is differentiated: only a captured tensor can have a gradient."""
    before, start = versions(tensors), sequence_number()
    pair = fun.user(*tensors)
    if versions(tensors) != before:
        raise messages.changed_argument(fun.name)
    if type(pair) is tuple and len(pair) == 2 and is_plain(pair[0]) and not pair[0].requires_grad and callable(pair[1]):
        return pair[:1]
    return record(fun, tensors, tensors, start, *fun.returned(tensors, pair))


class _FastAttached(Attached):
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
        if rule is None or cotangents[0] is None or is_grad_enabled():
            call.leave_fast_path()
            return Attached.backward(ctx, *cotangents)
        for tensor, version in call.watched:
            if tensor._version != version:
                call.leave_fast_path()
                return Attached.backward(ctx, *cotangents)
        gradients = call.fun.gradients(call.inputs, rule, cotangents[0], ctx.needs_input_grad[1:])
        try:
            for gradient in gradients:
                if gradient.untyped_storage().data_ptr() in call.storages:
                    gradients = copied(gradients, call.storages)
                    break
        except (AttributeError, RuntimeError):  # None has no storage, and a sparse tensor has none either
            gradients = copied(gradients, call.storages)
        if not keeps_graph():
            call.rule, call.watched, call.inputs = None, (), ()
        return None, *gradients


_apply: Callable[..., Any] = super(torch.autograd.Function, _FastAttached).apply
