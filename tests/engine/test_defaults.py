"""How exact a dtype is, what is known only in a program, and the functions that a backend need not have."""

import functools
import types

import numpy as np
import pytest

from keras_cg import backends
from keras_cg.engine import defaults, precision
from keras_cg.engine.linear import check_or_nan
from keras_cg.recipes.checkpoint.sample import Sample

pytestmark = pytest.mark.only("numpy")

X = np.array([1.0, 2.0, 3.0])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_table_is_that_of_the_dtypes(dtype):
    info, known = np.finfo(dtype), precision.of(dtype)
    assert known.epsilon == float(info.eps)
    assert known.smallest == float(info.tiny)
    assert 2.0**known.reach < float(info.max) ** 0.98 and 2.0**-known.reach >= float(info.tiny)
    assert known.epsilon < known.repeated < precision.of_linear([dtype])[0] <= 0.1
    assert precision.of_linear([dtype])[1] == 8 * known.smallest


def test_the_precision_of_other_dtypes():
    assert [*map(precision.is_differentiable, ("float16", "bfloat16", "float8_e4m3fn", "complex64"))] == [True] * 4
    assert not any(map(precision.is_differentiable, ("int32", "bool", "uint8")))
    assert precision.of("complex64") == precision.of("float32")
    assert precision.of("complex128") == precision.of("float64") == precision.of("int32")
    half = precision.of("bfloat16")
    assert (half.epsilon, half.smallest) == (2.0**-7, 2.0**-126)
    assert (half.reach, half.repeated) == (40, 0.05)
    assert precision.of_linear(["bfloat16"]) == (0.1, 8 * half.smallest)
    assert precision.of_linear(["float64", "complex64"]) == precision.of_linear(["float32"])


@pytest.fixture
def traced(monkeypatch):
    """The NumPy backend, as if no value could be looked at."""
    backend = backends.load("numpy", "a test")
    monkeypatch.setattr(backend, "is_known", lambda tensors: False)
    return backend


def test_what_holds_only_if_conditions_do():
    backend = backends.load("numpy", "a test")
    assert check_or_nan(backend, [X], [], ZeroDivisionError)[0] is X
    assert check_or_nan(backend, [X], [np.bool_(True)], ZeroDivisionError)[0] is X
    with pytest.raises(ZeroDivisionError):
        check_or_nan(backend, [X], [np.bool_(True), np.array([True, False])], ZeroDivisionError)


def test_what_holds_only_if_conditions_do_in_a_program(traced):
    half = X.astype(np.float16)
    assert check_or_nan(traced, [X], [], ZeroDivisionError)[0] is X
    for conditions, expected in (
        ([np.array([True, True])], X),
        ([np.bool_(True), np.array([True, False])], X * np.nan),
    ):
        found = check_or_nan(traced, [X, half], conditions, ZeroDivisionError)
        np.testing.assert_array_equal(found[0], expected)
        assert found[1].dtype == np.float16 and np.isnan(found[1]).all() == np.isnan(expected).all()


def test_what_stops_gradients_is_a_copy():
    x = X.copy()
    copy = defaults.stop_gradient(backends.load("numpy", "a test"), x)
    x[0] = 100.0
    np.testing.assert_array_equal(copy, X)


def test_tensors_of_two_dtypes_never_agree():
    """bfloat16 has no NumPy array of its own."""
    backend = types.SimpleNamespace(dtype=lambda tensor: tensor[0], to_numpy=lambda tensor: tensor[1])
    one, two = ("bfloat16", X), ("float32", X)
    assert defaults.agreement(backend, [(one, one), (one, two)]) == [True, False]


def test_arrays_but_for_rounding_in_a_program():
    repeated = functools.partial(defaults.is_repeated_later, backends.load("numpy", "a test"))
    odd = np.array([np.nan, np.inf, 1.0])
    assert repeated(odd, odd) and repeated(X * (1 + 1e-15), X) and repeated(np.arange(3), np.arange(3))
    assert repeated(X[:0], X[:0])
    for other in (X + 1e-3, np.array([np.nan, 2.0, 3.0]), np.array([np.inf, 2.0, 3.0])):
        assert not repeated(other, X)
    with pytest.raises(RuntimeError, match="ran again for its gradient"):
        repeated(X[:2], X)


def test_a_sample_in_a_program(traced):
    long = np.arange(1000.0)
    sample = Sample(traced, [long, X])
    (same, close), (other, _) = sample.compare("f", [long, X]), sample.compare("f", [long + 1, X])
    assert same.all() and close.all() and not other.all()
