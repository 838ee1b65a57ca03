"""The dtypes of TensorFlow's functions as the standard has them: of numbers, of several tensors, of sums."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import tensorflow as tf

from keras_cg.namespaces.standard import NUMBERS

tnp = tf.experimental.numpy


def unconverted(*modules: ModuleType) -> None:
    """Has AutoGraph call the functions of a module as they are, for none has branches or loops over tensors."""
    # As `autograph_info__` of decorator.py, whose comment says more: tracing would take three times as long.
    for module in modules:
        for function in vars(module).values():
            if isinstance(function, FunctionType) and function.__module__.startswith("keras_cg."):
                function.autograph_info__ = None  # type: ignore[attr-defined]


def as_dtype(dtype: Any) -> Any:
    """A dtype of TensorFlow, which may be given by its name or as one of NumPy."""
    return tf.as_dtype(dtype)


def tensor(x: Any, kind: Any = None) -> Any:
    """`x` as a tensor: a number in the dtype `kind`, if there is one that has room for it, else in its default one."""
    if not isinstance(x, NUMBERS):
        return tf.convert_to_tensor(x)
    return tnp.asarray(x) if kind is None else tf.constant(x, tnp.result_type(kind.as_numpy_dtype, x))


def same(*values: Any) -> list[Any]:
    """Tensors of one dtype, that of all; numbers of Python have no say in it."""
    kinds = [value if isinstance(value, NUMBERS) else tf.convert_to_tensor(value) for value in values]
    names = [each if isinstance(each, NUMBERS) else each.dtype.as_numpy_dtype for each in kinds]
    kind = tf.as_dtype(tnp.result_type(*names))
    return [tf.constant(each, kind) if isinstance(each, NUMBERS) else cast(each, kind) for each in kinds]


def cast(x: Any, kind: Any) -> Any:
    """`x` in another dtype; not by tf.cast between real and complex, whose gradient (2.21) logs warnings."""
    if kind.is_complex and not x.dtype.is_complex:
        real = tf.cast(x, kind.real_dtype)
        return tf.complex(real, tf.zeros_like(real))
    return tf.cast(tf.math.real(x), kind) if x.dtype.is_complex and not kind.is_complex else tf.cast(x, kind)


def with_bfloat16(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tnp, which (2.21) fails at bfloat16: it is computed in float32 then, and rounded once."""

    @functools.wraps(function)
    def computed(*args: Any, **kwargs: Any) -> Any:
        # Numbers of Python have no say in the dtype, another tensor has.
        are_halves = [getattr(x, "dtype", None) == tf.bfloat16 for x in args if not isinstance(x, NUMBERS)]
        if not any(are_halves):
            return function(*args, **kwargs)
        wide = [tf.cast(x, tf.float32) if getattr(x, "dtype", None) == tf.bfloat16 else x for x in args]
        result = function(*wide, **kwargs)
        return tf.cast(result, tf.bfloat16) if all(are_halves) else result

    computed.autograph_info__ = None  # type: ignore[attr-defined]  # as above
    return computed


def summed(x: Any, dtype: Any) -> Any:
    """`x` in the dtype of its sum: one that is given, or 64 bits for integers."""
    x = tensor(x)
    if dtype is not None:
        return cast(x, as_dtype(dtype))
    if x.dtype.is_bool or (x.dtype.is_integer and not x.dtype.is_unsigned):
        return tf.cast(x, tf.int64)
    return tf.cast(x, tf.uint64) if x.dtype.is_integer else x


def size(x: Any, axis: int) -> Any:
    """The size of an axis: a number, or a tensor where it is not known yet."""
    known = x.shape[axis]
    return tf.shape(x)[axis] if known is None else known
