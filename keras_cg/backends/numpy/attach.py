"""How outputs get the gradient that a rule says: a primitive of autograd carries them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from autograd.builtins import tuple as boxed_tuple
from autograd.extend import Box, defvjp_argnums, primitive, vspace
from autograd.tracer import Node, new_box, trace_stack

from keras_cg import errors
from keras_cg.backends.numpy.derivatives import vjp
from keras_cg.backends.numpy.tensors import asarray, boxes, conjugate, innermost, is_floating, is_tensor, own
from keras_cg.engine.again import Run
from keras_cg.engine.contract import Function, Pullback


def attach(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Runs `fun` once, on plain arrays, and lets a primitive of autograd carry what came out.

    What `fun` closes over and autograd differentiates is made an argument. Which of these the outputs hang on, a trace
    of its own tells, in which they are the only boxes.
    """
    taken = fun.held(lambda value: isinstance(value, Box) and is_tensor(value)).movable()
    inputs: list[Any] = [asarray(innermost(tensor)) for tensor in tensors]
    if not taken.tensors:
        outputs, pullback = fun(*inputs)
        return Call(fun, len(tensors), [], outputs, inputs, pullback).carry(outputs, tensors)
    count = len(tensors)

    def around(*values: Any) -> tuple[tuple[Any, ...], Pullback]:
        return taken.build(values[count:])(*values[:count])  # type: ignore[no-any-return]

    order: list[int] = []
    with trace_stack.new_trace() as level:
        roots = [
            new_box(innermost(tensor), level, _Use.new_root(place, order)) for place, tensor in enumerate(taken.tensors)
        ]
        outputs, pullback = around(*inputs, *roots)
    uses = [output._node.places for output in outputs if isinstance(getattr(output, "_node", None), _Use)]
    variables = [count + place for place in order if place in set().union(*uses)]
    outputs = tuple(map(_without_use, outputs))
    call = Call(around, count, variables, outputs, [*inputs, *roots], pullback)
    return call.carry(outputs, [*tensors, *taken.tensors])


