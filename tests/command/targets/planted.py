"""Custom gradients, right ones and wrong ones."""

import keras_cg
from keras_cg import ops


@keras_cg.custom_gradient
def power(x, n=3):
    return x**n, lambda upstream: upstream * n * x ** (n - 1)


power.example_args = {"x": "rng.uniform(1, 2, (4, 3))", "n": 2}


@keras_cg.custom_gradient
def doubled(x):
    return x**2, lambda upstream: upstream * 4 * x


@keras_cg.custom_gradient
def scaled(x, strength):
    """The identity, whose gradient is scaled as it is meant to be."""
    return x + 0.0, lambda upstream: strength * upstream


def scale(x, strength):
    return strength * x


def scaling_rule(x, strength, upstream):
    return strength * upstream


scaled.example_args = ("rng.uniform(-1, 1, 5)", 0.5)
scaled.expected = scale


@keras_cg.custom_gradient
def swapped(x, y):
    return x * y, lambda upstream: (upstream * x, upstream * y)


class Scale:
    def __init__(self, factor):
        self.factor = factor

    @keras_cg.custom_gradient
    def __call__(self, x):
        return self.factor * x, lambda upstream: self.factor * upstream

    @keras_cg.custom_gradient
    def method(self, x):
        return self.factor * x, lambda upstream: self.factor * upstream

    @staticmethod
    @keras_cg.custom_gradient
    def static(x):
        return 2 * x, lambda upstream: 2 * upstream


triple = Scale(3.0)


@keras_cg.custom_gradient
def kinked(x):
    """|x|, which cannot be checked at zero."""
    return ops.abs(x), lambda upstream: upstream * ops.sign(x)


@keras_cg.custom_gradient
def keywords(x, /, *, weights, mode="mean", scale=1.0):
    total = scale * (ops.sum(x**2) + ops.sum(weights["w"] ** 2))
    total = total / 2 if mode == "mean" else total
    factor = scale if mode == "mean" else 2 * scale
    return total, lambda upstream: (upstream * factor * x, {"w": upstream * factor * weights["w"]})
