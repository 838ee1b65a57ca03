"""The rule in eager mode: a Function returns outputs that were computed before, and calls the rule in its backward.

- Forward: the function runs once, on detached arguments; `Attached` gives its outputs a node of autograd.
- Backward without `create_graph`: the rule of that run is called, and dropped unless the graph is kept.
- Backward with `create_graph`: the function runs again, on the saved arguments, which are on the graph. Its rule must
  be the first one; it is called, and autograd records what it computes.

`attach_any` also chooses the file for torch's other engines: no Function works in two of them.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from keras_cg.backends.torch import compiling, exporting, transforms
from keras_cg.backends.torch.tensors import (
    autocasts,
    describe,
    dynamo_callback,
    edges,
    hooks,
    integers,
    is_autocast,
    is_captured,
    is_forward_open,
    is_plain,
    is_tracing,
    keeps_graph,
    probe,
    saveable,
    sequence_number,
    storage_of,
    transforms_active,
    unwrap_if_dead,
    version,
    versions,
)
from keras_cg.engine import messages
from keras_cg.engine.contract import Function, OrdinaryFunction, Pullback


def attach_any(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Runs `fun` once, on detached tensors; an output that requires a gradient then depends on a captured tensor.

    This is one function, because torch.compile (2.13) resumes after a graph break at an inner function, which would not
    know that it is compiled.
    """
    if torch.compiler.is_compiling():
        if not compiling.is_exporting():
            return compiling.attach(fun, tensors) if torch.is_grad_enabled() else fun(*tensors)[0]
        # While one thread exports, `is_compiling` of torch (2.13) is true in all threads.
        if torch.compiler.is_dynamo_compiling() or is_captured():
            return exporting.attach(fun, tensors)
    if dynamo_callback() is not None:
        # After a graph break, torch.compile (2.13) compiles each new frame by itself, and would fail in these.
        return _undisturbed(fun, tensors)  # type: ignore[no-any-return]
    if is_tracing():
        return exporting.attach(fun, tensors)
    if transforms_active() or is_forward_open():
        if not torch.is_grad_enabled() and not transforms.is_forward(tensors):
            outputs, _ = fun(*tensors)
            return transforms.attach(fun, saveable(tensors)) if any(map(transforms.is_dual, outputs)) else outputs
        if transforms_active() or any(map(transforms.is_dual, tensors)):
            return transforms.attach(fun, saveable(tensors))
    if not torch.is_grad_enabled():
        return exporting.cut(fun.name, fun(*tensors)[0])
    is_differentiated = any([tensor.requires_grad for tensor in tensors])
    # Under hooks, too: a constant that the rule closes over may be an argument, and is compared with another run.
    # An inference tensor is copied, because it does not tell when it is changed.
    inputs = [*map(torch.Tensor.detach, saveable(tensors))] if is_differentiated or hooks(False) is not None else tensors
    before, start = versions(tensors), sequence_number()
    outputs, pullback = fun(*inputs)
    if before != versions(tensors):
        raise messages.changed_argument(fun.name)
    return record(fun, tensors, inputs, start, outputs, pullback)


_undisturbed: Callable[..., Any] = torch.compiler.disable(attach_any)  # type: ignore[no-untyped-call]


def record(
    fun: Function,
    tensors: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    start: int,
    outputs: tuple[torch.Tensor, ...],
    pullback: Pullback,
) -> tuple[torch.Tensor, ...]:
    """Returns the outputs of a run, with the rule as their gradient if anything is differentiated.

    The run had the arguments `inputs`, detached from `tensors` if one of these is differentiated. Nodes of the graph
    from the number `start` on may be its own.
    """
    if forward_ad._current_level >= 0 and any(map(transforms.is_dual, outputs)):
        # The function captured a value that forward mode differentiates; `attach` runs it again, and finds that.
        return transforms.attach(fun, saveable(tensors))
    variables: Sequence[torch.Tensor] = ()
    if any([output.requires_grad for output in outputs]):
        variables = _captured(fun, outputs, start, pullback)
        pullback.capture([describe(variable) for variable in variables])
    elif not any([tensor.requires_grad for tensor in tensors]):
        return exporting.cut(fun.name, outputs)
    call = SavedCall(fun, len(tensors), autocasts=autocasts(tensors) if is_autocast() else ())
    residuals: Sequence[torch.Tensor] = ()
    if hooks(False) is not None:
        # Hooks move or drop what is saved. So the rule is dropped, too, and its tensors are saved for the comparison.
        residuals, facts = pullback.outline(inputs, functools.partial(probe, outputs, variables))
        call = call._replace(facts=facts)
    elif parts := pullback.closed_over():
        # An input without a storage, such as a DTensor, tells itself of a change, and not by its detached alias.
        known = [one if storage_of(one) else two for one, two in zip(inputs, tensors, strict=True)]
        watched = [(tensor, version(tensor)) for tensor in (*known, *outputs)]
        call = call._replace(pullback=pullback, watched=watched, held=held(parts))
    else:
        call = call._replace(pullback=pullback)
    saved = [unwrap_if_dead(tensor) for tensor in saveable((*tensors, *variables))]
    results: tuple[torch.Tensor, ...] = _apply((call, outputs, saveable(residuals)), *saved)
    return results


