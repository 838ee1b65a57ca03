"""What the checker found: plain data, which prints, compares and travels as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras_cg.testing.arrays import Array

__all__ = ["CHECKS", "Finding", "Report"]

# What is checked, in this order.
CHECKS = (
    *("value", "first order", "second order", "linearity", "compiled", "export", "forward mode", "memory"),
    "agreement",
)

# What can come of a check, the worst first. "skipped" is what a backend cannot be asked, or nobody asked.
STATUSES = ("failed", "undecided", "passed", "skipped")


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check of one backend gave, for one argument or for the whole call.

    Attributes:
        backend: The backend's name.
        check: One of `CHECKS`, or "third order" and so on.
        status: "passed", "failed", "undecided" or "skipped".
        argument: The argument's name and path, such as `params["w"]`; None for the whole call.
        error: The largest error, relative to the largest number expected; None where nothing was compared.
        tolerance: What it may be.
        where: Where that error is: an index expression such as `[3, 0]`, or "along a random direction".
        came: What the rule gave there, as text.
        expected: What it should have given there.
        diagnosis: What the fault most likely is; None where nothing fits.
        reason: Why the check failed without a number, could not decide, or was skipped.
        gradient: Of an export, what became of the gradient: "carried", "in part", "absent" or "refused".
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
        told = [f"{self.check}: {self.status}", f"at {place}" if place else "", self.reason or ""]
        lines = [", ".join(each for each in told if each)]
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
    """Everything that `check_gradients` found out about a function.

    It is true if every check passed, and prints what did not.

    Attributes:
        function: The function's name.
        findings: One `Finding` for each backend, check and argument.
        evidence: For each backend the arrays that it computed: "output", "gradient of x" for each argument, and
            "epsilon", the precision. Not part of `to_dict`.
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
        """The checks that were made, in order."""
        return tuple(dict.fromkeys(each.check for each in self.findings))

    @property
    def status(self) -> str:
        """The worst that was found: "failed", "undecided" or "passed"."""
        return worst(self.findings)

    def __bool__(self) -> bool:
        return self.status == "passed"

    def cell(self, backend: str, check: str) -> tuple[Finding, ...]:
        """The findings of one check of one backend."""
        return tuple(each for each in self.findings if each.backend == backend and each.check == check)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON; `from_dict` reads it."""
        return {
            "function": self.function,
            "status": self.status,
            "findings": [dataclasses.asdict(each) for each in self.findings],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        """The report that `to_dict` wrote."""
        return cls(data["function"], tuple(Finding(**each) for each in data["findings"]))

    def __str__(self) -> str:
        lines = [f"gradients of {self.function}: {self.status}"]
        for backend in self.backends:
            found = [each for each in self.findings if each.backend == backend]
            told = [each for each in found if each.status in ("failed", "undecided")]
            lines.append(f"  {backend}: {worst(found)}")
            lines += [f"    {line}" for each in told for line in str(each).splitlines()]
        return "\n".join(lines)


def worst(findings: Sequence[Finding]) -> str:
    """The worst status of some findings; "passed" if all that were not skipped passed."""
    found = {each.status for each in findings}
    return next((status for status in STATUSES if status in found), "skipped")
