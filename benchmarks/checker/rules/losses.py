"""Losses that are written so that they do not overflow; integers beside the numbers."""

import numpy as np

from benchmarks.checker.rules import labels, positive, rule, sigmoid, signed, softmax, uniform
from keras_cg import ops


@rule(
    lambda x, y: np.logaddexp(0, x) - x * y,
    lambda x, y, u: [u * (sigmoid(x) - y), -u * x],
    signed(3, 3),
    uniform(0.1, 0.9, 3, 3),
)
def binary_cross_entropy(x, y):
    loss = ops.where(x > 0, x, 0 * x) - x * y + ops.log1p(ops.exp(-ops.abs(x)))
    return loss, lambda u: (u * (1 / (1 + ops.exp(-x)) - y), -u * x)


@rule(
    lambda x, y: -np.log(softmax(x))[np.arange(4), y],
    lambda x, y, u: [u[:, None] * (softmax(x) - np.eye(3)[y]), None],
    signed(4, 3),
    labels(3, 4),
)
def cross_entropy_of_labels(x, y):
    chosen = ops.astype(ops.expand_dims(y, axis=1) == ops.arange(3, dtype=y.dtype), x.dtype)
    log = x - ops.log(ops.sum(ops.exp(x), axis=1, keepdims=True))
    return -ops.sum(chosen * log, axis=1), lambda u: (ops.expand_dims(u, axis=1) * (ops.exp(log) - chosen), None)


@rule(
    lambda table, places: table[places],
    lambda table, places, u: [np.eye(4)[places].T @ u, None],
    signed(4, 2),
    lambda draw: np.concatenate([draw.permutation(4), draw.integers(0, 4, 2)]),
)
def embedding(table, places):
    chosen = ops.astype(ops.expand_dims(places, axis=1) == ops.arange(4, dtype=places.dtype), table.dtype)
    return chosen @ table, lambda u: (ops.matrix_transpose(chosen) @ u, None)


@rule(
    lambda x: np.logaddexp(0, -x).sum(),
    lambda x, u: -u * sigmoid(-x),
    lambda draw: (draw.choice([-1, 1], 6) * draw.uniform(5, 12, 6)).astype("float32"),
)
def logistic_far_out(x):
    size = ops.abs(x)
    e = ops.exp(-size)
    loss = ops.sum(ops.where(x > 0, 0 * x, -x) + ops.log1p(e))
    return loss, lambda u: -u * ops.where(x > 0, e, ops.ones_like(x)) / (1 + e)


@rule(
    lambda p, q: (softmax(p) * (np.log(softmax(p)) - np.log(softmax(q)))).sum(-1),
    lambda p, q, u: [
        u[:, None]
        * softmax(p)
        * (np.log(softmax(p) / softmax(q)) - (softmax(p) * np.log(softmax(p) / softmax(q))).sum(-1, keepdims=True)),
        u[:, None] * (softmax(q) - softmax(p)),
    ],
    signed(2, 4),
    signed(2, 4),
)
def divergence(p, q):
    log_p = p - ops.log(ops.sum(ops.exp(p), axis=-1, keepdims=True))
    log_q = q - ops.log(ops.sum(ops.exp(q), axis=-1, keepdims=True))
    a, b = ops.exp(log_p), ops.exp(log_q)
    y = ops.sum(a * (log_p - log_q), axis=-1, keepdims=True)

    def gradient(u):
        u = ops.expand_dims(u, axis=-1)
        return u * a * (log_p - log_q - y), u * (b - a)

    return ops.squeeze(y, axis=-1), gradient


@rule(lambda x: np.log(-np.expm1(-x)), lambda x, u: u / np.expm1(x), positive(5, dtype="float64"))
def log_one_minus_exp(x):
    return ops.log(-ops.expm1(-x)), lambda u: u / ops.expm1(x)


@rule(
    lambda x: -(sigmoid(-x) ** 2) * np.log(sigmoid(x)),
    lambda x, u: u * sigmoid(-x) ** 2 * (2 * sigmoid(x) * np.log(sigmoid(x)) - sigmoid(-x)),
    signed(6),
)
def focal(x):
    p = 1 / (1 + ops.exp(-x))
    log = -ops.log1p(ops.exp(-x))
    return -(1 - p) * (1 - p) * log, lambda u: u * (1 - p) * (1 - p) * (2 * p * log - (1 - p))


@rule(lambda x, k: np.mean(np.exp(x) - k * x), lambda x, k, u: [u * (np.exp(x) - k) / 8, None], signed(8), labels(5, 8))
def poisson_of_counts(x, k):
    e, count = ops.exp(x), ops.astype(k, x.dtype)
    return ops.mean(e - count * x), lambda u: (u * (e - count) / 8, None)


def triplet_gradient(a, p, n, u):
    s = (2 * u * sigmoid(((a - p) ** 2 - (a - n) ** 2).sum(1)))[:, None]
    return [s * (n - p), s * (p - a), s * (a - n)]


@rule(
    lambda a, p, n: np.log1p(np.exp(((a - p) ** 2 - (a - n) ** 2).sum(1))),
    triplet_gradient,
    *(signed(3, 2), signed(3, 2), signed(3, 2)),
)
def triplet(a, p, n):
    e = ops.exp(ops.sum((a - p) * (a - p) - (a - n) * (a - n), axis=1))

    def gradient(u):
        s = 2 * ops.expand_dims(u * e / (1 + e), axis=1)
        return s * (n - p), s * (p - a), s * (a - n)

    return ops.log1p(e), gradient
