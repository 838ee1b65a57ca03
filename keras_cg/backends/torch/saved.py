"""The state of a call for its backward pass, beside the saved tensors."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from keras_cg.backends.torch import capturing
from keras_cg.backends.torch.tensors import (
    autocasts,
    is_autocast,
    plain,
    probe,
    saveable,
    storage_of,
    version,
)
from keras_cg.engine import messages
from keras_cg.engine.contract import Pullback
from keras_cg.engine.reach import flat, inside, kind_of


def existing(values: Sequence[Any]) -> Sequence[tuple[torch.Tensor, Any]]:
    """Returns the tensors among what a run has at hand, each with its version before the run."""
    return [(tensor, version(tensor)) for tensor in _tensors(values)]


# Most of what a rule holds beside tensors has no other ones in it.
_ALONE = frozenset({int, float, str, type(None)})


def _inside(value: Any) -> list[torch.Tensor]:
    """Lists the tensors in a container or an object, and in those there."""
    parts = [*inside(value, kind_of(value))]
    if not flat.issuperset(map(type, parts)):
        parts += [each for part in parts for each in inside(part, kind_of(part))]
    return _tensors(parts)


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    # Without a loop of Python's, because a module has many attributes, and few tensors.
    return [*itertools.compress(values, map(isinstance, values, itertools.repeat(torch.Tensor)))]


class SavedCall:
    """The state of one call that the backward pass needs, without the saved tensors.

    Attributes:
        run: The first run; if hooks move or drop what is saved, one of its call that has not begun.
        number: How many arguments the function has.
        watched: The inputs and outputs, whose memory the rule may hold, and from `cells` on the tensors in its cells
            that the run has made; each with its version.
        written: The tensors that existed before and that the run wrote to, each with its version after it.
        found: Where the arguments, and the outputs that are watched, begin in memory; None if one has no place there.
        storages: Where the memory of the arguments and outputs begins, if they are all watched.
        facts: What must be equal in the rule of another run, where the first rule was dropped for hooks.
        autocasts: The autocast of the first run, if there was one.
        is_simple: Whether each output is floating, has memory of its own, and is not saved.
        is_direct: Whether the rule needs nothing that is saved.
        outputs: How many outputs are saved, which is all or none: for a rule that takes them.
        reads: A list that `derivatives.vjp` sets if something outside is differentiated. The backward pass then notes
            in it for each gradient whether it depends on what only the rule reads; that derivative would be lost.
    """

    facts: Any = None
    outputs: int = 0
    autocasts: Sequence[tuple[str, torch.dtype, bool]] = ()
    written: Sequence[tuple[torch.Tensor, Any]] = ()
    reads: list[bool] | None = None
    storages: set[int] | None = None
    is_simple = is_direct = False
    found: set[int] | None = None

    def __init__(
        self,
        run: Any,
        tensors: Sequence[torch.Tensor],
        inputs: list[tuple[torch.Tensor, Any]],
        outputs: Sequence[torch.Tensor],
    ):
        """Notes what the rule may read, as `save_for_backward` does: arguments, outputs and the tensors that it holds.

        `inputs` has the arguments of the run, with their versions; `tensors` are those of the call. Outputs are left
        out, unless the rule holds something that may lead to them: they would live as long. A tensor that existed
        before is state, unless the run has written to it.
        """
        self.run, self.number, self.watched = run, len(tensors), inputs
        is_closed, takes_output = run.is_closed, run.takes_output
        self.is_direct = not run.args and not takes_output
        residuals, places = [], {}
        found: set[int] | None = None
        existing: Collection[int] = ()
        if run.is_plain:
            try:
                found, is_simple = set(), not takes_output
                for tensor in tensors:
                    found.add(tensor.data_ptr())
                for output in outputs:
                    if type(output) not in plain:
                        found = None
                        break
                    pointer = output.data_ptr()
                    if pointer in found or pointer in places or output._is_view() or not output.is_floating_point():
                        is_simple = False
                    places[pointer] = output
                else:
                    self.found, self.is_simple = found, is_simple
            except RuntimeError:  # a sparse tensor has no place in memory
                found = None
        if run.existing:
            existing = {id(tensor) for tensor, _ in run.existing}
            self.note_written(run)
        parts = [*run.residuals]
        if run.args and run.args is not run.tensors:
            parts += run.args
        for part in parts:
            kind = type(part)
            if kind in plain or (kind not in _ALONE and isinstance(part, torch.Tensor)):
                try:
                    before = part._version
                    if found is not None and (pointer := part.data_ptr()) in places:
                        found.add(pointer)
                        # As for `output.data`, which does not tell that the output is changed.
                        is_closed = is_closed and part is places[pointer]
                except RuntimeError:  # an inference tensor, or a sparse one
                    before = version(part)
                if not existing or id(part) not in existing:
                    residuals.append((part, before))
            elif kind not in _ALONE:
                parts += _inside(part)
        if takes_output:
            self.outputs = len(outputs)
        if not is_closed or takes_output:
            self.watch(tensors, outputs)
        self.cells = len(self.watched)
        self.watched += residuals

    def note_written(self, run: Any) -> None:
        """Notes which of the tensors that existed before the run has written to."""
        both = [(tensor, before, version(tensor)) for tensor, before in run.existing]
        self.written, run.existing = [(tensor, after) for tensor, before, after in both if after != before], ()

    def watch(self, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Notes the outputs, too, for a rule that may reach them by something that it holds."""
        known = self.watched
        if self.found is None:
            # Without a storage, as a DTensor is, an argument tells itself of a change, and not by its detached alias.
            self.storages = {*map(storage_of, [*tensors, *outputs])} - {0}
            pairs = zip(known, tensors, strict=True)
            known = [pair if storage_of(pair[0]) else (tensor, pair[1]) for pair, tensor in pairs]
        else:
            self.found.update([output.data_ptr() for output in outputs])
        self.watched = known + [(output, version(output)) for output in outputs]

    def outlined(
        self,
        tensors: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        saved: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> Sequence[torch.Tensor]:
        """Drops the rule, because hooks move or drop what is saved; returns its tensors, for the comparison."""
        needs_grad = [each.requires_grad for each in tensors]
        probed = functools.partial(probe, outputs, saved[self.number :], needs_grad, outputs=self.outputs_of(outputs))
        residuals, self.facts = self.run.outline(inputs, probed)
        if self.storages is None:  # else `watch` has noted the same
            self.storages = {*map(storage_of, [*tensors, *outputs])} - {0}
        self.run, self.watched, self.written, self.is_direct = self.run.another(), [], [], False
        return saveable(residuals)

    def again(
        self, inputs: Sequence[torch.Tensor], residuals: Sequence[torch.Tensor], gradients: Callable[[Pullback], Any]
    ) -> Pullback:
        """Returns another run, whose rule must be that of the first."""
        if self.facts is not None:
            # In the first run, too, a constant among the arguments was another object than the captured one.
            inputs = [tensor if tensor.requires_grad else tensor.detach() for tensor in inputs]
        first, fun = self.run, self.run.repeat
        # torch runs a backward pass outside of the autocast of the forward pass.
        for each in self.autocasts or (autocasts(inputs, is_on=False) if is_autocast() else ()):
            fun = torch.autocast(*each)(fun)
        other = capturing.run_again(first, fun, inputs)
        if is_changed(self.watched):
            self.refuse_changes()
        if self.facts is None:
            first.check(other, gradients)
        else:
            other.check_outline(inputs, residuals, self.facts, gradients)
        return fun(*inputs)[1] if other.is_used_up else other

    def copied(self, gradients: Sequence[Any], arguments: Sequence[torch.Tensor]) -> Sequence[Any]:
        """Copies each gradient that shares its memory with an argument, an output or a tensor of the rule.

        autograd stores such a gradient as `x.grad` without a copy, and clearing that would clear the argument.
        """
        if self.found is not None:
            try:
                for gradient in gradients:
                    if gradient.data_ptr() in self.found or gradient._is_view():
                        break
                else:
                    return gradients
            except (AttributeError, RuntimeError):  # None has no memory, nor has a sparse tensor
                pass
        if self.storages is None:
            self.storages = {storage_of(tensor) for tensor, _ in self.watched} - {0}
        # By identity, too, for what has no storage, as a sparse tensor.
        known = self.storages.union(map(id, arguments), [id(tensor) for tensor, _ in self.watched])
        is_known = [each is not None and not known.isdisjoint((storage_of(each), id(each))) for each in gradients]
        return [each.clone() if is_own else each for each, is_own in zip(gradients, is_known, strict=True)]

    def outputs_of(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | None:
        """Returns the outputs, which are the last of `tensors`, for a rule that takes them."""
        return tensors[len(tensors) - self.outputs :] if self.outputs else None

    def guard(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context for a rule, which must not read what was written to since its run."""
        touched = [tensor for tensor, before in self.written if version(tensor) != before]
        return capturing.Unread(touched, self.run.name) if touched else contextlib.nullcontext()

    def refuse_changes(self) -> None:
        """Raises if a tensor that the rule holds was changed in place since; not if it is a weight of a module."""
        others = set()
        for place, (tensor, before) in enumerate(self.watched):
            if version(tensor) != before:
                if place < self.cells:
                    others.add(storage_of(tensor))
                elif not capturing.is_in_module(self.run, tensor):
                    raise messages.changed_since_call(self.run.name)
        if others and not others.isdisjoint(map(storage_of, self.run.reached())):
            raise messages.changed_since_call(self.run.name)


def is_changed(watched: Sequence[tuple[torch.Tensor, Any]]) -> bool:
    """Whether a tensor may have been changed in place since; what has no version is compared itself."""
    try:
        for tensor, before in watched:
            if tensor._version != before:
                return True
    except RuntimeError:
        return True
    return False


def call_of(node: Any) -> SavedCall | None:
    """Returns the call that a node of the graph belongs to, if it is one of ours."""
    call = getattr(node, "call", None)
    return call if isinstance(call, SavedCall) else None
