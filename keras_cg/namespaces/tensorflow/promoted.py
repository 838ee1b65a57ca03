"""The dtypes of numbers and of several tensors on TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy
import tensorflow as tf

from keras_cg.namespaces.table import NUMBERS, dtype_of


def unconverted(*modules: ModuleType) -> None:
    """Keeps AutoGraph from converting the functions of modules, none of which branches or loops over tensors."""
    # Converting them would make tracing three times as long; see `autograph_info__` in decorator.py.
    for module in modules:
        for function in vars(module).values():
            if isinstance(function, FunctionType) and function.__module__.startswith("keras_cg."):
                function.autograph_info__ = None  # type: ignore[attr-defined]


def as_dtype(dtype: Any) -> Any:
    """Returns the dtype of TensorFlow for a name, a type of Python, or a dtype of NumPy."""
    # tf.as_dtype (2.21) makes `float` a float32, and refuses `int`.
    return tf.as_dtype(numpy.dtype(dtype) if any(dtype is each for each in NUMBERS) else dtype)


def numpy_dtype(value: Any) -> numpy.dtype[Any]:
    """Returns NumPy's dtype for that of a tensor, or for an argument of `as_dtype`."""
    return numpy.dtype(as_dtype(dtype_of(value)).as_numpy_dtype)  # type: ignore[no-any-return]


def result_type(*arrays_and_dtypes: Any) -> Any:
    """Returns the dtype of several tensors or dtypes; Python numbers decide only its kind."""
    numbers = [each for each in arrays_and_dtypes if isinstance(each, NUMBERS)]
    kinds = [numpy_dtype(each) for each in arrays_and_dtypes if not isinstance(each, NUMBERS)]
    kind = numpy.result_type(*kinds) if kinds else None
    if kind == tf.bfloat16.as_numpy_dtype:
        # numpy.result_type makes bfloat16 beside a Python number a float64.
        if not any(isinstance(each, complex) for each in numbers):
            return tf.bfloat16
        kind = numpy.dtype(numpy.float32)
    return tf.as_dtype(numpy.result_type(*([] if kind is None else [kind]), *numbers))


def number(value: Any, kind: Any = None) -> Any:
    """Returns a Python number as a tensor of a dtype, or of its default dtype."""
    # TensorFlow (2.21) caches tensors of Python numbers and confuses 0.0 with -0.0, so the number becomes an array.
    return tf.constant(numpy.asarray(value, None if kind is None else kind.as_numpy_dtype))


def tensor(x: Any) -> Any:
    """Returns `x` as a tensor, a Python number in its default dtype."""
    return number(x) if isinstance(x, NUMBERS) else tf.convert_to_tensor(x)


def same(*values: Any) -> list[Any]:
    """Returns tensors of the dtype that all values promote to; Python numbers decide only its kind."""
    kinds = {each.dtype if isinstance(each, tf.Tensor) else None for each in values}
    if len(kinds) == 1 and None not in kinds:
        return [*values]
    parts = [each if isinstance(each, NUMBERS) else tf.convert_to_tensor(each) for each in values]
    kind = result_type(*parts)
    return [number(each, kind) if isinstance(each, NUMBERS) else cast(each, kind) for each in parts]


def cast(x: Any, kind: Any) -> Any:
    """Casts `x`; the gradient of tf.cast (2.21) between real and complex would log warnings."""
    if x.dtype.is_complex and kind.is_bool:
        return x != 0
    if kind.is_complex and not x.dtype.is_complex:
        real = tf.cast(x, kind.real_dtype)
        return tf.complex(real, tf.zeros_like(real))
    return tf.cast(tf.math.real(x), kind) if x.dtype.is_complex and not kind.is_complex else tf.cast(x, kind)


def binary(function: Callable[..., Any]) -> Callable[..., Any]:
    """Applies `same` to the arguments of a function."""

    def call(x1: Any, x2: Any, /) -> Any:
        return function(*same(x1, x2))

    return call


def unary(function: Callable[..., Any]) -> Callable[..., Any]:
    """Converts the argument of a function to a tensor."""

    def call(x: Any, /) -> Any:
        return function(tensor(x))

    return call


def floating(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a function of tnp, which fails (2.21) at integers and at bfloat16, compute both.

    Integers are computed in float64, as in NumPy, and bfloat16 in float32, whose result is rounded once.
    """

    @functools.wraps(function)
    def computed(*args: Any) -> Any:
        values = same(*args)
        kind = values[0].dtype
        if kind == tf.bfloat16:
            return tf.cast(function(*[tf.cast(each, tf.float32) for each in values]), kind)
        return function(*(values if kind.is_floating or kind.is_complex else [tf.cast(x, tf.float64) for x in values]))

    computed.autograph_info__ = None  # type: ignore[attr-defined]  # see `unconverted`
    return computed


def size(x: Any, axis: int) -> Any:
    """Returns the size of an axis: a number, or a tensor where a graph does not know it."""
    known = x.shape[axis]
    return tf.shape(x)[axis] if known is None else known
