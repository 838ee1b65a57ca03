"""Functions of which a curve can be drawn, and some of which none can."""

import numpy

import keras_cg
from keras_cg import ops


@keras_cg.custom_gradient
def cube(x, n=3):
    return x**n, lambda upstream: upstream * n * x ** (n - 1)


@keras_cg.custom_gradient
def half_right(x):
    """sin(x), whose gradient is wrong below zero."""
    return ops.sin(x), lambda upstream: upstream * ops.where(x > 0, ops.cos(x), 0.5 * ops.cos(x))


@keras_cg.custom_gradient
def rounded(x):
    """The straight-through estimator."""
    return ops.floor(x + 0.5), lambda upstream: upstream


def identity(x):
    return x


def passed_on(x, upstream):
    return upstream


@keras_cg.custom_gradient
def relu(x):
    return ops.where(x > 0, x, 0 * x), lambda upstream: upstream * ops.where(x > 0, ops.ones_like(x), 0 * x)


@keras_cg.custom_gradient
def single_only(x):
    """Takes float32 alone, as a kernel may."""
    if keras_cg.ops.asarray(x).dtype != numpy.float32:
        raise TypeError("float32 only")
    return x**2, lambda upstream: upstream * 2 * x


@keras_cg.custom_gradient
def softmax(x):
    e = ops.exp(x)
    return e / ops.sum(e), lambda upstream: upstream


@keras_cg.custom_gradient
def total(x):
    return ops.sum(x), lambda upstream: upstream * ops.ones_like(x)


@keras_cg.custom_gradient
def several(x):
    return (x, x), lambda a, b: a + b


@keras_cg.custom_gradient
def only_numpy(x):
    if keras_cg.backend() != "numpy":
        raise RuntimeError("not here")
    return x, lambda upstream: upstream


@keras_cg.custom_gradient
def counts(x):
    return numpy.arange(len(x)), lambda upstream: None
