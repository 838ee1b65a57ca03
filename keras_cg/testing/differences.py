"""Derivatives by finite differences: the reference for a rule."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy
from scipy.differentiate import derivative

from keras_cg.testing.arrays import Array

# The first step is wide enough for float32, and SciPy halves it up to ten times. The others serve a function that is
# undefined or has a kink at the distance of the first step.
STEPS = (2.0**-3, 2.0**-11, 2.0**-19)

# Smaller steps are tried until the relative error of a derivative is below this.
ROUGH = 1e-8

# A derivative that has not converged after so many halvings may be limited by rounding.
SOON = 4

# Above this machine epsilon a dtype has few digits; there the first step is WIDE.
COARSE, WIDE = 1e-5, 0.5

# The machine epsilon of the dtypes in which functions compute inside, and the least noise that rounding to them makes:
# more than rounding to the next finer dtype makes, even after some steps of a computation.
GRAINS = {2.0**-7: 2.0**-7 / 7, 2.0**-10: 2.0**-16, 2.0**-23: 2.0**-29}

# The number of neighbouring points that the search for a grain evaluates.
PLACES = 32

# The smallest interval, relative to the arguments, in which the search for a jump ends.
INTERVAL = 2.0**-44

# The variance of a sixth difference of independent errors, in units of theirs: the sum of squares of (6 over k).
SIXTH = 924

# The weights of finite differences of order 8: of the pairs next to the centre, and of the centre.
FIRST = numpy.array([4 / 5, -1 / 5, 4 / 105, -1 / 280])
SECOND, SECOND_HERE = numpy.array([8 / 5, -1 / 5, 8 / 315, -1 / 560]), -205 / 72

Path = Callable[[float], Array]


class Slope(NamedTuple):
    """The derivative of a vector with respect to a number, with error bounds; NaN where there is no derivative.

    `bends` estimates from nearby points how much the slopes on the two sides differ: a large one suggests a kink.
    """

    values: Array
    errors: Array
    bends: Array


def slope(path: Path, eps: float, scale: float, side: int = 0) -> Slope:
    """Returns the derivative of `path(t)`, a real vector, at t = 0.

    Calls `scipy.differentiate.derivative`: finite differences of order 8, with steps that shrink while the error
    estimate improves.

    Args:
        path: The function.
        eps: The machine epsilon of the dtype that it computes in.
        scale: A distance from t = 0 that is safely inside the neighbourhood of the point.
        side: -1 or 1 to use only points with t < 0 or t > 0.
    """
    near = _Near(functools.cache(path), eps, scale, side)
    values, errors = numpy.full(near.here.shape, numpy.nan), numpy.full(near.here.shape, numpy.inf)
    for step in near.steps:
        if not numpy.any(errors > ROUGH * numpy.abs(numpy.nan_to_num(values)) + 256 * eps / STEPS[0]):
            break
        if near.is_lost(step, errors):
            continue
        found, error = near.derivative(step)
        better = numpy.isfinite(found) & (error < errors)
        values, errors = numpy.where(better, found, values), numpy.where(better, error, errors)
    return Slope(values * near.units, errors * near.units, near.bends())


class _Near:
    """A function near the point: its values, in units of the size of each number, and how much they are rounded.

    Each number is in its own units, because the rounding of a large number would hide a small one.
    """

    def __init__(self, path: Path, eps: float, scale: float, side: int):
        self.path, self.eps, self.scale, self.side = path, eps, scale, side
        self.here, self.nears = path(0.0), [min(eps**power, scale / 16) for power in (1 / 3, 1 / 2)]
        self.ends, closer = ((path(near if side >= 0 else -near), path(0.0 if side else -near)) for near in self.nears)
        # With few digits, wide steps are more exact, and a low order magnifies rounding less.
        steps, self.order, self.maxiter = ((min(WIDE, scale), *STEPS), 4, 3) if eps > COARSE else (STEPS, 8, 10)
        self.steps = (*steps, scale / 8)
        with numpy.errstate(all="ignore"):
            sizes = [numpy.nan_to_num(numpy.abs(row)) for row in (self.here, *self.ends, path(STEPS[0]))]
        units = numpy.maximum.reduce(sizes)
        self.units = numpy.where(units > 0, units, 1.0)
        # Wide steps may agree with each other and still be wrong, on a staircase or between the waves of a sine.
        self.secant = (closer[0] - closer[1]) / self.units / (self.nears[1] * (side or 2))
        # The rounding of each number, once it was measured: with few digits at once.
        self.noise: Array | None = None
        if eps > COARSE:
            self.noise = numpy.maximum(eps / 16, self._measured(min(eps / 2, scale / 32)))

    def _measured(self, spacing: float) -> Array:
        found: Array = _rounding(self.path, spacing * (self.side or 1)) / self.units
        return found

    def is_lost(self, step: float, errors: Array) -> bool:
        """Whether rounding dominates a step, so that it cannot have smaller errors."""
        return self.noise is not None and bool(numpy.all((2 * self.noise / step >= errors) & (self.secant != 0)))

    def derivative(self, step: float) -> tuple[Array, Array]:
        """Returns the derivative, from this step and smaller ones, and its error bound."""
        with numpy.errstate(all="ignore"):
            found = derivative(
                lambda steps: numpy.stack([self.path(float(t)) / self.units for t in steps.ravel()], -1).reshape(
                    *self.here.shape, *steps.shape
                ),
                0.0,
                initial_step=step,
                order=self.order,
                maxiter=self.maxiter,
                step_direction=self.side,
                preserve_shape=True,
                tolerances={"atol": 64 * self.eps / step, "rtol": max(self.eps**0.75, ROUGH / 10)},
            )
        off = numpy.abs(found.df - self.secant)
        if self.noise is None and numpy.any(self._is_off(off, found.df, self.eps) | (found.nit > SOON)):
            spacings = [min(self.eps**power, self.scale * self.eps ** (1 / 3)) for power in (0.6, 0.45)]
            self.noise = numpy.maximum.reduce([*map(self._measured, spacings), 0 * self.here + self.eps])
        rounding = self.eps if self.noise is None else self.noise
        # Two steps may agree by chance in the few digits that rounding leaves.
        error = numpy.maximum(found.error, 2 * rounding / (step * 0.5**found.nit))
        error = numpy.where(self._is_off(off, found.df, rounding), off, error)
        # The derivative of a constant is exact.
        return found.df, numpy.where((found.df == 0) & (self.secant == 0), 0.0, error)

    def _is_off(self, off: Array, slope: Array, rounding: Array | float) -> Array:
        """Whether a slope differs from that of the secant by more than rounding."""
        found: Array = off > 1e-2 * numpy.abs(slope) + 8 * rounding / self.nears[1]
        return found

    def bends(self) -> Array:
        """Estimates how much the slopes on the two sides differ; 0 for one side alone."""
        if self.side:
            return numpy.zeros_like(self.here)
        found: Array = numpy.abs(self.ends[0] - 2 * self.here + self.ends[1]) / self.nears[0]
        return found


def _rounding(path: Path, step: float) -> Array:
    """Estimates the rounding error of each number of `path` from the sixth differences of neighbouring values.

    See J. Moré and S. Wild, "Estimating computational noise", SIAM J. Sci. Comput. 33 (2011), 1292-1314.
    """
    sixth = numpy.diff([path(count * step) for count in range(1, 11)], 6, axis=0)
    found: Array = numpy.sqrt(numpy.nan_to_num(numpy.mean(sixth**2, axis=0)) / SIXTH)
    return found


def grain(path: Path, eps: float) -> float | None:
    """Finds the precision in which `path` computes inside, if it is coarser than `eps`.

    Numbers that are rounded to a coarser dtype jump from one value of that dtype to the next. Bisection tells a jump
    from a slope: a jump stays in an interval of any size.

    Args:
        path: A function of a relative change: at t, the arguments are multiplied by 1 + t.
        eps: The machine epsilon of the dtype that it should compute in.

    Returns:
        The machine epsilon of bfloat16, float16 or float32, or None.
    """
    for coarse, least in GRAINS.items():
        if coarse <= eps:
            break
        step = coarse / 8
        times = [count * step for count in range(PLACES)]
        rows = numpy.stack([path(t) for t in times])
        units = numpy.abs(rows).max(axis=0)
        sixth = numpy.abs(numpy.nan_to_num(numpy.diff(rows, 6, axis=0))) / numpy.where(units > 0, units, 1) / SIXTH**0.5
        # Rounding makes noise at all points; a kink or jump of the function itself only at some: at 7 of 26 places.
        noise = numpy.quantile(sixth, 0.7, axis=0)
        number = int(numpy.argmax(noise)) if noise.size else 0
        if not noise.size or noise[number] < least:
            continue
        # The interval with the largest change beyond the median slope.
        firsts = numpy.diff(rows[:, number])
        index = int(numpy.argmax(numpy.abs(firsts - numpy.median(firsts))))
        if is_jump(path, number, times[index], times[index + 1], least * float(units[number])):
            return coarse
    return None


def is_jump(path: Path, number: int, left: float, right: float, least: float) -> bool:
    """Whether a number of `path` jumps by more than `least` between two points."""
    ends = [float(path(t)[number]) for t in (left, right)]
    while abs(ends[1] - ends[0]) > least:
        if right - left <= INTERVAL:
            return True
        middle = (left + right) / 2
        value = float(path(middle)[number])
        if abs(value - ends[0]) > abs(ends[1] - value):
            right, ends[1] = middle, value
        else:
            left, ends[0] = middle, value
    return False


def curvature(path: Callable[[float], float], slope: float, scale: float, eps: float) -> tuple[float, float]:
    """Returns the second derivative of the number `path(t)` at t = 0 and an error bound.

    Uses central differences of order 8, with steps that shrink while the error estimate improves. A step is too wide if
    the first derivative from it does not equal `slope`, which is known.
    """
    path = functools.cache(path)
    here = path(0.0)
    best, error, last, largest = numpy.nan, numpy.inf, numpy.nan, abs(here)
    for halvings in range(10):
        step = min(WIDE, scale) / 2 ** (halvings + 2)
        with numpy.errstate(all="ignore"):
            right, left = (numpy.array([path(side * count * step) for count in range(1, 5)]) for side in (1, -1))
            largest = max(largest, *numpy.abs(right), *numpy.abs(left))
            first = float(FIRST @ (right - left)) / step
            second = (SECOND_HERE * here + float(SECOND @ (right + left))) / step**2
            rounded = max(abs(second - last), 16 * eps * largest / step**2)
        last = second if abs(first - slope) <= 1e-4 * abs(slope) + 16 * eps * largest / step else numpy.nan
        if rounded < error:
            best, error = second, rounded
        elif error < numpy.inf:
            break
        if error <= ROUGH * abs(best):
            break
    return best, error


class Break(NamedTuple):
    """The reason for a missing derivative; with the one-sided slope and its error if one side is finite."""

    reason: str
    slope: float = numpy.nan
    error: float = numpy.inf

    @property
    def is_edge(self) -> bool:
        """Whether the derivative exists on one side."""
        return self.error <= 1e-3 * abs(self.slope) + 1e-9


def kink(path: Path, weights: Array, eps: float, scale: float) -> Break | None:
    """Returns the reason why `weights @ path(t)` has no derivative at t = 0; None if it has one."""
    near = min(eps**0.5, scale / 16)
    here = float(weights @ path(0.0))
    with numpy.errstate(all="ignore"):
        # A jump has the same size at any distance, a slope does not.
        left, right, closer_left, closer_right = (
            float(weights @ path(t)) for t in (-near, near, -near / 64, near / 64)
        )
    if not numpy.isfinite([left, right]).all():
        return _edge(path, weights, eps, scale, side=-1 if numpy.isfinite(left) else 1)
    size = abs(here) + numpy.abs(weights).max(initial=0)
    jump, closer = abs(right - left), abs(closer_right - closer_left)
    if min(jump, 2 * closer) > 1e-2 * size and 4 * closer > jump:
        return Break(f"it jumps, from {left:.3g} to {right:.3g}")
    sides = [slope(path, eps, scale, side) for side in (-1, 1)]
    left, right = (float(weights @ each.values) for each in sides)
    error = sum(float(numpy.abs(weights) @ each.errors) for each in sides)
    if not numpy.isfinite([left, right]).all():
        return Break("it has no slope on one side")
    if abs(left - right) > 1e-2 * max(abs(left), abs(right)) + 8 * error:
        return Break(f"it has a kink, with the slope {left:.3g} on the left and {right:.3g} on the right")
    return None


def _edge(path: Path, weights: Array, eps: float, scale: float, side: int) -> Break:
    """Returns the slope at the edge of a domain, on the one side where the function may be finite."""
    found = slope(path, eps, scale, side)
    error = float(numpy.abs(weights) @ found.errors)
    return Break("it is not finite on both sides", float(weights @ found.values), error)
