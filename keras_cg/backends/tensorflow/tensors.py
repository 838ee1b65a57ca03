"""TensorFlow's tensors. Composite ones (ragged, sparse, slices) are laid out as the tensors that they are made of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import tensorflow as tf

# Who records has no public name (TensorFlow 2.21). If one of these is gone, importing this file fails, and with it the
# backend.
from tensorflow.python.eager.forwardprop_util import pack_tangents
from tensorflow.python.eager.record import could_possibly_record, should_record_backprop, stop_recording

namespace = tf.experimental.numpy
tensors = (tf.Tensor, tf.Variable, tf.__internal__.CompositeTensor)

# What is a tensor and nothing more: for most values the exact type tells at once what else takes several questions.
PLAIN = (tf.__internal__.EagerTensor, tf.__internal__.SymbolicTensor)


def is_tensor(value: object) -> bool:
    if type(value) in PLAIN:
        return True
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return value.dtype.kind in "biufc"
    return bool(tf.is_tensor(value))


def asarray(value: Any) -> Any:
    if type(value) is PLAIN[0] and tf.executing_eagerly():
        return value
    return value if is_composite(value) else tf.convert_to_tensor(value)


def to_numpy(tensor: Any) -> numpy.ndarray:
    if isinstance(tensor, tf.RaggedTensor):
        tensor = tensor.to_tensor()
    elif isinstance(tensor, tf.SparseTensor):
        tensor = tf.sparse.to_dense(tensor)
    whole = dense(tensor)
    # By its method, for NumPy refuses a single bfloat16 (TensorFlow 2.21).
    return numpy.asarray(whole.numpy() if hasattr(whole, "numpy") else whole)


def shape(tensor: Any) -> tuple[int | None, ...] | None:
    if type(tensor) is PLAIN[0]:
        return tuple(tensor.shape)
    if isinstance(tensor, tf.IndexedSlices):
        # Its own shape says nothing of what its values are.
        return (tensor.shape[0] if tensor.shape.rank else None, *tensor.values.shape[1:])
    return None if tensor.shape.rank is None else tuple(tensor.shape)


def dtype(tensor: Any) -> str:
    return str(tensor.dtype.name)


def cast(value: Any, dtype: str) -> Any:
    return tf.cast(value, dtype)


def children(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    # Lists and dicts that are attributes of a module or a layer are wrapped, so that they are saved with it.
    if isinstance(value, list):
        return list(value), list
    if isinstance(value, dict):
        return list(value.values()), lambda parts: dict(zip(value, parts, strict=True))
    if hasattr(value, "__tf_flatten__") or hasattr(value, "__attrs_attrs__"):
        return tf.nest.flatten(value), lambda parts: tf.nest.pack_sequence_as(value, parts)
    return None


def is_recording() -> bool:
    return not tf.executing_eagerly() or bool(could_possibly_record())


def backend() -> Any:
    """This backend, for the engine."""
    return sys.modules[__package__]


def is_composite(value: Any) -> bool:
    """Whether something is made of several tensors."""
    return isinstance(value, tf.__internal__.CompositeTensor) and not isinstance(value, tf.Variable)


def is_floating(tensor: Any) -> bool:
    """Whether a tensor has a gradient."""
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def is_differentiated(tensors: list[Any]) -> bool:
    """Whether a tape records any of `tensors`, or an accumulator has a tangent for it."""
    return bool(should_record_backprop(tensors) or pack_tangents(tensors).tangents)


def components(tensors: Sequence[Any]) -> list[Any]:
    """`tensors`, composite ones as those that they are made of."""
    if all([type(tensor) in PLAIN for tensor in tensors]):
        return list(tensors)
    return list(tf.nest.flatten(list(tensors), expand_composites=True))


def parts(tensors: Sequence[Any]) -> list[Any]:
    """Those of the components that have a gradient."""
    return [part for part in components(tensors) if is_floating(part)]


def fill(tensor: Any, values: Iterator[Any]) -> Any:
    """`tensor` with the next ones of `values` in the places of its parts."""
    if type(tensor) in PLAIN:
        return next(values) if is_floating(tensor) else tensor
    flat = tf.nest.flatten(tensor, expand_composites=True)
    filled = [next(values) if is_floating(component) else component for component in flat]
    return tf.nest.pack_sequence_as(tensor, filled, expand_composites=True)


def fill_all(tensors: Sequence[Any], values: Sequence[Any]) -> tuple[Any, ...]:
    """`tensors` with `values` in the places of all their parts."""
    filling = iter(values)
    return tuple(fill(tensor, filling) for tensor in tensors)


def mapped(function: Callable[[Any], Any], tensor: Any) -> Any:
    """`function` of a tensor, or of every component of a composite one."""
    if type(tensor) in PLAIN:
        return function(tensor)
    return tf.nest.map_structure(function, tensor, expand_composites=True)


def copied(tensors: list[Any]) -> list[Any]:
    """The same values as tensors that no tape and no accumulator knows."""
    if not tensors:
        return []
    with stop_recording():
        # All by one operation, as most of its time is not spent on values.
        return list(tf.identity_n(tensors))


def apart(tensors: Sequence[Any]) -> list[Any]:
    """The same of tensors that may be composite."""
    copies = iter(copied(components(tensors)))
    return [mapped(lambda _: next(copies), tensor) for tensor in tensors]


def dense(tensor: Any) -> Any:
    """A tensor as one with all its elements: the gradient of what was gathered comes as slices."""
    return tf.convert_to_tensor(tensor) if isinstance(tensor, tf.IndexedSlices) else tensor


def total(tensors: Sequence[Any]) -> Any:
    """A number that hangs on all of `tensors`."""
    return tf.add_n([tf.reduce_sum(tf.cast(tf.math.real(tensor), tf.float32)) for tensor in tensors])


def nan_unless(conditions: Sequence[Any]) -> Any:
    """Zero if all conditions hold, else NaN, which stands for an error in a graph, where no value can be looked at."""
    return tf.where(tf.reduce_all(conditions), 0.0, numpy.nan)
