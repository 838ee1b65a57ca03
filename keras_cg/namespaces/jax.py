"""The functions of `keras_cg.ops` on JAX: those of `jax.numpy`, and those that it lacks or has wrong."""

from __future__ import annotations

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp

from keras_cg.namespaces import composed, table
from keras_cg.namespaces.table import NUMBERS

# --- what jax.numpy has otherwise ----------------------------------------------------------------


def concat(arrays: Any, /, axis: int | None = 0) -> Any:
    return jnp.concat(arrays, axis=axis)


def permute_dims(x: Any, /, axes: Any) -> Any:
    return jnp.transpose(x, axes)  # jax.numpy.permute_dims (0.10) refuses negative axes


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    kind = jnp.result_type(x)
    if jnp.issubdtype(kind, jnp.integer):
        # jax.numpy.clip (0.10) lets a bound that the dtype of x does not hold wrap. One that bounds nothing is left
        # out, and jax.numpy.asarray raises for every other.
        limits = jnp.iinfo(kind)  # type: ignore[no-untyped-call]
        min = None if isinstance(min, int) and min <= limits.min else _bound(min, kind)
        max = None if isinstance(max, int) and max >= limits.max else _bound(max, kind)
    return jnp.clip(x, min, max)


def _bound(bound: Any, kind: Any) -> Any:
    return jnp.asarray(bound, kind) if isinstance(bound, int) else bound


def acosh(x: Any, /) -> Any:
    return _acosh(jnp.asarray(x)) if jnp.iscomplexobj(x) else jnp.acosh(x)


# The derivative of jax.numpy.acosh (0.10) has the wrong sign where the real part is negative.
_acosh = jax.custom_jvp(jnp.acosh)
_acosh.defjvps(lambda tangent, _, z: tangent / (jnp.sqrt(z - 1) * jnp.sqrt(z + 1)))


def hypot(x1: Any, x2: Any, /) -> Any:
    kind = jnp.result_type(x1, x2)
    if not jnp.issubdtype(kind, jnp.floating):
        return jnp.hypot(x1, x2)
    return composed.hypot(jnp, jax.lax.stop_gradient, jnp.asarray(x1, kind), jnp.asarray(x2, kind))


def pow(x1: Any, x2: Any, /) -> Any:
    if isinstance(x2, NUMBERS) or not jnp.issubdtype(jnp.result_type(x2), jnp.inexact):
        return jnp.pow(x1, x2)
    kind = jnp.result_type(x1, x2)
    return _power(jnp.asarray(x1, kind), jnp.asarray(x2, kind))


@jax.custom_jvp
def _power(x: Any, y: Any) -> Any:
    return jnp.pow(x, y)


def _power_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Leaves out the derivative by a constant, which may be infinite."""
    x, y = primals
    slopes = composed.slopes(jnp, _power, jnp.log(jnp.where(x == 0, 1, x)), x, y)
    pairs = zip(slopes, tangents, strict=True)
    parts = [slope * each for slope, each in pairs if not isinstance(each, jax.custom_derivatives.SymbolicZero)]
    return _power(x, y), functools.reduce(jnp.add, parts)


_power.defjvp(_power_jvp, symbolic_zeros=True)


def sign(x: Any, /) -> Any:
    if not jnp.iscomplexobj(x):
        return jnp.sign(x)
    # jax.numpy.sign (0.10) of complex numbers has the gradient 0.
    x, is_zero = jnp.asarray(x), jnp.equal(x, 0)
    return jnp.where(is_zero, 0, x / jnp.abs(jnp.where(is_zero, 1, x)))


# jax.numpy.all and any (0.10) ignore imaginary parts.


def all(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    return jnp.all(jnp.not_equal(x, 0), axis, keepdims=keepdims)


def any(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Any:
    return jnp.any(jnp.not_equal(x, 0), axis, keepdims=keepdims)


# --- of other modules ----------------------------------------------------------------------------


def erf(x: Any, /) -> Any:
    # The second derivative of jax.scipy.special.erf (0.10) is NaN at infinity.
    return jax.scipy.special.erf(jnp.clip(_floating(x), *table.ERF_BOUNDS))


def relu(x: Any, /) -> Any:
    return jax.nn.relu(x)


def sigmoid(x: Any, /) -> Any:
    return jax.nn.sigmoid(_floating(x))


def log_softmax(x: Any, /, *, axis: int = -1) -> Any:
    return jax.nn.log_softmax(_floating(x), axis)


def softmax(x: Any, /, *, axis: int = -1) -> Any:
    return jax.nn.softmax(_floating(x), axis)


def _floating(x: Any) -> Any:
    # Several functions of jax.nn (0.10) refuse integers, or subtract them while they are unsigned.
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(float)


namespace = table.Namespace(jnp, table.defined(sys.modules[__name__]))
