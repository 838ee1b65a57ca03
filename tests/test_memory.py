"""What a gradient shares with others: nothing that clearing it would clear."""

import numpy as np
import pytest

from keras_cg import custom_gradient

X = np.array([1.0, 2.0, 3.0])

# The gradient of a function with the output x * 1, from x and that output.
SHARED = {"the argument": lambda x, y: x, "a view of it": lambda x, y: x[:], "the output": lambda x, y: y}


@pytest.mark.only("numpy")  # for torch see test_memory_torch.py
@pytest.mark.parametrize("shared", SHARED)
def test_a_gradient_that_shares_memory_is_a_copy(eager, backend, shared):
    outputs = []

    @custom_gradient
    def f(x):
        y = x * 1
        outputs.append(y)
        return y, lambda upstream: SHARED[shared](x, y)

    x = X.copy()
    gradient = eager.native.gradient(f, "native")(x)
    gradient *= 0
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(eager.array(outputs[0]), X)
