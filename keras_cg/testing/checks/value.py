"""What all other checks start from: the value, and the gradient in the precision in which it is checked."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy

from keras_cg.testing import comparison, messages
from keras_cg.testing.arrays import Array, random
from keras_cg.testing.inspection import DOUBLE, ORDERS, ROUNDING, Inspection
from keras_cg.testing.report import Finding


def value(at: Inspection) -> Finding:
    check = "value"
    try:
        first, second = at.subject.output(at.points), at.subject.output(at.points)
    except Exception as error:  # whatever the user's function raises is a finding
        return at.raised(check, error)
    if not first:
        return at.finding(check, "failed", reason="the function returns no floating tensor")
    if not all(numpy.isfinite(each).all() for each in first):
        return at.finding(check, "undecided", reason="the function itself gives NaN or infinity at this point")
    if not all(map(numpy.array_equal, first, second)):
        reason = "the function gives other values when it is called again; does it draw random numbers?"
        return at.finding(check, "undecided", reason=reason)
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
        at.gradient = at.pull(at.upstream)
    except Exception as error:  # whatever the user's rule raises is a finding
        return at.raised(check, error)
    if at.eps != DOUBLE:
        _double(at)
    for name, each in zip(at.given.names, at.gradient, strict=True):
        if not numpy.isfinite(each).all():
            where = comparison.index(tuple(map(int, numpy.argwhere(~numpy.isfinite(each))[0])))
            reason = "the rule gives NaN or infinity where the function is finite"
            return at.finding(check, "failed", argument=name, where=where, reason=reason)
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


def _double(at: Inspection) -> None:
    """Goes over to double precision if the function can be computed in it."""
    subject, reference = at.in_double
    try:
        with at.backend.double_precision():
            output, gradient = subject.output(at.points), subject.gradients(at.points, [at.upstream])
            eps = max(subject.epsilon(at.points), reference.epsilon(at.points))
    except Exception:  # a function that is made for one dtype is checked in that one
        return
    if eps == DOUBLE and all(map(functools.partial(_is_near, at), output, at.output)):
        at.rounded, at.gradient = at.gradient, gradient
        at.subject, at.reference, at.eps = subject, reference, eps
        at.precision = at.backend.double_precision


def _is_near(at: Inspection, one: Array, other: Array) -> bool:
    size = numpy.abs(other).max(initial=0)
    return bool(numpy.abs(one - other).max(initial=0) <= ROUNDING[at.eps] * size)
