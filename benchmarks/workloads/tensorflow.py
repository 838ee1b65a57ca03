"""The workloads in TensorFlow."""

from __future__ import annotations

import functools
import math
import time
from typing import Any

import keras
import numpy
import tensorflow as tf

from benchmarks import contestants
from benchmarks.measure import Program
from benchmarks.networks import ACTIVATIONS, WEIGHTS
from benchmarks.tasks import Function, both

CLOCK = time.thread_time
CHAIN = 100
TRACED = ("trace, tf.function", 100, 10)


def setup() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    vars(contestants.f).update(
        exp=tf.exp,
        log=tf.math.log,
        abs=tf.abs,
        floor=tf.floor,
        clip=tf.clip_by_value,
        nearest=tf.round,
        size=lambda x: math.prod(x.shape),
        sum=tf.reduce_sum,
        number=lambda condition, like: tf.cast(condition, like.dtype),
        stop=tf.stop_gradient,
    )


def tensor(array: Any) -> Any:
    return tf.convert_to_tensor(array)


def array(tensor: Any) -> numpy.ndarray:
    return numpy.asarray(tensor)


def wait(nest: Any) -> Any:
    return nest


# --- the contestants -------------------------------------------------------------------------------------------------


def _contestants(function: Function, plain: Function, by_hand: Function | None = None) -> dict[str, Function | str]:
    # Without another rule by hand: `function` keeps what is needed and no more.
    native = tf.custom_gradient(function)
    return contestants.named(function, by_hand or native, plain, keras.ops.custom_gradient(function), native)


def log1pexp() -> dict[str, Function | str]:
    return _contestants(*contestants.log1pexp())


def log1pexp_twice() -> dict[str, Function | str]:
    return log1pexp()


def pair() -> dict[str, Function | str]:
    def function(x: Any, nest: Any) -> Any:
        e = tf.exp(nest["y"])

        def grad(u: Any, v: Any) -> Any:
            return u * e + v * 2 * x, {"y": (u * x + v) * e}

        return {"u": x * e, "v": x * x + e}, grad

    @tf.custom_gradient
    def flat_rule(x: Any, y: Any) -> Any:
        e = tf.exp(y)
        return (x * e, x * x + e), lambda u, v: (u * e + v * 2 * x, (u * x + v) * e)

    def by_hand(x: Any, nest: Any) -> Any:
        u, v = flat_rule(x, nest["y"])
        return {"u": u, "v": v}

    return _contestants(function, contestants.pair()[1], by_hand)


def leaves() -> dict[str, Function | str]:
    plain = contestants.threefold

    def function(nest: Any) -> Any:
        return plain(nest), lambda *upstream: [3 * each for each in upstream]

    @tf.custom_gradient
    def flat_rule(*tensors: Any) -> Any:
        return [3 * each for each in tensors], lambda *upstream: [3 * each for each in upstream]

    def by_hand(nest: Any) -> Any:
        return flat_rule(*[each for part in nest.values() for each in part])

    return _contestants(function, plain, by_hand)


def straight_through() -> dict[str, Function | str]:
    function, _, plain = contestants.straight_through()
    return _contestants(function, plain)


def spike() -> dict[str, Function | str]:
    function, _, plain, _ = contestants.spike()
    return _contestants(function, plain)


def learned_step() -> dict[str, Any]:
    return both(_learned_step(*WEIGHTS), _learned_step(*ACTIVATIONS))


def _learned_step(low: int, high: int) -> dict[str, Function | str]:
    _, forward, _, plain = contestants.learned_step(low, high)

    def function(v: Any, step: Any) -> Any:
        scaled, rounded = forward(v, step)

        def grad(upstream: Any) -> Any:
            # TensorFlow multiplies no numbers with booleans.
            inside = tf.cast((scaled > low) & (scaled < high), scaled.dtype)
            of_step = upstream * (rounded - scaled * inside)
            return upstream * inside, tf.reduce_sum(of_step) * (1 / math.sqrt(math.prod(scaled.shape) * high))

        return rounded * step, grad

    return _contestants(function, plain)


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
