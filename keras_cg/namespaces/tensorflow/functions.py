"""`keras_cg.ops` on TensorFlow: `tf.experimental.numpy`, and TensorFlow's functions where that differs.

Many functions of that namespace (TensorFlow 2.21) accept integers only after a switch for the whole process, or have
other names than those of other frameworks. Python numbers have no say in a dtype.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy
import tensorflow as tf

from keras_cg.namespaces import composed, table
from keras_cg.namespaces.tensorflow import beyond, elementwise, indexing, linalg, promoted
from keras_cg.namespaces.tensorflow.promoted import as_dtype, cast, number, numpy_dtype, same, size, tensor, unconverted

tnp = tf.experimental.numpy

# --- creation and data types ---------------------------------------------------------------------


def arange(start: Any, /, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    bounds = (0, start, step) if stop is None else (start, stop, step)
    if not [True for each in bounds if tf.is_tensor(each)]:
        # tnp.arange (2.21) computes in float32, even if the dtype is float64.
        return tf.constant(numpy.arange(*bounds, dtype=None if dtype is None else numpy_dtype(dtype)))
    line = tf.range(*same(*bounds))
    return line if dtype is None else cast(line, as_dtype(dtype))


def asarray(obj: Any, /, dtype: Any = None) -> Any:
    kind = None if dtype is None else as_dtype(dtype)
    return number(obj, kind) if isinstance(obj, table.NUMBERS) else tnp.asarray(obj, kind)


def eye(n_rows: int, n_cols: int | None = None, /, k: int = 0, dtype: Any = "float64") -> Any:
    # tnp.eye (2.21) returns a square matrix where n_cols is 0.
    return tnp.zeros((n_rows, 0), dtype) if n_cols == 0 else tnp.eye(n_rows, n_cols, k, as_dtype(dtype))


def full(shape: Any, fill_value: Any, dtype: Any = None) -> Any:
    return tf.broadcast_to(asarray(fill_value, dtype), (shape,) if isinstance(shape, int) else shape)


def full_like(x: Any, /, fill_value: Any, dtype: Any = None) -> Any:
    x = tensor(x)
    return tf.broadcast_to(asarray(fill_value, dtype or x.dtype), tf.shape(x))


def astype(x: Any, dtype: Any, /) -> Any:
    return cast(tensor(x), as_dtype(dtype))


def finfo(type: Any, /) -> Any:
    return ml_dtypes.finfo(numpy_dtype(type))  # type: ignore[no-untyped-call]  # numpy.finfo fails at bfloat16


def isdtype(dtype: Any, kind: Any) -> bool:
    # numpy.isdtype finds no kind for bfloat16.
    own = numpy_dtype(dtype)
    return bool(numpy.isdtype(numpy.float32 if own == tf.bfloat16.as_numpy_dtype else own, kind))


# --- shapes --------------------------------------------------------------------------------------


def concat(arrays: Sequence[Any], /, axis: int | None = 0) -> Any:
    if axis is None:
        return tf.concat([tf.reshape(each, (-1,)) for each in same(*arrays)], 0)
    return tf.concat(same(*arrays), axis)


def expand_dims(x: Any, /, axis: int) -> Any:
    return tf.expand_dims(tensor(x), axis)


def flip(x: Any, /, axis: Any = None) -> Any:
    x = tensor(x)
    return tf.reverse(x, composed.axes_of(axis, x.shape.rank))


def permute_dims(x: Any, /, axes: Any) -> Any:
    x = tensor(x)
    return tf.transpose(x, composed.axes_of(tuple(axes), x.shape.rank))


def repeat(x: Any, repeats: Any, /, axis: int | None = None) -> Any:
    x = tensor(x)
    x, axis = (tf.reshape(x, (-1,)), 0) if axis is None else (x, axis)
    # tnp.repeat (2.21) needs the values of repeats while it traces a graph, and has no uint16.
    return indexing.take(x, tf.repeat(tf.range(size(x, axis)), tf.cast(repeats, tf.int32)), axis)


def reshape(x: Any, /, shape: Any) -> Any:
    return tf.reshape(tensor(x), (shape,) if isinstance(shape, int) else shape)


def roll(x: Any, /, shift: Any, axis: Any = None) -> Any:
    x = tensor(x)
    if axis is None:
        return tf.reshape(tf.roll(tf.reshape(x, (-1,)), shift, 0), tf.shape(x))
    # Along a negative axis, tf.roll (2.21) rolls the batch of tf.vectorized_map.
    axes = composed.axes_of(axis, x.shape.rank)
    return tf.roll(x, shift if isinstance(shift, tuple) else [shift] * len(axes), axes)


def squeeze(x: Any, /, axis: Any) -> Any:
    x = tensor(x)
    axes = composed.axes_of(axis, x.shape.rank)
    return tf.squeeze(x, axes) if axes else x  # tf.squeeze (2.21) with no axes drops all of size one


def stack(arrays: Sequence[Any], /, axis: int = 0) -> Any:
    return tf.stack(same(*arrays), axis)


def tile(x: Any, repetitions: Any, /) -> Any:
    return tnp.tile(tensor(x), repetitions)


def tril(x: Any, /, k: int = 0) -> Any:
    x = tensor(x)
    return tf.where(_places_right(x) <= k, x, tf.zeros_like(x))


def triu(x: Any, /, k: int = 0) -> Any:
    x = tensor(x)
    return tf.where(_places_right(x) >= k, x, tf.zeros_like(x))


def _places_right(x: Any) -> Any:
    """Returns how far each place of a matrix is to the right of the diagonal."""
    return tf.range(size(x, -1)) - tf.range(size(x, -2))[:, None]


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    return tuple(tf.unstack(tensor(x), axis=axis))


# --- reductions ----------------------------------------------------------------------------------


def all(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    return tf.reduce_all(cast(tensor(x), tf.bool), axis, keepdims)


def any(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    return tf.reduce_any(cast(tensor(x), tf.bool), axis, keepdims)


def _summed(x: Any) -> Any:
    """Returns `x` as a tensor in the dtype of its sum: 64 bits for integers."""
    x = tensor(x)
    return tf.cast(x, tf.int64) if x.dtype.is_integer or x.dtype.is_bool else x


def cumulative_sum(x: Any, /, *, axis: int | None = None) -> Any:
    x = _summed(x)
    return tf.cumsum(x, composed.axis_of(axis, x.shape.rank))


def mean(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    x = tensor(x)
    return tf.reduce_mean(x if x.dtype.is_floating or x.dtype.is_complex else cast(x, tf.float64), axis, keepdims)


def prod(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    x = _summed(x)
    if x.dtype.is_integer:
        return tf.reduce_prod(x, axis, keepdims)
    # The second derivative of tf.reduce_prod (2.21) is wrong where a number is zero.
    for each in sorted(composed.axes_of(axis, x.shape.rank), reverse=True):
        rows = tnp.moveaxis(x, each, 0)
        if rows.shape[0] is None:
            x = tf.foldl(tf.multiply, rows, tf.ones(tf.shape(rows)[1:], x.dtype))
        elif rows.shape[0] == 0:
            x = tf.ones(tf.shape(rows)[1:], x.dtype)
        else:
            x = composed.product(rows, rows.shape[0], lambda parts: tf.concat(parts, 0))
        x = tf.expand_dims(x, each) if keepdims else x
    return x


def std(x: Any, /, axis: Any = None, *, correction: float = 0, keepdims: bool = False) -> Any:
    return tf.sqrt(var(x, axis, correction=correction, keepdims=keepdims))


def sum(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    return tf.reduce_sum(_summed(x), axis, keepdims)


def var(x: Any, /, axis: Any = None, *, correction: float = 0, keepdims: bool = False) -> Any:
    x = tensor(x)
    centred = x - mean(x, axis, keepdims=True)
    # Not the square of tf.abs (2.21), whose second derivative is 0 where both are 0.
    total = tf.reduce_sum(tf.math.real(centred * tf.math.conj(centred)), axis, keepdims)
    count = tf.size(x, tf.int64) // tf.maximum(tf.size(total, tf.int64), 1)
    return total / (tf.cast(count, total.dtype) - tf.cast(correction, total.dtype))


# --- linear algebra and the rest -----------------------------------------------------------------

matmul, matrix_transpose, tensordot, vecdot = (
    linalg.matmul,
    linalg.matrix_transpose,
    linalg.tensordot,
    linalg.vecdot,
)

unconverted(sys.modules[__name__], beyond, elementwise, indexing, linalg, promoted)

namespace = table.Namespace(
    tnp,
    *map(table.defined, (promoted, elementwise, indexing, beyond, sys.modules[__name__])),
    {"bool": tf.bool, "nan": math.nan, "sum_to": beyond.sum_to},
    linalg=table.Namespace(tf.linalg, table.defined(linalg)),
)
