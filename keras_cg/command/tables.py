"""What `keras-cg check` shows: a table for each function, live where somebody watches, and what it means."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from keras_cg.command.check import Board, Problem
from keras_cg.testing.report import CHECKS, Finding, Report, worst

__all__ = ["live", "show"]

STYLES = {"passed": "green", "failed": "bold red", "undecided": "yellow", "skipped": "dim"}

MARKS = {"passed": "✓", "failed": "✗", "undecided": "?", "skipped": "–"}  # noqa: RUF001 - a dash that is seen
ASCII_MARKS = {"passed": "ok", "failed": "X", "undecided": "?", "skipped": "-"}


def _marks(console: Console) -> dict[str, str]:
    return MARKS if console.encoding.startswith("utf") else ASCII_MARKS


@contextlib.contextmanager
def live(board: Board) -> Iterator[Callable[[], None]]:
    """Shows the board on a terminal as long as it changes; elsewhere nothing."""
    console = Console()
    if not console.is_terminal:
        yield lambda: None
        return
    picture = _Picture(board, _marks(console))
    with Live(picture, console=console, transient=True, refresh_per_second=12) as shown:
        yield shown.refresh


class _Picture:
    """The board as it is when it is drawn: the function that is at work, and how far everything is."""

    def __init__(self, board: Board, marks: dict[str, str]):
        self.board = board
        self.marks = marks
        # One for all cells: each would start anew with every picture.
        self.spinner = Spinner("dots", style="cyan")

    def __rich__(self) -> RenderableType:
        board = self.board
        at_work = [name for name in board.functions if any((name, each) not in board.done for each in board.backends)]
        if not at_work:
            return Spinner("dots", Text(f" {board.target} on {', '.join(board.backends)}"), style="cyan")
        bar = Table.grid(padding=(0, 1))
        total, done = self._progress()
        bar.add_row(" ", ProgressBar(total, done, width=40), Text(f"{done} of {total} checks", "dim"))
        return Group(title(board, at_work[0]), table(board, at_work[0], self.marks, self.spinner), bar)

    def _progress(self) -> tuple[int, int]:
        board = self.board
        pairs = [(name, backend) for name in board.functions for backend in board.backends]
        each = len(CHECKS) - 1
        done = [
            each if pair in board.done else min(len({found.check for found in board.found(*pair)}), each)
            for pair in pairs
        ]
        return each * len(pairs), sum(done)


def title(board: Board, function: str) -> Text:
    """What stands above the table of a function."""
    return Text.assemble((function, "bold"), ("  " + board.target.removesuffix(f":{function}"), "dim"))


def table(board: Board, function: str, marks: dict[str, str], spinner: RenderableType | None = None) -> Table:
    """The checks of a function, one column for each backend."""
    found = Table(box=box.ROUNDED, border_style="dim")
    found.add_column("check", header_style="dim", no_wrap=True)
    for backend in board.backends:
        found.add_column(backend, header_style="bold", min_width=11, no_wrap=True)
    for check in _rows(board, function):
        found.add_row(check, *(_cell(board, function, backend, check, marks, spinner) for backend in board.backends))
    return found


def _rows(board: Board, function: str) -> list[str]:
    """The checks in order, higher derivatives after the second."""
    seen = dict.fromkeys(each.check for backend in board.backends for each in board.found(function, backend))
    further = [check for check in seen if check not in CHECKS]
    after = CHECKS.index("second order") + 1
    return [*CHECKS[:after], *further, *CHECKS[after:]]


def _cell(
    board: Board, function: str, backend: str, check: str, marks: dict[str, str], spinner: RenderableType | None
) -> RenderableType:
    findings = [each for each in board.found(function, backend) if each.check == check]
    if findings:
        return _summary(findings, marks)
    if spinner is not None and board.running(function, backend) == check:
        return spinner
    problem = board.problem(function, backend)
    if problem is None and (function, backend) in board.done and (spinner is None or check != "agreement"):
        return _summary([], marks)
    if problem is not None and problem.check in (check, None):
        return Text(f"{marks['failed']} stopped", STYLES["failed"]) if problem.check or check == CHECKS[0] else Text("")
    return Text("")


def _summary(findings: Sequence[Finding], marks: dict[str, str]) -> Text:
    """The findings of one check as a mark and the largest error, or what became of the gradient in an export."""
    status = worst(findings)
    words = {"undecided": "undecided", "skipped": ""}
    sizes = [each.error for each in findings if each.status == status and each.error is not None]
    size = words.get(status, _short(max(sizes)) if sizes else "")
    if status == "passed" and findings[0].gradient is not None:
        size = findings[0].gradient
    return Text(f"{marks[status]} {size}".rstrip(), STYLES[status])


def _short(number: float) -> str:
    """`3e-9`, `0.2`, `0`."""
    if number == 0 or 0.01 <= number < 1000:
        return f"{number:.2g}"
    return f"{number:.0e}".replace("e-0", "e-").replace("e+0", "e")


def show(board: Board) -> None:
    """Prints all tables, what was found, and the verdict."""
    console = Console()
    marks = _marks(console)
    for report in board.reports():
        console.print()
        console.print(title(board, report.function), soft_wrap=True)
        console.print(table(board, report.function, marks))
        for lines in _told(report, marks):
            console.print(lines, soft_wrap=True)
    for problem in board.problems:
        console.print(_problem(problem, marks), soft_wrap=True)
    for line in board.absent:
        console.print(Text(f"{marks['undecided']} {line}", STYLES["undecided"]), soft_wrap=True)
    console.print()
    console.print(_verdict(board, marks), soft_wrap=True)


def _problem(problem: Problem, marks: dict[str, str]) -> Text:
    backend, _, message = problem.message.partition(": ")
    return Text.assemble((f"{marks['failed']} {backend}", STYLES["failed"]), f": {message}")


def _told(report: Report, marks: dict[str, str]) -> Iterator[Text]:
    """What did not pass; the same on several backends once."""
    groups: dict[tuple[str | None, ...], list[Finding]] = {}
    for each in report.findings:
        if each.status in ("failed", "undecided"):
            key = (each.check, each.argument, each.status, each.diagnosis, each.reason)
            groups.setdefault(key, []).append(each)
    order = [*CHECKS, *report.checks]
    for findings in sorted(groups.values(), key=lambda each: order.index(each[0].check)):
        yield _group(findings, marks)


def _group(findings: Sequence[Finding], marks: dict[str, str]) -> Text:
    # The numbers of the backend where they are farthest apart.
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
    """The last line."""
    by_status: dict[str, list[str]] = {}
    for report in board.reports():
        by_status.setdefault(report.status, []).append(report.function)
    where = ", ".join(board.backends)
    told = [f"{status}: {', '.join(by_status[status])}" for status in ("failed", "undecided") if status in by_status]
    if board.status() == 0:
        names = ", ".join(by_status["passed"])
        agree = ", which agree" if len(board.backends) > 1 else ""
        return Text(f"{marks['passed']} passed: {names} on {where}{agree}", "bold green")
    stopped = list(dict.fromkeys(each.backend for each in board.problems))
    if stopped:
        told.append(f"stopped: {', '.join(stopped)}")
    if board.absent:
        told.append(f"not installed: {', '.join(line.partition(':')[0] for line in board.absent)}")
    mark = "undecided" if set(by_status) <= {"undecided", "passed"} and not stopped and not board.absent else "failed"
    return Text(f"{marks[mark]} " + "; ".join(told or ["nothing was checked"]), STYLES[mark])
