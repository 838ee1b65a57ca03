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


# A title, the recipe, the same without its rule, and where it is drawn.
Panel = tuple[str, Callable[[Any], Any], Callable[[Any], Any], np.ndarray]

PANELS: list[Panel] = [
    ("straight_through(round)", recipes.straight_through(rounded), rounded, X),
    ("reverse_gradient(x)", recipes.reverse_gradient, lambda x: x, X),
    ("scale_gradient(x, 0.3)", lambda x: recipes.scale_gradient(x, 0.3), lambda x: x, X),
    ("clip_gradient(x, value=1)²", lambda x: recipes.clip_gradient(x, value=1) ** 2, lambda x: x**2, X),
    ("log1pexp(x)", recipes.log1pexp, lambda x: ops.log(1 + ops.exp(x)), 500 * X),
    ("safe_norm([x, 0])", lambda x: recipes.safe_norm(ops.stack([x, 0 * x]), 0), lambda x: ops.sqrt(x * x), X),
    ("safe_sqrt(x)", recipes.safe_sqrt, ops.sqrt, X),
    ("safe_log(x, 0.05)", lambda x: recipes.safe_log(x, 0.05), ops.log, X),
    ("surrogate_spike(x)", lambda x: recipes.surrogate_spike(x, slope=5), lambda x: rounded(0 * x), X),
    ("quantize(x, 1, bits=2)", lambda x: recipes.quantize(x, 1.0, 2), lambda x: rounded(0 * x), X),
    ("recompute(sin)", recipes.recompute(ops.sin), ops.sin, X),
    (
        "fixed_point: √x",
        lambda x: recipes.fixed_point(heron, steps=9)(1 + 0 * x, x),
        ops.sqrt,
        np.linspace(0.1, 6, 601),
    ),
]


def draw(path: str) -> None:
    """Draws all panels into a file."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style = {"font.size": 8.5, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": MUTED}
    style |= {"xtick.color": MUTED, "ytick.color": MUTED, "text.color": INK, "axes.labelcolor": INK}
    with plt.rc_context(style), keras_cg.use_backend("numpy"), np.errstate(all="ignore"):
        figure, axes = plt.subplots(6, 4, figsize=(11, 11), height_ratios=[1, 1] * 3, layout="constrained")
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
        figure.savefig(path, dpi=90)


if __name__ == "__main__":
    draw(sys.argv[1] if len(sys.argv) > 1 else str(pathlib.Path(__file__).with_suffix(".png")))
