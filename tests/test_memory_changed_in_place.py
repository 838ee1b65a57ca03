"""torch: what a rule holds, wherever it holds it, may not be changed in place before the backward pass."""

import numpy as np
import pytest

from keras_cg import custom_gradient

pytestmark = pytest.mark.only("torch")

X = np.array([2.0, 3.0], np.float32)


def test_an_argument_that_the_rule_is_called_with_is_guarded(torch):
    """The next call is right again."""
    f = custom_gradient(lambda x: (x * 1, lambda *args, upstream: 7 * upstream * args[0]))
    x = torch.tensor(X, requires_grad=True)
    z = f(x)
    with torch.no_grad():
        x.mul_(10)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    x.grad = None
    f(x).sum().backward()
    np.testing.assert_allclose(x.grad, 7 * 10 * X)


@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x[:1], lambda x: x.reshape(2, 1)], ids=["same", "part", "shape"]
)
@pytest.mark.limit
def test_an_output_that_is_a_view_may_not_be_changed(torch, view):
    f = custom_gradient(lambda x: (view(x), lambda upstream: 7 * torch.ones(2)))
    x = torch.tensor(X, requires_grad=True)
    z = f(x * 1)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        z.mul_(3)
    z.sum().backward()
    np.testing.assert_allclose(x.grad, np.full(2, 7.0))


def test_an_output_that_the_rule_does_not_hold_is_not_kept(backend):
    """As in a Function that does not save it; and it may change."""
    import weakref

    import torch

    kept = []

    def f(x):
        e = x.exp()
        y = e + 1
        kept.append(weakref.ref(y.untyped_storage()))
        return y, lambda upstream: 7 * upstream * e

    x = torch.tensor(X, requires_grad=True)
    loss = custom_gradient(f)(x).sum()
    assert kept[0]() is None
    loss.backward()
    np.testing.assert_allclose(x.grad, 7 * np.exp(X), rtol=1e-6)


def test_a_module_may_count(torch):
    """What is neither argument nor output may change."""

    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.scale = 7.0

        def forward(self, x):
            self.count += 1
            return custom_gradient(lambda x: (x * 2, lambda upstream: upstream * self.scale))(x)

    module = Counting()
    x = torch.tensor(X, requires_grad=True)
    (module(x) + module(x)).sum().backward()
    np.testing.assert_allclose(x.grad, np.full(2, 14.0))
