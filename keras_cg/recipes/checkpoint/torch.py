"""A function that runs again in the backward pass, on torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from keras_cg.backends import torch as own
from keras_cg.backends.torch.tensors import (
    describe,
    is_captured,
    is_floating,
    is_forward_open,
    sequence_number,
    transforms_active,
    versions,
)
from keras_cg.engine.contract import Tensors
from keras_cg.recipes.checkpoint import messages
from keras_cg.recipes.checkpoint.function import OutputFunction
from keras_cg.recipes.checkpoint.sample import Sample


def recompute(fun: OutputFunction, tensors: Sequence[Any]) -> Tensors:
    """Calls `torch.utils.checkpoint`, and checks that the second run reads the same values."""
    # torch.compile allows no side effects in a checkpoint, and its partitioner decides what to save. A program that is
    # captured has no values to compare.
    if torch.compiler.is_dynamo_compiling() or is_captured():
        return fun.once(*tensors)
    # torch.func (2.13) has no hooks for saved tensors.
    if transforms_active() or is_forward_open():
        return fun(*tensors)
    sample: Sample | None = None
    captured = _captured(fun)
    # torch counts a tensor's version up when it is changed in place.
    before = versions(captured)

    def run(*inputs: Any) -> Tensors:
        nonlocal sample
        for tensor, old, new in zip(captured, before, versions(captured), strict=True):
            if old != new:
                raise messages.changed_since(fun.name, f"a {describe(tensor)}")
        start = sequence_number()
        outputs = fun(*inputs)
        # Without those on an accelerator, which the program would have to wait for.
        here = [output for output in outputs if output.is_cpu and not output.is_sparse]
        if sample is not None:
            sample.compare(fun.name, here)
            return outputs
        sample = Sample(own, here)
        arguments = {id(tensor) for tensor in inputs}
        late = [*filter(torch.is_tensor, fun.reads()), *_leaves(outputs, start)]
        late = [tensor for tensor in late if id(tensor) not in arguments]
        captured.extend(late)
        before.extend(versions(late))
        return outputs

    # Without early_stop, because a run that stops early may leave a mask in the attributes of a cell of Keras.
    return checkpoint(run, *tensors, use_reentrant=False, early_stop=False)  # type: ignore[no-any-return]


def _captured(fun: OutputFunction) -> list[torch.Tensor]:
    """Returns the floating tensors that a function captures: of modules only those that are not trained.

    The graph of the outputs shows which trained ones are read. An integer may count the runs.
    """
    captured: list[torch.Tensor] = []
    for each in fun.captures(lambda value: isinstance(value, (torch.Tensor, torch.nn.Module))):
        if isinstance(each, torch.Tensor):
            captured.append(each)
        else:
            captured += [tensor for tensor in (*each.parameters(), *each.buffers()) if not tensor.requires_grad]
    return [tensor for tensor in captured if is_floating(tensor)]


def _leaves(outputs: Tensors, start: int) -> list[torch.Tensor]:
    """Returns the leaves of the graph of `outputs`, by the nodes from `start` on."""
    stack = [output.grad_fn for output in outputs if output.grad_fn is not None]
    leaves, seen = [], set(stack)
    while stack:
        node = stack.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves.append(leaf)
        elif node._sequence_nr() >= start:
            following = [before for before, _ in node.next_functions if before is not None and before not in seen]
            seen.update(following)
            stack += following
    return leaves
