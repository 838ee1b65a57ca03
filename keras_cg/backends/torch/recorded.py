"""The rule, attached by a `torch.autograd.Function` to outputs that were computed already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from keras_cg import errors
from keras_cg.backends import torch as own
from keras_cg.backends.torch import exported, transformed
from keras_cg.backends.torch.replayed import Replay, Surroundings, apply, replay
from keras_cg.backends.torch.tensors import (
    describe,
    integers,
    is_fake,
    is_forward_open,
    saveable,
    transforms_active,
)
from keras_cg.engine.again import Run
from keras_cg.engine.contract import Function, Pullback


# Where torch.compile gave up, it would compile what `attach` calls by itself, and fail in it (2.13).
@torch.compiler.disable  # type: ignore[untyped-decorator]
def record(
    fun: Function,
    tensors: Sequence[Any],
    inputs: Sequence[Any],
    seen: Surroundings,
    start: int,
    outputs: tuple[Any, ...],
    pullback: Pullback,
) -> tuple[Any, ...]:
    """The outputs of a run, with the rule as their gradient, if anybody differentiates.

    Args:
        fun: The function, which may run again.
        tensors: Its arguments.
        inputs: The same cut from the graph, if one of them is differentiated.
        seen: What the run saw besides.
        start: The number of the first node that it may have made.
        outputs: What it gave.
        pullback: The rule.
    """
    if is_forward_open():
        not_dual(outputs, pullback)
    variables: list[torch.Tensor] = []
    if any([output.requires_grad for output in outputs]):
        variables = captured(fun, outputs, start, pullback)
        pullback.capture([describe(variable) for variable in variables])
    elif inputs is tensors:
        return exported.cut(fun.name, outputs)
    kept = Run(own, Replay(fun, seen), inputs, pullback)
    return apply(_Attach, kept, outputs, *saveable(tensors), *variables)


def not_dual(outputs: tuple[Any, ...], pullback: Pullback) -> tuple[Any, ...]:
    """`outputs` of a run on what forward mode does not move."""
    if any(map(transformed.is_dual, outputs)):
        pullback.capture(["(a value that forward mode differentiates)"])
        raise errors.unserved_variables("torch", "in forward mode")
    return outputs


class _Attach(torch.autograd.Function):
    """Outputs that were computed already, with the rule as their gradient."""

    @staticmethod
    def forward(ctx: Any, kept: Run, outputs: Sequence[torch.Tensor], *tensors: torch.Tensor) -> Any:
        ctx.kept = kept
        given = tensors[: kept.count]
        ctx.save_for_backward(*given, *saveable(kept.held), *tensors[kept.count :])
        # Saved, they are freed by the backward pass, seen by hooks, and guarded against changes in place.
        kept.held = []
        outputs = aliases(outputs, given)
        if without := integers(outputs):
            ctx.mark_non_differentiable(*without)
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        return (None, None, *backward(ctx, cotangents, ctx.needs_input_grad[2:]))


def backward(ctx: Any, cotangents: Sequence[torch.Tensor], needs: Sequence[bool]) -> tuple[Any, ...]:
    """The gradients of the arguments, and of what the function captured.

    Args:
        ctx: What a Function has kept: a run as `kept`, and the arguments, what the rule held, and what the function
            captured.
        cotangents: One for each output.
        needs: Which of the arguments, and of what it captured, need a gradient.
    """
    kept: Run = ctx.kept
    is_differentiated = torch.is_grad_enabled()
    wanted, count = needs[: kept.count], len(needs) - kept.count
    # What only a higher order needs may have changed meanwhile. Asked once: a checkpoint recomputes them only once.
    saved = ctx.saved_tensors if is_differentiated or kept.sources or count or not kept.is_whole else ()
    inputs, held, variables = saved[: kept.count], saved[kept.count : len(saved) - count], saved[len(saved) - count :]
    if is_differentiated:
        pullback = kept.differentiated(replay, torch.Tensor.detach, inputs, held)
        gradients, others = pullback(cotangents, variables if count else (), wanted)
        return (*gradients, *others)
    if kept.uses_inputs:
        # The rule saw inputs cut from the graph.
        inputs = tuple(tensor.detach() for tensor in inputs)
    pullback = kept.pullback(inputs, held)
    if kept.readings is None:
        gradients, others = pullback(cotangents, variables if count else (), wanted)
    else:
        gradients, others = _read(kept.readings, pullback, cotangents, variables if count else (), wanted)
    if kept.uses_inputs:
        gradients = copied(gradients, inputs)
    return (*gradients, *others)


def copied(gradients: Sequence[Any], inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Gradients, and a copy of each that has its memory from an input.

    autograd keeps a gradient that nobody else holds as it is: clearing it would clear the argument.
    """
    same, known, storages = {*map(id, inputs)}, {0}, [0] * len(gradients)
    if not transforms_active():  # what a transform wraps has no memory to be asked for
        known, storages = {*_storages(inputs)}, _storages(gradients)
    others = []
    for gradient, storage in zip(gradients, storages, strict=True):
        is_shared = id(gradient) in same or (storage != 0 and storage in known)
        others.append(gradient.clone() if is_shared else gradient)
    return tuple(others)


