"""The process of one backend: imports the framework and the user's file, which may do anything, and sends events.

The job is one line of JSON on its standard input, as check.py, plot.py and info.py write it. Each event is a line of
JSON on its standard output, which these files read:

`functions`  the names of the functions of the job, those that it leaves out, with the reasons, and old specs
`finding`    the result of a check
`report`     the report of one function
`devices`    the devices of the backend
`curves`     the curves of a plot are written
`usage`      a usage error; the message for the user
`problem`    an exception; the message for the user
`done`       the last event
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy

from keras_cg import backends
from keras_cg.command import curves, messages, specs, targets
from keras_cg.frontend import config

Job = dict[str, Any]
Say = Callable[..., None]


def main() -> None:
    """Runs the job on the standard input, and exits."""
    # faulthandler writes a traceback when the process crashes, and when the parent sends SIGUSR1 after a time-out.
    faulthandler.enable()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1)
    inlet, outlet = _pipes()
    process = os.getpid()
    with os.fdopen(outlet, "w", encoding="utf-8") as events:

        def say(event: str, **fields: Any) -> None:
            if os.getpid() != process:
                os._exit(0)  # the target has forked, and this is the child: the parent does the job
            events.write(json.dumps({"event": event, **fields}) + "\n")
            events.flush()

        _do(_job(inlet), say)
        say("done")
    # A framework may crash at exit, so the process ends here, without exit handlers.
    os._exit(0)


def _pipes() -> tuple[int, int]:
    """Returns the two pipes to the parent. The user's code then prints to stderr, and reads an empty stdin."""
    inlet, outlet = os.dup(0), os.dup(1)
    with open(os.devnull, encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return inlet, outlet


def _job(inlet: int) -> Job:
    """Reads the job, and ends this process when the pipe closes, that is, when the parent has ended."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(inlet, 65536)
        if not part:
            os._exit(1)
        line += part

    def watch() -> None:
        os.read(inlet, 1)
        # This process leads a group that contains all processes that the target has started.
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    return json.loads(line)  # type: ignore[no-any-return]


def _do(job: Job, say: Say) -> None:
    backend = job["backend"]
    config.set_backend(backend)
    try:
        _TASKS[job["task"]](job, say)
    except messages.UsageError as error:
        say("usage", message=str(error))
    except BaseException as error:
        say("problem", message=messages.process_raised(backend, error, targets.where(error)))


def _devices(job: Job, say: Say) -> None:
    say("devices", names=backends.load(job["backend"], "keras-cg info").devices())


def _targets(job: Job, say: Say) -> list[targets.Target]:
    found = targets.find(job["target"], job["arguments"], job["expected"], job["seed"], job["value"])
    left_out = targets.left_out(job["target"], found)
    say("functions", names=[each.name for each in found], left_out=left_out, old=specs.old)
    backends.load(job["backend"], "keras-cg")
    return found


def _check(job: Job, say: Say) -> None:
    for number, target in enumerate(_targets(job, say)):
        if number < job["start"]:
            continue
        try:
            _check_one(job, target, number, say)
        except BaseException as error:
            say("problem", message=messages.process_raised(job["backend"], error, targets.where(error)))
            say("report", report=None)


def _check_one(job: Job, target: targets.Target, number: int, say: Say) -> None:
    from keras_cg import testing  # needs SciPy, which the other commands do not

    report = testing.check_gradients(
        target.function,
        *target.args,
        kwargs=target.kwargs,
        order=job["order"],
        modes=tuple(job["modes"]),
        backends=(job["backend"],),
        expected=target.expected,
        value=target.value,
        fast=job["fast"],
        seed=job["seed"],
        compiled=job["compiled"],
        on_finding=lambda finding: say("finding", finding=dataclasses.asdict(finding)),
    )
    flat = [(what, array) for what, arrays in report.evidence[job["backend"]].items() for array in arrays]
    path = os.path.join(job["folder"], f"{number} {job['backend']}.npz")
    arrays = {str(place): array for place, (_, array) in enumerate(flat)}
    numpy.savez(path, allow_pickle=False, names=numpy.array([what for what, _ in flat], str), **arrays)
    say("report", report=report.to_dict())


def _plot(job: Job, say: Say) -> None:
    (target,) = _targets(job, say)
    found = curves.curves(target)
    numpy.savez(os.path.join(job["folder"], f"{job['backend']}.npz"), allow_pickle=False, **found.arrays())
    say("curves", label=found.label, others=found.others)


_TASKS: dict[str, Callable[[Job, Say], None]] = {"devices": _devices, "check": _check, "plot": _plot}


if __name__ == "__main__":
    main()
