"""The state of a run of `keras-cg check`, which the tables show."""

from __future__ import annotations

import dataclasses

from keras_cg.testing.report import CHECKS, Finding, Report

__all__ = ["Board", "Problem"]


@dataclasses.dataclass(frozen=True)
class Problem:
    """A failure of a backend outside a check: its process died, or it raised."""

    backend: str
    message: str
    # The function that it was checking; None before the first one.
    function: str | None = None
    check: str | None = None
    stderr: tuple[str, ...] = ()


@dataclasses.dataclass
class Board:
    """The state of a run of `keras-cg check`.

    Attributes:
        target: The target on the command line.
        backends: The backends that run.
        functions: The functions of the target; empty until the first process has found them.
        findings: The findings so far, by function and backend.
        done: The pairs of function and backend that are finished.
        problems: The failures outside the checks.
        absent: A line for each requested backend that is not installed.
        usage: The usage error of each backend that found no function.
        unchecked: The parts that `--fast` leaves out.
        left_out: The reason for each decorated function of the target that is not checked.
        is_strict: Whether such a function is a failure.
    """

    target: str
    backends: list[str]
    functions: list[str] = dataclasses.field(default_factory=list)
    findings: dict[tuple[str, str], list[Finding]] = dataclasses.field(default_factory=dict)
    done: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    problems: list[Problem] = dataclasses.field(default_factory=list)
    absent: list[str] = dataclasses.field(default_factory=list)
    usage: dict[str, str] = dataclasses.field(default_factory=dict)
    unchecked: tuple[str, ...] = ()
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    is_strict: bool = False

    def found(self, function: str, backend: str) -> list[Finding]:
        """Returns the findings of a function on a backend."""
        return self.findings.setdefault((function, backend), [])

    def problem(self, function: str, backend: str) -> Problem | None:
        """Returns the failure of a function on a backend outside the checks, if there is one."""
        return next((each for each in self.problems if each.backend == backend and each.function == function), None)

    def running(self, function: str, backend: str) -> str | None:
        """Returns the check that is probably running for a function on a backend; None if there is none."""
        if (function, backend) in self.done or (self.functions and self.current(backend) != function):
            return None
        seen = [CHECKS.index(each.check) for each in self.found(function, backend) if each.check in CHECKS]
        # Agreement needs the results of all backends, so no backend runs it.
        return CHECKS[min(max(seen, default=-1) + 1, len(CHECKS) - 2)]

    def current(self, backend: str) -> str | None:
        """Returns the function that a backend is checking; None if it has checked all."""
        return next((each for each in self.functions if (each, backend) not in self.done), None)

    def reports(self) -> list[Report]:
        """Returns one report for each function, with the findings of all backends."""
        return [
            Report(name, tuple(each for backend in self.backends for each in self.found(name, backend)))
            for name in self.functions
        ]

    def status(self) -> int:
        """Returns the exit status."""
        if self.absent or (self.usage and len(self.usage) == len(self.backends)):
            return 2
        is_failed = self.problems or (self.is_strict and self.left_out)
        return 0 if not is_failed and all(report.status == "passed" for report in self.reports()) else 1
