"""How outputs get the gradient that a rule says: a primitive of autograd carries them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy
from autograd.extend import Box, defvjp_argnums, primitive, vspace
from autograd.tracer import Node, trace_stack

from keras_cg.backends.numpy.tensors import asarray, boxes, conjugate, innermost, is_floating, is_tensor
from keras_cg.engine import messages
from keras_cg.engine.contract import Function, Pullback


def attach(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Runs `fun` once, on plain arrays, and lets a primitive of autograd carry the outputs.

    An output that is boxed all the same hangs on something that `fun` captured.
    """
    inputs, is_differentiated = [], False
    for tensor in tensors:
        is_differentiated = is_differentiated or isinstance(tensor, Box)
        inputs.append(asarray(innermost(tensor)))
    outputs, pullback = fun(*inputs)
    closed_over = list(fun.captures(_is_box))
    captured: list[Any] = []
    for output in outputs:
        if isinstance(output, Box):
            captured, is_differentiated = _captured(fun, outputs, pullback, inputs, closed_over), True
            outputs = tuple(map(innermost, outputs))
            break
    if not is_differentiated:
        return outputs
    return Call(fun, pullback, outputs, tensors, captured, closed_over).carry(outputs, (*tensors, *captured))


class Call:
    """One call: its rule, and what the backward pass needs besides.

    Args:
        fun: The function, which runs again where its gradient is differentiated.
        pullback: The rule of the only run.
        outputs: What that run gave.
        tensors: The arguments.
        captured: The boxes that the outputs hang on besides.
        closed_over: The boxes that the function can read besides its arguments.
    """

    def __init__(
        self,
        fun: Function,
        pullback: Pullback,
        outputs: tuple[Any, ...],
        tensors: Sequence[Any],
        captured: Sequence[Any],
        closed_over: Sequence[Any],
    ):
        self.fun, self.pullback, self.count, self.closed_over = fun, pullback, len(tensors), closed_over
        self.levels: set[int] = set()
        if closed_over:
            self.levels = {box._trace for parent in (*tensors, *captured) for box in boxes(parent)}
        self.floating = [is_floating(output) for output in outputs]
        # Weakly: an output that the rule does not hold is free.
        self.outputs = [weakref.ref(output) for output in outputs if isinstance(output, numpy.ndarray)]
        self.carried: Any = None

    def carry(self, outputs: tuple[Any, ...], parents: tuple[Any, ...]) -> tuple[Any, ...]:
        """The outputs, which hang on the arguments, and on what was captured, by the rule."""
        # autograd has no vector space of integers, so they go past it.
        carried = [output for output, is_real in zip(outputs, self.floating, strict=True) if is_real]
        self.carried = carried[0] if len(carried) == 1 else tuple(carried)
        boxed = custom_gradient(self, *parents)
        self.carried = None
        arriving = iter((boxed,) if len(carried) == 1 else boxed)
        pairs = zip(outputs, self.floating, strict=True)
        return tuple([next(arriving) if is_real else output for output, is_real in pairs])

    def pull(self, argnums: Sequence[int], tensors: Sequence[Any], upstream: Any) -> list[Any]:
        """The gradients of the arguments of the primitive at `argnums`, the first of which is this call."""
        outer = -1
        for tensor in tensors:
            if isinstance(tensor, Box):
                outer = max(outer, tensor._trace)
        if not self.closed_over:
            return self._pull(argnums, tensors, upstream, outer >= 0)
        # The level whose backward pass this is, and those inside it, are over. autograd uses their numbers again, so
        # while the rule runs, a value of such a level gets another number. No live value is then taken for one of it.
        first = min(level for level in self.levels if level > outer)
        found = [*self.closed_over, *filter(_is_box, self.pullback.reached())]
        ended = {id(box): box for each in found for box in boxes(each) if box._trace >= first}
        numbers = [box._trace for box in ended.values()]
        with trace_stack.new_trace() as level:
            for box in ended.values():
                box._trace = level
            try:
                gradients = self._pull(argnums, tensors, upstream, outer >= 0)
            finally:
                for box, number in zip(ended.values(), numbers, strict=True):
                    box._trace = number
        return [_outside(gradient, level) for gradient in gradients]

    def _pull(
        self, argnums: Sequence[int], tensors: Sequence[Any], upstream: Any, is_differentiated: bool
    ) -> list[Any]:
        arriving = iter((upstream,) if self.floating.count(True) == 1 else upstream)
        cotangents = [conjugate(next(arriving)) if is_real else None for is_real in self.floating]
        pullback = self.pullback
        if is_differentiated:
            # The function runs again, on values that the outer level differentiates.
            _, pullback = self.fun(*map(asarray, tensors[: self.count]))
            self.pullback.check(pullback)
        needs_grad = [place + 1 in argnums for place in range(self.count)]
        gradients, others = pullback(cotangents, tensors[self.count :], needs_grad)
        known, shared = (None, *gradients, *others), [*tensors]
        for output in self.outputs:
            shared.append(output())
        return [finished(known[argnum], tensors[argnum - 1], shared) for argnum in argnums]


