"""`keras_cg.ops` on TensorFlow: `tf.experimental.numpy`, and TensorFlow's functions where it differs from the standard.

Many functions of that namespace (TensorFlow 2.21) accept integers only after a switch for the whole process, or have
other names than the standard. Python numbers have no say in a dtype.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy
import tensorflow as tf

from keras_cg.namespaces import composed, messages, standard
from keras_cg.namespaces.tensorflow import beyond, elementwise, fft, linalg, promoted, searching
from keras_cg.namespaces.tensorflow.promoted import (
    as_dtype,
    as_truth,
    cast,
    in_64_bits,
    number,
    numpy_dtype,
    rolled,
    same,
    size,
    summed,
    tensor,
    unconverted,
)

tnp = tf.experimental.numpy

# --- creation and data types ---------------------------------------------------------------------


def _placed(function: Callable[..., Any]) -> Any:
    """Adds the argument `device` to a function."""

    @functools.wraps(function)
    def call(*args: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
        kwargs |= {} if dtype is None else {"dtype": dtype}
        if device is None:
            return function(*args, **kwargs)
        with tf.device(device):
            return function(*args, **kwargs)

    return standard.with_signature(call, function.__name__)


empty, empty_like, ones, ones_like = map(_placed, (tnp.empty, tnp.empty_like, tnp.ones, tnp.ones_like))
zeros, zeros_like = map(_placed, (tnp.zeros, tnp.zeros_like))


@_placed
def arange(start: Any, /, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    bounds = (0, start, step) if stop is None else (start, stop, step)
    if not [True for each in bounds if tf.is_tensor(each)]:
        # tnp.arange (2.21) computes in float32, even if the dtype is float64.
        return tf.constant(numpy.arange(*bounds, dtype=None if dtype is None else numpy_dtype(dtype)))
    line = tf.range(*same(*bounds))
    return line if dtype is None else cast(line, as_dtype(dtype))


@_placed
def asarray(obj: Any, /, dtype: Any = None, *, copy: bool | None = None) -> Any:
    kind = None if dtype is None else as_dtype(dtype)
    if isinstance(obj, standard.NUMBERS):
        return number(obj, kind)
    array = tnp.asarray(obj, kind)
    return tf.identity(array) if copy else array


@_placed
def eye(n_rows: int, n_cols: int | None = None, /, k: int = 0, dtype: Any = "float64") -> Any:
    # tnp.eye (2.21) returns a square matrix where n_cols is 0.
    return zeros((n_rows, 0), dtype=dtype) if n_cols == 0 else tnp.eye(n_rows, n_cols, k, as_dtype(dtype))


@_placed
def full(shape: Any, fill_value: Any, dtype: Any = None) -> Any:
    return tf.broadcast_to(asarray(fill_value, dtype), (shape,) if isinstance(shape, int) else shape)


@_placed
def full_like(x: Any, /, fill_value: Any, dtype: Any = None) -> Any:
    x = tensor(x)
    return tf.broadcast_to(asarray(fill_value, dtype or x.dtype), tf.shape(x))


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    if isinstance(x, tf.Tensor):
        return tf.identity(x)
    return tf.experimental.dlpack.from_dlpack(x.__dlpack__())


def meshgrid(*arrays: Any, indexing: str = "xy") -> Any:
    return tnp.meshgrid(*arrays, indexing=indexing)


@_placed
def linspace(start: Any, stop: Any, /, num: int = 50, *, dtype: Any = None, endpoint: bool = True) -> Any:
    line = tnp.linspace(*same(start, stop, 1.0)[:2], num, endpoint=endpoint)
    return line if dtype is None else tf.cast(line, as_dtype(dtype))


@_placed
def astype(x: Any, dtype: Any, /, *, copy: bool = True) -> Any:
    x, kind = tensor(x), as_dtype(dtype)
    return tf.identity(x) if copy and x.dtype == kind else cast(x, kind)


def tril(x: Any, /, k: int = 0) -> Any:
    x = tensor(x)
    return tf.where(_places_right(x) <= k, x, tf.zeros_like(x))


def triu(x: Any, /, k: int = 0) -> Any:
    x = tensor(x)
    return tf.where(_places_right(x) >= k, x, tf.zeros_like(x))


def _places_right(x: Any) -> Any:
    """Returns how far each place of a matrix is to the right of the diagonal."""
    return tf.range(size(x, -1)) - tf.range(size(x, -2))[:, None]


def can_cast(from_: Any, to: Any, /) -> bool:
    return standard.can_cast(numpy_dtype(from_), numpy_dtype(to))


def finfo(type: Any, /) -> Any:
    return ml_dtypes.finfo(numpy_dtype(type))  # type: ignore[no-untyped-call]  # numpy.finfo fails at bfloat16


def iinfo(type: Any, /) -> Any:
    return numpy.iinfo(numpy_dtype(type))


def isdtype(dtype: Any, kind: Any) -> bool:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    # numpy.isdtype finds no kind for bfloat16.
    own = numpy_dtype(dtype)
    own = numpy.dtype("float32") if own == tf.bfloat16.as_numpy_dtype else own
    is_kind = [each for each in kinds if isinstance(each, str) and (each == "bool" or each not in standard.DTYPES)]
    others = [as_dtype(each) for each in kinds if each not in is_kind]
    return as_dtype(dtype) in others or bool(is_kind and numpy.isdtype(own, tuple(is_kind)))


# --- manipulation --------------------------------------------------------------------------------


def concat(arrays: Sequence[Any], /, axis: int | None = 0) -> Any:
    if axis is None:
        return tf.concat([tf.reshape(each, (-1,)) for each in same(*arrays)], 0)
    return tf.concat(same(*arrays), axis)


def expand_dims(x: Any, /, axis: int = 0) -> Any:
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
    return searching.take(x, tf.repeat(tf.range(size(x, axis)), tf.cast(repeats, tf.int32)), axis)


def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Any:
    return tf.reshape(tensor(x), (shape,) if isinstance(shape, int) else shape)


def roll(x: Any, /, shift: Any, axis: Any = None) -> Any:
    x = tensor(x)
    if axis is None:
        return tf.reshape(tf.roll(tf.reshape(x, (-1,)), shift, 0), tf.shape(x))
    return rolled(x, lambda axes: shift if isinstance(shift, tuple) else [shift] * len(axes), axis)


def squeeze(x: Any, /, axis: Any = None) -> Any:
    x = tensor(x)
    axes = None if axis is None else composed.axes_of(axis, x.shape.rank)
    return x if axes == () else tf.squeeze(x, axes)  # tf.squeeze (2.21) with no axes drops all of size one


def stack(arrays: Sequence[Any], /, axis: int = 0) -> Any:
    return tf.stack(same(*arrays), axis)


def tile(x: Any, repetitions: Any, /) -> Any:
    return in_64_bits(lambda x: tnp.tile(x, repetitions), tensor(x))


def unstack(x: Any, /, axis: int = 0) -> tuple[Any, ...]:
    x = tensor(x)
    if x.shape[axis] is None:
        raise messages.no_op_here("unstack", "tensorflow", "needs an axis whose size is known", _KNOWN)
    return tuple(tf.unstack(x, axis=axis))


_KNOWN = "give the tf.function an input_signature with that size, or set it with tf.ensure_shape."

# --- statistics and utilities --------------------------------------------------------------------


def all(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    return tf.reduce_all(as_truth(x), axis, keepdims)


def any(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    return tf.reduce_any(as_truth(x), axis, keepdims)


def cumulative_prod(x: Any, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False) -> Any:
    x, axis = _along(x, axis, dtype)
    count = x.shape[axis]
    if count is None:
        raise messages.no_op_here("cumulative_prod", "tensorflow", "needs an axis whose size is known", _KNOWN)
    total = composed.products(tnp.moveaxis(x, axis, 0), count, lambda parts: tf.concat(parts, 0))
    return _begun(tnp.moveaxis(total, 0, axis), axis, 1 if include_initial else None)


def cumulative_sum(x: Any, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False) -> Any:
    x, axis = _along(x, axis, dtype)
    return _begun(tf.cumsum(x, axis), axis, 0 if include_initial else None)


def _along(x: Any, axis: int | None, dtype: Any) -> tuple[Any, int]:
    x = summed(x, dtype)
    return x, composed.axis_of(axis, x.shape.rank)


def _begun(total: Any, axis: int, initial: int | None) -> Any:
    if initial is None:
        return total
    before = [[int(place == axis % total.shape.rank), 0] for place in range(total.shape.rank)]
    return tf.pad(total, before, constant_values=tf.constant(initial, total.dtype))


def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Any:
    parts = [each for each in (prepend, x, append) if each is not None]
    whole = tnp.moveaxis(concat(parts, axis=axis), axis, 0)
    for _ in range(n):
        whole = whole[1:] - whole[:-1]
    return tnp.moveaxis(whole, 0, axis)


def mean(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    x = tensor(x)
    if x.dtype.is_complex:
        # tf.reduce_mean (2.21) of an empty complex tensor is 0, not NaN.
        return tf.complex(*[tf.reduce_mean(part, axis, keepdims) for part in (tf.math.real(x), tf.math.imag(x))])
    return tf.reduce_mean(x if x.dtype.is_floating else cast(x, tf.float64), axis, keepdims)


def prod(x: Any, /, axis: Any = None, *, dtype: Any = None, keepdims: bool = False) -> Any:
    x = summed(x, dtype)
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


def std(x: Any, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
    return tf.sqrt(var(x, axis, correction=correction, keepdims=keepdims))


def sum(x: Any, /, axis: Any = None, *, dtype: Any = None, keepdims: bool = False) -> Any:
    return tf.reduce_sum(summed(x, dtype), axis, keepdims)


def var(x: Any, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
    x = tensor(x)
    square = tf.abs(x - mean(x, axis, keepdims=True)) ** 2
    total = tf.reduce_sum(square, axis, keepdims)
    count = tf.size(x, tf.int64) // tf.maximum(tf.size(total, tf.int64), 1)
    # A correction above the count divides by zero, as it does in NumPy.
    return total / tf.maximum(tf.cast(count, total.dtype) - tf.cast(correction, total.dtype), tf.zeros_like(total))


# --- linear algebra and the rest -----------------------------------------------------------------

matmul, matrix_transpose, tensordot, vecdot = (
    linalg.matmul,
    linalg.matrix_transpose,
    linalg.tensordot,
    linalg.vecdot,
)

unconverted(sys.modules[__name__], beyond, elementwise, fft, linalg, promoted, searching)

namespace = standard.Namespace(
    tnp,
    elementwise.of_floats,
    *map(standard.defined, (promoted, elementwise, searching, beyond)),
    standard.defined(sys.modules[__name__]),
    {"bool": tf.bool, "nan": math.nan, "sum_to": beyond.sum_to},
    linalg=standard.Namespace(tf.linalg, standard.defined(linalg)),
    fft=standard.Namespace(tf.signal, standard.defined(fft)),
)
