"""What tests train: layers that show what arrives, and steps written out as Keras's guides do it.

The loss is linear in the prediction, and what SGD makes of a weight is worked out by hand.
"""

import keras
import numpy as np
import pytest

# Keras has no training on NumPy.
trains = pytest.mark.only("jax", "torch", "tensorflow")
# What torch.compile (2.13) says of itself while it traces.
dynamo_warns = pytest.mark.filterwarnings("ignore:(The .grad attribute of|Dynamo detected a call to):UserWarning")

X = np.array([[1, 2], [3, -1], [0.5, 1], [2, 1]])
Y = np.array([[0.5, 0.25], [0.25, 1], [1, 2], [0.5, -1]])
W = np.array([0.5, -2.0])
RATE = 0.125
# The loss is the mean of Y * prediction; this is what arrives at the prediction, and at a factor of X.
UPSTREAM = Y / Y.size
SLOPE = (X * UPSTREAM).sum(0)

# The default is compiled on JAX, a graph on TensorFlow, and eager on torch.
MODES = {"eager": {"run_eagerly": True, "jit_compile": False}, "default": {}, "jit": {"jit_compile": True}}
each_mode = pytest.mark.parametrize("mode", MODES)


def shift(shape):
    """A layer that adds a weight of that shape to its input: the weight's gradient is what arrives."""

    class Shift(keras.layers.Layer):
        def build(self, input_shape):
            self.shift = self.add_weight(shape=shape, initializer="zeros")

        def call(self, inputs):
            return inputs + self.shift

        def compute_output_shape(self, input_shape):
            return input_shape

    return Shift(name="shift")


# --- a weight, trained by steps of SGD --------------------------------------------------------------------------------


def constant(values):
    """An initializer that gives `values`."""
    return lambda shape, dtype=None: keras.ops.convert_to_tensor(np.asarray(values), dtype)


def scale(call, **options):
    """A layer with a trainable weight `w` and another `c` that is not, and this `call`."""

    class Scale(keras.layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=(2,), initializer=constant(W))
            self.c = self.add_weight(shape=(2,), initializer=constant([1, 1]), trainable=False)

        def call(self, x):
            return call(self, x)

    return Scale(**options)


def product(y, prediction):
    return y * keras.ops.cast(prediction, "float32")


def fit(layers, *, x=X, y=Y, steps=2, mode="default", optimizer=None, **options):
    """The model after so many steps of SGD."""
    model = layers if isinstance(layers, keras.Model) else keras.Sequential(layers)
    optimizer = optimizer or keras.optimizers.SGD(RATE)
    if mode == "jit" and keras.backend.backend() == "torch":
        import torch

        # Only the layer: all that Keras does around it takes torch.compile half a minute. Traced and differentiated
        # ahead of time, as always; what inductor makes of it afterwards takes long.
        layers[-1].call = torch.compile(layers[-1].call, backend="aot_eager")
        mode = "eager"
    model.compile(optimizer, product, **MODES[mode], **options)
    model.fit(x.astype("float32"), y.astype("float32"), batch_size=len(x), epochs=steps, shuffle=False, verbose=0)
    return model


def array(value):
    return keras.ops.convert_to_numpy(value).astype(np.float64)


def close(found, expected, rtol=1e-5):
    np.testing.assert_allclose(array(found), expected, rtol=rtol, atol=1e-6)


def after(steps, slope=7 * SLOPE, start=W):
    """A weight that every step makes smaller by its own multiple."""
    return start * (1 - RATE * slope) ** steps


def plain():
    """A layer that multiplies by a weight, without any rule."""
    return scale(lambda self, x: x * self.w)
