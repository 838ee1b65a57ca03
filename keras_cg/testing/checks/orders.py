"""The orders of differentiation, beside differences."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import numpy

from keras_cg.testing import comparison
from keras_cg.testing.arrays import Array, beside, random, vector
from keras_cg.testing.comparison import ALONG, Column, text
from keras_cg.testing.diagnosis import EARLIER, Evidence, diagnose, diagnose_higher, is_same
from keras_cg.testing.differences import curvature
from keras_cg.testing.inspection import (
    ELEMENTS_OF_HIGHER_ORDERS,
    INSIDE_ENOUGH,
    ORDERS,
    ROUNDING,
    TOLERANCES,
    Inspection,
    weigh,
)
from keras_cg.testing.report import Finding
from keras_cg.testing.subject import Arrays, epsilon

# What a second derivative may be off by, beside second differences of the function: these have fewer digits.
CURVED = 1e-4

ELSEWHERE = "right at the point that was given, wrong at one close by"
MEANWHILE = "another gradient if the function is called elsewhere before the rule is"


def first(at: Inspection) -> Iterator[Finding]:
    """The gradient beside differences, at the point and beside it, and once more at the point."""
    later: dict[int, Finding] | None = None
    for number, came in enumerate(at.gradient):
        found = _at_point(at, number, came)
        if found.status == "passed" and not numpy.any(came) and at.gives_half_precision() and at.is_coarser():
            found = _at_point(at, number, came)
        if found.status == "failed" and at.is_fast:
            at.look_closer()
            closer = _at_point(at, number, came)
            found = closer if closer.status == "failed" else found
        if found.status == "failed":
            told = found.diagnosis or at.cause(number, found) or diagnose(_evidence(at), number)
            if told is None and not at.is_rule:
                other = _elsewhere(at).get(number)
                told = None if other is None else other.diagnosis
            found = replace(found, diagnosis=told)
        elif found.status == "passed":
            later = _elsewhere(at) if later is None else later
            found = _rounding(at, number) or later.get(number) or found
        if found.status == "passed" and at.grain > INSIDE_ENOUGH:
            reason = f"{at.precision_inside}as far as that shows, the rule is right"
            found = replace(found, status="undecided", reason=reason)
        if found.status == "passed":
            at.passed.add((ORDERS[0], number))
        yield found


def _at_point(at: Inspection, number: int, came: Array) -> Finding:
    """The gradient of one argument beside differences, or beside what somebody said that it should be."""
    if at.is_rule:
        return at.compare(ORDERS[0], number, comparison.elements(came, at.pull_expected(at.upstream)[number]))
    rows = comparison.rows(at.columns_of_output(number), came, weigh(at.upstream))
    look = functools.partial(at.kink, number, at.reference.output, at.upstream)
    return at.compare(ORDERS[0], number, rows, look)


def _evidence(at: Inspection) -> Evidence:
    """What a diagnosis is made from."""
    return Evidence(
        names=at.given.names,
        points=at.points,
        upstream=at.upstream,
        came=at.gradient,
        expected=at.pull_expected(at.upstream),
        tolerance=TOLERANCES[at.eps],
        pull=at.pull,
        pull_expected=at.pull_expected,
        jacobians=[at.jacobian(number) for number in range(len(at.points))],
        shapes=[each.shape for each in (*at.points, *at.output)],
        is_declared=at.is_declared,
    )


def _rounding(at: Inspection, number: int) -> Finding | None:
    """What is wrong in the dtypes of the arguments alone."""
    if at.rounded is None:
        return None
    dtypes = [at.given.dtypes[place] for place in at.given.floating]
    eps = epsilon(at.given.dtypes)
    rows = comparison.elements(at.rounded[number], at.gradient[number])
    # A sum of terms as large as upstream may come out as zero.
    rounding = 16 * eps * max(float(numpy.abs(each).max(initial=0)) for each in at.upstream)
    rows = [row._replace(error=rounding / 4) for row in rows]
    found = at.compare(ORDERS[0], number, rows, tolerance=ROUNDING[eps])
    reason = f"right in double precision, wrong in {dtypes[number]}: it overflows, or subtracts what is nearly equal"
    return replace(found, diagnosis=reason) if found.status == "failed" else None


def _elsewhere(at: Inspection) -> dict[int, Finding]:
    """What is wrong with the gradient at a point beside the one that was given, by the number of the argument.

    A rule that keeps what an earlier call computed is right where it was called first.
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
        look = functools.partial(at.kink, number, at.reference.output, at.upstream, points=points)
        other = at.compare(ORDERS[0], number, rows, None if at.is_rule else look)
        if other.status == "failed":
            is_kept = is_same(came, at.gradient[number]) or at.difference(
                gradients, at.subject.gradients(points, [at.upstream]), at.given.names
            )
            found[number] = replace(other, reason=ELSEWHERE, diagnosis=EARLIER if is_kept else None)
    return found or _meanwhile(at, points)


