"""examples/keras_digits.py on the Keras backend under test, each run in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import keras_cg
from with_keras.training import trains

ROOT = Path(keras_cg.__file__).parents[1]
EXAMPLE = Path(__file__).parents[2] / "examples" / "keras_digits.py"
PNG = b"\x89PNG\r\n\x1a\n"


def run(folder, backend, *options):
    """The script as a user runs it, in `folder`."""
    pythonpath = os.pathsep.join([str(folder), str(ROOT)])
    chosen = {"PYTHONPATH": pythonpath, "KERAS_BACKEND": backend, "COLUMNS": "120"}
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_CG_BACKEND"} | chosen
    command = [sys.executable, str(EXAMPLE), *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace")


def accuracies(text):
    """The last column of the table: with the rule, without it, and without rounding."""
    found = re.findall(
        r"(2 bits, gradient of Quantize|2 bits, rounding's own gradient|full precision) .* ([\d.]+)%", text
    )
    assert len(found) == 3, text
    return [float(percent) for _, percent in found]


@trains
def test_the_rule_is_what_trains_the_network(backend, tmp_path):
    done = run(tmp_path, backend, "--epochs=2", "--save=weights.npz")
    assert done.returncode == 0, done.stderr
    quantised, without, full = accuracies(done.stdout)
    # Guessing gets 10 %, and rounding's own gradient is no better.
    assert quantised > 80 and without < 40 and full > 90
    assert "Epoch 2/2" in done.stdout
    assert (tmp_path / f"keras_digits-{backend}.png").read_bytes().startswith(PNG)
    again = run(tmp_path, backend, "--weights=weights.npz")
    assert (again.returncode, accuracies(again.stdout)) == (0, [quantised, without, full])


@pytest.mark.only("numpy")
@pytest.mark.limit
def test_keras_does_not_train_on_numpy(backend, tmp_path):
    done = run(tmp_path, backend)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == (
        "Keras cannot train on its NumPy backend. Train on another one with KERAS_BACKEND=jax, torch or tensorflow, add"
        " --save FILE, and evaluate that here with --weights FILE."
    )
