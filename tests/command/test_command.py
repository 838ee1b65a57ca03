"""The command line, in this process; in processes of its own where these matter: `start`."""

import io
import json
import math
import os
import platform
import pty
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import keras_cg
from _keras_cg import command as script
from keras_cg import backends as registry
from keras_cg import command
from keras_cg.command import check as check_command
from keras_cg.command import curves, info, messages, output, plot, processes, progress, specs, targets, versions, worker
from keras_cg.command.curves import Curves
from keras_cg.testing.report import Finding

TARGETS = Path(__file__).parent / "targets"
EXAMPLES = Path(__file__).parents[2] / "examples"
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


def refused(done, *parts):
    """One line of error that says all this, and nothing else."""
    assert done.returncode == 2 and done.stdout == "", done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr


def report(done):
    (found,) = json.loads(done.stdout)["reports"]
    return found


# --- the arguments -------------------------------------------------------------------------------------------------


def made(spec, seed=0):
    return specs.parse("x", spec)(np.random.default_rng(seed))


@pytest.mark.once
@pytest.mark.parametrize(
    ("spec", "shape", "dtype"),
    [
        ("normal:4,3", (4, 3), "float32"),
        ("normal:", (), "float32"),
        ("normal:()", (), "float32"),
        ("normal:(2,)", (2,), "float32"),
        ("normal:0,3", (0, 3), "float32"),
        ("normal:5:float64", (5,), "float64"),
        ("normal:2,2:float16", (2, 2), "float16"),
        ("normal:3:complex64", (3,), "complex64"),
        ("uniform:-2,-1:7", (7,), "float32"),
        ("uniform:0,1:3:complex128", (3,), "complex128"),
        ("uniform:0,9:3:int32", (3,), "int32"),
        ("linspace:-5,5,11", (11,), "float32"),
        ("linspace:0,1e-3,3:float64", (3,), "float64"),
        ("0.5:float32", (), "float32"),
        ("[1, 2]:float64", (2,), "float64"),
        ("1+2j:complex64", (), "complex64"),
    ],
)
def test_a_spec_makes_an_array(spec, shape, dtype):
    array = made(spec)
    assert isinstance(array, np.ndarray) and array.shape == shape and array.dtype == dtype


@pytest.mark.once
def test_a_spec_makes_the_numbers_that_it_says():
    np.testing.assert_array_equal(made("linspace:-1,1,5:float64"), [-1, -0.5, 0, 0.5, 1])
    assert (made("uniform:-2,-1:1000") >= -2).all() and (made("uniform:-2,-1:1000") <= -1).all()
    assert set(made("uniform:-3,0:1000:int64")) == {-3, -2, -1}
    normal = made("normal:100000:float64")
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02
    assert abs(made("normal:100000:complex128").imag.std() - 1) < 0.02
    np.testing.assert_array_equal(made("normal:3", 1), made("normal:3", 1))
    assert (made("normal:3", 1) != made("normal:3", 2)).all()


@pytest.mark.once
@pytest.mark.parametrize(
    "text", ["3", "0.5", "'mean'", "[1, 2]", "(1, 2)", "None", "True", "{'w': 1.5}", "-1e3", "'a:b'"]
)
def test_a_literal_stays_what_it_is(text):
    value = made(text)
    assert repr(value) == repr(eval(text))


@pytest.mark.once
def test_a_file_keeps_its_dtype(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3.0))
    assert made(f"@{tmp_path}/x.npy").dtype == "float64"
    assert made(f"@{tmp_path}/x.npy:float32").dtype == "float32"
    np.testing.assert_array_equal(made(f"@{tmp_path}/x.npy"), [0, 1, 2])


@pytest.mark.once
@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("normal:a", "'a' is not a SHAPE such as 4,3"),
        ("normal:-1", "'-1' is not a SHAPE"),
        ("normal:4,,3", "'4,,3' is not a SHAPE"),
        ("normal:4:float23", "unknown dtype 'float23'; use one of float16, float32"),
        ("normal:4:int32", "int32 is not possible here; use one of float16"),
        ("normal:4:bfloat16", "has no bfloat16; use float16, or cast inside the function"),
        ("normal:4:float32:1", "expected normal:SHAPE or normal:SHAPE:DTYPE"),
        ("uniform:0,1", "expected uniform:LO,HI:SHAPE"),
        ("uniform:1,0:3", "LO must be below HI, and 1 is not below 0"),
        ("uniform:0:3", "'0' is not LO,HI, with finite numbers"),
        ("uniform:0,inf:3", "'0,inf' is not LO,HI, with finite numbers"),
        ("linspace:0,1", "'0,1' is not LO,HI,N, with finite numbers"),
        ("linspace:0,1,2.5", "N must be a whole number above 0, and is 2.5"),
        ("linspace:0,1,0", "N must be a whole number above 0, and is 0"),
        ("mean", "'mean' is not a valid spec; a string needs quotes: '\"mean\"'"),
        ("[1, 2", "'[1, 2' is not a valid spec"),
        ("", "'' is not a valid spec"),
        ("1:float23", "unknown dtype 'float23'"),
        ("'a':float32", "'a' cannot be converted to an array of float32"),
        ("@absent.npy", "there is no file 'absent.npy'"),
        ("@planted.py", "'planted.py' cannot be read as .npy"),
    ],
)
def test_a_spec_that_does_not_parse(spec, problem, monkeypatch):
    monkeypatch.chdir(TARGETS)
    with pytest.raises(messages.UsageError) as caught:
        specs.parse("x", spec)
    message = str(caught.value)
    assert message.startswith(f"argument x={spec}: ") and problem in message and "\n" not in message
    forms = "normal:SHAPE, uniform:LO,HI:SHAPE, linspace:LO,HI,N, a Python literal, @FILE.npy; also with :DTYPE"
    assert message.endswith(f". The forms are: {forms}")


@pytest.mark.once
def test_a_file_that_is_no_array_of_numbers(tmp_path):
    np.save(tmp_path / "text.npy", np.array(["a"]))
    np.savez(tmp_path / "several.npz", a=np.zeros(1))
    for name in ("text.npy", "several.npz"):
        with pytest.raises(messages.UsageError, match="does not hold one array of numbers"):
            specs.parse("x", f"@{tmp_path}/{name}")


@pytest.mark.once
def test_every_form_of_a_spec_on_the_command_line(check, tmp_path):
    np.save(tmp_path / "x.npy", np.array([1.0, 2.0]))
    for spec in ("normal:2,2", "uniform:1,2:3", "linspace:1,2,3", "0.5:float64", f"@{tmp_path}/x.npy"):
        done = check("planted.py:power", "--arg", f"x={spec}", "--arg", "n=2")
        assert done.returncode == 0, done.stdout
    weights = ("--arg", "x=normal:3", "--arg", "weights={'w': 2.0}", "--arg", 'mode="sum"', "--arg", "scale=0.5")
    (found,) = targets.find(str(TARGETS / "planted.py:keywords"), specs.named(weights[1::2]), None, 0)
    assert found.kwargs == {"weights": {"w": 2.0}, "mode": "sum", "scale": 0.5} and found.args[0].shape == (3,)


