"""`check_gradients` and `assert_gradients`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from keras_cg.frontend import config
from keras_cg.frontend import messages as frontend_messages
from keras_cg.frontend.call import function_name
from keras_cg.testing import checks, comparison, messages
from keras_cg.testing.arrays import Array
from keras_cg.testing.inspection import ORDERS, TOLERANCES, Inspection
from keras_cg.testing.report import Finding, Report
from keras_cg.testing.subject import bind_arguments

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
    """Checks the gradient of a function against finite differences, for consistency, and between backends.

    Checks a function decorated with `keras_cg.custom_gradient`, or any other function. At the point `args`, for a
    random upstream gradient whose elements all differ, it checks:

    - *value*: the output is finite, does not change in a second call, and equals the output of `value`;
    - *first order*: the gradient agrees with finite differences for each argument, along each element (24 elements of a
      larger argument) and along random directions, at two points. In the dtypes of the arguments it is right to two
      digits. It does not change when the rule is called again, after other calls, or where no other argument's gradient
      is asked for;
    - *second order* and higher: the derivative of the rule agrees with finite differences of the rule, and with the
      second derivative of the function;
    - *linearity*: the rule is linear in upstream, of any size, or agrees with `expected` there;
    - *compiled*: `jax.jit`, `torch.compile` or `tf.function` changes neither output nor gradient;
    - *export*: `jax.export`, a SavedModel or `torch.export` does not change the output. The exported program has the
      right gradient or none, but never another one: `Finding.gradient` has the state;
    - *forward mode*: `keras_cg.jvp` agrees with finite differences;
    - *memory*: the tensors of a call are freed by reference counting, without the garbage collector;
    - *agreement*: several backends compute the same output and gradient.

    A function that runs in double precision is checked in it, to six digits. Otherwise the checker uses the dtypes of
    the arguments (to three digits for float32), or a lower precision if the function computes in one. A check that
    cannot decide is "undecided", never "passed": at a kink, where rounding hides the derivative, or for an argument
    without elements. Gradients for captured `variables` are not checked: pass them as arguments.

    Args:
        f: The function.
        *args: Its arguments: any pytrees. Each `inexact[...]` of NumPy or of a framework is differentiated. Numbers and
            all other values are static.
        kwargs: Its keyword arguments.
        order: The highest order of differentiation, 1 to 4.
        modes: "reverse", "forward" or both.
        backends: The names of the backends to check on; None for the active one. `keras_cg.available_backends()` lists
            all installed ones.
        expected: The reference for a gradient that is intentionally not the derivative of `f`. Either a function of the
            same arguments whose derivative the gradient should equal (`lambda x: x` for a straight-through estimator),
            or a rule with a parameter called `upstream` (`lambda x, upstream: clip(upstream)`).
        value: A function of the same arguments that returns the right output. Without it the output is not checked.
        compiled: Whether to compile and to export the function.
        fast: Uses random directions only, and neither compiles nor exports. A fault that it finds is then examined
            element by element. Use it in a commit hook.
        seed: The seed of the random upstream gradients and directions.
        on_finding: A callback that receives each `Finding` as soon as it is known.

    Returns:
        A `Report`, which is true if every check passed. As text it lists the checks that did not pass.

    Raises:
        ValueError: No argument can be differentiated, an option has an invalid value, a backend is unknown, or
            `expected` returns another shape.
        TypeError: NumPy cannot represent an argument.
        ImportError: A backend is not installed.

    See Also:
        `keras_cg.testing.assert_gradients`, which raises. `keras_cg.testing.Report`, the result.

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
        raise frontend_messages.not_callable(f)
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

    def add(finding: Finding) -> None:
        findings.append(finding)
        if on_finding is not None:
            on_finding(finding)

    for backend in (config.backend(),) if backends is None else backends:
        # At the points of a finite difference a function may overflow, and NumPy warns.
        with config.use_backend(backend), numpy.errstate(all="ignore"):
            arguments = bind_arguments(f, args, kwargs or {})
            evidence[backend] = checks.run(
                Inspection(f, arguments, expected, value, order, modes, compiled, fast, seed), add
            )
    for finding in agreement(evidence):
        add(finding)
    return Report(name, tuple(findings), evidence)


def assert_gradients(f: Callable[..., Any], *args: Any, **options: Any) -> Report:
    """Checks a gradient with `check_gradients` and raises if any check did not pass.

    Args:
        f: The function.
        *args: Its arguments: any pytrees with at least one `inexact[...]`.
        **options: The options of `check_gradients`.

    Returns:
        The `Report`.

    Raises:
        AssertionError: A check failed or could not decide. The message is the report.
        ValueError: An argument or an option is invalid, as for `check_gradients`.

    See Also:
        `keras_cg.testing.check_gradients`, which returns the report in any case.

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
    """Compares the results of several backends with those of the backend that most others agree with.

    `check_gradients` calls it. Call it to compare reports of backends that you checked one at a time.

    Args:
        evidence: The arrays of each backend: `{name: report.evidence[name]}`, from one `Report` or several.

    Returns:
        One `Finding` for each backend that has results. The list is empty if fewer than two backends have results.

    See Also:
        `keras_cg.testing.Report`, whose `evidence` it compares.

    Example:
        >>> import numpy as np
        >>> from keras_cg.testing import agreement, check_gradients
        >>> first = check_gradients(lambda x: x**2, np.array([1.0, 2.0])).evidence["numpy"]
        >>> other = check_gradients(lambda x: 2 * x, np.array([1.0, 2.0])).evidence["numpy"]
        >>> [(each.backend, each.status) for each in agreement({"here": first, "there": other})]
        [('here', 'passed'), ('there', 'failed')]
    """
    present = {backend: found for backend, found in evidence.items() if found}
    if len(present) < 2:
        return []
    rounds = [[_agree(found, name, other) for name, other in present.items()] for found in present.values()]
    return max(rounds, key=lambda findings: sum(each.status == "passed" for each in findings))


def _agree(right: Mapping[str, Sequence[Array]], backend: str, came: Mapping[str, Sequence[Array]]) -> Finding:
    """Compares the results of a backend with those of another one, `right`."""
    # The coarser of the two precisions.
    tolerance = 2 * TOLERANCES[max(float(each["epsilon"][0]) for each in (right, came))]
    found = functools.partial(Finding, backend, "agreement", tolerance=tolerance)
    largest = 0.0
    for what in [each for each in right if each != "epsilon"]:
        if [each.shape for each in right[what]] != [each.shape for each in came[what]]:
            return Finding(backend, "agreement", "failed", reason=f"the shape of the {what} differs between backends")
        rows = [row for pair in zip(came[what], right[what], strict=True) for row in comparison.elements(*pair)]
        size = max((abs(each.expected) for each in rows), default=0.0) or 1.0
        worst = max(rows, key=lambda each: each.difference, default=None)
        if worst is None:
            continue
        largest = max(largest, worst.difference / size)
        if worst.difference > tolerance * size:
            return found(
                "failed",
                reason=f"the {what} differs from that of other backends",
                where=worst.where,
                came=comparison.text(worst.came),
                expected=comparison.text(worst.expected),
                error=worst.difference / size,
            )
    return found("passed", error=largest)
