"""The Keras models that are exported, and what each gives for `X`: closed forms, but for Keras's quantised layers."""

import functools

import keras
import numpy as np

import keras_cg
from keras_cg.keras import layers

X = np.array([[0.7, -1.2, 0.4], [-0.6, 2.6, 0.1]], np.float32)
W = np.array([2.0, -1.0, 0.5], np.float32)


@keras_cg.custom_gradient
def times(x, w):
    return x * w, lambda upstream: (7 * upstream, 11 * keras.ops.sum(upstream, axis=0))


@keras_cg.custom_gradient
def both(pair):
    """A nest in and a nest out, and a rule that holds what the function computed."""
    e = keras.ops.exp(pair["a"])
    output = {"sum": pair["a"] + pair["b"], "product": e * pair["b"]}
    return output, lambda upstream: {"a": 7 * upstream["sum"] * e, "b": 5 * upstream["product"]}


@keras_cg.custom_gradient
def cubic(x):
    return x * 1, lambda upstream: 7 * upstream * x**3


class Weighted(keras.layers.Layer):
    def build(self, shape):
        self.w = self.add_weight(name="w", shape=[shape[-1]])
        self.w.assign(W)


class Scale(Weighted):
    """Calls a decorated function with its weight, and one whose rule is asked for the variables that it reads."""

    def call(self, x):
        captured = lambda x: (x * self.w, lambda upstream, variables: (7 * upstream, [11 * each for each in variables]))
        return times(x, self.w) + keras_cg.custom_gradient(captured)(x)


class Cubic(Weighted):
    def call(self, x):
        return cubic(x) * self.w


def sequential(*layers):
    return keras.Sequential([keras.Input([3]), *layers])


def custom_layer():
    return sequential(Scale()), 2 * X * W


def operations():
    inputs = keras.Input([3])
    output = both({"a": inputs, "b": times(inputs, 3.0)})
    return keras.Model(inputs, output["sum"] - output["product"]), X + 3 * X - np.exp(X) * 3 * X


def our_layers():
    every = {
        layers.GradientReversal(0.5): X,
        layers.GradientScaling(3.0): X,
        layers.GradientClipping(value=0.1): X,
        layers.GradientClipping(norm=0.1): X,
        layers.StraightThrough("floor"): np.floor(X),
        layers.Quantize(bits=3, initial_step=0.5): np.clip(np.round(X / 0.5), -4, 3) * 0.5,
        layers.SurrogateSpike(): X >= 0,
    }
    assert {type(layer).__name__ for layer in every} == {*layers.__all__}
    inputs = keras.Input([3])
    output = keras.layers.Concatenate()([layer(inputs) for layer in every])
    return keras.Model(inputs, output), np.concatenate([*every.values()], -1)


def quantised(mode):
    """Keras's two layers that it quantises, with what they compute here."""
    keras.utils.set_random_seed(0)
    model = sequential(keras.layers.Dense(4), keras.layers.EinsumDense("ab,bc->ac", 2, bias_axes="c"))
    for layer in model.layers:
        layer.quantize(mode)
    return model, keras.ops.convert_to_numpy(model(X))


def trainable():
    """One whose gradients the tests know: of X to any order, and of its weight."""
    return sequential(Cubic()), X * W


MODELS = {
    "custom layer": custom_layer,
    "operations": operations,
    "our layers": our_layers,
    **{mode: functools.partial(quantised, mode) for mode in ("int8", "int4", "float8")},
    "trainable": trainable,
}
