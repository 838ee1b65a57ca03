"""mlx as a backend of keras_cg: the names of `keras_cg.engine.contract`, on `mlx.core.custom_function`.

An array of mlx does not tell whether it is differentiated. So `attach` puts two nodes behind one run of the
function, and mlx asks those that it needs in the backward pass:

    arguments ──┬──────────────────────┐
                └─ cut ── fun ── watch ┴─ join ── outputs

`join` calls the rule. `watch` is asked if the outputs hang on anything differentiated that is no argument, and raises.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy
from keras_cg.engine import defaults, linear, messages
from keras_cg.engine.contract import Function, PlainFunction, Pullback, Tensors
from keras_cg.engine.linear import check_or_nan
from keras_cg.engine.precision import is_differentiable

from keras_cg_mlx.functions import named, namespace

__all__ = [
    "agreement",
    "asarray",
    "attach",
    "cast",
    "children",
    "compiled",
    "devices",
    "dtype",
    "gradient",
    "is_known",
    "is_recording",
    "is_tensor",
    "jacobian",
    "jvp",
    "namespace",
    "shape",
    "stop_gradient",
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


def stop_gradient(tensor: Any) -> Any:
    return mx.stop_gradient(tensor)


def to_numpy(tensor: Any) -> numpy.ndarray:
    wide = tensor.astype(mx.float32) if tensor.dtype == mx.bfloat16 else tensor
    return _preserving(lambda: numpy.array(wide))  # type: ignore[no-any-return]


def agreement(pairs: Sequence[tuple[Any, Any]]) -> list[bool]:
    # In a batch, or where a program is traced, no value is known.
    return [not is_known(pair) or defaults.agreement(own, [pair])[0] for pair in pairs]


def is_known(tensors: Arrays) -> bool:
    try:
        _preserving(lambda: mx.eval(list(tensors)))
    except ValueError:  # "[eval] Attempting to eval an array during function transformations"
        return False
    return True


def _preserving(look: Callable[[], Any]) -> Any:
    """Returns `look()`, which evaluates arrays, and preserves the graph behind them.

    To evaluate an array tears it off what it was computed from. After one transform has run inside another, mlx (0.32)
    does so with arrays that the outer one needs: their derivative is then silently zero. It never does so
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


def _pulled(fun: PlainFunction, tensors: Arrays, cotangents: Arrays | None) -> tuple[Tensors, Tensors, Tensors]:
    """`(outputs, gradients, aux)` of one run: mlx takes the cotangents together with the function."""
    ran: list[tuple[Tensors, Tensors]] = []

    def run(*tensors: Any) -> list[Any]:
        ran.append(fun(*tensors))
        # mlx (0.32) skips outputs that come from stop_gradient together with the place of their cotangent, and takes
        # one cotangent for an array that is there twice. A product is always a node of its own.
        return [mx.sum(output) if cotangents is None else output * 1 for output in ran[0][0]]

    ones = [mx.array(1.0)] if cotangents is None else list(cotangents)
    _, gradients = mx.vjp(run, list(tensors), ones)
    return tuple(ran[0][0]), tuple(gradients), tuple(ran[0][1])


def vjp(fun: PlainFunction, tensors: Arrays) -> tuple[Tensors, Callable[[Arrays], Tensors], Tensors]:
    # mlx has no pullback that outlives its call: each one runs `fun` again, and compares its outputs.
    fun = _repeatable(fun)
    outputs, aux = fun(*tensors)

    def pullback(cotangents: Arrays) -> Tensors:
        others, gradients, _ = _pulled(fun, tensors, cotangents)
        same = [defaults.is_repeated_later(own, *pair) for pair in zip(others, outputs, strict=True)]
        error = functools.partial(messages.recomputed_otherwise, "the function")
        return tuple(check_or_nan(own, gradients, same, error))

    return outputs, pullback, aux


