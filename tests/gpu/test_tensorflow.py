"""TensorFlow on an accelerator: CUDA, ROCm, Metal, TPU."""

import numpy as np
import pytest
from gpu.conftest import X, close, f, from_numpy

pytestmark = pytest.mark.only("tensorflow")


def gradients(x, w=None, function=f):
    """Those of a function of x, or of x and w."""
    import tensorflow as tf

    arguments = (x,) if w is None else (x, w)
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        output = function(*arguments)
    return tape.gradient(output, arguments)


def check(found, factor, device):
    # The name of an eager tensor's device also has the job and the task.
    assert found.device.endswith(device.removeprefix("/"))
    close(found, factor * np.exp(X))


def check_both(found, device):
    for each, factor in zip(found, (7, 5), strict=True):
        check(each, factor, device)


def tensor():
    import tensorflow as tf

    return tf.identity(tf.constant(X))


@pytest.mark.parametrize("how", ["eager", "graph", "xla"])
def test_gradients_are_where_the_arguments_are(tf, device, how):
    run = gradients if how == "eager" else tf.function(gradients, jit_compile=how == "xla")
    with tf.device(device):
        check_both(run(tensor(), tensor()), device)


def test_a_device_that_is_not_the_default_one(tf, second):
    with tf.device(second):
        check_both(gradients(tensor(), tensor()), second)


def test_variables_and_second_order(tf, device):
    with tf.device(device):
        x, w = tf.Variable(X), tf.Variable(X)
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                output = f(tf.convert_to_tensor(x), tf.convert_to_tensor(w))
            found = tape.gradient(output, (x, w))
        check_both(found, device)
        check(outer.gradient(found[0], x), 7, device)


def test_a_function_of_numpy(tf, device):
    with tf.device(device):
        (found,) = gradients(tensor(), function=from_numpy)
        check(found, 7, device)
