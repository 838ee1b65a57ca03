"""Derivatives by differences: the truth that a rule is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy
from scipy.differentiate import derivative

from keras_cg.testing.arrays import Array

# The first is wide enough for float32, and SciPy halves it as long as that helps. The others are for a function that is
# not defined so far away from the point.
STEPS = (2.0**-3, 2.0**-8, 2.0**-13)

Path = Callable[[float], Array]


class Slope(NamedTuple):
    """The derivative of a row of numbers with respect to one, and how far it may be off; NaN where there is none."""

    values: Array
    errors: Array


def slope(path: Path, eps: float, side: int = 0) -> Slope:
    """The derivative of `path(t)`, a row of real numbers, at t = 0.

    By `scipy.differentiate.derivative`: finite differences of order 8, with steps that shrink as long as they get
    better by it.

    Args:
        path: The function.
        eps: The machine epsilon of the dtype that it computes in.
        side: -1 or 1 to look at what is left or right of t = 0 alone.
    """
    here = path(0.0)
    size = numpy.abs(here).max(initial=0)
    values, errors = numpy.full(here.shape, numpy.nan), numpy.full(here.shape, numpy.inf)
    for step in STEPS:
        missing = ~numpy.isfinite(values)
        if not missing.any():
            break
        rounding = eps * size / step
        with numpy.errstate(all="ignore"):
            found = derivative(
                lambda steps: numpy.stack([path(float(t)) for t in steps.ravel()], -1).reshape(
                    *here.shape, *steps.shape
                ),
                0.0,
                initial_step=step,
                step_direction=side,
                preserve_shape=True,
                tolerances={"atol": 64 * rounding, "rtol": eps**0.75},
            )
        values = numpy.where(missing, found.df, values)
        errors = numpy.where(missing, numpy.maximum(found.error, 2 * rounding), errors)
    return Slope(values, errors)


def kink(path: Path, weights: Array, eps: float) -> str | None:
    """Why `weights @ path(t)` has no derivative at t = 0, if it has none."""
    near = eps**0.5
    with numpy.errstate(all="ignore"):
        left, here, right = (float(weights @ path(t)) for t in (-near, 0.0, near))
    if not numpy.isfinite([left, right]).all():
        return "it is not finite on both sides"
    size = abs(here) + numpy.abs(weights).max(initial=0)
    if abs(right - left) > 1e-2 * size:
        return f"it jumps, from {left:.3g} to {right:.3g}"
    sides = [slope(path, eps, side) for side in (-1, 1)]
    left, right = (float(weights @ each.values) for each in sides)
    error = sum(float(numpy.abs(weights) @ each.errors) for each in sides)
    if not numpy.isfinite([left, right]).all():
        return "it has no slope on one side"
    if abs(left - right) > 1e-2 * max(abs(left), abs(right)) + 8 * error:
        return f"it has a kink, with the slope {left:.3g} on the left and {right:.3g} on the right"
    return None
