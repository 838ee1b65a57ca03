"""mlx as a backend of keras_cg: the names of `keras_cg.engine.contract`, on `mlx.core.custom_function`.

An array of mlx does not tell whether somebody differentiates it. So `attach` makes these nodes around one run of the
function, and mlx asks those that it needs, in the backward pass from the right to the left:

    arguments ──┬───────── entry ── slots ──┐
                └─ cut ──┐                  │
                         ├── fun ── watch ──┼── join ── outputs
                ┌─ drop ─┘                  │
    captured ───┼───────── mark ────────────┤
                └───────── entry            │
    what the rule holds ────────────────────┘

`mark` is asked if its captured array is differentiated, `watch` if the outputs hang on anything differentiated that is
no argument, and `entry` after both: it calls the rule.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy
from keras_cg.engine import derived, messages
from keras_cg.engine.again import Again, Run
from keras_cg.engine.contract import Function, PlainFunction, Pullback, Tensors
from keras_cg.engine.precision import is_differentiable
from keras_cg.engine.settled import settled

from keras_cg_mlx.functions import named, namespace

__all__ = [
    "asarray",
    "attach",
    "cast",
    "children",
    "compiled",
    "cut",
    "devices",
    "dtype",
    "gradient",
    "is_known",
    "is_recording",
    "is_tensor",
    "jacobian",
    "jvp",
    "namespace",
    "pulled",
    "shape",
    "tensors",
    "to_numpy",
    "vjp",
]

own: Any = sys.modules[__name__]
tensors = (mx.array,)
Arrays = Sequence[Any]

# --- what a tensor is ------------------------------------------------------------------------------------------------


def is_tensor(value: object) -> bool:
    return isinstance(value, mx.array)


def asarray(value: Any) -> Any:
    if isinstance(value, mx.array):
        return value
    kind = getattr(value, "dtype", None)
    if str(kind) == "complex128":
        raise TypeError("the backend 'mlx' takes no array of complex128, which mlx has not: convert it to complex64.")
    return mx.array(value) if kind is None else mx.array(value, named(str(kind)))


def shape(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.shape)


def dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("mlx.core.")


def _is_floating(tensor: Any) -> bool:
    return is_differentiable(dtype(tensor))


def cast(value: Any, dtype: str) -> Any:
    return value.astype(named(dtype))


def children(value: Any) -> None:
    return None  # mlx's tree utility opens lists, tuples and dicts alone


def cut(tensor: Any) -> Any:
    return mx.stop_gradient(tensor)


def to_numpy(tensor: Any) -> numpy.ndarray:
    wide = tensor.astype(mx.float32) if tensor.dtype == mx.bfloat16 else tensor
    return _kept(lambda: numpy.array(wide))  # type: ignore[no-any-return]


def is_known(tensors: Arrays) -> bool:
    try:
        _kept(lambda: mx.eval(list(tensors)))
    except ValueError:  # "[eval] Attempting to eval an array during function transformations"
        return False
    return True


def _kept(look: Callable[[], Any]) -> Any:
    """What `look()` gives, which evaluates arrays, and leaves the graph behind them as it is.

    To evaluate an array tears it off what it was computed from. After one transform has run inside another, mlx (0.32)
    does so with arrays that the outer one still needs, whose derivative is zero then, without a word. It never does so
    within the rule of a `custom_function`.
    """
    found = []

    def pull(primals: Any, cotangents: Any, outputs: Any) -> Any:
        found.append(look())
        return cotangents

    function = mx.custom_function(mx.negative)
    function.vjp(pull)
    mx.vjp(function, [mx.array(0.0)], [mx.array(1.0)])
    return found[0]


def is_recording() -> bool:
    return True  # mlx does not say


def devices() -> tuple[str, ...]:
    return ("gpu", "cpu") if mx.is_available(mx.gpu) else ("cpu",)


compiled = mx.compile

# --- derivatives by mlx's own transforms -----------------------------------------------------------------------------


def pulled(fun: PlainFunction, tensors: Arrays, cotangents: Arrays | None) -> tuple[Tensors, Tensors, Tensors]:
    ran: list[tuple[Tensors, Tensors]] = []

    def run(*tensors: Any) -> list[Any]:
        ran.append(fun(*tensors))
        # mlx (0.32) skips outputs that come from stop_gradient together with the place of their cotangent, and takes
        # one cotangent for an array that is there twice. A product is always a node of its own.
        return [mx.sum(output) if cotangents is None else output * 1 for output in ran[0][0]]

    ones = [mx.array(1.0)] if cotangents is None else list(cotangents)
    _, gradients = mx.vjp(run, list(tensors), ones)
    return tuple(ran[0][0]), tuple(gradients), tuple(ran[0][1])


def gradient(fun: PlainFunction, tensors: Arrays) -> tuple[Tensors, Tensors, Tensors]:
    return pulled(fun, tensors, None)


def vjp(fun: PlainFunction, tensors: Arrays) -> tuple[Tensors, Callable[[Arrays], Tensors], Tensors]:
    # mlx has no pullback that outlives its call.
    return derived.vjp_of_runs(own, _repeatable(fun), tensors)


def jvp(fun: PlainFunction, tensors: Arrays, tangents: Arrays) -> tuple[Tensors, Tensors, Tensors]:
    ran: list[tuple[Tensors, Tensors]] = []

    def run(*tensors: Any) -> list[Any]:
        ran.append(fun(*tensors))
        return [output * 1 for output in ran[0][0]]

    outputs, found = mx.jvp(run, list(tensors), list(tangents))
    return tuple(outputs), tuple(found), tuple(ran[0][1])


def jacobian(fun: PlainFunction, tensors: Arrays) -> tuple[Tensors, tuple[Tensors, ...], Tensors]:
    outputs, pullback, aux = vjp(fun, tensors)
    zeros = [*map(mx.zeros_like, outputs)]

    def rows(place: int, output: Any) -> Tensors:
        basis = mx.eye(output.size, dtype=output.dtype).reshape((output.size, *output.shape))
        if not output.size:
            return tuple(mx.zeros((*output.shape, *tensor.shape), tensor.dtype) for tensor in tensors)
        found = mx.vmap(lambda row: list(pullback([*zeros[:place], row, *zeros[place + 1 :]])))(basis)
        return tuple(mx.reshape(each, (*output.shape, *each.shape[1:])) for each in found)

    return outputs, tuple(rows(place, output) for place, output in enumerate(outputs)), aux


# --- how outputs get the gradient that a rule says -------------------------------------------------------------------


def node(
    run: Callable[[Arrays], list[Any]], pull: Callable[[Arrays, Arrays], list[Any]], push: Callable[..., Any]
) -> Any:
    """A function of a list of arrays that gives one, with its rules, which hold in batches, too.

    `pull(inputs, cotangents)` gives the gradients of all inputs, `push(inputs, tangents)` the tangents of the outputs;
    a tangent is None where nobody differentiates. What they need of arrays must be among the inputs, for in a batch
    these are others.
    """
    function = mx.custom_function(run)
    function.vjp(lambda inputs, cotangents, outputs: pull(inputs, cotangents))
    function.jvp(push)

    def in_batches(inputs: Arrays, axes: Arrays) -> tuple[list[Any], list[int]]:
        axes = list(axes)

        def pull_all(inputs: Arrays, cotangents: Arrays) -> list[Any]:
            found = mx.vmap(pull, in_axes=(axes, 0))(list(inputs), list(cotangents))
            pairs = zip(found, axes, strict=True)
            return [each.sum(0) if axis is None else mx.moveaxis(each, 0, axis) for each, axis in pairs]

        def push_all(inputs: Arrays, tangents: Arrays) -> list[Any]:
            places = [place for place, tangent in enumerate(tangents) if tangent is not None]

            def some(inputs: Arrays, moving: Arrays) -> list[Any]:
                known = dict(zip(places, moving, strict=True))
                return list(push(inputs, [known.get(place) for place in range(len(inputs))]))

            moving = [tangents[place] for place in places]
            return mx.vmap(some, in_axes=(axes, [axes[place] for place in places]))(list(inputs), moving)  # type: ignore[no-any-return]

        outputs = node(mx.vmap(run, in_axes=axes), pull_all, push_all)(list(inputs))
        return outputs, [0] * len(outputs)

    function.vmap(in_batches)
    return function


def attach(fun: Function, tensors: Arrays) -> Tensors:
    taken = fun.held(is_tensor).movable()
    count, parents = len(tensors), [*map(asarray, tensors), *taken.tensors]
    around = _repeatable(lambda *values: (taken.build(values[count:]) if taken.tensors else fun)(*values[:count]))
    inputs = [*map(cut, parents[:count]), *(_drop([tensor])[0] for tensor in taken.tensors)]
    outputs, pullback = around(*inputs)
    floating = [place for place, output in enumerate(outputs) if _is_floating(output)]
    if not floating:
        return outputs
    call = _Call(Run(own, around, inputs, pullback), pullback, count, len(outputs), floating)
    plain, held = [outputs[place] for place in floating], call.run.held
    slots = node(lambda _: [*map(mx.zeros_like, (*plain, *held))], call.enter, _zeros(*plain, *held))(parents)
    watched = node(list, call.watch, lambda inputs, tangents: tangents)(plain)
    marks = [
        node(_signal, call.mark(place), _signal)(parents[place : place + 1])[0] for place in range(count, len(parents))
    ]
    parts = (slots, watched, held, marks, parents)
    call.sizes = [*map(len, parts)]
    known = dict(zip(floating, node(call.join, call.start, call.push)([*itertools.chain(*parts)]), strict=True))
    return tuple(known.get(place, output) for place, output in enumerate(outputs))


def _signal(inputs: Arrays, tangents: Any = None) -> list[Any]:
    return [mx.array(0.0)]


def _zeros(*likes: Any) -> Callable[..., list[Any]]:
    """A rule that gives zeros, like these or like what it gets."""
    return lambda inputs, _: [*map(mx.zeros_like, likes or inputs)]


# An array itself, which gets no gradient, but of which mlx knows whether it is differentiated.
_drop = node(list, _zeros(), _zeros())


def _filled(known: Mapping[int, Any], likes: Arrays) -> list[Any]:
    """What is known, by its place, and zeros elsewhere."""
    return [mx.zeros_like(like) if known.get(place) is None else known[place] for place, like in enumerate(likes)]


def _repeatable(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The function, every run of which draws the random numbers of the first."""
    first: list[Any] = []

    def run(*values: Any) -> Any:
        now = mx.random.state[0]
        if not first or not is_known([first[0], now]):
            first.append(now)
            return fun(*values)
        _seed(first[0])
        try:
            return fun(*values)
        finally:
            _seed(now)

    return run


