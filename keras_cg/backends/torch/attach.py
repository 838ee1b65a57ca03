"""The rule in eager mode: a Function returns outputs that were computed before, and calls the rule in its backward.

- Forward: the function runs once, on detached arguments; `Attached` gives its outputs a node of autograd.
- Backward without `create_graph`: the rule of that run is called, and dropped unless the graph is kept.
- Backward with `create_graph`: the function runs again, on the saved arguments, which are on the graph. Its rule must
  be the first one; it is called, and autograd records what it computes.

`attach_in_any_engine` chooses the file for torch's other engines: no Function works in two of them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from keras_cg.backends.torch import capturing, compiling, exporting, transforms
from keras_cg.backends.torch.tensors import (
    OTHERS,
    autocasts,
    constant,
    hooks,
    integers,
    is_autocast,
    is_compiling,
    is_forward_open,
    is_tracing,
    keeps_graph,
    plain,
    probe,
    saveable,
    sequence_number,
    storage_of,
    transforms_active,
    uncompiled,
    unwrap_if_dead,
    version,
)
from keras_cg.engine import messages
from keras_cg.engine.contract import Function, Pullback


@uncompiled
def attach(fun: Function, tensors: Sequence[torch.Tensor], is_special: bool = False) -> tuple[torch.Tensor, ...]:
    """Returns the outputs of `fun`, with the rule as their gradient.

    It runs once, on detached tensors; an output that requires a gradient then depends on a captured tensor.
    """
    if fun.engine == OTHERS and not is_special:
        return attach_in_any_engine(fun, tensors)
    is_differentiated, saved = False, tensors
    for tensor in tensors:
        if tensor.requires_grad:
            is_differentiated = True
        if tensor.is_inference():  # autograd cannot save it, and it does not tell when it is changed
            saved = [tensor.clone() if tensor.is_inference() else tensor for tensor in saved]
    is_hooked = is_special and hooks(False) is not None
    inputs, watched, start, fun.look = [], [], sequence_number(), existing
    for tensor in saved:
        # Under hooks, too: a constant that the rule closes over may be an argument, and is compared with another run.
        if is_differentiated or is_hooked:
            tensor = tensor.detach()
        inputs.append(tensor)
        watched.append((tensor, tensor._version))
    try:
        outputs, run = fun.start(*inputs)
    except RuntimeError as error:
        capturing.explain(error, fun)
        raise
    for tensor, before in watched:
        if tensor._version != before:
            raise messages.changed_argument(fun.name)
    has_captured = False
    for output in outputs:
        if output.requires_grad:
            has_captured = True
    if is_special and is_forward_open() and any(map(transforms.is_dual, outputs)):
        # The function captured a value that forward mode differentiates; the transform runs it again, and finds that.
        return transforms.with_transforms(fun, saved)
    if not is_differentiated and not has_captured:
        return exporting.cut(fun.name, outputs) if is_special else outputs
    run.note()
    if has_captured:
        variables = capturing.captured(fun, inputs, outputs, start, run)
        capturing.check(fun, tensors, variables, run)
        saved = [*saved, *saveable(variables)]
        if not is_differentiated and not variables:
            return exporting.cut(fun.name, outputs)
    call = SavedCall(run, tensors, watched, outputs)
    if not is_special:
        return _apply((call, outputs, ()), *saved)  # type: ignore[no-any-return]
    call.autocasts = autocasts(tensors) if is_autocast() else ()
    saved = [*map(unwrap_if_dead, saved)]
    residuals = call.outlined(tensors, inputs, saved, outputs) if is_hooked else ()
    return _apply((call, outputs, residuals), *saved)  # type: ignore[no-any-return]


def attach_in_any_engine(fun: Function, tensors: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Attaches the rule in any state of torch.

    This is one function, because torch.compile (2.13) resumes after a graph break at an inner function, which would not
    know that it is compiled.
    """
    if is_compiling():
        fun.is_traced = True
        if compiling.is_exporting():
            return exporting.without_rule(fun, tensors)
        return compiling.with_compiler(fun, tensors) if torch.is_grad_enabled() else fun.start(*tensors)[0]
    if is_tracing():
        return exporting.without_rule(fun, tensors)
    if transforms_active() or is_forward_open():
        if not torch.is_grad_enabled() and not transforms.is_forward(tensors):
            outputs, _ = fun.start(*tensors)
            if not any(map(transforms.is_dual, outputs)):
                return tuple(map(constant, outputs))
            return transforms.with_transforms(fun, saveable(tensors))
        if transforms_active() or any(map(transforms.is_dual, tensors)):
            return transforms.with_transforms(fun, saveable(tensors))
    if not torch.is_grad_enabled():
        return exporting.cut(fun.name, fun.start(*tensors)[0])
    return attach(fun, tensors, True)  # type: ignore[no-any-return]


