"""Indexing and sorting on TensorFlow, which order NaN after all numbers."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from keras_cg.namespaces import composed
from keras_cg.namespaces.tensorflow.promoted import number, same, size, tensor

tnp = tf.experimental.numpy


def argmax(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Any:
    x = _ordered(tensor(x))
    found = tf.argmax(tf.reshape(x, (-1,)) if axis is None else x, 0 if axis is None else axis)
    if not keepdims:
        return found
    return tf.reshape(found, [1] * x.shape.rank) if axis is None else tf.expand_dims(found, axis)


def argmin(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Any:
    x = tensor(x)
    x = -x if x.dtype.is_floating else tf.bitwise.invert(_ordered(x))
    return argmax(x, axis, keepdims=keepdims)


def _ordered(x: Any) -> Any:
    """Returns integers in the order of `x`, with NaN last; TensorFlow (2.21) sorts NaN anywhere, tf.argmax skips it."""
    if not x.dtype.is_floating:
        return tf.cast(x, tf.uint8) if x.dtype.is_bool else x
    # The bits of a negative zero, or of a NaN with a sign, would come before those of all positive numbers.
    x = tf.where(x == 0, tf.zeros_like(x), tf.where(tf.math.is_nan(x), number(math.nan, x.dtype), x))
    bits = tf.bitcast(x, {2: tf.int16, 4: tf.int32, 8: tf.int64}[x.dtype.size])
    return tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, bits.dtype.max), bits)


def take(x: Any, indices: Any, /, axis: int | None = None) -> Any:
    x = tensor(x)
    x, axis = (tf.reshape(x, (-1,)), 0) if axis is None else (x, axis)
    (axis,) = composed.axes_of(axis, x.shape.rank)
    return tf.gather(x, _from_the_start(indices, x, axis), axis=axis)


def take_along_axis(x: Any, indices: Any, /, axis: int = -1) -> Any:
    x = tensor(x)
    (axis,) = composed.axes_of(axis, x.shape.rank)
    rows, places = (tnp.moveaxis(each, axis, -1) for each in (x, _from_the_start(indices, x, axis)))
    if rows.shape[:-1] != places.shape[:-1]:
        batch = tf.broadcast_dynamic_shape(tf.shape(rows)[:-1], tf.shape(places)[:-1])
        rows, places = (tf.broadcast_to(each, tf.concat([batch, tf.shape(each)[-1:]], 0)) for each in (rows, places))
    # Not tnp.take_along_axis, of which XLA (2.21) does not compile the gradient.
    return tnp.moveaxis(tf.gather(rows, places, batch_dims=rows.shape.rank - 1), -1, axis)


def _from_the_start(indices: Any, x: Any, axis: int) -> Any:
    indices = tf.cast(tensor(indices), tf.int64)
    return tf.where(indices < 0, indices + tf.cast(size(x, axis), tf.int64), indices)


def argsort(x: Any, /, axis: int = -1, *, descending: bool = False) -> Any:
    order = tf.argsort(_ordered(tensor(x)), axis, "DESCENDING" if descending else "ASCENDING", stable=True)
    return tf.cast(order, tf.int64)


def sort(x: Any, /, axis: int = -1, *, descending: bool = False) -> Any:
    return take_along_axis(x, argsort(x, axis, descending=descending), axis)


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    return tf.where(tf.cast(tensor(condition), tf.bool), *same(x1, x2))