def attach_constant(fun: OrdinaryFunction, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The fast path where no argument is differentiated: only a captured tensor can have a gradient."""
    before, start = versions(tensors), sequence_number()
    pair = fun.user(*tensors)
    if versions(tensors) != before:
        raise messages.changed_argument(fun.name)
    if type(pair) is tuple and len(pair) == 2 and is_plain(pair[0]) and not pair[0].requires_grad and callable(pair[1]):
        return pair[:1]
    outputs, *rest = fun.accept(pair)
    return record(fun, tensors, tensors, start, outputs, fun.pullback(tensors, *rest))


class SavedCall(NamedTuple):
    """The state of one call that the backward pass needs, without the saved tensors.

    Attributes:
        fun: The function, which runs again for higher orders.
        number: How many arguments it has.
        pullback: The rule of the first run, until a backward pass that does not keep the graph.
        watched: The inputs and outputs, whose memory the rule may hold, each with its version.
        held: The tensors in the cells of the rule, each with its version.
        storages: Where the memory of the arguments and outputs begins.
        facts: What must be equal in the rule of another run, where the first rule was dropped for hooks.
        autocasts: The autocast of the first run, if there was one.
    """

    fun: Function
    number: int
    pullback: Pullback | None = None
    watched: Sequence[Versioned] = ()
    held: Sequence[Versioned] = ()
    storages: frozenset[int] | set[int] = frozenset()
    facts: Any = None
    autocasts: Sequence[tuple[str, torch.dtype, bool]] = ()

    def again(
        self, inputs: Sequence[torch.Tensor], residuals: Sequence[torch.Tensor], gradients: Callable[[Pullback], Any]
    ) -> Pullback:
        """Returns the pullback of another run, which must be that of the first."""
        with contextlib.ExitStack() as stack:
            if self.facts is not None:
                # In the first run, too, a constant among the arguments was another object than the captured one.
                inputs = [tensor if tensor.requires_grad else tensor.detach() for tensor in inputs]
            # torch runs a backward pass outside of the autocast of the forward pass.
            for each in self.autocasts or (autocasts(inputs, is_on=False) if is_autocast() else ()):
                stack.enter_context(torch.autocast(*each))
            _, pullback = self.fun(*inputs)
        if self.pullback is not None:
            self.pullback.check(pullback, gradients)
        elif self.facts is not None:
            pullback.check_outline(inputs, residuals, self.facts, gradients)
        return pullback

    def refuse_changes(self, is_used: bool) -> None:
        """Raises if a tensor that the rule holds was changed in place since, and not by the rule.

        If the rule was used before, it may have changed what its own run made.
        """
        changed = [tensor for tensor, before in self.held if version(tensor) != before]
        if changed and self.pullback is not None:
            shared = set(map(id, self.fun.closed_over()))
            if not all([is_state(tensor) and (id(tensor) in shared or not is_used) for tensor in changed]):
                raise messages.changed_since_call(self.fun.name)
        others = {storage_of(tensor) for tensor, before in self.watched if version(tensor) != before}
        if others and self.pullback is not None and not others.isdisjoint(map(storage_of, self.pullback.reached())):
            raise messages.changed_since_call(self.fun.name)


class Attached(torch.autograd.Function):
    """Returns outputs that were computed before, with the rule as their gradient."""

    @staticmethod
    def forward(ctx: Any, computed: tuple[SavedCall, Any, Any], *tensors: torch.Tensor) -> Any:
        call, outputs, residuals = computed
        ctx.save_for_backward(*tensors, *residuals)
        # `derivatives.vjp` sets a list here if something outside is differentiated. The backward pass then notes in it
        # for each gradient whether it depends on what only the rule reads; without it, that derivative would be lost.
        ctx.reads, ctx.is_used = None, False
        sharing = {storage_of(tensor): tensor for tensor in tensors[: call.number]}
        sharing.pop(0, None)
        ctx.call = call._replace(storages={*sharing, *map(storage_of, outputs)} - {0})
        results = []
        for output in outputs:
            base = sharing.get(storage_of(output))
            if base is not None and output.dtype == base.dtype and output.is_conj() == base.is_conj():
                # A view of the argument for autograd, which then notices a change in place of either.
                result = base.as_strided(output.size(), output.stride(), output.storage_offset())
            else:
                # A rule that captures the output would be in a reference cycle through the output's node.
                result = output.detach()
            results.append(result)
        ctx.mark_non_differentiable(*integers(results))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        call, needs_grad = ctx.call, ctx.needs_input_grad[1:]
        count, stop, pullback = call.number, len(needs_grad), call.pullback
        is_recorded = torch.is_grad_enabled()
        # Read once: a checkpoint recomputes saved tensors only once.
        saved = ctx.saved_tensors if is_recorded or pullback is None or stop > count else ()
        gradients_of = functools.partial(probe, cotangents, saved[count:stop])
        if pullback is not None:
            call.refuse_changes(ctx.is_used)
        if is_recorded:
            pullback = call.again(saved[:count], saved[stop:], gradients_of)
        elif pullback is None:
            pullback = call.again([tensor.detach() for tensor in saved[:count]], saved[stop:], gradients_of)
        if not is_recorded and ctx.reads is not None:
            pullback = functools.partial(_read, ctx.reads, pullback)
        gradients, others = pullback(cotangents, saved[count:stop], needs_grad[:count])
        note_state(call.held)
        ctx.is_used = True
        if not is_recorded:
            gradients = copied(gradients, call.storages)
        if not keeps_graph():
            ctx.call = call._replace(pullback=None, watched=(), held=())
        return (None, *gradients, *others)


# The C part of `Function.apply`. The Python part (torch 2.13) looks for transforms, as `attach_any` did, for a
# `setup_context`, which is not here, and for dead wrappers, as `record` did: 3 of 37 us.
_apply: Callable[..., Any] = super(torch.autograd.Function, Attached).apply


def is_attached(node: Any) -> bool:
    """Whether a node of the graph is that of a call, which writes into `reads` what only its rule reads."""
    return hasattr(node, "reads")


# --- what the backward pass asks -------------------------------------------------------------------------------------


# A tensor with its version: how often it was changed in place. An inference tensor has none, but is compared itself.
Versioned = tuple[torch.Tensor, Any]


def held(parts: Sequence[Any]) -> list[Versioned]:
    """Returns the tensors among what the cells of a rule hold, each with its version, as `save_for_backward` does."""
    return [(part, version(part)) for part in parts if isinstance(part, torch.Tensor)]


# The tensors that a rule itself has changed, by their identities, each with the version that it left.
_states: dict[int, tuple[Any, Any]] = {}


def note_state(held: Sequence[Versioned]) -> None:
    """Notes which of the tensors that a rule holds it has changed itself: its own state."""
    for tensor, before in held:
        after = version(tensor)
        if after != before:
            key = id(tensor)
            _states[key] = weakref.ref(tensor, lambda _, key=key: _states.pop(key, None)), after


def is_state(tensor: torch.Tensor) -> bool:
    """Whether a rule was the last to change a tensor."""
    known, left = _states.get(id(tensor), (None, None))
    return known is not None and known() is tensor and left == version(tensor)


def _read(reads: list[bool], pullback: Pullback, *args: Any) -> Any:
    """Calls a pullback, and notes for each gradient whether it hangs on what only the rule reads."""
    with torch.enable_grad():
        parts = pullback(*args)
    reads += [tensor.requires_grad for part in parts for tensor in part if tensor is not None]
    # Not all of them: `detach` would also drop the tangents of forward mode.
    return [[each.detach() if each is not None and each.requires_grad else each for each in part] for part in parts]


def copied(gradients: Sequence[Any], storages: frozenset[int] | set[int]) -> Sequence[Any]:
    """Copies each gradient that shares its memory with an argument or an output.

    autograd stores such a gradient as `x.grad` without a copy, and clearing that would clear the argument.
    """
    if not storages:  # the arguments and outputs have no memory, as FakeTensors, whose address torch warns about
        return gradients
    try:
        for gradient in gradients:
            if gradient.untyped_storage().data_ptr() in storages:
                break
        else:
            return gradients
    except (AttributeError, RuntimeError):  # None has no storage, nor has a sparse tensor
        pass
    known = storages - {0}
    return [each.clone() if each is not None and storage_of(each) in known else each for each in gradients]


def _captured(fun: Function, outputs: Sequence[torch.Tensor], start: int, pullback: Pullback) -> list[torch.Tensor]:
    """Returns the tensors that `fun` captured and `outputs` depend on, in the order of their first use.

    These are leaves of autograd's graph, and tensors in closures. A node with a number below `start` was there before.
    """
    computed = fun.captures(lambda value: isinstance(value, torch.Tensor) and value.grad_fn is not None)
    known = {(tensor.grad_fn, tensor.output_nr): tensor for tensor in computed}
    used: dict[torch.Tensor, int] = {output: 0 for output in outputs if output.is_leaf and output.requires_grad}
    for node, number, user in edges(outputs, known):
        tensor = known.get((node, number), getattr(node, "variable", None))
        if tensor is not None:
            order = start if user is None else user._sequence_nr()
            used[tensor] = min(order, used.get(tensor, order))
        elif node._sequence_nr() < start or not any([before is not None for before, _ in node.next_functions]):
            # The run captured a computed tensor that `captures` does not find. Or the node is a leaf of aot_module.
            pullback.capture(["(a tensor computed from trainable ones)"])
            raise messages.unserved_variables("torch", messages.NO_CLOSURE, fun)
    return sorted(used, key=used.__getitem__)
