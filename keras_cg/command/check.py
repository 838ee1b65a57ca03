"""`keras-cg check`: the checker on every backend, side by side.

The keys of its job, and the events that it reads, are those of worker.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from keras_cg import testing
from keras_cg.command import messages, output, processes, progress, targets
from keras_cg.command.board import Board, Problem
from keras_cg.testing.report import Finding, Report

if TYPE_CHECKING:
    from rich.console import RenderableType

# The parts of a check that `--fast` leaves out.
FAST = ("single elements", "compiled", "export")

# The options that the process of a backend reads.
OPTIONS = ("target", "expected", "value", "fast", "seed", "order", "modes", "compiled")


def run(options: argparse.Namespace) -> int:
    """Checks the functions that the command line names.

    Raises:
        UsageError: The options are invalid, or no backend found the target.
    """
    arguments = targets.validate(options.target, options.arg, options.expected, options.value)
    names, absent = processes.chosen(options.backends)
    unchecked = FAST if options.fast else ()
    board = Board(options.target, names, absent=absent, unchecked=unchecked, is_strict=options.strict)
    with tempfile.TemporaryDirectory() as folder, _shown(board):
        job = {name: getattr(options, name) for name in OPTIONS}
        job |= {"task": "check", "arguments": arguments, "folder": folder}
        asyncio.run(_check_all(board, job, options.timeout))
        _compare(board, Path(folder))
    _conclude(board)
    if options.json:
        _write(board)
    else:
        from keras_cg.command import tables

        tables.show(board)
    return board.status()


def _shown(board: Board) -> contextlib.AbstractContextManager[None]:
    """Shows the board on a terminal while the backends work."""

    def picture() -> RenderableType:
        from keras_cg.command import tables

        return tables.Picture(board)

    return progress.shown(picture)


async def _check_all(board: Board, job: dict[str, Any], timeout: float) -> None:
    async with asyncio.TaskGroup() as group:
        for backend in board.backends:
            group.create_task(_check_backend(board, {**job, "backend": backend}, timeout))


async def _check_backend(board: Board, job: dict[str, Any], timeout: float) -> None:
    """Checks all functions on one backend; if one kills the process, a new process checks the others."""
    backend = job["backend"]

    def handle(event: dict[str, Any]) -> None:
        _add(board, backend, event)

    while True:
        start = sum(pair[1] == backend for pair in board.done)
        death = await processes.follow({**job, "start": start}, timeout, handle)
        if death is not None:
            _add_death(board, backend, death, timeout)
        left = [each for each in board.functions if (each, backend) not in board.done]
        if death is None or not left or start == sum(pair[1] == backend for pair in board.done):
            break
    board.done |= {(each, backend) for each in board.functions}


def _add(board: Board, backend: str, event: dict[str, Any]) -> None:
    """Adds an event of a process to the board."""
    kind = event["event"]
    if kind == "functions":
        board.functions = board.functions or event["names"]
        board.left_out |= event["left_out"]
    elif kind == "usage":
        board.usage[backend] = event["message"]
    elif kind == "problem":
        board.problems.append(Problem(backend, event["message"], board.current(backend)))
    elif (current := board.current(backend)) is not None:
        if kind == "finding":
            board.found(current, backend).append(Finding(**event["finding"]))
        elif kind == "report":
            if event["report"] is not None:
                board.findings[current, backend] = list(Report.from_dict(event["report"]).findings)
            board.done.add((current, backend))


def _add_death(board: Board, backend: str, death: processes.Death, timeout: float) -> None:
    """Adds the end of a process that was not done to the board."""
    current = board.current(backend)
    check = board.running(current, backend) if current else None
    doing = f"checking {check!r} of {current}" if current else "importing the target"
    message = processes.obituary(backend, death, timeout, doing)
    board.problems.append(Problem(backend, message, current, check, death.stderr[-100:]))
    if current is not None:
        board.done.add((current, backend))


def _compare(board: Board, folder: Path) -> None:
    """Compares the results of the backends with each other, and adds the findings."""
    for number, function in enumerate(board.functions):
        evidence = {}
        for backend in board.backends:
            if (path := folder / f"{number} {backend}.npz").is_file():
                evidence[backend] = _arrays(path)
        if len(evidence) < 2:
            continue
        for backend in evidence:
            findings = board.found(function, backend)
            findings[:] = [each for each in findings if each.check != "agreement"]
        for finding in testing.agreement(evidence):
            board.found(function, finding.backend).append(finding)


def _arrays(path: Path) -> dict[str, list[numpy.ndarray]]:
    found: dict[str, list[numpy.ndarray]] = {}
    with numpy.load(path, allow_pickle=False) as arrays:
        for place, name in enumerate(arrays["names"]):
            found.setdefault(str(name), []).append(arrays[str(place)])
    return found


def _conclude(board: Board) -> None:
    """Raises if no backend found the target, and adds the usage errors of single backends to the problems.

    Raises:
        UsageError: All backends failed with the same usage error, or none is installed.
    """
    if not board.backends:
        raise messages.UsageError("; ".join(board.absent))
    if len(board.usage) == len(board.backends):
        refusals = sorted(set(board.usage.values()))
        if len(refusals) == 1:
            raise messages.UsageError(refusals[0])
    board.problems += [Problem(backend, f"{backend}: {message}") for backend, message in board.usage.items()]
    board.problems.sort(key=lambda problem: board.backends.index(problem.backend))


def _write(board: Board) -> None:
    data = {
        "reports": [report.to_dict() for report in board.reports()],
        "problems": [dataclasses.asdict(each) for each in board.problems],
        "not_installed": board.absent,
        "not_checked": board.unchecked,
        "left_out": board.left_out,
    }
    output.write_json(data)
