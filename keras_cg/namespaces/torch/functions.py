"""The functions of `keras_cg.ops` on torch: those of `array_api_compat.torch`, and those that it lacks or has wrong."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import array_api_compat.torch as xp
import torch
from array_api_compat.torch import fft

from keras_cg.namespaces import composed, standard
from keras_cg.namespaces.standard import NUMBERS
from keras_cg.namespaces.torch import arguments, beyond, linalg
from keras_cg.namespaces.torch.arguments import accepting, as_tensor, dtype_of, promoted, tensors

_accepting = arguments.functions(xp)


# --- data types ----------------------------------------------------------------------------------


def asarray(obj: Any, /, dtype: Any = None, *, device: Any = None, copy: bool | None = None, **others: Any) -> Any:
    dtype = dtype_of(dtype)
    if isinstance(obj, (list, tuple)):
        leaves = _leaves(obj)
        # torch.asarray (2.13) cuts the tensors of a list from their gradients.
        if [True for leaf in leaves if hasattr(leaf, "shape")]:
            obj = _stacked(obj, dtype or result_type(*leaves))
    if not isinstance(obj, torch.Tensor):
        return xp.asarray(obj, dtype=dtype, device=device, copy=copy, **others)
    # torch.asarray (2.13) cuts a tensor from its gradient, or warns that it no longer does.
    return obj.to(device or obj.device, dtype or obj.dtype, copy=bool(copy))


def _leaves(nested: Any) -> list[Any]:
    return [leaf for each in nested for leaf in _leaves(each)] if isinstance(nested, (list, tuple)) else [nested]


def _stacked(nested: Any, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(nested, (list, tuple)):
        return torch.stack([_stacked(each, dtype) for each in nested])
    return nested.to(dtype) if isinstance(nested, torch.Tensor) else xp.asarray(nested, dtype=dtype)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    return xp.astype(as_tensor(x), dtype_of(dtype), copy=copy, device=device)


def can_cast(from_: Any, to: Any, /) -> bool:
    kinds = [dtype_of(standard.dtype_of(kind)) for kind in (from_, to)]
    return standard.can_cast(*[str(kind).removeprefix("torch.") for kind in kinds])


def finfo(type: Any, /) -> Any:
    return xp.finfo(dtype_of(type))


def iinfo(type: Any, /) -> Any:
    return xp.iinfo(dtype_of(type))


def isdtype(dtype: Any, kind: Any) -> bool:
    return bool(xp.isdtype(dtype_of(dtype), tuple(map(_kind, kind)) if isinstance(kind, tuple) else _kind(kind)))


def _kind(kind: Any) -> Any:
    return kind if isinstance(kind, str) and kind not in standard.DTYPES else dtype_of(kind)


def result_type(*arrays_and_dtypes: Any) -> Any:
    numbers = [each for each in arrays_and_dtypes if isinstance(each, NUMBERS)]
    dtypes = [dtype_of(standard.dtype_of(each)) for each in arrays_and_dtypes if not isinstance(each, NUMBERS)]
    start = xp.result_type(*dtypes) if dtypes else torch.asarray(numbers[0]).dtype
    return functools.reduce(promoted, numbers, start)


# --- creation ------------------------------------------------------------------------------------


def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Any:
    if isinstance(fill_value, NUMBERS):  # Dynamo (torch 2.13) cannot trace `hasattr` of a number
        return xp.full(shape, fill_value, dtype=dtype_of(dtype), device=device)
    return broadcast_to(asarray(fill_value, dtype, device=device), shape).clone()


def full_like(x: Any, /, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Any:
    if isinstance(fill_value, NUMBERS):
        return _accepting["full_like"](x, fill_value, dtype=dtype, device=device)
    x = as_tensor(x)
    return full(x.shape, fill_value, dtype or x.dtype, device=device or x.device)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Any:
    if isinstance(start, (int, float)) and isinstance(stop, (int, float)):
        return xp.linspace(start, stop, num, dtype=dtype_of(dtype), device=device, endpoint=endpoint)
    # torch.linspace (2.13) cuts tensors from their gradients, and gives them the default dtype.
    start, stop = xp.broadcast_arrays(*tensors([start, stop]))
    start, stop = [each.to(device, result_type(start, stop, 1.0)) for each in (start, stop)]
    weight = torch.arange(num, dtype=start.real.dtype, device=start.device) / max(num - bool(endpoint), 1)
    weight = weight.reshape(-1, *[1] * start.ndim)
    return (start * (1 - weight) + stop * weight).to(dtype_of(dtype))


# --- elementwise ---------------------------------------------------------------------------------


def conj(x: Any, /) -> Any:
    # torch.conj_physical (2.13) warns in a batch that it is slow there.
    return torch.conj(as_tensor(x)).resolve_conj()


def imag(x: Any, /) -> Any:
    # torch.imag (2.13) of a lazy conjugate has no batch.
    return torch.imag(as_tensor(x).resolve_conj())


def floor_divide(x1: Any, x2: Any, /) -> Any:
    # torch.floor_divide (2.13) has no gradient.
    return _floor_divide(x1, x2, rounding_mode="floor")


_floor_divide = accepting(xp.divide, standard.FUNCTIONS["floor_divide"])


def pow(x1: Any, x2: Any, /) -> Any:
    if isinstance(x2, NUMBERS) and isinstance(x1, torch.Tensor):
        # With a tensor for the number, the second derivative of x ** 0 is NaN at 0.
        return torch.pow(x1.to(promoted(x1.dtype, x2)), x2)
    x1, x2 = tensors([x1, x2])
    if x1.is_complex() or x2.is_complex():
        # Forward mode of torch.pow (2.13) has a wrong tangent if one of both is real.
        x1, x2 = [each.to(result_type(x1, x2)) for each in (x1, x2)]
    return xp.pow(x1, x2)


def sign(x: Any, /) -> Any:
    x = as_tensor(x)
    if not x.is_floating_point():
        return torch.sgn(x)
    # torch.sign (2.13) of NaN is 0, and the assignment by which array_api_compat corrects it has no batch.
    return torch.where(torch.isnan(x), x, torch.sign(x))


# --- manipulation and searching ------------------------------------------------------------------


def broadcast_to(x: Any, /, shape: Any) -> Any:
    return torch.broadcast_to(as_tensor(x), _shape(shape))


def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Any:
    return xp.reshape(as_tensor(x), _shape(shape), copy=copy)


def moveaxis(x: Any, source: Any, destination: Any, /) -> Any:
    return torch.movedim(as_tensor(x), source, destination)  # torch.moveaxis has no batch (2.13)


def roll(x: Any, /, shift: Any, axis: Any = None) -> Any:
    if isinstance(axis, (list, tuple)) and isinstance(shift, int):
        shift = (shift,) * len(axis)
    return torch.roll(as_tensor(x), shift, axis)


def tile(x: Any, repetitions: Any, /) -> Any:
    return torch.tile(as_tensor(x), _shape(repetitions))


def _shape(shape: Any) -> Any:
    return (shape,) if isinstance(shape, int) else shape


def unstack(x: Any, /, axis: int = 0) -> tuple[Any, ...]:
    return torch.unbind(as_tensor(x), axis)


def count_nonzero(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    # torch.count_nonzero (2.13) counts all elements for axis=().
    return _accepting["sum"](as_tensor(x) != 0, axis=axis, keepdims=keepdims)


def searchsorted(x1: Any, x2: Any, /, side: str = "left", sorter: Any = None) -> Any:
    x1, x2 = tensors([x1, x2])
    kind = result_type(x1, x2)  # torch.searchsorted (2.13) wants one dtype
    return torch.searchsorted(x1.to(kind), x2.to(kind), side=side, sorter=None if sorter is None else sorter.long())


def take(x: Any, indices: Any, /, axis: Any = None) -> Any:
    x, indices = as_tensor(x), as_tensor(indices)
    # torch.index_select (2.13) wants one axis of int32 or int64.
    rows = xp.take(x, indices.long().reshape(-1), axis=axis)
    axis = (axis or 0) % x.ndim
    return rows.reshape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


def take_along_axis(x: Any, indices: Any, /, axis: int = -1) -> Any:
    return xp.take_along_axis(as_tensor(x), as_tensor(indices).long(), axis=axis)


# --- sets ----------------------------------------------------------------------------------------


def unique_all(x: Any, /) -> standard.UniqueAllResult:
    x = as_tensor(x)
    values, inverse, counts = torch.unique(x.detach(), return_inverse=True, return_counts=True)
    places = torch.arange(x.numel(), device=x.device)
    # torch.unique (2.13) has no gradient and no indices: each value is picked from where it is first.
    first = torch.full_like(values, x.numel(), dtype=places.dtype)
    first = first.scatter_reduce(0, inverse.reshape(-1), places, "amin")
    return standard.UniqueAllResult(x.reshape(-1)[first], first, inverse, counts)


unique_counts, unique_inverse, unique_values = composed.uniques(unique_all)


# --- statistics ----------------------------------------------------------------------------------


def cumulative_prod(x: Any, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False) -> Any:
    return _cumulative(torch.cumprod, x, axis, dtype, 1 if include_initial else None)


def cumulative_sum(x: Any, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False) -> Any:
    return _cumulative(torch.cumsum, x, axis, dtype, 0 if include_initial else None)


def _cumulative(function: Callable[..., Any], x: Any, axis: int | None, dtype: Any, initial: int | None) -> Any:
    # Dynamo (torch 2.13) cannot trace those of array_api_compat.
    x = as_tensor(x)
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
    # torch.var (2.13) has no corrections but whole numbers.
    spread = _accepting["var"](x, axis=axis, keepdims=keepdims)
    if not correction:
        return spread
    count = as_tensor(x).numel() // max(spread.numel(), 1)
    return spread * (count / (count - correction)) if count > correction else spread / 0.0


# --- Fourier transforms --------------------------------------------------------------------------


def _of_empty(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the transform, which torch (2.13, MKL) refuses for an empty batch."""

    @functools.wraps(function)
    def transform(x: Any, /, *args: Any, **kwargs: Any) -> Any:
        if x.numel():
            return function(x, *args, **kwargs)
        return torch.zeros_like(function(x.to("meta"), *args, **kwargs), device=x.device)

    return transform


_fft = arguments.functions(fft, "fft")
_TRANSFORMS = [name for name in _fft if name.removesuffix("n").endswith("fft")]

namespace = standard.Namespace(
    xp,
    _accepting,
    standard.defined(beyond),
    standard.defined(sys.modules[__name__]),
    vecdot=linalg.namespace.vecdot,  # that of the main namespace has no batch (array_api_compat 1.16 with torch 2.13)
    linalg=linalg.namespace,
    fft=standard.Namespace(fft, _fft, {name: _of_empty(_fft[name]) for name in _TRANSFORMS}),
)
