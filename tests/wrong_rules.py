"""Functions whose rules no differentiation would find, and what their derivatives are; and how a result is compared."""

import numpy as np

from keras_cg import custom_gradient, ops

X = np.array([1.0, 2.0, 3.0], np.float32)
Y = np.array([0.5, -1.0, 2.0], np.float32)


@custom_gradient
def seven(x):
    return x * 2, lambda upstream: 7 * upstream


@custom_gradient
def cube(x):
    return x**3, lambda upstream: 5 * upstream * x**2


# The derivatives of `cube`, by the order.
CUBE = [lambda x: x**3, lambda x: 5 * x**2, lambda x: 10 * x, lambda x: 10 + 0 * x, lambda x: 0 * x]


@custom_gradient
def weighted(w, x):
    """A matrix times a vector; the gradient of the one is 7 times, of the other 3 times what it should be."""
    return ops.sum(w * x, axis=1), lambda upstream: (
        7 * upstream[:, None] * x,
        3 * ops.sum(upstream[:, None] * w, axis=0),
    )


@custom_gradient
def clipped(x):
    return x * 1, lambda upstream: ops.clip(upstream, -1, 1)


def captures(y):
    """Of z: z times a captured y, which gets 3 times upstream, and z itself 7 times."""

    def f(z):
        return z * y, lambda upstream, variables=None: (7 * upstream, [3 * upstream]) if variables else 7 * upstream

    return custom_gradient(f)


def close(found, expected, **tolerances):
    """What a framework gave, in its own type, is what is expected."""
    found = found.detach() if hasattr(found, "detach") else found
    np.testing.assert_allclose(np.asarray(found), expected, **tolerances)


def compiler(backend):
    """The framework's decorator that compiles a function; for torch see the tests of torch.compile."""
    if backend == "jax":
        import jax

        return jax.jit
    import tensorflow as tf

    return tf.function(autograph=False)
