"""The arguments of a function on the command line: what each expression makes, and what is said where it raises."""

import numpy as np
import pytest

from command.command_runs import TARGETS
from keras_cg.command import messages, specs, targets

pytestmark = pytest.mark.only("numpy")


@pytest.fixture(autouse=True)
def forget():
    specs.old.clear()
    yield
    specs.old.clear()


def test_an_expression_has_numpy_and_a_generator_of_its_argument():
    random = np.random.default_rng([1, *b"x"])
    made = specs.evaluate("x", "[rng.normal(size=(4, 3)), np.float32(0.5), np.linspace(0, 1, 3), 'a:b']", 1)
    np.testing.assert_array_equal(made[0], random.normal(size=(4, 3)))
    assert made[1].dtype == "float32" and made[2].tolist() == [0, 0.5, 1] and made[3] == "a:b"
    assert specs.evaluate("y", "rng.normal()", 1) != specs.evaluate("x", "rng.normal()", 1)
    assert specs.old == {}


@pytest.mark.parametrize(
    ("spec", "expression"),
    [
        ("normal:4,3", "rng.normal(size=[4,3]).astype('float32')"),
        ("normal:()", "rng.normal(size=[]).astype('float32')"),
        ("normal:5:float64", "rng.normal(size=[5]).astype('float64')"),
        ("uniform:-2,-1:7", "rng.uniform(-2,-1, size=[7]).astype('float32')"),
        ("linspace:-5,5,11:float16", "np.linspace(-5,5,11).astype('float16')"),
        ("0.5:float32", "np.asarray(0.5).astype('float32')"),
        ("@x.npy", "np.load('x.npy')"),
    ],
)
def test_a_spec_of_the_last_release_is_an_expression(spec, expression, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(3.0))
    np.testing.assert_array_equal(specs.evaluate("x", spec, 0), specs.evaluate("x", expression, 0))
    assert specs.old == {f"x={spec}": f"x={expression}"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mean", "NameError: name 'mean' is not defined; a string needs quotes: '\"mean\"'"),
        ("", "SyntaxError: invalid syntax"),
        ("normal:4:int32", "SyntaxError: invalid syntax"),
        ("np.load('absent.npy')", "FileNotFoundError: [Errno 2] No such file or directory: 'absent.npy'"),
    ],
)
def test_an_expression_that_raises(text, problem):
    with pytest.raises(messages.UsageError) as caught:
        specs.evaluate("x", text, 0)
    expected = "expected a Python expression with `np` and `rng`, such as rng.normal(size=(4, 3))"
    assert str(caught.value).startswith(f"argument x={text}: {problem}") and str(caught.value).endswith(expected)


def test_arguments_by_keyword():
    given = specs.named(["x=rng.normal(size=3)", "weights={'w': 2.0}", 'mode="sum"', "scale=0.5"])
    (found,) = targets.find(str(TARGETS / "planted.py:keywords"), given, None, 0)
    assert found.kwargs == {"weights": {"w": 2.0}, "mode": "sum", "scale": 0.5} and found.args[0].shape == (3,)


def test_an_old_spec_is_told_with_its_expression(run, tmp_path):
    source = "import keras_cg\n@keras_cg.custom_gradient\ndef f(x, y):\n    return x + 0 * y, lambda g: (g, 0 * y)\n"
    (tmp_path / "hinted.py").write_text(source + "f.example_args = {'x': 'normal:2'}\n")
    done = run("check", f"{tmp_path}/hinted.py:f", "--arg", "y=0.5:float32", "--backends", "numpy", "--fast")
    assert done.returncode == 0, done.stdout + done.stderr
    said = "is deprecated, and raises from 0.5 on; write"
    assert f"keras-cg: y=0.5:float32 {said} y=np.asarray(0.5).astype('float32')\n" in done.stderr
    assert f"keras-cg: x=normal:2 {said} x=rng.normal(size=[2]).astype('float32')\n" in done.stderr
