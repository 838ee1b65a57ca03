"""How the tests start the command: in a process of its own, where that matters."""

import json
import os
import subprocess
import sys
from pathlib import Path

TARGETS = Path(__file__).parent / "targets"
PNG = b"\x89PNG\r\n\x1a\n"
# What is quickest; every backend has its turn in some tests.
QUICK = ("--backends", "numpy", "--modes", "reverse", "--no-compiled", "--order", "1")


def environment(*folders):
    paths = [*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "100"}


def start(*words, folder=None, **variables):
    """`python -m keras_cg`, with another folder to import from and environment variables."""
    command = [sys.executable, "-m", "keras_cg", *map(str, words)]
    env = {**environment(*filter(None, [folder])), **variables}
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=env, cwd=TARGETS, timeout=300)


def start_check(*words, **others):
    return start("check", *QUICK, *words, **others)


def refused(done, *parts):
    """One line of error that says all this, and nothing else."""
    assert done.returncode == 2 and done.stdout == "", done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr


def report(done):
    (found,) = json.loads(done.stdout)["reports"]
    return found


def ghost(folder):
    """Registers a backend whose framework is not installed."""
    info = folder / "ghost-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ghost\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[keras_cg.backends]\nghost = ghost_framework\n")
