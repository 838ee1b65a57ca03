"""Products, inverses and determinants of matrices."""

import numpy as np

from benchmarks.checker.rules import regular, rule, signed
from keras_cg import ops


def t(x):
    return ops.matrix_transpose(x)


def times(a, x):
    """A matrix and a vector, which TensorFlow's own `@` does not multiply."""
    return ops.matmul(a, x)


@rule(lambda a, b: a @ b, lambda a, b, u: [u @ b.T, a.T @ u], signed(2, 4), signed(4, 3))
def matrix_product(a, b):
    return a @ b, lambda u: (u @ t(b), t(a) @ u)


@rule(
    lambda x, a, y: x @ a @ y,
    lambda x, a, y, u: [u * (a @ y), u * np.outer(x, y), u * (a.T @ x)],
    signed(3),
    signed(3, 4),
    signed(4),
)
def bilinear(x, a, y):
    right, left = times(a, y), times(t(a), x)

    def gradient(u):
        return u * right, u * ops.expand_dims(x, axis=1) * ops.expand_dims(y, axis=0), u * left

    return ops.sum(x * right), gradient


@rule(lambda x, a: x @ a @ x, lambda x, a, u: [u * (a + a.T) @ x, u * np.outer(x, x)], signed(4), signed(4, 4))
def quadratic(x, a):
    y = times(a, x)
    return ops.sum(x * y), lambda u: (
        u * (y + times(t(a), x)),
        u * ops.expand_dims(x, axis=1) * ops.expand_dims(x, axis=0),
    )


@rule(np.linalg.inv, lambda a, u: -np.linalg.inv(a).T @ u @ np.linalg.inv(a).T, regular(3))
def inverse(a):
    y = ops.linalg.inv(a)
    return y, lambda u: -t(y) @ u @ t(y)


@rule(
    lambda a, b: np.linalg.solve(a, b),
    lambda a, b, u: [-np.outer(np.linalg.solve(a.T, u), np.linalg.solve(a, b)), np.linalg.solve(a.T, u)],
    regular(3, "float64"),
    signed(3, dtype="float64"),
)
def linear_system(a, b):
    x = ops.linalg.solve(a, b)

    def gradient(u):
        back = ops.linalg.solve(t(a), u)
        return -ops.expand_dims(back, axis=1) * ops.expand_dims(x, axis=0), back

    return x, gradient


@rule(
    lambda a: np.log(np.linalg.det(a)),
    lambda a, u: u * np.linalg.inv(a).T,
    lambda draw: (lambda m: (m @ m.T + np.eye(3)).astype("float32"))(draw.uniform(-1, 1, (3, 3))),
)
def log_determinant(a):
    return ops.log(ops.linalg.det(a)), lambda u: u * t(ops.linalg.inv(a))


@rule(lambda a, b: np.trace(a @ b), lambda a, b, u: [u * b.T, u * a.T], signed(3, 4), signed(4, 3))
def trace_of_product(a, b):
    return ops.sum(a * t(b)), lambda u: (u * t(b), u * t(a))


@rule(np.outer, lambda a, b, u: [u @ b, a @ u], signed(4), signed(3))
def outer_product(a, b):
    return ops.expand_dims(a, axis=1) * ops.expand_dims(b, axis=0), lambda u: (times(u, b), times(t(u), a))


@rule(lambda x: x @ x.T, lambda x, u: (u + u.T) @ x, signed(3, 2))
def gram(x):
    return x @ t(x), lambda u: (u + t(u)) @ x


@rule(lambda a: a @ a @ a, lambda a, u: u @ (a @ a).T + a.T @ u @ a.T + (a @ a).T @ u, signed(3, 3))
def matrix_cube(a):
    square = a @ a
    return square @ a, lambda u: u @ t(square) + t(a) @ u @ t(a) + t(square) @ u


@rule(
    lambda a, b: a @ b, lambda a, b, u: [u @ b.swapaxes(1, 2), a.swapaxes(1, 2) @ u], signed(2, 2, 3), signed(2, 3, 2)
)
def products_in_a_batch(a, b):
    return ops.matmul(a, b), lambda u: (ops.matmul(u, t(b)), ops.matmul(t(a), u))


@rule(
    lambda x, k: np.correlate(x, k, "valid"),
    lambda x, k, u: [np.convolve(u, k), np.correlate(x, u, "valid")],
    signed(7),
    signed(3),
)
def filtered(x, k):
    rows = ops.stack([x[place : place + 3] for place in range(5)])

    def gradient(u):
        back = sum(
            ops.concat([ops.zeros_like(x[:place]), u[place] * k, ops.zeros_like(x[place + 3 :])]) for place in range(5)
        )
        return back, times(t(rows), u)

    return times(rows, k), gradient


@rule(
    lambda x, a: x @ np.linalg.solve(a, x),
    lambda x, a, u: [
        u * (np.linalg.solve(a, x) + np.linalg.solve(a.T, x)),
        -u * np.outer(np.linalg.solve(a.T, x), np.linalg.solve(a, x)),
    ],
    signed(3),
    regular(3),
)
def inverse_quadratic(x, a):
    inv = ops.linalg.inv(a)
    right, left = times(inv, x), times(t(inv), x)

    def gradient(u):
        return u * (right + left), -u * ops.expand_dims(left, axis=1) * ops.expand_dims(right, axis=0)

    return ops.sum(x * right), gradient
