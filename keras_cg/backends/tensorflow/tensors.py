"""Which values TensorFlow can hold as tensors, and what they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy
import tensorflow as tf

from keras_cg.backends.tensorflow.composite import PLAIN, dense, is_composite
from keras_cg.backends.tensorflow.recording import could_possibly_record
from keras_cg.engine import precision
from keras_cg.engine.defaults import is_repeated_later
from keras_cg.engine.precision import is_repeated

# This backend, for functions of the engine.
this_backend: Any = sys.modules[__package__]

tensors = (tf.Tensor, tf.Variable, tf.__internal__.CompositeTensor)


# The most frequent types that are no tensors, because `tf.is_tensor` takes 8 us to say no (TensorFlow 2.21).
_OTHERS = frozenset(
    (type(None), bool, int, float, complex, str, bytes, tuple, list, dict, type, FunctionType, ModuleType)
)


def is_tensor(value: object) -> bool:
    kind = type(value)
    if kind in PLAIN:
        return True
    if kind in _OTHERS:
        return False
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return value.dtype.kind in "biufc"
    try:
        return bool(tf.is_tensor(value))
    except Exception:
        # TensorFlow (2.21) reads an attribute of the object, which may raise any exception.
        return False


def asarray(value: Any) -> Any:
    if type(value) is PLAIN[0] and tf.executing_eagerly():
        return value
    if isinstance(value, tf.IndexedSlices) and value.dense_shape is not None and not tf.is_tensor(value.dense_shape):
        # TensorFlow (2.21) takes `table.shape` too, but the slices have no shape then.
        return tf.IndexedSlices(value.values, value.indices, tf.convert_to_tensor(value.dense_shape))
    return value if is_composite(value) else tf.convert_to_tensor(value)


def to_numpy(tensor: Any) -> numpy.ndarray:
    whole = dense(tensor)
    # By its method, because NumPy refuses a single bfloat16 (TensorFlow 2.21).
    return numpy.asarray(whole.numpy() if hasattr(whole, "numpy") else whole)


def shape(tensor: Any) -> tuple[int | None, ...] | None:
    if type(tensor) is PLAIN[0]:
        return tuple(tensor.shape)
    if isinstance(tensor, tf.IndexedSlices):
        # Its own shape does not tell the shape of its values.
        return (tensor.shape[0] if tensor.shape.rank else None, *tensor.values.shape[1:])
    return None if tensor.shape.rank is None else tuple(tensor.shape)


def dtype(tensor: Any) -> str:
    return str(tensor.dtype.name)


def cast(value: Any, dtype: str) -> Any:
    return tf.cast(value, dtype)


def children(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    # TensorFlow wraps lists and dicts that are attributes of a module or a layer, to save them with it.
    if isinstance(value, list):
        return list(value), list
    if isinstance(value, dict):
        return list(value.values()), lambda parts: dict(zip(value, parts, strict=True))
    if hasattr(value, "__tf_flatten__") or hasattr(value, "__attrs_attrs__"):
        return tf.nest.flatten(value), lambda parts: tf.nest.pack_sequence_as(value, parts)
    if isinstance(value, tf.experimental.ExtensionType):
        parts = tf.nest.flatten(value, expand_composites=True)
        return parts, lambda parts: tf.nest.pack_sequence_as(value, parts, expand_composites=True)
    return None


def is_recording() -> bool:
    return not tf.executing_eagerly() or bool(could_possibly_record())


plain = frozenset(PLAIN[:1])


def is_plain(value: object) -> bool:
    return type(value) in plain


def is_known(tensors: Sequence[Any]) -> bool:
    return tf.executing_eagerly()  # type: ignore[no-any-return]


def agreement(pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
    # An array of NumPy counts as a tensor.
    return [_agree(*[tf.nest.flatten(asarray(each), expand_composites=True) for each in pair]) for pair in pairs]


def _agree(ones: Sequence[Any], others: Sequence[Any]) -> Any:
    """Whether the components of two tensors are equal up to rounding."""
    if [(dtype(one), shape(one)) for one in ones] != [(dtype(two), shape(two)) for two in others]:
        return False
    pairs = zip(ones, others, strict=True)
    if tf.executing_eagerly():
        return all([is_repeated(to_numpy(two), to_numpy(one), precision.of(dtype(one)).repeated) for one, two in pairs])
    return tf.reduce_all([is_repeated_later(this_backend, two, tf.stop_gradient(one)) for one, two in pairs])


def nan_unless(conditions: Sequence[Any]) -> Any:
    """Returns zero if all conditions hold, else NaN, which stands for an error in a graph."""
    return tf.where(tf.reduce_all(conditions), 0.0, numpy.nan)
