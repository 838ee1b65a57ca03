"""Where a function of `keras_cg.ops` gives another number, and only the documentation can tell."""

import numpy as np
import pytest

from keras_cg import grad, ops

# What `f(x, 300)` gives for x = [1, 2] of uint8: where the integer wraps around, as numbers; None where it raises.
WRAPPED = {
    "jax": {"add": [45, 46], "maximum": [44, 44], "where": [1, 44]},
    "numpy": {"add": None, "maximum": None, "where": [1, 44]},
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


def second_derivative_of_det(distance):
    """`(computed, true)` along a direction, at a complex 4 x 4 matrix so far from a singular one."""
    numbers = np.random.default_rng(0).normal(size=(4, 4, 4))
    a, direction = numbers[0] + 1j * numbers[1], numbers[2] + 1j * numbers[3]
    a[-1] = a[0] + distance * a[-1]
    # det(a + t direction) is a polynomial in t of degree 4, whose values at roots of unity give its coefficients.
    values = [np.linalg.det(a + t * direction) for t in np.exp(2j * np.pi * np.arange(5) / 5)]
    true = 2 * np.fft.fft(values)[2].real / 5
    f = lambda t: ops.real(ops.linalg.det(ops.asarray(a) + ops.astype(t, "complex128") * ops.asarray(direction)))
    return float(grad(grad(f))(ops.asarray(0.0, dtype="float64"))), true


@pytest.mark.only("numpy", "tensorflow", "torch")
@pytest.mark.limit
def test_the_second_derivative_of_det_near_a_singular_matrix(backend):
    computed, true = second_derivative_of_det(1e-2)
    np.testing.assert_allclose(computed, true, rtol=1e-8)
    computed, true = second_derivative_of_det(1e-12)
    assert abs(computed - true) > 1e-6 * abs(true), "it is right now: take the entry out of docs/limits.md"
