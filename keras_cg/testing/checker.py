"""`check_gradients` and `assert_gradients`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from keras_cg import config, errors
from keras_cg.call import function_name
from keras_cg.testing import checks, comparison, messages
from keras_cg.testing.arrays import Array
from keras_cg.testing.inspection import ORDERS, TOLERANCES, Inspection
from keras_cg.testing.report import Finding, Report
from keras_cg.testing.subject import arguments

__all__ = ["agreement", "assert_gradients", "check_gradients"]

MODES = ("reverse", "forward")


def check_gradients(
    f: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    order: int = 2,
    modes: Sequence[str] = MODES,
    backends: Sequence[str] | None = None,
    expected: Callable[..., Any] | None = None,
    value: Callable[..., Any] | None = None,
    compiled: bool = True,
    fast: bool = False,
    seed: int = 0,
    on_finding: Callable[[Finding], None] | None = None,
) -> Report:
    """Checks the gradient of a function against differences, against itself, and between backends.

    Made for functions decorated with `keras_cg.custom_gradient`; any other function will do. At the point `args`, for a
    random upstream that is nowhere the same:

    - *value*: the function is finite and gives the same when it is called again, and what `value` gives;
    - *first order*: the rule gives the derivative, by differences along each element (24 of a larger argument) and
      along random directions, argument by argument, and at a second point close by; in the dtypes given it is right to
      two digits; and it gives the same when it is called again, after other calls, too;
    - *second order* and so on: the derivative of what the rule gives is that of its differences, and the second
      derivative of the function;
    - *linearity*: the rule is linear in upstream of any size, or gives there what was declared;
    - *compiled*: `jax.jit`, `torch.compile` or `tf.function` changes neither output nor gradient;
    - *export*: as `jax.export`, a SavedModel or `torch.export` has it, the function gives the same, and its gradient is
      carried or not there, but never another one: `Finding.gradient` says which;
    - *forward mode*: `keras_cg.jvp` gives the derivative as well;
    - *memory*: nothing of a call is kept when nobody holds it, without help of the garbage collector;
    - *agreement*: with several backends, all of them compute the same.

    Where the function can be computed in double precision, it is checked there, to six digits; else in the dtypes of
    its arguments, with float32 to three, or in the precision that it has inside, if that is lower. A check that cannot
    decide, at a kink, where rounding hides the derivative, for an argument without elements, is "undecided" and never
    "passed". What a rule gives for captured `variables` is not looked at: pass them as arguments.

    Args:
        f: The function.
        *args: Its arguments, any nest. Arrays of NumPy or of a framework, of floating or complex dtype, are
            differentiated; numbers and everything else are static.
        kwargs: Its keyword arguments.
        order: How often to differentiate, 1 to 4.
        modes: "reverse", "forward" or both.
        backends: The names of the backends to check on; None for the active one. All that are installed:
            `keras_cg.available_backends()`.
        expected: What the gradient should be if it is not the derivative of `f`: another function of the same
            arguments, whose derivative it should be (`lambda x: x` for a straight-through estimator), or, with a
            parameter called `upstream`, another rule (`lambda x, upstream: clip(upstream)`).
        value: What the output should be: another function of the same arguments. Without it nobody asks whether the
            output itself is right.
        compiled: Whether to compile, and to export.
        fast: Looks along random directions alone, and neither compiles nor exports; where it finds a fault it looks
            closer. For a hook that runs often.
        seed: For upstreams and directions.
        on_finding: Called with each `Finding` when it is there.

    Returns:
        A `Report`, which is true if everything passed, and prints what did not.

    Raises:
        ValueError: No argument can be differentiated, an option has no such value, a backend is unknown, or `expected`
            gives another shape.
        TypeError: An argument cannot be held by NumPy.
        ImportError: A backend is not installed.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg.testing import check_gradients
        >>> @keras_cg.custom_gradient
        ... def square(x):
        ...     return x**2, lambda upstream: upstream * x
        >>> report = check_gradients(square, np.array([1.0, 2.0]), order=1)
        >>> report.cell("numpy", "first order")[0].diagnosis
        'a factor of 1/2'
    """
    if not callable(f):
        raise errors.not_callable(f)
    name = function_name(f)
    if order not in range(1, len(ORDERS) + 1):
        raise messages.bad_option(name, "order", order, f"a number from 1 to {len(ORDERS)}")
    if isinstance(modes, str) or not modes or not set(modes) <= set(MODES):
        raise messages.bad_option(name, "modes", modes, 'a sequence of "reverse", "forward" or both')
    if expected is not None and not callable(expected):
        raise messages.bad_option(name, "expected", expected, "a function or a rule")
    if value is not None and not callable(value):
        raise messages.bad_option(name, "value", value, "a function")
    if backends is not None and (isinstance(backends, str) or not backends):
        raise messages.bad_option(name, "backends", backends, "a sequence of names of backends")
    if not isinstance(seed, int) or seed < 0:
        raise messages.bad_option(name, "seed", seed, "a number from 0 on")
    findings: list[Finding] = []
    evidence: dict[str, dict[str, list[Array]]] = {}

    def tell(finding: Finding) -> None:
        findings.append(finding)
        if on_finding is not None:
            on_finding(finding)

    for backend in (config.backend(),) if backends is None else backends:
        # Away from the point a function may overflow, and NumPy warns of it.
        with config.use_backend(backend), numpy.errstate(all="ignore"):
            given = arguments(f, args, kwargs or {})
            evidence[backend] = checks.run(
                Inspection(f, given, expected, value, order, modes, compiled, fast, seed), tell
            )
    for finding in agreement(evidence):
        tell(finding)
    return Report(name, tuple(findings), evidence)


def assert_gradients(f: Callable[..., Any], *args: Any, **options: Any) -> Report:
    """As `check_gradients`, but raises if not everything passed.

    Args:
        f: The function.
        *args: Its arguments.
        **options: As for `check_gradients`.

    Returns:
        The report.

    Raises:
        AssertionError: Something failed or could not be decided; the message is the report.

    Example:
        >>> import numpy as np
        >>> from keras_cg import ops
        >>> from keras_cg.testing import assert_gradients
        >>> print(assert_gradients(lambda x: ops.sin(x), np.array([1.0, 2.0])))
        gradients of <lambda>: passed
          numpy: passed
    """
    __tracebackhide__ = True
    report = check_gradients(f, *args, **options)
    if not report:
        raise AssertionError(str(report))
    return report


def agreement(evidence: Mapping[str, Mapping[str, Sequence[Array]]]) -> list[Finding]:
    """Compares what several backends computed with that one of them that most others agree with.

    Args:
        evidence: For each backend what `Report.evidence` has.

    Returns:
        One finding for each backend that computed something; none if that is only one.
    """
    present = {backend: found for backend, found in evidence.items() if found}
    if len(present) < 2:
        return []
    rounds = [[_agree(found, name, other) for name, other in present.items()] for found in present.values()]
    return max(rounds, key=lambda findings: sum(each.status == "passed" for each in findings))


def _agree(right: Mapping[str, Sequence[Array]], backend: str, came: Mapping[str, Sequence[Array]]) -> Finding:
    """What comes of comparing one backend with another."""
    # The coarser of the two precisions.
    tolerance = 2 * TOLERANCES[max(float(each["epsilon"][0]) for each in (right, came))]
    largest = 0.0
    for what in right:
        if what == "epsilon":
            continue
        if [each.shape for each in right[what]] != [each.shape for each in came[what]]:
            return Finding(backend, "agreement", "failed", reason=f"the shape of the {what} differs between backends")
        rows = [row for pair in zip(came[what], right[what], strict=True) for row in comparison.elements(*pair)]
        size = max((abs(each.expected) for each in rows), default=0.0) or 1.0
        worst = max(rows, key=lambda each: each.difference, default=None)
        if worst is None:
            continue
        largest = max(largest, worst.difference / size)
        if worst.difference > tolerance * size:
            return Finding(
                backend,
                "agreement",
                "failed",
                reason=f"the {what} differs from that of other backends",
                where=worst.where,
                came=comparison.text(worst.came),
                expected=comparison.text(worst.expected),
                error=worst.difference / size,
                tolerance=tolerance,
            )
    return Finding(backend, "agreement", "passed", error=largest, tolerance=tolerance)
