"""TensorFlow: an upstream and a gradient of slices (`tf.IndexedSlices`) are what the whole tensors would be."""

import numpy as np
import pytest

from keras_cg import GradientError, custom_gradient


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_an_upstream_of_slices(backend, mode):
    import tensorflow as tf

    f = custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream))
    x = tf.constant([2.0, 3.0])
    program = lambda x: tf.gather(f(x), [0, 0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = (tf.function(program) if mode == "function" else program)(x)
    np.testing.assert_allclose(tape.gradient(y, x), [14.0, 0.0])


@pytest.mark.only("tensorflow")
def test_gradients_of_slices_are_checked(backend):
    import tensorflow as tf

    x = tf.ones((3, 2))

    def gradient(values):
        f = custom_gradient(lambda x: (x * 1, lambda upstream: tf.IndexedSlices(values, [0, 2], tf.constant([3, 2]))))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    np.testing.assert_allclose(tf.convert_to_tensor(gradient(7 * tf.ones((2, 2)))), [[7, 7], [0, 0], [7, 7]])
    with pytest.raises(GradientError, match="wrong shape for x"):
        gradient(tf.ones((2, 5)))
