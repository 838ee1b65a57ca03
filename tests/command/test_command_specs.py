"""The arguments of a function on the command line: each spec makes what it says, or one line says what is wrong."""

import numpy as np
import pytest

from command.command_runs import TARGETS
from keras_cg.command import messages, specs, targets

pytestmark = pytest.mark.only("numpy")


def made(spec, seed=0):
    return specs.parse("x", spec)(np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("spec", "shape", "dtype"),
    [
        ("normal:4,3", (4, 3), "float32"),
        ("normal:", (), "float32"),
        ("normal:0,3", (0, 3), "float32"),
        ("normal:5:float64", (5,), "float64"),
        ("normal:3:complex64", (3,), "complex64"),
        ("uniform:-2,-1:7", (7,), "float32"),
        ("uniform:0,9:3:int32", (3,), "int32"),
        ("linspace:-5,5,11", (11,), "float32"),
        ("0.5:float32", (), "float32"),
    ],
)
def test_a_spec_makes_an_array(spec, shape, dtype):
    array = made(spec)
    assert isinstance(array, np.ndarray) and array.shape == shape and array.dtype == dtype


def test_a_spec_makes_the_numbers_that_it_says():
    np.testing.assert_array_equal(made("linspace:-1,1,5:float64"), [-1, -0.5, 0, 0.5, 1])
    assert (made("uniform:-2,-1:1000") >= -2).all() and (made("uniform:-2,-1:1000") <= -1).all()
    assert set(made("uniform:-3,0:1000:int64")) == {-3, -2, -1}
    normal = made("normal:100000:float64")
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02
    assert abs(made("normal:100000:complex128").imag.std() - 1) < 0.02
    np.testing.assert_array_equal(made("normal:3", 1), made("normal:3", 1))
    assert (made("normal:3", 1) != made("normal:3", 2)).all()


@pytest.mark.parametrize(
    "text", ["3", "0.5", "'mean'", "[1, 2]", "(1, 2)", "None", "True", "{'w': 1.5}", "-1e3", "'a:b'"]
)
def test_a_literal_stays_what_it_is(text):
    value = made(text)
    assert repr(value) == repr(eval(text))


def test_a_file_keeps_its_dtype_and_must_be_one_array_of_numbers(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3.0))
    assert made(f"@{tmp_path}/x.npy").dtype == "float64"
    assert made(f"@{tmp_path}/x.npy:float32").dtype == "float32"
    np.testing.assert_array_equal(made(f"@{tmp_path}/x.npy"), [0, 1, 2])
    np.save(tmp_path / "text.npy", np.array(["a"]))
    np.savez(tmp_path / "several.npz", a=np.zeros(1))
    for name in ("text.npy", "several.npz"):
        with pytest.raises(messages.UsageError, match="does not hold one array of numbers"):
            specs.parse("x", f"@{tmp_path}/{name}")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("normal:a", "'a' is not a SHAPE such as 4,3"),
        ("normal:4:float23", "unknown dtype 'float23'; use one of float16, float32"),
        ("normal:4:int32", "int32 is not possible here; use one of float16"),
        ("normal:4:bfloat16", "has no bfloat16; use float16, or cast inside the function"),
        ("uniform:0,1", "expected uniform:LO,HI:SHAPE"),
        ("uniform:1,0:3", "LO must be below HI, and 1 is not below 0"),
        ("linspace:0,1", "'0,1' is not LO,HI,N, with finite numbers"),
        ("linspace:0,1,2.5", "N must be a whole number above 0, and is 2.5"),
        ("mean", "'mean' is not a valid spec; a string needs quotes: '\"mean\"'"),
        ("", "'' is not a valid spec"),
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


def test_arguments_by_keyword():
    weights = ("--arg", "x=normal:3", "--arg", "weights={'w': 2.0}", "--arg", 'mode="sum"', "--arg", "scale=0.5")
    (found,) = targets.find(str(TARGETS / "planted.py:keywords"), specs.named(weights[1::2]), None, 0)
    assert found.kwargs == {"weights": {"w": 2.0}, "mode": "sum", "scale": 0.5} and found.args[0].shape == (3,)
