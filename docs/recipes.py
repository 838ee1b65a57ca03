"""Draws the pictures of recipes.md, one for each recipe: `python docs/recipes.py [FOLDER]`.

On the left the output of the recipe. On the right its gradient for an upstream of ones, with the gradient of autodiff.
The colours are readable on a light and on a dark page; the background is transparent.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np

import keras_cg
from keras_cg import ops, recipes

X = np.linspace(-3, 3, 601)
MUTED, FORWARD, GRADIENT = "#808080", "#4a86d8", "#e0566a"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "recipes",
    "axes.spines.top": False,
    "axes.spines.right": False,
} | dict.fromkeys(("axes.edgecolor", "axes.titlecolor", "text.color", "xtick.color", "ytick.color"), MUTED)


def heron(z: Any, a: Any) -> Any:
    """One step towards the square root of a."""
    return (z + a / z) / 2


def rounded(x: Any) -> Any:
    """The nearest integer."""
    return ops.floor(x + 0.5)


def root_solver(g: Any, x0: Any) -> Any:
    """The cube root; the recipe uses only its value."""
    return np.cbrt(-g(x0))


UNIFORM = np.array([0.3, 0.6])


def chosen(x: Any, *, hard: bool) -> Any:
    """How much of the first of two categories is chosen, with the logits x and 0."""
    noise = recipes.gumbel_noise(np.tile(UNIFORM, (*x.shape, 1)))
    return recipes.gumbel_softmax(ops.stack([x, 0 * x], axis=-1), noise, 0.5, hard=hard)[..., 0]


class Steps:
    """Whole numbers, with the derivative of the hyperbolic tangent."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        """Rounds."""
        ctx.save_for_backward(x)
        return rounded(x)

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        """Multiplies by the derivative."""
        (x,) = ctx.saved_tensors
        return upstream / ops.cosh(x) ** 2


# A title, which begins with the name of the recipe; the recipe; the function for autodiff, or None; where to draw them.
Panel = tuple[str, Callable[[Any], Any], Callable[[Any], Any] | None, np.ndarray]

PANELS: list[Panel] = [
    ("straight_through(round)", recipes.straight_through(rounded), rounded, X),
    (
        "straight_through(round, soft)",
        lambda x: recipes.straight_through(lambda x, alpha: rounded(x), recipes.soft_round)(x, 5.0),
        rounded,
        X,
    ),
    ("soft_round(x, 5)", lambda x: recipes.soft_round(x, 5.0), rounded, X),
    ("gumbel_noise(x)", recipes.gumbel_noise, None, np.linspace(0.002, 0.998, 499)),
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
        "fixed_point (√x)",
        lambda x: recipes.fixed_point(heron, steps=9)(1 + 0 * x, x),
        ops.sqrt,
        np.linspace(0.1, 6, 601),
    ),
    (
        "custom_root (∛x)",
        lambda x: recipes.custom_root(
            lambda z, a: z**3 - a, root_solver, linear_solve=lambda matvec, b: b / matvec(ops.ones_like(b))
        )(0 * x, x),
        lambda x: 0 * x,
        np.linspace(0.3, 6, 601),
    ),
    ("from_jvp (round, dx)", recipes.from_jvp(lambda x: (rounded(x), lambda dx: dx)), rounded, X),
    ("from_autograd_function(Steps)", recipes.from_autograd_function(Steps), rounded, X),
    (
        "from_numpy(np.sinh, …)",
        recipes.from_numpy(np.sinh, lambda x, upstream: upstream * np.cosh(x)),
        None,  # autodiff raises
        X,
    ),
]


def draw_panel(output: Any, gradient: Any, panel: Panel) -> None:
    """Draws the output of a recipe into an axes, and the gradients into another one."""
    title, recipe, plain, x = panel
    slopes = keras_cg.grad(recipe)(x)
    output.set_title(title, family="monospace", loc="left")
    gradient.set_title("gradient", loc="left")
    output.plot(x, recipe(x), color=FORWARD, lw=2)
    if plain is not None:
        gradient.plot(x, keras_cg.grad(plain)(x), color=MUTED, lw=4, alpha=0.6, label="autodiff")
    gradient.plot(x, slopes, color=GRADIENT, lw=1.8, label="recipe")
    for each in (output, gradient):
        each.axhline(0, color=MUTED, lw=0.6, zorder=0)
        each.margins(x=0.02, y=0.12)
    low, high = min(slopes.min(), 0), max(slopes.max(), 1)
    gradient.set_ylim(low - 0.2 * (high - low), high + 0.2 * (high - low))
    gradient.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def draw(folder: pathlib.Path) -> None:
    """Draws a file for each recipe, with a row for each of its panels."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE), keras_cg.use_backend("numpy"), np.errstate(all="ignore"):
        for name in recipes.__all__:
            panels = [panel for panel in PANELS if re.match(r"\w+", panel[0])[0] == name]  # type: ignore[index]
            size = (7.6, 1.75 * len(panels))
            figure, axes = plt.subplots(len(panels), 2, figsize=size, layout="constrained", squeeze=False)
            for row, panel in zip(axes, panels, strict=True):
                draw_panel(row[0], row[1], panel)
            figure.savefig(folder / f"{name}.svg", transparent=True, metadata={"Date": None})
            plt.close(figure)


if __name__ == "__main__":
    draw(pathlib.Path(sys.argv[1]) if sys.argv[1:] else pathlib.Path(__file__).parent / "assets" / "recipes")
