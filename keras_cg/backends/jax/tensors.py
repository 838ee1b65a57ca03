"""Which values JAX can hold as tensors, and whether it differentiates, batches or traces."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as namespace
import numpy

from keras_cg.backends.jax.names import trace_state

tensors = (jax.Array, jax.core.Tracer)


def is_tensor(value: object) -> bool:
    if isinstance(value, jax.Array):
        return True
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return namespace.issubdtype(value.dtype, numpy.number) or value.dtype == bool
    return False


def asarray(value: Any) -> Any:
    # Converting a traced array would add an operation to the program (JAX 0.10).
    return value if isinstance(value, jax.Array) else namespace.asarray(value)


def to_numpy(tensor: Any) -> numpy.ndarray:
    return numpy.asarray(tensor)


def shape(tensor: Any) -> tuple[int | None, ...]:
    return tuple(tensor.shape)


def dtype(tensor: Any) -> str:
    return _name(tensor.dtype)


_name = functools.cache(str)


def cast(value: Any, dtype: str) -> Any:
    return value.astype(dtype)


def children(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    if isinstance(value, Iterator):
        return None  # JAX (0.10) would warn that it was asked to flatten an iterator.
    # One level of a type registered with jax.tree_util: optree has flattened the usual containers already.
    parts, spec = jax.tree_util.tree_flatten(value, is_leaf=lambda part: part is not value)
    # For JAX (0.10), a container without children is a leaf, too.
    if value is None or any([part is value for part in parts]):
        return None
    return parts, lambda parts: jax.tree_util.tree_unflatten(spec, parts)


def is_recording() -> bool:
    return bool(trace_state() != _NOTHING)


# The state of JAX where nothing is differentiated, batched or traced.
with jax.core.eval_context():
    _NOTHING = trace_state()


def is_known(tensors: Sequence[Any]) -> bool:
    # A tracer is what JAX differentiates, batches or puts into a program.
    return not any([isinstance(tensor, jax.core.Tracer) for tensor in tensors])


# `isinstance(value, jax.Array)` without a frame of Python, because each call asks it several times. No class of tracers
# is plain by itself: one may stand for a reference, which is no array.
is_plain = jax.Array.__instancecheck__


def types(tensors: Sequence[Any]) -> list[Any]:
    return [jax.typeof(tensor) for tensor in tensors]


def is_floating(value: Any) -> bool:
    """Whether a tensor or its type is real floating or complex, so that it has a gradient."""
    return _is_inexact(value.dtype)


@functools.cache
def _is_inexact(dtype: Any) -> bool:
    return bool(namespace.issubdtype(dtype, namespace.inexact))


def conjugate(tensor: Any) -> Any:
    """Returns a gradient in the other convention: JAX's gradient of a real loss at x + iy is dL/dx - i dL/dy."""
    return namespace.conj(tensor) if tensor.dtype.kind == "c" else tensor
