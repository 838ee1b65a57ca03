"""What `keras_cg.ops` is on torch: `array_api_compat.torch`, taking numbers of Python and names of dtypes as well."""

from __future__ import annotations

import sys
from typing import Any

import array_api_compat.torch as xp
import numpy
import torch
from array_api_compat.torch import fft, linalg

from keras_cg.backends.torch import taking
from keras_cg.backends.torch.taking import dtype_of
from keras_cg.backends.torch.tensors import dtype_name
from keras_cg.engine import standard

_taking = taking.functions(xp)


# --- data types ----------------------------------------------------------------------------------


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    return xp.astype(torch.asarray(x), dtype_of(dtype), copy=copy, device=device)


def can_cast(from_: Any, to: Any, /) -> bool:
    start, end = (dtype_name(getattr(kind, "dtype", kind)) for kind in (dtype_of(from_), dtype_of(to)))
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
    # A number beside a dtype has no tensor to be promoted with (array_api_compat 1.16).
    return xp.result_type(*[torch.empty(0, dtype=kind) if isinstance(kind, torch.dtype) else kind for kind in kinds])


# --- manipulation and searching ------------------------------------------------------------------


def broadcast_to(x: Any, /, shape: Any) -> Any:
    return torch.broadcast_to(torch.asarray(x), _shape(shape))


def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Any:
    return xp.reshape(torch.asarray(x), _shape(shape), copy=copy)


def tile(x: Any, repetitions: Any, /) -> Any:
    return torch.tile(x, _shape(repetitions))


def _shape(shape: Any) -> Any:
    return (shape,) if isinstance(shape, int) else shape


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


def std(x: Any, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
    return torch.sqrt(var(x, axis, correction=correction, keepdims=keepdims))


def var(x: Any, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
    # torch (2.13) takes a whole number alone for the correction.
    spread = _taking["var"](x, axis=axis, keepdims=keepdims)
    if not correction:
        return spread
    count = torch.asarray(x).numel() // max(spread.numel(), 1)
    return spread * (count / (count - correction)) if count > correction else torch.full_like(spread, torch.nan)


namespace = standard.Namespace(
    xp,
    _taking,
    standard.defined(sys.modules[__name__]),
    linalg=standard.Namespace(linalg, taking.functions(linalg, "linalg")),
    fft=standard.Namespace(fft, taking.functions(fft, "fft")),
)
