"""What `keras_cg.ops` is on TensorFlow: `tf.experimental.numpy`, with what the standard has beside it.

Much of that namespace (TensorFlow 2.21) takes whole numbers only after a switch for the whole process, and has other
names than the standard: here are those functions, of TensorFlow's own operations. Numbers of Python have no say in a
dtype, as there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import tensorflow as tf

from keras_cg.namespaces import composed, messages, standard
from keras_cg.namespaces.tensorflow import fft, linalg, promoted
from keras_cg.namespaces.tensorflow.promoted import as_dtype, cast, same, size, summed, tensor, unconverted

tnp = tf.experimental.numpy

# --- elementwise ---------------------------------------------------------------------------------

# Those of tnp that take whole numbers as well, of which bfloat16 is one to it, and no kind of number.
floating = {
    name: promoted.with_bfloat16(getattr(tnp, name))
    for name in (
        *("arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "cbrt", "cos", "cosh", "exp", "exp2", "expm1"),
        *("log", "log10", "log1p", "log2", "logaddexp", "logaddexp2", "sin", "sinc", "sinh", "sqrt", "tan", "tanh"),
    )
}
acos, acosh, asin = floating["arccos"], floating["arccosh"], floating["arcsin"]
asinh, atan, atanh = floating["arcsinh"], floating["arctan"], floating["arctanh"]
atan2 = tnp.arctan2


def bitwise_invert(x: Any, /) -> Any:
    x = tensor(x)
    return tf.logical_not(x) if x.dtype.is_bool else tf.bitwise.invert(x)


def bitwise_left_shift(x1: Any, x2: Any, /) -> Any:
    return tf.bitwise.left_shift(*same(x1, x2))


def bitwise_right_shift(x1: Any, x2: Any, /) -> Any:
    return tf.bitwise.right_shift(*same(x1, x2))


def ceil(x: Any, /) -> Any:
    return _rounded(tf.math.ceil, x)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    x = tensor(x)
    low, high = (None if bound is None else tf.cast(tensor(bound, x.dtype), x.dtype) for bound in (min, max))
    x = x if low is None else tf.maximum(x, low)
    return x if high is None else tf.minimum(x, high)


def copysign(x1: Any, x2: Any, /) -> Any:
    x1, x2 = same(x1, x2)
    return tf.where(signbit(x2), -tf.abs(x1), tf.abs(x1))


def floor(x: Any, /) -> Any:
    return _rounded(tf.math.floor, x)


def floor_divide(x1: Any, x2: Any, /) -> Any:
    x1, x2 = same(x1, x2)
    whole = tf.math.floordiv(x1, x2)
    if not x1.dtype.is_floating:
        return whole
    # Nothing goes into what is infinite, but as if it did one step below zero; and into an infinity nothing goes whole.
    below = tf.where((x1 != 0) & (tf.sign(x1) != tf.sign(x2)), -tf.ones_like(whole), tf.zeros_like(whole))
    whole = tf.where(tf.math.is_inf(x2) & tf.math.is_finite(x1), below, whole)
    return tf.where(tf.math.is_inf(x1) & (x2 != 0), tf.constant(numpy.nan, whole.dtype), whole)


def hypot(x1: Any, x2: Any, /) -> Any:
    x1, x2 = map(tf.abs, same(x1, x2))
    # Of squares of a quotient, which neither overflow nor vanish; and no zero and no infinity is divided by.
    most, least = tf.maximum(x1, x2), tf.minimum(x1, x2)
    divisor = tf.where((most == 0) | tf.math.is_inf(most), tf.ones_like(most), most)
    length = most * tf.sqrt(1 + (least / divisor) ** 2)
    is_infinite = tf.math.is_inf(x1) | tf.math.is_inf(x2)
    return tf.where(is_infinite, tf.constant(math.inf, length.dtype), length)


def isfinite(x: Any, /) -> Any:
    return _of_parts(tf.math.is_finite, x, True, tf.logical_and)


def isinf(x: Any, /) -> Any:
    return _of_parts(tf.math.is_inf, x, False, tf.logical_or)


def isnan(x: Any, /) -> Any:
    return _of_parts(tf.math.is_nan, x, False, tf.logical_or)


def _of_parts(asked: Callable[[Any], Any], x: Any, whole: bool, joined: Callable[[Any, Any], Any]) -> Any:
    """What a function of floats says of `x`, which may be complex; `whole` if it has whole numbers."""
    x = tensor(x)
    if x.dtype.is_complex:
        return joined(asked(tf.math.real(x)), asked(tf.math.imag(x)))
    return asked(x) if x.dtype.is_floating else tf.fill(tf.shape(x), whole)


def nextafter(x1: Any, x2: Any, /) -> Any:
    return tf.math.nextafter(*same(x1, x2))


def pow(x1: Any, x2: Any, /) -> Any:
    x1, x2 = same(x1, x2)
    if not x1.dtype.is_unsigned:
        return tf.pow(x1, x2)
    # TensorFlow (2.21) has no power of these; the bits are the same.
    return tf.cast(tf.pow(tf.cast(x1, tf.int64), tf.cast(x2, tf.int64)), x1.dtype)


def round(x: Any, /) -> Any:
    x = tensor(x)
    if x.dtype.is_complex:
        return tf.complex(tf.round(tf.math.real(x)), tf.round(tf.math.imag(x)))
    return _rounded(tf.round, x)


def signbit(x: Any, /) -> Any:
    x = tensor(x)
    # One over a zero has its sign, which no comparison sees.
    return tf.where(x == 0, tf.math.reciprocal(x) < 0, x < 0) if x.dtype.is_floating else x < 0


def trunc(x: Any, /) -> Any:
    return _rounded(lambda x: tf.where(x < 0, tf.math.ceil(x), tf.math.floor(x)), x)


def _rounded(function: Callable[[Any], Any], x: Any) -> Any:
    x = tensor(x)
    return function(x) if x.dtype.is_floating else x


# --- creation and data types ---------------------------------------------------------------------


def _placed(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which takes a device as well."""

    def call(*args: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
        kwargs |= {} if dtype is None else {"dtype": dtype}
        if device is None:
            return function(*args, **kwargs)
        with tf.device(device):
            return function(*args, **kwargs)

    return call


arange, empty, empty_like, full = map(_placed, (tnp.arange, tnp.empty, tnp.empty_like, tnp.full))
ones, ones_like, zeros, zeros_like = map(_placed, (tnp.ones, tnp.ones_like, tnp.zeros, tnp.zeros_like))
eye, full_like = map(_placed, (tnp.eye, tnp.full_like))


@_placed
def asarray(obj: Any, /, dtype: Any = None, *, copy: bool | None = None) -> Any:
    made = tnp.asarray(obj, dtype)
    return tf.identity(made) if copy else made


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    if isinstance(x, tf.Tensor):
        return tf.identity(x)
    return tf.experimental.dlpack.from_dlpack(x.__dlpack__())


@_placed
def linspace(start: Any, stop: Any, /, num: int = 50, *, dtype: Any = None, endpoint: bool = True) -> Any:
    line = tnp.linspace(start, stop, num, endpoint=endpoint)
    return line if dtype is None else tf.cast(line, as_dtype(dtype))


@_placed
def astype(x: Any, dtype: Any, /, *, copy: bool = True) -> Any:
    x, kind = tensor(x), as_dtype(dtype)
    return tf.identity(x) if copy and x.dtype == kind else cast(x, kind)


def can_cast(from_: Any, to: Any, /) -> bool:
    return bool(numpy.can_cast(_numpy_dtype(from_), _numpy_dtype(to)))


def finfo(type: Any, /) -> Any:
    return numpy.finfo(_numpy_dtype(type))


def iinfo(type: Any, /) -> Any:
    return numpy.iinfo(_numpy_dtype(type))


def _numpy_dtype(value: Any) -> Any:
    return as_dtype(value if isinstance(value, type) else getattr(value, "dtype", value)).as_numpy_dtype


def isdtype(dtype: Any, kind: Any) -> bool:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    # bfloat16, which NumPy has not, is of no kind to it.
    own = _numpy_dtype(dtype)
    own = numpy.float32 if own == tf.bfloat16.as_numpy_dtype else own
    is_kind = [each for each in kinds if isinstance(each, str) and (each == "bool" or each not in standard.DTYPES)]
    others = [as_dtype(each) for each in kinds if each not in is_kind]
    return as_dtype(dtype) in others or bool(is_kind and numpy.isdtype(numpy.dtype(own), tuple(is_kind)))


def result_type(*arrays_and_dtypes: Any) -> Any:
    kinds = [each if type(each) in standard.NUMBERS else _numpy_dtype(each) for each in arrays_and_dtypes]
    return tf.as_dtype(numpy.result_type(*kinds))


# --- manipulation --------------------------------------------------------------------------------


def concat(arrays: Sequence[Any], /, axis: int | None = 0) -> Any:
    if axis is None:
        return tf.concat([tf.reshape(each, (-1,)) for each in same(*arrays)], 0)
    return tf.concat(same(*arrays), axis)


def expand_dims(x: Any, /, axis: int = 0) -> Any:
    return tf.expand_dims(tensor(x), axis)


def flip(x: Any, /, axis: Any = None) -> Any:
    x = tensor(x)
    axes = range(x.shape.rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tf.reverse(x, list(axes))


def permute_dims(x: Any, /, axes: Any) -> Any:
    return tf.transpose(tensor(x), axes)


def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Any:
    return tf.reshape(tensor(x), (shape,) if isinstance(shape, int) else shape)


def unstack(x: Any, /, axis: int = 0) -> tuple[Any, ...]:
    x = tensor(x)
    if x.shape[axis] is None:
        raise messages.no_op_here("unstack", "tensorflow", "needs an axis whose size is known", _KNOWN)
    return tuple(tf.unstack(x, axis=axis))


_KNOWN = "give the tf.function an input_signature with that size, or set it with tf.ensure_shape."

# --- indexing, sets and sorting ------------------------------------------------------------------


def argmax(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Any:
    return _place(tf.argmax, x, axis, keepdims)


def argmin(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Any:
    return _place(tf.argmin, x, axis, keepdims)


def _place(function: Callable[..., Any], x: Any, axis: int | None, keepdims: bool) -> Any:
    x = tensor(x)
    if axis is None:
        found = function(tf.reshape(x, (-1,)))
        return tf.reshape(found, [1] * x.shape.rank) if keepdims else found
    found = function(x, axis)
    return tf.expand_dims(found, axis) if keepdims else found


def count_nonzero(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    return tf.math.count_nonzero(tensor(x), axis, keepdims)


def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Any:
    x1, x2 = same(x1, x2)
    x1 = x1 if sorter is None else tf.gather(x1, sorter)
    found = tf.searchsorted(x1, tf.reshape(x2, (-1,)), side, tf.int64)
    return tf.reshape(found, tf.shape(x2))


def take(x: Any, indices: Any, /, axis: int | None = None) -> Any:
    x, indices = tensor(x), tensor(indices)
    x, axis = (tf.reshape(x, (-1,)), 0) if axis is None else (x, axis)
    return tf.gather(x, _from_the_start(indices, x, axis), axis=axis)


def take_along_axis(x: Any, indices: Any, /, axis: int = -1) -> Any:
    x, indices = tensor(x), tensor(indices)
    return tnp.take_along_axis(x, _from_the_start(indices, x, axis), axis)


def _from_the_start(indices: Any, x: Any, axis: int) -> Any:
    return tf.where(indices < 0, indices + tf.cast(size(x, axis), indices.dtype), indices)


def argsort(x: Any, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Any:
    order = tf.argsort(tensor(x), axis, "DESCENDING" if descending else "ASCENDING", stable)
    return tf.cast(order, tf.int64)


def sort(x: Any, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Any:
    return tf.sort(tensor(x), axis, "DESCENDING" if descending else "ASCENDING")


def unique_all(x: Any, /) -> standard.UniqueAllResult:
    x = tensor(x)
    flat = tf.reshape(x, (-1,))
    order = argsort(flat)
    row = tf.gather(flat, order)
    # The first of each run of equal ones; since the sort is stable, it is the first in `x`, too.
    is_first = tf.concat([tf.ones_like(row[:1], tf.bool), row[1:] != row[:-1]], 0)
    run = tf.cumsum(tf.cast(is_first, tf.int64)) - 1
    counts = tf.math.unsorted_segment_sum(tf.ones_like(run), run, tf.reduce_sum(tf.cast(is_first, tf.int64)))
    inverse = tf.scatter_nd(order[:, None], run, tf.shape(run, tf.int64))
    places = tf.boolean_mask(order, is_first)
    return standard.UniqueAllResult(tf.gather(flat, places), places, tf.reshape(inverse, tf.shape(x)), counts)


def unique_counts(x: Any, /) -> standard.UniqueCountsResult:
    every = unique_all(x)
    return standard.UniqueCountsResult(every.values, every.counts)


def unique_inverse(x: Any, /) -> standard.UniqueInverseResult:
    every = unique_all(x)
    return standard.UniqueInverseResult(every.values, every.inverse_indices)


def unique_values(x: Any, /) -> Any:
    return unique_all(x).values


def where(condition: Any, x1: Any = None, x2: Any = None, /) -> Any:
    if x1 is None and x2 is None:
        return tnp.nonzero(condition)
    return tf.where(tf.cast(tensor(condition), tf.bool), *same(x1, x2))


# --- statistics and utilities --------------------------------------------------------------------


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


def prod(x: Any, /, axis: Any = None, *, dtype: Any = None, keepdims: bool = False) -> Any:
    return tf.reduce_prod(summed(x, dtype), axis, keepdims)


def std(x: Any, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
    return tf.sqrt(var(x, axis, correction=correction, keepdims=keepdims))


def sum(x: Any, /, axis: Any = None, *, dtype: Any = None, keepdims: bool = False) -> Any:
    return tf.reduce_sum(summed(x, dtype), axis, keepdims)


def var(x: Any, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
    x = tensor(x)
    square = tf.abs(x - tf.reduce_mean(x, axis, True)) ** 2
    total = tf.reduce_sum(square, axis, keepdims)
    count = tf.size(x, tf.int64) // tf.maximum(tf.size(total, tf.int64), 1)
    return total / (tf.cast(count, total.dtype) - tf.cast(correction, total.dtype))


# --- linear algebra and the rest -----------------------------------------------------------------

matmul, matrix_transpose, tensordot, vecdot = (
    linalg.matmul,
    linalg.matrix_transpose,
    linalg.tensordot,
    linalg.vecdot,
)

unconverted(sys.modules[__name__], fft, linalg, promoted)

namespace = standard.Namespace(
    tnp,
    floating,
    standard.defined(sys.modules[__name__]),
    {"bool": tf.bool, "nan": math.nan},
    linalg=standard.Namespace(tf.linalg, standard.defined(linalg)),
    fft=standard.Namespace(tf.signal, standard.defined(fft)),
)
