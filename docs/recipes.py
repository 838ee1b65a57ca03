"""Draws docs/recipes.png, the picture of recipes.md: `python docs/recipes.py [FILE]`.

Above, what each recipe computes; below, its gradient for an upstream of ones, beside that of plain differentiation.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np

import keras_cg
from keras_cg import ops, recipes

X = np.linspace(-3, 3, 1201)
INK, MUTED, FORWARD, GRADIENT = "#333333", "#9a9a9a", "#3b6fb6", "#d1495b"


def heron(z: Any, a: Any) -> Any:
    """One step towards the square root of a."""
    return (z + a / z) / 2


def rounded(x: Any) -> Any:
    """The nearest integer."""
    return ops.floor(x + 0.5)


def root_solver(g: Any, x0: Any) -> Any:
    """The cube root, of which the recipe learns nothing but its value."""
    return np.cbrt(-g(x0))


UNIFORM = np.array([0.3, 0.6])


def chosen(x: Any, *, hard: bool) -> Any:
    """How much of the first of two categories is chosen, of which x is the logit."""
    noise = recipes.gumbel_noise(np.tile(UNIFORM, (*x.shape, 1)))
    return recipes.gumbel_softmax(ops.stack([x, 0 * x], axis=-1), noise, 0.5, hard=hard)[..., 0]


# A title, the recipe, the same without its rule, and where it is drawn.
Panel = tuple[str, Callable[[Any], Any], Callable[[Any], Any], np.ndarray]

PANELS: list[Panel] = [
    ("straight_through(round)", recipes.straight_through(rounded), rounded, X),
    (
        "straight_through(round, soft)",
        lambda x: recipes.straight_through(lambda x, alpha: rounded(x), recipes.soft_round)(x, 5.0),
        rounded,
        X,
    ),
    ("soft_round(x, 5)", lambda x: recipes.soft_round(x, 5.0), rounded, X),
    ("gumbel_softmax([x, 0], …)", lambda x: chosen(x, hard=True), lambda x: rounded(0 * x), X),
    ("gumbel_softmax(hard=False)", lambda x: chosen(x, hard=False), lambda x: chosen(x, hard=False), X),
    ("reverse_gradient(x)", recipes.reverse_gradient, lambda x: x, X),
    ("scale_gradient(x, 0.3)", lambda x: recipes.scale_gradient(x, 0.3), lambda x: x, X),
    ("clip_gradient(x, value=1)²", lambda x: recipes.clip_gradient(x, value=1) ** 2, lambda x: x**2, X),
    ("log1pexp(x)", recipes.log1pexp, lambda x: ops.log(1 + ops.exp(x)), 500 * X),
    (
        "log_sum_exp([x, 0])",
        lambda x: recipes.log_sum_exp(ops.stack([x, 0 * x]), 0),
        lambda x: ops.log(ops.exp(x) + 1),
        500 * X,
    ),
    (
        "log_sum_exp(where=x < 500)",
        lambda x: recipes.log_sum_exp(ops.stack([x, 0 * x]), 0, where=ops.stack([x < 500, x < np.inf])),
        lambda x: ops.log(ops.where(x < 500, ops.exp(x), 0) + 1),
        500 * X,
    ),
    ("safe_norm([x, 0])", lambda x: recipes.safe_norm(ops.stack([x, 0 * x]), 0), lambda x: ops.sqrt(x * x), X),
    ("safe_sqrt(x)", recipes.safe_sqrt, ops.sqrt, X),
    ("safe_log(x, 0.05)", lambda x: recipes.safe_log(x, 0.05), ops.log, X),
    ("surrogate_spike(x)", lambda x: recipes.surrogate_spike(x, slope=5), lambda x: rounded(0 * x), X),
    ("quantize(x, 1, bits=2)", lambda x: recipes.quantize(x, 1.0, 2), lambda x: rounded(0 * x), X),
    ("recompute(sin)", recipes.recompute(ops.sin), ops.sin, X),
    (
        "invertible(sinh)",
        lambda x: recipes.invertible(lambda x, p: ops.sinh(x), lambda y, p: ops.asinh(y))(x, None),
        ops.sinh,
        X,
    ),
    (
        "fixed_point: √x",
        lambda x: recipes.fixed_point(heron, steps=9)(1 + 0 * x, x),
        ops.sqrt,
        np.linspace(0.1, 6, 601),
    ),
    (
        "custom_root: ∛x",
        lambda x: recipes.custom_root(
            lambda z, a: z**3 - a, root_solver, linear_solve=lambda matvec, b: b / matvec(ops.ones_like(b))
        )(0 * x, x),
        lambda x: 0 * x,
        np.linspace(0.3, 6, 601),
    ),
]


def draw(path: str) -> None:
    """Draws all panels into a file."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style = {"font.size": 8.5, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": MUTED}
    style |= {"xtick.color": MUTED, "ytick.color": MUTED, "text.color": INK, "axes.labelcolor": INK}
    with plt.rc_context(style), keras_cg.use_backend("numpy"), np.errstate(all="ignore"):
        figure, axes = plt.subplots(10, 4, figsize=(11, 17), height_ratios=[1, 1] * 5, layout="constrained")
        for number, (title, recipe, plain, x) in enumerate(PANELS):
            row, column = divmod(number, 4)
            upper, lower = axes[2 * row, column], axes[2 * row + 1, column]
            upper.set_title(title, family="monospace", fontsize=9.5, loc="left", pad=8)
            upper.plot(x, recipe(x), color=FORWARD, lw=2)
            lower.plot(x, keras_cg.grad(plain)(x), color=MUTED, lw=3.5, alpha=0.6, label="plain differentiation")
            lower.plot(x, keras_cg.grad(recipe)(x), color=GRADIENT, lw=1.8, label="the recipe")
            for each in (upper, lower):
                each.axhline(0, color=MUTED, lw=0.6, zorder=0)
                each.margins(x=0.02, y=0.12)
            upper.tick_params(labelbottom=False)
            if column == 0:
                upper.set_ylabel("output")
                lower.set_ylabel("gradient")
            slopes = keras_cg.grad(recipe)(x)
            low, high = min(slopes.min(), 0), max(slopes.max(), 1)
            lower.set_ylim(low - 0.2 * (high - low), high + 0.2 * (high - low))
        handles, labels = axes[1, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        figure.savefig(path, dpi=72)


if __name__ == "__main__":
    draw(sys.argv[1] if len(sys.argv) > 1 else str(pathlib.Path(__file__).with_suffix(".png")))
