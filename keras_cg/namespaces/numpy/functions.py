"""`keras_cg.ops` on NumPy: `autograd.numpy`, and compositions where autograd has no right gradient.

NumPy has the whole standard since 2.1. But for some functions autograd (1.9) has no gradient, or one for some arguments
only, or a wrong one. This module composes them from functions whose gradient is right. `linalg` and `fft` do so, too.
"""

from __future__ import annotations

import functools
import math
import sys
import types
from collections.abc import Sequence
from typing import Any

import autograd.numpy as anp
import numpy
from autograd.extend import Box

from keras_cg.namespaces import composed, messages, standard
from keras_cg.namespaces.numpy import beyond, fft, linalg

# --- elementwise ---------------------------------------------------------------------------------


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    # autograd (1.9) differentiates by `x` only, and only if both bounds are positional arguments.
    if not any(isinstance(each, Box) for each in (x, min, max)):
        return numpy.clip(x, min, max)
    if min is not None:
        x = where(anp.less(x, min), min, x)
    return x if max is None else where(anp.greater(x, max), max, x)


def copysign(x1: Any, x2: Any, /) -> Any:
    if not isinstance(x1, Box):
        return numpy.copysign(x1, linalg.constant(x2))
    return where(anp.signbit(linalg.constant(x2)), -anp.abs(x1), anp.abs(x1))


def nextafter(x1: Any, x2: Any, /) -> Any:
    if isinstance(x1, Box) or isinstance(x2, Box):
        raise messages.no_op_here("nextafter", "numpy", "has no gradient", "cut it with keras_cg.ops.stop_gradient.")
    return numpy.nextafter(x1, x2)


def positive(x: Any, /) -> Any:
    return anp.negative(anp.negative(x)) if isinstance(x, Box) else numpy.positive(x)


def signbit(x: Any, /) -> Any:
    return numpy.signbit(linalg.constant(x))


def where(condition: Any, x1: Any = None, x2: Any = None, /) -> Any:
    if x1 is None and x2 is None:
        return anp.nonzero(condition)
    # autograd (1.9) assumes that x1 and x2 have the shape of the result. A Python number has no say in the dtype.
    shape = numpy.broadcast_shapes(*map(anp.shape, (condition, x1, x2)))
    parts = [broadcast_to(each, shape) if isinstance(each, Box) else each for each in (x1, x2)]
    return anp.where(linalg.constant(condition), *parts)


# --- creation and data types ---------------------------------------------------------------------


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    # autograd (1.9) differentiates a cast to integers as if it were the identity.
    if not isinstance(x, Box) or numpy.dtype(dtype).kind in "biu":
        return numpy.astype(numpy.asarray(linalg.constant(x)), numpy.dtype(dtype), copy=copy, device=device)
    if numpy.dtype(dtype).kind == "c" and not anp.iscomplexobj(x):
        # The sum has a real gradient for `x`, where that of a cast is complex.
        x = anp.add(x, numpy.zeros((), dtype))
    return anp.astype(x, numpy.dtype(dtype))


def asarray(obj: Any, /, dtype: Any = None, *, device: Any = None, copy: bool | None = None) -> Any:
    if isinstance(obj, (list, tuple)):
        obj = anp.array(obj)  # in which there may be boxes
    if not isinstance(obj, Box):
        return numpy.asarray(obj, dtype=dtype, device=device, copy=copy)
    return obj if dtype is None else astype(obj, dtype)


