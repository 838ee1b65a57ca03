"""The rule while torch.compile traces, which has no graph to walk, and guards against changes in place by itself."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

# These have no public names (torch 2.15). If one is gone, importing this file fails, and with it the backend.
from torch._C._functorch import TransformType, _unwrap_for_grad
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters, temporarily_clear_interpreter_stack

from keras_cg.backends.torch.tensors import transforms_active
from keras_cg.engine import messages
from keras_cg.engine.contract import Function, Pullback


def attach(fun: Function, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """As `attach.attach`, in what Dynamo can trace."""
    is_transformed = transforms_active()
    # Where torch would go on with plain differentiation and say nothing: pytorch#193279.
    if is_transformed and not (_is_one_gradient() and _keeps_rules() and not _is_tracked_outside(tensors)):
        raise messages.rule_dropped(
            "torch.compile around a transform of torch.func",
            "compile the function inside and differentiate it by backward() or torch.autograd.grad()",
        )
    # In plain loops here and below, because torch.compile (2.13) traces a comprehension as a call of its own.
    inputs = []
    wanted = []
    for tensor in tensors:
        wanted.append(tensor.requires_grad)
        inputs.append(tensor.detach())
    outputs, pullback = fun(*inputs)
    same = []
    for output in outputs:
        found = -1
        for place in range(len(inputs)):
            if output is inputs[place]:
                found = len(outputs) + place
        same.append(found)
    return _record(tensors, wanted, is_transformed, same, outputs, pullback)


def _record(
    tensors: Sequence[torch.Tensor],
    wanted: list[bool],
    is_transformed: bool,
    same: list[int],
    outputs: tuple[torch.Tensor, ...],
    pullback: Pullback,
) -> tuple[torch.Tensor, ...]:
    """The outputs of a run, with the rule as their gradient, if anybody differentiates."""
    for output in outputs:
        if output.requires_grad or (is_transformed and _is_tracked_outside((output,))):
            pullback.capture(["(a tensor that torch.compile does not name)"])
            raise messages.unserved_variables("torch", "under torch.compile")
    if True not in wanted:
        return outputs
    # torch.compile (2.13) refuses a Function that gets one tensor twice.
    distinct: list[torch.Tensor] = []
    for tensor in (*outputs, *tensors):
        other = tensor
        for known in distinct:
            if known is tensor:
                other = tensor.view_as(tensor)
        distinct.append(other)
    return _Compiling.apply(pullback, wanted, same, *distinct)  # type: ignore[no-any-return, no-untyped-call]


# Dynamo takes what these three say for constants, and does not trace them.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_exporting() -> bool:
    """Asked for real: in what it traces, Dynamo of torch 2.11 always says yes."""
    return torch.compiler.is_exporting()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_one_gradient() -> bool:
    """Whether one transform is running, and is a reverse derivative: where there are more, torch (2.15) gives zeros."""
    return [level.key() for level in retrieve_all_functorch_interpreters()] == [TransformType.Grad]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _keeps_rules() -> bool:
    return _is_kept()


@functools.cache
def _is_kept() -> bool:
    """Whether the installed torch keeps the rule of a Function under torch.compile around a gradient, tried once.

    Release 2.15 does, 2.13 does not.
    """
    with temporarily_clear_interpreter_stack():
        gradient = torch.compile(torch.func.grad(_Seven.apply), backend="eager", fullgraph=True)
        return bool(gradient(torch.tensor(1.0)) == 7)


class _Seven(torch.autograd.Function):
    """A gradient that no differentiation would give."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        return cotangents[0] * 7


def _is_tracked_outside(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether autograd differentiates one of `tensors` outside of the one transform, which has the level 1.

    What comes out would then be a constant to it, without a word (torch 2.15).
    """
    return any([_unwrap_for_grad(tensor, 1).requires_grad for tensor in tensors])


class _Compiling(torch.autograd.Function):
    """Outputs that were computed already, with the rule as their gradient; what is kept is torch.compile's matter."""

    @staticmethod
    def forward(ctx: Any, pullback: Any, wanted: list[bool], same: list[int], *tensors: torch.Tensor) -> Any:
        ctx.pullback, ctx.wanted, ctx.count = pullback, wanted, len(same)
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
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        return (None, None, None, *[None] * ctx.count, *ctx.pullback(cotangents, (), ctx.wanted)[0])
