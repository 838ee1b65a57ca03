"""Composite tensors, which are made of several tensors (ragged, sparse, slices), and plain tensors, treated alike.

The components of a composite tensor are the tensors that it is made of; a plain tensor is its own component. The parts
are those components that have a gradient. In a graph, a tensor may also be a handle: of a variable (a resource), or of
the list in a `TensorArray` (a variant).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

# TensorFlow (2.21) has no public name for it. If it is gone, importing this file fails, and with it the backend.
from tensorflow.python.ops.handle_data_util import get_resource_handle_data

# The types of plain tensors: comparing them with the type of a value is quicker than any other test.
PLAIN = (tf.__internal__.EagerTensor, tf.__internal__.SymbolicTensor)

HANDLES = (tf.resource, tf.variant)


def is_composite(value: Any) -> bool:
    """Whether a value is made of several tensors."""
    return isinstance(value, tf.__internal__.CompositeTensor) and not isinstance(value, tf.Variable)


def is_floating(tensor: Any) -> bool:
    """Whether a tensor has a gradient."""
    dtype = tensor.dtype
    return bool(dtype.is_floating or dtype.is_complex)


def is_part(value: object) -> bool:
    """Whether a value is a plain tensor that has a gradient."""
    return isinstance(value, tf.Tensor) and is_floating(value)


class Parts:
    """The parts of some tensors, found once for each phase of a call.

    Attributes:
        tensors: The tensors.
        are_plain: Whether all of them are plain.
        are_floating: Which of their components have a gradient; of plain tensors, each is its own component.
        values: The components that have a gradient.
    """

    __slots__ = ("are_floating", "are_plain", "tensors", "values")

    def __init__(self, tensors: Sequence[Any]):
        self.tensors, self.are_plain, flat = tensors, True, tensors
        self.are_floating: list[bool] = []
        self.values: list[Any] = []
        # In loops, because each call asks twice and a comprehension costs a frame.
        for tensor in tensors:
            if type(tensor) not in PLAIN:
                self.are_plain, flat = False, tf.nest.flatten(list(tensors), expand_composites=True)
                break
        for component in flat:
            dtype = component.dtype
            is_part = bool(dtype.is_floating or dtype.is_complex)
            self.are_floating.append(is_part)
            if is_part:
                self.values.append(component)

    def filled(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the tensors with all their parts replaced by `values`."""
        filling = iter(values)
        if not self.are_plain:
            return tuple([fill(tensor, filling) for tensor in self.tensors])
        filled = list(self.tensors)
        for place, tensor in enumerate(self.tensors):
            if self.are_floating[place]:
                filled[place] = next(filling)
                vars(filled[place]).update(vars(tensor))  # like `marked`
        return tuple(filled)


def parts(tensors: Sequence[Any]) -> list[Any]:
    """Returns the components that have a gradient."""
    return Parts(tensors).values


def fill(tensor: Any, values: Iterator[Any]) -> Any:
    """Returns `tensor` with its parts replaced by the next ones of `values`."""
    if type(tensor) in PLAIN:
        return marked(next(values), tensor) if is_floating(tensor) else tensor
    flat = tf.nest.flatten(tensor, expand_composites=True)
    filled = [next(values) if is_floating(component) else component for component in flat]
    return tf.nest.pack_sequence_as(tensor, filled, expand_composites=True)


def marked(copy: Any, tensor: Any) -> Any:
    """Returns `copy` with the attributes that were set on `tensor`, such as the mask of a sequence by Keras (3.15)."""
    vars(copy).update(vars(tensor))
    return copy


def mapped(function: Callable[[Any], Any], tensor: Any) -> Any:
    """Returns `tensor` with each component replaced by `function` of it."""
    if type(tensor) in PLAIN:
        return function(tensor)
    return tf.nest.map_structure(function, tensor, expand_composites=True)


def dense(tensor: Any) -> Any:
    """Returns a tensor with all its elements; the gradient of `tf.gather` comes as slices."""
    return tf.convert_to_tensor(tensor) if isinstance(tensor, tf.IndexedSlices) else tensor


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
