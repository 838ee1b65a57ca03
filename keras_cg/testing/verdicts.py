"""Decides about a check from numbers beside their expected values."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy

from keras_cg.testing.arrays import Array
from keras_cg.testing.comparison import ALONG, Row, text
from keras_cg.testing.differences import Break
from keras_cg.testing.inspection import DOUBLE, INSIDE_ENOUGH, ORDERS, TOLERANCES, Inspection
from keras_cg.testing.report import Finding

KINK = "a kink at the test point: choose another one"
EDGE = "wrong at the edge of the domain: the function is finite on one side only, and its slope there differs"
NO_CONVERGENCE = "the finite differences do not converge: the function changes too fast here, or rounds too much"
OTHER_IN_DOUBLE = (
    "the function rounds too much here: it has other values in double precision, so differences prove nothing"
)


class _Limits:
    """Tells numbers that differ, or that are too uncertain, in one comparison."""

    def __init__(self, at: Inspection, rows: list[Row], tolerance: float):
        self.tolerance, self.eps = tolerance, at.eps
        self.largest = max(map(_largest, (*at.output, *at.upstream, *at.gradient)))
        sizes = [max(abs(each.expected), each.size) for each in rows if not numpy.isnan(each.expected)]
        size = max(sizes, default=0.0)
        self.noise = min(256 * at.eps, tolerance) * max(size, *map(_largest, at.upstream))
        self.size = size if size > self.noise else 0.0
        # A function that computes inside in half precision never passes, so only large faults count.
        self.roughest = max((1.0 if at.grain > INSIDE_ENOUGH else 0.05) * self.size, 1e-5 * self.largest)
        # In double precision each element is compared by itself; elsewhere the largest element sets the rounding error.
        self.is_single = at.eps == DOUBLE and tolerance == TOLERANCES[DOUBLE]

    def is_wrong(self, row: Row) -> bool:
        measure = max(abs(row.expected), row.size) if self.is_single and row.where != ALONG else self.size
        # `not <=`, because NaN must count as wrong.
        return not row.difference <= self.tolerance * measure + 4 * row.error + self.noise

    def is_rough(self, row: Row) -> bool:
        return 4 * row.error > self.roughest

    def is_doubtful(self, row: Row) -> bool:
        bend = 1e-2 * max(self.size, abs(row.came)) + 1e-4 * self.largest * math.sqrt(self.eps)
        return self.is_wrong(row) or self.is_rough(row) or row.bend > bend


def compare(
    at: Inspection,
    check: str,
    number: int | None,
    rows: list[Row],
    find_break: Callable[[Row], Break | None] | None = None,
    tolerance: float | None = None,
) -> Finding:
    """Compares the numbers in `rows`.

    `find_break` examines a number that differs, or is uncertain. A missing derivative makes the finding undecided,
    or compares with the slope on one side. Any other difference is a failure.
    """
    tolerance = tolerance or TOLERANCES[at.eps]
    name = None if number is None else at.arguments.names[number]
    if not rows:
        return at.finding(check, "undecided", argument=name, reason="it has no elements to compare")
    found = functools.partial(at.finding, check, argument=name, tolerance=tolerance)
    limits = _Limits(at, rows, tolerance)
    examined = list(_examined(at, limits, rows, find_break))
    # At the edge of a domain the expected value is the derivative on one side.
    edges = [(row, broken) for row, broken in examined if broken is not None and broken.is_edge]
    beside = [row._replace(expected=broken.slope, error=broken.error) for row, broken in edges]
    inside = [(row, broken) for row, broken in examined if broken is None or not broken.is_edge]
    wrong = [row for row, broken in inside if broken is None and limits.is_wrong(row)]
    wrong_beside = [row for row in beside if row.difference > 1e-2 * max(abs(row.expected), limits.size)]
    if (inside or wrong_beside) and at.is_other_in_double:
        return found("undecided", reason=OTHER_IN_DOUBLE)
    if wrong or wrong_beside:
        diagnosis = None if wrong else EDGE
        return found("failed", **_shown(limits, rows, wrong or wrong_beside), diagnosis=diagnosis)
    kinks = [(row, broken) for row, broken in inside if broken is not None]
    if kinks and not at.is_noisy:
        row, broken = kinks[0]
        what = "the gradient" if check in ORDERS[1:] else "the function"
        reason = f"{what} has no derivative there: {broken.reason}. The rule returns {text(row.came)}"
        return found("undecided", where=row.where, reason=reason, diagnosis=KINK)
    if kinks or any(limits.is_rough(row) for row, _ in inside):
        return found("undecided", reason=f"{at.precision_inside}{NO_CONVERGENCE}")
    left = [each for each in rows if not any(each is row for row, _ in edges)] + beside
    return found("passed", error=max(each.difference for each in left) / (limits.size or limits.largest or 1.0))


def _shown(limits: _Limits, rows: list[Row], wrong: list[Row]) -> dict[str, Any]:
    """Returns what a finding shows of wrong numbers: an element if there is one, because it names a place."""
    worst = min(wrong, key=lambda each: (each.where == ALONG, -each.difference))
    alike = [abs(each.expected) for each in rows if (each.where == ALONG) == (worst.where == ALONG)]
    scale = max((number for number in alike if number > limits.noise), default=0.0) or abs(worst.came)
    numbers = {"came": text(worst.came), "expected": text(worst.expected)}
    return {"where": worst.where, **numbers, "error": worst.difference / scale}


def _examined(
    at: Inspection, limits: _Limits, rows: list[Row], find_break: Callable[[Row], Break | None] | None
) -> Iterator[tuple[Row, Break | None]]:
    """Yields the doubtful numbers up to the first fault, each with the reason why it has no derivative, or None."""
    # Elements come before directions, because an element names a place. `find_break` is slow; one fault is enough.
    order = lambda each: (not limits.is_wrong(each), each.where == ALONG, -each.difference)  # noqa: E731
    for each in sorted(filter(limits.is_doubtful, rows), key=order):
        is_wrong = limits.is_wrong(each)
        # With so much rounding an uncertain number is undecided anyway.
        is_clear = at.is_noisy and limits.is_rough(each) and not is_wrong
        broken = None if find_break is None or is_clear else find_break(each)
        yield each, broken
        if broken is None and is_wrong:
            return


def _largest(array: Array) -> float:
    return float(numpy.abs(array).max(initial=0))
