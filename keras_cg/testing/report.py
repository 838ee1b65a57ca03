"""The result of a check: plain data that can be printed, compared and written as JSON.

A new check is in `CHECKS` here and in `_chosen` of checks/__init__.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras_cg.testing.arrays import Array

__all__ = ["CHECKS", "Finding", "Report"]

# The checks, in the order in which they run.
CHECKS = (
    *("value", "first order", "second order", "linearity", "compiled", "export", "forward mode", "memory"),
    "agreement",
)

# The results of a check, the worst first. "skipped": the backend cannot do it, or it was not requested.
STATUSES = ("failed", "undecided", "passed", "skipped")

# The reasons for which a check is skipped because an earlier one did not pass.
NOT_REACHED = ("the function has no valid value", "the function has no valid gradient")


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check on one backend, for one argument or for the whole call.

    Attributes:
        backend: The backend's name.
        check: One of `CHECKS`, or "third order" and so on.
        status: "passed", "failed", "undecided" or "skipped".
        argument: The argument's name and path, such as `params["w"]`; None for the whole call.
        error: The largest error, relative to the largest number expected. None where nothing was compared.
        tolerance: The largest error that passes.
        where: The place of the largest error: an index expression such as `[3, 0]`, or "along a random direction".
        came: The value from the rule at that place, as text.
        expected: The right value at that place, as text.
        diagnosis: The most likely fault. None where no known fault matches.
        reason: Why the check failed without a number, could not decide, or was skipped.
        gradient: For an export, the state of the gradient in the exported program: "carried", "in part", "absent" or
            "refused".

    See Also:
        `keras_cg.testing.Report`, which has the findings of all checks.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg.testing import check_gradients
        >>> @keras_cg.custom_gradient
        ... def square(x):
        ...     return x * x, lambda upstream: upstream * x  # the factor 2 is missing
        >>> report = check_gradients(square, np.array([0.3, -1.2, 2.6]), order=1)
        >>> (finding,) = [each for each in report.findings if each.check == "first order"]
        >>> finding.status, finding.argument, finding.diagnosis
        ('failed', 'x', 'a factor of 1/2')
    """

    backend: str
    check: str
    status: str
    argument: str | None = None
    error: float | None = None
    tolerance: float | None = None
    where: str | None = None
    came: str | None = None
    expected: str | None = None
    diagnosis: str | None = None
    reason: str | None = None
    gradient: str | None = None

    def __str__(self) -> str:
        is_element = self.where is not None and self.where.startswith("[")
        place = f"{self.argument or ''}{self.where}" if is_element else self.argument
        parts = [f"{self.check}: {self.status}", f"at {place}" if place else "", self.reason or ""]
        lines = [", ".join(filter(None, parts))]
        if self.status == "failed" and self.error is not None:
            if self.where and not is_element:
                lines.append(f"    {self.where}")
            lines.append(f"    got: {self.came}")
            lines.append(f"    expected: {self.expected}")
            lines.append(f"    error: {self.error:.1e} of the largest number, allowed {self.tolerance:.0e}")
        if self.diagnosis:
            lines.append(f"    diagnosis: {self.diagnosis}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of `check_gradients` for a function.

    A report is true if every check passed. As text it lists the checks that did not pass.

    Attributes:
        function: The function's name.
        findings: One `Finding` for each backend, check and argument.
        evidence: The arrays that each backend computed: "output", "gradient of x" for each argument, and
            "epsilon", the precision. Not part of `to_dict`.

    See Also:
        `keras_cg.testing.check_gradients`, which returns it. `keras_cg.testing.Finding`, one row.

    Example:
        >>> import numpy as np
        >>> from keras_cg import ops
        >>> from keras_cg.testing import Report, check_gradients
        >>> report = check_gradients(lambda x: ops.sin(x), np.array([1.0, 2.0]))
        >>> report.status, bool(report), report.backends
        ('passed', True, ('numpy',))
        >>> [finding.status for finding in report.cell("numpy", "first order")]
        ['passed']
        >>> Report.from_dict(report.to_dict()) == report
        True
    """

    function: str
    findings: tuple[Finding, ...]
    evidence: dict[str, dict[str, list[Array]]] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that were checked, in order."""
        return tuple(dict.fromkeys(each.backend for each in self.findings))

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks that ran, in order."""
        return tuple(dict.fromkeys(each.check for each in self.findings))

    @property
    def status(self) -> str:
        """The worst status among the findings: "failed", "undecided" or "passed"."""
        return worst(self.findings)

    def __bool__(self) -> bool:
        return self.status == "passed"

    def cell(self, backend: str, check: str) -> tuple[Finding, ...]:
        """Returns the findings of one check on one backend."""
        return tuple(each for each in self.findings if each.backend == backend and each.check == check)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain data for JSON; `from_dict` reads it."""
        return {
            "function": self.function,
            "status": self.status,
            "findings": [dataclasses.asdict(each) for each in self.findings],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        """Returns the report that `to_dict` wrote."""
        return cls(data["function"], tuple(Finding(**each) for each in data["findings"]))

    def __str__(self) -> str:
        lines = [f"gradients of {self.function}: {self.status}"]
        for backend in self.backends:
            found = [each for each in self.findings if each.backend == backend]
            problems = [each for each in found if each.status in ("failed", "undecided")]
            lines.append(f"  {backend}: {worst(found)}")
            lines += [f"    {line}" for each in problems for line in str(each).splitlines()]
        return "\n".join(lines)


def worst(findings: Sequence[Finding]) -> str:
    """Returns the worst status among some findings; "skipped" if every one was skipped."""
    found = {each.status for each in findings}
    return next((status for status in STATUSES if status in found), "skipped")
