"""The elementwise functions on TensorFlow, most of them of `tf.experimental.numpy`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_cg.namespaces import composed
from keras_cg.namespaces.tensorflow.promoted import binary, cast, floating, same, tensor, unary

tnp = tf.experimental.numpy


def _holomorphic(name: str, slope: Callable[[Any], Any]) -> Callable[..., Any]:
    """Gives a function of floating-point numbers the derivative `slope` where these are complex.

    XLA's gradients (2.21) of complex square roots and reciprocals lack a conjugate, and TensorFlow's gradients of
    these functions compute with reciprocals, so the second derivative would be wrong. That of a quotient is right.
    """
    function = floating(getattr(tnp, name))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def of_complex(z: Any) -> Any:
        return function(z), lambda upstream: upstream * tf.math.conj(slope(z))

    def call(x: Any, /) -> Any:
        x = tensor(x)
        return of_complex(x) if x.dtype.is_complex else function(x)

    return call


sqrt: Callable[..., Any] = _holomorphic("sqrt", lambda z: 0.5 / sqrt(z))
log, log1p = _holomorphic("log", lambda z: 1 / z), _holomorphic("log1p", lambda z: 1 / (1 + z))
log2 = _holomorphic("log2", lambda z: 1 / (z * math.log(2)))
log10 = _holomorphic("log10", lambda z: 1 / (z * math.log(10)))
tan: Callable[..., Any] = _holomorphic("tan", lambda z: 1 + tan(z) ** 2)
acos = _holomorphic("arccos", lambda z: -1 / sqrt(1 - z * z))
asin = _holomorphic("arcsin", lambda z: 1 / sqrt(1 - z * z))
atan, atanh = _holomorphic("arctan", lambda z: 1 / (1 + z * z)), _holomorphic("arctanh", lambda z: 1 / (1 - z * z))

acosh, asinh, atan2 = map(floating, (tnp.arccosh, tnp.arcsinh, tnp.arctan2))
cos, cosh, sin, sinh, tanh = map(floating, (tnp.cos, tnp.cosh, tnp.sin, tnp.sinh, tnp.tanh))
exp, expm1 = map(floating, (tnp.exp, tnp.expm1))

abs, conj, imag, real = map(unary, (tnp.abs, tnp.conj, tnp.imag, tnp.real))
logical_not, negative, square = map(unary, (tnp.logical_not, tnp.negative, tnp.square))
add, subtract, multiply, divide = map(binary, (tnp.add, tnp.subtract, tnp.multiply, tnp.true_divide))
floor_divide, remainder = map(binary, (tf.math.floordiv, tnp.remainder))
maximum, minimum, equal, not_equal = map(binary, (tnp.maximum, tnp.minimum, tnp.equal, tnp.not_equal))
greater, greater_equal, less, less_equal = map(binary, (tnp.greater, tnp.greater_equal, tnp.less, tnp.less_equal))
logical_and, logical_or, logical_xor = map(binary, (tnp.logical_and, tnp.logical_or, tnp.logical_xor))


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    x = tensor(x)
    if x.dtype.is_integer:
        # No number of the dtype exceeds such a bound, and the dtype cannot represent it.
        min = None if isinstance(min, int) and min <= x.dtype.min else min
        max = None if isinstance(max, int) and max >= x.dtype.max else max
    x = x if min is None else tf.maximum(*same(x, min))
    return x if max is None else tf.minimum(*same(x, max))


hypot = floating(functools.partial(composed.hypot, tf, tf.stop_gradient))
logaddexp = floating(functools.partial(composed.logaddexp, tnp))


def _of_parts(asked: Callable[[Any], Any], whole: bool, joined: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Asks a function of floats about `x`, or about both parts of a complex `x`; the answer for integers is `whole`."""

    def call(x: Any, /) -> Any:
        x = tensor(x)
        if x.dtype.is_complex:
            return joined(asked(tf.math.real(x)), asked(tf.math.imag(x)))
        return asked(x) if x.dtype.is_floating else tf.fill(tf.shape(x), whole)

    return call


isfinite = _of_parts(tf.math.is_finite, True, tf.logical_and)
isinf, isnan = (_of_parts(asked, False, tf.logical_or) for asked in (tf.math.is_inf, tf.math.is_nan))


def pow(x1: Any, x2: Any, /) -> Any:
    x1, x2 = same(x1, x2)
    if x1.dtype.is_integer:
        return tf.pow(x1, x2)
    # The rule of _power needs equal shapes.
    first = tf.where(tf.ones_like(x2, tf.bool), x1, x1)
    return _power(first, tf.where(tf.ones_like(first, tf.bool), x2, x2))


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _power(x: Any, y: Any) -> Any:
    """Computes a power whose derivative by `x` is 0 where `y` is 0; TensorFlow's (2.21) is NaN if both are 0."""

    def grad(upstream: Any) -> tuple[Any, Any]:
        # Where there is no logarithm, the derivative by the exponent is 0, as in TensorFlow.
        has_logarithm = x != 0 if x.dtype.is_complex else x > 0
        logarithm = log(tf.where(has_logarithm, x, tf.ones_like(x)))
        by_x, by_y = composed.slopes(tf, _power, logarithm, x, y)
        return upstream * tf.math.conj(by_x), upstream * tf.math.conj(by_y)

    return tf.pow(x, y), grad


def reciprocal(x: Any, /) -> Any:
    return divide(1, x)


def sign(x: Any, /) -> Any:
    x = tensor(x)
    if not x.dtype.is_complex:
        return tf.sign(x)
    # tf.sign (2.21) has no gradient for complex numbers.
    length = tf.abs(x)
    return x / cast(tf.where(length == 0, tf.ones_like(length), length), x.dtype)


def _rounded(function: Callable[[Any], Any]) -> Callable[..., Any]:
    """Leaves integers as they are."""

    def call(x: Any, /) -> Any:
        x = tensor(x)
        return x if x.dtype.is_integer or x.dtype.is_bool else function(x)

    return call


ceil, floor, round = map(_rounded, (tf.math.ceil, tf.math.floor, tf.round))
trunc = _rounded(lambda x: tf.where(x < 0, tf.math.ceil(x), tf.math.floor(x)))
