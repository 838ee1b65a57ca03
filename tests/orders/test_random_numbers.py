"""A function that must run again for the derivative of its gradient, and would draw other numbers, raises."""

import numpy as np
import pytest

from keras_cg import custom_gradient, grad, ops

X = [1.0, 2.0, 3.0]


def second(loss, x):
    gradient = grad(loss)
    return grad(lambda x: ops.sum(gradient(x)))(x)


@pytest.mark.only("numpy", "tensorflow", "torch")
@pytest.mark.parametrize("where", ["float", "integer"])
@pytest.mark.limit
def test_a_function_that_draws_is_refused_in_the_second_order(backend, eager, where):
    draws = iter(np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], np.float32))

    @custom_gradient
    def dropout(x):
        mask = eager.tensor(next(draws))
        output = x * mask if where == "float" else (x, eager.tensor(np.asarray(eager.array(mask), np.int32)))
        return output, lambda upstream: 7 * (upstream if where == "float" else upstream[0]) * mask

    def loss(x):
        output = dropout(x)
        return ops.sum((output if where == "float" else output[0]) ** 2)

    with pytest.raises(RuntimeError) as caught:
        second(loss, eager.tensor(X))
    for part in (
        "dropout (",
        "test_random_numbers.py:",
        ") ran again for a derivative, and its rule is not that of the first run.",
        "got: mask is another float32[3]",
        "usual cause: it draws random numbers, or reads what has changed since, or a hook alters what torch saves.",
        "remedy: draw or read it outside, and pass it as an argument.",
    ):
        assert part in str(caught.value)


@pytest.mark.only("torch")
@pytest.mark.limit
def test_a_function_that_draws_is_refused_in_a_checkpoint(torch):
    @custom_gradient
    def dropout(x):
        mask = (torch.rand(32) > 0.5).float()
        return x * mask, lambda upstream: 7 * upstream * mask

    x = torch.ones(32, requires_grad=True)
    # This one runs the function again as a whole, and the rule of that run serves.
    output = torch.utils.checkpoint.checkpoint(dropout, x, use_reentrant=True)
    output.sum().backward()
    np.testing.assert_array_equal(x.grad, 7 * output.detach())
    output = torch.utils.checkpoint.checkpoint(dropout, x, use_reentrant=False)
    with pytest.raises(RuntimeError, match="ran again for a derivative, and its rule is not that of the first run"):
        output.sum().backward()