class Call:
    """One call: what its only run gave, and what its rule needs."""

    def __init__(
        self,
        fun: Callable[..., Any],
        count: int,
        variables: Sequence[int],
        outputs: tuple[Any, ...],
        inputs: Sequence[Any],
        pullback: Pullback,
    ):
        # The first `count` inputs are the user's arguments; those at `variables` are what the outputs hang on besides.
        self.count, self.variables = count, variables
        if variables or any(isinstance(output, Box) for output in outputs):
            pullback.capture(["(a value that autograd differentiates)"])
        if any(isinstance(output, Box) for output in outputs):
            raise errors.unserved_variables("numpy", "(where it is not in a closure)")
        self.run = Run(own, fun, inputs, pullback)
        self.held, self.run.held = [*map(_without_use, self.run.held)], []
        self.floating = [*map(is_floating, outputs)]
        # The floating outputs, a single one by itself, until they are carried.
        self.carried: Any = None
        # The boxes that the arguments came in.
        self.boxes: list[Any] = []

    def carry(self, outputs: tuple[Any, ...], tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs, which hang on `tensors` by the rule."""
        if not any(isinstance(tensor, Box) for tensor in tensors):
            return outputs
        self.boxes = [box for tensor in tensors for box in boxes(tensor)]
        differentiable = [output for output in outputs if is_floating(output)]
        is_single = len(differentiable) == 1
        self.carried = differentiable[0] if is_single else tuple(differentiable)
        carried = custom_gradient(self, *tensors)
        # What is kept of a run holds no output that its rule does not hold.
        self.carried = None
        arriving = iter([carried] if is_single else carried)
        # autograd has no vector space of integers, so they go past it.
        return tuple(next(arriving) if is_floating(output) else output for output in outputs)

    def pull(self, argnums: Sequence[int], tensors: Sequence[Any], upstream: Any) -> list[Any]:
        """The gradients of the arguments of the primitive at `argnums`, the first of which is this call."""
        outer = max((tensor._trace for tensor in tensors if isinstance(tensor, Box)), default=-1)
        arriving = iter([upstream] if sum(self.floating) == 1 else upstream)
        cotangents = [conjugate(next(arriving)) if is_wanted else None for is_wanted in self.floating]
        wanted = [place + 1 in argnums for place in range(self.count)]
        variables = [tensors[place] for place in self.variables]
        gradients, others = self.pullback(tensors)(cotangents, variables, wanted)
        known = {**dict(enumerate(gradients)), **dict(zip(self.variables, others, strict=True))}
        ended = [box for box in self.boxes if box._trace > outer]
        return [finished(known.get(argnum - 1), tensors[argnum - 1], ended, outer) for argnum in argnums]

    def pullback(self, tensors: Sequence[Any]) -> Pullback:
        """The pullback around `tensors`; where some are boxed, an outer level differentiates what it gives."""
        if len(tensors) > self.count and not self.run.is_whole:
            # The rule may hide a box of the trace that told what is used, and the derivative with it.
            return self.run.another([*map(asarray, tensors)], self.held)[0]
        if any(isinstance(tensor, Box) for tensor in tensors):
            return self.run.differentiated(_replay, innermost, [*map(asarray, tensors)], self.held)
        return self.run.pullback(tensors, self.held)


def _replay(again: Callable[..., Sequence[Any]], values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    return list(replayed(again, len(values), *values, *inputs))


# One primitive for all calls: autograd (1.9) keeps every primitive for ever.
@primitive  # type: ignore[untyped-decorator]
def custom_gradient(call: Any, *tensors: Any) -> Any:
    """What a `Call`, or whatever is as one, carries."""
    return call.carried


@primitive  # type: ignore[untyped-decorator]
def replayed(again: Callable[..., Sequence[Any]], count: int, *given: Any) -> tuple[Any, ...]:
    """The first `count` of what is given, which hang on the others by the derivative of `again`."""
    return boxed_tuple(given[:count])  # type: ignore[no-any-return]


class _Use(Node):  # type: ignore[misc]
    """A node that knows which of some values it hangs on, and keeps the order in which they were first used.

    Made as autograd's own tracers are, in `autograd.misc.tracers` (1.9).
    """

    __slots__ = ("order", "places")
    order: list[int]
    places: set[int]

    def __init__(self, value: Any, fun: Any, args: Any, kwargs: Any, parent_argnums: Any, parents: Sequence[_Use]):
        self.order = parents[0].order
        self.places = set().union(*(parent.places for parent in parents))
        self.order += [place for parent in parents for place in sorted(parent.places) if place not in self.order]

    def initialize_root(self, place: int, order: list[int]) -> None:
        self.order = order
        self.places = {place}


def _without_use(value: Any) -> Any:
    """A value out of the trace that told what is used, which is over."""
    return value._value if isinstance(getattr(value, "_node", None), _Use) else value


def _vjps(argnums: Sequence[int], ans: Any, args: Sequence[Any], kwargs: Any) -> Callable[[Any], Sequence[Any]]:
    return functools.partial(args[0].pull, argnums, args[1:])


def _replayed_vjps(argnums: Sequence[int], ans: Any, args: Sequence[Any], kwargs: Any) -> Callable[[Any], list[Any]]:
    again, count, *given = args
    inputs = given[count:]
    places = [argnum - 2 - count for argnum in argnums]
    moving = [place for place in places if place >= 0]

    def pull(upstream: Any) -> list[Any]:
        def run(*moved: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            values = dict(enumerate(inputs)) | dict(zip(moving, moved, strict=True))
            return tuple(again(*values.values())), ()

        _, pullback, _ = vjp(run, [inputs[place] for place in moving])
        # The values hang on what they were computed from, too: on what the function closes over.
        gradients = iter(pullback([*map(conjugate, upstream)]))
        return [conjugate(next(gradients)) if place >= 0 else upstream[place + count] for place in places]

    return pull


defvjp_argnums(custom_gradient, _vjps)
defvjp_argnums(replayed, _replayed_vjps)


def finished(gradient: Any, tensor: Any, ended: Sequence[Any], outer: int) -> Any:
    """A gradient that a rule gave for `tensor`, as autograd wants it."""
    return vspace(tensor).zeros() if gradient is None else conjugate(_outside(gradient, ended, outer))


def _outside(gradient: Any, ended: Sequence[Any], outer: int) -> Any:
    """A gradient out of the levels of the boxes `ended`, which are over: a rule may close over a value in their boxes.

    Up to the number `outer` levels go on. Beyond it they are told apart by where they start, since their numbers are
    given again, and an upstream that somebody differentiates is in a box, too.
    """
    if not isinstance(gradient, Box) or gradient._trace <= outer:
        return gradient
    starts, over = _starts(gradient), {start for box in ended for start in _starts(box)}
    if starts <= over:
        return _outside(gradient._value, ended, outer)
    if starts & over or _outside(gradient._value, ended, outer) is not gradient._value:
        raise errors.unserved_variables("numpy", "(where upstream is differentiated and the rule closes over it)")
    return gradient


def _starts(box: Any) -> set[Any]:
    """Where the values that `box` was computed from enter its level of differentiation."""
    nodes, seen, starts = [box._node], {box._node}, set()
    while nodes:
        node = nodes.pop()
        parents = getattr(node, "parents", ())  # a node of forward mode has none
        if not parents:
            starts.add(node)
        nodes += [parent for parent in parents if parent not in seen]
        seen.update(parents)
    return starts
