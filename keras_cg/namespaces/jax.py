"""The functions of `keras_cg.ops` on JAX: those of `jax.numpy`, and those that it has otherwise than the standard."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg

from keras_cg.namespaces import composed, standard

# --- data types and manipulation -----------------------------------------------------------------


def can_cast(from_: Any, to: Any, /) -> bool:
    return standard.can_cast(*[jnp.dtype(standard.dtype_of(kind)) for kind in (from_, to)])


def concat(arrays: Any, /, axis: int | None = 0) -> Any:
    return jnp.concat(arrays, axis=axis)


def expand_dims(x: Any, /, axis: Any = 0) -> Any:
    return jnp.expand_dims(x, axis)


def permute_dims(x: Any, /, axes: Any) -> Any:
    return jnp.transpose(x, axes)  # jax.numpy.permute_dims (0.10) refuses negative axes


def unstack(x: Any, /, axis: int = 0) -> Any:
    return jnp.unstack(x, axis=axis)


# --- elementwise ---------------------------------------------------------------------------------


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


def sign(x: Any, /) -> Any:
    if not jnp.iscomplexobj(x):
        return jnp.sign(x)
    # jax.numpy.sign (0.10) of complex numbers has the gradient 0.
    x, is_zero = jnp.asarray(x), jnp.equal(x, 0)
    return jnp.where(is_zero, 0, x / jnp.abs(jnp.where(is_zero, 1, x)))


# --- sets and statistics -------------------------------------------------------------------------


# jax.numpy.all and any (0.10) ignore imaginary parts.


def all(x: Any, /, axis: Any = None, *, keepdims: bool = False, **others: Any) -> Any:
    return jnp.all(jnp.not_equal(x, 0), axis, keepdims=keepdims, **others)


def any(x: Any, /, axis: Any = None, *, keepdims: bool = False, **others: Any) -> Any:
    return jnp.any(jnp.not_equal(x, 0), axis, keepdims=keepdims, **others)


def cumulative_prod(x: Any, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False) -> Any:
    # jax.numpy.cumulative_prod (0.10) keeps small integers small, other than cumulative_sum and prod.
    dtype = dtype or jnp.prod(jnp.empty(0, jnp.result_type(x))).dtype
    return jnp.cumulative_prod(x, axis=axis, dtype=dtype, include_initial=include_initial)


def cumulative_sum(x: Any, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False) -> Any:
    return jnp.cumulative_sum(x, axis=axis, dtype=dtype, include_initial=include_initial)


def unique_all(x: Any, /, *, size: int | None = None) -> standard.UniqueAllResult:
    # The values of jax.numpy (0.10) have the gradient 0: each value is picked from where it is first.
    _, indices, inverse, counts = jnp.unique_all(x, size=size)
    return standard.UniqueAllResult(jnp.ravel(x)[indices], indices, inverse, counts)


unique_counts, unique_inverse, unique_values = composed.uniques(unique_all)


def std(x: Any, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False, **others: Any) -> Any:
    return _corrected(functools.partial(jnp.std, x, axis, keepdims=keepdims, **others), x, correction)


def var(x: Any, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False, **others: Any) -> Any:
    return _corrected(functools.partial(jnp.var, x, axis, keepdims=keepdims, **others), x, correction)


def _corrected(function: Callable[..., Any], x: Any, correction: float) -> Any:
    plain = function()
    if not correction:
        return plain
    # jax.numpy.var and std (0.10) are NaN where the correction is not smaller than the count; NumPy's are infinite.
    is_small = jnp.size(x) // max(jnp.size(plain), 1) > correction
    return function(correction=correction) if is_small else plain / 0.0


# --- linear algebra ------------------------------------------------------------------------------


def det(x: Any, /) -> Any:
    """Returns the determinant, whose derivatives are right where it is zero.

    jax.numpy.linalg.det (0.10) is right up to three rows. At a larger singular matrix its gradient is 0, unless the
    zero is the last pivot, and its second derivative is NaN. The matrix is shifted there, by little and in both
    directions, in the columns where the factor U has a zero on its diagonal.
    """
    x = jnp.asarray(x)
    if x.ndim < 2 or x.shape[-1] < 4 or not jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.linalg.det(x)
    constant = jax.lax.stop_gradient(x)
    permutation, lower, upper = jax.scipy.linalg.lu(constant)
    is_zero = jnp.diagonal(upper, axis1=-2, axis2=-1) == 0
    scale = jnp.max(jnp.abs(constant), (-2, -1), keepdims=True)
    # The cube root balances what the shift is wrong by with what rounding is, in the second derivative.
    step = float(jnp.finfo(x.dtype).eps) ** (1 / 3)  # type: ignore[no-untyped-call]
    shift = jnp.where(is_zero[..., None, :], permutation @ lower * step * jnp.where(scale == 0, 1, scale), 0)
    value = (jnp.linalg.det(x + shift) + jnp.linalg.det(x - shift)) / 2
    return value - jnp.where(is_zero.any(-1), jax.lax.stop_gradient(value), 0)


# --- beyond the standard -------------------------------------------------------------------------


def erf(x: Any, /) -> Any:
    # The second derivative of jax.scipy.special.erf (0.10) is NaN at infinity.
    return jax.scipy.special.erf(jnp.clip(_floating(x), *standard.ERF_BOUNDS))


def relu(x: Any, /) -> Any:
    return jax.nn.relu(x)


def sigmoid(x: Any, /) -> Any:
    return jax.nn.sigmoid(_floating(x))


def softplus(x: Any, /) -> Any:
    return jax.nn.softplus(_floating(x))


def log_softmax(x: Any, /, *, axis: int = -1) -> Any:
    return jax.nn.log_softmax(_floating(x), axis)


def softmax(x: Any, /, *, axis: int = -1) -> Any:
    return jax.nn.softmax(_floating(x), axis)


def logsumexp(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    return jax.nn.logsumexp(_floating(x), axis, keepdims=keepdims)


def _floating(x: Any) -> Any:
    # Several functions of jax.nn (0.10) refuse integers, or subtract them while they are unsigned.
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(float)


namespace = standard.Namespace(
    jnp,
    {name: value for name, value in standard.defined(sys.modules[__name__]).items() if name != "det"},
    linalg=standard.Namespace(jnp.linalg, {"det": det}),
)
