"""What all other checks start from: the value, and the gradient in the precision in which it is checked."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace

import numpy

from keras_cg.testing import comparison, messages
from keras_cg.testing.arrays import Array, random
from keras_cg.testing.comparison import Row
from keras_cg.testing.diagnosis import EARLIER
from keras_cg.testing.inspection import DOUBLE, EDGE, KINK, ORDERS, ROUNDING, Inspection
from keras_cg.testing.report import Finding
from keras_cg.testing.subject import Arrays, Subject

STATE = "does it draw random numbers, or keep something from an earlier call?"


def value(at: Inspection) -> Finding:
    """The output: whether there is one, and the same when the function is called again."""
    check = "value"
    try:
        first, second = at.subject.output(at.points), at.subject.output(at.points)
    except Exception as error:  # whatever the user's function raises is a finding
        return at.raised(check, error)
    if not first:
        return at.finding(check, "failed", reason="the function returns no floating tensor")
    if not all(numpy.isfinite(each).all() for each in first):
        return at.finding(check, "undecided", reason="the function itself gives NaN or infinity at this point")
    other = at.difference(first, second, outputs(first))
    if other is not None:
        return at.finding(
            check, "undecided", reason=f"the function gives other values when it is called again: {other}; {STATE}"
        )
    if not any(each.size for each in first):
        return at.finding(check, "undecided", reason="the output has no elements: nothing can be compared")
    at.output = first
    at.upstream = [random(at.random, each) for each in first]
    changed = at.subject.changed_argument(at.points)
    if changed is not None:
        reason = f"the function changes {changed} in place; work on a copy"
        return at.finding(check, "failed", argument=changed, reason=reason)
    return at.finding(check, "passed")


def gradient(at: Inspection) -> Finding | None:
    """Computes the gradient, and decides in which precision everything is checked.

    Returns:
        What was found if there is no gradient, or nothing to compare it with.
    """
    check = ORDERS[0]
    try:
        at.gradient, again = at.pull(at.upstream), at.pull(at.upstream)
    except Exception as error:  # whatever the user's rule raises is a finding
        return at.raised(check, error)
    other = at.difference(at.gradient, again, at.given.names)
    if other is not None:
        reason = f"the rule gives another gradient when it is called again: {other}; {STATE}"
        return at.finding(check, "failed", reason=reason, diagnosis=EARLIER)
    if at.eps != DOUBLE:
        _double(at)
    for number, each in enumerate(at.gradient):
        if not numpy.isfinite(each).all():
            return _not_finite(at, number)
    try:
        expected = at.pull_expected(at.upstream) if at.is_rule else at.reference.output(at.points)
    except Exception as error:  # and so is what comes of `expected`
        found = at.raised(check, error)
        return replace(found, reason=f"`expected` raised {found.reason}")
    if not all(numpy.isfinite(each).all() for each in expected):
        return at.finding(check, "undecided", reason="`expected` gives NaN or infinity at this point")
    came, right = ([each.shape for each in arrays] for arrays in (expected, at.output))
    if not at.is_rule and came != right:
        raise messages.wrong_expected(at.subject.name, str(came), str(right))
    return None


def stated(at: Inspection, value: tuple[Subject, Subject]) -> Finding:
    """The output beside that of `value`, which is given as it is and in double precision."""
    check = "value"
    try:
        right = value[at.is_in_double].output(at.points)
    except Exception as error:  # whatever the user's function raises is a finding
        raised = at.raised(check, error)
        return replace(raised, reason=f"`value` raised {raised.reason}")
    came = at.subject.output(at.points)
    shapes = [[each.shape for each in arrays] for arrays in (right, came)]
    if shapes[0] != shapes[1]:
        raise messages.wrong_value(at.subject.name, *map(str, shapes))
    found = [
        at.compare(check, None, comparison.elements(*pair)) for pair in zip(came, right, strict=True) if pair[0].size
    ]
    wrong = next((each for each in found if each.status == "failed"), None)
    return found[0] if wrong is None else replace(wrong, reason="the output is not what `value` gives")


def repeated(at: Inspection, output: Arrays) -> Finding | None:
    """What is different at the same point after all other checks, before which the function gave `output`."""
    with contextlib.suppress(Exception):  # which a check has told
        other = at.difference(output, at.subject.output(at.points), outputs(output))
        if other is not None:
            reason = f"the function gives other values after other calls: {other}; {STATE}"
            return at.finding("value", "undecided", reason=reason)
        other = at.difference(at.gradient, at.pull(at.upstream), at.given.names)
        if other is not None:
            reason = f"the rule gives another gradient after other calls: {other}; {STATE}"
            return at.finding(ORDERS[0], "failed", reason=reason, diagnosis=EARLIER)
    return None


def outputs(arrays: Arrays) -> list[str]:
    """What messages call the floating leaves of the output."""
    return ["the output"] if len(arrays) == 1 else [f"output {number} " for number in range(len(arrays))]


def _not_finite(at: Inspection, number: int) -> Finding:
    """What was found if the rule gives no number: at the edge of a domain, or elsewhere."""
    point, gradient = at.points[number], at.gradient[number]
    place = tuple(map(int, numpy.argwhere(~numpy.isfinite(gradient))[0]))
    direction = numpy.zeros_like(point)
    direction[place] = 1
    broken = at.kink(number, at.reference.output, at.upstream, Row("", direction, 0, 0)) if not at.is_rule else None
    found = functools.partial(at.finding, ORDERS[0], argument=at.given.names[number], where=comparison.index(place))
    if broken is not None and numpy.isinf(gradient[place]) and not broken.is_edge:
        reason = (
            f"the function has no derivative there: {broken.reason}. The rule gives {comparison.text(gradient[place])}"
        )
        return found("undecided", reason=reason, diagnosis=KINK)
    reason = "the rule gives NaN or infinity where the function is finite"
    cause = EDGE if broken is not None else at.coarse_rule(found("failed", error=numpy.inf))
    return found("failed", reason=reason, diagnosis=cause)


def _double(at: Inspection) -> None:
    """Goes over to double precision if the function can be computed in it."""
    subject, reference = at.in_double
    try:
        with at.backend.double_precision():
            output, gradient = subject.output(at.points), subject.gradients(at.points, [at.upstream])
            eps = max(subject.epsilon(at.points), reference.epsilon(at.points))
    except Exception:  # a function that is made for one dtype is checked in that one
        return
    if eps != DOUBLE:
        return
    at.is_other_in_double = not all(map(functools.partial(_is_near, at), output, at.output))
    if not at.is_other_in_double:
        at.is_in_double = True
        at.rounded, at.gradient = at.gradient, gradient
        at.subject, at.reference, at.eps = subject, reference, eps
        at.precision = at.backend.double_precision


def _is_near(at: Inspection, one: Array, other: Array) -> bool:
    size = numpy.abs(other).max(initial=0)
    return bool(numpy.abs(one - other).max(initial=0) <= ROUNDING[at.eps] * size)
