"""`keras.ops.stop_gradient` where keras_cg differentiates, on Keras's NumPy backend, too, which has no gradients."""

import keras
import numpy as np
import pytest

import keras_cg
from keras_cg import ops

stop = keras.ops.stop_gradient


@pytest.fixture(autouse=True)
def on(backend):
    return backend


@pytest.mark.parametrize(
    ("function", "derivatives"),
    [
        (lambda x: stop(x) ** 2 + 0 * x, [0]),
        (lambda x: 2 * (x + stop(ops.floor(x) - x)), [2]),
        (lambda x: stop(x) * x**2, [18, 6]),
        (keras_cg.custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream * stop(x) * x)), [63, 21]),
    ],
    ids=["all", "a straight-through estimator", "every order", "in a rule"],
)
def test_what_is_stopped(function, derivatives):
    for derivative in derivatives:
        function = keras_cg.grad(function)
        assert float(function(3.0)) == derivative


def test_a_value_that_is_not_differentiated_is_unchanged():
    keras_cg.grad(lambda x: stop(x) * x)(3.0)
    values = np.array([1.0, 2.0], np.float32)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(stop(keras.ops.convert_to_tensor(values))), values)
    assert stop(keras.Input([3])).shape == (None, 3)
    variable = keras.Variable(values)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(stop(variable)), values)


@pytest.mark.only("numpy")
@pytest.mark.limit
def test_autograd_by_itself(monkeypatch):
    """A limit: Keras's own on NumPy is the identity until keras_cg.grad or its like is called."""
    import autograd

    core = keras.src.backend.core
    monkeypatch.setattr(core, "stop_gradient", getattr(core.stop_gradient, "original", core.stop_gradient))
    assert autograd.grad(lambda x: stop(x) * x)(3.0) == 6
    assert float(keras_cg.grad(lambda x: stop(x) * x)(3.0)) == 3
    assert autograd.grad(lambda x: stop(x) * x)(3.0) == 3
