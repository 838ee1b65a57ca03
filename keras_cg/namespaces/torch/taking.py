"""Functions that also take what torch's own do not: numbers of Python, names of dtypes, an axis by position."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from keras_cg.namespaces import standard
from keras_cg.namespaces.standard import NUMBERS

_COMPLEX = {
    torch.bfloat16: torch.complex64,
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}
_FIRST = ("axis", "dtype", "k")
_ARRAYS = ("x", "x1", "x2", "condition")


def functions(module: ModuleType, prefix: str = "") -> dict[str, Callable[..., Any]]:
    """The functions of the standard in a module of array_api_compat, which take all this, by their names."""
    there = {name: line for name, line in standard.FUNCTIONS.items() if name.rpartition(".")[0] == prefix}
    names = {name.rpartition(".")[2]: line for name, line in there.items()}
    return {name: taking(getattr(module, name), line) for name, line in names.items() if hasattr(module, name)}


def taking(function: Callable[..., Any], line: str) -> Callable[..., Any]:
    """`function`, whose signature in the standard is `line`, taking all this as well."""
    parameters = standard.parameters(line)
    names = [parameter.name for parameter in parameters]
    count = sum(parameter.kind is not inspect.Parameter.KEYWORD_ONLY for parameter in parameters)
    arrays = sum(name in _ARRAYS for name in names[:3])
    # What NumPy takes by position, too; but for `diff`, which has another there.
    first = names[count] if names[count:] and names[count] in _FIRST and not line.startswith("diff") else None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if [True for arg in args[:arrays] if isinstance(arg, NUMBERS)]:
            args = (*_tensors(args[:arrays]), *args[arrays:])
        if first is not None and len(args) == count + 1:
            kwargs[first] = args[count]
            args = args[:count]
        if "dtype" in kwargs:
            kwargs["dtype"] = dtype_of(kwargs["dtype"])
        return function(*args, **kwargs)

    return call


def dtype_of(dtype: Any) -> Any:
    """A dtype of torch, which may be given by its name."""
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


def _tensors(args: tuple[Any, ...]) -> list[Any]:
    """The arguments with tensors in the place of numbers, which have no say in the dtype of the result."""
    like = [arg for arg in args if isinstance(arg, torch.Tensor)]
    kind = like[-1] if like else None
    return [_tensor(arg, kind) if isinstance(arg, NUMBERS) else arg for arg in args]


def _tensor(number: Any, like: torch.Tensor | None) -> torch.Tensor:
    if like is None:
        return torch.asarray(number)
    return torch.asarray(number, dtype=promoted(like.dtype, number), device=like.device)


def promoted(dtype: torch.dtype, number: Any) -> torch.dtype:
    """What torch.result_type says of a tensor and a number, which Dynamo (torch 2.13) cannot trace."""
    if isinstance(number, complex):
        real = dtype if dtype.is_floating_point else torch.get_default_dtype()
        return dtype if dtype.is_complex else _COMPLEX[real]
    if isinstance(number, float):
        return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()
    return torch.int64 if dtype == torch.bool and not isinstance(number, bool) else dtype