def _seed(key: Any) -> None:
    high, low = map(int, to_numpy(key))
    mx.random.seed(high << 32 | low)


class _Call:
    """One call: what its rule needs, and what mlx has asked of its nodes in the pass that runs."""

    def __init__(self, run: Run, pullback: Pullback, count: int, outputs: int, floating: Sequence[int]):
        # The first `count` inputs of the run are the user's arguments, the others were captured.
        self.run, self.pullback, self.count, self.outputs, self.floating = run, pullback, count, outputs, floating
        self.captured: list[int] = []
        self.is_hanging = False
        self.sizes: list[int] = []

    def parts(self, row: Arrays) -> Iterator[Arrays]:
        """What `join` gets: slots, watched outputs, what the rule holds, marks, arguments and captured arrays."""
        start = 0
        for size in self.sizes:
            yield row[start : start + size]
            start += size

    def join(self, inputs: Arrays) -> list[Any]:
        return list([*self.parts(inputs)][1])

    def start(self, inputs: Arrays, cotangents: Arrays) -> list[Any]:
        """The rule of `join`: what `entry` needs goes to the slots; the watched outputs are asked for nothing."""
        self.captured, self.is_hanging = [], False
        _, watched, held, marks, parents = self.parts(inputs)
        return [*cotangents, *held, *map(mx.zeros_like, (*watched, *held, *marks, *parents))]

    def mark(self, place: int) -> Callable[..., list[Any]]:
        def pull(inputs: Arrays, cotangents: Arrays) -> list[Any]:
            self.captured.append(place)
            return _zeros()(inputs, None)

        return pull

    def watch(self, inputs: Arrays, cotangents: Arrays) -> list[Any]:
        self.require(self.captured)
        self.is_hanging = True
        # What is captured drops it; something that was not found gets NaN, for nobody computes its gradient.
        return [mx.full(each.shape, float("nan"), each.dtype) for each in inputs]

    def require(self, captured: Sequence[int]) -> None:
        self.pullback.capture(["(a value that is being differentiated)"])
        if not captured:
            raise messages.unserved_variables("mlx", "(where it is not in a closure)")

    def enter(self, parents: Arrays, arrived: Arrays) -> list[Any]:
        """The rule of `entry`, which calls the user's."""
        count = len(self.floating)
        variables = sorted(self.captured) if self.is_hanging else []
        known = self.gradients(parents, arrived[count:], arrived[:count], variables)
        return _filled(known, parents)

    def gradients(self, parents: Arrays, held: Arrays, arrived: Arrays, variables: Sequence[int]) -> dict[int, Any]:
        """What the user's rule says, by the places of the arguments and of the captured variables."""
        cotangents = dict(zip(self.floating, arrived, strict=True))
        pullback = self.run.differentiated(_replay, cut, parents, held)
        found, others = pullback([*map(cotangents.get, range(self.outputs))], [parents[place] for place in variables])
        return {**dict(enumerate(found)), **dict(zip(variables, others, strict=True))}

    def push(self, inputs: Arrays, tangents: Arrays) -> Arrays:
        """The forward derivative: the transpose of the rule."""
        (_, watched, held, _, parents), (_, plain, _, _, moving) = self.parts(inputs), self.parts(tangents)
        is_hanging = any(tangent is not None for tangent in plain)
        reach = len(parents) if is_hanging else self.count
        places = [place for place in range(reach) if moving[place] is not None and _is_floating(parents[place])]
        variables = [place for place in places if place >= self.count]
        if is_hanging:
            self.require(variables)
        if not places:
            return [*map(mx.zeros_like, watched)]
        tensors = [parents[place] for place in places]

        def pull(cotangents: Arrays) -> Tensors:
            known = self.gradients(parents, held, cotangents, variables)
            return tuple(_filled(dict(enumerate(map(known.get, places))), tensors))

        push, conditions = derived.transpose(own, pull, watched, tensors)
        found = settled(own, push([moving[place] for place in places]), conditions, messages.not_linear)
        # What is captured has no plain tangent; something that was not found has one.
        lost = [0 if tangent is None else mx.where(tangent == 0, 0, float("nan")) for tangent in plain]
        return [each + nan for each, nan in zip(found, lost, strict=True)]


def _replay(again: Again, values: Arrays, inputs: Arrays) -> list[Any]:
    """`values`, which hang on `inputs` by the derivative of another run, and on what they were computed from."""
    count, start = len(values), len(values) + len(again.first)

    def pull(given: Arrays, cotangents: Arrays) -> list[Any]:
        places, moving, run = again.moving(own, given[count:start], given[start:])
        _, gradients, _ = pulled(run, moving, cotangents)
        known = {**dict(enumerate(cotangents)), **dict(zip((start + each for each in places), gradients, strict=True))}
        return _filled(known, given)

    def push(given: Arrays, tangents: Arrays) -> list[Any]:
        places, moving, run = again.moving(own, given[count:start], given[start:])
        known = dict(enumerate(tangents[start + each] for each in places))
        _, found, _ = jvp(run, moving, _filled(known, moving))
        return [one if other is None else one + other for one, other in zip(found, tangents, strict=False)]

    return node(lambda given: list(given[:count]), pull, push)([*values, *again.first, *inputs])  # type: ignore[no-any-return]
