"""The workloads in JAX."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy

from benchmarks import contestants
from benchmarks.measure import Program
from benchmarks.networks import ACTIVATIONS, WEIGHTS
from benchmarks.tasks import Function, both

CLOCK = time.perf_counter
CHAIN = 100
TRACED = ("trace and lower, jax.jit", 1000, 5)


def setup() -> None:
    # XLA has one thread by XLA_FLAGS, which the command sets.
    vars(contestants.f).update(
        exp=jnp.exp,
        log=jnp.log,
        abs=jnp.abs,
        floor=jnp.floor,
        clip=jnp.clip,
        nearest=jnp.round,
        size=lambda x: x.size,
        sum=jnp.sum,
        number=lambda condition, like: condition.astype(like.dtype),
        stop=jax.lax.stop_gradient,
    )


def tensor(array: Any) -> Any:
    return jnp.asarray(array)


def array(tensor: Any) -> numpy.ndarray:
    return numpy.asarray(tensor)


def wait(nest: Any) -> Any:
    return jax.block_until_ready(nest)


# --- the contestants -------------------------------------------------------------------------------------------------


def _contestants(function: Function, by_hand: Function, plain: Function) -> dict[str, Function | str]:
    return contestants.named(
        function, by_hand, plain, keras.ops.custom_gradient(function), jax.custom_gradient(function)
    )


def _by_hand(function: Function, forward: Function, backward: Function) -> Function:
    by_hand = jax.custom_vjp(function)
    by_hand.defvjp(forward, backward)
    return by_hand


def log1pexp() -> dict[str, Function | str]:
    def forward(x: Any) -> Any:
        e = jnp.exp(x)
        return jnp.log(1 + e), e

    function, plain = contestants.log1pexp()
    by_hand = _by_hand(plain, forward, lambda e, upstream: (upstream * (1 - 1 / (1 + e)),))
    return _contestants(function, by_hand, plain)


def log1pexp_twice() -> dict[str, Function | str]:
    return log1pexp()


def pair() -> dict[str, Function | str]:
    def forward(x: Any, nest: Any) -> Any:
        e = jnp.exp(nest["y"])
        return {"u": x * e, "v": x * x + e}, (x, e)

    def backward(kept: Any, upstream: Any) -> Any:
        (x, e), u, v = kept, upstream["u"], upstream["v"]
        return u * e + v * 2 * x, {"y": (u * x + v) * e}

    function, plain = contestants.pair()
    return _contestants(function, _by_hand(plain, forward, backward), plain)


def leaves() -> dict[str, Function | str]:
    plain = contestants.threefold

    def function(nest: Any) -> Any:
        # In a tuple: jax.custom_gradient takes no bare nest.
        return plain(nest), lambda upstream: (plain(upstream),)

    def threefold(*tensors: Any) -> Any:
        return tuple(3 * each for each in tensors)

    flat_rule = _by_hand(
        threefold, lambda *tensors: (threefold(*tensors), None), lambda kept, upstream: threefold(*upstream)
    )

    def by_hand(nest: Any) -> Any:
        return flat_rule(*[each for part in nest.values() for each in part])

    return _contestants(function, by_hand, plain)


def straight_through() -> dict[str, Function | str]:
    function, rounded, plain = contestants.straight_through()
    by_hand = _by_hand(rounded, lambda x: (rounded(x), None), lambda kept, upstream: (upstream,))
    return _contestants(function, by_hand, plain)


def spike() -> dict[str, Function | str]:
    function, heaviside, plain, slope = contestants.spike()
    by_hand = _by_hand(heaviside, lambda v: (heaviside(v), v), lambda v, upstream: (slope(v, upstream),))
    return _contestants(function, by_hand, plain)


def learned_step() -> dict[str, Any]:
    return both(_learned_step(*WEIGHTS), _learned_step(*ACTIVATIONS))


def _learned_step(low: int, high: int) -> dict[str, Function | str]:
    function, forward, backward, plain = contestants.learned_step(low, high)

    def kept(v: Any, step: Any) -> Any:
        scaled, rounded = forward(v, step)
        return rounded * step, (scaled, rounded)

    by_hand = _by_hand(
        lambda v, step: forward(v, step)[1] * step, kept, lambda kept, upstream: backward(*kept, upstream)
    )
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
