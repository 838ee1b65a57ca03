"""Composite tensors, which are made of several tensors (ragged, sparse, slices), and plain tensors, treated alike.

The components of a composite tensor are the tensors that it is made of; a plain tensor is its own component. The parts
are those components that have a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

# The types of plain tensors: comparing them with the type of a value is quicker than any other test.
PLAIN = (tf.__internal__.EagerTensor, tf.__internal__.SymbolicTensor)


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


def components(tensors: Sequence[Any]) -> list[Any]:
    """Returns the components of all `tensors`."""
    if all([type(tensor) in PLAIN for tensor in tensors]):
        return list(tensors)
    return list(tf.nest.flatten(list(tensors), expand_composites=True))


def parts(tensors: Sequence[Any]) -> list[Any]:
    """Returns the components that have a gradient."""
    return [component for component in components(tensors) if is_floating(component)]


def fill(tensor: Any, values: Iterator[Any]) -> Any:
    """Returns `tensor` with its parts replaced by the next ones of `values`."""
    if type(tensor) in PLAIN:
        return marked(next(values), tensor) if is_floating(tensor) else tensor
    flat = tf.nest.flatten(tensor, expand_composites=True)
    filled = [next(values) if is_floating(component) else component for component in flat]
    return tf.nest.pack_sequence_as(tensor, filled, expand_composites=True)


def marked(copy: Any, tensor: Any) -> Any:
    """Returns `copy` with the attributes that were set on `tensor`. Keras (3.15) keeps the mask of a sequence in one."""
    vars(copy).update(vars(tensor))
    return copy


def fill_all(tensors: Sequence[Any], values: Sequence[Any]) -> tuple[Any, ...]:
    """Returns `tensors` with all their parts replaced by `values`."""
    filling = iter(values)
    return tuple([fill(tensor, filling) for tensor in tensors])


def mapped(function: Callable[[Any], Any], tensor: Any) -> Any:
    """Returns `tensor` with each component replaced by `function` of it."""
    if type(tensor) in PLAIN:
        return function(tensor)
    return tf.nest.map_structure(function, tensor, expand_composites=True)


def dense(tensor: Any) -> Any:
    """Returns a tensor with all its elements; the gradient of `tf.gather` comes as slices."""
    return tf.convert_to_tensor(tensor) if isinstance(tensor, tf.IndexedSlices) else tensor