def full_like(x: Any, /, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Any:
    if not isinstance(fill_value, Box):
        return anp.full_like(x, fill_value, dtype=dtype, device=device)
    return astype(broadcast_to(fill_value, anp.shape(x)), dtype or anp.result_type(x))


def linspace(
    start: Any, stop: Any, /, num: int = 50, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Any:
    if not isinstance(start, Box) and not isinstance(stop, Box):
        return numpy.linspace(start, stop, num, dtype=dtype, endpoint=endpoint)
    line = start + (stop - start) * numpy.linspace(0.0, 1.0, num, endpoint=endpoint)
    return line if dtype is None else astype(line, dtype)


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Any]:
    order = [1, 0] if indexing == "xy" and len(arrays) > 1 else [0, 1]
    places = [*order, *range(2, len(arrays))][: len(arrays)]
    columns = [
        anp.reshape(each, [-1 if axis == place else 1 for axis in range(len(arrays))])
        for place, each in zip(places, arrays, strict=True)
    ]
    return list(broadcast_arrays(*columns))


def can_cast(from_: Any, to: Any, /) -> bool:
    return standard.can_cast(_dtype(from_), _dtype(to))


def finfo(type: Any, /) -> Any:
    return numpy.finfo(_dtype(type))


def iinfo(type: Any, /) -> Any:
    return numpy.iinfo(_dtype(type))


def _dtype(value: Any) -> numpy.dtype[Any]:
    """Returns the dtype of an array, or the dtype that a name or a type of NumPy stands for."""
    return numpy.dtype(value if isinstance(value, type) else getattr(value, "dtype", value))


def isdtype(dtype: Any, kind: Any) -> bool:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return bool(numpy.isdtype(numpy.dtype(dtype), tuple(map(_kind, kinds))))


def _kind(kind: Any) -> Any:
    # autograd (1.9) has types of its own for integers, which NumPy's function does not know.
    is_kind = isinstance(kind, str) and (kind == "bool" or kind not in standard.DTYPES)
    return kind if is_kind else numpy.dtype(kind)


# --- manipulation --------------------------------------------------------------------------------


def broadcast_arrays(*arrays: Any) -> tuple[Any, ...]:
    shape = numpy.broadcast_shapes(*map(anp.shape, arrays))
    return tuple(broadcast_to(each, shape) for each in arrays)


broadcast_to = linalg.broadcast_to


def concat(arrays: Sequence[Any], /, axis: int | None = 0) -> Any:
    if axis is None:
        return anp.concatenate([anp.reshape(each, (-1,)) for each in arrays])
    return anp.concatenate(arrays, axis)


def expand_dims(x: Any, /, axis: Any = 0) -> Any:
    return anp.expand_dims(x, axis)


def flip(x: Any, /, axis: Any = None) -> Any:
    flipped = composed.axes_of(axis, anp.ndim(x))
    return x[tuple(slice(None, None, -1 if each in flipped else None) for each in range(anp.ndim(x)))]


def permute_dims(x: Any, /, axes: Any) -> Any:
    # autograd (1.9) inverts the axes by sorting them, which is wrong for negative ones.
    return anp.transpose(x, composed.axes_of(tuple(axes), anp.ndim(x)))


def repeat(x: Any, repeats: Any, /, axis: int | None = None) -> Any:
    # autograd's gradient (1.9) is wrong along a negative axis, and missing for an array of repeats.
    if not isinstance(x, Box):
        return numpy.repeat(x, repeats, axis)
    x, axis = (anp.reshape(x, (-1,)), 0) if axis is None else (x, axis)
    return take(x, numpy.repeat(numpy.arange(x.shape[axis]), repeats), axis=axis)


def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Any:
    return anp.reshape(x, shape) if isinstance(x, Box) else numpy.reshape(x, shape, copy=copy)


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


def unstack(x: Any, /, axis: int = 0) -> tuple[Any, ...]:
    rows = anp.moveaxis(x, axis, 0)
    return tuple(rows[place] for place in range(rows.shape[0]))


# --- indexing, sets and sorting ------------------------------------------------------------------


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


def argsort(x: Any, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Any:
    x = linalg.constant(x)
    if not descending:
        return numpy.argsort(x, axis=axis, stable=stable)
    # The array is reversed before and after sorting, so that equal elements keep their order.
    found = numpy.argsort(numpy.flip(x, axis), axis=axis, stable=stable)
    return numpy.flip(x.shape[axis] - 1 - found, axis)


def sort(x: Any, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Any:
    return take_along_axis(x, argsort(x, axis, descending=descending, stable=stable), axis)


def unique_all(x: Any, /) -> standard.UniqueAllResult:
    found = numpy.unique_all(linalg.constant(x))
    return standard.UniqueAllResult(take(x, found.indices), *found[1:])


unique_counts, unique_inverse, unique_values = composed.uniques(unique_all)


# --- statistics and utilities --------------------------------------------------------------------


def cumulative_sum(x: Any, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False) -> Any:
    x, axis = _along(x, axis, dtype)
    total = anp.cumsum(x, axis) if isinstance(x, Box) else numpy.cumsum(x, axis, dtype)
    return _begun(total, axis, 0 if include_initial else None)


def cumulative_prod(x: Any, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False) -> Any:
    x, axis = _along(x, axis, dtype)
    if not isinstance(x, Box):
        return _begun(numpy.cumprod(x, axis, dtype), axis, 1 if include_initial else None)
    total = composed.products(anp.moveaxis(x, axis, 0), x.shape[axis], anp.concatenate)
    return _begun(anp.moveaxis(total, 0, axis), axis, 1 if include_initial else None)


def _along(x: Any, axis: int | None, dtype: Any) -> tuple[Any, int]:
    return (x if dtype is None else astype(x, dtype)), composed.axis_of(axis, anp.ndim(x))


def _begun(total: Any, axis: int, initial: int | None) -> Any:
    if initial is None:
        return total
    shape = list(total.shape)
    shape[axis] = 1
    return anp.concatenate([numpy.full(shape, initial, total.dtype), total], axis)


def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Any:
    parts = [each for each in (prepend, x, append) if each is not None]
    whole = anp.moveaxis(anp.concatenate(parts, axis) if len(parts) > 1 else x, axis, 0)
    for _ in range(n):
        whole = whole[1:] - whole[:-1]
    return anp.moveaxis(whole, 0, axis)


def prod(x: Any, /, axis: Any = None, *, dtype: Any = None, keepdims: bool = False) -> Any:
    if not isinstance(x, Box):
        return numpy.prod(x, axis, dtype=dtype, keepdims=keepdims)
    # autograd (1.9) divides by each element, so its gradient is NaN where an element is zero.
    x = x if dtype is None else astype(x, dtype)
    count = anp.ndim(x)
    gone = composed.axes_of(axis, count)
    left = [each for each in range(count) if each not in gone]
    rows = anp.reshape(anp.transpose(x, [*gone, *left]), (-1, *[x.shape[each] for each in left]))
    total = composed.product(rows, len(rows), anp.concatenate) if len(rows) else anp.ones_like(anp.sum(rows, 0))
    return anp.reshape(total, [1 if each in gone else x.shape[each] for each in range(count)]) if keepdims else total


def std(x: Any, /, axis: Any = None, *, correction: float | None = None, keepdims: bool = False, **others: Any) -> Any:
    return anp.std(x, axis=axis, keepdims=keepdims, **_corrected(x, axis, correction), **others)


def var(x: Any, /, axis: Any = None, *, correction: float | None = None, keepdims: bool = False, **others: Any) -> Any:
    return anp.var(x, axis=axis, keepdims=keepdims, **_corrected(x, axis, correction), **others)


def _corrected(x: Any, axis: Any, correction: float | None) -> dict[str, float]:
    """Returns the correction under NumPy's older name, which autograd's gradient reads."""
    if correction is None:
        return {}
    # Above the count, NumPy's value is infinite, but autograd's gradient (1.9) would be finite.
    shape = anp.shape(x)
    return {"ddof": min(correction, math.prod(shape[each] for each in composed.axes_of(axis, len(shape))))}


vecdot, matrix_transpose, sign = linalg.vecdot, linalg.matrix_transpose, linalg.sign


def _with_signatures(module: Any, prefix: str = "") -> dict[str, Any]:
    """Returns copies of functions of autograd (1.9), which show `(*args, **kwargs)`, with the standard's signatures."""
    copies = {}
    for name, line in standard.FUNCTIONS.items():
        function: Any = getattr(module, name.removeprefix(prefix), None)
        is_hidden = str(getattr(function, "__module__", "")).startswith("autograd")
        # `(*args)` is right for what takes its arguments by position alone.
        if is_hidden and name.startswith(prefix) and not line.endswith(", /)"):
            copy = types.FunctionType(
                function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
            )
            copy.__kwdefaults__ = function.__kwdefaults__
            functools.update_wrapper(copy, function)
            copies[name.removeprefix(prefix)] = standard.with_signature(copy, name)
    return copies


namespace = standard.Namespace(
    anp,
    _with_signatures(anp),
    standard.defined(beyond),
    standard.defined(sys.modules[__name__]),
    linalg=standard.Namespace(
        anp.linalg,
        _with_signatures(anp.linalg, "linalg."),
        standard.defined(linalg),
        _with_signatures(linalg, "linalg."),
    ),
    fft=standard.Namespace(anp.fft, _with_signatures(anp.fft, "fft."), standard.defined(fft)),
)
