"""Tensors that stand for others in a graph: of variables (resources), and of the lists in a TensorArray (variants)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

# TensorFlow (2.21) has no public name for it. If it is gone, importing this file fails, and with it the backend.
from tensorflow.python.ops.handle_data_util import get_resource_handle_data

from keras_cg.backends.tensorflow.composite import is_floating

HANDLES = (tf.resource, tf.variant)


def element_dtype(tensor: Any) -> Any:
    """Returns the dtype of what a tensor of a graph stands for, if that has a gradient, else None."""
    if tensor.dtype not in HANDLES:
        return tensor.dtype if is_floating(tensor) else None
    elements = get_resource_handle_data(tensor).shape_and_type
    dtype = tf.dtypes.as_dtype(elements[0].dtype) if len(elements) == 1 else tf.variant
    return dtype if dtype.is_floating or dtype.is_complex else None


def read(tensor: Any) -> Any:
    """Returns the value of a variable from its handle, and any other tensor itself.

    A graph would take an operation on the handle for one that assigns to the variable.
    """
    if tensor.dtype != tf.resource:
        return tensor
    return tf.raw_ops.ReadVariableOp(resource=tensor, dtype=element_dtype(tensor))


def map_elements(function: Callable[[Any], Any], tensor: Any) -> Any:
    """Returns `function` of a tensor, or the list of its elements after `function`."""
    if tensor.dtype != tf.variant:
        return function(tensor)
    shape = tf.raw_ops.TensorListElementShape(input_handle=tensor, shape_type=tf.int32)
    kind = element_dtype(tensor)
    elements = tf.raw_ops.TensorListStack(input_handle=tensor, element_shape=shape, element_dtype=kind)
    return tf.raw_ops.TensorListFromTensor(tensor=function(elements), element_shape=shape)
