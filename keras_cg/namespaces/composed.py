"""Functions that several backends compose those of the table from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from numpy.lib.array_utils import normalize_axis_tuple

from keras_cg.namespaces import messages


def axis_of(axis: int | None, rank: int) -> int:
    """Finds the axis of a cumulative sum, which is optional for a tensor with a single axis."""
    if axis is None and rank != 1:
        raise messages.no_axis(rank)
    return 0 if axis is None else axis


def axes_of(axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Finds the axes that `axis` means, as numbers from zero: all of them, one, or several.

    Some functions of TensorFlow (2.21) and autograd (1.9) are wrong along negative axes.
    """
    axes = range(rank) if axis is None else axis
    return tuple(map(int, normalize_axis_tuple(axes, rank)))


def product(rows: Any, count: int, concat: Callable[[list[Any]], Any]) -> Any:
    """Multiplies all rows in pairs, then the products in pairs, until one is left.

    Its gradient is right where a row is zero. That of autograd (1.9) divides by each row, and so does the second
    derivative of TensorFlow (2.21).
    """
    while count > 1:
        half = count // 2
        pairs = rows[:half] * rows[half : 2 * half]
        rows = concat([pairs, rows[2 * half :]]) if count % 2 else pairs
        count -= half
    return rows[0]


def hypot(xp: Any, stop_gradient: Callable[[Any], Any], x1: Any, x2: Any) -> Any:
    """Computes the length in units of the longer side, so that no square overflows or vanishes.

    The unit is a constant, on which the length does not depend. Where both sides are equal, the second derivative of
    JAX (0.10) is wrong, because it follows the longer one. Where both are 0, those of autograd (1.9) and torch (2.13)
    are NaN; here they are 0.
    """
    longer = stop_gradient(xp.maximum(xp.abs(x1), xp.abs(x2)))
    one = xp.ones_like(longer)
    unit = xp.where((longer == 0) | (longer == math.inf), one, longer)
    a, b = x1 / unit, x2 / unit
    squares = a * a + b * b
    length = xp.where(squares == 0, xp.zeros_like(longer), unit * xp.sqrt(xp.where(squares == 0, one, squares)))
    return xp.where((xp.abs(x1) == math.inf) | (xp.abs(x2) == math.inf), math.inf * one, length)


def logaddexp(xp: Any, x1: Any, x2: Any) -> Any:
    """Computes the logarithm of two exponentials' sum, relative to the larger one.

    The derivatives of TensorFlow (2.21) are wrong where both are equal, because they come from the larger one and from
    the distance. The second derivative of torch (2.13) is NaN where they are far from each other.
    """
    is_first = x1 >= x2
    most, least = xp.where(is_first, x1, x2), xp.where(is_first, x2, x1)
    return most + xp.log1p(xp.exp(xp.where(xp.isinf(most), xp.zeros_like(most), least - most)))


def power(ops: Any, stop_gradient: Callable[[Any], Any], function: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """Computes a power by a framework's function whose derivatives by `x` are right where `y` is a constant.

    autograd (1.9) and torch (2.13) replace an exponent of 0, for the sake of 0^0, and lose the derivative by it.
    """
    exponent = stop_gradient(y)
    has_logarithm = ops.isfinite(exponent) & (ops.abs(x) > 0 if ops.isdtype(x.dtype, "complex floating") else x > 0)
    base = ops.where(has_logarithm, x, 1)
    smooth = ops.exp((y - exponent) * ops.log(base)) * function(base, ops.where(has_logarithm, exponent, 1))
    # No derivative by the exponent of 0^y, which is a constant, and none at all of a 0 to the power of 0.
    other = function(ops.where(has_logarithm | (exponent == 0), 1, x), ops.where(x == 0, exponent, y))
    return ops.where(has_logarithm, smooth, other)


def slopes(xp: Any, power: Callable[[Any, Any], Any], logarithm: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Returns the derivatives of `power(x, y)`, where the one by `x` is 0 if both are 0; that of frameworks is NaN."""
    base = xp.where((x == 0) & (y == 0), xp.ones_like(x), x)
    return y * power(base, y - 1), power(x, y) * logarithm
