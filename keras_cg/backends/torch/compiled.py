"""The rule while torch.compile traces, which has no graph to walk, and guards against changes in place by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from keras_cg import errors
from keras_cg.backends.torch.tensors import transforms_active
from keras_cg.engine.contract import Function


def attach(fun: Function, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """As `attach.attach`, in what Dynamo can trace."""
    # Where torch (2.13) would go on with plain differentiation and say nothing: pytorch#193279.
    if torch.compiler.is_exporting():
        raise errors.rule_dropped(
            "torch.export", "export it under torch.no_grad() for inference, or export after torch.compile's AOT stage"
        )
    if transforms_active():
        raise errors.rule_dropped(
            "torch.compile around a transform of torch.func",
            "compile the function inside and differentiate it by backward() or torch.autograd.grad()",
        )
    # In plain loops here and in `_Compiling`, because torch.compile (2.13) traces a comprehension as a call of its own.
    inputs = []
    wanted = []
    is_wanted = False
    for tensor in tensors:
        is_wanted = is_wanted or tensor.requires_grad
        wanted.append(tensor.requires_grad)
        inputs.append(tensor.detach())
    outputs, pullback = fun(*inputs)
    for output in outputs:
        if output.requires_grad:
            pullback.capture(["(a tensor that torch.compile does not name)"])
            raise errors.unserved_variables("torch", "under torch.compile")
    if not is_wanted:
        return outputs
    # torch.compile (2.13) refuses a Function that gets one tensor twice.
    distinct: list[torch.Tensor] = []
    for tensor in (*outputs, *tensors):
        other = tensor
        for known in distinct:
            if known is tensor:
                other = tensor.view_as(tensor)
        distinct.append(other)
    return _Compiling.apply(pullback, wanted, len(outputs), *distinct)  # type: ignore[no-any-return, no-untyped-call]


class _Compiling(torch.autograd.Function):
    """Outputs that were computed already, with the rule as their gradient; what is kept is torch.compile's matter."""

    @staticmethod
    def forward(ctx: Any, pullback: Any, wanted: list[bool], count: int, *tensors: torch.Tensor) -> Any:
        ctx.pullback, ctx.wanted, ctx.count = pullback, wanted, count
        outputs = []
        without = []
        for tensor in tensors[:count]:
            output = tensor.detach()
            outputs.append(output)
            if not (output.is_floating_point() or output.is_complex()):
                without.append(output)
        if without:
            ctx.mark_non_differentiable(*without)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        return (None, None, None, *[None] * ctx.count, *ctx.pullback(cotangents, (), ctx.wanted)[0])
