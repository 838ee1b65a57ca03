"""The ways to a derivative: keras_cg's own, the framework's own, and its other one (torch.func, what is compiled)."""

import numpy as np

from keras_cg import grad, vjp

WAYS = ("keras_cg", "native", "transformed")
# An outer way and an inner one: the derivative of keras_cg by every means, and each framework's means by themselves.
PAIRS = {
    "keras_cg-keras_cg": ("keras_cg", "keras_cg"),
    "native-keras_cg": ("native", "keras_cg"),
    "transformed-keras_cg": ("transformed", "keras_cg"),
    "native-native": ("native", "native"),
    "transformed-transformed": ("transformed", "transformed"),
}


def gradient(eager, f, way):
    """The gradient of the sum of `f`, as a function."""
    return grad(f) if way == "keras_cg" else eager.native.gradient(f, way)


def pull(eager, f, x, way):
    """`(f(x), pullback)`, where the pullback gives the one gradient."""
    if way == "keras_cg":
        output, pullback = vjp(f, x)
        return output, lambda upstream: pullback(upstream)[0]
    return eager.native.vjp(f, x, way)


def check(eager, tensor, expected, rtol=1e-5):
    """Asserts what a tensor is."""
    np.testing.assert_allclose(eager.array(tensor), expected, rtol=rtol)
