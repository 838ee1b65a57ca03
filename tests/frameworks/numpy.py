"""NumPy, differentiated by HIPS autograd."""

import autograd
import autograd.numpy as anp
import numpy as np

MODES = ("eager",)


def tensor(array):
    return np.asarray(array)


def array(tensor):
    return np.asarray(tensor)


def differentiate(f, arrays, mode):
    outputs = []

    def loss(arrays):
        output = f(*arrays)
        outputs.append(output)
        return anp.sum(output)

    gradients = autograd.grad(loss)(tuple(arrays))
    return np.asarray(f(*arrays)), [np.asarray(gradient) for gradient in gradients]


def vjp(f, x, way):
    pullback, output = autograd.make_vjp(f)(x)
    return output, pullback


def gradient(f, way):
    return autograd.elementwise_grad(f) if way == "transformed" else autograd.grad(lambda x: anp.sum(f(x)))
