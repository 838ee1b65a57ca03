"""Programs with Keras that once gave a wrong number without a word."""

import keras
import numpy as np
import pytest

from keras_cg import GradientError, custom_gradient, ops

# Keras has no training on NumPy.
trains = pytest.mark.only("jax", "torch", "tensorflow")

X = np.array([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]], np.float32)
RATE = 0.125
MODES = {"eager": {"run_eagerly": True}, "default": {}}


def masked(rule):
    """A model that multiplies X by a weight w = 1 and sends it through a rule; its loss is 2.5 times the sum."""

    @custom_gradient
    def ramp(x):
        return x * 1, rule(x)

    class Ramp(keras.layers.Layer):
        def build(self, input_shape):
            self.scale = self.add_weight(shape=(3,), initializer="ones")

        def call(self, inputs):
            return ramp(inputs * self.scale)

        def compute_output_shape(self, input_shape):
            return input_shape

    return keras.Sequential([keras.layers.Input((3,)), Ramp()])


def train(rule, mode):
    """The gradient of the weight in one step."""
    model = masked(rule)
    model.compile(keras.optimizers.SGD(RATE), lambda y, output: 2.5 * keras.ops.sum(output), **MODES[mode])
    model.fit(X, X, batch_size=len(X), verbose=0)
    return (1 - keras.ops.convert_to_numpy(model.weights[0])) / RATE


# How often each weight's inputs count: where they are positive.
EXPECTED = 2.5 * np.sum(np.where(X > 0, X, 0), axis=0)


@trains
@pytest.mark.parametrize("mode", MODES)
def test_a_mask_by_where_trains(backend, mode):
    np.testing.assert_allclose(train(lambda x: lambda upstream: ops.where(x > 0, upstream, 0), mode), EXPECTED)


@trains
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", ["mask last", "mask first"])
def test_a_mask_by_a_product(backend, mode, order):
    def rule(x):
        return lambda upstream: upstream * (x > 0) if order == "mask last" else (x > 0) * upstream

    if backend == "tensorflow":
        # There the product is boolean, and has lost upstream.
        with pytest.raises(GradientError, match=r"(?s)ramp.*for x.*bool.*ops\.where\(mask, upstream, 0\)"):
            train(rule, mode)
        return
    np.testing.assert_allclose(train(rule, mode), EXPECTED)
