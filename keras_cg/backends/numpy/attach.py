"""Attaches a rule to the outputs of a function, by a primitive of autograd that returns them."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy
from autograd.extend import Box, defvjp_argnums, primitive, vspace
from autograd.tracer import Node, trace_stack

from keras_cg.backends.numpy.tensors import asarray, boxes, conjugate, innermost, is_floating, is_tensor
from keras_cg.engine import messages
from keras_cg.engine.contract import Function, Pullback, Tensors


def attach(fun: Function, tensors: Sequence[Any]) -> Tensors:
    """Runs `fun` once, on plain arrays; an output that is in a box all the same depends on a captured value."""
    inputs = [asarray(innermost(tensor)) for tensor in tensors]
    outputs, pullback = fun(*inputs)
    closed_over = tuple(fun.captures(_is_box))
    parents = tuple(tensors)
    if any([isinstance(output, Box) for output in outputs]):
        parents += tuple(_captured(fun, outputs, pullback, inputs, closed_over))
        outputs = tuple(map(innermost, outputs))
    elif not any([isinstance(tensor, Box) for tensor in tensors]):
        return outputs
    # autograd has no vector space of integers, so they do not pass through the primitive.
    floating = [output for output in outputs if is_floating(output)]
    call = SavedCall(fun, pullback, outputs, parents, len(tensors), closed_over)
    boxed = custom_gradient(call, floating[0] if len(floating) == 1 else tuple(floating), *parents)
    arriving = iter((boxed,) if len(floating) == 1 else boxed)
    return tuple([next(arriving) if is_floating(output) else output for output in outputs])


class SavedCall:
    """One call for the backward pass: the parents are the `count` arguments, and then the captured values.

    `closed_over` are the boxes that the function can read and that are no arguments.
    """

    def __init__(
        self, fun: Function, pullback: Pullback, outputs: Tensors, parents: Tensors, count: int, closed_over: Tensors
    ):
        self.fun, self.pullback, self.count, self.closed_over = fun, pullback, count, closed_over
        self.levels = {box._trace for parent in parents for box in boxes(parent)} if closed_over else set()
        self.floating = [is_floating(output) for output in outputs]
        # Weakly: an output that the rule does not refer to can be freed.
        self.outputs = [weakref.ref(output) for output in outputs if isinstance(output, numpy.ndarray)]

    def pull(self, argnums: Sequence[int], parents: Sequence[Any], upstream: Any) -> list[Any]:
        """Returns the gradients of the arguments of the primitive at `argnums`; the parents begin at 2."""
        outer = max([parent._trace for parent in parents if isinstance(parent, Box)], default=-1)
        if not self.closed_over:
            return self._pull(argnums, parents, upstream, outer >= 0)
        # The level of this backward pass and those inside are over, and autograd uses their numbers again. Their boxes
        # get an unused number while the rule runs, because an inner derivative would take them for its own.
        over = min(level for level in self.levels if level > outer)
        found = [*self.closed_over, *filter(_is_box, self.pullback.reached())]
        ended = {id(box): box for each in found for box in boxes(each) if box._trace >= over}.values()
        with trace_stack.new_trace() as level, _changed("_trace", ended, [level] * len(ended)):
            gradients = self._pull(argnums, parents, upstream, outer >= 0)
        return [_outside(gradient, level) for gradient in gradients]

    def _pull(self, argnums: Sequence[int], parents: Sequence[Any], upstream: Any, is_recorded: bool) -> list[Any]:
        arriving = iter((upstream,) if self.floating.count(True) == 1 else upstream)
        cotangents = [conjugate(next(arriving)) if is_real else None for is_real in self.floating]
        pullback = self.pullback
        if is_recorded:
            # The function runs again, on values that the outer level differentiates.
            _, pullback = self.fun(*map(asarray, parents[: self.count]))
            self.pullback.check(pullback)
        needs_grad = [place + 2 in argnums for place in range(self.count)]
        gradients, others = pullback(cotangents, parents[self.count :], needs_grad)
        known, shared = (*gradients, *others), [*parents, *[output() for output in self.outputs]]
        return [_own(known[argnum - 2], parents[argnum - 2], shared) for argnum in argnums]


# One primitive for all calls: autograd (1.9) never frees a primitive.
@primitive  # type: ignore[untyped-decorator]
def custom_gradient(call: SavedCall, outputs: Any, *parents: Any) -> Any:
    """Returns the outputs of a call, whose gradient is its rule."""
    return outputs


def _vjps(argnums: Sequence[int], ans: Any, args: Sequence[Any], kwargs: Any) -> Callable[[Any], Sequence[Any]]:
    return functools.partial(args[0].pull, argnums, args[2:])


defvjp_argnums(custom_gradient, _vjps)


def _own(gradient: Any, parent: Any, shared: Sequence[Any]) -> Any:
    """Returns a gradient as autograd wants it: zeros for None, a copy of an array that shares its memory."""
    if gradient is None:
        return vspace(parent).zeros()
    if isinstance(gradient, numpy.ndarray):
        for each in shared:
            if isinstance(each, numpy.ndarray) and numpy.may_share_memory(gradient, each):
                return conjugate(gradient.copy())
    return conjugate(gradient)


def _outside(gradient: Any, level: int) -> Any:
    while isinstance(gradient, Box) and gradient._trace >= level:
        gradient = gradient._value
    return gradient


@contextlib.contextmanager
def _changed(name: str, objects: Collection[Any], values: Iterable[Any]) -> Iterator[None]:
    """Sets an attribute of some objects, until the context ends."""
    before = [getattr(each, name) for each in objects]
    try:
        for each, value in zip(objects, values, strict=True):
            setattr(each, name, value)
        yield
    finally:
        for each, value in zip(objects, before, strict=True):
            setattr(each, name, value)


def _is_box(value: object) -> bool:
    return isinstance(value, Box) and is_tensor(value)


def _captured(
    fun: Function, outputs: Sequence[Any], pullback: Pullback, inputs: Sequence[Any], candidates: Sequence[Any]
) -> list[Any]:
    """Finds the boxes among `candidates` on which the outputs depend, in the order of their first use.

    The nodes of the outputs lead to them. autograd does not number its nodes, so another run finds the order.
    """
    pullback.capture(["(a value that autograd differentiates)"])
    refusal = messages.unserved_variables("numpy", messages.NO_CLOSURE, fun)
    known = {box._node for each in candidates for box in boxes(each)}
    waiting, seen = [box._node for output in outputs for box in boxes(output)], set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            parents = () if node in known else getattr(node, "parents", ())
            if not parents and node not in known:
                raise refusal
            waiting += parents
    used = [each for each in candidates if any([box._node in seen for box in boxes(each)])]
    if len(used) == 1:
        return used
    order: list[Any] = []
    roots = {_Use.new_root(order): box for box in used}
    with _changed("_node", used, roots):
        # A captured value that is an output itself may have no use before.
        order[:0] = [output._node for output in fun(*inputs)[0] if isinstance(output, Box)]
    if not set(roots) <= set(order):
        raise refusal
    return [roots[root] for root in sorted(roots, key=order.index)]


class _Use(Node):  # type: ignore[misc]
    """A node that adds its parents to a list. It follows autograd's own tracers, in `autograd.misc.tracers` (1.9)."""

    __slots__ = ("order",)
    order: list[Any]

    def __init__(self, value: Any, fun: Any, args: Any, kwargs: Any, parent_argnums: Any, parents: Sequence[Any]):
        self.order = parents[0].order
        self.order += parents

    def initialize_root(self, order: list[Any]) -> None:
        self.order = order
