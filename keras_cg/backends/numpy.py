"""The NumPy backend, on the primitives of HIPS autograd."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import autograd.numpy as namespace
import numpy
from autograd import make_vjp
from autograd.builtins import DictBox, SequenceBox
from autograd.builtins import tuple as boxed_tuple
from autograd.core import VJPNode
from autograd.extend import Box, defvjp_argnums, primitive, vspace
from autograd.tracer import Node, new_box, trace_stack

from keras_cg import errors
from keras_cg.engine.again import Run
from keras_cg.engine.contract import Function, PlainFunction, Pullback

__all__ = [
    "asarray",
    "attach",
    "cast",
    "children",
    "dtype",
    "is_recording",
    "is_tensor",
    "namespace",
    "shape",
    "tensors",
    "to_numpy",
    "vjp",
]

# What is read below and autograd does not document: if one is gone, importing this file fails, and with it the backend.
_NEEDED = (Box._value, Box._trace, Box._node, VJPNode.parents, trace_stack.top, trace_stack.new_trace)

tensors = (numpy.ndarray, Box)
_arrays = (numpy.ndarray, numpy.generic)
_classes = (*_arrays, Box)


def is_tensor(value: object) -> bool:
    if isinstance(value, _arrays):
        return value.dtype.kind in "biufc"
    return isinstance(value, Box) and not isinstance(value, (SequenceBox, DictBox))


def asarray(value: Any) -> Any:
    return value if isinstance(value, _classes) else numpy.asarray(value)


def to_numpy(tensor: Any) -> numpy.ndarray:
    return numpy.asarray(_innermost(tensor))


def shape(tensor: Any) -> tuple[int | None, ...]:
    return tuple(numpy.shape(_innermost(tensor)))


def dtype(tensor: Any) -> str:
    return _dtype_name(numpy.asarray(_innermost(tensor)).dtype)


@functools.cache
def _dtype_name(dtype: numpy.dtype) -> str:
    return str(dtype)


def cast(value: Any, dtype: str) -> Any:
    return value.astype(dtype)


def children(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    # autograd differentiates containers as one box, whose parts are boxes again.
    if isinstance(value, SequenceBox):
        return list(value), type(_innermost(value))
    if isinstance(value, DictBox):
        keys = list(value)
        return [value[key] for key in keys], lambda parts: dict(zip(keys, parts, strict=True))
    return None


def is_recording() -> bool:
    # autograd (1.9) does not count back where an exception ended a trace: then the answer is yes from there on, which
    # costs time and nothing else.
    return trace_stack.top >= 0  # type: ignore[no-any-return]


def attach(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Runs `fun` once, on plain arrays, and lets a primitive of autograd carry what came out.

    What `fun` closes over and autograd differentiates is made an argument. Which of these the outputs hang on, a trace
    of its own tells, in which they are the only boxes.
    """
    taken = fun.held(lambda value: isinstance(value, Box) and is_tensor(value)).movable()
    inputs: list[Any] = [asarray(_innermost(tensor)) for tensor in tensors]
    if not taken.tensors:
        outputs, pullback = fun(*inputs)
        return _carry(_Call(fun, len(tensors), [], outputs, inputs, pullback), tensors)
    count = len(tensors)

    def around(*values: Any) -> tuple[tuple[Any, ...], Pullback]:
        return taken.build(values[count:])(*values[:count])  # type: ignore[no-any-return]

    order: list[int] = []
    with trace_stack.new_trace() as level:
        roots = [
            new_box(_innermost(tensor), level, _Use.new_root(place, order))
            for place, tensor in enumerate(taken.tensors)
        ]
        outputs, pullback = around(*inputs, *roots)
    uses = [output._node.places for output in outputs if isinstance(getattr(output, "_node", None), _Use)]
    variables = [count + place for place in order if place in set().union(*uses)]
    outputs = tuple(map(_without_use, outputs))
    call = _Call(around, count, variables, outputs, [*inputs, *roots], pullback)
    return _carry(call, [*tensors, *taken.tensors])


class _Call:
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
        self.count, self.variables, self.outputs = count, variables, outputs
        if variables or any(isinstance(output, Box) for output in outputs):
            pullback.capture(["(a value that autograd differentiates)"])
        if any(isinstance(output, Box) for output in outputs):
            raise errors.unserved_variables("numpy", "(where it is not in a closure)")
        self.run = Run(sys.modules[__name__], fun, inputs, pullback)
        self.held, self.run.held = [*map(_without_use, self.run.held)], []
        # The boxes that the arguments came in.
        self.boxes: list[Any] = []

    def pullback(self, tensors: Sequence[Any]) -> Pullback:
        """The pullback around `tensors`; where some are boxed, an outer level differentiates what it gives."""
        if len(tensors) > self.count and not self.run.is_whole:
            # The rule may hide a box of the trace that told what is used, and the derivative with it.
            return self.run.another([*map(asarray, tensors)], self.held)[0]
        if any(isinstance(tensor, Box) for tensor in tensors):
            return self.run.differentiated(_replay, _innermost, [*map(asarray, tensors)], self.held)
        return self.run.pullback(tensors, self.held)


