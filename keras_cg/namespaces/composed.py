"""Functions that several backends compose those of the table from."""

from __future__ import annotations

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
