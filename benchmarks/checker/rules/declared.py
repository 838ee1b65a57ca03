"""Gradients that are not the derivative, on purpose, and are declared by `expected`."""

import numpy as np

from benchmarks.checker.rules import rule, signed, uniform
from keras_cg import ops


def floor_of(x):
    return ops.floor(x + 0.5)


def off_the_steps(*shape):
    """Numbers that no small move takes over a step of a half."""
    return lambda draw: (draw.integers(-3, 4, shape) + draw.uniform(-0.35, 0.35, shape)).astype("float32")


@rule(lambda x: np.floor(x + 0.5), lambda x, u: u, off_the_steps(3, 4), expected=lambda x: x)
def rounded(x):
    return floor_of(x), lambda u: u


@rule(
    lambda x: np.sign(x),
    lambda x, u: np.where(np.abs(x) < 1, u, 0),
    lambda draw: (draw.choice([-1.6, -0.5, 0.5, 1.6], 7) + draw.uniform(-0.2, 0.2, 7)).astype("float32"),
    expected=lambda x: ops.where(ops.abs(x) < 1, x, ops.sign(x)),
)
def binary(x):
    return ops.sign(x), lambda u: ops.where(ops.abs(x) < 1, u, 0 * u)


@rule(lambda x: x * 1, lambda x, u: -0.3 * u, signed(5), expected=lambda x: -0.3 * x)
def reversed_gradient(x):
    return x * 1, lambda u: -0.3 * u


@rule(
    lambda x, s: np.clip(np.floor(x / s + 0.5), -2, 2) * s,
    lambda x, s, u: [
        np.where(np.abs(x / s) < 2, u, 0),
        (u * np.where(np.abs(x / s) < 2, np.floor(x / s + 0.5) - x / s, np.sign(x) * 2)).sum(),
    ],
    lambda draw: (0.7 * (draw.choice([-4, -1, 0, 1, 4], 6) + draw.uniform(-0.3, 0.3, 6))).astype("float32"),
    lambda draw: np.asarray(0.7, np.float32),
    expected=lambda x, s, upstream: (
        ops.where(ops.abs(x / s) < 2, upstream, 0 * upstream),
        ops.sum(upstream * ops.where(ops.abs(x / s) < 2, floor_of(x / s) - x / s, 2 * ops.sign(x))),
    ),
)
def learned_step(x, s):
    levels = floor_of(x / s)
    inside = ops.abs(x / s) < 2
    clipped = ops.where(inside, levels, 2 * ops.sign(x))

    def gradient(u):
        return ops.where(inside, u, 0 * u), ops.sum(u * (clipped - ops.where(inside, x / s, 0 * x)))

    return clipped * s, gradient


@rule(
    lambda x: x * 1,
    lambda x, u: np.clip(u, -1, 1),
    signed(6),
    expected=lambda x, upstream: ops.where(ops.abs(upstream) < 1, upstream, ops.sign(upstream)),
    is_linear=False,
)
def clipped_upstream(x):
    return x * 1, lambda u: ops.clip(u, -1, 1)


@rule(
    lambda x: np.where(x > 0, 1.0, 0.0),
    lambda x, u: u / (1 + np.abs(3 * x)) ** 2,
    signed(8),
    expected=lambda x: x / (1 + 3 * ops.abs(x)),
)
def spike(x):
    return ops.where(x > 0, ops.ones_like(x), 0 * x), lambda u: u / (1 + 3 * ops.abs(x)) ** 2


@rule(
    lambda x, y: np.floor(x + 0.5) * y,
    lambda x, y, u: [u * y, u * x],
    off_the_steps(4),
    uniform(0.5, 1.5, 4),
    expected=lambda x, y: x * y,
)
def rounded_weights(x, y):
    return floor_of(x) * y, lambda u: (u * y, u * x)
