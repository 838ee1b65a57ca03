"""The command in the process of the tests."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import keras_cg
from command.command_runs import QUICK, TARGETS
from keras_cg import command
from keras_cg.command import processes, worker


async def work_here(job, timeout, handle):
    """In the place of `processes.follow`: does the job of another process in this one."""

    def say(event, **fields):
        handle(json.loads(json.dumps({"event": event, **fields})))

    worker._do(json.loads(json.dumps(job)), say)


@pytest.fixture
def run(monkeypatch, capsys):
    """`keras-cg` in this process, with what its processes do: the same but for how a process starts and ends."""
    monkeypatch.setattr(processes, "follow", work_here)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(TARGETS)

    def call(*words):
        path, modules = list(sys.path), set(sys.modules)
        try:
            status = command.main([*map(str, words)])
        except SystemExit as end:
            status = end.code
        finally:
            added = {Path(each).resolve() for each in sys.path if each not in path}
            sys.path[:] = path
            for name in set(sys.modules) - modules:
                if Path(getattr(sys.modules[name], "__file__", None) or "/").parent in added:
                    del sys.modules[name]
            keras_cg.set_backend(None)
        return SimpleNamespace(returncode=status, **dict(zip(("stdout", "stderr"), capsys.readouterr(), strict=True)))

    return call


@pytest.fixture
def check(run):
    return lambda *words: run("check", *QUICK, *words)
