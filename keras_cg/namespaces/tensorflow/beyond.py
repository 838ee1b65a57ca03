"""The functions of `keras_cg.ops` that the array API standard does not have, on TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_cg.namespaces import table
from keras_cg.namespaces.tensorflow.promoted import tensor


def erf(x: Any, /) -> Any:
    # tf.math.erf (2.21) is NaN at infinity. Not clipped, because the gradient at NaN would be 0.
    x = _floating(x)
    low, high = [tf.constant(bound, x.dtype) for bound in table.ERF_BOUNDS]
    return tf.math.erf(tf.where(x > high, high, tf.where(x < low, low, x)))


def relu(x: Any, /) -> Any:
    return tf.nn.relu(tensor(x))


def sigmoid(x: Any, /) -> Any:
    return tf.sigmoid(_floating(x))


def log_softmax(x: Any, /, *, axis: int = -1) -> Any:
    return tf.nn.log_softmax(_floating(x), axis)


def softmax(x: Any, /, *, axis: int = -1) -> Any:
    return tf.nn.softmax(_floating(x), axis)


def sum_to(gradient: Any, like: Any) -> Any:
    """Sums a gradient to the shape of a tensor, where the graph may not know the sizes."""
    sizes = tf.shape(gradient), tf.shape(like)
    _, axes = tf.raw_ops.BroadcastGradientArgs(s0=sizes[0], s1=sizes[1])
    return tf.ensure_shape(tf.reshape(tf.reduce_sum(gradient, axes), sizes[1]), like.shape)


def _floating(x: Any) -> Any:
    x = tensor(x)
    return x if x.dtype.is_floating or x.dtype.is_complex else tf.cast(x, tf.float64)
