"""Compares gradients with the expected ones, number by number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy

from keras_cg.testing.arrays import Array, vector
from keras_cg.testing.differences import Slope

# The most numbers of a large array that become rows: the comparison in Python is slow.
MOST = 64

ALONG = "along a random direction"


class Column(NamedTuple):
    """The derivative along one direction: that of the element at `place`, or a random one if `place` is None."""

    place: tuple[int, ...] | None
    direction: Array
    slope: Slope


class Row(NamedTuple):
    """One number of a gradient, or the product of the gradient with a direction, and its expected value.

    `error` bounds the error of `expected`. `bend` estimates how much the slopes on the two sides differ. `size` is the
    size of the terms that are added up to the number.
    """

    where: str
    direction: Array
    came: complex
    expected: complex
    error: float = 0.0
    bend: float = 0.0
    size: float = 0.0

    @property
    def difference(self) -> float:
        """The distance from the expected value; infinity if it is NaN."""
        found = abs(self.came - self.expected)
        return math.inf if math.isnan(found) else found


def rows(columns: Sequence[Column], came: Array, weights: Array) -> list[Row]:
    """Compares the gradient of `weights @ path` with finite differences."""
    found = []
    for place, direction, (values, errors, bends) in columns:
        if place is None:
            terms = vector([came]) * vector([direction])
            where, part, size = ALONG, terms.sum(), numpy.abs(terms).sum()
        else:
            # The real or the imaginary part of the gradient, as the direction is real or imaginary.
            where, part = index(place), came[place].imag if numpy.imag(direction[place]) else came[place].real
            size = 0.0
        error, bend = (float(numpy.abs(weights) @ each) for each in (errors, bends))
        found.append(Row(where, direction, float(part), float(weights @ values), error, bend, float(size)))
    return found


def elements(came: Array, expected: Array, sizes: Array | None = None) -> list[Row]:
    """Compares a gradient with another one, element by element.

    A large array gives rows for the elements with the largest differences and for the largest expected element.
    `sizes` are the sizes of the terms that are added up to each element.
    """
    with numpy.errstate(invalid="ignore"):
        difference = numpy.nan_to_num(numpy.abs(came - expected), nan=numpy.inf).ravel()
    places = numpy.argsort(-difference, kind="stable")[:MOST]
    if difference.size > MOST:
        places = numpy.append(places, numpy.argmax(numpy.abs(expected)))
    nowhere = numpy.zeros(0)
    return [
        Row(
            index(place),
            nowhere,
            came[place].item(),
            expected[place].item(),
            size=0.0 if sizes is None else sizes[place].item(),
        )
        for place in (tuple(map(int, numpy.unravel_index(each, came.shape))) for each in places)
    ]


def gradient(columns: Sequence[Column], point: Array, weights: Array) -> Array:
    """Returns the gradient of `weights @ path` by finite differences; NaN where it was not computed."""
    found = numpy.full(point.shape, numpy.nan, point.dtype)
    for place, direction, (values, _, _) in columns:
        if place is not None:
            unit = direction[place]
            found[place] = numpy.nan_to_num(found[place]) * (unit != 1) + unit * float(weights @ values)
    return found


def index(place: tuple[int, ...]) -> str:
    """Formats an index: `[1, 0]`, or nothing for a tensor without dimensions."""
    return str(list(place)) if place else ""


def text(number: complex) -> str:
    """Formats a number for a message."""
    return f"{number + 0:.6g}"  # adding 0 turns -0 into 0
