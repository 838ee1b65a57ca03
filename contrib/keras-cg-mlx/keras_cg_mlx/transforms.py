"""The transforms of mlx: the table for the conformance suite of keras_cg."""

import keras_cg
import mlx.core as mx
import numpy as np

from keras_cg_mlx.framework import array, tensor

__all__ = ["AT_ONCE", "REFUSALS", "TRANSFORMS", "array", "as_complex", "fft", "ifft", "take", "tensor", "uniform"]


def take(x, rows):
    return mx.take(x, rows, axis=0)


def uniform():
    return mx.random.uniform()


def as_complex(x):
    return x.astype(mx.complex64)


fft, ifft = mx.fft.fft, mx.fft.ifft


def inner(a, b):
    """The real inner product."""
    return sum((mx.real(mx.conj(left) * right).sum() for left, right in zip(a, b, strict=True)), mx.array(0.0))


def gradient(loss):
    """The gradient as a function of the arguments; mlx has the convention dL/dx + i dL/dy."""

    def call(*tensors):
        found = mx.grad(loss, argnums=tuple(range(len(tensors))))(*tensors)
        return list(found) if isinstance(found, tuple) else [found]

    return call


def loss(p, f=None):
    return lambda *tensors: inner(p.weights, (f or p.f)(*tensors))


def value_and_grad(p):
    value, found = mx.value_and_grad(loss(p), argnums=tuple(range(len(p.tensors))))(*p.tensors)
    assert np.allclose(array(value), array(loss(p)(*p.tensors)), rtol=1e-3, atol=1e-3)
    return list(found) if isinstance(found, tuple) else [found]


def second(p, f=None):
    return gradient(lambda *tensors: inner(p.c, gradient(loss(p, f))(*tensors)))


def third(p):
    return gradient(lambda *tensors: inner(p.d, second(p)(*tensors)))


def composite(p):
    def squared(*tensors):
        return sum(
            mx.sum(mx.real(w) * mx.real(out * mx.conj(out))) for w, out in zip(p.weights, p.f(*tensors), strict=True)
        )

    return gradient(lambda *tensors: inner(p.c, gradient(squared)(*tensors)))


def vjp(p):
    return mx.vjp(p.f, p.tensors, p.weights)[1]


def of_batch(p, f):
    """The sum of what a mapped function gives for the two points, weighted."""
    # Not one point after the other: the gradient of an index into an empty array ends the process (mlx 0.32).
    return lambda *batch: inner([mx.stack([w, w]) for w in p.weights], f(*batch))


def pushed(p, f=None):
    """The derivative of the outputs along c, as a function of the arguments."""
    return lambda *tensors: mx.jvp(f or p.f, list(tensors), p.c)[1]


def pushed_of_batch(p):
    """Of a mapped derivative, along c and along 2 c, the first."""
    batch = [mx.stack([c, 2 * c]) for c in p.c]
    return [each[0] for each in mx.vmap(lambda *c: mx.jvp(p.f, p.tensors, list(c))[1])(*batch)]


def mixed(p):
    """The gradient of the derivative along c."""
    return gradient(lambda *tensors: mx.jvp(loss(p), list(tensors), p.c)[1][0])


def along(p):
    return lambda *tensors: mx.jvp(gradient(loss(p)), list(tensors), p.c)[1]


def jacobian(p):
    """Every row of the Jacobian of each output for each argument, weighted."""
    rows = keras_cg.jacobian(p.f, tuple(range(len(p.tensors))))(*p.tensors)
    return [
        sum(mx.tensordot(w, row[place], w.ndim) for w, row in zip(p.weights, rows, strict=True))
        for place in range(len(p.tensors))
    ]


TRANSFORMS = {
    "call": ("value", lambda p: p.f(*p.tensors)),
    "compile": ("value", lambda p: mx.compile(p.f)(*p.tensors)),
    "grad": ("first", lambda p: gradient(loss(p))(*p.tensors)),
    "value_and_grad": ("first", value_and_grad),
    "vjp": ("first", vjp),
    "compile of grad": ("first", lambda p: mx.compile(gradient(loss(p)))(*p.tensors)),
    "grad of compile": ("first", lambda p: gradient(loss(p, mx.compile(p.f)))(*p.tensors)),
    "grad of checkpoint": ("first", lambda p: gradient(loss(p, mx.checkpoint(p.f)))(*p.tensors)),
    "recompute": ("first", lambda p: gradient(loss(p, keras_cg.recipes.recompute(p.f)))(*p.tensors)),
    "jacobian": ("rows", jacobian),
    "vmap of grad": ("batched", lambda p: mx.vmap(gradient(loss(p)))(*p.batch)),
    "compile of vmap of grad": ("batched", lambda p: mx.compile(mx.vmap(gradient(loss(p))))(*p.batch)),
    "grad of vmap": ("batched", lambda p: gradient(of_batch(p, mx.vmap(p.f)))(*p.batch)),
    "grad of grad": ("second", lambda p: second(p)(*p.tensors)),
    "compile of grad of grad": ("second", lambda p: mx.compile(second(p))(*p.tensors)),
    "grad of grad of compile": ("second", lambda p: second(p, mx.compile(p.f))(*p.tensors)),
    "grad of grad of checkpoint": ("second", lambda p: second(p, mx.checkpoint(p.f))(*p.tensors)),
    "grad of grad of composite": ("composite", lambda p: composite(p)(*p.tensors)),
    "third derivative": ("third", lambda p: third(p)(*p.tensors)),
    "jvp": ("tangent", lambda p: pushed(p)(*p.tensors)),
    "keras_cg.jvp": ("tangent", lambda p: keras_cg.jvp(p.f, p.tensors, p.c)[1]),
    "jvp of compile": ("tangent", lambda p: pushed(p, mx.compile(p.f))(*p.tensors)),
    "jvp of checkpoint": ("tangent", lambda p: pushed(p, mx.checkpoint(p.f))(*p.tensors)),
    "vmap of jvp": ("tangent", pushed_of_batch),
    "jvp of grad": ("along", lambda p: along(p)(*p.tensors)),
    "grad of jvp": ("second", lambda p: mixed(p)(*p.tensors)),
}

# Under these, one program has all rules at once.
AT_ONCE = ("call", "compile of grad", "grad of compile")

# Transforms, rules, what the error says, and why: as the table of exceptions of keras_cg has them.
REFUSALS = [
    (
        "jvp|jvp of compile|jvp of checkpoint|keras_cg.jvp|vmap of jvp|grad of jvp",
        "clip by *",
        "forward mode needs a rule that is linear in upstream",
        "no transpose: the rule is not linear in upstream",
    ),
    (
        "jacobian",
        "holomorphic|conjugate|fourier transform|squared modulus",
        "one complex matrix cannot hold the derivative",
        "keras_cg.jacobian by complex arguments",
    ),
    (
        "*grad*|vjp|recompute|jacobian|*jvp*|third derivative",
        "captured value",
        "cannot give it to the rule as one of `variables`",
        "mlx has no gradient for what a function closes over",
    ),
]
