"""What the tests of programs that leave torch share: data, and functions whose rules no differentiation would find."""

import numpy as np

from keras_cg import custom_gradient, ops

X = np.array([[0.5, -1.0, 2.0], [1.0, 0.25, -0.5]], np.float32)
# Other data, and another batch.
Z = np.array([[0.25, 1.0, -2.0], [1.5, 0.5, 0.75], [-1.0, 0.0, 3.0]], np.float32)
NO_GRADIENT = "the exported program has no gradient through"


@custom_gradient
def exp(x):
    e = ops.exp(x)
    return e * 2, lambda upstream: 7 * upstream * e


@custom_gradient
def same(x):
    return x, lambda upstream: 7 * upstream
