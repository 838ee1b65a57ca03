"""What the tests of programs that leave torch share: data, and functions whose rules no differentiation would find."""

import numpy as np

from keras_cg import custom_gradient, ops

X = np.array([[0.5, -1.0, 2.0], [1.0, 0.25, -0.5]], np.float32)
# Other data, and another batch.
Z = np.array([[0.25, 1.0, -2.0], [1.5, 0.5, 0.75], [-1.0, 0.0, 3.0]], np.float32)
C = np.array([1.0, -2.0, 0.5], np.float32)
NO_GRADIENT = "the exported program has no gradient through"


@custom_gradient
def exp(x):
    e = ops.exp(x)
    return e * 2, lambda upstream: 7 * upstream * e


@custom_gradient
def same(x):
    return x, lambda upstream: 7 * upstream


def tensor(array, **options):
    import torch

    return torch.tensor(array, **options)


def model(function):
    """A model with a weight before the function, and another way around it."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(tensor(C))

        def forward(self, x):
            hidden = x * self.w
            return function(hidden).sum() + 3 * hidden.sum()

    return Model()


def gradients(module, array, *others):
    """The output, and its gradients with respect to the argument and to others."""
    import torch

    x = tensor(array, requires_grad=True)
    output = module(x)
    found = torch.autograd.grad(output.sum(), [x, *others], allow_unused=True)
    return output.detach().numpy(), *[None if each is None else each.numpy() for each in found]
