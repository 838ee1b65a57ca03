"""Functions of torch that accept more: Python numbers, NumPy arrays, names of dtypes, an axis by position."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy
import torch

from keras_cg.namespaces import table
from keras_cg.namespaces.table import NUMBERS

# Here, because Dynamo (2.13) does not trace `to_complex`.
_COMPLEX = {kind: kind.to_complex() for kind in (torch.bfloat16, torch.float16, torch.float32, torch.float64)}
_NUMPY = (numpy.ndarray, numpy.generic)
_FOREIGN = (*NUMBERS, *_NUMPY)


def functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """Returns the functions of the table that a module of array_api_compat has, by name, each accepting all this."""
    names = {name.rpartition(".")[2]: line for name, line in table.FUNCTIONS.items()}
    return {name: accepting(getattr(module, name), line) for name, line in names.items() if hasattr(module, name)}


def accepting(function: Callable[..., Any], line: str) -> Callable[..., Any]:
    """Returns a function that converts its arguments and calls `function`, whose signature in the table is `line`.

    Numbers and NumPy arrays become tensors where the table has arrays. In every other place a NumPy scalar becomes a
    number of Python. What the table accepts by position or by name is passed by name, as array_api_compat has it.
    """
    positional, _, others = line[line.index("(") + 1 : -1].rpartition("/")
    first = positional.replace(",", " ").split()
    names = [part.partition("=")[0].strip() for part in others.partition("*")[0].split(",") if part.strip()]
    count, arrays = len(first), sum(name in ("condition", "x", "x1", "x2") for name in first)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # In most calls there is nothing to convert, and an operation on few numbers costs less than the rest below.
        is_ready = len(args) == arrays
        for arg in args:
            is_ready = is_ready and isinstance(arg, torch.Tensor)
        for name, value in kwargs.items():
            is_ready = is_ready and name != "dtype" and not isinstance(value, _NUMPY)
        if is_ready:
            return function(*args, **kwargs)
        kwargs.update(zip(names, args[count:], strict=False))
        kwargs = {name: dtype_of(value) if name == "dtype" else _converted(value) for name, value in kwargs.items()}
        args = (*args[:count], *args[count + len(names) :])  # what is left is too much, and the function raises
        if first == ["arrays"]:
            return function(tensors(args[0]), *args[1:], **kwargs)
        return function(*tensors(args[:arrays]), *map(_converted, args[arrays:]), **kwargs)

    return call


def dtype_of(dtype: Any) -> Any:
    """Returns the dtype of torch for a name, a type of Python, or a dtype of NumPy; anything else stays as it is."""
    if isinstance(dtype, (type, numpy.dtype)):
        dtype = numpy.dtype(dtype).name
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


def tensors(args: Any) -> list[Any]:
    """Returns the arguments with tensors for numbers and NumPy arrays; numbers have no say in the result's dtype."""
    if not [True for arg in args if isinstance(arg, _FOREIGN)]:
        return [*args]
    like = [arg for arg in args if isinstance(arg, torch.Tensor)]
    device = like[-1].device if like else None
    args = [tensor(arg, device) if isinstance(arg, _NUMPY) and not isinstance(arg, NUMBERS) else arg for arg in args]
    like = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return [_number(arg, like[-1] if like else None) if isinstance(arg, NUMBERS) else arg for arg in args]


def as_tensor(x: Any) -> Any:
    """Returns the tensor for a number or a NumPy array."""
    return x if isinstance(x, torch.Tensor) else tensors([x])[0]


def tensor(array: Any, device: Any = None) -> torch.Tensor:
    """Returns a tensor with a copy of a NumPy array, because torch refuses negative strides and warns of read-only."""
    return torch.from_numpy(numpy.array(array)).to(device)


def _number(number: Any, like: torch.Tensor | None) -> torch.Tensor:
    if like is None:
        return torch.asarray(number)
    return torch.asarray(number, dtype=promoted(like.dtype, number), device=like.device)


def _converted(value: Any) -> Any:
    if isinstance(value, numpy.generic):
        return value.item()
    return tensor(value) if isinstance(value, numpy.ndarray) else value


def promoted(dtype: torch.dtype, number: Any) -> torch.dtype:
    """Returns what torch.result_type says of a tensor and a number, which Dynamo (torch 2.13) cannot trace."""
    if isinstance(number, complex):
        real = dtype if dtype.is_floating_point else torch.get_default_dtype()
        return dtype if dtype.is_complex else _COMPLEX[real]
    if isinstance(number, float):
        return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()
    return torch.int64 if dtype == torch.bool and not isinstance(number, bool) else dtype
