"""The workloads in JAX."""

from __future__ import annotations

import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy

import keras_cg
from benchmarks.measure import ALONE, BY_HAND, KERAS, NATIVE, OURS, PLAIN, Program
from benchmarks.networks import ACTIVATIONS, SLOPE, WEIGHTS
from benchmarks.tasks import Function, both

CLOCK = time.perf_counter
CHAIN = 100
TRACED = ("trace and lower, jax.jit", 1000, 5)


def setup() -> None:
    # XLA has one thread by XLA_FLAGS, which the command sets.
    pass


def tensor(array: Any) -> Any:
    return jnp.asarray(array)


def array(tensor: Any) -> numpy.ndarray:
    return numpy.asarray(tensor)


def wait(nest: Any) -> Any:
    return jax.block_until_ready(nest)


# --- the contestants -------------------------------------------------------------------------------------------------


def _contestants(function: Function, by_hand: Function, plain: Function) -> dict[str, Function | str]:
    return {
        OURS: keras_cg.custom_gradient(function),
        KERAS: keras.ops.custom_gradient(function),
        NATIVE: jax.custom_gradient(function),
        BY_HAND: by_hand,
        PLAIN: plain,
        ALONE: function,
    }


def log1pexp() -> dict[str, Function | str]:
    def function(x: Any) -> Any:
        e = jnp.exp(x)

        def grad(*args: Any, upstream: Any = None) -> Any:
            (upstream,) = args if upstream is None else (upstream,)
            return upstream * (1 - 1 / (1 + e))

        return jnp.log(1 + e), grad

    def plain(x: Any) -> Any:
        return jnp.log(1 + jnp.exp(x))

    def forward(x: Any) -> Any:
        e = jnp.exp(x)
        return jnp.log(1 + e), e

    by_hand = jax.custom_vjp(plain)
    by_hand.defvjp(forward, lambda e, upstream: (upstream * (1 - 1 / (1 + e)),))
    return _contestants(function, by_hand, plain)


def log1pexp_twice() -> dict[str, Function | str]:
    return log1pexp()


def pair() -> dict[str, Function | str]:
    def function(x: Any, nest: Any) -> Any:
        e = jnp.exp(nest["y"])

        def grad(upstream: Any) -> Any:
            u, v = upstream["u"], upstream["v"]
            return u * e + v * 2 * x, {"y": (u * x + v) * e}

        return {"u": x * e, "v": x * x + e}, grad

    def plain(x: Any, nest: Any) -> Any:
        e = jnp.exp(nest["y"])
        return {"u": x * e, "v": x * x + e}

    def forward(x: Any, nest: Any) -> Any:
        e = jnp.exp(nest["y"])
        return {"u": x * e, "v": x * x + e}, (x, e)

    def backward(kept: Any, upstream: Any) -> Any:
        (x, e), u, v = kept, upstream["u"], upstream["v"]
        return u * e + v * 2 * x, {"y": (u * x + v) * e}

    by_hand = jax.custom_vjp(plain)
    by_hand.defvjp(forward, backward)
    return _contestants(function, by_hand, plain)


def leaves() -> dict[str, Function | str]:
    def plain(nest: Any) -> Any:
        return {key: [3 * each for each in part] for key, part in nest.items()}

    def function(nest: Any) -> Any:
        # In a tuple: jax.custom_gradient takes no bare nest.
        return plain(nest), lambda upstream: (plain(upstream),)

    @jax.custom_vjp
    def flat_rule(*tensors: Any) -> Any:
        return tuple(3 * each for each in tensors)

    flat_rule.defvjp(
        lambda *tensors: (tuple(3 * each for each in tensors), None),
        lambda kept, upstream: tuple(3 * each for each in upstream),
    )

    def by_hand(nest: Any) -> Any:
        return flat_rule(*[each for part in nest.values() for each in part])

    return _contestants(function, by_hand, plain)


def straight_through() -> dict[str, Function | str]:
    def nearest(x: Any) -> Any:
        return jnp.floor(x + 0.5)

    def function(x: Any) -> Any:
        return nearest(x), lambda upstream: upstream

    by_hand = jax.custom_vjp(nearest)
    by_hand.defvjp(lambda x: (nearest(x), None), lambda kept, upstream: (upstream,))
    return _contestants(function, by_hand, lambda x: x + jax.lax.stop_gradient(nearest(x) - x))


