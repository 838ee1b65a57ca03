"""Checks that compiled and exported programs compute the same as the function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy

from keras_cg.testing import comparison
from keras_cg.testing.inspection import Inspection
from keras_cg.testing.report import Finding
from keras_cg.testing.subject import Arrays
from keras_cg.testing.verdicts import compare


def compiled(at: Inspection) -> Iterator[Finding]:
    """Compares output and gradient of the compiled function with those of the eager one."""
    check = "compiled"
    flat, floating = at.subject.bound(at.points)
    program = at.backend.compiled(_fresh(lambda *floating: flat(*floating)[0]))
    if program is None:
        yield at.finding(check, "skipped", reason=f"{at.name} has no compiler")
        return
    try:
        outputs, gradients = at.subject.pulled(lambda *floating: (program(*floating), ()), floating, at.upstream)
    except Exception as error:
        raised = at.raised(check, error)
        yield replace(raised, status="undecided", reason=f"it does not compile: {raised.reason}")
        return
    other = _other_output(at, check, outputs)
    if other is not None:
        yield replace(other, reason="the compiled output differs from the eager one")
        return
    for number, came in enumerate(gradients):
        found = compare(at, check, number, comparison.elements(came, at.gradient[number]))
        if found.status == "failed":
            found = replace(found, reason="the compiled gradient differs from the eager one")
        yield found


def _other_output(at: Inspection, check: str, outputs: Sequence[Any]) -> Finding | None:
    """Compares the output of a program with that of the function; returns the first difference."""
    for each, output in zip(at.subject.arrays(outputs), at.subject.output(at.points), strict=True):
        found = compare(at, check, None, comparison.elements(each, output))
        if found.status == "failed":
            return found
    return None


def exported(at: Inspection) -> Iterator[Finding]:
    """Compares the output of the exported function with that of the function, and classifies its gradient."""
    check = "export"
    flat, floating = at.subject.bound(at.points)
    try:
        program = at.backend.exported(_fresh(lambda *floating: flat(*floating)[0]), floating)
        outputs = None if program is None else program(*floating)
    except Exception as error:
        raised = at.raised(check, error)
        # A framework refuses to export some operations, such as JAX a callback: no fault of the function.
        status = "skipped" if isinstance(error, NotImplementedError) else "undecided"
        yield replace(raised, status=status, reason=f"it cannot be exported: {raised.reason}")
        return
    if program is None or outputs is None:
        yield at.finding(check, "skipped", reason=f"{at.name} has nothing to export to")
        return
    other = _other_output(at, check, outputs)
    if other is not None:
        yield replace(other, reason="the exported output differs from the function's")
        return
    try:
        _, gradients = at.subject.pulled(lambda *floating: (program(*floating), ()), floating, at.upstream)
    except Exception:  # each export format raises its own error if it has no gradient
        yield at.finding(check, "passed", gradient="refused")
        return
    yield _compare_gradients(at, check, gradients)


def _compare_gradients(at: Inspection, check: str, gradients: Arrays) -> Finding:
    """Classifies the gradient of an exported program: the right one, none, or another one."""
    pairs = zip(gradients, at.gradient, strict=True)
    found = [compare(at, check, number, comparison.elements(came, right)) for number, (came, right) in enumerate(pairs)]
    wrong = [each for each in found if each.status == "failed"]
    if not wrong:
        return replace(found[0], argument=None, error=max(each.error or 0.0 for each in found), gradient="carried")
    if not any(map(numpy.any, gradients)):
        return at.finding(check, "passed", gradient="absent")
    if not at.is_decorated:  # its parts without a custom gradient are differentiable in any format
        return at.finding(check, "passed", gradient="in part")
    return replace(wrong[0], reason="the gradient of the exported program differs from the function's")


def _fresh(fun: Any) -> Callable[..., Any]:
    """Returns a copy of a function with a new code object.

    torch (2.13) limits how often it recompiles one code object, and TensorFlow (2.21) warns of repeated tracing.
    """
    return FunctionType(fun.__code__.replace(), fun.__globals__, fun.__name__, None, fun.__closure__)
