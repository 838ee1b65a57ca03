"""NumPy: HIPS autograd in every order, and its forward mode made of two reverse ones."""

import warnings

import autograd
import autograd.builtins
import autograd.numpy as anp
import numpy as np
from frameworks.numpy import array, tensor  # noqa: F401 - the suite's

from conformance.transforms.derivatives import Derivatives


def take(x, rows):
    return x[rows]  # autograd (1.9) has no derivative for NumPy's take


def uniform():
    return np.float32(np.random.default_rng().uniform())


def as_complex(x):
    return x + 0j


fft, ifft = anp.fft.fft, anp.fft.ifft


def gradient(loss):
    """As a function of the arguments, in the convention dL/dx + i dL/dy."""

    def call(*tensors):
        with warnings.catch_warnings():
            # autograd warns of a derivative that is zero.
            warnings.filterwarnings("ignore", message="Output seems independent of input")
            found = autograd.grad(lambda tensors: loss(*tensors))(tuple(tensors))
        return [anp.conj(found[index]) for index in range(len(tensors))]

    return call


of = Derivatives(anp, gradient)
loss, second, third, composite = of.loss, of.second, of.third, of.composite


def vjp(p):
    pull, _ = autograd.make_vjp(lambda tensors: autograd.builtins.tuple(p.f(*tensors)), 0)(tuple(p.tensors))
    return [np.conj(each) for each in pull(tuple(np.conj(each) for each in p.weights))]


def jacobian(p):
    """Every row of the Jacobian of each output for each argument, weighted."""
    found = []
    for argument in range(len(p.tensors)):
        rows = [
            autograd.jacobian(lambda *tensors, index=index: p.f(*tensors)[index], argument)(*p.tensors)
            for index in range(len(p.weights))
        ]
        found.append(np.conj(sum(np.tensordot(w, row, w.ndim) for w, row in zip(p.weights, rows, strict=True))))
    return found


def checkpoint(p):
    return gradient(loss(p, autograd.checkpoint(lambda *tensors: autograd.builtins.tuple(p.f(*tensors)))))(*p.tensors)


TRANSFORMS = {
    "call": ("value", lambda p: p.f(*p.tensors)),
    "grad": ("first", lambda p: gradient(loss(p))(*p.tensors)),
    "make_vjp": ("first", vjp),
    "jacobian": ("rows", jacobian),
    "grad of checkpoint": ("first", checkpoint),
    "grad of grad": ("second", lambda p: second(p)(*p.tensors)),
    "grad of grad of composite": ("composite", lambda p: composite(p)(*p.tensors)),
    "third derivative": ("third", lambda p: third(p)(*p.tensors)),
}

# Nothing compiles here. That rules in one program do not disturb each other is seen all the same.
AT_ONCE = ("call",)
