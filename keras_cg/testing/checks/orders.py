"""Checks the derivatives of each order against finite differences."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import numpy

from keras_cg.testing import causes, comparison
from keras_cg.testing.arrays import Array, beside, random, vector
from keras_cg.testing.comparison import ALONG, Column, text
from keras_cg.testing.diagnosis import EARLIER, diagnose, diagnose_higher, is_same
from keras_cg.testing.differences import curvature
from keras_cg.testing.inspection import (
    ELEMENTS_OF_HIGHER_ORDERS,
    INSIDE_ENOUGH,
    ORDERS,
    ROUNDING,
    Inspection,
    weigh,
)
from keras_cg.testing.report import Finding
from keras_cg.testing.subject import Arrays, epsilon
from keras_cg.testing.verdicts import compare

# The tolerance of a second derivative against second differences of the function, which have fewer digits.
CURVED = 1e-4

# The error below which a wrong gradient may be the right one of another call, such as one in a lower precision.
NEARLY = 1e-3

ELSEWHERE = "right at the test point, wrong at a point close by"
MEANWHILE = "the gradient changes if the function is called at another point before the rule runs"


def first(at: Inspection) -> Iterator[Finding]:
    """Compares the gradient with finite differences at the point and close to it, then again at the point."""
    later: dict[int, Finding] | None = None
    for number, came in enumerate(at.gradient):
        found = _at_point(at, number, came)
        if found.status == "passed" and not numpy.any(came) and at.gives_half_precision() and at.is_coarser():
            found = _at_point(at, number, came)
        if found.status == "failed" and at.is_fast:
            at.look_closer()
            closer = _at_point(at, number, came)
            found = closer if closer.status == "failed" else found
        is_doubtful = found.status in ("failed", "undecided")
        advice = causes.history(at, number) or causes.advice(at, number) if is_doubtful else None
        if advice is not None:
            found = replace(found, diagnosis=advice)
        elif found.status == "failed":
            cause = found.diagnosis or causes.cause(at, number, found) or diagnose(at, number)
            if cause is None and not at.is_rule:
                is_nearly_right = found.error is not None and found.error < NEARLY
                other = _elsewhere(at, is_nearly_right).get(number)
                cause = (other and other.diagnosis) or causes.advice_for_jumps(at, number)
            found = replace(found, diagnosis=cause)
        elif found.status == "passed" and (at.is_rule or not at.is_staircase(number)):
            later = _elsewhere(at) if later is None else later
            found = _rounding(at, number) or later.get(number) or found
        if found.status == "passed" and at.grain > INSIDE_ENOUGH:
            reason = f"{at.precision_inside}the rule is right as far as that precision shows"
            found = replace(found, status="undecided", reason=reason)
        if found.status == "passed":
            at.passed.add((ORDERS[0], number))
        yield found


def _at_point(at: Inspection, number: int, came: Array) -> Finding:
    """Compares the gradient of one argument with finite differences, or with the declared rule."""
    if at.is_rule:
        return compare(at, ORDERS[0], number, comparison.elements(came, at.pull_expected(at.upstream)[number]))
    rows = comparison.rows(at.columns_of_output(number), came, weigh(at.upstream))
    find_break = functools.partial(at.kink, number, at.reference.output, at.upstream)
    return compare(at, ORDERS[0], number, rows, find_break)


def _rounding(at: Inspection, number: int) -> Finding | None:
    """Finds a gradient that is right in double precision and wrong in the dtypes of the arguments."""
    if at.rounded is None:
        return None
    dtypes = [at.arguments.dtypes[place] for place in at.arguments.floating]
    eps = epsilon(at.arguments.dtypes)
    rows = comparison.elements(at.rounded[number], at.gradient[number])
    # A sum of terms as large as upstream may cancel to zero, so its rounding error has the size of upstream.
    rounding = 16 * eps * max(float(numpy.abs(each).max(initial=0)) for each in at.upstream)
    rows = [row._replace(error=rounding / 4) for row in rows]
    found = compare(at, ORDERS[0], number, rows, tolerance=ROUNDING[eps])
    reason = f"right in double precision, wrong in {dtypes[number]}: it overflows, or subtracts nearly equal numbers"
    return replace(found, diagnosis=reason) if found.status == "failed" else None


def _elsewhere(at: Inspection, is_right_here: bool = True) -> dict[int, Finding]:
    """Checks the gradient at a point close to the test point; returns failures by the number of the argument.

    A rule that caches the result of an earlier call is right only where it was called first. A gradient that is the
    same, and wrong, at both points may be a constant.
    """
    points = next((each for each in beside(at.signs, at.points) if at.is_finite(each)), None)
    if points is None:
        return {}
    found: dict[int, Finding] = {}
    gradients = at.subject.gradients(points, [at.upstream])
    for number, came in enumerate(gradients):
        direction = at.along(number, random(at.signs, came))
        if at.is_rule:
            rows = comparison.elements(came, at.reference.gradients(points, [at.upstream])[number])
        else:
            slope = at.slope(direction, at.reference.output, at.upstream, points)
            rows = comparison.rows([Column(None, direction[number], slope)], came, weigh(at.upstream))
        find_break = functools.partial(at.kink, number, at.reference.output, at.upstream, points=points)
        other = compare(at, ORDERS[0], number, rows, None if at.is_rule else find_break)
        if other.status == "failed":
            is_cached = (is_right_here and is_same(came, at.gradient[number])) or at.difference(
                gradients, at.subject.gradients(points, [at.upstream]), at.arguments.names
            )
            found[number] = replace(other, reason=ELSEWHERE, diagnosis=EARLIER if is_cached else None)
    return found or _meanwhile(at, points)


def _meanwhile(at: Inspection, points: Arrays) -> dict[int, Finding]:
    """Checks the gradient of a call when the function was called at other points before the rule ran."""
    came = at.subject.gradients_after(at.points, at.upstream, points)
    found = {
        number: compare(at, ORDERS[0], number, comparison.elements(*pair))
        for number, pair in enumerate(zip(came, at.gradient, strict=True))
    }
    return {
        number: replace(each, reason=MEANWHILE, diagnosis=EARLIER)
        for number, each in found.items()
        if each.status == "failed"
    }


def higher(at: Inspection, order: int) -> Iterator[Finding]:
    """Compares the derivative of the gradient of order `order` with finite differences of the rule.

    The second derivative is also compared with second differences of the function.
    """
    upstreams = [at.upstream, *([random(at.random, each) for each in at.points] for _ in range(order))]
    came = at.subject.gradients(at.points, upstreams)
    for number in range(len(came)):
        if not at.is_rule_coarse:
            found, expected = _of_rule(at, order, number, came[number], upstreams)
        if at.is_rule_coarse or (found.status in ("failed", "undecided") and (at.grain_of_rule or 0.0) > at.eps):
            # A rule that computes in a lower precision also has finite differences of that precision.
            at.is_rule_coarse = True
            with at.computing_in(max(at.grain_of_rule or 0.0, at.eps)):
                found, expected = _of_rule(at, order, number, came[number], upstreams)
        if found.status == "passed" and order == 1 and (ORDERS[0], number) in at.passed and not at.is_rule:
            found = _of_function(at, number, came[number], upstreams) or found
        if found.status == "passed":
            at.passed.add((ORDERS[order], number))
        elif found.status == "failed" and (ORDERS[order - 1], number) in at.passed and not found.diagnosis:
            found = replace(found, diagnosis=diagnose_higher(came[number], expected, ORDERS[order - 1]))
        yield found


def _of_rule(at: Inspection, order: int, number: int, came: Array, upstreams: list[Arrays]) -> tuple[Finding, Array]:
    """Compares a derivative of the rule with finite differences; returns the finding and the differences."""

    def lower(points: Arrays) -> Arrays:
        return at.reference.gradients(points, upstreams[:-1])

    columns = at.columns(number, lower, upstreams[-1], ELEMENTS_OF_HIGHER_ORDERS)
    find_break = functools.partial(at.kink, number, lower, upstreams[-1])
    weights = weigh(upstreams[-1])
    found = compare(at, ORDERS[order], number, comparison.rows(columns, came, weights), find_break)
    return found, comparison.gradient(columns, came, weights)


def _of_function(at: Inspection, number: int, came: Array, upstreams: list[Arrays]) -> Finding | None:
    """Compares a second derivative with second differences of the function along a random direction.

    By polarisation: D²f(a, b) = (D²f(a + b, a + b) - D²f(a - b, a - b)) / 4.
    """
    direction = at.along(number, random(at.signs, came))
    weights = vector(at.upstream)
    found = []
    for sign in (1, -1):
        line = [one + sign * other for one, other in zip(upstreams[1], direction, strict=True)]
        slope = float(vector(at.gradient) @ vector(line))
        found.append(curvature(functools.partial(at.weighted, weights, line), slope, at.scale(line), at.eps))
    right, error = (found[0][0] - found[1][0]) / 4, (found[0][1] + found[1][1]) / 4
    terms = vector([came]) * vector([direction[number]])
    part, size = float(terms.sum()), max(abs(right), float(numpy.abs(terms).sum()))
    # Second differences that do not converge prove nothing.
    if not error <= 1e-2 * size or abs(part - right) <= CURVED * size + 4 * error:
        return None
    return at.finding(
        ORDERS[1],
        "failed",
        argument=at.arguments.names[number],
        where=ALONG,
        came=text(part),
        expected=text(right),
        error=abs(part - right) / size,
        tolerance=CURVED,
        reason="it is the derivative of the rule, but not the second derivative of the function",
        diagnosis=diagnose_higher(numpy.asarray(part), numpy.asarray(right), ORDERS[0]),
    )
