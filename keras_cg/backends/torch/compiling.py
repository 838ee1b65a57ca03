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
    # In plain loops here and below, because torch.compile (2.13) traces a comprehension, and each step of `enumerate`,
    # as a call of its own.
    inputs, needs_grad = [], []
    for tensor in tensors:
        needs_grad.append(tensor.requires_grad)
        inputs.append(tensor.detach())
    outputs = fun.complete(*inputs)
    same = []
    for output in outputs:
        if output.requires_grad:
            fun.capture(["(a tensor that torch.compile does not name)"])
            raise messages.unserved_variables("torch", "a closure over it, inside torch.compile.", fun)
        found = None
        for place in range(len(inputs)):
            if output is inputs[place]:
                found = place
        same.append(found)
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
    # In one tuple, because torch.compile looks at each argument of a Function several times.
    return _Compiling.apply((fun, [*inputs, *outputs], needs_grad, same), *distinct)  # type: ignore[no-any-return, no-untyped-call]


# Without this decorator, Dynamo of torch 2.11 answers yes in all that it traces.
@constant_result
def is_exporting() -> bool:
    """Whether torch.export runs."""
    return torch.compiler.is_exporting()


class _Compiling(torch.autograd.Function):
    """Returns outputs that were computed before, with the rule as their gradient; torch.compile saves the residuals."""

    @staticmethod
    def forward(ctx: Any, call: tuple[Any, list[torch.Tensor], list[bool], list[int | None]], *tensors: Any) -> Any:
        ctx.run, known, ctx.needs_grad, same = call
        ctx.count = len(same)
        outputs, without = [], []
        for number in range(ctx.count):
            place = same[number]
            # A view of the argument cannot be changed in place; a copy of it could be, and would lose the rule (2.13).
            if place is None:
                output = tensors[number].detach()
            else:
                argument = tensors[ctx.count + place]
                output = argument.view_as(argument)
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
        run, outputs = ctx.run, None
        if run.takes_output:
            saved = ctx.saved_tensors
            outputs = saved[len(saved) - ctx.count :]
        gradients, _ = run.pull(cotangents, (), ctx.needs_grad, None, outputs)
        results = []
        for gradient in gradients:
            # A gradient belongs to the caller, and this may be an argument or an output itself.
            is_own = run.takes_output
            for tensor in run.tensors:
                if tensor is gradient:
                    is_own = True
            results.append(gradient.clone() if is_own and gradient is not None else gradient)
        return (None, *[None] * ctx.count, *results)
