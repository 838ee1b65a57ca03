"""The orders of differentiation, beside differences."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

from keras_cg.testing import comparison
from keras_cg.testing.arrays import random
from keras_cg.testing.diagnosis import Evidence, diagnose, diagnose_higher
from keras_cg.testing.inspection import ELEMENTS_OF_HIGHER_ORDERS, ORDERS, ROUNDING, TOLERANCES, Inspection, weigh
from keras_cg.testing.report import Finding
from keras_cg.testing.subject import Arrays, epsilon


def first(at: Inspection) -> Iterator[Finding]:
    expected = at.pull_expected(at.upstream)
    evidence = Evidence(
        names=at.given.names,
        upstream=at.upstream,
        came=at.gradient,
        expected=expected,
        tolerance=TOLERANCES[at.eps],
        pull=at.pull,
        pull_expected=at.pull_expected,
        jacobians=[at.jacobian(number) for number in range(len(at.points))],
        shapes=[each.shape for each in (*at.points, *at.output)],
        is_declared=at.is_declared,
    )
    for number, came in enumerate(at.gradient):
        if at.is_rule:
            found = at.compare(ORDERS[0], number, comparison.elements(came, expected[number]))
        else:
            rows = comparison.rows(at.columns_of_output(number), came, weigh(at.upstream))
            look = functools.partial(at.kink, number, at.reference.output, at.upstream)
            found = at.compare(ORDERS[0], number, rows, look)
        if found.status == "failed":
            found = replace(found, diagnosis=diagnose(evidence, number))
        elif found.status == "passed":
            found = _rounding(at, number) or found
        if found.status == "passed":
            at.passed.add((ORDERS[0], number))
        yield found


def _rounding(at: Inspection, number: int) -> Finding | None:
    """What is wrong in the dtypes of the arguments alone."""
    if at.rounded is None:
        return None
    dtypes = [at.given.dtypes[place] for place in at.given.floating]
    allowed = ROUNDING[epsilon(at.given.dtypes)]
    found = at.compare(
        ORDERS[0], number, comparison.elements(at.rounded[number], at.gradient[number]), tolerance=allowed
    )
    reason = f"right in double precision, wrong in {dtypes[number]}: it overflows, or subtracts what is nearly equal"
    return replace(found, diagnosis=reason) if found.status == "failed" else None


def higher(at: Inspection, order: int) -> Iterator[Finding]:
    """The derivative of the gradient of order `order`, beside its differences."""
    upstreams = [at.upstream, *([random(at.random, each) for each in at.points] for _ in range(order))]

    def lower(points: Arrays) -> Arrays:
        return at.reference.gradients(points, upstreams[:-1])

    for number, came in enumerate(at.subject.gradients(at.points, upstreams)):
        columns = at.columns(number, lower, upstreams[-1], ELEMENTS_OF_HIGHER_ORDERS)
        look = functools.partial(at.kink, number, lower, upstreams[-1])
        found = at.compare(ORDERS[order], number, comparison.rows(columns, came, weigh(upstreams[-1])), look)
        if found.status == "passed":
            at.passed.add((ORDERS[order], number))
        elif found.status == "failed" and (ORDERS[order - 1], number) in at.passed:
            expected = comparison.gradient(columns, came, weigh(upstreams[-1]))
            found = replace(found, diagnosis=diagnose_higher(came, expected, ORDERS[order - 1]))
        yield found
