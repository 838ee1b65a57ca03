"""Checks that the rule is linear in upstream."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import numpy

from keras_cg.engine import linear
from keras_cg.testing import causes, comparison
from keras_cg.testing.arrays import Array, random, vector
from keras_cg.testing.comparison import Row
from keras_cg.testing.diagnosis import CLIPS, CUT, diagnose_upstream
from keras_cg.testing.inspection import Inspection
from keras_cg.testing.report import Finding
from keras_cg.testing.subject import Arrays, Subject
from keras_cg.testing.verdicts import compare


def linearity(at: Inspection) -> Iterator[Finding]:
    """Checks the rule for sums and multiples of upstream gradients, in every size that the dtype allows."""
    check = "linearity"
    other = [random(at.random, each) for each in at.output]
    first, second = at.pull(at.upstream), at.pull(other)
    # Large enough to find a rule that clips at a thousand, too small to overflow.
    large = 32.0 if at.eps > 1e-5 else 2.0**20
    factors = ((3, -7), (0, large), (0, 0))
    tried = [_combine(a, at.upstream, b, other) for a, b in factors]
    found = [at.pull(each) for each in tried]
    for number in range(len(at.points)):
        one, two = first[number], second[number]
        # The rounding error of a sum depends on the size of its terms.
        rows = [
            comparison.elements(came[number], a * one + b * two, abs(a * one) + abs(b * two))
            for came, (a, b) in zip(found, factors, strict=True)
        ]
        shown = _worst(at, check, number, rows)
        if shown.status == "failed":
            at.is_linear = False
            if at.is_rule:
                right = [at.pull_expected(each)[number] for each in tried]
                rows = [comparison.elements(came[number], each) for came, each in zip(found, right, strict=True)]
                shown = _worst(at, check, number, rows)
                shown = replace(shown, reason="not linear in upstream, as declared")
        if shown.status == "failed":
            cause = causes.cause(at, number, shown) or diagnose_upstream(at.pull, at.upstream, number)
            shown = replace(shown, reason="the rule is not linear in upstream", diagnosis=cause)
        yield shown
    if at.is_rule:
        yield from _at_every_size(at)
    if not at.is_linear and at.is_rule:
        yield from _by_upstream(at)
    if at.is_linear and not _is_tried_linear(at):
        at.is_linear = False
        if not at.is_rule:
            reason = "the rule is not linear in an upstream of tiny or huge size"
            found_causes = (
                causes.steps(at, number) or diagnose_upstream(at.pull, at.upstream, number)
                for number in range(len(at.points))
            )
            yield at.finding(check, "failed", reason=reason, diagnosis=next(filter(None, found_causes), CLIPS))


def _at_every_size(at: Inspection) -> Iterator[Finding]:
    """Compares the rule with the declared one for tiny and huge upstream gradients; yields only differences."""
    for scale in linear.sizes(at.subject.dtypes):
        upstream = [scale * each for each in at.upstream]
        pairs = zip(at.pull(upstream), at.pull_expected(upstream), strict=True)
        for number, (came, right) in enumerate(pairs):
            is_known = numpy.isfinite(came) & numpy.isfinite(right)
            # Scaled to the size of upstream, which the tolerances of the comparison assume.
            largest = numpy.abs(right[is_known]).max(initial=0) or 1.0
            found = compare(
                at,
                "linearity",
                number,
                comparison.elements(*(numpy.where(is_known, each, 0) / largest for each in (came, right))),
            )
            if found.status == "failed":
                reason = "the gradient differs from the declared one for an upstream of tiny or huge size"
                yield replace(found, reason=reason)
                return


def _by_upstream(at: Inspection) -> Iterator[Finding]:
    """Finds a detached upstream in a rule that is not linear.

    The check of forward mode finds a detached upstream in a linear rule; a rule that is not linear has no forward mode.
    """
    for number, point in enumerate(at.points):
        weights = random(at.signs, point)

        def slopes(subject: Subject, number: int = number, weights: Array = weights) -> Array:
            return vector(subject.gradients_by_upstream(at.points, at.upstream, weights, number))

        if not slopes(at.subject).any():
            with contextlib.suppress(Exception):  # the rule may compute with plain numbers, which have no derivative
                if slopes(at.reference).any():
                    reason = (
                        "the derivative of the rule with respect to upstream is zero,"
                        " but that of the declared rule is not"
                    )
                    name = at.arguments.names[number]
                    yield at.finding("linearity", "failed", argument=name, reason=reason, diagnosis=CUT)


def _is_tried_linear(at: Inspection) -> bool:
    """Whether the test of forward mode classifies the rule as linear."""
    flat, floating = at.subject.bound(at.points)
    outputs, pullback, _ = at.backend.vjp(flat, floating)
    fulfilled = linear.conditions(at.backend, pullback, outputs)
    return all(bool(numpy.all(at.backend.to_numpy(condition))) for condition in fulfilled)


def _worst(at: Inspection, check: str, number: int, rows: list[list[Row]]) -> Finding:
    """Compares several gradients of one argument and returns the first failure, else the first finding."""
    found = [compare(at, check, number, each) for each in rows]
    return next((each for each in found if each.status == "failed"), found[0])


def _combine(a: float, first: Arrays, b: float, second: Arrays) -> Arrays:
    return [a * one + b * other for one, other in zip(first, second, strict=True)]