def _meanwhile(at: Inspection, points: Arrays) -> dict[int, Finding]:
    """What is wrong with the gradient of a call if another one comes before it is asked for."""
    came = at.subject.gradients_after(at.points, at.upstream, points)
    found = {
        number: at.compare(ORDERS[0], number, comparison.elements(*pair))
        for number, pair in enumerate(zip(came, at.gradient, strict=True))
    }
    return {
        number: replace(each, reason=MEANWHILE, diagnosis=EARLIER)
        for number, each in found.items()
        if each.status == "failed"
    }


def higher(at: Inspection, order: int) -> Iterator[Finding]:
    """The derivative of the gradient of order `order`, beside its differences; the second beside the function's too."""
    upstreams = [at.upstream, *([random(at.random, each) for each in at.points] for _ in range(order))]
    came = at.subject.gradients(at.points, upstreams)
    for number in range(len(came)):
        if not at.is_rule_coarse:
            found, expected = _of_rule(at, order, number, came[number], upstreams)
        if at.is_rule_coarse or (found.status in ("failed", "undecided") and (at.grain_of_rule or 0.0) > at.eps):
            # A rule that computes in a lower precision has differences that are as coarse.
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
    """A derivative of the rule beside its differences, which are given as well."""

    def lower(points: Arrays) -> Arrays:
        return at.reference.gradients(points, upstreams[:-1])

    columns = at.columns(number, lower, upstreams[-1], ELEMENTS_OF_HIGHER_ORDERS)
    look = functools.partial(at.kink, number, lower, upstreams[-1])
    weights = weigh(upstreams[-1])
    found = at.compare(ORDERS[order], number, comparison.rows(columns, came, weights), look)
    return found, comparison.gradient(columns, came, weights)


def _of_function(at: Inspection, number: int, came: Array, upstreams: list[Arrays]) -> Finding | None:
    """What is wrong with a second derivative beside second differences of the function, along a random direction.

    By polarisation: the derivative along a and b is a quarter of that along a + b, twice, less that along a - b, twice.
    """
    direction = at.along(number, random(at.signs, came))
    weights = vector(at.upstream)
    found = []
    for sign in (1, -1):
        line = [one + sign * other for one, other in zip(upstreams[1], direction, strict=True)]
        slope = float(vector(at.gradient) @ vector(line))
        found.append(curvature(functools.partial(at.weighed, weights, line), slope, at.scale(line), at.eps))
    right, error = (found[0][0] - found[1][0]) / 4, (found[0][1] + found[1][1]) / 4
    terms = vector([came]) * vector([direction[number]])
    part, size = float(terms.sum()), max(abs(right), float(numpy.abs(terms).sum()))
    # Where second differences do not settle they say nothing.
    if not error <= 1e-2 * size or abs(part - right) <= CURVED * size + 4 * error:
        return None
    return at.finding(
        ORDERS[1],
        "failed",
        argument=at.given.names[number],
        where=ALONG,
        came=text(part),
        expected=text(right),
        error=abs(part - right) / size,
        tolerance=CURVED,
        reason="it is the derivative of the rule, and not the second derivative of the function",
        diagnosis=diagnose_higher(numpy.asarray(part), numpy.asarray(right), ORDERS[0]),
    )
