"""Several arguments, several outputs, nests, broadcasting."""

import numpy as np

from benchmarks.checker.rules import as_tuple, positive, rule, sigmoid, signed, softmax, softmax_gradient, uniform
from keras_cg import ops


@rule(np.arctan2, lambda y, x, u: [u * x / (x**2 + y**2), -u * y / (x**2 + y**2)], signed(5), signed(5))
def angle(y, x):
    below = x * x + y * y
    return ops.atan2(y, x), lambda u: (u * x / below, -u * y / below)


@rule(
    lambda r, a: (r * np.cos(a), r * np.sin(a)),
    lambda r, a, u: [u[0] * np.cos(a) + u[1] * np.sin(a), r * (u[1] * np.cos(a) - u[0] * np.sin(a))],
    positive(4),
    signed(4),
)
def from_polar(r, a):
    x, y = r * ops.cos(a), r * ops.sin(a)
    return (x, y), lambda ux, uy: (ux * ops.cos(a) + uy * ops.sin(a), uy * x - ux * y)


@rule(lambda x, y: (x + y, x * y), lambda x, y, u: [u[0] + u[1] * y, u[0] + u[1] * x], signed(3, 2), signed(3, 2))
def sum_and_product(x, y):
    return (x + y, x * y), lambda us, up: (us + up * y, us + up * x)


@rule(
    lambda x, w, b: x * w + b, lambda x, w, b, u: [u * w, (u * x).sum(0), u.sum(0)], signed(4, 3), signed(3), signed(3)
)
def scale_and_shift(x, w, b):
    return x * w + b, lambda u: (u * w, ops.sum(u * x, axis=0), ops.sum(u, axis=0))


@rule(
    lambda a, b: np.tanh(a * b),
    lambda a, b, u: [
        (u * b / np.cosh(a * b) ** 2).sum(1, keepdims=True),
        (u * a / np.cosh(a * b) ** 2).sum(0, keepdims=True),
    ],
    signed(3, 1),
    signed(1, 4),
)
def rows_by_columns(a, b):
    y = ops.tanh(a * b)

    def gradient(u):
        inside = u * (1 - y * y)
        return ops.sum(inside * b, axis=1, keepdims=True), ops.sum(inside * a, axis=0, keepdims=True)

    return y, gradient


@rule(
    lambda x, s: np.exp(x * s),
    lambda x, s, u: [u * s * np.exp(x * s), (u * x * np.exp(x * s)).sum()],
    signed(5),
    positive(),
)
def temperature(x, s):
    y = ops.exp(x * s)
    return y, lambda u: (u * s * y, ops.sum(u * x * y))


@rule(
    lambda a, b: a * sigmoid(b),
    lambda a, b, u: [u * sigmoid(b), u * a * sigmoid(b) * sigmoid(-b)],
    signed(3, 4),
    signed(3, 4),
)
def gated(a, b):
    s = 1 / (1 + ops.exp(-b))
    return a * s, lambda u: (u * s, u * a * s * (1 - s))


def attention_gradient(q, k, v, u):
    p, inside = softmax(q @ k.T / 2), softmax_gradient(q @ k.T / 2, u @ v.T) / 2
    return [inside @ k, inside.T @ q, p.T @ u]


@rule(lambda q, k, v: softmax(q @ k.T / 2) @ v, attention_gradient, signed(2, 4), signed(3, 4), signed(3, 2))
def attention(q, k, v):
    e = ops.exp(q @ ops.matrix_transpose(k) / 2)
    p = e / ops.sum(e, axis=-1, keepdims=True)

    def gradient(u):
        back = u @ ops.matrix_transpose(v)
        scores = p * (back - ops.sum(back * p, axis=-1, keepdims=True)) / 2
        return scores @ k, ops.matrix_transpose(scores) @ q, ops.matrix_transpose(p) @ u

    return p @ v, gradient


@rule(lambda x: (x.mean(0), x.var(0)), lambda x, u: u[0] / 5 + 2 * u[1] * (x - x.mean(0)) / 5, signed(5, 3))
def moments(x):
    mean = ops.mean(x, axis=0)
    off = x - mean
    return (mean, ops.mean(off * off, axis=0)), lambda um, uv: 0 * x + um / 5 + 2 * uv * off / 5


def in_a_dict(*names):
    """All arguments in one dict, and so the gradients."""

    def dress(flat):
        def function(params):
            outputs, gradient = flat(*[params[name] for name in names])

            def pullback(upstream):
                found = gradient(upstream)
                return {name: found[place] for place, name in enumerate(names)}

            return outputs, pullback

        return function

    return dress


@rule(
    lambda w, b, x: np.tanh(x @ w + b),
    lambda w, b, x, u: [
        x.T @ (u / np.cosh(x @ w + b) ** 2),
        (u / np.cosh(x @ w + b) ** 2).sum(0),
        (u / np.cosh(x @ w + b) ** 2) @ w.T,
    ],
    signed(3, 2),
    signed(2),
    signed(4, 3),
    dress=in_a_dict("w", "b", "x"),
    pack=lambda w, b, x: ({"w": w, "b": b, "x": x},),
)
def dense_in_a_dict(w, b, x):
    y = ops.tanh(x @ w + b)

    def gradient(u):
        inside = u * (1 - y * y)
        return ops.matrix_transpose(x) @ inside, ops.sum(inside, axis=0), inside @ ops.matrix_transpose(w)

    return y, gradient


def into_a_dict(flat):
    """The outputs in a dict with a nest in it, and so upstream."""

    def function(x):
        (y, total), gradient = flat(x)
        return {"y": y, "sums": [total]}, lambda upstream: as_tuple(gradient(upstream["y"], upstream["sums"][0]))

    return function


@rule(
    lambda x: (x**3, (x**2).sum(1)),
    lambda x, u: 3 * u[0] * x**2 + 2 * u[1][:, None] * x,
    signed(3, 2),
    dress=into_a_dict,
)
def outputs_in_a_nest(x):
    return (x * x * x, ops.sum(x * x, axis=1)), lambda u, us: 3 * u * x * x + 2 * ops.expand_dims(us, axis=1) * x


@rule(
    lambda a, b, s: a + s * (b - a),
    lambda a, b, s, u: [u * (1 - s), u * s, (u * (b - a)).sum()],
    signed(2, 3),
    signed(2, 3),
    uniform(0.2, 0.8),
)
def between(a, b, s):
    return a + s * (b - a), lambda u: (u * (1 - s), u * s, ops.sum(u * (b - a)))


@rule(
    lambda x, y: np.sqrt(((x[:, None] - y[None]) ** 2).sum(-1)),
    lambda x, y, u: [
        ((u / np.linalg.norm(x[:, None] - y[None], axis=-1))[..., None] * (x[:, None] - y[None])).sum(1),
        -((u / np.linalg.norm(x[:, None] - y[None], axis=-1))[..., None] * (x[:, None] - y[None])).sum(0),
    ],
    signed(3, 2),
    lambda draw: (3 + draw.uniform(0, 1, (4, 2))).astype("float32"),
)
def distances(x, y):
    off = ops.expand_dims(x, axis=1) - ops.expand_dims(y, axis=0)
    d = ops.sqrt(ops.sum(off * off, axis=-1))

    def gradient(u):
        back = ops.expand_dims(u / d, axis=-1) * off
        return ops.sum(back, axis=1), -ops.sum(back, axis=0)

    return d, gradient
