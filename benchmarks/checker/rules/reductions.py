"""Sums, norms, and what divides by them."""

import numpy as np

from benchmarks.checker.rules import apart, positive, rule, signed, softmax, softmax_gradient
from keras_cg import ops


@rule(lambda x: np.mean(x**2, 1), lambda x, u: 2 * x * u[:, None] / 5, signed(3, 5))
def mean_square(x):
    return ops.mean(x * x, axis=1), lambda u: 2 * x * ops.expand_dims(u, axis=1) / 5


@rule(
    lambda x: np.log(np.exp(x).sum(0, keepdims=True)),
    lambda x, u: u * np.exp(x) / np.exp(x).sum(0, keepdims=True),
    signed(4, 3),
)
def log_sum_exp(x):
    top = ops.stop_gradient(ops.max(x, axis=0, keepdims=True))
    e = ops.exp(x - top)
    total = ops.sum(e, axis=0, keepdims=True)
    return ops.log(total) + top, lambda u: u * e / total


@rule(softmax, softmax_gradient, signed(3, 4))
def row_softmax(x):
    e = ops.exp(x)
    p = e / ops.sum(e, axis=-1, keepdims=True)
    return p, lambda u: p * u - p * ops.sum(u * p, axis=-1, keepdims=True)


@rule(
    lambda x: np.log(softmax(x)), lambda x, u: u - softmax(x) * u.sum(-1, keepdims=True), signed(2, 5, dtype="float64")
)
def log_softmax(x):
    y = x - ops.log(ops.sum(ops.exp(x), axis=-1, keepdims=True))
    return y, lambda u: u - ops.exp(y) * ops.sum(u, axis=-1, keepdims=True)


@rule(lambda x: np.var(x, 0), lambda x, u: 2 * u * (x - x.mean(0)) / 6, signed(6, 2))
def variance(x):
    off = x - ops.mean(x, axis=0)
    return ops.mean(off * off, axis=0), lambda u: u * off / 3


@rule(
    lambda x: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 0.1),
    lambda x, u: (
        (u - u.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 0.1)
        - (x - x.mean(1, keepdims=True))
        * (u * (x - x.mean(1, keepdims=True))).mean(1, keepdims=True)
        / (x.var(1, keepdims=True) + 0.1) ** 1.5
    ),
    signed(3, 6),
)
def standardised(x):
    off = x - ops.mean(x, axis=1, keepdims=True)
    scale = 1 / ops.sqrt(ops.mean(off * off, axis=1, keepdims=True) + 0.1)
    y = off * scale

    def gradient(u):
        return scale * (u - ops.mean(u, axis=1, keepdims=True) - y * ops.mean(u * y, axis=1, keepdims=True))

    return y, gradient


@rule(
    lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True),
    lambda x, u: (
        u / np.linalg.norm(x, axis=-1, keepdims=True)
        - x * (x * u).sum(-1, keepdims=True) / np.linalg.norm(x, axis=-1, keepdims=True) ** 3
    ),
    signed(4, 3),
)
def unit_rows(x):
    length = ops.sqrt(ops.sum(x * x, axis=-1, keepdims=True))
    y = x / length
    return y, lambda u: (u - y * ops.sum(u * y, axis=-1, keepdims=True)) / length


@rule(lambda x: np.cumsum(x**2), lambda x, u: 2 * x * np.cumsum(u[::-1])[::-1], signed(6))
def running_energy(x):
    return ops.cumulative_sum(
        x * x, axis=0
    ), lambda u: 2 * x * ops.flip(ops.cumulative_sum(ops.flip(u, axis=0), axis=0), axis=0)


@rule(lambda x: np.prod(x), lambda x, u: u * np.prod(x) / x, signed(5))
def product(x):
    y = ops.prod(x)
    return y, lambda u: u * y / x


@rule(lambda x: x.max(1), lambda x, u: u[:, None] * (x == x.max(1, keepdims=True)), apart(4, 3))
def row_maximum(x):
    top = ops.max(x, axis=1, keepdims=True)
    chosen = ops.astype(ops.stop_gradient(x) == ops.stop_gradient(top), x.dtype)
    return ops.sum(chosen * x, axis=1), lambda u: chosen * ops.expand_dims(u, axis=1)


@rule(
    lambda x: (np.abs(x) ** 3).sum() ** (1 / 3),
    lambda x, u: u * x * np.abs(x) / (np.abs(x) ** 3).sum() ** (2 / 3),
    signed(2, 4),
)
def third_norm(x):
    size = ops.abs(x)
    y = ops.sum(size * size * size) ** (1 / 3)
    return y, lambda u: u * x * size / (y * y)


@rule(
    lambda x, w: (w * x).sum(1) / w.sum(1),
    lambda x, w, u: [
        u[:, None] * w / w.sum(1, keepdims=True),
        u[:, None] * (x / w.sum(1, keepdims=True) - (w * x).sum(1, keepdims=True) / w.sum(1, keepdims=True) ** 2),
    ],
    signed(3, 4),
    positive(3, 4),
)
def weighted_mean(x, w):
    total = ops.sum(w, axis=1)
    y = ops.sum(w * x, axis=1) / total

    def gradient(u):
        share = ops.expand_dims(u / total, axis=1)
        return share * w, share * (x - ops.expand_dims(y, axis=1))

    return y, gradient


@rule(
    lambda x: -(softmax(x) * np.log(softmax(x))).sum(-1),
    lambda x, u: (
        -u[:, None] * softmax(x) * (np.log(softmax(x)) - (softmax(x) * np.log(softmax(x))).sum(-1, keepdims=True))
    ),
    signed(2, 5),
)
def entropy(x):
    log = x - ops.log(ops.sum(ops.exp(x), axis=-1, keepdims=True))
    p = ops.exp(log)
    y = -ops.sum(p * log, axis=-1, keepdims=True)
    return ops.squeeze(y, axis=-1), lambda u: -ops.expand_dims(u, axis=-1) * p * (log + y)