@pytest.mark.once
def test_the_seed_makes_the_numbers_the_same_in_all_processes():
    found = [targets.find(str(TARGETS / "planted.py:power"), {}, None, seed)[0].args[0] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).all()
    (both,) = targets.find(str(TARGETS / "planted.py:swapped"), {"x": "normal:3", "y": "normal:3"}, None, 0)
    assert (both.args[0] != both.args[1]).all()


# --- what cannot be done -------------------------------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([""], ["'' names neither a file nor a module; expected FILE.py:FUNCTION or MODULE:FUNCTION"]),
        (["a" * 300 + ".py:f"], ["no file 'aaaa", "aaa.py'; check the path"]),
        ([":"], ["':' names neither a file nor a module"]),
        ([":power"], ["':power' names neither a file nor a module"]),
        (["planted.py:power:x"], ["'planted.py:power:x' names neither a file nor a module"]),
        (["planted.py:"], ["planted.py: names no function; name one after the colon, or write planted.py for all"]),
        (["."], [". is a folder; name a .py file in it, or a module: package.module"]),
        (["../targets"], ["../targets is a folder"]),
        (["planted.py", "--value", "scale"], ["--value is for one function"]),
        (["planted.py:scaled", "--value", "scales"], ["has no 'scales'; did you mean 'scale'?"]),
        (["no_hints.py:silent", "--arg", "x=normal:3", "--value", "number"], ["--value number is an int; name a func"]),
        (["nowhere.py:f"], ["no file 'nowhere.py'; check the path"]),
        (["../targets/planted:power"], ["did you mean '../targets/planted.py'?"]),
        (
            ["absent_module:f"],
            ["absent_module cannot be imported", "No module named 'absent_module'", "ends in .py"],
        ),
        (["imports_what_is_absent.py:f"], ["(imports_what_is_absent.py:1)", "install 'absent_module', or add"]),
        (["relative_import.py:f"], ["(relative_import.py:1)", "name a file of a package as a module"]),
        (
            ["raises_at_import.py:f"],
            ["RuntimeError: not today (raises_at_import.py:1); check that `python`"],
        ),
        (["exits_at_import.py:f"], ["it calls sys.exit('no') (exits_at_import.py:3)"]),
        (["planted.py:powr"], ["planted.py has no 'powr'; did you mean 'power'?"]),
        (["planted.py:zzz"], ["planted.py has no 'zzz'; it has: power, doubled"]),
        (["planted.py:scale"], ["planted.py:scale is a function, not a function with a custom gradient; decorate it"]),
        (["planted.py:swapped"], ["needs 2 more arguments: add --arg x=... --arg y=..., or set swapped.example_args"]),
        (["planted.py:Scale.method", "--arg", "x=normal:3"], ["is a method of a class; name the method of an object"]),
        (["planted.py:power", "--arg", "z=3"], ["power has no argument 'z'; its arguments are: x, n"]),
        (["planted.py:power", "--arg", "x=normal:a"], ["argument x=normal:a: 'a' is not a SHAPE", "The forms are:"]),
        (["planted.py:power", "--arg", "x"], ["--arg x: expected NAME=SPEC, such as x=normal:4,3 or n=3"]),
        (["planted.py:power", "--arg", "n=1", "--arg", "n=2"], ["--arg n: appears twice"]),
        (["planted.py:doubled", "--arg", "x=3"], ["x=3 is static; pass x=3:float32 or x=normal:4,3"]),
        (["planted.py", "--arg", "x=3"], ["--arg is for one function: name it, as in planted.py:FUNCTION"]),
        (["planted.py", "--expected", "scale"], ["--expected is for one function"]),
        (["planted.py:scaled", "--expected", "scales"], ["has no 'scales'; did you mean 'scale'?"]),
        (["planted.py:scaled", "--expected", "nothing.py:f"], ["no file 'nothing.py'"]),
        (["no_hints.py"], ["no function of no_hints.py has example_args", "no_hints.py:silent with --arg"]),
        (["no_hints.py:silent", "--arg", "x=normal:3", "--expected", "number"], ["--expected number is an int; name"]),
        (["bad_hints.py:a_number"], ["a_number.example_args is an int; expected a dict such as"]),
        (["bad_hints.py:too_many"], ["too_many.example_args has 2 values for 1 positional parameters"]),
        (["bad_hints.py:numbered"], ["numbered.example_args has keys that are not names"]),
        (["bad_hints.py:misspelt"], ["argument x=norml:3: 'norml:3' is not a valid spec"]),
        (["unmarked.py"], ["unmarked.py has no function decorated with @keras_cg.custom_gradient; nothing to check"]),
        (["planted.py:power", "--backends", "jaxx"], ["unknown backend 'jaxx'", "Did you mean 'jax'?"]),
        (["planted.py:power", "--backends", ","], ["argument --backends: name one or more of jax, numpy"]),
        (["planted.py:power", "--order", "7"], ["argument --order: invalid choice: 7"]),
        (["planted.py:power", "--modes", "sideways"], ["'sideways' is not reverse, forward or reverse,forward"]),
        (["planted.py:power", "--seed", "-1"], ["argument --seed: '-1' is not 0, 1, 2 ..."]),
        (["planted.py:power", "--timeout", "0"], ["'0' is not a number of seconds above 0"]),
        (["planted.py:power", "--timeout", "soon"], ["'soon' is not a number of seconds above 0"]),
        ([], ["the following arguments are required: TARGET; see keras-cg check --help"]),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) and "such as" not in value else None,
)
def test_what_cannot_be_checked_is_told_in_one_line(run, words, parts):
    given = [] if "--backends" in words else ["--backends", "numpy"]
    refused(run("check", *words, *given), *parts)


@pytest.mark.once
def test_a_file_that_is_no_python(check, tmp_path):
    (tmp_path / "broken.py").write_text("x = (\n")
    refused(check(f"{tmp_path}/broken.py:f"), "SyntaxError: '(' was never closed (broken.py:1)")


@pytest.mark.side_by_side
def test_all_backends_tell_the_same_once(run, backends):
    refused(run("check", "planted.py:powr", "--backends", ",".join(backends)), "has no 'powr'; did you mean 'power'?")


@pytest.mark.once
def test_no_command_and_the_version(run):
    done = run()
    assert done.returncode == 0 and done.stderr == "" and done.stdout == run("--help").stdout
    assert "examples:\n  keras-cg info\n  keras-cg check rules.py:softplus --arg x=normal:4,3\n" in done.stdout
    assert run("--version").stdout == f"keras-cg {keras_cg.__version__}\n"
    assert "normal:SHAPE" in run("check", "--help").stdout and "--dark" in run("plot", "--help").stdout


