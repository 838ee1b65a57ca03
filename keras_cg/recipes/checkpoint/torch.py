"""A function that runs again in the backward pass, on torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    # Once, because torch.func (2.13) has no hooks for saved tensors. torch.compile allows no side effects in a
    # checkpoint, and its partitioner decides what to save. A program that is captured has no values to compare.
    if torch.compiler.is_dynamo_compiling() or transforms_active() or is_forward_open() or is_captured():
        return fun.once(*tensors)
    captured = _Captured(fun)

    def run(*inputs: Any) -> Tensors:
        captured.check()
        start = sequence_number()
        outputs = fun(*inputs)
        captured.note(fun, outputs, inputs, start)
        captured.compare(outputs)
        return outputs

    # Without early_stop, because a run that stops early may leave a mask in the attributes of a cell of Keras.
    return checkpoint(run, *tensors, use_reentrant=False, early_stop=False)  # type: ignore[no-any-return]


class _Captured:
    """The versions of the captured tensors of a function, which must not change before its second run.

    They are the tensors in closures and in modules there, the values of Keras's variables, and all leaves of the
    outputs' graph. torch counts a tensor's version up when it is changed in place.
    """

    def __init__(self, fun: OutputFunction):
        self.name = fun.name
        self.is_complete = False
        self.sample: Sample | None = None
        # The version of an integer is recorded after the first run, because an integer may count the runs.
        self.tensors = _inside(fun.captures(_is_wanted))
        self.versions = [
            version if is_floating(tensor) else None
            for tensor, version in zip(self.tensors, versions(self.tensors), strict=True)
        ]

    def note(self, fun: OutputFunction, outputs: Tensors, inputs: Tensors, start: int) -> None:
        """Adds the tensors that are known only after the first run."""
        if self.is_complete:
            return
        self.is_complete = True
        arguments = {id(tensor) for tensor in inputs}
        more = [*filter(torch.is_tensor, fun.reads()), *_leaves(outputs, start)]
        self.tensors = [*self.tensors, *(tensor for tensor in more if id(tensor) not in arguments)]
        now = versions(self.tensors)
        before = [*self.versions, *[None] * (len(now) - len(self.versions))]
        self.versions = [now[place] if version is None else version for place, version in enumerate(before)]

    def compare(self, outputs: Tensors) -> None:
        """Compares the outputs of two runs, without those on an accelerator, which the program would have to wait for.

        Raises:
            RuntimeError: They differ.
        """
        here = [output for output in outputs if output.is_cpu and not output.is_sparse]
        if self.sample is None:
            self.sample = Sample(own, here)
        else:
            self.sample.compare(self.name, here)

    def check(self) -> None:
        """Compares the versions.

        Raises:
            RuntimeError: A tensor was changed in place.
        """
        if not self.is_complete:
            return
        for tensor, version, now in zip(self.tensors, self.versions, versions(self.tensors), strict=True):
            if version != now:
                raise messages.changed_since(self.name, f"a {describe(tensor)}")


def _is_wanted(value: object) -> bool:
    return isinstance(value, (torch.Tensor, torch.nn.Module))


def _inside(captures: Iterable[Any]) -> list[torch.Tensor]:
    """Replaces each module by its tensors that are not trained: the outputs' graph shows which others are read."""
    tensors: list[torch.Tensor] = []
    for each in captures:
        if isinstance(each, torch.Tensor):
            tensors.append(each)
        else:
            own_tensors = (*each.parameters(), *each.buffers())
            tensors += [tensor for tensor in own_tensors if is_floating(tensor) and not tensor.requires_grad]
    return tensors


def _leaves(outputs: Tensors, start: int) -> list[torch.Tensor]:
    """Returns the leaves of the graph of `outputs`, by the nodes from `start` on."""
    stack = [output.grad_fn for output in outputs if isinstance(output, torch.Tensor) and output.grad_fn is not None]
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
