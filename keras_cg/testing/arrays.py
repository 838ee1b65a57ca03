"""Lists of arrays as vectors of real numbers: a complex number is two of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy

Array = numpy.ndarray[Any, numpy.dtype[Any]]


def wide(array: Any) -> Array:
    """As float64 or complex128."""
    array = numpy.asarray(array)
    found: Array = array.astype(numpy.complex128 if array.dtype.kind == "c" else numpy.float64)
    return found


def vector(arrays: Sequence[Array]) -> Array:
    """All numbers in one row of float64: those of the first array, then those of the next."""
    rows: list[Array] = [wide(each).reshape(-1).view(numpy.float64) for each in arrays]
    found: Array = numpy.concatenate([numpy.zeros(0), *rows])
    return found


def random(generator: numpy.random.Generator, array: Array) -> Array:
    """Values of either sign from 0.2 to 1.5, in the shape and kind of `array`; every float dtype holds them exactly."""
    found = (2 * generator.integers(13, 96, array.shape) + 1) / 128 * generator.choice([-1, 1], array.shape)
    if numpy.iscomplexobj(array):
        found = found + 1j * random(generator, found)
    return numpy.asarray(found)


def beside(generator: numpy.random.Generator, points: Sequence[Array]) -> Iterator[list[Array]]:
    """Points close by, the farthest first: each number is moved by a small part of itself, and zero stays zero.

    Where all numbers of an array are zero, they are moved all the same.
    """
    directions = [random(generator, each) for each in points]
    for part in (2.0**-4, 2.0**-10):
        yield [each + part * direction * _power(each) for each, direction in zip(points, directions, strict=True)]


def _power(array: Array) -> Array:
    """The power of 2 below the size of each number, so that sums with it are exact; 0 for 0, or 1 where all are."""
    size = numpy.abs(array)
    found: Array = numpy.exp2(numpy.floor(numpy.log2(numpy.where(size > 0, size, 1)))) * ((size > 0) | ~size.any())
    return found
