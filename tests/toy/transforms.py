"""The table of transforms of the toy backend: its own reverse mode, and what is derived from it."""

import numpy as np

import keras_cg
import toy
from keras_cg import ops
from toy.engine import Tensor


def tensor(array):
    return Tensor(np.asarray(array))


def array(tensor):
    return tensor.value


def uniform():
    return np.float32(np.random.default_rng().uniform())


def inner(a, b):
    """The sum of the products."""
    total = 0.0
    for left, right in zip(a, b, strict=True):
        total = total + ops.sum(left * right)
    return total


def gradient(loss):
    """As a function of the arguments, by the backend's own `vjp`."""

    def call(*tensors):
        (output,), pullback, _ = toy.vjp(lambda *tensors: ((loss(*tensors),), ()), tensors)
        return pullback([ops.ones_like(output)])

    return call


def first(p):
    return gradient(lambda *tensors: inner(p.weights, p.f(*tensors)))


def second(p):
    return gradient(lambda *tensors: inner(p.c, first(p)(*tensors)))


def composite(p):
    def squared(*tensors):
        outputs = p.f(*tensors)
        return inner(p.weights, [output * output for output in outputs])

    return gradient(lambda *tensors: inner(p.c, gradient(squared)(*tensors)))


def vjp(p):
    _, pullback, _ = toy.vjp(lambda *tensors: (tuple(p.f(*tensors)), ()), p.tensors)
    return pullback(p.weights)


def jacobian(p):
    """Every row of the Jacobian of each output for each argument, weighted."""
    rows = keras_cg.jacobian(p.f, tuple(range(len(p.tensors))))(*p.tensors)
    return [
        tensor(
            sum(np.tensordot(w.value, row[place].value, w.value.ndim) for w, row in zip(p.weights, rows, strict=True))
        )
        for place in range(len(p.tensors))
    ]


def recompute(p):
    decorated = keras_cg.recipes.recompute(p.f)
    return gradient(lambda *tensors: inner(p.weights, decorated(*tensors)))(*p.tensors)


TRANSFORMS = {
    "call": ("value", lambda p: p.f(*p.tensors)),
    "vjp": ("first", vjp),
    "grad": ("first", lambda p: first(p)(*p.tensors)),
    "jacobian": ("rows", jacobian),
    "recompute": ("first", recompute),
    "jvp": ("tangent", lambda p: keras_cg.jvp(p.f, p.tensors, p.c)[1]),
    "grad of grad": ("second", lambda p: second(p)(*p.tensors)),
    "grad of grad of composite": ("composite", lambda p: composite(p)(*p.tensors)),
    "jvp of grad": ("along", lambda p: keras_cg.jvp(lambda *tensors: list(first(p)(*tensors)), p.tensors, p.c)[1]),
}
