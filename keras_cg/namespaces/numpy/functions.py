"""`keras_cg.ops` on NumPy: `autograd.numpy`, and compositions where autograd has no right gradient.

For some functions of the table autograd (1.9) has no gradient, or one for some arguments only, or a wrong one. This
module composes them from functions whose gradient is right, as `linalg` does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import autograd.numpy as anp
import numpy
from autograd.extend import Box

from keras_cg.namespaces import composed, table
from keras_cg.namespaces.numpy import beyond, linalg

broadcast_to = linalg.broadcast_to

# --- elementwise ---------------------------------------------------------------------------------

# autograd (1.8) has no gradients of these by the names of the standard.
acos, asin, asinh = anp.arccos, anp.arcsin, anp.arcsinh
atan, atanh, atan2 = anp.arctan, anp.arctanh, anp.arctan2

# The derivatives of autograd (1.9): that of a complex acosh has the wrong sign where the real part is negative, that of
# tanh divides by the square of the hyperbolic cosine, which overflows, and that of a real abs by the absolute value.
_acosh = beyond.elementwise(numpy.arccosh, lambda x: 1 / (anp.sqrt(x - 1) * anp.sqrt(x + 1)))
_tanh = beyond.elementwise(numpy.tanh, lambda x: 4 * beyond.sigmoid(2 * x) * beyond.sigmoid(-2 * x))
_abs = beyond.elementwise(numpy.abs, anp.sign)


def abs(x: Any, /) -> Any:
    return anp.abs(x) if anp.iscomplexobj(x) else _abs(x)


def acosh(x: Any, /) -> Any:
    return _acosh(x) if anp.iscomplexobj(x) else anp.arccosh(x)


def tanh(x: Any, /) -> Any:
    return anp.tanh(x) if anp.iscomplexobj(x) else _tanh(x)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    # autograd (1.9) differentiates by `x` only, and only if both bounds are positional arguments.
    if not any(isinstance(each, Box) for each in (x, min, max)):
        return numpy.clip(x, min, max)
    if min is not None:
        x = where(anp.less(x, min), min, x)
    return x if max is None else where(anp.greater(x, max), max, x)


def hypot(x1: Any, x2: Any, /) -> Any:
    if not isinstance(x1, Box) and not isinstance(x2, Box):
        return numpy.hypot(x1, x2)
    return composed.hypot(namespace, linalg.constant, x1, x2)


def pow(x1: Any, x2: Any, /) -> Any:
    if not isinstance(x2, Box):
        return anp.power(x1, x2)
    return composed.power(namespace, linalg.constant, anp.power, asarray(x1), x2)


def sign(x: Any, /) -> Any:
    """Divides complex numbers by their size, because autograd (1.9) has no gradient of their sign."""
    if not isinstance(x, Box) or not anp.iscomplexobj(x):
        return anp.sign(x)
    size = anp.abs(x)
    return x / anp.where(size == 0, 1.0, size)


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    # autograd (1.9) assumes that x1 and x2 have the shape of the result. A Python number has no say in the dtype.
    shape = numpy.broadcast_shapes(*map(anp.shape, (condition, x1, x2)))
    parts = [broadcast_to(each, shape) if isinstance(each, Box) else each for each in (x1, x2)]
    if int in map(type, parts):
        # numpy.where (2.4) lets an integer that the dtype of the other one does not hold wrap.
        kind = numpy.result_type(*map(linalg.constant, parts))
        parts = [numpy.asarray(each, kind) if type(each) is int else each for each in parts]
    return anp.where(linalg.constant(condition), *parts)


# --- creation and data types ---------------------------------------------------------------------


def astype(x: Any, dtype: Any, /) -> Any:
    # autograd (1.9) differentiates a cast to integers as if it were the identity.
    if not isinstance(x, Box) or numpy.dtype(dtype).kind in "biu":
        return numpy.astype(numpy.asarray(linalg.constant(x)), numpy.dtype(dtype))
    if numpy.dtype(dtype).kind == "c" and not anp.iscomplexobj(x):
        # The sum has a real gradient for `x`, where that of a cast is complex.
        x = anp.add(x, numpy.zeros((), dtype))
    return x.astype(numpy.dtype(dtype))  # not anp.astype, of which autograd (1.8) has no gradient


def asarray(obj: Any, /, dtype: Any = None) -> Any:
    if isinstance(obj, (list, tuple)):
        obj = anp.array(obj)  # in which there may be boxes
    if not isinstance(obj, Box):
        return numpy.asarray(obj, dtype=dtype)
    return obj if dtype is None else astype(obj, dtype)


def full_like(x: Any, /, fill_value: Any, dtype: Any = None) -> Any:
    if not isinstance(fill_value, Box):
        return numpy.full_like(linalg.constant(x), fill_value, dtype=dtype)
    return astype(broadcast_to(fill_value, anp.shape(x)), dtype or anp.result_type(x))


def finfo(type: Any, /) -> Any:
    return numpy.finfo(table.dtype_of(type))


def isdtype(dtype: Any, kind: Any) -> bool:
    return bool(numpy.isdtype(numpy.dtype(dtype), kind))


# --- shapes --------------------------------------------------------------------------------------


def concat(arrays: Sequence[Any], /, axis: int | None = 0) -> Any:
    if axis is None:
        return anp.concatenate([anp.reshape(each, (-1,)) for each in arrays])
    return anp.concatenate(arrays, axis)


def flip(x: Any, /, axis: Any = None) -> Any:
    flipped = composed.axes_of(axis, anp.ndim(x))
    return x[tuple(slice(None, None, -1 if each in flipped else None) for each in range(anp.ndim(x)))]


def permute_dims(x: Any, /, axes: Any) -> Any:
    # autograd (1.9) inverts the axes by sorting them, which is wrong for negative ones.
    return anp.transpose(x, composed.axes_of(tuple(axes), anp.ndim(x)))


def repeat(x: Any, repeats: Any, /, axis: int | None = None) -> Any:
    # autograd's gradient (1.9) is wrong along a negative axis, and missing for an array of repeats.
    x, axis = (anp.reshape(x, (-1,)), 0) if axis is None else (x, axis)
    return take(x, numpy.repeat(numpy.arange(x.shape[axis]), repeats), axis=axis)


def roll(x: Any, /, shift: Any, axis: Any = None) -> Any:
    if not isinstance(axis, tuple):
        return anp.roll(x, shift, axis)
    shifts = shift if isinstance(shift, tuple) else (shift,) * len(axis)
    for each, along in zip(shifts, axis, strict=True):
        x = anp.roll(x, each, along)
    return x


def tile(x: Any, repetitions: Any, /) -> Any:
    # autograd's gradient (1.9) is wrong where there are more axes than repetitions.
    times = (repetitions,) if isinstance(repetitions, int) else tuple(repetitions)
    missing = len(times) - anp.ndim(x)
    times = (*(1,) * -missing, *times)
    x = anp.reshape(x, (*(1,) * missing, *anp.shape(x)))
    for axis, count in enumerate(times):
        x = anp.concatenate([x] * count, axis) if count else x[(slice(None),) * axis + (slice(0),)]
    return x


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    rows = anp.moveaxis(x, axis, 0)
    return tuple(rows[place] for place in range(rows.shape[0]))


def matrix_transpose(x: Any, /) -> Any:
    return anp.swapaxes(x, -1, -2)


# --- indexing and sorting ------------------------------------------------------------------------


def take(x: Any, indices: Any, /, axis: int | None = None) -> Any:
    if axis is None:
        return anp.reshape(x, (-1,))[indices]
    (axis,) = composed.axes_of(axis, anp.ndim(x))
    return x[(slice(None),) * axis + (indices,)]


def take_along_axis(x: Any, indices: Any, /, axis: int = -1) -> Any:
    (axis,) = composed.axes_of(axis, anp.ndim(x))
    places: list[Any] = list(numpy.ix_(*map(numpy.arange, anp.shape(x))))
    places[axis] = indices
    return x[tuple(places)]


def argsort(x: Any, /, axis: int = -1, *, descending: bool = False) -> Any:
    x = linalg.constant(x)
    if not descending:
        return numpy.argsort(x, axis=axis, stable=True)
    # The array is reversed before and after sorting, so that equal elements keep their order.
    found = numpy.argsort(numpy.flip(x, axis), axis=axis, stable=True)
    return numpy.flip(x.shape[axis] - 1 - found, axis)


def sort(x: Any, /, axis: int = -1, *, descending: bool = False) -> Any:
    return take_along_axis(x, argsort(x, axis, descending=descending), axis)


# --- reductions ----------------------------------------------------------------------------------


def cumulative_sum(x: Any, /, *, axis: int | None = None) -> Any:
    return anp.cumsum(x, composed.axis_of(axis, anp.ndim(x)))


def prod(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    if not isinstance(x, Box):
        return numpy.prod(x, axis, keepdims=keepdims)
    # autograd (1.9) divides by each element, so its gradient is NaN where an element is zero.
    count = anp.ndim(x)
    gone = composed.axes_of(axis, count)
    left = [each for each in range(count) if each not in gone]
    rows = anp.reshape(anp.transpose(x, [*gone, *left]), (-1, *[x.shape[each] for each in left]))
    total = composed.product(rows, len(rows), anp.concatenate) if len(rows) else anp.ones_like(anp.sum(rows, 0))
    return anp.reshape(total, [1 if each in gone else x.shape[each] for each in range(count)]) if keepdims else total


# autograd's gradient (1.9) reads the correction by NumPy's older name.


def std(x: Any, /, axis: Any = None, *, correction: float = 0, keepdims: bool = False) -> Any:
    return anp.std(x, axis=axis, ddof=correction, keepdims=keepdims)


def var(x: Any, /, axis: Any = None, *, correction: float = 0, keepdims: bool = False) -> Any:
    return anp.var(x, axis=axis, ddof=correction, keepdims=keepdims)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return anp.sum(anp.conj(x1) * x2, axis=axis, dtype=anp.result_type(x1, x2))


namespace = table.Namespace(
    anp,
    table.defined(beyond),
    table.defined(sys.modules[__name__]),
    linalg=table.Namespace(anp.linalg, table.defined(linalg)),
)
