"""Gradients, number by number, beside what they should be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy

from keras_cg.testing.arrays import Array, vector
from keras_cg.testing.differences import Slope

# How many numbers of a large array are compared as Python's.
MOST = 64

ALONG = "along a random direction"


class Column(NamedTuple):
    """The derivative of something along one direction: that of an element, or, without a place, a random one."""

    place: tuple[int, ...] | None
    direction: Array
    slope: Slope


class Row(NamedTuple):
    """One number of a gradient, or its product with a direction: what came and what should, give or take an error.

    `bend` is by how much the slopes on the two sides seem to differ, and `size` how large the terms are of which the
    number is the sum.
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
        """How far off it is; infinitely far if that is no number."""
        found = abs(self.came - self.expected)
        return math.inf if math.isnan(found) else found


def rows(columns: Sequence[Column], came: Array, weights: Array) -> list[Row]:
    """The gradient of `weights @ path`, beside the one by differences."""
    found = []
    for place, direction, (values, errors, bends) in columns:
        if place is None:
            terms = vector([came]) * vector([direction])
            where, part, size = ALONG, terms.sum(), numpy.abs(terms).sum()
        else:
            # The part along the real axis, or that along the imaginary one.
            where, part = index(place), came[place].imag if numpy.imag(direction[place]) else came[place].real
            size = 0.0
        error, bend = (float(numpy.abs(weights) @ each) for each in (errors, bends))
        found.append(Row(where, direction, float(part), float(weights @ values), error, bend, float(size)))
    return found


def elements(came: Array, expected: Array, sizes: Array | None = None) -> list[Row]:
    """A gradient beside another one: of a large one the numbers that are furthest off, and the largest one expected.

    `sizes` is how large the terms are of which each number is the sum.
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
    """The gradient of `weights @ path` by differences, in the shape of `point`; NaN where nobody looked."""
    found = numpy.full(point.shape, numpy.nan, point.dtype)
    for place, direction, (values, _, _) in columns:
        if place is not None:
            unit = direction[place]
            found[place] = numpy.nan_to_num(found[place]) * (unit != 1) + unit * float(weights @ values)
    return found


def index(place: tuple[int, ...]) -> str:
    """A place as it is written: `[1, 0]`, or nothing for a tensor without dimensions."""
    return str(list(place)) if place else ""


def text(number: complex) -> str:
    """A number for a message."""
    return f"{number + 0:.6g}"  # rather 0 than -0