def existing(values: Iterable[Any]) -> list[tuple[torch.Tensor, Any]]:
    """Returns the tensors among what a run has at hand, each with its version before the run."""
    return [(each, version(each)) for each in values if isinstance(each, torch.Tensor)]


class SavedCall:
    """The state of one call that the backward pass needs, without the saved tensors.

    Attributes:
        fun: The function, which runs again for higher orders.
        number: How many arguments it has.
        run: The first run, until a backward pass that does not keep the graph.
        watched: The inputs and outputs, whose memory the rule may hold, and from `cells` on the tensors in its cells
            that the run has made; each with its version.
        written: The tensors that existed before and that the run wrote to, each with its version after it.
        found: Where the arguments and outputs begin in memory; None if one of them has no place there.
        storages: Where the memory of the arguments and outputs begins, if they are all watched.
        facts: What must be equal in the rule of another run, where the first rule was dropped for hooks.
        autocasts: The autocast of the first run, if there was one.
        is_simple: Whether there is one output, which is floating, has memory of its own, and is not saved.
        outputs: How many outputs are saved, which is all or none: for a rule that takes them.
        reads: A list that `derivatives.vjp` sets if something outside is differentiated. The backward pass then notes
            in it for each gradient whether it depends on what only the rule reads; that derivative would be lost.
    """

    fun: Any
    facts: Any = None
    outputs: int = 0
    autocasts: Sequence[tuple[str, torch.dtype, bool]] = ()
    written: Sequence[tuple[torch.Tensor, Any]] = ()
    reads: list[bool] | None = None
    storages: set[int] | None = None
    is_simple = False
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
        self.fun, self.run, self.number, self.watched = run.call, run, len(tensors), inputs
        call, is_closed, pointer, held = run.call, run.is_closed, None, []
        if len(outputs) == 1 and call.is_plain and type(output := outputs[0]) in plain:
            found = set()
            try:
                for tensor, _ in inputs:
                    found.add(tensor.data_ptr())
                pointer = output.data_ptr()
                if pointer not in found and not output._is_view() and output.is_floating_point():
                    self.is_simple = not run.takes_output
                found.add(pointer)
                self.found = found
            except RuntimeError:  # a sparse tensor has no place in memory
                pass
        existing: Any = ()
        if call.existing:
            existing, call.existing = {id(tensor): (tensor, before) for tensor, before in call.existing}, ()
            both = existing.values()
            self.written = [(tensor, version(tensor)) for tensor, before in both if version(tensor) != before]
        for part in (*run.residuals, *run.args) if run.args else run.residuals:
            if isinstance(part, torch.Tensor):
                if pointer is not None and part is not output and type(part) in plain and part.data_ptr() == pointer:
                    is_closed = False  # as `output.data` is, which does not tell that the output is changed
                if id(part) not in existing:
                    held.append((part, version(part) if part.is_inference() else part._version))
        if not is_closed:
            self.watch(tensors, outputs)
        self.cells = len(self.watched)
        self.watched += held
        if run.takes_output:
            self.outputs = len(outputs)

    def watch(self, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Notes the outputs, too, for a rule that may reach them by something that it holds."""
        self.storages = {*map(storage_of, [*tensors, *outputs])} - {0}
        # Without a storage, as a DTensor is, an argument tells itself of a change, and not by its detached alias.
        pairs = zip(self.watched, tensors, strict=True)
        known = [pair if storage_of(pair[0]) else (tensor, pair[1]) for pair, tensor in pairs]
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
        probed = functools.partial(probe, outputs, saved[self.number :], needs_grad, **self.extras(outputs))
        residuals, self.facts = self.run.outline(inputs, probed)
        self.storages = {*map(storage_of, [*tensors, *outputs])} - {0}
        self.run, self.watched, self.written = None, [], []
        return saveable(residuals)

    def again(
        self, inputs: Sequence[torch.Tensor], residuals: Sequence[torch.Tensor], gradients: Callable[[Pullback], Any]
    ) -> Pullback:
        """Returns the pullback of another run, which must be that of the first."""
        if self.facts is not None:
            # In the first run, too, a constant among the arguments was another object than the captured one.
            inputs = [tensor if tensor.requires_grad else tensor.detach() for tensor in inputs]
        fun = self.fun
        # torch runs a backward pass outside of the autocast of the forward pass.
        for each in self.autocasts or (autocasts(inputs, is_on=False) if is_autocast() else ()):
            fun = torch.autocast(*each)(fun)
        pullback = capturing.run_again(self.fun, fun, inputs)
        if is_changed(self.watched):
            self.refuse_changes()
        with self.guard():
            if self.run is not None:
                self.run.check(pullback, gradients)
            elif self.facts is not None:
                pullback.check_outline(inputs, residuals, self.facts, gradients)
        return fun(*inputs)[1] if pullback.is_used_up else pullback

    def copied(self, gradients: Sequence[Any]) -> Sequence[Any]:
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
        storages = self.storages
        return [each.clone() if each is not None and storage_of(each) in storages else each for each in gradients]

    def extras(self, tensors: Sequence[torch.Tensor]) -> dict[str, Sequence[torch.Tensor]]:
        """Returns what the rule gets by name: the outputs, which are the last of `tensors`, if it takes them."""
        return {"outputs": tensors[len(tensors) - self.outputs :]} if self.outputs else {}

    def guard(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context for a rule, which must not read what was written to since its run."""
        touched = [tensor for tensor, before in self.written if version(tensor) != before]
        return capturing.Unread(touched, self.fun.name) if touched else contextlib.nullcontext()

    def refuse_changes(self) -> None:
        """Raises if a tensor that the rule holds was changed in place since; not if it is a weight of a module."""
        others = set()
        for place, (tensor, before) in enumerate(self.watched):
            if version(tensor) != before:
                if place < self.cells:
                    others.add(storage_of(tensor))
                elif not capturing.is_in_module(self.fun, tensor):
                    raise messages.changed_since_call(self.fun.name)
        if others and not others.isdisjoint(map(storage_of, self.run.reached())):
            raise messages.changed_since_call(self.fun.name)


def is_changed(watched: Sequence[tuple[torch.Tensor, Any]]) -> bool:
    """Whether a tensor may have been changed in place since; what has no version is compared itself."""
    try:
        for tensor, before in watched:
            if tensor._version != before:
                return True
    except RuntimeError:
        return True
    return False


class Attached(torch.autograd.Function):
    """Returns outputs that were computed before, with the rule as their gradient."""

    @staticmethod
    def forward(ctx: Any, computed: tuple[SavedCall, Any, Any], *tensors: torch.Tensor) -> Any:
        call, outputs, residuals = computed
        ctx.call = call
        ctx.save_for_backward(*tensors, *residuals)
        if call.is_simple:
            # A rule that captures the output would be in a reference cycle through the output's node.
            return (outputs[0].detach(),)
        sharing = {storage_of(tensor): tensor for tensor in tensors[: call.number]}
        sharing.pop(0, None)
        results = []
        for output in outputs:
            base = sharing.get(storage_of(output))
            if base is not None and output.dtype == base.dtype and output.is_conj() == base.is_conj():
                # A view of the argument for autograd, which then notices a change in place of either.
                result = base.as_strided(output.size(), output.stride(), output.storage_offset())
            elif call.outputs and output.is_inference():
                result = output.clone()  # autograd cannot save an inference tensor
            else:
                result = output.detach()
            results.append(result)
        ctx.mark_non_differentiable(*integers(results))
        if call.outputs:
            ctx.save_for_backward(*tensors, *residuals, *results)
        return tuple(results)

    @staticmethod
    @uncompiled
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        call, needs_grad = ctx.call, ctx.needs_input_grad[1:]
        count, pullback, is_recorded = call.number, call.run, torch.is_grad_enabled()
        if is_dynamo_compiling():
            # Compiled autograd traces this function, for which no tensor has a version or a place in memory.
            saved = ctx.saved_tensors
            extras, stop = call.extras(saved), len(needs_grad)
            gradients, others = pullback(cotangents, saved[count:stop], needs_grad[:count], saved[:count], **extras)
            return (None, *gradients, *others)
        try:
            for tensor, before in call.watched:
                if tensor._version != before:
                    call.refuse_changes()
                    break
        except RuntimeError:  # an inference tensor has no version
            if is_changed(call.watched):
                call.refuse_changes()
        variables, arguments = (), None
        if is_recorded or pullback is None or pullback.args or len(needs_grad) > count or call.outputs:
            # Read once: a checkpoint recomputes saved tensors only once. A rule that is called with the function's
            # arguments gets the caller's own tensors, and not detached ones.
            saved, stop, needs_grad = ctx.saved_tensors, len(needs_grad), needs_grad[:count]
            arguments, variables, extras = saved[:count], saved[count:stop], call.extras(saved)
            if is_recorded or pullback is None:
                inputs = arguments if is_recorded else [tensor.detach() for tensor in arguments]
                probed = functools.partial(probe, cotangents, variables, needs_grad, **extras)
                pullback = call.again(inputs, saved[stop : len(saved) - call.outputs], probed)
            if extras:
                pullback = functools.partial(pullback, **extras)
        if not is_recorded and call.reads is not None:
            pullback = functools.partial(_read, call.reads, pullback)
        try:
            if call.written:
                with call.guard():
                    gradients, others = pullback(cotangents, variables, needs_grad, arguments)
            else:
                gradients, others = pullback(cotangents, variables, needs_grad, arguments)
        except RuntimeError as error:
            if "One of the differentiated Tensors does not require grad" not in str(error):
                raise
            raise messages.detached_argument(call.fun.name) from error
        if not is_recorded:
            gradients = call.copied(gradients)
        if not keeps_graph():
            # The function, too: a variable from outside may lead to the output, and so to this node.
            call.run, call.watched, call.written, call.fun = None, (), (), None
        return (None, *gradients, *others)


# The C part of `Function.apply`. The Python part (torch 2.13) looks for transforms and dead wrappers, as is done above,
# and for a `setup_context`, which is not here: 3 of 37 us.
_apply: Callable[..., Any] = super(torch.autograd.Function, Attached).apply


def call_of(node: Any) -> SavedCall | None:
    """Returns the call that a node of the graph belongs to, if it is one of ours."""
    call = getattr(node, "call", None)
    return call if isinstance(call, SavedCall) else None


# --- what the backward pass asks -------------------------------------------------------------------------------------


def _read(reads: list[bool], pullback: Pullback, *args: Any) -> Any:
    """Calls a pullback, and notes for each gradient whether it hangs on what only the rule reads."""
    with torch.enable_grad():
        parts = pullback(*args)
    reads += [tensor.requires_grad for part in parts for tensor in part if tensor is not None]
    # Not all of them: `detach` would also drop the tangents of forward mode.
    return [[each.detach() if each is not None and each.requires_grad else each for each in part] for part in parts]
