"""Starts the process of each backend, reads its events, and reports how it ends.

Not by pebble (5.2): it keeps time limits and exit codes, but has no events before the end, no standard error, and not
the line where a process hangs. `sys.exit` of the target would end the parent, and what the target started lives on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from keras_cg import backends, user_code
from keras_cg.command import messages, progress, specs

__all__ = ["Death", "chosen", "follow", "obituary", "of_all"]

# How many seconds to wait for the last output of a process while another process has its pipes open.
LAST_WORDS = 1.0

Event = dict[str, Any]
T = TypeVar("T")


class Death(NamedTuple):
    """The end of a process that was not done."""

    # "died of SIGSEGV" or "exited with status 3"; None after a time-out.
    how: str | None
    # The line of the user's file that was running.
    where: str | None
    # The last lines of its standard error.
    stderr: tuple[str, ...]


def obituary(backend: str, death: Death, timeout: float, doing: str) -> str:
    """Returns the message about the end of a process."""
    if death.how is None:
        return messages.process_late(backend, timeout, doing, death.where)
    return messages.process_died(backend, death.how, doing, death.where)


def chosen(names: tuple[str, ...] | None) -> tuple[list[str], list[str]]:
    """Returns the backends to run, and a line for each requested backend that is not installed."""
    installed = backends.installed()
    requested = installed if names is None else names
    return [each for each in requested if each in installed], [
        str(messages.not_installed(each)) for each in requested if each not in installed
    ]


async def follow(job: dict[str, Any], timeout: float, handle: Callable[[Event], None]) -> Death | None:
    """Runs `job` in a process of its backend, and passes each event of the process to `handle`.

    Args:
        job: The job that `keras_cg.command.worker` reads.
        timeout: The limit in seconds until the process is done or sends its next report.
        handle: A function that receives every event except `done`.

    Returns:
        None if the process finished the job, else how it ended.
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
                    specs.old.update(event.get("old", {}))
                    handle(event)
                    if kind == "report":
                        limit.reschedule(asyncio.get_running_loop().time() + timeout)
        except TimeoutError:
            late = True
            await _ask_where(transport, worker)
    stderr = tuple(worker.stderr)
    return Death(None if late else _ending(transport.get_returncode()), _where(stderr), stderr)


async def of_all(names: Sequence[str], work: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Returns the result of `work` for each backend; all run in parallel, under a progress bar."""
    found: dict[str, T] = {}

    async def one(name: str) -> None:
        found[name] = await work(name)

    with progress.shown(lambda: progress.bar(len(found), len(names), "backends")):
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(one(name))
    return {name: found[name] for name in names}


class _Worker(asyncio.SubprocessProtocol):
    """Collects the output of the process of one backend, and notices its end.

    asyncio's streams would wait until both pipes are closed. A process that the target has started may leave them open
    after the process of the backend is gone.
    """

    def __init__(self) -> None:
        # The lines of its standard output, then None.
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.stderr: deque[str] = deque(maxlen=200)
        self.exited = asyncio.Event()
        self._pipes = {1, 2}
        self._parts: list[bytes] = []
        self._partial = ""

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            # Of an unfinished line only the end is stored, because a line may have any length.
            *lines, last = (self._partial + data.decode(errors="replace")).split("\n")
            self._partial = last[-10000:]
            self.stderr.extend(lines)
            return
        whole, newline, partial = data.rpartition(b"\n")
        if newline:
            for line in b"".join((*self._parts, whole)).split(b"\n"):
                self.lines.put_nowait(line)
            self._parts.clear()
        self._parts.append(partial)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._pipes.discard(fd)
        if self.exited.is_set() and not self._pipes:
            self._end()

    def process_exited(self) -> None:
        self.exited.set()
        # The last output may not have arrived yet. A pipe that another process has open is not awaited any longer.
        if self._pipes:
            asyncio.get_running_loop().call_later(LAST_WORDS, self._end)
        else:
            self._end()

    def _end(self) -> None:
        if self._partial:
            self.stderr.append(self._partial)
            self._partial = ""
        self.lines.put_nowait(None)


@contextlib.asynccontextmanager
async def _process(job: dict[str, Any]) -> AsyncIterator[tuple[_Worker, asyncio.SubprocessTransport]]:
    """Runs the process; at the end kills it and all processes that it has started."""
    transport, worker = await asyncio.get_running_loop().subprocess_exec(
        _Worker,
        sys.executable,
        "-m",
        "keras_cg.command.worker",
        env=_environment(job["backend"]),
        # In a new session Ctrl-C reaches only this process, which then kills the whole session.
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
    # Several processes share an accelerator, so none may reserve all of its memory.
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    own = {"KERAS_CG_BACKEND": backend, "PYTHONIOENCODING": "utf-8:replace"}
    return {**shared, "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **own}


async def _ask_where(transport: asyncio.SubprocessTransport, worker: _Worker) -> None:
    """Makes a process that hangs write its traceback, and waits for it."""
    if not hasattr(signal, "SIGUSR1"):
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(transport.get_pid(), signal.SIGUSR1)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2 * LAST_WORDS):
            while _where(tuple(worker.stderr)) is None:
                await asyncio.sleep(0.05)


def _kill(transport: asyncio.SubprocessTransport, worker: _Worker) -> None:
    """Kills a process and, where the system has process groups, all processes that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(transport.get_pid(), signal.SIGKILL)
        elif not worker.exited.is_set():
            # `transport.kill` would take the exit status away from the event loop (Python 3.11).
            os.kill(transport.get_pid(), signal.SIGTERM)


def _ending(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        name = next((each.name for each in signal.Signals if each == -returncode), f"signal {-returncode}")
        return f"died of {name}"
    return f"exited with status {returncode}"


def _where(stderr: tuple[str, ...]) -> str | None:
    """Finds the innermost line of the user's files in the traceback that faulthandler wrote."""
    for line in stderr:
        found = re.match(r'  File "(.+)", line (\d+) in (.+)', line)
        if found and user_code.is_users(found[1]):
            return f"{os.path.basename(found[1])}:{found[2]} ({found[3]})"
    return None
