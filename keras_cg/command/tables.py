"""The output of `keras-cg check`: a table for each function, live on a terminal, and the findings."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from keras_cg.command import progress
from keras_cg.command.board import Board, Problem
from keras_cg.testing.report import CHECKS, NOT_REACHED, Finding, Report, worst

__all__ = ["Picture", "show"]

STYLES = {"passed": "green", "failed": "bold red", "undecided": "yellow", "skipped": "dim"}

MARKS = {"passed": "✓", "failed": "✗", "undecided": "?", "skipped": "–"}  # noqa: RUF001 - a dash is intended
ASCII_MARKS = {"passed": "ok", "failed": "X", "undecided": "?", "skipped": "-"}


# In the cell of a check that was not reached; `skipped` in MARKS is for a check that does not apply.
SKIP = "skip"


def _marks(console: Console) -> dict[str, str]:
    return MARKS if console.encoding.startswith("utf") else ASCII_MARKS


# One spinner for all cells and pictures, because a new one starts at its first frame.
_SPINNER = Spinner("dots", style="cyan")


class Picture:
    """Draws the current state of the board: the function that is being checked, and the progress."""

    def __init__(self, board: Board):
        self.board = board

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        board = self.board
        at_work = [name for name in board.functions if any((name, each) not in board.done for each in board.backends)]
        if not at_work:
            _SPINNER.update(text=Text(f" {board.target} on {', '.join(board.backends)}"))
            yield _SPINNER
            return
        _SPINNER.update(text="")
        yield title(board, at_work[0])
        yield from tables(console, board, at_work[0], _SPINNER)
        yield progress.bar(*self._progress(), "checks")

    def _progress(self) -> tuple[int, int]:
        """Returns how many checks are done, and how many there are."""
        board = self.board
        pairs = [(name, backend) for name in board.functions for backend in board.backends]
        each = len(CHECKS) - 1
        done = [
            each if pair in board.done else min(len({found.check for found in board.found(*pair)}), each)
            for pair in pairs
        ]
        return sum(done), each * len(pairs)


def title(board: Board, function: str) -> Text:
    """Returns the title of the table of a function."""
    return Text.assemble((function, "bold"), ("  " + board.target.removesuffix(f":{function}"), "dim"))


def tables(console: Console, board: Board, function: str, spinner: RenderableType | None = None) -> Iterator[Table]:
    """Yields the table of a function, with one column for each backend; several tables if one is too wide."""
    columns: list[str] = []
    for backend in board.backends:
        if columns and _width(console, _table(console, board, function, [*columns, backend])) > console.width:
            yield _table(console, board, function, columns, spinner)
            columns = []
        columns.append(backend)
    yield _table(console, board, function, columns, spinner)


def _width(console: Console, table: Table) -> int:
    """Returns the width of a table in characters."""
    return console.measure(table, options=console.options.update(max_width=10_000)).maximum


def _table(
    console: Console,
    board: Board,
    function: str,
    backends: Sequence[str],
    spinner: RenderableType | None = None,
) -> Table:
    found = Table(box=box.ROUNDED, border_style="dim")
    found.add_column("check", header_style="dim", no_wrap=True)
    for backend in backends:
        found.add_column(backend, header_style="bold", min_width=11, no_wrap=True)
    marks = _marks(console)
    for check in filter(functools.partial(_is_reached, board, function), _rows(board, function)):
        found.add_row(check, *(_cell(board, function, backend, check, marks, spinner) for backend in backends))
    return found


def _rows(board: Board, function: str) -> list[str]:
    """Returns the checks in order, with the orders above two after the second."""
    seen = dict.fromkeys(each.check for backend in board.backends for each in board.found(function, backend))
    further = [check for check in seen if check not in CHECKS]
    after = CHECKS.index("second order") + 1
    return [*CHECKS[:after], *further, *CHECKS[after:]]


def _is_reached(board: Board, function: str, check: str) -> bool:
    """Whether a check was reached on some backend."""
    cells = (_cell(board, function, backend, check, MARKS, None) for backend in board.backends)
    return any(str(cell) != SKIP for cell in cells)


def _cell(
    board: Board, function: str, backend: str, check: str, marks: dict[str, str], spinner: RenderableType | None
) -> RenderableType:
    findings = [each for each in board.found(function, backend) if each.check == check]
    if findings:
        return _summary(findings, marks)
    if spinner is not None and board.running(function, backend) == check:
        return spinner
    problem = board.problem(function, backend)
    is_reached = not any(each.reason in NOT_REACHED for each in board.found(function, backend))
    is_final = (function, backend) in board.done and (spinner is None or check != "agreement")
    if problem is None and is_final and (is_reached or len(board.backends) == 1):
        return _summary([], marks)
    if problem is not None and check == (problem.check or CHECKS[0]):
        return Text(f"{marks['failed']} stopped", STYLES["failed"])
    return Text(SKIP, STYLES["skipped"]) if (function, backend) in board.done else Text("")


def _summary(findings: Sequence[Finding], marks: dict[str, str]) -> Text:
    """Formats the findings of one check: a mark with the largest error, or the state of an exported gradient."""
    status = worst(findings)
    if any(each.reason in NOT_REACHED for each in findings):
        return Text(SKIP, STYLES[status])
    words = {"undecided": "undecided", "skipped": ""}
    sizes = [each.error for each in findings if each.status == status and each.error is not None]
    size = words.get(status, _short(max(sizes)) if sizes else "")
    if status == "passed" and findings[0].gradient is not None:
        size = findings[0].gradient
    return Text(f"{marks[status]} {size}".rstrip(), STYLES[status])


def _short(number: float) -> str:
    """Formats an error: `3e-9`, `0.2`, `0`."""
    if number == 0 or 0.01 <= number < 1000:
        return f"{number:.2g}"
    return f"{number:.0e}".replace("e-0", "e-").replace("e+0", "e")


def show(board: Board) -> None:
    """Prints all tables, all findings that did not pass, and the verdict."""
    console = Console()
    marks = _marks(console)
    for report in board.reports():
        console.print()
        console.print(title(board, report.function), soft_wrap=True)
        # If no check passed on any backend, all other cells would be `skip`, and the findings below say it all.
        has_table = any(each.status == "passed" for each in report.findings)
        for each in tables(console, board, report.function) if has_table else ():
            # If even one backend is too wide, the terminal wraps the lines: no text is lost.
            console.width = max(console.width, _width(console, each))
            console.print(each)
        skipped = [check for check in _rows(board, report.function) if not _is_reached(board, report.function, check)]
        if skipped:
            console.print(Text(f"not reached: {', '.join(skipped)}", STYLES["skipped"]), soft_wrap=True)
        for lines in _problems(report, marks):
            console.print(lines, soft_wrap=True)
    for problem in board.problems:
        console.print(_problem(problem, marks), soft_wrap=True)
    for line in board.absent:
        console.print(Text(f"{marks['undecided']} {line}", STYLES["undecided"]), soft_wrap=True)
    console.print()
    if board.unchecked:
        console.print(Text(f"not checked with --fast: {', '.join(board.unchecked)}", "dim"), soft_wrap=True)
    if board.left_out:
        names = ", ".join(f"{name} ({why})" for name, why in board.left_out.items())
        console.print(Text(f"{marks['undecided']} not checked: {names}", STYLES["undecided"]), soft_wrap=True)
    console.print(_verdict(board, marks), soft_wrap=True)


def _problem(problem: Problem, marks: dict[str, str]) -> Text:
    backend, _, message = problem.message.partition(": ")
    return Text.assemble((f"{marks['failed']} {backend}", STYLES["failed"]), f": {message}")


def _problems(report: Report, marks: dict[str, str]) -> Iterator[Text]:
    """Yields the findings that did not pass; findings that several backends share appear once."""
    groups: dict[tuple[str | None, ...], list[Finding]] = {}
    for each in report.findings:
        if each.status in ("failed", "undecided"):
            key = (each.check, each.argument, each.status, each.diagnosis, each.reason)
            groups.setdefault(key, []).append(each)
    order = [*CHECKS, *report.checks]
    for findings in sorted(groups.values(), key=lambda each: order.index(each[0].check)):
        yield _group(findings, marks)


def _group(findings: Sequence[Finding], marks: dict[str, str]) -> Text:
    # The numbers of the backend with the largest error.
    one = max(findings, key=lambda each: each.error if each.error is not None else -1.0)
    style = STYLES[one.status]
    of = f" of {one.argument}" if one.argument else ""
    text = Text.assemble(
        (f"{marks[one.status]} {one.check}{of}", style),
        ("" if one.status == "failed" else f" {one.status}", style),
        (" on " + ", ".join(dict.fromkeys(each.backend for each in findings)), "bold"),
    )
    if one.reason:
        text.append(f"\n    {one.reason}")
    if one.error is not None and one.came is not None:
        is_element = one.where is not None and one.where.startswith("[")
        where = f"{(one.argument or '') if is_element else ''}{one.where}: " if one.where else ""
        text.append(f"\n    {where}got {one.came}, expected {one.expected}")
        text.append(f" (error {_short(one.error)}, tolerance {_short(one.tolerance or 0)})", "dim")
    if one.diagnosis:
        text.append("\n    diagnosis: ", "dim")
        text.append(one.diagnosis, "bold")
    return text


def _verdict(board: Board, marks: dict[str, str]) -> Text:
    """Returns the last line."""
    by_status: dict[str, list[str]] = {}
    for report in board.reports():
        by_status.setdefault(report.status, []).append(report.function)
    where = ", ".join(board.backends)
    parts = [f"{status}: {', '.join(by_status[status])}" for status in ("failed", "undecided") if status in by_status]
    if board.status() == 0:
        names = ", ".join(by_status["passed"])
        agree = ", which agree" if len(board.backends) > 1 else ""
        return Text(f"{marks['passed']} passed: {names} on {where}{agree}", "bold green")
    stopped = list(dict.fromkeys(each.backend for each in board.problems))
    if stopped:
        parts.append(f"stopped: {', '.join(stopped)}")
    if board.absent:
        parts.append(f"not installed: {', '.join(line.partition(':')[0] for line in board.absent)}")
    if board.is_strict and board.left_out:
        parts.append(f"not checked, with --strict: {', '.join(board.left_out)}")
    mark = "undecided" if set(by_status) <= {"undecided", "passed"} and not stopped and not board.absent else "failed"
    return Text(f"{marks[mark]} " + "; ".join(parts or ["nothing was checked"]), STYLES[mark])
