"""Where a function of `keras_cg.ops` gives another number, and only the documentation can tell."""

import numpy as np
import pytest

from keras_cg import grad, ops

# What `f(x, 300)` gives for x = [1, 2] of uint8: where the integer wraps around, as numbers; None where it raises.
WRAPPED = {
    "jax": {"add": [45, 46], "maximum": [44, 44], "where": [1, 44]},
    "numpy": {"add": None, "maximum": None, "where": None},
    "tensorflow": {"add": None, "maximum": None, "where": None},
    "torch": {"add": None, "maximum": None, "where": None},
}


@pytest.mark.limit
@pytest.mark.parametrize("name", ["add", "maximum", "where"])
def test_an_integer_that_does_not_fit_the_dtype(backend, name):
    x = ops.asarray([1, 2], dtype="uint8")
    first = (ops.asarray([True, False]),) if name == "where" else ()
    expected = WRAPPED[backend][name]
    if expected is None:
        with pytest.raises((OverflowError, RuntimeError), match=r"300 out of bounds|without overflow"):
            getattr(ops, name)(*first, x, 300)
    else:
        np.testing.assert_array_equal(np.asarray(getattr(ops, name)(*first, x, 300)), expected)


SINGULAR = [[1.0, 2.0], [2.0, 4.0]]


@pytest.mark.only("torch")
@pytest.mark.limit
def test_a_function_that_is_the_frameworks_own(backend):
    gradient = grad(lambda x: ops.linalg.det(x))(ops.asarray(SINGULAR))
    assert np.abs(np.asarray(gradient) - [[4, -2], [-2, 1]]).max() > 0.5, (
        "it is right now: docs/silent.md needs another"
    )
