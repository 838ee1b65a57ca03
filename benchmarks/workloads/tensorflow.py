"""The workloads in TensorFlow."""

from __future__ import annotations

import functools
import math
import time
from typing import Any

import keras
import numpy
import tensorflow as tf

import keras_cg
from benchmarks.measure import ALONE, BY_HAND, KERAS, NATIVE, OURS, PLAIN, Program
from benchmarks.networks import ACTIVATIONS, SLOPE, WEIGHTS
from benchmarks.tasks import Function, both

CLOCK = time.thread_time
CHAIN = 100
TRACED = ("trace, tf.function", 100, 10)


def setup() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def tensor(array: Any) -> Any:
    return tf.convert_to_tensor(array)


def array(tensor: Any) -> numpy.ndarray:
    return numpy.asarray(tensor)


def wait(nest: Any) -> Any:
    return nest


# --- the contestants -------------------------------------------------------------------------------------------------


def _contestants(function: Function, by_hand: Function, plain: Function) -> dict[str, Function | str]:
    return {
        OURS: keras_cg.custom_gradient(function),
        KERAS: keras.ops.custom_gradient(function),
        NATIVE: tf.custom_gradient(function),
        BY_HAND: by_hand,
        PLAIN: plain,
        ALONE: function,
    }


def log1pexp() -> dict[str, Function | str]:
    def function(x: Any) -> Any:
        e = tf.exp(x)

        def grad(*args: Any, upstream: Any = None) -> Any:
            (upstream,) = args if upstream is None else (upstream,)
            return upstream * (1 - 1 / (1 + e))

        return tf.math.log(1 + e), grad

    def plain(x: Any) -> Any:
        return tf.math.log(1 + tf.exp(x))

    # `function` keeps what is needed and no more.
    return _contestants(function, tf.custom_gradient(function), plain)


def log1pexp_twice() -> dict[str, Function | str]:
    return log1pexp()


def pair() -> dict[str, Function | str]:
    def function(x: Any, nest: Any) -> Any:
        e = tf.exp(nest["y"])

        def grad(u: Any, v: Any) -> Any:
            return u * e + v * 2 * x, {"y": (u * x + v) * e}

        return {"u": x * e, "v": x * x + e}, grad

    def plain(x: Any, nest: Any) -> Any:
        e = tf.exp(nest["y"])
        return {"u": x * e, "v": x * x + e}

    @tf.custom_gradient
    def flat_rule(x: Any, y: Any) -> Any:
        e = tf.exp(y)
        return (x * e, x * x + e), lambda u, v: (u * e + v * 2 * x, (u * x + v) * e)

    def by_hand(x: Any, nest: Any) -> Any:
        u, v = flat_rule(x, nest["y"])
        return {"u": u, "v": v}

    return _contestants(function, by_hand, plain)


def leaves() -> dict[str, Function | str]:
    def plain(nest: Any) -> Any:
        return {key: [3 * each for each in part] for key, part in nest.items()}

    def function(nest: Any) -> Any:
        return plain(nest), lambda *upstream: [3 * each for each in upstream]

    @tf.custom_gradient
    def flat_rule(*tensors: Any) -> Any:
        return [3 * each for each in tensors], lambda *upstream: [3 * each for each in upstream]

    def by_hand(nest: Any) -> Any:
        return flat_rule(*[each for part in nest.values() for each in part])

    return _contestants(function, by_hand, plain)


def straight_through() -> dict[str, Function | str]:
    def nearest(x: Any) -> Any:
        return tf.floor(x + 0.5)

    def function(x: Any) -> Any:
        return nearest(x), lambda upstream: upstream

    return _contestants(function, tf.custom_gradient(function), lambda x: x + tf.stop_gradient(nearest(x) - x))


def spike() -> dict[str, Function | str]:
    def surrogate(v: Any) -> Any:
        # Its derivative is that of the rule.
        return v / (1 + SLOPE * tf.abs(v))

    def heaviside(v: Any) -> Any:
        return tf.cast(v > 0, v.dtype)

    def function(v: Any) -> Any:
        return heaviside(v), lambda upstream: upstream / (1 + SLOPE * tf.abs(v)) ** 2

    def plain(v: Any) -> Any:
        return surrogate(v) + tf.stop_gradient(heaviside(v) - surrogate(v))

    return _contestants(function, tf.custom_gradient(function), plain)


def learned_step() -> dict[str, Any]:
    return both(_learned_step(*WEIGHTS), _learned_step(*ACTIVATIONS))


def _learned_step(low: int, high: int) -> dict[str, Function | str]:
    def function(v: Any, step: Any) -> Any:
        scaled = v / step
        rounded = tf.round(tf.clip_by_value(scaled, low, high))

        def grad(upstream: Any) -> Any:
            inside = tf.cast((scaled > low) & (scaled < high), scaled.dtype)
            of_step = upstream * (rounded - scaled * inside)
            return upstream * inside, tf.reduce_sum(of_step) * (1 / math.sqrt(math.prod(scaled.shape) * high))

        return rounded * step, grad

    def plain(v: Any, step: Any) -> Any:
        scale = 1 / math.sqrt(math.prod(v.shape) * high)
        step = step * scale + tf.stop_gradient(step - step * scale)
        clipped = tf.clip_by_value(v / step, low, high)
        return (clipped + tf.stop_gradient(tf.round(clipped) - clipped)) * step

    return _contestants(function, tf.custom_gradient(function), plain)


# --- what is done with them ------------------------------------------------------------------------------------------


def _under_a_tape(function: Function, arguments: Any) -> Program:
    def call() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            return function(*arguments)

    return call


calls = {
    "call without a tape": lambda function, arguments: lambda: function(*arguments),
    "call under a tape": _under_a_tape,
}


def vjp(function: Function, arguments: Any) -> Program:
    def start() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            outputs = function(*arguments)
        return outputs, lambda: tape.gradient(outputs, arguments)

    return start


def gradient(function: Function, arguments: Any) -> Program:
    start = vjp(function, arguments)
    return lambda: start()[1]()


def second_order(function: Function, arguments: Any) -> Program:
    def both() -> Any:
        with tf.GradientTape() as outer:
            outer.watch(arguments)
            with tf.GradientTape() as inner:
                inner.watch(arguments)
                output = function(*arguments)
            first = inner.gradient(output, arguments)
        return outer.gradient(first, arguments)

    return both


def _traceable(function: Function, **options: Any) -> Any:
    def both(*arguments: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            outputs = function(*arguments)
        return outputs, tape.gradient(outputs, arguments)

    return tf.function(both, autograph=False, **options)


def _compiled(function: Function, arguments: Any, **options: Any) -> Program:
    both = _traceable(function, **options)
    return lambda: both(*arguments)


compilers = {"tf.function": _compiled, "jit_compile": functools.partial(_compiled, jit_compile=True)}


def trace(function: Function, arguments: Any) -> Program:
    return lambda: _traceable(function).get_concrete_function(*arguments)


def held(function: Function, arguments: Any) -> int | None:
    return None
