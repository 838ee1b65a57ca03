"""The way in which the rule is attached, which depends on who differentiates, compiles, exports or traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from keras_cg.backends.torch import compiled, exported, traced, transformed
from keras_cg.backends.torch.recorded import not_dual, record
from keras_cg.backends.torch.replayed import run, sequence_number, surroundings
from keras_cg.backends.torch.tensors import is_captured, is_forward_open, is_tracing, saveable, transforms_active
from keras_cg.engine.contract import Function


def attach(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Attaches the rule in the way that suits who differentiates.

    Where autograd alone may, `fun` runs once, here, on values cut from the graph, and a Function further down carries
    the result. So an output that somebody differentiates all the same hangs on something that `fun` captured. All in
    one function: where torch.compile (2.13) gives up, it would begin with an inner one, and not know that it compiles.
    """
    if torch.compiler.is_compiling():
        if not compiled.is_exporting():
            return compiled.attach(fun, tensors) if torch.is_grad_enabled() else fun(*tensors)[0]
        # torch says of every thread that it exports, while one of them does.
        if torch.compiler.is_dynamo_compiling() or is_captured():
            return exported.attach(fun, tensors)
    if is_tracing():
        return traced.attach(fun, tensors)
    if transforms_active() or is_forward_open():
        if not torch.is_grad_enabled() and not transformed.is_forward(tensors):
            return not_dual(*fun(*tensors))
        if transforms_active() or any(map(transformed.is_dual, tensors)):
            return transformed.attach(fun, saveable(tensors))
    if not torch.is_grad_enabled():
        return exported.cut(fun.name, fun(*tensors)[0])
    inputs: Sequence[Any] = tensors
    if any([tensor.requires_grad for tensor in tensors]):
        inputs = [tensor.detach() for tensor in tensors]
    seen, start = surroundings(tensors), sequence_number()
    return record(fun, tensors, inputs, seen, start, *run(fun, inputs))  # type: ignore[no-any-return]
