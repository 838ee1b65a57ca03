"""TensorFlow on an accelerator: CUDA, ROCm, Metal, TPU."""

import numpy as np
import pytest
from gpu.conftest import CLOSE, X, f

import keras_cg
from keras_cg import ops

pytestmark = pytest.mark.only("tensorflow")


def gradients(x, w):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch((x, w))
        output = f(x, w)
    return tape.gradient(output, (x, w))


def check(found, factor, device):
    # An eager tensor is told with its job and task besides.
    assert found.device.endswith(device.removeprefix("/"))
    np.testing.assert_allclose(found, factor * np.exp(X), **CLOSE)


def tensor(device):
    import tensorflow as tf

    with tf.device(device):
        return tf.identity(tf.constant(X))


@pytest.mark.parametrize("how", ["eager", "graph", "xla"])
def test_gradients_are_where_the_arguments_are(backend, device, how):
    import tensorflow as tf

    run = gradients if how == "eager" else tf.function(gradients, jit_compile=how == "xla")
    with tf.device(device):
        for found, factor in zip(run(tensor(device), tensor(device)), (7, 5), strict=True):
            check(found, factor, device)


def test_a_device_that_is_not_the_default_one(backend, second):
    import tensorflow as tf

    with tf.device(second):
        for found, factor in zip(gradients(tensor(second), tensor(second)), (7, 5), strict=True):
            check(found, factor, second)


def test_variables_and_second_order(backend, device):
    import tensorflow as tf

    with tf.device(device):
        x, w = tf.Variable(X), tf.Variable(X)
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                output = f(tf.convert_to_tensor(x), tf.convert_to_tensor(w))
            first, other = tape.gradient(output, (x, w))
        check(first, 7, device)
        check(other, 5, device)
        check(outer.gradient(first, x), 7, device)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half(backend, device, dtype):
    import tensorflow as tf

    g = keras_cg.custom_gradient(lambda x: (2 * x, lambda upstream: 7 * upstream * ops.exp(x)))
    with tf.device(device):
        x = tf.cast(tensor(device), dtype)
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = g(x)
        found = tape.gradient(output, x)
    assert found.dtype == dtype
    np.testing.assert_allclose(tf.cast(found, "float32"), 7 * np.exp(X), rtol=3e-2)


def test_random_numbers_of_the_device(backend, device):
    import tensorflow as tf

    @keras_cg.custom_gradient
    def g(x, seed):
        held = tf.random.stateless_uniform(tf.shape(x), seed) * ops.exp(x)
        return x * 1, lambda upstream: (7 * upstream * held, None)

    with tf.device(device):
        x, seed = tensor(device), tf.constant([1, 2])
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = g(x, seed)
        found = tape.gradient(output, x)
        noise = tf.random.stateless_uniform(X.shape, seed)
    np.testing.assert_allclose(found, 7 * np.exp(X) * noise, **CLOSE)


def test_a_function_of_numpy(backend, device):
    import tensorflow as tf

    g = keras_cg.recipes.from_numpy(lambda x: 2 * x, lambda x, upstream: 7 * upstream * np.exp(x))
    with tf.device(device):
        x = tensor(device)
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = g(x)
        check(tape.gradient(output, x), 7, device)
