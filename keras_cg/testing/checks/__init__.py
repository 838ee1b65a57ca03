"""The checks of one function at one point on one backend, one after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

import numpy

from keras_cg.testing.checks.forward import forward
from keras_cg.testing.checks.linearity import linearity
from keras_cg.testing.checks.memory import memory
from keras_cg.testing.checks.orders import first, higher
from keras_cg.testing.checks.programs import compiled, exported
from keras_cg.testing.checks.value import gradient, repeated, stated, value
from keras_cg.testing.inspection import ORDERS, Inspection
from keras_cg.testing.report import Finding
from keras_cg.testing.subject import Arrays

Look = Callable[[Inspection], Iterator[Finding]]


def run(at: Inspection, tell: Callable[[Finding], None]) -> dict[str, Arrays]:
    """Makes all checks and tells what each one found.

    Returns:
        The output and the gradient, for comparison with other backends; nothing if there is none.
    """
    checks = _chosen(at)

    def skip(names: Iterable[str], reason: str) -> None:
        for name in names:
            tell(at.finding(name, "skipped", reason=reason))

    with at.precision():
        found = value(at)
    if found.status != "passed":
        tell(found)
        skip(checks, "there is no value to go on with")
        return {}
    with at.precision():
        failure = gradient(at)
    with at.precision():
        output = at.subject.output(at.points)
        tell(found if at.value is None else stated(at, at.value))
    if failure is not None:
        tell(failure)
        skip([each for each in checks if each != ORDERS[0]], "there is no gradient to go on with")
        return {}
    with at.precision():
        for check, look in checks.items():
            try:
                looked = list(look(at))
                # What a lower precision inside explains is no fault.
                if any(each.status in ("failed", "undecided") for each in looked) and at.is_coarser():
                    looked = list(look(at))
                for each in looked:
                    tell(each)
            except Exception as error:  # whatever the user's functions raise is a finding
                tell(at.raised(check, error))
        other = repeated(at, output)
        if other is not None:
            tell(other)
        gradients = zip(at.given.names, at.gradient, strict=True)
        return {
            "epsilon": [numpy.asarray(at.eps)],
            "output": output,
            **{f"gradient of {name}": [gradient] for name, gradient in gradients},
        }


def _chosen(at: Inspection) -> dict[str, Look]:
    """What is to be looked at, by the name of the check."""
    checks: dict[str, Look] = {}
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