def _storages(tensors: Sequence[torch.Tensor | None]) -> list[int]:
    """Where the memory of each tensor begins; 0 if it has none of its own, as a fake one, or there is no tensor."""
    storages = []
    for tensor in tensors:
        storage = 0
        if tensor is not None and tensor.layout is torch.strided and not is_fake(tensor):
            try:
                storage = tensor.untyped_storage().data_ptr()
            except RuntimeError:  # a subclass that wraps other tensors has no memory to ask for
                storage = 0
        storages.append(storage)
    return storages


def _read(
    readings: list[bool],
    pullback: Pullback,
    cotangents: Sequence[Any],
    variables: Sequence[Any],
    wanted: Sequence[bool],
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What the rule gives; and notes whether that hangs on something that is differentiated."""
    with torch.enable_grad():
        parts = pullback(cotangents, variables, wanted)
    readings += [tensor.requires_grad for part in parts for tensor in part if tensor is not None]
    gradients, others = (
        tuple(tensor.detach() if tensor is not None and tensor.requires_grad else tensor for tensor in part)
        for part in parts
    )
    return gradients, others


def aliases(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """`outputs` as other objects, since the rule may hold one, and it would then hold itself through its node.

    One that shares its memory with an input becomes a view of it in autograd's eyes as well, so that changing either in
    place is noticed.
    """
    sharing = dict(zip(_storages(inputs), inputs, strict=True))
    others = []
    for output, storage in zip(outputs, _storages(outputs), strict=True):
        base = sharing.get(storage) if storage else None
        if base is not None and output.dtype == base.dtype and output.is_conj() == base.is_conj():
            others.append(base.as_strided(output.size(), output.stride(), output.storage_offset()))
        else:
            others.append(output.detach())
    return tuple(others)


def captured(fun: Function, outputs: Sequence[torch.Tensor], start: int, pullback: Pullback) -> list[torch.Tensor]:
    """The tensors that `fun` captured and `outputs` hang on, in the order in which they were first used.

    Nodes are numbered as they are made; those from `start` on were made by `fun`.
    """
    known = {(tensor.grad_fn, tensor.output_nr): tensor for tensor in fun.held(_is_computed).tensors}
    used: dict[torch.Tensor, int] = {output: 0 for output in outputs if output.is_leaf and output.requires_grad}
    stack = [(output.grad_fn, output.output_nr, start) for output in outputs if output.grad_fn is not None]
    seen = set()
    while stack:
        node, number, user = stack.pop()
        tensor = known.get((node, number), getattr(node, "variable", None))
        if tensor is not None:
            used[tensor] = min(user, used.get(tensor, user))
        elif node._sequence_nr() < start or not any(before is not None for before, _ in node.next_functions):
            # Computed before, from what is trainable, and held where it is not to be found; or, under aot_module, what
            # stands for something trainable.
            pullback.capture(["(a tensor computed from trainable ones)"])
            raise errors.unserved_variables("torch", "(where it is not in a closure)")
        elif node not in seen:
            seen.add(node)
            stack += [
                (before, place, node._sequence_nr()) for before, place in node.next_functions if before is not None
            ]
    return sorted(used, key=used.__getitem__)


def _is_computed(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None