@pytest.mark.once
def test_the_script_that_pip_makes():
    script = Path(sysconfig.get_path("scripts"), "keras-cg")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stdout) == (0, f"keras-cg {keras_cg.__version__}\n")


@pytest.mark.once
@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("rich", ["info"]),
        ("rich", ["check", "planted.py:power", "--backends", "numpy"]),
        ("scipy", ["check", "planted.py:power", "--backends", "numpy"]),
        ("matplotlib", ["plot", "plots.py:cube", "--arg", "x=linspace:0,1,9", "-o", "cube.png"]),
    ],
)
def test_a_missing_extra_is_named(module, words, tmp_path):
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError('No module named {module}', name='{module}')\n")
    refused(start(*words, folder=tmp_path), f'{module} is not installed: pip install "keras-cg[cli]"')


@pytest.mark.once
def test_json_needs_no_rich(tmp_path):
    (tmp_path / "rich.py").write_text("raise ModuleNotFoundError('No module named rich', name='rich')\n")
    assert start_check("planted.py:power", "--json", folder=tmp_path).returncode == 0
    assert start("info", "--json", folder=tmp_path).returncode == 0


@pytest.mark.once
def test_importing_the_package_loads_neither_the_command_nor_what_it_draws_with():
    names = ("keras_cg.command", "rich", "matplotlib", "scipy")
    code = f"import sys, keras_cg; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.stdout == "[]\n"
    code = code.replace("keras_cg;", "keras_cg.command.tables;")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert "'rich'" in done.stdout


# --- check ---------------------------------------------------------------------------------------------------------


@pytest.mark.side_by_side
def test_a_right_gradient_passes_on_every_backend(backends):
    done = start("check", "planted.py:power", "--backends", ",".join(backends))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["power", "planted.py"]
    assert lines[3].replace("│", " ").split() == ["check", *backends]
    agree = ", which agree" if len(backends) > 1 else ""
    assert lines[-1] == f"✓ passed: power on {', '.join(backends)}{agree}"
    assert "\x1b" not in done.stdout and done.stderr == ""


@pytest.mark.once
@pytest.mark.parametrize(
    ("program", "cell"),
    [
        (lambda x: x**2, "✓ carried"),
        (lambda x: np.asarray(getattr(x, "_value", x)) ** 2, "✓ absent"),
        (lambda x: 3 * x**2 - 2 * np.asarray(getattr(x, "_value", x)) ** 2, "✗ 2"),
        (None, "–"),  # noqa: RUF001 - a dash that is seen
    ],
    ids=["carried", "absent", "another", "none"],
)
def test_the_row_of_the_export(run, monkeypatch, program, cell):
    """What becomes of the gradient, in the place of a size."""
    if program is not None:
        monkeypatch.setattr(registry.load("numpy", "a test"), "exported", lambda fun, tensors: lambda x: (program(x),))
    done = run("check", "planted.py:power", "--backends", "numpy")
    (row,) = [line for line in done.stdout.splitlines() if "│ export" in line]
    assert done.returncode == (cell[0] == "✗") and [each.strip() for each in row.strip("│").split("│")] == [
        "export",
        cell,
    ]


@pytest.mark.side_by_side
def test_a_wrong_gradient_fails_on_every_backend_and_is_told_once(run, backends):
    done = run("check", "planted.py:doubled", "--arg", "x=normal:4,3", "--backends", ",".join(backends))
    assert done.returncode == 1
    assert done.stdout.count(f"✗ first order of x on {', '.join(backends)}\n") == 1
    assert done.stdout.count("diagnosis: a factor of 2\n") == 1
    assert done.stdout.splitlines()[-1] == "✗ failed: doubled"


@pytest.mark.side_by_side
@pytest.mark.parametrize(
    "name", ["log1pexp", "gradient_clipping", "gradient_reversal", "digits", "spiking", "physics_informed"]
)
def test_the_examples_pass(run, name, backends):
    done = run("check", EXAMPLES / f"{name}.py", "--backends", ",".join(backends))
    assert done.returncode == 0, done.stdout


@pytest.mark.once
def test_a_gradient_that_is_meant_to_differ(check, tmp_path):
    (tmp_path / "other.py").write_text("def meant(x, strength):\n    return strength * x\n")
    # A function's own hint, a function in its place, one of another file, and a rule.
    assert check("planted.py:scaled").returncode == 0
    assert check("planted.py:scaled", "--expected", "power").returncode == 1
    assert check("planted.py:scaled", "--expected", f"{tmp_path}/other.py:meant").returncode == 0
    assert check("planted.py:scaled", "--expected", "scaling_rule").returncode == 0


@pytest.mark.once
def test_an_output_that_is_wrong(check, tmp_path):
    source = """
import keras_cg

@keras_cg.custom_gradient
def f(x):
    return 3 * x, lambda upstream: 3 * upstream

def right(x):
    return 3.0 * x

def wrong(x):
    return 3.5 * x
"""
    (tmp_path / "valued.py").write_text(source)
    given = (f"{tmp_path}/valued.py:f", "--arg", "x=normal:3")
    assert check(*given, "--value", "right").returncode == 0
    done = check(*given, "--value", "wrong")
    assert done.returncode == 1 and "✗ value" in done.stdout
    # By a hint beside `example_args`, which the command line comes before.
    (tmp_path / "valued.py").write_text(source + "\nf.value = wrong\n")
    assert check(*given).returncode == 1 and check(*given, "--value", "right").returncode == 0


@pytest.mark.once
def test_fast_neither_compiles_nor_exports(run):
    words = ("planted.py:power", "--backends", "numpy", "--json")
    with_it, without = (report(run("check", *words, *fast))["findings"] for fast in (["--fast"], []))
    assert {each["check"] for each in with_it if each["status"] == "passed"} >= {"value", "first order"}
    assert with_it != without


@pytest.mark.once
def test_fast_says_what_it_does_not_check(run):
    words = ("check", "planted.py:power", "--backends", "numpy")
    line = "not checked with --fast: single elements, compiled, export"
    assert run(*words, "--fast").stdout.splitlines()[-2] == line and "--fast" not in run(*words).stdout
    assert json.loads(run(*words, "--fast", "--json").stdout)["not_checked"] == line.partition(": ")[2].split(", ")
    assert json.loads(run(*words, "--json").stdout)["not_checked"] == []


RAISING = """
import keras_cg

@keras_cg.custom_gradient
def in_the_rule(x):
    def grad(upstream):
        return upstream * undefined_name
    return 2.0 * x, grad

@keras_cg.custom_gradient
def in_the_function(x):
    return 2.0 * x, undefined_name

@keras_cg.custom_gradient
def of_a_wrong_shape(x, w):
    return x * w, lambda upstream: (upstream * w, upstream * x)

@keras_cg.custom_gradient
def under_no_convention(x):
    return 2.0 * x, lambda a, b, c: a
"""


