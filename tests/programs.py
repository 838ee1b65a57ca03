"""Runs a program in an interpreter of its own; what goes wrong in it is told."""

import os
import subprocess
import sys
import textwrap


def run(code, *arguments, without=(), **environment):
    """What a program prints; `without` names what it does not get of the environment."""
    kept = {name: value for name, value in os.environ.items() if name not in without}
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**kept, **environment}, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()
