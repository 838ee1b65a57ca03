"""The NumPy backend, on the primitives of HIPS autograd."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import autograd.numpy as namespace
import numpy
from autograd.builtins import DictBox, SequenceBox
from autograd.builtins import tuple as boxed_tuple
from autograd.core import make_vjp
from autograd.extend import Box, defvjp_argnums, primitive, vspace
from autograd.tracer import Node, new_box, trace_stack

from keras_cg import closure, errors
from keras_cg.backends import Function, PlainFunction, Pullback

__all__ = [
    "asarray",
    "attach",
    "cast",
    "children",
    "compiled",
    "converted",
    "devices",
    "double_precision",
    "dtype",
    "is_recording",
    "is_tensor",
    "jacobian",
    "jvp",
    "namespace",
    "recompute",
    "shape",
    "tensors",
    "to_numpy",
    "vjp",
]

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


def converted(fun: Callable[..., Any]) -> Callable[..., Any]:
    return fun


def is_recording() -> bool:
    # autograd (1.9) does not count back where an exception ended a trace: then the answer is yes from there on, which
    # costs time and nothing else.
    return trace_stack.top >= 0  # type: ignore[no-any-return]


def attach(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    try:
        return _attach(fun, tensors, ())
    except _CapturedError as error:
        pullback = error.pullback
    pullback.capture(["(a value that autograd differentiates)"])
    # What `fun` closes over is made an argument.
    held, rebuild = closure.take_apart(fun, (), lambda value: isinstance(value, Box) and is_tensor(value), children)
    given = len(tensors)

    def around(*tensors: Any) -> tuple[tuple[Any, ...], Pullback]:
        return rebuild(tensors[given:])[0](*tensors[:given])  # type: ignore[no-any-return]

    try:
        places = _uses(around, tensors, held)
        return _attach(around, (*tensors, *held), [given + place for place in places])
    except _CapturedError:
        raise errors.unserved_variables("numpy", "(where it is not in a closure)") from None


class _CapturedError(Exception):
    """Run on plain arrays, a function can only return a box if it closes over one."""

    def __init__(self, pullback: Pullback):
        super().__init__()
        self.pullback = pullback


def _attach(fun: Function, tensors: Sequence[Any], variables: Sequence[int]) -> tuple[Any, ...]:
    """The same, where those of `tensors` that stand at `variables` are none of the user's arguments."""
    if not any(isinstance(tensor, Box) for tensor in tensors):
        return _plain(*fun(*tensors))[0]
    attached = _Attached(fun, tensors, variables)
    floating = iter(custom_gradient(attached, *tensors))
    # autograd has no vector space of integers, so they go past it.
    return tuple(next(floating) if _is_floating(each) else each for each in attached.outputs)


def _plain(outputs: tuple[Any, ...], pullback: Pullback) -> tuple[tuple[Any, ...], Pullback]:
    if any(isinstance(output, Box) for output in outputs):
        raise _CapturedError(pullback)
    return outputs, pullback


class _Attached:
    """One call: the function, its run on plain arrays, and the boxes that its arguments came in."""

    def __init__(self, fun: Function, tensors: Sequence[Any], variables: Sequence[int]):
        self.fun = fun
        self.variables = variables
        self.boxes = [box for tensor in tensors for box in _boxes(tensor)]
        self.outputs: tuple[Any, ...]
        self.pullback: Pullback

    def run(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], Pullback]:
        return self.fun(*map(asarray, tensors))

    def run_again(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], Pullback]:
        outputs, pullback = self.run(tensors)
        if not all(map(_is_repeated, map(_innermost, outputs), self.outputs)):
            raise errors.not_repeated()
        return outputs, pullback

    def gradients(self, pullback: Pullback, cotangents: Sequence[Any], tensors: Sequence[Any]) -> dict[int, Any]:
        """The gradients of the tensors, by their places."""
        gradients, others = pullback(cotangents, [tensors[place] for place in self.variables])
        return {**dict(enumerate(gradients)), **dict(zip(self.variables, others, strict=True))}