@pytest.fixture
def raising(run, tmp_path):
    (tmp_path / "raising.py").write_text(RAISING)
    return lambda name, *words: run("check", f"{tmp_path}/raising.py:{name}", "--arg", "x=normal:3,4", *words)


@pytest.mark.side_by_side
def test_an_exception_is_shown_once_with_its_line(raising, backends):
    names = ", ".join(backends)
    done = raising("in_the_rule", "--backends", ",".join(backends))
    told = "NameError: name 'undefined_name' is not defined; at raising.py:7 in grad: return upstream * undefined_name"
    assert done.returncode == 1 and done.stdout.count(told) == done.stdout.count("undefined_name' is not") == 1
    assert f"✗ first order on {names}\n    {told}\n" in done.stdout
    # Neither a row nor a cell for what no backend reached.
    agreement = ", agreement" if len(backends) > 1 else ""
    assert f"not reached: second order, linearity, compiled, export, forward mode, memory{agreement}\n" in done.stdout
    assert "│ linearity" not in done.stdout and "skip" not in done.stdout
    done = raising("in_the_function", "--backends", ",".join(backends))
    told = "is not defined; at raising.py:12 in in_the_function: return 2.0 * x, undefined_name\n"
    assert done.stdout.count(told) == 1 and f"✗ value on {names}\n" in done.stdout and "│" not in done.stdout


@pytest.mark.once
def test_an_error_of_ours_is_shown_with_its_remedy(raising):
    done = raising("of_a_wrong_shape", "--arg", "w=normal:4", "--backends", "numpy")
    assert "expected: float32[4]; remedy: sum over the broadcast axes or reshape" in done.stdout
    done = raising("under_no_convention", "--backends", "numpy")
    assert "expected one of: grad(upstream), grad(dy1, dy2, ...), grad(*dys), grad(*args, upstream), " in done.stdout


@pytest.mark.once
def test_skip_is_what_was_not_reached_and_a_dash_what_does_not_apply(monkeypatch, capsys):
    from keras_cg.command import tables as drawn
    from keras_cg.testing.report import NOT_REACHED

    monkeypatch.setenv("COLUMNS", "100")
    board = check_command.Board("f.py:f", ["numpy", "torch"], functions=["f"], done={("f", "numpy"), ("f", "torch")})
    board.found("f", "numpy")[:] = [
        Finding("numpy", "value", "passed"),
        Finding("numpy", "compiled", "skipped", reason="numpy has no compiler"),
    ]
    board.found("f", "torch")[:] = [
        Finding("torch", "value", "failed"),
        Finding("torch", "compiled", "skipped", reason=NOT_REACHED[0]),
    ]
    drawn.show(board)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "│ compiled" in line]
    assert row.replace("│", " ").split() == ["compiled", "–", "skip"]  # noqa: RUF001 - a dash is intended


