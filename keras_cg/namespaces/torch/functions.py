"""What `keras_cg.ops` is on torch: `array_api_compat.torch`, taking numbers of Python and names of dtypes as well."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import array_api_compat.torch as xp
import numpy
import torch
from array_api_compat.torch import fft, linalg

from keras_cg.namespaces import composed, standard
from keras_cg.namespaces.standard import NUMBERS
from keras_cg.namespaces.torch import taking
from keras_cg.namespaces.torch.taking import dtype_of, promoted

_taking = taking.functions(xp)


# --- data types ----------------------------------------------------------------------------------


def asarray(obj: Any, /, dtype: Any = None, *, device: Any = None, copy: bool | None = None, **others: Any) -> Any:
    dtype = dtype_of(dtype)
    if isinstance(obj, (list, tuple)) and any(isinstance(each, torch.Tensor) for each in obj):
        obj = torch.stack([asarray(each) for each in obj])
    if not isinstance(obj, torch.Tensor):
        return xp.asarray(obj, dtype=dtype, device=device, copy=copy, **others)
    # torch.asarray (2.13) cuts a tensor from its gradient, or warns that it no longer does.
    return obj.to(device or obj.device, dtype or obj.dtype, copy=bool(copy))


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    return xp.astype(torch.as_tensor(x), dtype_of(dtype), copy=copy, device=device)


def can_cast(from_: Any, to: Any, /) -> bool:
    start, end = (str(getattr(kind, "dtype", kind)).removeprefix("torch.") for kind in (dtype_of(from_), dtype_of(to)))
    # torch's own also says yes to what does not hold all values.
    return bool(numpy.can_cast(start, end))


def finfo(type: Any, /) -> Any:
    return xp.finfo(dtype_of(type))


def iinfo(type: Any, /) -> Any:
    return xp.iinfo(dtype_of(type))


def isdtype(dtype: Any, kind: Any) -> bool:
    return bool(xp.isdtype(dtype_of(dtype), tuple(map(_kind, kind)) if isinstance(kind, tuple) else _kind(kind)))


def _kind(kind: Any) -> Any:
    return dtype_of(kind) if kind in standard.DTYPES else kind


def result_type(*arrays_and_dtypes: Any) -> Any:
    kinds = [dtype_of(each) for each in arrays_and_dtypes]
    dtypes = [getattr(kind, "dtype", kind) for kind in kinds if not isinstance(kind, NUMBERS)]
    return functools.reduce(promoted, [kind for kind in kinds if isinstance(kind, NUMBERS)], xp.result_type(*dtypes))


# --- manipulation and searching ------------------------------------------------------------------


def broadcast_to(x: Any, /, shape: Any) -> Any:
    return torch.broadcast_to(torch.as_tensor(x), _shape(shape))


def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Any:
    return xp.reshape(torch.as_tensor(x), _shape(shape), copy=copy)


def moveaxis(x: Any, source: Any, destination: Any, /) -> Any:
    return torch.movedim(x, source, destination)  # torch.moveaxis has no batch (2.13)


def tile(x: Any, repetitions: Any, /) -> Any:
    return torch.tile(x, _shape(repetitions))


def _shape(shape: Any) -> Any:
    return (shape,) if isinstance(shape, int) else shape


def unstack(x: Any, /, axis: int = 0) -> tuple[Any, ...]:
    return torch.unbind(x, axis)


def take_along_axis(x: Any, indices: Any, /, axis: int = -1) -> Any:
    return xp.take_along_axis(x, indices.long(), axis=axis)


def unique_all(x: Any, /) -> standard.UniqueAllResult:
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    places = torch.arange(x.numel(), device=x.device)
    # torch says how often each value is there, and where it went, but not where it came first.
    first = torch.full_like(values, x.numel(), dtype=places.dtype)
    first = first.scatter_reduce(0, inverse.reshape(-1), places, "amin")
    return standard.UniqueAllResult(values, first, inverse, counts)


# --- statistics ----------------------------------------------------------------------------------


def cumulative_prod(x: Any, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False) -> Any:
    return _cumulative(torch.cumprod, x, axis, dtype, 1 if include_initial else None)


def cumulative_sum(x: Any, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False) -> Any:
    return _cumulative(torch.cumsum, x, axis, dtype, 0 if include_initial else None)


def _cumulative(function: Callable[..., Any], x: Any, axis: int | None, dtype: Any, initial: int | None) -> Any:
    # Dynamo (torch 2.13) cannot trace those of array_api_compat.
    axis = composed.axis_of(axis, x.ndim)
    total = function(x, axis, dtype=dtype_of(dtype))
    if initial is None:
        return total
    shape = [*total.shape]
    shape[axis] = 1
    return torch.cat([total.new_full(shape, initial), total], axis)


def std(x: Any, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
    return torch.sqrt(var(x, axis, correction=correction, keepdims=keepdims))


def var(x: Any, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
    # torch (2.13) takes a whole number alone for the correction.
    spread = _taking["var"](x, axis=axis, keepdims=keepdims)
    if not correction:
        return spread
    count = torch.as_tensor(x).numel() // max(spread.numel(), 1)
    return spread * (count / (count - correction)) if count > correction else torch.full_like(spread, torch.nan)


_linalg = taking.functions(linalg, "linalg")
vecdot = _linalg["vecdot"]  # that of the main namespace has no batch (array_api_compat 1.16 with torch 2.13)

namespace = standard.Namespace(
    xp,
    _taking,
    standard.defined(sys.modules[__name__]),
    linalg=standard.Namespace(linalg, _linalg),
    fft=standard.Namespace(fft, taking.functions(fft, "fft")),
)
