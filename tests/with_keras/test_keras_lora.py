"""LoRA and quantised layers of Keras beside ours and decorated functions: trained weights against closed forms."""

import contextlib

import keras
import numpy as np
import pytest
from late import read_late

import keras_cg
from keras_cg import custom_gradient, recipes
from keras_cg.keras import layers

ops = keras.ops
# Keras has no training on NumPy.
trains = pytest.mark.only("jax", "torch", "tensorflow")

X = np.array([[0.25, -0.75, 1.75], [-3.0, 0.6, 0.1]], np.float32)
UPSTREAM = np.array([[1.0, -2.0], [4.0, 0.125]], np.float32)
RATE = 0.125
# What arrives at the layer: wrong on purpose, and clipped.
GRADIENT = np.clip(7 * UPSTREAM, -1.5, 1.5)


@custom_gradient
def seven(x):
    return x * 1, lambda upstream: 7 * upstream


def fit(dense, *after, upstream=None):
    """Trains for one step, by plain gradient descent."""
    model = keras.Sequential([keras.layers.Input(X.shape[1:]), dense, *after])
    model.compile(
        keras.optimizers.SGD(RATE), lambda y, prediction: ops.sum(prediction * (upstream or known)(prediction))
    )
    model.fit(X, X, batch_size=len(X), shuffle=False, verbose=0)


def known(prediction):
    """The gradient of the loss, which nobody has before the prediction.

    So it is with all losses but those that only add predictions up. On TensorFlow the order of the step hangs on it:
    by it the assignment of a variable waits for those who read it for the prediction, and no optimizer can drop that,
    as `test_grappler_forgets_the_order` shows it does otherwise.
    """
    return ops.where(ops.isfinite(prediction), ops.convert_to_tensor(UPSTREAM), np.nan)


def adapted(dense):
    """What a step must make of the matrices of LoRA, as a function of the gradient of the kernel."""
    dense.enable_lora(2)
    dense.lora_kernel_b.assign(np.full((2, 2), 0.25))
    a, b = (each.numpy().copy() for each in (dense.lora_kernel_a, dense.lora_kernel_b))
    scale = dense.lora_alpha / dense.lora_rank

    def check(gradient):
        np.testing.assert_allclose(dense.lora_kernel_a.numpy(), a - RATE * scale * gradient @ b.T, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(dense.lora_kernel_b.numpy(), b - RATE * scale * a.T @ gradient, rtol=1e-4, atol=1e-6)

    return check


@trains
@pytest.mark.parametrize(
    ("quantised", "install"), [(None, "never"), ("int8", "before"), ("int8", "afterwards"), ("int4", "never")]
)
def test_our_layers_behind_one_of_keras(backend, quantised, install):
    dense = keras.layers.Dense(2, use_bias=False)
    with contextlib.ExitStack() as stack:
        if install == "before":
            stack.enter_context(keras_cg.keras.installed())
        dense.build(X.shape)
        if quantised:
            dense.quantize(quantised)
        check = adapted(dense)
        if install == "afterwards":
            stack.enter_context(keras_cg.keras.installed())
        fit(dense, layers.GradientClipping(value=1.5), layers.StraightThrough("round"), keras.layers.Lambda(seven))
    check(X.T @ GRADIENT)


@trains
@pytest.mark.parametrize("install", ["never", "before"])
def test_the_gradient_goes_through_a_quantised_layer(backend, install):
    first, second = keras.layers.Dense(3, use_bias=False), keras.layers.Dense(2, use_bias=False)
    with contextlib.ExitStack() as stack:
        if install == "before":
            stack.enter_context(keras_cg.keras.installed())
        for dense in (first, second):
            dense.build(X.shape)
        second.quantize("int8")
        kernel = second.kernel.numpy() / second.kernel_scale.numpy()
        before = first.kernel.numpy().copy()
        fit(first, layers.GradientReversal(2.0), second, layers.GradientClipping(value=1.5), keras.layers.Lambda(seven))
    expected = before + RATE * 2 * X.T @ GRADIENT @ kernel.T
    np.testing.assert_allclose(first.kernel.numpy(), expected, rtol=1e-4, atol=1e-5)


@custom_gradient
def matmul(x, kernel):
    return ops.matmul(x, kernel), lambda upstream: (None, 7 * ops.matmul(ops.transpose(x), upstream))


# What a layer computes of its input and its kernel, and what the gradient of the kernel is multiplied by.
CALLS = {
    "decorated": (matmul, 7),
    "straight_through": (lambda x, kernel: ops.matmul(x, recipes.straight_through(ops.sign)(kernel)), 1),
    "quantize": (lambda x, kernel: ops.matmul(x, recipes.quantize(kernel, 0.25)), 1),
    "scale_gradient": (lambda x, kernel: ops.matmul(x, recipes.scale_gradient(kernel, 0.5)), 0.5),
}


@trains
@pytest.mark.parametrize("name", CALLS)
def test_functions_of_a_kernel_with_lora(backend, name):
    function, factor = CALLS[name]

    class Own(keras.layers.Dense):
        def call(self, inputs, training=None):
            return function(inputs, self.kernel)

    dense = Own(2, use_bias=False)
    dense.build(X.shape)
    check = adapted(dense)
    (frozen,) = (each.numpy().copy() for each in dense.non_trainable_weights)
    fit(dense)
    check(factor * X.T @ UPSTREAM)
    np.testing.assert_array_equal(dense.non_trainable_weights[0].numpy(), frozen)


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("name", ["a sum", "another loss"])
@pytest.mark.limit
def test_grappler_forgets_the_order(backend, name):
    """A limit: with nothing of ours, and a loss that adds predictions up, it trains with new values."""

    class Product(keras.layers.Layer):
        def build(self, shape):
            self.a = self.add_weight(shape=(3, 2), initializer="ones")
            self.b = self.add_weight(shape=(2, 2), initializer="ones")

        def call(self, x):
            patience = 30 if name == "a sum" else 0.3
            return x @ self.a @ read_late(self.b.value, np.ones((2, 2)), patience)

    product = Product()
    fit(product, upstream=(lambda prediction: UPSTREAM) if name == "a sum" else known)
    b = np.ones((2, 2)) - RATE * (X @ np.ones((3, 2))).T @ UPSTREAM
    np.testing.assert_allclose(product.b.numpy(), b, rtol=1e-5)
    read = b if name == "a sum" else np.ones((2, 2))
    np.testing.assert_allclose(product.a.numpy(), 1 - RATE * X.T @ UPSTREAM @ read.T, rtol=1e-5)