@pytest.mark.once
def test_the_hook_is_a_command_that_runs(run):
    hooks = (Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text()
    (entry,) = re.findall(r"^  entry: (.*)$", hooks, re.MULTILINE)
    name, *words = entry.split()
    assert name == "keras-cg" and "--fast" in words
    assert run(*words, "planted.py:power", "--backends", "numpy").returncode == 0
    assert run(*words, "planted.py:doubled", "--arg", "x=normal:3", "--backends", "numpy").returncode == 1


@pytest.mark.once
def test_undecided_is_not_passed(check):
    done = check("planted.py:kinked", "--arg", "x=linspace:-1,1,3", "--order", "2")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "? undecided: kinked" and "a kink at the test point" in done.stdout


@pytest.mark.once
def test_targets_of_every_kind(check, tmp_path):
    for target in ("planted:power", "planted:triple.method", "planted.py:triple.method", "planted.py:Scale.static"):
        done = check(target, "--arg", "x=normal:3")
        assert done.returncode == 0, done.stdout + done.stderr
    # A file is found with what lies beside it, wherever the command runs; and may be called as what exists.
    (tmp_path / "helper.py").write_text("factor = 3\n")
    source = "import keras_cg\nfrom helper import factor\n@keras_cg.custom_gradient\ndef f(x):\n"
    (tmp_path / "json.py").write_text(source + "    return factor * x, lambda g: factor * g\n")
    assert check(f"{tmp_path}/json.py:f", "--arg", "x=normal:3").returncode == 0


@pytest.mark.once
def test_the_command_line_comes_before_a_hint_that_does_not_parse(check):
    assert check("bad_hints.py:misspelt", "--arg", "x=normal:3").returncode == 0


@pytest.mark.once
def test_a_target_that_changes_the_directory(check, tmp_path, monkeypatch):
    source = "import os, keras_cg\nos.chdir('/')\n@keras_cg.custom_gradient\ndef f(x):\n    return x, lambda g: 2 * g\n"
    (tmp_path / "moves.py").write_text(source)
    (tmp_path / "other.py").write_text("def meant(x):\n    return 2 * x\n")
    np.save(tmp_path / "x.npy", np.array([1.0, 2.0]))
    monkeypatch.chdir(tmp_path)
    done = check("moves.py:f", "--arg", "x=@x.npy", "--expected", "other.py:meant")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.once
def test_a_whole_module(check):
    done = check("planted.py", "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 0 and data["problems"] == [] and data["not_installed"] == []
    assert [each["function"] for each in data["reports"]] == ["power", "scaled"]
    assert [each["status"] for each in data["reports"]] == ["passed", "passed"]
    done = check("planted")
    assert done.stdout.count("╭") == 2 and done.stdout.endswith("✓ passed: power, scaled on numpy\n")


@pytest.mark.side_by_side
def test_json_is_all_there_is_on_the_standard_output(run, backends):
    done = run("check", "planted.py:swapped", "--arg", "x=normal:3", "--arg", "y=normal:3", "--json", "--order", "1",
               "--no-compiled", "--backends", ",".join(backends))  # fmt: skip
    found = report(done)
    assert done.returncode == 1 and found["function"] == "swapped" and found["status"] == "failed"
    wrong = [each for each in found["findings"] if each["check"] == "first order"]
    assert [(each["backend"], each["argument"]) for each in wrong] == [(name, arg) for name in backends for arg in "xy"]
    assert all("swapped" in each["diagnosis"] for each in wrong)
    agreement = [each for each in found["findings"] if each["check"] == "agreement"]
    assert [each["backend"] for each in agreement] == (list(backends) if len(backends) > 1 else [])


@pytest.mark.once
@pytest.mark.parametrize(
    "words",
    [
        ["check", "planted.py:powr"],
        ["check", "planted.py:power", "--order", "7"],
        ["check", "planted.py:power", "--arg", "n=1", "--arg", "n=2"],
        ["check"],
        ["info", "--nothing"],
    ],
)
def test_json_is_json_where_nothing_can_be_done(run, words):
    done = run(*words, "--json", *(QUICK if "check" in words else ()))
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert done.stderr == f"keras-cg {words[0]}: {json.loads(done.stdout)['error']}\n"


@pytest.mark.once
def test_json_of_info_where_the_active_backend_is_unknown(run, monkeypatch):
    monkeypatch.setenv("KERAS_CG_BACKEND", "nump")
    monkeypatch.setattr(registry, "installed", lambda: ())
    done = run("info", "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 2 and data["active"] == "nump" and data["error"].startswith("unknown backend 'nump'")


@pytest.mark.once
def test_json_has_no_nan():
    found = {"findings": [{"error": math.nan, "tolerance": 1e-6}], "more": (math.inf, "nan", None)}
    assert output._strict(found) == {
        "findings": [{"error": None, "tolerance": 1e-6}],
        "more": [None, "nan", None],
    }


@pytest.mark.once
def test_backends_that_disagree_are_told():
    if len(keras_cg.available_backends()) < 2:
        return
    first, second = "numpy", next(name for name in keras_cg.available_backends() if name != "numpy")
    done = start("check", "disagreeing.py:f", "--arg", "x=normal:3", "--backends", f"{first},{second}", "--json",
                 "--no-compiled", "--order", "1", "--modes", "reverse")  # fmt: skip
    agreement = [each["status"] for each in report(done)["findings"] if each["check"] == "agreement"]
    assert done.returncode == 1 and "failed" in agreement


# --- what a process may do -----------------------------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("crashes", "✗ numpy: the process died of SIGSEGV while checking 'value' of crashes, in unruly.py:"),
        ("killed", "✗ numpy: the process died of SIGKILL while checking 'value' of killed; usual cause: out of memory"),
        ("exits", "✗ numpy: the process exited with status 3 while checking 'value' of exits; the function must not"),
        ("leaves", "✗ numpy: SystemExit: leaving (unruly.py:"),
        ("hungry", "MemoryError"),
    ],
)
def test_a_process_that_ends_is_told_in_one_line(name, told):
    done = start_check(f"unruly.py:{name}", "--arg", "x=normal:3")
    assert done.returncode == 1 and done.stderr == ""
    assert sum(told in line for line in done.stdout.splitlines()) == 1, done.stdout


@pytest.mark.once
@pytest.mark.parametrize("kind", ["BaseException", "KeyboardInterrupt", "GeneratorExit", "Unspeakable"])
def test_whatever_a_target_raises_is_told_as_that(check, tmp_path, kind):
    source = f"""
import keras_cg

class Unspeakable(Exception):
    def __str__(self):
        raise ValueError

def raising():
    raise {kind}

@keras_cg.custom_gradient
def f(x):
    raise {kind}
"""
    (tmp_path / "raises.py").write_text(source)
    name = f"raises.{kind}" if kind == "Unspeakable" else kind
    if kind != "Unspeakable":  # the checker tells an exception as its message has it
        done = check(f"{tmp_path}/raises.py:f", "--arg", "x=normal:3")
        assert done.returncode == 1 and f"✗ numpy: {name} (raises.py:" in done.stdout, done.stdout
    (tmp_path / "raises.py").write_text(source + "\nraising()\n")
    refused(check(f"{tmp_path}/raises.py:f", "--arg", "x=normal:3"), f"cannot be imported: {name} (raises.py:9)")


@pytest.mark.once
def test_a_process_that_hangs_is_ended():
    done = start_check("unruly.py:hangs", "--arg", "x=normal:3", "--timeout", "3")
    told = "✗ numpy: not done after 3 s while checking 'value' of hangs, in unruly.py:"
    assert done.returncode == 1 and told in done.stdout and "a larger --timeout" in done.stdout


@pytest.mark.side_by_side
def test_the_other_backends_go_on(backends):
    others = [name for name in backends if name != "numpy"]
    names = ",".join(["numpy", *others])
    words = ("unruly.py:crashes_on_numpy", "--arg", "x=normal:3", "--order", "1", "--no-compiled", "--json")
    done = start("check", *words, "--backends", names)
    (problem,) = json.loads(done.stdout)["problems"]
    assert done.returncode == 1 and problem["backend"] == "numpy" and problem["function"] == "crashes_on_numpy"
    assert any("Segmentation fault" in line for line in problem["stderr"])
    found = report(done)["findings"]
    assert {each["backend"] for each in found} == set(others)
    assert {each["status"] for each in found} <= {"passed", "skipped"}


@pytest.mark.once
def test_the_functions_after_one_that_kills_its_process():
    done = start_check("unruly_module.py", "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 1
    assert [each["status"] for each in data["reports"]] == ["passed", "skipped", "skipped", "passed"]
    killed, left = data["problems"]
    assert killed["function"] == "second" and "died of SIGABRT while checking 'value' of second" in killed["message"]
    assert killed["stderr"][-1] == "last words"
    assert left["function"] == "third" and left["message"].startswith("numpy: SystemExit: leaving (unruly_module.py:")


@pytest.mark.once
def test_what_a_module_prints_disturbs_nobody():
    for name in ("talks", "reads"):
        done = start_check(f"unruly.py:{name}", "--arg", "x=normal:3", "--json")
        assert done.returncode == 0 and report(done)["status"] == "passed"
        assert "printed" not in done.stdout + done.stderr


@pytest.mark.once
def test_a_backend_that_does_not_start(tmp_path):
    (tmp_path / "jax.py").write_text("raise RuntimeError('broken on purpose')\n")
    done = start("check", "planted.py:power", "--backends", "numpy,jax", *QUICK[2:], folder=tmp_path)
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("✗ jax: ")]
    told = "the backend 'jax' (from keras-cg) is installed but does not start: RuntimeError: broken on purpose"
    assert f"ImportError: {told}; see that its framework can be imported by itself; reinstall it with pip" in line
    assert "first order" in done.stdout and done.stdout.endswith("stopped: jax\n")


def ghost(folder):
    """Registers a backend whose framework is not installed."""
    info = folder / "ghost-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ghost\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[keras_cg.backends]\nghost = ghost_framework\n")


@pytest.mark.once
def test_a_backend_that_is_not_installed(tmp_path):
    ghost(tmp_path)
    line = 'ghost: not installed: pip install "ghost"'
    done = start("check", "planted.py:power", "--backends", "numpy,ghost", *QUICK[2:], folder=tmp_path)
    assert done.returncode == 2 and f"? {line}\n" in done.stdout and "│ ✓ " in done.stdout
    assert done.stdout.endswith("not installed: ghost\n")
    refused(start("check", "planted.py:power", "--backends", "ghost", folder=tmp_path), line)


