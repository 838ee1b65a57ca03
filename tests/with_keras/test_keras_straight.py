"""torch's short way beside Keras: it is left where a second run would have to see what Keras keeps."""

import sys

import keras
import numpy as np
import pytest

from keras_cg import custom_gradient

pytestmark = pytest.mark.only("torch")


def goes_the_long_way(f, x):
    entered = []
    sys.setprofile(lambda frame, event, argument: entered.append(frame.f_code.co_qualname))
    try:
        f(x)
    finally:
        sys.setprofile(None)
    return "attached" in entered


FUNCTIONS = {
    "reads Keras": lambda x: (keras.ops.multiply(x, 2), lambda upstream: 7 * upstream * x),
    # What names nothing but operations on its argument sees no scope.
    "still": lambda x: (x * 2, lambda upstream: 7 * upstream * x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_scope_of_keras(backend, name):
    f = custom_gradient(FUNCTIONS[name])
    x = keras.ops.convert_to_tensor([1.0, 2.0]).requires_grad_()
    for _ in range(3):
        f(x)
    assert not goes_the_long_way(f, x)
    for scope in (keras.StatelessScope(), keras.src.backend.AutocastScope("float16")):
        with scope:
            assert goes_the_long_way(f, x) == (name == "reads Keras")
            f(x).sum().backward()
        np.testing.assert_allclose(x.grad.cpu(), [7, 14])
        x.grad = None
    assert not goes_the_long_way(f, x)
