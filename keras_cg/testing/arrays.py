"""Lists of arrays as vectors of real numbers: a complex number is two of them."""

from __future__ import annotations

from collections.abc import Sequence
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