@pytest.fixture
def deserter(tmp_path):
    """A target that leaves processes behind, which hold what it holds, and hangs: its file, and what finds the ids."""
    source = f"""
import os, pathlib, subprocess, time
import keras_cg

def note(what, pid):
    (pathlib.Path({str(tmp_path)!r}) / f"{{what}} {{pid}}").touch()

@keras_cg.custom_gradient
def f(x):
    note("left", subprocess.Popen(["sleep", "600"]).pid)
    note("escaped", subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
    note("worker", os.getpid())
    time.sleep(600)
"""
    (tmp_path / "deserter.py").write_text(source)

    def ids():
        return {name: int(pid) for name, pid in (path.name.split() for path in tmp_path.glob("* *"))}

    yield f"{tmp_path}/deserter.py:f", ids
    os.kill(ids()["escaped"], signal.SIGKILL)


def assert_ends(*pids):
    for _ in range(600):
        if not any(map(is_running, pids)):
            return
        time.sleep(0.05)
    pytest.fail("a process is still there")


@pytest.mark.once
def test_what_a_target_leaves_behind_is_ended_and_what_escapes_is_not_waited_for(deserter):
    target, ids = deserter
    done = start_check(target, "--arg", "x=normal:3", "--timeout", "3")
    assert done.returncode == 1 and "not done after 3 s while checking 'value' of f, in deserter.py:" in done.stdout
    assert done.stderr == "" and is_running(ids()["escaped"])
    assert_ends(ids()["left"], ids()["worker"])


@pytest.mark.once
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_command(number, deserter):
    target, ids = deserter
    command = [sys.executable, "-m", "keras_cg", "check", target, "--arg", "x=normal:3", *QUICK]
    # What a shell starts in the background ignores the signal, and so would all that is started from there.
    process = subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while "worker" not in ids():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == (130 if number == signal.SIGINT else -number) and told == b""
    assert is_running(ids()["escaped"])
    assert_ends(ids()["left"], ids()["worker"])


@pytest.mark.once
def test_the_copy_of_a_target_that_forks_tells_nothing(tmp_path):
    source = """
import os, time
import keras_cg

waits = [2] if os.fork() else []  # the original is later, and once

@keras_cg.custom_gradient
def right(x):
    return x, lambda upstream: upstream

@keras_cg.custom_gradient
def wrong(x):
    time.sleep(waits.pop() if waits else 0)
    return x, lambda upstream: 7 * upstream

right.example_args = wrong.example_args = {"x": "normal:3"}
"""
    (tmp_path / "forks.py").write_text(source)
    done = start_check(f"{tmp_path}/forks.py", "--json")
    assert [each["status"] for each in json.loads(done.stdout)["reports"]] == ["passed", "failed"]


@pytest.mark.once
def test_ctrl_c_while_the_command_is_imported(tmp_path):
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt\n")
    code = f"import sys; from {script.__name__} import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.once
