"""The module `keras_cg.ops` on mlx: `mlx.core`, with dtypes by their names, and float64 in its own precision."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from keras_cg.namespaces import table

# These take a dtype, or the place of one.
_TYPED = (
    *("arange", "asarray", "astype", "can_cast", "empty", "empty_like", "eye", "full", "full_like"),
    *("isdtype", "linspace", "ones", "ones_like", "result_type", "zeros", "zeros_like"),
)


def named(dtype: str) -> Any:
    """The dtype of a name; mlx calls one of them otherwise."""
    return mx.bool_ if dtype == "bool" else getattr(mx, dtype)


def _typed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes a dtype by its name, and no device."""

    def found(value: Any) -> Any:
        return named(value) if isinstance(value, str) and value in table.DTYPES else value

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device", self) is None:
            del kwargs["device"]
        return function(*map(found, args), **{name: found(value) for name, value in kwargs.items()})

    self = object()
    return call


# --- mlx (0.32) silently computes these with 32 bits for float64; they are composed of functions that are exact -------


def exp(x: Any, /) -> Any:
    """The `exp` of the table."""
    return mx.power(mx.array(math.e, mx.float64), x)


def sin(x: Any, /) -> Any:
    """The `sin` of the table."""
    tangent = mx.tan(x / 2)
    return 2 * tangent / (1 + tangent * tangent)


def cos(x: Any, /) -> Any:
    """The `cos` of the table."""
    tangent = mx.tan(x / 2)
    return (1 - tangent * tangent) / (1 + tangent * tangent)


def logaddexp(x1: Any, x2: Any, /) -> Any:
    """The `logaddexp` of the table."""
    return mx.maximum(x1, x2) + mx.log1p(exp(-mx.abs(x1 - x2)))


def _precise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mlx's own function, but for float64."""
    other = getattr(mx, function.__name__)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        is_double = any(isinstance(each, mx.array) and each.dtype == mx.float64 for each in args)
        return function(*args) if is_double else other(*args)

    return call


namespace = table.Namespace(
    mx,
    {name: _typed(getattr(mx, name)) for name in _TYPED},
    {function.__name__: _precise(function) for function in (exp, sin, cos, logaddexp)},
    bool=mx.bool_,
)
