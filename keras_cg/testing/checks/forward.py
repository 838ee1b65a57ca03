"""Checks forward mode against finite differences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy

from keras_cg import errors
from keras_cg.engine import messages
from keras_cg.testing import causes
from keras_cg.testing.arrays import Array, random, vector
from keras_cg.testing.comparison import ALONG, Row
from keras_cg.testing.diagnosis import CUT
from keras_cg.testing.differences import Break
from keras_cg.testing.inspection import NUMBERS, Inspection
from keras_cg.testing.report import Finding
from keras_cg.testing.verdicts import compare


def forward(at: Inspection) -> Iterator[Finding]:
    """Compares the forward derivative of each argument along a random direction with finite differences."""
    check = "forward mode"
    if not at.is_linear:
        yield at.finding(check, "skipped", reason="the rule is not linear in upstream, so it has no transpose")
        return
    for number, point in enumerate(at.points):
        direction = at.along(number, random(at.random, point))
        try:
            came = vector(at.subject.tangents(at.points, direction))
        except (NotImplementedError, errors.CapturedVariableError) as error:
            yield replace(at.raised(check, error), status="undecided")
            return
        except ValueError as error:
            # The linearity check found the rule linear, but its result has no derivative with respect to upstream.
            raised = at.raised(check, error)
            is_cut = str(error).startswith(messages.NOT_LINEAR)
            yield replace(raised, diagnosis=CUT if is_cut else raised.diagnosis)
            return
        if at.is_rule:
            # The transpose: <u, J c> = <pull(u), c>.
            terms = vector(at.pull_expected(at.upstream)) * vector(direction)
            pushed, right = float(vector(at.upstream) @ came), float(terms.sum())
            rows = [Row(ALONG, point, pushed, right, size=float(numpy.abs(terms).sum()))]
        else:
            values, margins, _ = at.slope(direction, at.reference.output, at.upstream)
            if at.is_staircase(number):
                values, margins = numpy.zeros_like(values), numpy.zeros_like(margins)
            named = "number {} of the output"
            if came.size > NUMBERS:
                came, named = numpy.array([vector(at.upstream) @ came]), "a random weighted sum of the output"
            rows = [
                Row(named.format(place), direction[number], *numbers)
                for place, numbers in enumerate(zip(came.tolist(), values.tolist(), margins.tolist(), strict=True))
            ]
        found = compare(at, check, number, rows, None if at.is_rule else _find_break(at, number, direction[number]))
        if found.status == "failed" and not came.any() and at.gradient[number].any():
            found = replace(found, diagnosis=CUT)
        elif found.status in ("failed", "undecided"):
            found = replace(found, diagnosis=causes.advice(at, number) or found.diagnosis)
        yield found


def _find_break(at: Inspection, number: int, direction: Array) -> Callable[[Row], Break | None]:
    """Returns a function that finds a missing derivative along a direction, once for all numbers of the output."""

    @functools.cache
    def broken() -> Break | None:
        found = at.kink(number, at.reference.output, at.upstream, Row("", direction, 0, 0))
        # The weighted sum does not tell which number has the break, so its slope is unknown.
        return None if found is None else Break(found.reason)

    return lambda row: broken()
