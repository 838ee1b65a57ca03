"""What the decorator costs, beside the framework's own way to attach a gradient, as ratios.

    KERAS_CG_BACKEND=torch python benchmarks/overhead.py

For log(1 + exp(x)) on a few numbers, where nearly all of the time is overhead, and on many, where nearly none is. Each
round runs every contestant once, in turn, so that a machine that slows down slows all of them; the median of the ratios
round by round is printed, with its quartiles. `plain` is the function differentiated by the framework, without a rule.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy

import keras_cg
from keras_cg import ops


def function(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The function that every contestant attaches its gradient to."""
    e = ops.exp(x)
    return ops.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e))


def contestants_jax(size: int) -> dict[str, Callable[[], Any]]:
    import jax
    import jax.numpy as jnp

    @jax.custom_vjp
    def native(x: Any) -> Any:
        return function(x)[0]

    def forward(x: Any) -> Any:
        e = jnp.exp(x)
        return jnp.log(1 + e), e

    native.defvjp(forward, lambda e, upstream: (upstream * (1 - 1 / (1 + e)),))
    x = jnp.linspace(-1, 1, size)
    ours = keras_cg.custom_gradient(function)

    def gradient(f: Callable[[Any], Any]) -> Callable[[], Any]:
        both = jax.grad(lambda x: f(x).sum())
        return lambda: both(x).block_until_ready()

    def compiled(f: Callable[[Any], Any]) -> Callable[[], Any]:
        both = jax.jit(jax.grad(lambda x: f(x).sum()))
        return lambda: both(x).block_until_ready()

    plain = lambda x: function(x)[0]  # noqa: E731 - three of a kind
    return {
        "call/plain": lambda: plain(x).block_until_ready(),
        "call/native": lambda: native(x).block_until_ready(),
        "call/keras_cg": lambda: ours(x).block_until_ready(),
        "gradient/plain": gradient(plain),
        "gradient/native": gradient(native),
        "gradient/keras_cg": gradient(ours),
        "compiled gradient/plain": compiled(plain),
        "compiled gradient/native": compiled(native),
        "compiled gradient/keras_cg": compiled(ours),
    }


def contestants_torch(size: int) -> dict[str, Callable[[], Any]]:
    import torch

    class Native(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            e = torch.exp(x)
            ctx.save_for_backward(e)
            return torch.log(1 + e)

        @staticmethod
        def backward(ctx: Any, upstream: Any) -> Any:
            (e,) = ctx.saved_tensors
            return upstream * (1 - 1 / (1 + e))

    torch.set_num_threads(1)
    constant = torch.linspace(-1, 1, size)
    x = constant.clone().requires_grad_()
    ours = keras_cg.custom_gradient(function)
    plain = lambda x: function(x)[0]  # noqa: E731 - three of a kind

    def gradient(f: Callable[[Any], Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(f(x).sum(), x)

    found: dict[str, Callable[[], Any]] = {}
    for name, f in (("plain", plain), ("native", Native.apply), ("keras_cg", ours)):
        found[f"call/{name}"] = lambda f=f: f(constant)
        found[f"gradient/{name}"] = gradient(f)
        found[f"compiled gradient/{name}"] = gradient(torch.compile(f, fullgraph=True))
    return found


def contestants_tensorflow(size: int) -> dict[str, Callable[[], Any]]:
    import tensorflow as tf

    x = tf.linspace(-1.0, 1.0, size)

    def gradient(f: Callable[[Any], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = f(x)
            return tape.gradient(y, x)

        return run

    def compiled(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return tf.function(lambda x: f(x))

    found: dict[str, Callable[[], Any]] = {}
    plain = lambda x: function(x)[0]  # noqa: E731 - three of a kind
    for name, f in (
        ("plain", plain),
        ("native", tf.custom_gradient(function)),
        ("keras_cg", keras_cg.custom_gradient(function)),
    ):
        found[f"call/{name}"] = lambda f=f: f(x)
        found[f"gradient/{name}"] = gradient(f)
        found[f"compiled gradient/{name}"] = gradient(compiled(f))
    return found


def contestants_numpy(size: int) -> dict[str, Callable[[], Any]]:
    import autograd
    from autograd.extend import defvjp, primitive

    @primitive
    def native(x: Any) -> Any:
        return numpy.log(1 + numpy.exp(x))

    defvjp(native, lambda ans, x: lambda upstream: upstream * (1 - 1 / (1 + ops.exp(x))))
    x = numpy.linspace(-1, 1, size)
    plain = lambda x: function(x)[0]  # noqa: E731 - three of a kind
    found: dict[str, Callable[[], Any]] = {}
    for name, f in (("plain", plain), ("native", native), ("keras_cg", keras_cg.custom_gradient(function))):
        found[f"call/{name}"] = lambda f=f: f(x)
        found[f"gradient/{name}"] = partial(autograd.elementwise_grad(f), x)
    return found


def measure(contestants: dict[str, Callable[[], Any]], rounds: int, inner: int) -> dict[str, list[float]]:
    """The time of every contestant in every round, the contestants taking turns."""
    for run in contestants.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            started = time.perf_counter()
            for _ in range(inner):
                run()
            times[name].append(time.perf_counter() - started)
    return times


def main() -> None:
    """Prints a line for every pair of contestants."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200, help="how often each contestant takes its turn")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 1_000_000], help="how many numbers")
    options = parser.parse_args()
    backend = keras_cg.backend()
    print(f"{backend}, {os.cpu_count()} processors; ratio of times, median (quartiles) of {options.rounds} rounds")
    for size in options.sizes:
        inner = 10 if size < 1000 else 1
        times = measure(
            globals()[f"contestants_{backend}"](size), options.rounds if inner > 1 else options.rounds // 10, inner
        )
        for task in dict.fromkeys(name.partition("/")[0] for name in times):
            for other in ("native", "plain"):
                pairs = zip(times[f"{task}/keras_cg"], times[f"{task}/{other}"], strict=True)
                low, median, high = statistics.quantiles((ours / theirs for ours, theirs in pairs), n=4)
                print(f"{size:>9,} numbers  {task:<18} keras_cg / {other:<6}  {median:6.2f}  ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