@pytest.mark.parametrize("where", ["keras_cg.command._parser", "keras_cg.command.check.run"])
def test_ctrl_c_wherever_the_command_is(check, monkeypatch, where):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupted)
    done = check("planted.py:power")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def is_running(pid):
    try:
        # One that ended and that nobody has waited for is over.
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.once
def test_a_terminal_shows_how_far_it_is():
    command = [sys.executable, "-m", "keras_cg", "check", "unruly.py:slow", "--arg", "x=normal:3", *QUICK]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(TARGETS)
        os.execvpe(command[0], command, {**environment(), "TERM": "xterm-256color", "PYTHONWARNINGS": "ignore"})
    shown = b""
    try:
        while piece := os.read(terminal, 65536):
            shown += piece
    except OSError:
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    text = shown.decode()
    assert "of 8 checks" in text and any(mark in text for mark in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏") and "\x1b[32m✓" in text


@pytest.fixture
def watched(monkeypatch):
    """What the standard error shows, which is a terminal, and how long the work must take."""

    def make(delay, isatty=True):
        stream = io.StringIO()
        stream.isatty = lambda: isatty
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(progress, "DELAY", delay)
        monkeypatch.setenv("TERM", "xterm-256color")
        return stream

    return make


@pytest.mark.once
def test_work_is_shown_on_the_standard_error_and_taken_away(watched, capsys):
    stream = watched(0)
    with progress.shown(lambda: progress.bar(3, 8, "checks")):
        while "3 of 8 checks" not in stream.getvalue():
            time.sleep(0.01)
    # Where it stood, the line is cleared, and the cursor is back.
    assert "\x1b[2K" in stream.getvalue().rpartition("checks")[2] and stream.getvalue().count("\x1b[?25h") == 1
    assert capsys.readouterr().out == ""


@pytest.mark.once
@pytest.mark.parametrize(
    ("delay", "isatty", "term"),
    [(3600, True, "xterm"), (0, False, "xterm"), (0, True, "dumb")],
    ids=["short work", "no terminal", "a dumb one"],
)
def test_work_that_nobody_needs_to_watch(watched, monkeypatch, delay, isatty, term):
    stream = watched(delay, isatty)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress.shown(lambda: progress.bar(3, 8, "checks")):
        timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
        if delay == 0:
            assert timers == []
    assert stream.getvalue() == "" and not any(each.is_alive() for each in timers)


@pytest.mark.once
def test_work_without_rich(watched, monkeypatch):
    stream = watched(0)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with progress.shown(lambda: progress.bar(3, 8, "checks")):
        pass
    assert stream.getvalue() == ""


def board_of(backends, check="first order"):
    board = check_command.Board("f.py:f", list(backends), functions=["f"])
    for each in backends:
        board.found("f", each).append(Finding(each, check, "passed", error=1e-7))
    return board


@pytest.mark.once
@pytest.mark.parametrize(("columns", "tables"), [(100, 1), (60, 2), (40, 4), (20, 4)])
def test_no_backend_disappears_from_a_narrow_terminal(monkeypatch, capsys, columns, tables):
    from keras_cg.command import tables as drawn

    monkeypatch.setenv("COLUMNS", str(columns))
    names = ("jax", "numpy", "tensorflow", "torch")
    drawn.show(board_of(names))
    shown = capsys.readouterr().out
    lines = [line for line in shown.splitlines() if line[:1] in "╭│├╰"]
    heads = [line.replace("│", " ").split() for line in lines if line.startswith("│ check")]
    assert len(heads) == tables and [name for each in heads for name in each[1:]] == [*names]
    assert shown.count("✓ 1e-7") == 4 and "…" not in shown
    assert all(len(line) <= max(columns, 31) for line in lines)


@pytest.mark.once
@pytest.mark.parametrize("columns", [100, 40])
def test_the_picture_of_work_has_every_backend(columns):
    from rich.console import Console

    from keras_cg.command import tables as drawn

    console = Console(width=columns, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(drawn.picture(board_of(("jax", "numpy", "tensorflow", "torch"))))
    shown = console.file.getvalue()
    assert all(name in shown for name in ("jax", "numpy", "tensorflow", "torch")) and "4 of 32 checks" in shown
    assert any(mark in shown for mark in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")


@pytest.mark.once
def test_a_terminal_without_unicode():
    done = start_check("planted.py:kinked", "--arg", "x=linspace:-1,1,3", "--order", "2", PYTHONIOENCODING="ascii")
    assert done.returncode == 1 and "ok" in done.stdout and done.stdout.isascii()
    assert done.stdout.splitlines()[-1] == "? undecided: kinked"


def piped(words, output, unbuffered):
    """The exit status and the standard error of a command that writes to `output`."""
    command = [sys.executable, "-m", "keras_cg", *words]
    env = {**environment(), "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, env=env, cwd=TARGETS)
    return done.returncode, done.stderr


WRITERS = {
    "check": ["check", "planted.py:power", *QUICK],
    "check --json": ["check", "planted.py:power", *QUICK, "--json"],
    "info --json": ["info", "--json"],
    "--version": ["--version"],
}
# What argparse writes without a buffer it does not look after.
PIPED = [(name, unbuffered) for name in WRITERS for unbuffered in ("", "1") if (name, unbuffered) != ("--version", "1")]


@pytest.mark.once
@pytest.mark.parametrize(("name", "unbuffered"), PIPED)
def test_a_reader_that_leaves_is_no_disagreement(name, unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert piped(WRITERS[name], writer, unbuffered) == (141, "")
    finally:
        os.close(writer)


@pytest.mark.once
@pytest.mark.parametrize(("name", "unbuffered"), PIPED)
def test_an_output_without_room_is_told_in_one_line(name, unbuffered):
    with open("/dev/full", "w") as full:
        status, told = piped(WRITERS[name], full, unbuffered)
    expected = "cannot write to the standard output: No space left on device; redirect it, or free some space"
    assert (status, told) == (2, f"keras-cg: {expected}\n")


@pytest.mark.once
def test_no_output_at_all():
    command = [sys.executable, "-m", "keras_cg", *WRITERS["check"]]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, env=environment(), cwd=TARGETS
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.once
def test_no_standard_error_at_all():
    command = [sys.executable, "-m", "keras_cg", "check", "planted.py:powr", "--json"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *command], stdout=subprocess.PIPE, env=environment(), cwd=TARGETS
    )
    assert done.returncode == 2 and json.loads(done.stdout)["error"].startswith("planted.py has no 'powr'")


@pytest.mark.once
def test_a_place_is_named_only_in_files_of_the_user(check):
    # NumPy raises it in Cython, whose frames have names of files that are nowhere.
    done = check("planted.py:power", "--arg", "x=normal:99999999999999999999999")
    assert done.returncode == 1 and "✗ numpy: ValueError: Maximum allowed dimension exceeded\n" in done.stdout


# --- info ----------------------------------------------------------------------------------------------------------


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


@pytest.mark.once
def test_info_shows_the_versions_before_the_backends_start(run, monkeypatch, capsys):
    shown = []

    async def ask(found):
        shown.append(capsys.readouterr().out)

    monkeypatch.setattr(info, "_ask_all", ask)
    monkeypatch.setattr(info, "_version", lambda name: None)
    for name in ("KERAS_CG_BACKEND", "KERAS_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    assert run("info").returncode == 0
    versions_line, active = shown[0].splitlines()
    assert versions_line.endswith(", Keras not installed")
    if "keras" not in sys.modules:
        assert active == "active backend: numpy (from the default; set KERAS_CG_BACKEND or KERAS_BACKEND)"


@pytest.mark.once
def test_info_as_json():
    data = json.loads(start("info", "--json", KERAS_CG_BACKEND="numpy").stdout)
    assert data["active"] == "numpy" and data["because"] == "the environment variable KERAS_CG_BACKEND"
    assert (data["schema"], data["keras_cg"], data["python"]) == (1, keras_cg.__version__, platform.python_version())
    found = {each["name"]: each for each in data["backends"]}
    assert found["numpy"] == {"name": "numpy", "installed": True, "version": np.__version__, "devices": ["cpu"]}
    assert {name for name, each in found.items() if each["installed"]} == set(keras_cg.available_backends())


@pytest.mark.once
def test_info_tells_what_is_untested(run, monkeypatch):
    line = "numpy 9.9 is newer than the versions that keras_cg was tested with (2.1 to 2.5): it is untested"
    monkeypatch.setattr(versions, "untested", lambda: [line])
    assert json.loads(run("info", "--json").stdout)["untested"] == [line]
    assert line in run("info").stdout.replace("\n", " ")


@pytest.mark.once
@pytest.mark.parametrize("columns", [100, 40, 20])
def test_info_leaves_nothing_out_on_a_narrow_terminal(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    found = [
        {"name": "jax", "installed": False, "version": None},
        {
            "name": "tensorflow",
            "installed": True,
            "version": "2.21.0",
            "devices": [f"GPU:{number}" for number in range(8)],
        },
        {"name": "torch", "installed": True, "version": "2.13.0+cpu", "problem": "torch: ImportError"},
    ]
    info._show({"active": "tensorflow", "because": "a test", "backends": found, "untested": []})
    shown = capsys.readouterr().out
    words = {word.strip(",") for line in shown.splitlines() for word in line.replace("│", " ").split()}
    assert {"jax", "tensorflow", "torch", "2.21.0", "2.13.0+cpu", "active", "GPU:0", "GPU:7"} <= words
    assert '"keras-cg[jax]"' in words and "…" not in shown


@pytest.mark.once
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
    done = start("info", "--json", KERAS_CG_BACKEND="nump")
    assert done.returncode == 2 and "unknown backend 'nump'" in done.stderr and "Did you mean 'numpy'?" in done.stderr


# --- plot ----------------------------------------------------------------------------------------------------------


def drawn(name, spec="linspace:-3,3,61", expected=None, **given):
    """The curves of a function of plots.py on the active backend."""
    (target,) = targets.find(str(TARGETS / f"plots.py:{name}"), {"x": spec, **given}, expected, 0)
    return curves.curves(target)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_curves_are_the_function_and_its_derivatives(backend, dtype):
    found = drawn("cube", f"linspace:-3,3,61:{dtype}", n="3")
    x = np.linspace(-3, 3, 61).astype(dtype).astype(float)
    close = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-8}[dtype]
    np.testing.assert_array_equal(found.x, x)
    np.testing.assert_allclose(found.value, x**3, close, close)
    np.testing.assert_allclose(found.gradient, 3 * x**2, close, close)
    # By differences, in double precision whatever the dtype.
    np.testing.assert_allclose(found.expected, 3 * x**2, 1e-7, 1e-7)
    assert not found.differs.any() and found.label == "x" and found.others == "n = 3"


def test_the_curves_part_where_the_rule_is_wrong(backend):
    found = drawn("half_right")
    np.testing.assert_allclose(found.expected, np.cos(found.x), 1e-6, 1e-6)
    np.testing.assert_allclose(found.gradient, np.where(found.x > 0, 1, 0.5) * np.cos(found.x), 1e-5, 1e-6)
    np.testing.assert_array_equal(found.differs, found.x < 1e-6)


def test_nothing_is_expected_at_a_kink_or_a_jump(backend):
    found = drawn("relu", "linspace:-1,1,5")
    np.testing.assert_allclose(found.expected, [0, 0, math.nan, 1, 1], atol=1e-9)
    assert not found.differs.any()
    found = drawn("rounded", "linspace:-1,1,5")
    np.testing.assert_allclose(found.expected, [0, math.nan, 0, math.nan, 0], atol=1e-9)
    np.testing.assert_array_equal(found.differs, [True, False, True, False, True])


def test_what_is_expected_may_be_a_function_or_a_rule(backend):
    for expected in ("identity", "passed_on"):
        found = drawn("rounded", expected=expected)
        np.testing.assert_allclose(found.expected, 1, 1e-6)
        assert not found.differs.any()


@pytest.mark.only("numpy")
def test_a_function_of_one_dtype_is_drawn_in_it(backend):
    found = drawn("single_only")
    np.testing.assert_allclose(found.expected, 2 * found.x, 1e-2, 1e-2)
    assert not found.differs.any()


@pytest.mark.only("numpy")
@pytest.mark.parametrize(
    ("name", "spec", "problem"),
    [
        ("softmax", "linspace:0,1,9", "softmax is not one: numbers of x change the output at others"),
        ("total", "linspace:0,1,9", "total is not one: from the shape (9,) it makes ()"),
        ("several", "linspace:0,1,9", "several is not one: its output is a tuple"),
        ("counts", "linspace:0,1,9", "counts is not one: its output is of int64"),
        ("cube", "normal:4,3", "exactly one argument of cube with increasing numbers (one axis, 3 or more), and none"),
        ("cube", "linspace:1,0,9", "pass one as --arg x=linspace:-5,5,400"),
    ],
)
def test_a_function_without_a_curve_is_refused(backend, name, spec, problem):
    with pytest.raises(messages.UsageError) as caught:
        drawn(name, spec)
    assert problem in str(caught.value)


def made_up(apart):
    """Curves that part at some of ten points."""
    x = np.arange(10.0)
    return Curves(x, x**2, 2 * x + np.asarray(apart), 2 * x, np.full(10, 0.1))


@pytest.mark.once
def test_the_parts_are_named():
    nowhere, left, other = made_up([0] * 10), made_up([1] * 3 + [0] * 7), made_up([0] * 6 + [1] * 4)
    everywhere, pieces = made_up([1] * 10), made_up([1, 0] * 5)
    assert list(plot._parts({"jax": nowhere, "torch": nowhere})) == ["jax, torch: within tolerance everywhere"]
    assert list(plot._parts({"jax": left, "torch": other})) == [
        "jax: outside tolerance for 0 < x < 2.5",
        "torch: outside tolerance for 5.5 < x < 9",
    ]
    assert list(plot._parts({"jax": everywhere})) == ["jax: outside tolerance for every x"]
    assert list(plot._parts({"jax": pieces})) == ["jax: outside tolerance for 50% of the range, in 5 pieces"]


@pytest.mark.once
def test_the_figure_shows_what_parts():
    from matplotlib.patches import Rectangle

    figure = plot.draw("f", {"jax": made_up([1] * 3 + [0] * 7), "torch": made_up([0] * 10)})
    top, bottom = figure.axes
    for panel in (top, bottom):
        (shaded,) = [patch for patch in panel.patches if isinstance(patch, Rectangle)]
        assert (shaded.get_x(), shaded.get_width()) == (0, 2.5)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["numerical derivative", "function", "custom gradient, jax", "custom gradient, torch",
                      "outside tolerance on jax: 0 < x < 2.5", "tolerance"]  # fmt: skip
    assert top.get_title(loc="left") == "f(x)"
    curves_of_jax = [line.get_ydata() for line in bottom.lines]
    np.testing.assert_array_equal(curves_of_jax[0], [1] * 3 + [0] * 7)


@pytest.mark.side_by_side
def test_plot_writes_an_image_of_every_backend(run, backends, tmp_path):
    from matplotlib.image import imread

    words = ("plot", "plots.py:half_right", "--arg", "x=linspace:-3,3,200", "--backends", ",".join(backends))
    pixels = {}
    for look, called in (("light", start), ("dark", run)):
        path = tmp_path / f"{look}.png"
        done = called(*words, "-o", path, f"--{look}")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"{', '.join(backends)}: outside tolerance for -3 < x < 0", f"plot: {path}"]
        assert path.read_bytes().startswith(PNG)
        pixels[look] = imread(path)
    assert pixels["light"].shape == pixels["dark"].shape == (960, 1200, 4)
    assert pixels["light"][..., :3].mean() > 0.7 and pixels["dark"][..., :3].mean() < 0.3


@pytest.mark.once
@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["plots.py:cube", "-o", "cube.xyz"], ["cannot write cube.xyz: unknown image format 'xyz'; use one of", "png"]),
        (["plots.py:cube", "-o", "nowhere/cube.png"], ["cannot write nowhere/cube.png: its folder does not exist"]),
        (["plots.py:cube", "-o", "/proc/cube.png"], ["cannot write /proc/cube.png: "]),
        (["plots.py:", "-o", "cube.png"], ["plots.py: names no function; name one after the colon"]),
        (["plots.py", "-o", "cube.png"], ["plot is for one function: name it, as in plots.py:FUNCTION"]),
        (["plots.py:softmax", "-o", "cube.png"], ["plot draws elementwise functions"]),
        (["plots.py:cube"], ["the following arguments are required: -o/--output"]),
    ],
)
def test_what_cannot_be_drawn_is_told_in_one_line(run, words, parts):
    given = ["--arg", "x=linspace:0,1,9"] if ":" in words[0][:-1] else []
    refused(run("plot", *words, *given, "--backends", "numpy"), *parts)


@pytest.mark.side_by_side
def test_plot_draws_what_it_can(run, backends, tmp_path):
    others = [name for name in backends if name != "numpy"]
    path = tmp_path / "f.png"
    words = ("--arg", "x=linspace:0,1,9", "--backends", ",".join(["numpy", *others]), "-o", path)
    done = run("plot", "plots.py:only_numpy", *words)
    assert done.returncode == (1 if others else 0) and path.read_bytes().startswith(PNG)
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == others
    assert all("RuntimeError: not here (plots.py:" in line for line in done.stderr.splitlines())
    ghost(tmp_path)
    done = start("plot", "plots.py:cube", *words[:2], "--backends", "numpy,ghost", "-o", path, folder=tmp_path)
    assert done.returncode == 2 and done.stderr == 'ghost: not installed: pip install "ghost"\n'
