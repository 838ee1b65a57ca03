"""Lists of arrays as vectors of real numbers: a complex number counts as two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy

Array = numpy.ndarray[Any, numpy.dtype[Any]]


def wide(array: Any) -> Array:
    """Converts an array to float64 or complex128."""
    array = numpy.asarray(array)
    found: Array = array.astype(numpy.complex128 if array.dtype.kind == "c" else numpy.float64)
    return found


def vector(arrays: Sequence[Array]) -> Array:
    """Concatenates all numbers to one float64 vector, array by array."""
    rows: list[Array] = [wide(each).reshape(-1).view(numpy.float64) for each in arrays]
    found: Array = numpy.concatenate([numpy.zeros(0), *rows])
    return found


def random(generator: numpy.random.Generator, array: Array) -> Array:
    """Draws numbers of either sign from 0.2 to 1.5, in the shape and kind of `array`.

    Every float dtype represents them exactly.
    """
    found = (2 * generator.integers(13, 96, array.shape) + 1) / 128 * generator.choice([-1, 1], array.shape)
    if numpy.iscomplexobj(array):
        found = found + 1j * random(generator, found)
    return numpy.asarray(found)


def beside(generator: numpy.random.Generator, points: Sequence[Array]) -> Iterator[list[Array]]:
    """Yields points close to `points`, the farthest first.

    Each number changes by a small part of itself, so zero stays zero. Arrays of only zeros change by fixed steps.
    """
    directions = [random(generator, each) for each in points]
    for part in (2.0**-4, 2.0**-10):
        yield [each + part * direction * _power(each) for each, direction in zip(points, directions, strict=True)]


def _power(array: Array) -> Array:
    """Returns the power of 2 below each number, which can be added exactly; 0 for 0, or 1 if all numbers are 0."""
    size = numpy.abs(array)
    found: Array = numpy.exp2(numpy.floor(numpy.log2(numpy.where(size > 0, size, 1)))) * ((size > 0) | ~size.any())
    return found
