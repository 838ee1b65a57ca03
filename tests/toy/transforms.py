"""The table of transforms of the toy backend: its own reverse mode, and what is derived from it."""

import types

import numpy as np
from conformance.transforms.derivatives import Derivatives

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


def gradient(loss):
    """As a function of the arguments, by the backend's own `vjp`."""

    def call(*tensors):
        (output,), pullback, _ = toy.vjp(lambda *tensors: ((loss(*tensors),), ()), tensors)
        return pullback([ops.ones_like(output)])

    return call


class OfReals(Derivatives):
    def inner(self, a, b):
        return sum((ops.sum(left * right) for left, right in zip(a, b, strict=True)), 0.0)


of = OfReals(types.SimpleNamespace(conj=lambda x: x), gradient)


def first(p, f=None):
    return gradient(of.loss(p, f))


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


TRANSFORMS = {
    "call": ("value", lambda p: p.f(*p.tensors)),
    "vjp": ("first", vjp),
    "grad": ("first", lambda p: first(p)(*p.tensors)),
    "jacobian": ("rows", jacobian),
    "recompute": ("first", lambda p: first(p, keras_cg.recipes.recompute(p.f))(*p.tensors)),
    "jvp": ("tangent", lambda p: keras_cg.jvp(p.f, p.tensors, p.c)[1]),
    "grad of grad": ("second", lambda p: of.second(p)(*p.tensors)),
    "grad of grad of composite": ("composite", lambda p: of.composite(p)(*p.tensors)),
    "jvp of grad": ("along", lambda p: keras_cg.jvp(lambda *tensors: list(first(p)(*tensors)), p.tensors, p.c)[1]),
}
