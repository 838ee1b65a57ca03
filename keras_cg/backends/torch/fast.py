"""The fast path: plain tensors in, plain floating tensors out, a rule of one parameter, no special state of torch.

Any other call continues in `attach_any`, `record` or `Attached.backward`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from keras_cg.backends.torch.attach import (
    Attached,
    SavedCall,
    attach_any,
    attach_constant,
    copied,
    held,
    note_state,
    record,
)
from keras_cg.backends.torch.tensors import is_special, keeps_graph, sequence_number
from keras_cg.engine import messages
from keras_cg.engine.contract import OrdinaryFunction
from keras_cg.engine.comparing import near


def attach(fun: OrdinaryFunction, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the outputs of `fun`, with the rule as their gradient."""
    if is_special() or not torch.is_grad_enabled() or not fun.is_plain:
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
    pullback: Any = None
    if fun.is_ordinary:
        outputs, rule, structure = fun.accept(fun.user(*inputs))
    else:
        outputs, pullback = fun(*inputs)
        rule, structure = pullback.rule, pullback.output
    for detached, version in watched:
        if detached._version != version:
            raise messages.changed_argument(fun.name)
    is_fast = fun.watch is None and fun.takes_one(rule) if pullback is None else pullback.takes_one
    is_fast = is_fast and len(outputs) == len(structure.places)
    for output in outputs:
        is_usual = is_fast and type(output) is torch.Tensor and output.layout is torch.strided
        is_usual = is_usual and output.is_floating_point() and not output.requires_grad
        storage = output.untyped_storage().data_ptr() if is_usual else None
        if storage is None or storage in storages:
            pullback = pullback or fun.pullback(inputs, rule, structure)
            return record(fun, tensors, inputs, start, outputs, pullback)
        storages.add(storage)
        watched.append((output, output._version))
    parts = near(rule)
    if not parts:
        watched = []  # an output would live as long as the graph
    results: Any = _apply(((fun, inputs, rule, structure, watched, held(parts), storages), outputs), *tensors)
    return results if type(results) is tuple else (results,)


class _Bare(torch.autograd.Function):
    """`Attached` for such outputs, with the bare rule: None after a backward pass that does not keep the graph."""

    @staticmethod
    def forward(ctx: Any, known: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        ctx.known, outputs = known
        ctx.reads, ctx.is_used = None, False
        ctx.save_for_backward(*tensors)
        return outputs[0].detach() if len(outputs) == 1 else tuple([output.detach() for output in outputs])

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        fun, inputs, rule, structure, watched, held, storages = ctx.known
        is_usual = rule is not None and ctx.reads is None and not torch.is_grad_enabled()
        for tensor, version in (*watched, *held):
            is_usual = is_usual and tensor._version == version
        if is_usual:
            gradients = fun.gradients(inputs, rule, structure, cotangents, ctx.needs_input_grad[1:])
            gradients = copied(gradients, storages)
            for tensor, version in held:
                if tensor._version != version:
                    note_state(held)
            ctx.is_used = True
        else:
            pullback = None if rule is None else fun.pullback(inputs, rule, structure)
            ctx.call = SavedCall(fun, len(ctx.needs_input_grad) - 1, pullback, watched, held, storages)
            _, *gradients = Attached.backward(ctx, *cotangents)
        if not keeps_graph():
            ctx.known = fun, (), None, structure, (), (), storages
        return None, *gradients


_apply: Callable[..., Any] = super(torch.autograd.Function, _Bare).apply