def spike() -> dict[str, Function | str]:
    def surrogate(v: Any) -> Any:
        # Its derivative is that of the rule.
        return v / (1 + SLOPE * jnp.abs(v))

    def heaviside(v: Any) -> Any:
        return (v > 0).astype(v.dtype)

    def function(v: Any) -> Any:
        return heaviside(v), lambda upstream: upstream / (1 + SLOPE * jnp.abs(v)) ** 2

    by_hand = jax.custom_vjp(heaviside)
    by_hand.defvjp(lambda v: (heaviside(v), v), lambda v, upstream: (upstream / (1 + SLOPE * jnp.abs(v)) ** 2,))

    def plain(v: Any) -> Any:
        return surrogate(v) + jax.lax.stop_gradient(heaviside(v) - surrogate(v))

    return _contestants(function, by_hand, plain)


def learned_step() -> dict[str, Any]:
    return both(_learned_step(*WEIGHTS), _learned_step(*ACTIVATIONS))


def _learned_step(low: int, high: int) -> dict[str, Function | str]:
    def forward(v: Any, step: Any) -> Any:
        scaled = v / step
        return scaled, jnp.round(jnp.clip(scaled, low, high))

    def backward(scaled: Any, rounded: Any, upstream: Any) -> Any:
        inside = (scaled > low) & (scaled < high)
        of_step = upstream * (rounded - scaled * inside)
        return upstream * inside, of_step.sum() * (1 / math.sqrt(scaled.size * high))

    def function(v: Any, step: Any) -> Any:
        scaled, rounded = forward(v, step)
        return rounded * step, lambda upstream: backward(scaled, rounded, upstream)

    def kept(v: Any, step: Any) -> Any:
        scaled, rounded = forward(v, step)
        return rounded * step, (scaled, rounded)

    by_hand = jax.custom_vjp(lambda v, step: forward(v, step)[1] * step)
    by_hand.defvjp(kept, lambda kept, upstream: backward(*kept, upstream))

    def plain(v: Any, step: Any) -> Any:
        scale = 1 / math.sqrt(v.size * high)
        step = step * scale + jax.lax.stop_gradient(step - step * scale)
        clipped = jnp.clip(v / step, low, high)
        return (clipped + jax.lax.stop_gradient(jnp.round(clipped) - clipped)) * step

    return _contestants(function, by_hand, plain)


# --- what is done with them ------------------------------------------------------------------------------------------

calls = {"call outside any transform": lambda function, arguments: lambda: wait(function(*arguments))}


def vjp(function: Function, arguments: Any) -> Program:
    upstream = jax.tree.map(jnp.ones_like, function(*arguments))

    def start() -> Any:
        outputs, pullback = jax.vjp(function, *arguments)
        return outputs, lambda: pullback(upstream)

    return start


def gradient(function: Function, arguments: Any) -> Program:
    both = jax.grad(lambda *arguments: function(*arguments).sum(), argnums=tuple(range(len(arguments))))
    return lambda: wait(both(*arguments))


def second_order(function: Function, arguments: Any) -> Program:
    first = jax.grad(lambda x: function(x).sum())
    both = jax.grad(lambda x: first(x).sum())
    return lambda: wait(both(*arguments))


def _jit(function: Function, arguments: Any) -> Program:
    upstream = jax.tree.map(jnp.ones_like, function(*arguments))

    def both(arguments: Any, upstream: Any) -> Any:
        outputs, pullback = jax.vjp(function, *arguments)
        return outputs, pullback(upstream)

    compiled = jax.jit(both)
    return lambda: wait(compiled(arguments, upstream))


compilers = {"jax.jit": _jit}


def trace(function: Function, arguments: Any) -> Program:
    def again() -> Any:
        # A function that JAX has not seen, so that nothing is found in its caches.
        return jax.jit(jax.grad(lambda x: function(x).sum())).trace(*arguments).lower()

    return again


def held(function: Function, arguments: Any) -> int | None:
    start = vjp(function, arguments)
    before = sum(each.nbytes for each in jax.live_arrays())
    kept = start()
    after = sum(each.nbytes for each in jax.live_arrays())
    del kept
    return after - before
