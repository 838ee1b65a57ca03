"""Linear algebra on TensorFlow, composed from `tf.linalg`; `keras_cg.ops.linalg` has the other functions of that."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_cg.namespaces.tensorflow.promoted import same, tensor

cholesky = tf.linalg.cholesky


def matmul(x1: Any, x2: Any, /) -> Any:
    return tf.experimental.numpy.matmul(*same(x1, x2))


def matrix_transpose(x: Any, /) -> Any:
    return tf.linalg.matrix_transpose(tensor(x))


def solve(x1: Any, x2: Any, /) -> Any:
    x1, x2 = same(x1, x2)
    if x2.shape.rank == 1:
        return solve(x1, x2[:, None])[..., 0]
    # tf.linalg.solve (2.21) does not broadcast batches.
    batch = tf.broadcast_dynamic_shape(tf.shape(x1)[:-2], tf.shape(x2)[:-2])
    whole = [tf.broadcast_to(each, tf.concat([batch, tf.shape(each)[-2:]], 0)) for each in (x1, x2)]
    return tf.linalg.solve(*whole)


def tensordot(x1: Any, x2: Any, /, axes: Any = 2) -> Any:
    return tf.tensordot(*same(x1, x2), axes)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    x1, x2 = same(x1, x2)
    return tf.reduce_sum(tf.math.conj(x1) * x2, axis=axis)
