"""Gradients, number by number, beside what they should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy

from keras_cg.testing.arrays import Array, vector
from keras_cg.testing.differences import Slope

ALONG = "along a random direction"


class Column(NamedTuple):
    """The derivative of something along one direction: that of an element, or, without a place, a random one."""

    place: tuple[int, ...] | None
    direction: Array
    slope: Slope


class Row(NamedTuple):
    """One number of a gradient, or its product with a direction: what came and what should, give or take an error."""

    where: str
    direction: Array
    came: complex
    expected: complex
    error: float

    @property
    def difference(self) -> float:
        """How far off it is; infinitely far if that is no number."""
        return float(numpy.nan_to_num(abs(self.came - self.expected), nan=numpy.inf))


def rows(columns: Sequence[Column], came: Array, upstream: Sequence[Array]) -> list[Row]:
    """The gradient that an upstream gives, beside the one by differences."""
    weights, found = vector(upstream), []
    for place, direction, (values, errors) in columns:
        expected, error = float(weights @ values), float(numpy.abs(weights) @ errors)
        if place is None:
            found.append(Row(ALONG, direction, float(vector([came]) @ vector([direction])), expected, error))
        else:
            # The part along the real axis, or that along the imaginary one.
            part = came[place].imag if numpy.imag(direction[place]) else came[place].real
            found.append(Row(index(place), direction, float(part), expected, error))
    return found


def elements(came: Array, expected: Array) -> list[Row]:
    """A gradient beside another one."""
    nowhere = numpy.zeros(0)
    return [
        Row(index(place), nowhere, came[place].item(), expected[place].item(), 0.0)
        for place in numpy.ndindex(came.shape)
    ]


def gradient(columns: Sequence[Column], point: Array, upstream: Sequence[Array]) -> Array:
    """The gradient by differences, in the shape of `point`; NaN where nobody looked."""
    weights, found = vector(upstream), numpy.full(point.shape, numpy.nan, point.dtype)
    for place, direction, (values, _) in columns:
        if place is not None:
            unit = direction[place]
            found[place] = numpy.nan_to_num(found[place]) * (unit != 1) + unit * float(weights @ values)
    return found


def index(place: tuple[int, ...]) -> str:
    """A place as it is written: `[1, 0]`, or nothing for a tensor without dimensions."""
    return str(list(place)) if place else ""


def text(number: complex) -> str:
    """A number for a message."""
    return f"{number:.6g}"
