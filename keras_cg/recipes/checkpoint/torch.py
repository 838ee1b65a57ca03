"""A function of which torch keeps the arguments alone, and that runs again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from keras_cg.backends import torch as own
from keras_cg.backends.torch.tensors import (
    describe,
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
    """By `torch.utils.checkpoint`, and checks that another run finds what the first one read."""
    # torch.func has no hooks for saved tensors (2.13), and so it keeps them. Under torch.compile `fun` would have to be
    # without side effects, and the partitioner decides by itself what to keep.
    if torch.compiler.is_compiling() or transforms_active() or is_forward_open():
        return fun.once(*tensors)
    captured = _Captured(fun)

    def run(*inputs: Any) -> Tensors:
        captured.check()
        start = sequence_number()
        outputs = fun(*inputs)
        captured.note(fun, outputs, inputs, start)
        captured.compare(outputs)
        return outputs

    # To its end, for what it leaves undone may stay in the attributes of a layer: a cell of Keras keeps its mask there.
    return checkpoint(run, *tensors, use_reentrant=False, early_stop=False)  # type: ignore[no-any-return]


class _Captured:
    """What a function reads besides its arguments, which torch saves; another run must find it as it was.

    Found is what is in closures and in modules there, what Keras tells of its variables, and every leaf that the
    outputs hang on. A change in place shows in the version of a tensor, as it does where torch saves one.
    """

    def __init__(self, fun: OutputFunction):
        self.name = fun.name
        self.is_noted = False
        self.sample: Sample | None = None
        # Of an integer the version is noted later: it may count the runs. What else changes in the first run is not the
        # same in another.
        self.tensors = _inside(fun.captures(_is_wanted))
        self.versions = [
            version if is_floating(tensor) else None
            for tensor, version in zip(self.tensors, versions(self.tensors), strict=True)
        ]

    def note(self, fun: OutputFunction, outputs: Tensors, inputs: Tensors, start: int) -> None:
        """What there is after the first run."""
        if self.is_noted:
            return
        self.is_noted = True
        arguments = {id(tensor) for tensor in inputs}
        more = [*filter(torch.is_tensor, fun.reads()), *_leaves(outputs, start)]
        self.tensors = [*self.tensors, *(tensor for tensor in more if id(tensor) not in arguments)]
        known, now = self.versions, versions(self.tensors)
        before = [*known, *[None] * (len(now) - len(known))]
        self.versions = [now[place] if version is None else version for place, version in enumerate(before)]

    def compare(self, outputs: Tensors) -> None:
        """Compares the outputs of another run, but for what is on an accelerator, which all would have to wait for.

        Raises:
            RuntimeError: They are others.
        """
        here = [output for output in outputs if output.is_cpu and not output.is_sparse]
        if self.sample is None:
            self.sample = Sample(own, here)
        else:
            self.sample.compare(self.name, here)

    def check(self) -> None:
        """Compares with what there was.

        Raises:
            RuntimeError: Something was changed.
        """
        if not self.is_noted:
            return
        for tensor, version, now in zip(self.tensors, self.versions, versions(self.tensors), strict=True):
            if version != now:
                raise messages.changed_since(self.name, f"a {describe(tensor)}")


def _is_wanted(value: object) -> bool:
    return isinstance(value, (torch.Tensor, torch.nn.Module))


def _inside(found: Iterable[Any]) -> list[torch.Tensor]:
    """Tensors, and of a module those that are not trained: it has others that the function may not read."""
    tensors: list[torch.Tensor] = []
    for each in found:
        if isinstance(each, torch.Tensor):
            tensors.append(each)
        else:
            kept = (*each.parameters(), *each.buffers())
            tensors += [tensor for tensor in kept if is_floating(tensor) and not tensor.requires_grad]
    return tensors


def _leaves(outputs: Tensors, start: int) -> list[torch.Tensor]:
    """The leaves that `outputs` hang on by the nodes from `start` on."""
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
