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


def test_a_part_that_is_stopped():
    assert float(keras_cg.grad(lambda x: stop(x) * x)(3.0)) == 3
    value, (gradient,) = keras_cg.value_and_grad(lambda x: stop(x) ** 2 * x, (0,))(3.0)
    assert (float(value), float(gradient)) == (27, 9)
    assert float(keras_cg.vjp(lambda x: stop(x) * x, 3.0)[1](2.0)[0]) == 6
    assert float(keras_cg.jvp(lambda x: stop(x) * x, (3.0,), (2.0,))[1]) == 6
    assert float(keras_cg.jacobian(lambda x: stop(x) * x)(3.0)) == 3


def test_all_of_it_is_stopped():
    assert float(keras_cg.grad(lambda x: stop(x) ** 2 + 0 * x)(3.0)) == 0


def test_a_straight_through_estimator_by_hand():
    assert float(keras_cg.grad(lambda x: 2 * (x + stop(ops.floor(x) - x)))(3.25)) == 2


def test_every_order():
    cube = lambda x: stop(x) * x**2
    assert float(keras_cg.grad(cube)(3.0)) == 18
    assert float(keras_cg.grad(keras_cg.grad(cube))(3.0)) == 6
    assert float(keras_cg.hessian(cube)(3.0)) == 6


def test_in_a_rule():
    @keras_cg.custom_gradient
    def seven(x):
        return x * 1, lambda upstream: 7 * upstream * stop(x) * x

    assert float(keras_cg.grad(seven)(3.0)) == 63
    assert float(keras_cg.grad(keras_cg.grad(seven))(3.0)) == 21


def test_what_nobody_differentiates_is_what_it_was():
    keras_cg.grad(lambda x: stop(x) * x)(3.0)
    values = np.array([1.0, 2.0], np.float32)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(stop(keras.ops.convert_to_tensor(values))), values)
    assert stop(keras.Input([3])).shape == (None, 3)
    variable = keras.Variable(values)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(stop(variable)), values)


@pytest.mark.only("numpy")
@pytest.mark.limit
def test_autograd_by_itself(monkeypatch):
    """A limit: Keras's own on NumPy is the identity, until somebody calls keras_cg.grad or its like."""
    import autograd

    core = keras.src.backend.core
    monkeypatch.setattr(core, "stop_gradient", getattr(core.stop_gradient, "original", core.stop_gradient))
    assert autograd.grad(lambda x: stop(x) * x)(3.0) == 6
    assert float(keras_cg.grad(lambda x: stop(x) * x)(3.0)) == 3
    assert autograd.grad(lambda x: stop(x) * x)(3.0) == 3
