"""Checks the output, and computes the gradient in the precision that all other checks use."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace

import numpy

from keras_cg.testing import causes, comparison, exceptions, messages
from keras_cg.testing.arrays import Array, random
from keras_cg.testing.comparison import Row
from keras_cg.testing.diagnosis import ALONE, EARLIER
from keras_cg.testing.inspection import DOUBLE, ORDERS, ROUNDING, Inspection
from keras_cg.testing.report import Finding
from keras_cg.testing.subject import Arrays, Subject
from keras_cg.testing.verdicts import EDGE, KINK, compare

# The arguments are tried one by one, or in so many groups if there are more of them.
GROUPS = 16

STATE = "does it draw random numbers, or store something from an earlier call?"


def value(at: Inspection) -> Finding:
    """Checks that the output is finite and does not change when the function is called again."""
    check = "value"
    try:
        first, second = at.subject.output(at.points), at.subject.output(at.points)
    except Exception as error:  # an exception from the user's function is a finding
        return at.raised(check, error)
    if not first:
        return at.finding(check, "failed", reason="the function returns no floating tensor")
    if not all(numpy.isfinite(each).all() for each in first):
        return at.finding(check, "undecided", reason="the function itself returns NaN or infinity at this point")
    other = at.difference(first, second, outputs(first))
    if other is not None:
        return at.finding(
            check, "undecided", reason=f"the output changes when the function is called again: {other}; {STATE}"
        )
    if not any(each.size for each in first):
        return at.finding(check, "undecided", reason="the output has no elements to compare")
    at.output = first
    at.upstream = [random(at.random, each) for each in first]
    changed = at.subject.changed_argument(at.points)
    if changed is not None:
        reason = f"the function changes {changed} in place; change a copy instead"
        return at.finding(check, "failed", argument=changed, reason=reason)
    return at.finding(check, "passed")


def gradient(at: Inspection) -> Finding | None:
    """Computes the gradient, and chooses the precision of all other checks.

    Returns:
        A finding if there is no gradient, or no expected gradient to compare it with; else None.
    """
    check = ORDERS[0]
    try:
        at.gradient, again = at.pull(at.upstream), at.pull(at.upstream)
    except Exception as error:  # an exception from the user's rule is a finding
        return at.raised(check, error)
    other = at.difference(at.gradient, again, at.arguments.names)
    if other is not None:
        reason = f"the gradient changes when the rule is called again: {other}; {STATE}"
        return at.finding(check, "failed", reason=reason, diagnosis=EARLIER)
    if at.eps != DOUBLE:
        _double(at)
    for number, each in enumerate(at.gradient):
        if not numpy.isfinite(each).all():
            return _not_finite(at, number)
    try:
        expected = at.pull_expected(at.upstream) if at.is_rule else at.reference.output(at.points)
    except Exception as error:  # an exception from `expected` is a finding, too
        found = at.raised(check, error)
        return replace(found, reason=f"`expected` raised {found.reason}")
    if not all(numpy.isfinite(each).all() for each in expected):
        return at.finding(check, "undecided", reason="`expected` returns NaN or infinity at this point")
    came, right = ([each.shape for each in arrays] for arrays in (expected, at.output))
    if not at.is_rule and came != right:
        raise messages.wrong_expected(at.subject.name, str(came), str(right))
    return None


def stated(at: Inspection, value: tuple[Subject, Subject]) -> Finding:
    """Compares the output with that of `value`, a pair: in the dtypes of the arguments and in double precision."""
    check = "value"
    try:
        right = value[at.is_in_double].output(at.points)
    except Exception as error:  # an exception from the user's function is a finding
        raised = at.raised(check, error)
        return replace(raised, reason=f"`value` raised {raised.reason}")
    came = at.subject.output(at.points)
    shapes = [[each.shape for each in arrays] for arrays in (right, came)]
    if shapes[0] != shapes[1]:
        raise messages.wrong_value(at.subject.name, *map(str, shapes))
    found = [
        compare(at, check, None, comparison.elements(*pair)) for pair in zip(came, right, strict=True) if pair[0].size
    ]
    wrong = next((each for each in found if each.status == "failed"), None)
    return found[0] if wrong is None else replace(wrong, reason="the output differs from that of `value`")


def repeated(at: Inspection, output: Arrays) -> Finding | None:
    """Checks that output and gradient are unchanged after all other checks."""
    with contextlib.suppress(Exception):  # a check has already reported it
        other = at.difference(output, at.subject.output(at.points), outputs(output))
        if other is not None:
            reason = f"the function gives other values after other calls: {other}; {STATE}"
            return at.finding("value", "undecided", reason=reason)
        other = at.difference(at.gradient, at.pull(at.upstream), at.arguments.names)
        if other is not None:
            reason = f"the gradient changes after other calls: {other}; {STATE}"
            return at.finding(ORDERS[0], "failed", reason=reason, diagnosis=EARLIER)
    return None


def alone(at: Inspection) -> Finding | None:
    """Checks that an argument has the same gradient where no other one is asked for."""
    count = len(at.points)
    for start in range(min(count, GROUPS) if count > 1 else 0):
        numbers = range(start, count, GROUPS)
        names = [at.arguments.names[number] for number in numbers]
        try:
            found = at.subject.gradients_alone(at.points, at.upstream, numbers)
            other = at.difference([at.gradient[number] for number in numbers], found, names)
        except Exception as error:  # an exception from the user's rule is a finding
            other = f"the rule raises {exceptions.described(error)[0]}"
        if other is not None:
            reason = f"the gradient differs where that of {' and '.join(names)} alone is asked for: {other}"
            return at.finding(ORDERS[0], "failed", argument=names[0], reason=reason, diagnosis=ALONE)
    return None


def outputs(arrays: Arrays) -> list[str]:
    """Returns the names of the floating leaves of the output, for messages."""
    return ["the output"] if len(arrays) == 1 else [f"output {number} " for number in range(len(arrays))]


def _not_finite(at: Inspection, number: int) -> Finding:
    """Returns the finding for a gradient that is NaN or infinite: at the edge of a domain, or elsewhere."""
    point, gradient = at.points[number], at.gradient[number]
    place = tuple(map(int, numpy.argwhere(~numpy.isfinite(gradient))[0]))
    direction = numpy.zeros_like(point)
    direction[place] = 1
    broken = at.kink(number, at.reference.output, at.upstream, Row("", direction, 0, 0)) if not at.is_rule else None
    found = functools.partial(at.finding, ORDERS[0], argument=at.arguments.names[number], where=comparison.index(place))
    if broken is not None and numpy.isinf(gradient[place]) and not broken.is_edge:
        came = comparison.text(gradient[place])
        reason = f"the function has no derivative there: {broken.reason}. The rule returns {came}"
        return found("undecided", reason=reason, diagnosis=KINK)
    reason = "the rule returns NaN or infinity where the function is finite"
    cause = EDGE if broken is not None else causes.coarse_rule(at, found("failed", error=numpy.inf))
    return found("failed", reason=reason, diagnosis=cause)


def _double(at: Inspection) -> None:
    """Switches all checks to double precision if the function runs in it."""
    subject, reference = at.in_double
    try:
        with at.backend.double_precision():
            output, gradient = subject.output(at.points), subject.gradients(at.points, [at.upstream])
            eps = max(subject.epsilon(at.points), reference.epsilon(at.points))
    except Exception:  # a function that accepts one dtype only is checked in that dtype
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
