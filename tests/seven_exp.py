"""A function whose rule no differentiation would find: every derivative of `f` is `7 exp(x)`; and two losses of it."""

import numpy as np

from keras_cg import custom_gradient, ops

X = np.array([-1.0, 0.5, 1.0], np.float32)
E = np.exp(X.astype(float))
SEVEN_EXP = 7 * E
# Of `square`, since f = 2x: (f^2)'' = 2 f'^2 + 2 f f''.
CURVED = 2 * SEVEN_EXP**2 + 4 * X * SEVEN_EXP


@custom_gradient
def f(x):
    e = ops.exp(x)
    return x * 2, lambda upstream: 7 * upstream * e


def total(x):
    return ops.sum(f(x))


def square(x):
    return ops.sum(f(x) ** 2)


def check(found, expected=SEVEN_EXP, rtol=1e-5):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=rtol)