def _carry(call: _Call, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of a call, which hang on `tensors` by its rule."""
    if not any(isinstance(tensor, Box) for tensor in tensors):
        return call.outputs
    call.boxes = [box for tensor in tensors for box in _boxes(tensor)]
    floating = iter(custom_gradient(call, *tensors))
    # autograd has no vector space of integers, so they go past it.
    return tuple(next(floating) if _is_floating(output) else output for output in call.outputs)


def _replay(again: Callable[..., Sequence[Any]], values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    return list(replayed(again, len(values), *values, *inputs))


# One primitive for all calls: autograd (1.9) keeps every primitive for ever.
@primitive  # type: ignore[untyped-decorator]
def custom_gradient(call: _Call, *tensors: Any) -> tuple[Any, ...]:
    return boxed_tuple([output for output in call.outputs if _is_floating(output)])  # type: ignore[no-any-return]


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


def _innermost(tensor: Any) -> Any:
    while isinstance(tensor, Box):
        tensor = tensor._value
    return tensor


def _vjps(argnums: Sequence[int], ans: Any, args: Sequence[Any], kwargs: Any) -> Callable[[Any], list[Any]]:
    call, *tensors = args
    outer = max((tensor._trace for tensor in tensors if isinstance(tensor, Box)), default=-1)
    places = [argnum - 1 for argnum in argnums]
    wanted = [place in places for place in range(call.count)]

    def pull(upstream: Any) -> list[Any]:
        arriving = iter(upstream)
        cotangents = [_conjugate(next(arriving)) if _is_floating(output) else None for output in call.outputs]
        variables = [tensors[place] for place in call.variables]
        gradients, others = call.pullback(tensors)(cotangents, variables, wanted)
        known = {**dict(enumerate(gradients)), **dict(zip(call.variables, others, strict=True))}
        ended = [box for box in call.boxes if box._trace > outer]
        return [
            vspace(tensors[place]).zeros()
            if known.get(place) is None
            else _conjugate(_outside(known[place], ended, outer))
            for place in places
        ]

    return pull


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
        gradients = iter(pullback([*map(_conjugate, upstream)]))
        return [_conjugate(next(gradients)) if place >= 0 else upstream[place + count] for place in places]

    return pull


defvjp_argnums(custom_gradient, _vjps)
defvjp_argnums(replayed, _replayed_vjps)


def _boxes(tensor: Any) -> Iterator[Any]:
    """The boxes that `tensor` is in, one for each level of differentiation, from the inside out."""
    while isinstance(tensor, Box):
        yield tensor
        tensor = tensor._value


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


def _is_floating(tensor: Any) -> bool:
    return numpy.asarray(_innermost(tensor)).dtype.kind in "fc"


def _conjugate(tensor: Any) -> Any:
    # autograd's gradient of a real loss at x + iy is dL/dx - i dL/dy.
    return namespace.conj(tensor) if numpy.iscomplexobj(_innermost(tensor)) else tensor


def vjp(
    fun: PlainFunction, tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], Callable[[Sequence[Any]], tuple[Any, ...]], tuple[Any, ...]]:
    aux: list[tuple[Any, ...]] = []

    def run(tensors: Any) -> Any:
        outputs, others = fun(*tensors)
        # Out of this level of differentiation, which ends here; an outer one goes on.
        aux.append(tuple(each._value if getattr(each, "_trace", None) == tensors._trace else each for each in others))
        return boxed_tuple(outputs)

    with warnings.catch_warnings():
        # An argument that the output does not depend on gets zeros here, as on every backend.
        warnings.filterwarnings("ignore", "Output seems independent of input")
        back, outputs = make_vjp(run)(tuple(map(_own, tensors)))

    def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
        gradients = back(boxed_tuple(tuple(_conjugate(each) for each in cotangents)))
        return tuple(_conjugate(each) for each in gradients)

    return tuple(map(_own, outputs)), pullback, tuple(map(_own, aux[0]))


def _own(tensor: Any) -> Any:
    # What autograd saves for the pullback, nobody outside may change in place; of what is in a box, nobody can.
    return tensor.copy() if isinstance(tensor, numpy.ndarray) else tensor
