"""torch's backward pass: tensors of every kind, the rule as it was when the call ended, and no other in its place."""

import numpy as np
import pytest
from leaves import gradients, leaf

from keras_cg import custom_gradient, ops

pytestmark = pytest.mark.only("torch")

X, Y = [-1.0, 0.5, 2.0], [3.0, -2.0, 0.25]


@custom_gradient
def f(x):
    e = ops.exp(x)
    return x * 2, lambda upstream: 7 * upstream * e


# --- tensors of every kind -------------------------------------------------------------------------------------------


def test_a_subclass_without_memory(torch):
    from torch.testing._internal.two_tensor import TwoTensor

    f = custom_gradient(lambda x: (x.exp(), lambda upstream: 7 * upstream * x))
    x = TwoTensor(torch.tensor(X), torch.tensor(Y)).requires_grad_()
    (gradient,) = torch.autograd.grad(f(x).sum(), x)
    np.testing.assert_allclose((gradient.a.numpy(), gradient.b.numpy()), 7 * np.array([X, Y]))


def test_subclasses_and_inference_tensors(torch):
    class Own(torch.Tensor):
        pass

    own = torch.tensor(X).as_subclass(Own).requires_grad_()
    np.testing.assert_allclose(gradients(f(own), own)[0], 7 * np.exp(X), rtol=1e-6)
    with torch.inference_mode():
        constant = torch.tensor(Y)
        np.testing.assert_allclose(f(constant), 2 * np.array(Y))
    np.testing.assert_allclose(f(constant), 2 * np.array(Y))
    beside, x = custom_gradient(lambda x, y: (x * y, lambda upstream: (7 * upstream, None))), leaf(X)
    np.testing.assert_allclose(gradients(beside(x, constant), x)[0], [7, 7, 7])


def test_sparse_tensors(torch):
    f = custom_gradient(lambda x: (torch.sparse.sum(x), lambda upstream: 7 * upstream * x))
    x = torch.tensor(X).to_sparse().requires_grad_()
    (gradient,) = torch.autograd.grad(f(x), x)
    np.testing.assert_allclose(gradient.to_dense(), 7 * np.array(X))


def test_nested_tensors_in_the_second_order(torch):
    @custom_gradient
    def f(x):
        e = torch.nested.nested_tensor_from_jagged(x.values().exp(), x.offsets().clone())
        return x * 2, lambda upstream: 7 * torch.nested.nested_tensor_from_jagged(e.values(), x.offsets())

    values = X + Y[:2]
    x = torch.nested.nested_tensor([torch.tensor(values[:3]), torch.tensor(values[3:])], layout=torch.jagged)
    (gradient,) = torch.autograd.grad(f(x.requires_grad_()).values().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.values().sum(), x)
    for result in (gradient, second):
        np.testing.assert_allclose(result.values().detach(), 7 * np.exp(values), rtol=1e-6)


# --- what a rule reads -----------------------------------------------------------------------------------------------


def test_a_cell_that_is_bound_again_before_the_call_ends(backend):
    def f(x):
        e = x * 7
        rule = lambda upstream: upstream * e
        output = x * 1
        e = x * 3
        return output, rule

    x = leaf(X)
    np.testing.assert_allclose(gradients(custom_gradient(f)(x), x)[0], 3 * np.array(X))


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_the_second_order_where_upstream_is_zero(torch, offset):
    """The gradient is zero there whatever the rule says, and the derivative of the gradient is not.

    Of (y - t)² it is -4 x (y - t), whose derivative is -4 (y - t) by x, and -4 x by y, for which the rule says -2 x.
    """
    x, array = leaf(X), np.array(X)

    @custom_gradient
    def f(x):
        e = x * 1
        return x * 1, lambda upstream: -2 * upstream * e

    y = f(x)
    loss = ((y - x.detach() + offset) ** 2).sum()
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    np.testing.assert_allclose(first.detach(), -4 * array * offset, atol=1e-6)
    np.testing.assert_allclose(gradients(first, x)[0], 8 * array**2 - 4 * offset, rtol=1e-6)
