"""Derivatives by differences: the truth that a rule is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy
from scipy.differentiate import derivative

from keras_cg.testing.arrays import Array

# The first is wide enough for float32, and SciPy halves it up to ten times. The others are for a function that is not
# defined, or has a kink, so far away from the point.
STEPS = (2.0**-3, 2.0**-11, 2.0**-19)

# How far off a derivative may be, relative to itself, before smaller steps are tried.
ROUGH = 1e-8

Path = Callable[[float], Array]


class Slope(NamedTuple):
    """The derivative of a row of numbers with respect to one, and how far it may be off; NaN where there is none.

    `bends` is by how much the slopes on the two sides differ, as seen from nearby: there may be a kink.
    """

    values: Array
    errors: Array
    bends: Array


def slope(path: Path, eps: float, scale: float, side: int = 0) -> Slope:
    """The derivative of `path(t)`, a row of real numbers, at t = 0.

    By `scipy.differentiate.derivative`: finite differences of order 8, with steps that shrink as long as they get
    better by it.

    Args:
        path: The function.
        eps: The machine epsilon of the dtype that it computes in.
        scale: How far t may go, at the least, without leaving the neighbourhood of the point.
        side: -1 or 1 to look at what is left or right of t = 0 alone.
    """
    here, near = path(0.0), min(eps ** (1 / 3), scale / 16)
    ends = [path(t) for t in (near if side >= 0 else -near, 0.0 if side else -near)]
    # Each number in its own units, so that a small one is not judged by the rounding of a large one.
    with numpy.errstate(all="ignore"):
        units = numpy.maximum.reduce([numpy.nan_to_num(numpy.abs(row)) for row in (here, *ends, path(STEPS[0]))])
    units = numpy.where(units > 0, units, 1.0)
    # Wide steps may agree with each other and be wrong, on a staircase or between the waves of a sine.
    secant = (ends[0] - ends[1]) / units / (near * (side or 2))
    values, errors = numpy.full(here.shape, numpy.nan), numpy.full(here.shape, numpy.inf)
    for step in (*STEPS, scale / 8):
        if not numpy.any(errors > ROUGH * numpy.abs(numpy.nan_to_num(values)) + 256 * eps / STEPS[0]):
            break
        with numpy.errstate(all="ignore"):
            found = derivative(
                lambda steps: numpy.stack([path(float(t)) / units for t in steps.ravel()], -1).reshape(
                    *here.shape, *steps.shape
                ),
                0.0,
                initial_step=step,
                step_direction=side,
                preserve_shape=True,
                tolerances={"atol": 64 * eps / step, "rtol": eps**0.75},
            )
        # Two steps may agree by chance, in the digits that rounding left.
        rounded = numpy.maximum(found.error, 2 * eps / (step * 0.5**found.nit))
        off = numpy.abs(found.df - secant)
        rounded = numpy.where(off > 1e-2 * numpy.abs(found.df) + 8 * eps / near, off, rounded)
        # What does not move at all is known exactly.
        rounded = numpy.where((found.df == 0) & (secant == 0), 0.0, rounded)
        better = numpy.isfinite(found.df) & (rounded < errors)
        values, errors = numpy.where(better, found.df, values), numpy.where(better, rounded, errors)
    values, errors = values * units, errors * units
    bends = numpy.zeros_like(here) if side else numpy.abs(ends[0] - 2 * here + ends[1]) / near
    return Slope(values, errors, bends)


def kink(path: Path, weights: Array, eps: float, scale: float) -> str | None:
    """Why `weights @ path(t)` has no derivative at t = 0, if it has none."""
    near = min(eps**0.5, scale / 16)
    here = float(weights @ path(0.0))
    with numpy.errstate(all="ignore"):
        # A jump is as large from nearby as from farther away.
        left, right, closer_left, closer_right = (
            float(weights @ path(t)) for t in (-near, near, -near / 64, near / 64)
        )
    if not numpy.isfinite([left, right]).all():
        return "it is not finite on both sides"
    size = abs(here) + numpy.abs(weights).max(initial=0)
    if min(abs(right - left), 2 * abs(closer_right - closer_left)) > 1e-2 * size:
        return f"it jumps, from {left:.3g} to {right:.3g}"
    sides = [slope(path, eps, scale, side) for side in (-1, 1)]
    left, right = (float(weights @ each.values) for each in sides)
    error = sum(float(numpy.abs(weights) @ each.errors) for each in sides)
    if not numpy.isfinite([left, right]).all():
        return "it has no slope on one side"
    if abs(left - right) > 1e-2 * max(abs(left), abs(right)) + 8 * error:
        return f"it has a kink, with the slope {left:.3g} on the left and {right:.3g} on the right"
    return None
