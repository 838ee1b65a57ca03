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

# How many seconds are given to what a process wrote before its end, while another one holds its pipes open.
LAST_WORDS = 1.0

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
    late = False
    async with _process(job) as (worker, transport):
        try:
            async with asyncio.timeout(timeout) as limit:
                while (line := await worker.lines.get()) is not None:
                    event = json.loads(line)
                    kind = event["event"]
                    if kind == "done":
                        return None
                    handle(event)
                    if kind == "report":
                        limit.reschedule(asyncio.get_running_loop().time() + timeout)
        except TimeoutError:
            late = True
            await _ask_where(transport, worker)
    told = tuple(worker.stderr)
    return Death(None if late else _ending(transport.get_returncode()), _where(told), told)


class _Worker(asyncio.SubprocessProtocol):
    """What the process of one backend tells, and its end.

    asyncio's streams would wait for the end of both pipes. These may be held open, after the process is gone, by
    another one that the target has started.
    """

    def __init__(self) -> None:
        # The lines of its standard output; after the last one None.
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.stderr: deque[str] = deque(maxlen=200)
        self.exited = asyncio.Event()
        self._pipes = {1, 2}
        self._parts: list[bytes] = []
        self._rest = ""

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            # By pieces: a line of any length must stop nobody.
            *lines, rest = (self._rest + data.decode(errors="replace")).split("\n")
            self._rest = rest[-10000:]
            self.stderr.extend(lines)
            return
        whole, newline, rest_of_line = data.rpartition(b"\n")
        if newline:
            for line in b"".join((*self._parts, whole)).split(b"\n"):
                self.lines.put_nowait(line)
            self._parts.clear()
        self._parts.append(rest_of_line)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._pipes.discard(fd)
        if self.exited.is_set() and not self._pipes:
            self._end()

    def process_exited(self) -> None:
        self.exited.set()
        # What it wrote last may still be on its way. Whoever holds a pipe open is not waited for any longer.
        if self._pipes:
            asyncio.get_running_loop().call_later(LAST_WORDS, self._end)
        else:
            self._end()

    def _end(self) -> None:
        if self._rest:
            self.stderr.append(self._rest)
            self._rest = ""
        self.lines.put_nowait(None)


@contextlib.asynccontextmanager
async def _process(job: dict[str, Any]) -> AsyncIterator[tuple[_Worker, asyncio.SubprocessTransport]]:
    """The running process; it is killed at the end with all that it has started."""
    transport, worker = await asyncio.get_running_loop().subprocess_exec(
        _Worker,
        sys.executable,
        "-m",
        "keras_cg.command.worker",
        env=_environment(job["backend"]),
        # A session of its own: Ctrl-C is for this process, which then ends all that belongs to the session.
        start_new_session=True,
    )
    try:
        inlet: Any = transport.get_pipe_transport(0)
        inlet.write(json.dumps(job).encode() + b"\n")
        yield worker, transport
    finally:
        _kill(transport, worker)
        await worker.exited.wait()
        transport.close()


def _environment(backend: str) -> dict[str, str]:
    # Side by side on one accelerator, none may take all of its memory.
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    own = {"KERAS_CG_BACKEND": backend, "PYTHONIOENCODING": "utf-8:replace"}
    return {**shared, "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **own}


async def _ask_where(transport: asyncio.SubprocessTransport, worker: _Worker) -> None:
    """Has a process that hangs write where it is, and gives it a while to do so."""
    if not hasattr(signal, "SIGUSR1"):
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(transport.get_pid(), signal.SIGUSR1)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2 * LAST_WORDS):
            while _where(tuple(worker.stderr)) is None:
                await asyncio.sleep(0.05)


def _kill(transport: asyncio.SubprocessTransport, worker: _Worker) -> None:
    """Ends a process, and what it has started where the system knows groups of processes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(transport.get_pid(), signal.SIGKILL)
        elif not worker.exited.is_set():
            # Not by `transport.kill`, which takes the exit status away from the event loop (Python 3.11).
            os.kill(transport.get_pid(), signal.SIGTERM)


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
