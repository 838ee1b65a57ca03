"""The functions of `keras_cg.ops` on torch: those of `array_api_compat.torch`, and those that it lacks or has wrong."""

from __future__ import annotations

import functools
import sys
from typing import Any

import array_api_compat.torch as xp
import torch
from array_api_compat.torch import linalg

from keras_cg.namespaces import composed, table
from keras_cg.namespaces.table import NUMBERS
from keras_cg.namespaces.torch import arguments, beyond
from keras_cg.namespaces.torch.arguments import accepting, as_tensor, dtype_of, promoted, tensors

_accepting = arguments.functions(xp)


# --- data types ----------------------------------------------------------------------------------


def asarray(obj: Any, /, dtype: Any = None, *, device: Any = None) -> Any:
    dtype = dtype_of(dtype)
    if isinstance(obj, (list, tuple)):
        leaves = _leaves(obj)
        # torch.asarray (2.13) cuts the tensors of a list from their gradients.
        if [True for leaf in leaves if hasattr(leaf, "shape")]:
            obj = _stacked(obj, dtype or result_type(*leaves))
    if not isinstance(obj, torch.Tensor):
        return xp.asarray(obj, dtype=dtype, device=device)
    # torch.asarray (2.13) cuts a tensor from its gradient, or warns that it no longer does.
    return obj.to(device or obj.device, dtype or obj.dtype)


def _leaves(nested: Any) -> list[Any]:
    return [leaf for each in nested for leaf in _leaves(each)] if isinstance(nested, (list, tuple)) else [nested]


def _stacked(nested: Any, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(nested, (list, tuple)):
        return torch.stack([_stacked(each, dtype) for each in nested])
    return nested.to(dtype) if isinstance(nested, torch.Tensor) else xp.asarray(nested, dtype=dtype)


def astype(x: Any, dtype: Any, /) -> Any:
    return as_tensor(x).to(dtype_of(dtype))


def finfo(type: Any, /) -> Any:
    return xp.finfo(dtype_of(type))


def isdtype(dtype: Any, kind: Any) -> bool:
    return bool(xp.isdtype(dtype_of(dtype), kind))


def result_type(*arrays_and_dtypes: Any) -> Any:
    numbers = [each for each in arrays_and_dtypes if isinstance(each, NUMBERS)]
    dtypes = [dtype_of(table.dtype_of(each)) for each in arrays_and_dtypes if not isinstance(each, NUMBERS)]
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


_floor_divide = accepting(xp.divide, table.FUNCTIONS["floor_divide"])


def pow(x1: Any, x2: Any, /) -> Any:
    if isinstance(x2, NUMBERS) and isinstance(x1, torch.Tensor):
        # With a tensor for the number, the second derivative of x ** 0 is NaN at 0.
        return torch.pow(x1.to(promoted(x1.dtype, x2)), x2)
    x1, x2 = tensors([x1, x2])
    if x1.is_complex() or x2.is_complex():
        # Forward mode of torch.pow (2.13) has a wrong tangent if one of both is real.
        x1, x2 = [each.to(result_type(x1, x2)) for each in (x1, x2)]
    if not (x2.is_floating_point() or x2.is_complex()):
        return xp.pow(x1, x2)
    return composed.power(namespace, torch.Tensor.detach, xp.pow, x1, x2)


def hypot(x1: Any, x2: Any, /) -> Any:
    return composed.hypot(torch, torch.Tensor.detach, *tensors([x1, x2]))


def logaddexp(x1: Any, x2: Any, /) -> Any:
    x1, x2 = tensors([x1, x2])
    if x1.is_complex() or x2.is_complex():  # these have no order
        return torch.logaddexp(x1, x2)
    return composed.logaddexp(torch, x1, x2)


def sign(x: Any, /) -> Any:
    x = as_tensor(x)
    if not x.is_floating_point():
        return torch.sgn(x)
    # torch.sign (2.13) of NaN is 0, and the assignment by which array_api_compat corrects it has no batch.
    return torch.where(torch.isnan(x), x, torch.sign(x))


# --- shapes and indexing ------------------------------------------------------------------


def broadcast_to(x: Any, /, shape: Any) -> Any:
    return torch.broadcast_to(as_tensor(x), _shape(shape))


def reshape(x: Any, /, shape: Any) -> Any:
    return torch.reshape(as_tensor(x), _shape(shape))


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


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    return torch.unbind(as_tensor(x), axis)


def take(x: Any, indices: Any, /, axis: int | None = None) -> Any:
    x, indices = as_tensor(x), as_tensor(indices).long()  # to torch, uint8 is a mask
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis % x.ndim)
    return x[(slice(None),) * axis + (indices,)]


def take_along_axis(x: Any, indices: Any, /, axis: int = -1) -> Any:
    return xp.take_along_axis(as_tensor(x), as_tensor(indices).long(), axis=axis)


# --- reductions ----------------------------------------------------------------------------------


def cumulative_sum(x: Any, /, *, axis: int | None = None) -> Any:
    # Dynamo (torch 2.13) cannot trace that of array_api_compat.
    x = as_tensor(x)
    return torch.cumsum(x, composed.axis_of(axis, x.ndim))


# --- linear algebra ------------------------------------------------------------------------------


def solve(x1: Any, x2: Any, /) -> Any:
    """Returns the solution, for which torch (2.13) in a batch mistakes matrices for vectors."""
    x1, x2 = tensors([x1, x2])
    kind = result_type(x1, x2)
    columns = x2[:, None] if x2.ndim == 1 else x2
    batch = torch.broadcast_shapes(x1.shape[:-2], columns.shape[:-2])  # type: ignore[no-untyped-call]
    matrix, columns = [each.to(kind).expand(*batch, *each.shape[-2:]) for each in (x1, columns)]
    solution = torch.linalg.solve(matrix, columns)
    return solution[..., 0] if x2.ndim == 1 else solution


_linalg = arguments.functions(linalg)

namespace = table.Namespace(
    xp,
    _accepting,
    table.defined(beyond),
    table.defined(sys.modules[__name__]),
    vecdot=_linalg["vecdot"],  # that of the main namespace has no batch (array_api_compat 1.16 with torch 2.13)
    linalg=table.Namespace(linalg, _linalg, solve=solve),
)
