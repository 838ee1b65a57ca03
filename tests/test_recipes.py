"""`keras_cg.recipes`: the values and the gradients of closed forms, on every backend."""

import numpy as np

from keras_cg import ops, recipes
from keras_cg.testing import assert_gradients

X = np.array([[-2.6, -0.7, 0.3], [0.4, 1.2, 5.5]])
UP = np.array([[0.5, -2.0, 3.0], [4.0, -0.25, 1.5]])


def rounded(x):
    return ops.floor(x + 0.5)


def test_straight_through(backend):
    assert_gradients(recipes.straight_through(rounded), X, expected=lambda x: x)


def test_reverse_gradient(backend):
    assert_gradients(recipes.reverse_gradient, X, expected=lambda x: -x)
    assert_gradients(recipes.reverse_gradient, X, 0.3, expected=lambda x, scale: -0.3 * x)


def test_scale_gradient(backend):
    assert_gradients(recipes.scale_gradient, X, 0.3, expected=lambda x, scale: 0.3 * x)
    assert_gradients(
        recipes.scale_gradient, X, np.array(0.3), expected=lambda x, scale, upstream: (scale * upstream, 0 * scale)
    )


def test_clip_gradient(backend):
    assert_gradients(
        recipes.clip_gradient,
        X,
        kwargs={"value": 1.0},
        expected=lambda x, upstream: ops.where(ops.abs(upstream) < 1, upstream, ops.sign(upstream)),
    )
    assert_gradients(
        recipes.clip_gradient,
        X,
        kwargs={"norm": 1.0},
        expected=lambda x, upstream: upstream / ops.maximum(ops.sqrt(ops.sum(upstream * upstream)), 1 + 0 * x),
    )


def test_safe_norm(backend):
    assert_gradients(recipes.safe_norm, X)
    assert_gradients(recipes.safe_norm, X, 1)
    assert_gradients(recipes.safe_norm, X, kwargs={"axis": (0,), "keepdims": True})


def quantized(x, step, upstream, low, high):
    ratio = x / step
    inside = (low < ratio) & (ratio < high)
    slope = ops.where(inside, rounded(ratio) - ratio, ops.where(ratio > 0, high + 0 * ratio, low + 0 * ratio))
    return ops.where(inside, upstream, 0 * upstream), upstream * slope


def test_quantize(backend):
    assert_gradients(
        recipes.quantize, X, 0.5, 3, expected=lambda x, step, bits, upstream: quantized(x, step, upstream, -4, 3)[0]
    )

    def expected(x, step, bits, signed, upstream):
        gx, gs = quantized(x, step, upstream, 0, 3)
        return gx, ops.sum(gs)

    assert_gradients(recipes.quantize, X, np.array(0.5), 2, False, expected=expected)