def _is_repeated(found: Any, expected: Any) -> bool:
    """Whether two arrays are equal, but for rounding: of boxes autograd may compute in another way."""
    if not _is_floating(expected):
        return numpy.array_equal(found, expected)
    if numpy.shape(found) != numpy.shape(expected):
        return False
    size = numpy.max(numpy.abs(expected), initial=0.0, where=numpy.isfinite(expected))
    tolerance = {2: 0.05, 4: 1e-5}.get(expected.real.itemsize, 1e-13)
    return bool(numpy.allclose(found, expected, rtol=0, atol=tolerance * size, equal_nan=True))


# One primitive for all calls: autograd (1.9) keeps every primitive for ever.
@primitive  # type: ignore[untyped-decorator]
def custom_gradient(attached: _Attached, *tensors: Any) -> tuple[Any, ...]:
    attached.outputs, attached.pullback = _plain(*attached.run(tensors))
    floating: tuple[Any, ...] = boxed_tuple([each for each in attached.outputs if _is_floating(each)])
    return floating


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


def _uses(fun: Function, tensors: Sequence[Any], held: Sequence[Any]) -> list[int]:
    """Which of `held` the outputs of `fun` hang on, in the order of their first use."""
    order: list[int] = []
    with trace_stack.new_trace() as level:
        roots = [new_box(_innermost(each), level, _Use.new_root(place, order)) for place, each in enumerate(held)]
        outputs, _ = fun(*map(_innermost, tensors), *roots)
    found = set().union(
        *(output._node.places for output in outputs if isinstance(getattr(output, "_node", None), _Use))
    )
    return [place for place in order if place in found]


def _innermost(tensor: Any) -> Any:
    while isinstance(tensor, Box):
        tensor = tensor._value
    return tensor


def _vjps(argnums: Sequence[int], ans: Any, args: Sequence[Any], kwargs: Any) -> Callable[[Any], list[Any]]:
    attached, *tensors = args
    # Boxed arguments: an outer level differentiates this gradient, so the rule must hang on them.
    again = any(isinstance(tensor, Box) for tensor in tensors)
    outer = max((tensor._trace for tensor in tensors if isinstance(tensor, Box)), default=-1)

    def vjp(upstream: Any) -> list[Any]:
        outputs, pullback = attached.run_again(tensors) if again else (attached.outputs, attached.pullback)
        arriving = iter(upstream)
        cotangents = [_conjugate(next(arriving)) if _is_floating(each) else None for each in outputs]
        gradients = attached.gradients(pullback, cotangents, tensors)
        ended = [box for box in attached.boxes if box._trace > outer]
        return [
            vspace(tensors[argnum - 1]).zeros()
            if gradients.get(argnum - 1) is None
            else _conjugate(_outside(gradients[argnum - 1], ended, outer))
            for argnum in argnums
        ]

    return vjp


defvjp_argnums(custom_gradient, _vjps)


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
        back, outputs = make_vjp(run, tuple(map(_own, tensors)))

    def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
        gradients = back(boxed_tuple(tuple(_conjugate(each) for each in cotangents)))
        return tuple(_conjugate(each) for each in gradients)

    return tuple(map(_own, outputs)), pullback, tuple(map(_own, aux[0]))


def _own(tensor: Any) -> Any:
    # What autograd saves for the pullback, nobody outside may change in place; of what is in a box, nobody can.
    return tensor.copy() if isinstance(tensor, numpy.ndarray) else tensor


