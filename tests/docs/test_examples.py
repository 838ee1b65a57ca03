"""The examples run on every backend and give the numbers that they are about."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import programs
import pytest

import keras_cg
from keras_cg import ops

EXAMPLES = Path(__file__).parents[2] / "examples"
PNG = b"\x89PNG\r\n\x1a\n"


def load(name):
    return programs.load(EXAMPLES / f"{name}.py", f"example_{name}")


def tensor(values):
    return ops.asarray(np.array(values, np.float32))


# --- the short ones ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log1pexp", "gradient_reversal", "gradient_clipping"])
def test_prints_a_few_lines(backend, name, capsys):
    load(name).main()
    assert capsys.readouterr().out.startswith(f"backend: {backend}\n")


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
def test_log1pexp_is_finite_where_plain_differentiation_is_not(backend):
    example = load("log1pexp")
    assert np.isnan(float(keras_cg.grad(example.plain)(tensor(100.0))))
    assert float(keras_cg.grad(example.log1pexp)(tensor(100.0))) == 1.0
    points = np.array([-20.0, -1.0, 0.0, 1.0, 20.0])
    gradient = keras_cg.grad(example.log1pexp)(tensor(points))
    # 1 - 1 / (1 + e) cancels for very negative x, hence the absolute tolerance.
    np.testing.assert_allclose(np.asarray(gradient), 1 / (1 + np.exp(-points)), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(np.asarray(example.log1pexp(tensor(points))), np.logaddexp(0, points), 1e-6, 1e-7)


# --- spiking neurons -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spiking():
    """The module; the tests are skipped without the packages that it needs."""
    pytest.importorskip("sklearn")
    return load("spiking")


def test_spiking_learns(backend, spiking, capsys):
    spiking.main(["--passes", "2"])
    name, learned, own = capsys.readouterr().out.splitlines()
    assert name == f"backend: {backend}"
    learned, own = (float(line.split()[-1].rstrip("%")) for line in (learned, own))
    # With the gradient of the step only the output learns, from what 16 neurons do by chance.
    assert learned > 60 and own < 45


# --- a network in a differential equation --------------------------------------------------------------------------


def test_physics_finds_the_temperature(backend, capsys, tmp_path):
    load("physics_informed").main(["--steps", "60", "--output", str(tmp_path / "rod.png")])
    assert (tmp_path / "rod.png").stat().st_size > 5_000
    name, ours, plain = capsys.readouterr().out.splitlines()
    assert name == f"backend: {backend}"
    assert plain.split()[-1] == "nan"
    # The temperature is 0 before, and 0 to 1 in the end.
    assert float(ours.split()[-1]) < 0.2


# --- digits --------------------------------------------------------------------------------------------------------


def run_digits(folder, *options, **environment):
    """The script as a user runs it, in `folder`."""
    pythonpath = os.pathsep.join([str(folder), str(Path(keras_cg.__file__).parents[1])])
    return subprocess.run(
        [sys.executable, str(EXAMPLES / "digits.py"), *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": pythonpath} | environment,
        capture_output=True,
        text=True,
        errors="replace",
    )


@pytest.fixture(scope="module")
def digits():
    """The module; the tests are skipped without the packages that it needs."""
    for name in ("matplotlib", "rich", "sklearn"):
        pytest.importorskip(name)
    return load("digits")


def test_digits_learn_with_the_rule_and_not_without(backend, digits, tmp_path):
    options = ["--passes", "6", "--seed", "0", "--json", "result.json"]
    done = run_digits(tmp_path, *options, KERAS_CG_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"digits-{backend}.png").read_bytes().startswith(PNG)
    for title, _ in digits.TRAININGS.values():
        assert title in done.stdout

    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert (result["backend"], result["passes"], result["seed"]) == (backend, 6, 0)
    trainings = result["trainings"]
    assert set(trainings) == set(digits.TRAININGS)
    assert {len(training["losses"]) for training in trainings.values()} == {7}
    assert trainings["straight_through"]["accuracy"] > 0.9
    assert trainings["full_precision"]["accuracy"] > 0.9
    # Ten classes: a network that learns nothing is right once in ten, give or take its weights.
    assert trainings["no_gradient"]["accuracy"] < 0.3
    assert len(set(trainings["no_gradient"]["losses"])) == 1


@pytest.mark.side_by_side
def test_digits_compare_backends(several, digits, tmp_path):
    done = run_digits(tmp_path, "--compare", *several, "--passes", "1", "--json", "results.json")
    assert done.returncode == 0, done.stderr
    assert all(f"{name}: done" in done.stdout for name in several)
    assert (tmp_path / "digits-compare.png").read_bytes().startswith(PNG)
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert [result["backend"] for result in results] == list(several)


@pytest.mark.only("numpy")
@pytest.mark.parametrize("missing", ["matplotlib", "rich", "sklearn"])
def test_digits_say_what_to_install(digits, tmp_path, missing):
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('absent', name={missing!r})", encoding="utf-8")
    done = run_digits(tmp_path, KERAS_CG_BACKEND="numpy")
    assert done.returncode == 1
    assert done.stderr == f'digits.py needs {missing}: pip install "keras-cg[examples]"\n'
