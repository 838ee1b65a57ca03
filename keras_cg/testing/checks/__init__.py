"""Runs the checks of one function at one point on one backend, one after the other.

A new check is in `_chosen` here and in `CHECKS` of testing/report.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

import numpy

from keras_cg.testing.checks.forward import forward
from keras_cg.testing.checks.linearity import linearity
from keras_cg.testing.checks.memory import memory
from keras_cg.testing.checks.orders import first, higher
from keras_cg.testing.checks.programs import compiled, exported
from keras_cg.testing.checks.value import alone, gradient, repeated, stated, value
from keras_cg.testing.inspection import ORDERS, Inspection
from keras_cg.testing.report import NOT_REACHED, Finding
from keras_cg.testing.subject import Arrays

Check = Callable[[Inspection], Iterator[Finding]]


def run(at: Inspection, emit: Callable[[Finding], None]) -> dict[str, Arrays]:
    """Runs all checks and passes each finding to `emit`.

    Returns:
        The output and the gradient, for comparison with other backends; an empty dict without a gradient.
    """
    checks = _chosen(at)

    def skip(names: Iterable[str], reason: str) -> None:
        for name in names:
            emit(at.finding(name, "skipped", reason=reason))

    with at.precision():
        found = value(at)
    if found.status != "passed":
        emit(found)
        skip(checks, NOT_REACHED[0])
        return {}
    with at.precision():
        failure = gradient(at)
    with at.precision():
        output = at.subject.output(at.points)
        emit(found if at.value is None else stated(at, at.value))
    if failure is not None:
        emit(failure)
        skip([each for each in checks if each != ORDERS[0]], NOT_REACHED[1])
        return {}
    with at.precision():
        for name, check in checks.items():
            try:
                findings = list(check(at))
                # A lower precision inside the function is no fault: the check runs again with that tolerance.
                if any(each.status in ("failed", "undecided") for each in findings) and at.is_coarser():
                    findings = list(check(at))
                for each in findings:
                    emit(each)
            except Exception as error:  # an exception from the user's functions is a finding
                emit(at.raised(name, error))
        for other in (repeated(at, output), alone(at)):
            if other is not None:
                emit(other)
        gradients = zip(at.arguments.names, at.gradient, strict=True)
        return {
            "epsilon": [numpy.asarray(at.eps)],
            "output": output,
            **{f"gradient of {name}": [gradient] for name, gradient in gradients},
        }


def _chosen(at: Inspection) -> dict[str, Check]:
    """Returns the checks to run, by name."""
    checks: dict[str, Check] = {}
    if "reverse" in at.modes:
        checks[ORDERS[0]] = first
        for order in range(1, at.order):
            checks[ORDERS[order]] = functools.partial(higher, order=order)
    checks["linearity"] = linearity
    if at.is_compiled:
        checks["compiled"] = compiled
        checks["export"] = exported
    if "forward" in at.modes:
        checks["forward mode"] = forward
    return {**checks, "memory": memory}
