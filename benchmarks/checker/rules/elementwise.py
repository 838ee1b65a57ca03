"""Functions of each number for itself."""

import numpy as np

from benchmarks.checker.rules import positive, rule, sigmoid, signed, uniform
from keras_cg import ops


@rule(lambda x: x * sigmoid(x), lambda x, u: u * (sigmoid(x) + x * sigmoid(x) * (1 - sigmoid(x))), signed(3, 4))
def swish(x):
    s = 1 / (1 + ops.exp(-x))
    return x * s, lambda u: u * s * (1 + x * (1 - s))


@rule(
    lambda x: x * np.tanh(np.log1p(np.exp(x))),
    lambda x, u: u * (np.tanh(np.log1p(np.exp(x))) + x * sigmoid(x) / np.cosh(np.log1p(np.exp(x))) ** 2),
    signed(7),
)
def mish(x):
    e = ops.exp(x)
    t = ops.tanh(ops.log1p(e))
    return x * t, lambda u: u * (t + x * (1 - t * t) * e / (1 + e))


@rule(
    lambda x: 0.5 * x * (1 + np.tanh(0.8 * (x + 0.04 * x**3))),
    lambda x, u: (
        u * 0.5 * (1 + np.tanh(0.8 * (x + 0.04 * x**3)))
        + u * 0.5 * x * (0.8 + 0.096 * x**2) / np.cosh(0.8 * (x + 0.04 * x**3)) ** 2
    ),
    signed(2, 3, dtype="float64"),
)
def gelu(x):
    t = ops.tanh(0.8 * (x + 0.04 * x * x * x))

    def gradient(u):
        return 0.5 * u * (1 + t + x * (1 - t * t) * (0.8 + 0.096 * x * x))

    return 0.5 * x * (1 + t), gradient


@rule(lambda x: np.exp(-(x**2)), lambda x, u: -2 * x * np.exp(-(x**2)) * u, signed(5))
def bell(x):
    y = ops.exp(-x * x)
    return y, lambda u: -2 * u * x * y


@rule(lambda x: np.sin(x) / x, lambda x, u: u * (x * np.cos(x) - np.sin(x)) / x**2, signed(4, 2))
def sinc(x):
    y = ops.sin(x) / x
    return y, lambda u: u * (ops.cos(x) - y) / x


@rule(lambda p: np.log(p) - np.log(1 - p), lambda p, u: u / (p * (1 - p)), uniform(0.1, 0.9, 6))
def logit(p):
    return ops.log(p / (1 - p)), lambda u: u / p + u / (1 - p)


@rule(np.arctan, lambda x, u: u / (1 + x**2), signed(3, 3))
def arctan(x):
    return ops.atan(x), lambda u: u / (1 + x * x)


@rule(np.arcsinh, lambda x, u: u / np.sqrt(1 + x**2), signed(8, dtype="float64"))
def arcsinh(x):
    root = ops.sqrt(1 + x * x)
    return ops.log(x + root), lambda u: u / root


@rule(np.cbrt, lambda x, u: u / (3 * np.cbrt(x) ** 2), positive(2, 5))
def cube_root(x):
    y = x ** (1 / 3)
    return y, lambda u: u / (3 * y * y)


@rule(lambda x: (x**2 + 1) ** -0.5, lambda x, u: -u * x * (x**2 + 1) ** -1.5, signed(5, 1))
def reciprocal_root(x):
    y = 1 / ops.sqrt(x * x + 1)
    return y, lambda u: -u * x * y * y * y


@rule(lambda x: 2 * x**3 - 3 * x**2 + x - 5, lambda x, u: u * (6 * x**2 - 6 * x + 1), signed(9))
def cubic(x):
    return ((2 * x - 3) * x + 1) * x - 5, lambda u: u * (1 + x * (6 * x - 6))


@rule(lambda x: (np.sqrt(x**2 + 1) - 1) / 2 + x, lambda x, u: u * (x / (2 * np.sqrt(x**2 + 1)) + 1), signed(2, 2, 3))
def bent_identity(x):
    root = ops.sqrt(x * x + 1)
    return (root - 1) / 2 + x, lambda u: u + u * x / (2 * root)


@rule(lambda x: x / (1 + np.abs(x)), lambda x, u: u / (1 + np.abs(x)) ** 2, signed(6))
def softsign(x):
    below = 1 + ops.abs(x)
    return x / below, lambda u: u / (below * below)


@rule(lambda x: np.where(x > 0, x, np.expm1(x)), lambda x, u: np.where(x > 0, u, u * np.exp(x)), signed(4, 3))
def elu(x):
    e = ops.exp(ops.where(x > 0, 0 * x, x))
    return ops.where(x > 0, x, e - 1), lambda u: u * e


@rule(
    lambda x: np.where(np.abs(x) < 1, x**2 / 2, np.abs(x) - 0.5),
    lambda x, u: u * np.clip(x, -1, 1),
    lambda draw: (draw.choice([0.4, -0.5, 1.5, -1.7, 0.8, -0.7], 10) + draw.uniform(-0.1, 0.1, 10)).astype("float32"),
)
def huber(x):
    size = ops.abs(x)
    inside = size < 1
    return ops.where(inside, x * x / 2, size - 0.5), lambda u: u * ops.where(inside, x, ops.sign(x))


@rule(lambda x: np.log(np.cosh(x)), lambda x, u: u * np.tanh(x), signed(3, 5))
def log_cosh(x):
    size = ops.abs(x)
    return size + ops.log1p(ops.exp(-2 * size)) - np.log(2.0).item(), lambda u: u * ops.tanh(x)


@rule(lambda x: np.where(x > 0, x, 0.2 * x), lambda x, u: np.where(x > 0, u, 0.2 * u), signed(11))
def leaky_rectifier(x):
    slope = ops.where(x > 0, ops.ones_like(x), 0.2 * ops.ones_like(x))
    return slope * x, lambda u: slope * u


@rule(
    lambda x: np.sin(3 * x) * np.exp(-x / 2),
    lambda x, u: u * np.exp(-x / 2) * (3 * np.cos(3 * x) - np.sin(3 * x) / 2),
    signed(4, 4),
)
def damped_wave(x):
    e = ops.exp(-x / 2)
    s = ops.sin(3 * x)
    return s * e, lambda u: u * e * (3 * ops.cos(3 * x) - s / 2)


@rule(lambda x: np.sqrt(x**2 + 1e-3), lambda x, u: u * x / np.sqrt(x**2 + 1e-3), signed(5))
def smooth_size(x):
    y = ops.sqrt(x * x + 1e-3)
    return y, lambda u: u * x / y


@rule(lambda x: x**2 * np.log(x), lambda x, u: u * x * (2 * np.log(x) + 1), positive(3, 2))
def thin_plate(x):
    log = ops.log(x)
    return x * x * log, lambda u: u * (2 * x * log + x)
