"""Runs a program by itself, where what goes wrong is told; and loads a file that is in no package as a module."""

import importlib.util
import os
import subprocess
import sys
import textwrap


def run(code, *arguments, without=(), **environment):
    """What a program prints; `without` names what it does not get of the environment."""
    kept = {name: value for name, value in os.environ.items() if name not in without}
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**kept, **environment}, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout.strip()


def load(path, name=None):
    """The file as a module, imported again."""
    spec = importlib.util.spec_from_file_location(name or path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
