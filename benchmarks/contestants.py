"""What the workloads compute, in the functions of any framework; a file of `workloads` adds the rules by hand.

They are written with `f`, which has the functions of the framework that the process measures: `exp`, `log`, `abs`,
`floor`, `clip`, `sum`; `nearest`, the nearest whole number; `size`, the number of elements; `stop`, which stops the
gradient; and `number(condition, like)`, 1 or 0 in the dtype of `like`. `setup` of a file of `workloads` sets them.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import keras_cg
from benchmarks.measure import ALONE, BY_HAND, KERAS, NATIVE, OURS, PLAIN
from benchmarks.networks import SLOPE
from benchmarks.tasks import Function

# A module, in which torch.compile looks up names as in torch itself.
f: Any = ModuleType("f")


def named(
    function: Function, by_hand: Function, plain: Function, of_keras: Function | str, native: Function | str
) -> dict[str, Function | str]:
    """The contestants of a workload by their names, or words that say why one does not run."""
    return {
        OURS: keras_cg.custom_gradient(function),
        KERAS: of_keras,
        NATIVE: native,
        BY_HAND: by_hand,
        PLAIN: plain,
        ALONE: function,
    }


def log1pexp() -> tuple[Function, Function]:
    """The function with its rule, and without one."""

    def function(x: Any) -> Any:
        e = f.exp(x)

        def grad(*args: Any, upstream: Any = None) -> Any:
            (upstream,) = args if upstream is None else (upstream,)
            return upstream * (1 - 1 / (1 + e))

        return f.log(1 + e), grad

    return function, lambda x: f.log(1 + f.exp(x))


def pair() -> tuple[Function, Function]:
    """The function with its rule, and without one."""

    def function(x: Any, nest: Any) -> Any:
        e = f.exp(nest["y"])

        def grad(upstream: Any) -> Any:
            u, v = upstream["u"], upstream["v"]
            return u * e + v * 2 * x, {"y": (u * x + v) * e}

        return {"u": x * e, "v": x * x + e}, grad

    def plain(x: Any, nest: Any) -> Any:
        e = f.exp(nest["y"])
        return {"u": x * e, "v": x * x + e}

    return function, plain


def threefold(nest: Any) -> Any:
    """Three times every tensor of a dict of lists."""
    return {key: [3 * each for each in part] for key, part in nest.items()}


def straight_through() -> tuple[Function, Function, Function]:
    """The rounding with its rule, the rounding itself, and with plain autodiff."""

    def rounded(x: Any) -> Any:
        return f.floor(x + 0.5)

    def function(x: Any) -> Any:
        return rounded(x), lambda upstream: upstream

    return function, rounded, lambda x: x + f.stop(rounded(x) - x)


def spike() -> tuple[Function, Function, Function, Function]:
    """The spike with its rule, the spike itself, with plain autodiff, and the derivative in the place of its own."""

    def surrogate(v: Any) -> Any:
        # Its derivative is that of the rule.
        return v / (1 + SLOPE * f.abs(v))

    def heaviside(v: Any) -> Any:
        return f.number(v > 0, v)

    def slope(v: Any, upstream: Any) -> Any:
        return upstream / (1 + SLOPE * f.abs(v)) ** 2

    def function(v: Any) -> Any:
        return heaviside(v), lambda upstream: slope(v, upstream)

    return function, heaviside, lambda v: surrogate(v) + f.stop(heaviside(v) - surrogate(v)), slope


def learned_step(low: int, high: int) -> tuple[Function, Function, Function, Function]:
    """The rounding with its rule, what it keeps, the gradient from that, and the rounding with plain autodiff."""

    def forward(v: Any, step: Any) -> Any:
        scaled = v / step
        return scaled, f.nearest(f.clip(scaled, low, high))

    def backward(scaled: Any, rounded: Any, upstream: Any) -> Any:
        inside = (scaled > low) & (scaled < high)
        of_step = upstream * (rounded - scaled * inside)
        return upstream * inside, f.sum(of_step) * (1 / math.sqrt(f.size(scaled) * high))

    def function(v: Any, step: Any) -> Any:
        scaled, rounded = forward(v, step)
        return rounded * step, lambda upstream: backward(scaled, rounded, upstream)

    def plain(v: Any, step: Any) -> Any:
        scale = 1 / math.sqrt(f.size(v) * high)
        step = step * scale + f.stop(step - step * scale)
        clipped = f.clip(v / step, low, high)
        return (clipped + f.stop(f.nearest(clipped) - clipped)) * step

    return function, forward, backward, plain
