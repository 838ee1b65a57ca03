"""`keras-cg info`: every backend, its version and devices, and what is not there."""

import json
import platform
import sys

import numpy as np
import pytest

import keras_cg
from command.command_runs import ghost, start
from keras_cg import backends as registry
from keras_cg.command import info, versions

pytestmark = pytest.mark.only("numpy")


@pytest.mark.side_by_side
def test_info_shows_every_backend(backends):
    done = start("info", KERAS_CG_BACKEND=backends[0])
    assert done.returncode == 0
    for name in backends:
        (line,) = [line for line in done.stdout.splitlines() if line.replace("│", " ").split()[:1] == [name]]
        assert "cpu" in line.lower() and ("active" in line) == (name == backends[0])
    first, second = done.stdout.splitlines()[:2]
    assert first.startswith(f"keras_cg {keras_cg.__version__}, Python {platform.python_version()}, Keras ")
    assert second == f"active backend: {backends[0]} (from the environment variable KERAS_CG_BACKEND)"


def test_info_shows_the_versions_before_the_backends_start(run, monkeypatch, capsys):
    shown = []

    async def ask(names, work):
        shown.append(capsys.readouterr().out)
        return {}

    monkeypatch.setattr(info.processes, "of_all", ask)
    monkeypatch.setattr(info, "_version", lambda name: None)
    for name in ("KERAS_CG_BACKEND", "KERAS_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    assert run("info").returncode == 0
    versions_line, active = shown[0].splitlines()
    assert versions_line.endswith(", Keras not installed")
    if "keras" not in sys.modules:
        assert active == "active backend: numpy (from the default; set KERAS_CG_BACKEND or KERAS_BACKEND)"


def test_info_as_json(tmp_path):
    """It needs no Rich."""
    (tmp_path / "rich.py").write_text("raise ModuleNotFoundError('No module named rich', name='rich')\n")
    data = json.loads(start("info", "--json", folder=tmp_path, KERAS_CG_BACKEND="numpy").stdout)
    assert data["active"] == "numpy" and data["because"] == "the environment variable KERAS_CG_BACKEND"
    assert (data["schema"], data["keras_cg"], data["python"]) == (1, keras_cg.__version__, platform.python_version())
    found = {each["name"]: each for each in data["backends"]}
    assert found["numpy"] == {"name": "numpy", "installed": True, "version": np.__version__, "devices": ["cpu"]}
    assert {name for name, each in found.items() if each["installed"]} == set(keras_cg.available_backends())


def test_info_tells_what_is_untested(run, monkeypatch):
    async def ask(names, work):
        return {}

    line = "numpy 9.9 is newer than the versions that keras_cg was tested with (2.1 to 2.5): it is untested"
    monkeypatch.setattr(versions, "untested", lambda: [line])
    monkeypatch.setattr(info.processes, "of_all", ask)
    assert json.loads(run("info", "--json").stdout)["untested"] == [line]
    assert line in run("info").stdout.replace("\n", " ")


def test_info_about_what_is_not_there(tmp_path):
    ghost(tmp_path)
    (tmp_path / "jax.py").write_text("raise RuntimeError('broken on purpose')\n")
    done = start("info", folder=tmp_path, KERAS_CG_BACKEND="numpy")
    assert done.returncode == 1
    assert 'pip install "ghost"' in done.stdout and "not installed" in done.stdout
    told = "the backend 'jax' (from keras-cg info) is installed but does not start: RuntimeError: broken on purpose"
    assert "│ does not start" in done.stdout and told in done.stdout
    done = start("info", "--json", folder=tmp_path, KERAS_CG_BACKEND="ghost")
    assert done.returncode == 2 and done.stderr == 'keras-cg info: ghost: not installed: pip install "ghost"\n'


def test_json_of_info_where_the_active_backend_is_unknown(run, monkeypatch):
    monkeypatch.setenv("KERAS_CG_BACKEND", "nump")
    monkeypatch.setattr(registry, "installed", lambda: ())
    done = run("info", "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 2 and data["active"] == "nump" and data["error"].startswith("unknown backend 'nump'")
    assert done.stderr == f"keras-cg info: {data['error']}\n" and "Did you mean 'numpy'?" in done.stderr