# One primitive for all calls: autograd (1.9) keeps every primitive for ever.
@primitive  # type: ignore[untyped-decorator]
def custom_gradient(call: Any, *tensors: Any) -> Any:
    """What a `Call` carries."""
    return call.carried


def _vjps(argnums: Sequence[int], ans: Any, args: Sequence[Any], kwargs: Any) -> Callable[[Any], Sequence[Any]]:
    return functools.partial(args[0].pull, argnums, args[1:])


defvjp_argnums(custom_gradient, _vjps)


def finished(gradient: Any, tensor: Any, shared: Sequence[Any]) -> Any:
    """A gradient that a rule gave for `tensor`, as autograd wants it, with memory that it shares with nothing."""
    if gradient is None:
        return vspace(tensor).zeros()
    if isinstance(gradient, numpy.ndarray):
        for each in shared:
            if isinstance(each, numpy.ndarray) and numpy.may_share_memory(gradient, each):
                gradient = gradient.copy()
    return conjugate(gradient)


def _outside(gradient: Any, level: int) -> Any:
    while isinstance(gradient, Box) and gradient._trace >= level:
        gradient = gradient._value
    return gradient


# --- what a function captured ----------------------------------------------------------------------------------------


def _is_box(value: object) -> bool:
    return isinstance(value, Box) and is_tensor(value)


def _captured(
    fun: Function, outputs: Sequence[Any], pullback: Pullback, inputs: Sequence[Any], candidates: Sequence[Any]
) -> list[Any]:
    """Those boxes that the outputs of `fun` hang on besides its arguments, in the order of their first use."""
    pullback.capture(["(a value that autograd differentiates)"])
    known = {box._node: place for place, each in enumerate(candidates) for box in boxes(each)}
    waiting, seen = [box._node for output in outputs for box in boxes(output)], set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node not in known:
            if not getattr(node, "parents", ()):
                raise messages.unserved_variables("numpy", "(where it is not in a closure)")
            waiting += node.parents
    used = [each for each in candidates if any([box._node in seen for box in boxes(each)])]
    return used if len(used) == 1 else _in_order(fun, used, inputs)


def _in_order(fun: Function, used: list[Any], inputs: Sequence[Any]) -> list[Any]:
    """Boxes in the order in which a function uses them, which another run tells: autograd's nodes have no numbers."""
    order: list[int] = []
    nodes = [box._node for box in used]
    for place, box in enumerate(used):
        box._node = _Use.new_root(place, order)
    try:
        fun(*inputs)
    finally:
        for box, node in zip(used, nodes, strict=True):
            box._node = node
    return [used[place] for place in order]


class _Use(Node):  # type: ignore[misc]
    """A node that knows which of some values it hangs on, and keeps the order in which they were first used.

    It follows autograd's own tracers, in `autograd.misc.tracers` (1.9).
    """

    __slots__ = ("order", "places")
    order: list[int]
    places: set[int]

    def __init__(self, value: Any, fun: Any, args: Any, kwargs: Any, parent_argnums: Any, parents: Sequence[Any]):
        ours = [parent for parent in parents if isinstance(parent, _Use)]
        self.order = ours[0].order
        self.places = set().union(*(parent.places for parent in ours))
        self.order += [place for parent in ours for place in sorted(parent.places) if place not in self.order]

    def initialize_root(self, place: int, order: list[int]) -> None:
        self.order = order
        self.places = {place}