def gradient(fun: PlainFunction, tensors: Arrays) -> tuple[Tensors, Tensors, Tensors]:
    return _pulled(fun, tensors, None)


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
    a tangent is None for an input that is not differentiated. Arrays that they need must be inputs, which are others in
    a batch.
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

            def some(inputs: Arrays, found: Arrays) -> list[Any]:
                known = dict(zip(places, found, strict=True))
                return list(push(inputs, [known.get(place) for place in range(len(inputs))]))

            known = [tangents[place] for place in places]
            return mx.vmap(some, in_axes=(axes, [axes[place] for place in places]))(list(inputs), known)  # type: ignore[no-any-return]

        outputs = node(mx.vmap(run, in_axes=axes), pull_all, push_all)(list(inputs))
        return outputs, [0] * len(outputs)

    function.vmap(in_batches)
    return function


def attach(fun: Function, tensors: Arrays) -> Tensors:
    parents, run = [*map(asarray, tensors)], _repeatable(fun)
    outputs, pullback = run(*map(stop_gradient, parents))
    floating = [place for place, output in enumerate(outputs) if _is_floating(output)]
    if not floating:
        return outputs
    call = _Call(fun.name, run, pullback, len(outputs), floating)
    plain = [outputs[place] for place in floating]
    watched = node(list, call.watch, lambda inputs, tangents: tangents)(plain)
    joined = node(lambda inputs: list(inputs[: len(plain)]), call.pull, call.push)([*watched, *parents])
    known = dict(zip(floating, joined, strict=True))
    return tuple(known.get(place, output) for place, output in enumerate(outputs))


def _filled(known: Mapping[int, Any], tensors: Arrays) -> list[Any]:
    """The known tensors by their places, and zeros in the other places."""
    return [mx.zeros_like(each) if known.get(place) is None else known[place] for place, each in enumerate(tensors)]


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
    """One call: whatever its rule needs that is no array. mlx passes the arrays.

    Attributes:
        name: What messages call the function.
        run: The function, every run of which draws the same random numbers.
        first: The pullback of the first run.
        outputs: How many outputs there are, of which those at `floating` have a gradient.
    """

    def __init__(self, name: str, run: Callable[..., Any], first: Pullback, outputs: int, floating: Sequence[int]):
        self.name, self.run, self.first, self.outputs, self.floating = name, run, first, outputs, floating

    def watch(self, inputs: Arrays, cotangents: Arrays) -> list[Any]:
        """The rule of the outputs as they were computed, which mlx asks if they hang on something captured."""
        self.first.capture(["(a value that is being differentiated)"])
        raise messages.unserved_variables("mlx")

    def pull(self, inputs: Arrays, cotangents: Arrays) -> list[Any]:
        """Zeros for the outputs as they were computed, and the gradients of the arguments."""
        count = len(self.floating)
        found = self.gradients(inputs[count:], cotangents)
        return [*map(mx.zeros_like, inputs[:count]), *_filled(found, inputs[count:])]

    def gradients(self, parents: Arrays, arrived: Arrays) -> dict[int, Any]:
        """The gradients of the user's rule, by the places of the arguments.

        The function runs again. mlx does not tell whether the gradient will be differentiated, and in a batch the
        arrays that the rule of the first run holds are others.
        """
        cotangents = dict(zip(self.floating, arrived, strict=True))
        _, pullback = self.run(*parents)
        upstreams = [*map(cotangents.get, range(self.outputs))]
        self.first.check(pullback, lambda each: each(linear.irregular(own, upstreams))[0])
        if pullback.is_used_up:
            _, pullback = self.run(*parents)
        found, _ = pullback(upstreams)
        return dict(enumerate(found))

    def push(self, inputs: Arrays, tangents: Arrays) -> Arrays:
        """The forward derivative: the transpose of the rule."""
        count = len(self.floating)
        watched, parents, tangents, captured = inputs[:count], inputs[count:], tangents[count:], tangents[:count]
        if any(tangent is not None for tangent in captured):
            self.watch(watched, [])
        places = [place for place, tensor in enumerate(parents) if tangents[place] is not None and _is_floating(tensor)]
        if not places:
            return [*map(mx.zeros_like, watched)]
        tensors = [parents[place] for place in places]

        def pull(cotangents: Arrays) -> Tensors:
            known = self.gradients(parents, cotangents)
            return tuple(_filled(dict(enumerate(map(known.get, places))), tensors))

        push, conditions = defaults.transpose(own, pull, watched, tensors)
        error = functools.partial(messages.not_linear, self.name)
        return check_or_nan(own, push([tangents[place] for place in places]), conditions, error)
