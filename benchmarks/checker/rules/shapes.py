"""One number, none, a batch of two, many."""

import numpy as np

from benchmarks.checker.rules import rule, signed
from keras_cg import ops


@rule(lambda x: x * np.exp(-x), lambda x, u: u * (1 - x) * np.exp(-x), signed())
def one_number(x):
    e = ops.exp(-x)
    return x * e, lambda u: u * (1 - x) * e


@rule(lambda x: np.sinh(x), lambda x, u: u * np.cosh(x), signed(1))
def array_of_one(x):
    return ops.sinh(x), lambda u: u * ops.cosh(x)


@rule(
    lambda x, y: ((x - y) ** 2).mean(0),
    lambda x, y, u: [u * (x - y), u * (y - x)],
    signed(2, 3),
    lambda draw: draw.uniform(2, 3, (2, 3)).astype("float32"),
)
def batch_of_two(x, y):
    off = x - y
    return ops.mean(off * off, axis=0), lambda u: (u * off, -u * off)


@rule(lambda x: np.tanh(x) ** 2, lambda x, u: 2 * u * np.tanh(x) / np.cosh(x) ** 2, signed(10, 30))
def three_hundred_numbers(x):
    y = ops.tanh(x)
    return y * y, lambda u: 2 * u * y * (1 - y * y)


@rule(lambda x: (x**2).sum(1), lambda x, u: 2 * u[:, None] * x, signed(0, 3))
def empty(x):
    return ops.sum(x * x, axis=1), lambda u: 2 * ops.expand_dims(u, axis=1) * x


@rule(lambda x: x[::-1, :, 1] ** 2, lambda x, u: np.stack([0 * u[::-1], 2 * u[::-1] * x[:, :, 1]], -1), signed(3, 2, 2))
def a_part_of_it(x):
    part = x[:, :, 1]

    def gradient(u):
        back = 2 * ops.flip(u, axis=0) * part
        return ops.stack([0 * back, back], axis=-1)

    return ops.flip(part * part, axis=0), gradient
