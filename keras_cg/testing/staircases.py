"""Functions that change in steps only: rounding, floor, sign, comparisons, argmax, casts to integers.

Finite differences prove nothing about them. Numbers that are rounded to a coarser dtype make steps, too, but of any
size: closer to zero their steps are smaller.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy

from keras_cg.testing.arrays import Array

# The output as a vector, as a function of one argument.
OfOne = Callable[[Array], Array]

# The number of elements of the argument that are moved, each alone: a sum over many makes too many steps.
ELEMENTS = 4

# The multiples of an element to try. NEAR is also tried at the scales; of the others one flips the sign.
NEAR, FAR = numpy.linspace(7 / 8, 9 / 8, 17), numpy.linspace(-5, 5, 16)
SCALES = (1.0, 2.0**-6, 2.0**-12)

# The multiples of an element between which a function may jump: by less than half of it, and through zero.
CLOSE_BY, THROUGH_ZERO = numpy.linspace(0.5, 1.5, 33), numpy.linspace(-1, 1, 33)

# A designed staircase has at most so many steps close to zero, where rounding to a dtype still has one at each place.
FEW = 4

# A factor by which the steps of a dtype grow, and those of a quantiser do not.
LARGE = 512.0


def is_constant_beside(function: OfOne, point: Array, eps: float) -> bool:
    """Whether the output is the same at points very close to each other, most of the time."""
    generator = numpy.random.default_rng(0)
    same: list[bool] = []
    while max(same.count(True), same.count(False)) < 2:
        beside = point * (1 + generator.uniform(-(2.0**-6), 2.0**-6, point.shape))
        signs = numpy.asarray(1 - 2 * generator.integers(0, 2, point.shape))
        same.append(bool(_is_same(function(beside), function(_closest(beside, signs, eps)), eps).all()))
    return same.count(True) == 2


def in_steps(function: OfOne, point: Array, eps: float) -> tuple[Array, Array]:
    """Returns for each number of the output whether it changes in steps only, and whether it changes in another way."""
    here = function(point)
    moves, is_flat, is_fine = numpy.zeros(here.shape, bool), numpy.ones(here.shape, bool), numpy.zeros(here.shape, bool)
    for place in _places(point):
        for scale in SCALES:
            rows = [_moved(function, point, place, scale * each, eps) for each in NEAR]
            changes = sum(~_is_same(one[0], other[0], eps) for one, other in itertools.pairwise(rows))
            is_flat &= _are_flat(rows)
            moves |= changes > 0
            is_fine |= (changes > FEW) & (scale == SCALES[-1])
        rows = [_moved(function, point, place, each, eps) for each in FAR]
        is_flat &= _are_flat(rows)
        for value, _ in rows:
            moves |= ~_is_same(here, value, eps)
    is_staircase = is_flat & ~is_fine
    return moves & is_staircase, moves & ~is_staircase


def grow(function: OfOne, point: Array, eps: float) -> bool:
    """Whether many small steps become larger at larger arguments, as those of a dtype do."""
    for place in _places(point):

        def changes(start: float, width: float, place: tuple[int, ...] = place) -> int:
            moved = [(start + width * (each - 1)) * _size(point, place) for each in NEAR]
            values = [function(_replaced(point, place, each)) for each in moved]
            if not numpy.isfinite(values).all():
                return 0 if width == 1 else 1
            return sum(not _is_same(one, other, eps).all() for one, other in itertools.pairwise(values))

        here = changes(1, 1)
        # A quantiser that clips has no steps there.
        if here > FEW and changes(LARGE, 1) <= here / 2 and changes(LARGE, LARGE):
            return True
    return False


def jumps(function: OfOne, point: Array, eps: float, is_jump: Callable[..., bool], times: Array = CLOSE_BY) -> bool:
    """Whether the output jumps where one element of the argument is multiplied by a number between some others."""
    for place in _places(point):

        def path(t: float, place: tuple[int, ...] = place) -> Array:
            return function(_replaced(point, place, t * _size(point, place)))

        changes = numpy.diff([path(t) for t in times], axis=0)
        off = numpy.abs(changes - numpy.median(changes, axis=0))
        if not numpy.isfinite(off).all() or not off.size:
            continue
        index, number = numpy.unravel_index(int(numpy.argmax(off)), off.shape)
        least = max(1e-3 * float(numpy.abs(path(1.0)).max()), 64 * eps)
        if is_jump(path, int(number), times[index], times[index + 1], least):
            return True
    return False


def _places(point: Array) -> list[tuple[int, ...]]:
    """Returns the places of the largest element and of some others."""
    sizes = numpy.abs(point).ravel()
    others = numpy.random.default_rng(0).permutation(point.size)
    chosen = dict.fromkeys([*map(int, numpy.argsort(-sizes)[:1]), *map(int, others)])
    return [tuple(map(int, numpy.unravel_index(each, point.shape))) for each in [*chosen][:ELEMENTS]]


def _size(point: Array, place: tuple[int, ...]) -> complex:
    number = complex(point[place]) or float(numpy.abs(point).max()) or 1.0
    return number if numpy.iscomplexobj(point) else number.real


def _replaced(point: Array, place: tuple[int, ...], value: complex) -> Array:
    found = point.copy()
    found[place] = value
    return found


def _moved(function: OfOne, point: Array, place: tuple[int, ...], times: float, eps: float) -> tuple[Array, Array]:
    """Returns the output with one element replaced, and whether each number is the same very close by."""
    moved = _replaced(point, place, times * _size(point, place))
    direction = numpy.zeros(point.shape)
    direction[place] = 1
    value = function(moved)
    return value, _is_same(value, function(_closest(moved, direction, eps)), eps)


def _are_flat(rows: list[tuple[Array, Array]]) -> Array:
    """Whether numbers are the same very close by at all points but two, which may be beside a step."""
    found: Array = numpy.sum([~flat for _, flat in rows], axis=0) <= 2
    return found


def _closest(point: Array, signs: Array, eps: float) -> Array:
    """Returns a point that differs by the least change that shows in a smooth function."""
    least = eps**0.5 if eps < 1e-10 else 64 * eps
    found: Array = point * (1 + least * signs)
    return found


def _is_same(one: Array, other: Array, eps: float) -> Array:
    """Whether two outputs are equal up to the rounding of a sum or two; numbers that are not finite count as equal."""
    with numpy.errstate(all="ignore"):
        size = numpy.nan_to_num(numpy.maximum(numpy.abs(one), numpy.abs(other)), posinf=0).max(initial=0)
        is_near = numpy.abs(one - other) <= 8 * eps * size
    found: Array = is_near | ~numpy.isfinite(one) | ~numpy.isfinite(other)
    return found
