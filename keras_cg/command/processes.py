"""Starts the process of each backend and follows it to its end, whatever that is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from keras_cg import backends
from keras_cg.command import messages, targets

__all__ = ["Death", "chosen", "follow", "obituary"]

# A line of an event may hold everything about a function.
LIMIT = 2**26

Event = dict[str, Any]


class Death(NamedTuple):
    """How a process ended that was not done."""

    # "died of SIGSEGV", "exited with status 3", "exited without a word"; None if its time was over.
    how: str | None
    # The line of the user's file that it was in.
    where: str | None
    # The last that it wrote.
    stderr: tuple[str, ...]


def obituary(backend: str, death: Death, timeout: float, doing: str) -> str:
    """The line that tells how a process ended."""
    if death.how is None:
        return messages.process_late(backend, timeout, doing, death.where)
    return messages.process_died(backend, death.how, doing, death.where)


def chosen(names: tuple[str, ...] | None) -> tuple[list[str], list[str]]:
    """The backends to run, and a line for each that was asked for and is not installed."""
    installed = backends.installed()
    wanted = installed if names is None else names
    return [each for each in wanted if each in installed], [
        str(messages.not_installed(each)) for each in wanted if each not in installed
    ]


async def follow(job: dict[str, Any], timeout: float, handle: Callable[[Event], None]) -> Death | None:
    """Gives `job` to a process of its backend, and each of its events to `handle`.

    Args:
        job: What `keras_cg.command.worker` reads.
        timeout: How many seconds it may take until it is done, or has told another report.
        handle: Called with every event but `done`.

    Returns:
        None if it was done, else how it ended.
    """
    stderr: deque[str] = deque(maxlen=200)
    late = False
    async with _process(job, stderr) as (process, drained):
        try:
            async with asyncio.timeout(timeout) as limit:
                async for line in process.stdout:  # type: ignore[union-attr]
                    event = json.loads(line)
                    kind = event["event"]
                    if kind == "done":
                        return None
                    handle(event)
                    if kind == "report":
                        limit.reschedule(asyncio.get_running_loop().time() + timeout)
                await process.wait()
        except TimeoutError:
            late = True
            await _ask_where(process)
        # A grandchild may hold the pipe open.
        await asyncio.wait([drained], timeout=1)
    told = tuple(stderr)
    return Death(None if late else _ending(process.returncode), _where(told), told)


@contextlib.asynccontextmanager
async def _process(
    job: dict[str, Any], stderr: deque[str]
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.Task[None]]]:
    """The running process; it is killed at the end if it is still there."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "keras_cg.command.worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(job["backend"]),
        limit=LIMIT,
    )
    drained = asyncio.create_task(_drain(process, stderr))
    try:
        process.stdin.write(json.dumps(job).encode() + b"\n")  # type: ignore[union-attr]
        yield process, drained
    finally:
        drained.cancel()
        _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
        await process.wait()


def _environment(backend: str) -> dict[str, str]:
    # Side by side on one accelerator, none may take all of its memory.
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    own = {"KERAS_CG_BACKEND": backend, "PYTHONIOENCODING": "utf-8:replace"}
    return {**shared, "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **own}


async def _drain(process: asyncio.subprocess.Process, stderr: deque[str]) -> None:
    rest = ""
    # By pieces: a line of any length must stop nobody.
    while piece := await process.stderr.read(65536):  # type: ignore[union-attr]
        *lines, rest = (rest + piece.decode(errors="replace")).split("\n")
        rest = rest[-10000:]
        stderr.extend(lines)
    stderr.append(rest)


async def _ask_where(process: asyncio.subprocess.Process) -> None:
    """Has a process that hangs write where it is."""
    if hasattr(signal, "SIGUSR1"):
        _signal(process, signal.SIGUSR1)
        await asyncio.sleep(0.3)


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    # Not by the process's own methods, which take its exit status away from the event loop (Python 3.11).
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _ending(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        name = next((each.name for each in signal.Signals if each == -returncode), f"signal {-returncode}")
        return f"died of {name}"
    return f"exited with status {returncode}"


def _where(stderr: tuple[str, ...]) -> str | None:
    """The innermost line of the user's own file in what faulthandler wrote, the most recent call first."""
    for line in stderr:
        found = re.match(r'  File "(.+)", line (\d+) in (.+)', line)
        if found and targets.is_users(found[1]):
            return f"{os.path.basename(found[1])}:{found[2]} ({found[3]})"
    return None