def jvp(
    fun: PlainFunction, tensors: Sequence[Any], tangents: Sequence[Any]
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    # autograd (1.9) has forward rules for its own primitives only. The vjp of `cotangents -> gradients`, which is a
    # linear map, serves for every function: it is the transpose of a transpose.
    outputs, pullback, aux = vjp(fun, tensors)

    def pull(*cotangents: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return pullback(cotangents), ()

    gradients, push, _ = vjp(pull, [numpy.zeros(namespace.shape(each), dtype(each)) for each in outputs])
    push_elsewhere = vjp(pull, [_uneven(each) for each in outputs])[1]
    moved = push(tangents)
    # That of a linear rule is the same wherever the rule is transposed, and the rule gives zero for zero.
    same = [_is_same(*pair) for pair in zip(push_elsewhere(tangents), moved, strict=True)]
    nothing = [bool(numpy.all(numpy.isnan(found) | (found == 0))) for found in map(to_numpy, gradients)]
    if not all((*same, *nothing)):
        raise errors.not_linear()
    return outputs, moved, aux


def _uneven(tensor: Any) -> Any:
    """Values of either sign and many sizes, in the shape of `tensor`."""
    values = 100 * numpy.cos(numpy.arange(namespace.size(tensor))).reshape(namespace.shape(tensor))
    return (values * (1 + 0.5j) if namespace.iscomplexobj(tensor) else values).astype(dtype(tensor))


def _is_same(found: Any, expected: Any) -> bool:
    """Whether two derivatives are equal up to rounding; what is not finite is taken to be."""
    found, expected = to_numpy(found), to_numpy(expected)
    size = numpy.max(numpy.abs(expected), initial=0, where=numpy.isfinite(expected))
    tolerance = 0.1 if expected.dtype.itemsize <= 2 else 1e-3
    return not numpy.any(numpy.abs(found - expected) > tolerance * size)


def jacobian(
    fun: PlainFunction, tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], tuple[tuple[Any, ...], ...], tuple[Any, ...]]:
    outputs, pullback, aux = vjp(fun, tensors)
    zeros = [numpy.zeros(namespace.shape(each), dtype(each)) for each in outputs]

    def rows(place: int, output: Any) -> Iterator[Any]:
        count = namespace.size(output)
        basis = numpy.eye(count, dtype=dtype(output)).reshape((count, *namespace.shape(output)))
        pulled = [pullback([*zeros[:place], each, *zeros[place + 1 :]]) for each in basis]
        for index, tensor in enumerate(tensors):
            parts = [each[index] for each in pulled]
            found = namespace.stack(parts) if parts else numpy.zeros(0, dtype(tensor))
            yield namespace.reshape(found, (*namespace.shape(output), *namespace.shape(tensor)))

    return outputs, tuple(tuple(rows(place, output)) for place, output in enumerate(outputs)), aux


def recompute(fun: Callable[..., tuple[Any, ...]], tensors: Sequence[Any]) -> tuple[Any, ...]:
    held, rebuild = closure.take_apart(fun, (), lambda value: isinstance(value, Box) and is_tensor(value), children)
    given = len(tensors)

    def around(*tensors: Any) -> tuple[Any, ...]:
        return rebuild(tensors[given:])[0](*tensors[:given])  # type: ignore[no-any-return]

    run = _Recomputed(around)
    floating = iter(recomputed(run, *tensors, *held))
    return tuple(next(floating) if _is_floating(each) else each for each in run.outputs)


class _Recomputed:
    """One call of a function that is to run again in the backward pass."""

    def __init__(self, fun: Callable[..., tuple[Any, ...]]):
        self.fun = fun
        self.outputs: tuple[Any, ...]


# One primitive for all calls, as for custom gradients; autograd's own `checkpoint` (1.9) makes one of each function.
@primitive  # type: ignore[untyped-decorator]
def recomputed(run: _Recomputed, *tensors: Any) -> tuple[Any, ...]:
    run.outputs = run.fun(*tensors)
    if any(isinstance(output, Box) for output in run.outputs):
        raise errors.lost_to_recompute("numpy")
    floating: tuple[Any, ...] = boxed_tuple([each for each in run.outputs if _is_floating(each)])
    return floating


def _recomputed_vjps(argnums: Sequence[int], ans: Any, args: Sequence[Any], kwargs: Any) -> Any:
    run, *tensors = args
    places = [argnum - 1 for argnum in argnums]

    def again(*moving: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        values = dict(enumerate(tensors)) | dict(zip(places, moving, strict=True))
        return tuple(each for each in run.fun(*values.values()) if _is_floating(each)), ()

    def pull(upstream: Any) -> list[Any]:
        _, pullback, _ = vjp(again, [tensors[place] for place in places])
        return [_conjugate(each) for each in pullback([_conjugate(each) for each in upstream])]

    return pull


defvjp_argnums(recomputed, _recomputed_vjps)


def compiled(fun: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]] | None:
    return None


def double_precision() -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext()


def devices() -> tuple[str, ...]:
    return ("cpu",)
