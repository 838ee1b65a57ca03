"""The dtypes of TensorFlow's functions as the standard has them: of numbers, of several tensors, of sums."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy
import tensorflow as tf

from keras_cg.namespaces import composed
from keras_cg.namespaces.standard import NUMBERS


def unconverted(*modules: ModuleType) -> None:
    """Has AutoGraph call the functions of a module as they are, for none has branches or loops over tensors."""
    # As `autograph_info__` of decorator.py, whose comment says more: tracing would take three times as long.
    for module in modules:
        for function in vars(module).values():
            if isinstance(function, FunctionType) and function.__module__.startswith("keras_cg."):
                function.autograph_info__ = None  # type: ignore[attr-defined]


def as_dtype(dtype: Any) -> Any:
    """The dtype of TensorFlow that a name, a type of Python, or a dtype of NumPy stands for."""
    # A type of Python has the bits that NumPy gives it; tf.as_dtype (2.21) knows `float` as float32, and no `int`.
    return tf.as_dtype(numpy.dtype(dtype) if any(dtype is each for each in NUMBERS) else dtype)


def numpy_dtype(value: Any) -> numpy.dtype[Any]:
    """NumPy's name for the dtype of a tensor, or for what `as_dtype` takes."""
    kind = as_dtype(value if isinstance(value, type) else getattr(value, "dtype", value))
    return numpy.dtype(kind.as_numpy_dtype)  # type: ignore[no-any-return]


def result_type(*arrays_and_dtypes: Any) -> Any:
    """The dtype of several tensors or dtypes; numbers of Python decide its kind alone."""
    numbers = [each for each in arrays_and_dtypes if isinstance(each, NUMBERS)]
    kinds = [numpy_dtype(each) for each in arrays_and_dtypes if not isinstance(each, NUMBERS)]
    kind = numpy.result_type(*kinds) if kinds else None
    if kind == tf.bfloat16.as_numpy_dtype:
        # NumPy, to which bfloat16 is no kind of float, would make it float64.
        if not any(isinstance(each, complex) for each in numbers):
            return tf.bfloat16
        kind = numpy.dtype(numpy.float32)
    return tf.as_dtype(numpy.result_type(*([] if kind is None else [kind]), *numbers))


def number(value: Any, kind: Any = None) -> Any:
    """A number of Python as a tensor of a dtype, or in its default one."""
    # By way of an array, because TensorFlow (2.21) takes -0.0 for 0.0, or 0.0 for -0.0, where it has cached the other.
    return tf.constant(numpy.asarray(value, None if kind is None else kind.as_numpy_dtype))


def tensor(x: Any) -> Any:
    """`x` as a tensor, a number in its default dtype."""
    return number(x) if isinstance(x, NUMBERS) else tf.convert_to_tensor(x)


def same(*values: Any) -> list[Any]:
    """Tensors of one dtype, that of all; numbers of Python have no say in it."""
    parts = [each if isinstance(each, NUMBERS) else tf.convert_to_tensor(each) for each in values]
    kind = result_type(*parts)
    return [number(each, kind) if isinstance(each, NUMBERS) else cast(each, kind) for each in parts]


def cast(x: Any, kind: Any) -> Any:
    """`x` in another dtype; not by tf.cast between real and complex, whose gradient (2.21) logs warnings."""
    if x.dtype.is_complex and kind.is_bool:
        return x != 0
    if kind.is_complex and not x.dtype.is_complex:
        real = tf.cast(x, kind.real_dtype)
        return tf.complex(real, tf.zeros_like(real))
    return tf.cast(tf.math.real(x), kind) if x.dtype.is_complex and not kind.is_complex else tf.cast(x, kind)


def as_truth(x: Any) -> Any:
    """Whether each number is not zero."""
    return cast(tensor(x), tf.bool)


def binary(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of tensors that `same` makes of its arguments."""

    def call(x1: Any, x2: Any, /) -> Any:
        return function(*same(x1, x2))

    return call


def unary(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of a tensor."""

    def call(x: Any, /) -> Any:
        return function(tensor(x))

    return call


def floating(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of tnp, which (2.21) has no dtype for integers, and fails at bfloat16.

    Integers are computed in float64, as by NumPy, and bfloat16 in float32, from which it is rounded once.
    """

    @functools.wraps(function)
    def computed(*args: Any) -> Any:
        values = same(*args)
        kind = values[0].dtype
        if kind == tf.bfloat16:
            return tf.cast(function(*[tf.cast(each, tf.float32) for each in values]), kind)
        return function(*(values if kind.is_floating or kind.is_complex else [tf.cast(x, tf.float64) for x in values]))

    computed.autograph_info__ = None  # type: ignore[attr-defined]  # as above
    return computed


def in_64_bits(function: Callable[..., Any], *values: Any) -> Any:
    """What `function` gives for integers of 64 bits, in their own dtype again, of which TensorFlow (2.21) has it not.

    The last bits of sums and products are the same.
    """
    if not values[0].dtype.is_integer or values[0].dtype in (tf.int32, tf.int64):
        return function(*values)
    return tf.cast(function(*[tf.cast(each, tf.int64) for each in values]), values[0].dtype)


def summed(x: Any, dtype: Any) -> Any:
    """`x` in the dtype of its sum: `dtype`, or 64 bits for integers."""
    x = tensor(x)
    if dtype is not None:
        return cast(x, as_dtype(dtype))
    if x.dtype.is_bool or (x.dtype.is_integer and not x.dtype.is_unsigned):
        return tf.cast(x, tf.int64)
    return tf.cast(x, tf.uint64) if x.dtype.is_integer else x


def rolled(x: Any, shifts: Any, axis: Any) -> Any:
    """`x`, rolled by as many shifts as there are axes.

    tf.roll (2.21) refuses no axes at all, and along a negative one it rolls the batch of tf.vectorized_map.
    """
    axes = composed.axes_of(axis, x.shape.rank)
    return tf.roll(x, shifts(axes), axes) if axes else x


def size(x: Any, axis: int) -> Any:
    """The size of an axis: a number, or a tensor where it is not known yet."""
    known = x.shape[axis]
    return tf.shape(x)[axis] if known is None else known
