"""The rule under torch.compile, where there is no graph to walk, and Dynamo guards against changes in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from keras_cg.backends.torch.tensors import constant_result, transforms_active
from keras_cg.engine import messages
from keras_cg.engine.contract import Function


def with_compiler(fun: Function, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Returns the outputs of `fun`, with the rule as their gradient, by code that Dynamo can trace."""
    if transforms_active():
        # torch (2.13) would use plain differentiation here, and say nothing: pytorch#193279.
        raise messages.rule_dropped(
            "torch.compile around a transform of torch.func",
            "compile the function inside and differentiate it by backward() or torch.autograd.grad()",
            fun.name,
        )
    # In plain loops here and below, because torch.compile (2.13) traces a comprehension as a call of its own.
    inputs = []
    needs_grad = []
    for tensor in tensors:
        needs_grad.append(tensor.requires_grad)
        inputs.append(tensor.detach())
    outputs = fun.complete(*inputs)
    same = []
    for output in outputs:
        found = -1
        for place in range(len(inputs)):
            if output is inputs[place]:
                found = len(outputs) + place
        same.append(found)
    for output in outputs:
        if output.requires_grad:
            fun.capture(["(a tensor that torch.compile does not name)"])
            raise messages.unserved_variables("torch", "a closure over it, inside torch.compile.", fun)
    if True not in needs_grad:
        return outputs  # type: ignore[no-any-return]
    # torch.compile (2.13) refuses a Function that gets one tensor twice.
    distinct: list[torch.Tensor] = []
    for tensor in (*outputs, *tensors):
        other = tensor
        for known in distinct:
            if known is tensor:
                other = tensor.view_as(tensor)
        distinct.append(other)
    saved_count = len(outputs) if fun.takes_output else 0
    return _Compiling.apply(fun, [*inputs, *outputs], needs_grad, same, saved_count, *distinct)  # type: ignore[no-any-return, no-untyped-call]


# Without this decorator, Dynamo of torch 2.11 answers yes in all that it traces.
@constant_result
def is_exporting() -> bool:
    """Whether torch.export runs."""
    return torch.compiler.is_exporting()


class _Compiling(torch.autograd.Function):
    """Returns outputs that were computed before, with the rule as their gradient; torch.compile saves the residuals."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Any,
        known: list[torch.Tensor],
        needs_grad: list[bool],
        same: list[int],
        saved_count: int,
        *tensors: torch.Tensor,
    ) -> Any:
        ctx.run, ctx.needs_grad, ctx.count, ctx.saved_count = run, needs_grad, len(same), saved_count
        outputs = []
        without = []
        for number in range(len(same)):
            # A view of the argument cannot be changed in place; a copy of it could be, and would lose the rule (2.13).
            place = same[number]
            output = tensors[number].detach() if place < 0 else tensors[place].view_as(tensors[place])
            outputs.append(output)
            if not (output.is_floating_point() or output.is_complex()):
                without.append(output)
        if without:
            ctx.mark_non_differentiable(*without)
        # Without it torch (2.13) does not notice a change in place of these, and compiled autograd does not find them.
        ctx.save_for_backward(*known)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        outputs = None
        if ctx.saved_count:
            saved = ctx.saved_tensors
            outputs = saved[len(saved) - ctx.saved_count :]
        gradients, _ = ctx.run.pull(cotangents, (), ctx.needs_grad, None, outputs)
        results = []
        for gradient in gradients:
            # A gradient belongs to the caller, and this may be an argument or an output itself.
            is_own = ctx.saved_count > 0
            for tensor in ctx.run.tensors:
                if tensor is gradient:
                    is_own = True
            results.append(gradient.clone() if is_own and gradient is not None else gradient)
        return (None, None, None, None, None, *[None] * ctx.count, *results)
