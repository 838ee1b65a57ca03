"""`keras-cg check`: right and wrong gradients are told, and what cannot be checked in one line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import keras_cg
from command.command_runs import QUICK, environment, refused, report, start, start_check
from keras_cg import backends as registry

pytestmark = pytest.mark.only("numpy")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([""], ["'' names neither a file nor a module; expected FILE.py:FUNCTION or MODULE:FUNCTION"]),
        (["a" * 300 + ".py:f"], ["no file 'aaaa", "aaa.py'; check the path"]),
        (["planted.py:"], ["planted.py: names no function; name one after the colon, or write planted.py for all"]),
        (["."], [". is a folder; name a .py file in it, or a module: package.module"]),
        (["nowhere.py:f"], ["no file 'nowhere.py'; check the path"]),
        (["../targets/planted:power"], ["did you mean '../targets/planted.py'?"]),
        (["absent_module:f"], ["absent_module cannot be imported", "No module named 'absent_module'", "ends in .py"]),
        (["imports_what_is_absent.py:f"], ["(imports_what_is_absent.py:1)", "install 'absent_module', or add"]),
        (["raises_at_import.py:f"], ["RuntimeError: not today (raises_at_import.py:1); check that `python`"]),
        (["relative_import.py:f"], ["(relative_import.py:1)", "name a file of a package as a module"]),
        (["exits_at_import.py:f"], ["it calls sys.exit('no') (exits_at_import.py:3)"]),
        (["planted.py:powr"], ["planted.py has no 'powr'; did you mean 'power'?"]),
        (["planted.py:zzz"], ["planted.py has no 'zzz'; it has: power, doubled"]),
        (["planted.py:scale"], ["planted.py:scale is a function, not a function with a custom gradient; decorate it"]),
        (["planted.py:swapped"], ["needs 2 more arguments: add --arg x=... --arg y=..., or set swapped.example_args"]),
        (
            ["planted.py:Scale.method", "--arg", "x=rng.normal(size=3)"],
            ["is a method of a class; name the method of an object"],
        ),
        (["planted.py:power", "--arg", "z=3"], ["power has no argument 'z'; its arguments are: x, n"]),
        (
            ["planted.py:power", "--arg", "x=a"],
            ["argument x=a: NameError: name 'a' is not", "expected a Python expression"],
        ),
        (["planted.py:power", "--arg", "x"], ["--arg x: expected NAME=EXPRESSION, such as"]),
        (["planted.py:power", "--arg", "n=1", "--arg", "n=2"], ["--arg n: appears twice"]),
        (["planted.py:doubled", "--arg", "x=3"], ["x=3 is static; pass x=np.float32(3) or x=rng.normal(size=(4, 3))"]),
        (["planted.py", "--arg", "x=3"], ["--arg is for one function: name it, as in planted.py:FUNCTION"]),
        (["planted.py", "--expected", "scale"], ["--expected is for one function"]),
        (["planted.py", "--value", "scale"], ["--value is for one function"]),
        (["no_hints.py"], ["no function of no_hints.py has example_args", "no_hints.py:silent with --arg"]),
        (
            ["no_hints.py:silent", "--arg", "x=rng.normal(size=3)", "--expected", "number"],
            ["--expected number is an int; name"],
        ),
        (["bad_hints.py:too_many"], ["too_many.example_args has 2 values for 1 positional parameters"]),
        (["bad_hints.py:numbered"], ["numbered.example_args has keys that are not names"]),
        (["bad_hints.py:a_number"], ["a_number.example_args is an int; expected a dict such as"]),
        (["unmarked.py"], ["unmarked.py has no function decorated with @keras_cg.custom_gradient; nothing to check"]),
        (["planted.py:power", "--backends", "jaxx"], ["unknown backend 'jaxx'", "Did you mean 'jax'?"]),
        (["planted.py:power", "--order", "7"], ["argument --order: invalid choice: 7"]),
        (["planted.py:power", "--modes", "sideways"], ["'sideways' is not reverse, forward or reverse,forward"]),
        (["planted.py:power", "--seed", "-1"], ["argument --seed: '-1' is not 0, 1, 2 ..."]),
        (["planted.py:power", "--timeout", "0"], ["'0' is not a number of seconds above 0"]),
        ([], ["the following arguments are required: TARGET; see keras-cg check --help"]),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) and "such as" not in value else None,
)
def test_what_cannot_be_checked_is_told_in_one_line(run, words, parts):
    given = [] if "--backends" in words else ["--backends", "numpy"]
    refused(run("check", *words, *given), *parts)


def test_no_command_and_the_version(run):
    done = run()
    assert done.returncode == 0 and done.stderr == "" and done.stdout == run("--help").stdout
    assert (
        "examples:\n  keras-cg info\n  keras-cg check rules.py:softplus --arg 'x=rng.normal(size=(4, 3))'\n"
        in done.stdout
    )
    assert run("--version").stdout == f"keras-cg {keras_cg.__version__}\n"
    assert "NAME=EXPRESSION" in run("check", "--help").stdout and "--dark" in run("plot", "--help").stdout


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("rich", ["info"]),
        ("rich", ["check", "planted.py:power", "--backends", "numpy"]),
        ("scipy", ["check", "planted.py:power", "--backends", "numpy"]),
        ("matplotlib", ["plot", "plots.py:cube", "--arg", "x=np.linspace(0, 1, 9)", "-o", "cube.png"]),
    ],
)
def test_a_missing_extra_is_named_and_json_needs_no_rich(module, words, tmp_path):
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError('No module named {module}', name='{module}')\n")
    refused(start(*words, folder=tmp_path), f'{module} is not installed: pip install "keras-cg[cli]"')
    if module == "rich" and "check" in words:
        assert start_check("planted.py:power", "--json", folder=tmp_path).returncode == 0


def test_importing_the_package_loads_nothing_that_few_programs_need():
    names = ("keras_cg.command", "rich", "matplotlib", "scipy", "optree", "difflib")
    code = f"import sys, keras_cg; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.stdout == "[]\n"
    code = code.replace("keras_cg;", "keras_cg.command.tables;")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert "'rich'" in done.stdout


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
def test_a_wrong_gradient_fails_on_each_backend_and_is_told_once(run, several):
    done = run("check", "planted.py:doubled", "--arg", "x=rng.normal(size=(4, 3))", "--backends", ",".join(several))
    assert done.returncode == 1
    assert done.stdout.count(f"✗ first order of x on {', '.join(several)}\n") == 1
    assert done.stdout.count("diagnosis: a factor of 2\n") == 1
    assert done.stdout.splitlines()[-1] == "✗ failed: doubled"


@pytest.mark.side_by_side
@pytest.mark.parametrize(
    "name", ["log1pexp", "gradient_clipping", "gradient_reversal", "digits", "spiking", "physics_informed"]
)
def test_the_examples_pass(run, name, backends):
    done = run("check", EXAMPLES / f"{name}.py", "--backends", ",".join(backends))
    assert done.returncode == 0, done.stdout


def test_a_gradient_that_is_meant_to_differ(check, tmp_path):
    (tmp_path / "other.py").write_text("def meant(x, strength):\n    return strength * x\n")
    # A function's own hint, a function in its place, one of another file, and a rule.
    assert check("planted.py:scaled").returncode == 0
    assert check("planted.py:scaled", "--expected", "power").returncode == 1
    assert check("planted.py:scaled", "--expected", f"{tmp_path}/other.py:meant").returncode == 0
    assert check("planted.py:scaled", "--expected", "scaling_rule").returncode == 0


def test_an_output_that_is_wrong(check, tmp_path):
    source = "import keras_cg\nright, wrong = (lambda x: 3.0 * x), (lambda x: 3.5 * x)\n"
    source += "@keras_cg.custom_gradient\ndef f(x):\n    return 3 * x, lambda upstream: 3 * upstream\n"
    (tmp_path / "valued.py").write_text(source)
    given = (f"{tmp_path}/valued.py:f", "--arg", "x=rng.normal(size=3)")
    assert check(*given, "--value", "right").returncode == 0
    done = check(*given, "--value", "wrong")
    assert done.returncode == 1 and "✗ value" in done.stdout
    # By a hint beside `example_args`, which the command line comes before.
    (tmp_path / "valued.py").write_text(source + "\nf.value = wrong\n")
    assert check(*given).returncode == 1 and check(*given, "--value", "right").returncode == 0


LEFT_OUT = {"forgotten": "no example_args", "Layer.call": "a method: name it as OBJECT.METHOD"}


@pytest.mark.parametrize("is_strict", [False, True])
def test_functions_that_are_not_checked_are_named(run, is_strict):
    words = ("check", "partly_hinted.py", "--backends", "numpy", "--fast", *["--strict"] * is_strict)
    done = run(*words)
    assert done.returncode == int(is_strict)
    named = "not checked: forgotten (no example_args), Layer.call (a method: name it as OBJECT.METHOD)"
    assert named in done.stdout
    last = done.stdout.splitlines()[-1]
    assert ("not checked, with --strict: forgotten, Layer.call" if is_strict else "passed: checked on numpy") in last
    data = json.loads(run(*words, "--json").stdout)
    assert data["left_out"] == LEFT_OUT and data["reports"][0]["status"] == "passed"
    # Where a function is named, nothing more is asked for.
    words = ("check", "partly_hinted.py:checked", *words[2:])
    assert "not checked: " not in run(*words).stdout
    assert json.loads(run(*words, "--json").stdout)["left_out"] == {}


def test_fast_neither_compiles_nor_exports_and_says_what_it_does_not_check(run):
    words = ("check", "planted.py:power", "--backends", "numpy")
    line = "not checked with --fast: single elements, compiled, export"
    assert run(*words, "--fast").stdout.splitlines()[-2] == line and "--fast" not in run(*words).stdout
    fast, whole = run(*words, "--fast", "--json"), run(*words, "--json")
    assert json.loads(fast.stdout)["not_checked"] == line.partition(": ")[2].split(", ")
    assert json.loads(whole.stdout)["not_checked"] == []
    findings = report(fast)["findings"]
    assert {each["check"] for each in findings if each["status"] == "passed"} >= {"value", "first order"}
    assert findings != report(whole)["findings"]


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
    return lambda name, *words: run(
        "check", f"{tmp_path}/raising.py:{name}", "--arg", "x=rng.normal(size=(3, 4))", *words
    )


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


def test_an_error_of_ours_is_shown_with_its_remedy(raising):
    done = raising("of_a_wrong_shape", "--arg", "w=rng.normal(size=4)", "--backends", "numpy")
    assert "expected: float64[4]; remedy: " in done.stdout and "the rule is at raising.py:" in done.stdout
    done = raising("under_no_convention", "--backends", "numpy")
    assert "expected one of: grad(upstream), grad(dy1, dy2, ...), grad(*dys), grad(*args, upstream), " in done.stdout


def test_the_hook_is_a_command_that_runs(run):
    hooks = (Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text()
    (entry,) = re.findall(r"^  entry: (.*)$", hooks, re.MULTILINE)
    name, *words = entry.split()
    assert name == "keras-cg" and {"--fast", "--strict"} <= {*words}
    assert run(*words, "planted.py:power", "--backends", "numpy").returncode == 0
    assert run(*words, "planted.py:doubled", "--arg", "x=rng.normal(size=3)", "--backends", "numpy").returncode == 1


def test_undecided_is_not_passed(check):
    done = check("planted.py:kinked", "--arg", "x=np.linspace(-1, 1, 3)", "--order", "2")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "? undecided: kinked" and "a kink at the test point" in done.stdout


def test_targets_of_every_kind(check, tmp_path):
    targets = ["planted:power", "planted:triple.method", "planted.py:triple.method", "planted.py:Scale.static"]
    # A file is found with what lies beside it, wherever the command runs; and may be called as what exists.
    (tmp_path / "helper.py").write_text("factor = 3\n")
    source = "import keras_cg\nfrom helper import factor\n@keras_cg.custom_gradient\ndef f(x):\n"
    (tmp_path / "json.py").write_text(source + "    return factor * x, lambda g: factor * g\n")
    # The command line comes before a hint that does not parse.
    for target in (*targets, f"{tmp_path}/json.py:f", "bad_hints.py:misspelt"):
        done = check(target, "--arg", "x=rng.normal(size=3)")
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_target_that_changes_the_directory(check, tmp_path, monkeypatch):
    source = "import os, keras_cg\nos.chdir('/')\n@keras_cg.custom_gradient\ndef f(x):\n    return x, lambda g: 2 * g\n"
    (tmp_path / "moves.py").write_text(source)
    (tmp_path / "other.py").write_text("def meant(x):\n    return 2 * x\n")
    np.save(tmp_path / "x.npy", np.array([1.0, 2.0]))
    monkeypatch.chdir(tmp_path)
    done = check("moves.py:f", "--arg", "x=np.load('x.npy')", "--expected", "other.py:meant")
    assert done.returncode == 0, done.stdout + done.stderr


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
    done = run("check", "planted.py:swapped", "--arg", "x=rng.normal(size=3)", "--arg", "y=rng.normal(size=3)",
               "--json", "--order", "1", "--no-compiled", "--backends", ",".join(backends))  # fmt: skip
    found = report(done)
    assert done.returncode == 1 and found["function"] == "swapped" and found["status"] == "failed"
    wrong = [each for each in found["findings"] if each["check"] == "first order"]
    assert [(each["backend"], each["argument"]) for each in wrong] == [(name, arg) for name in backends for arg in "xy"]
    assert all("swapped" in each["diagnosis"] for each in wrong)
    agreement = [each for each in found["findings"] if each["check"] == "agreement"]
    assert [each["backend"] for each in agreement] == (list(backends) if len(backends) > 1 else [])


@pytest.mark.parametrize("words", [["check", "planted.py:powr"], ["check"], ["info", "--nothing"]])
def test_json_is_json_where_nothing_can_be_done(run, words):
    done = run(*words, "--json", *(QUICK if "check" in words else ()))
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert done.stderr == f"keras-cg {words[0]}: {json.loads(done.stdout)['error']}\n"
