"""Tensors that are made of several (ragged, sparse, slices), and plain ones, laid out alike.

The components of a tensor are those that it is made of, of a plain one itself; its parts are those with a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

# What is a tensor and nothing more: for most values the exact type tells at once what else takes several questions.
PLAIN = (tf.__internal__.EagerTensor, tf.__internal__.SymbolicTensor)


def is_composite(value: Any) -> bool:
    """Whether something is made of several tensors."""
    return isinstance(value, tf.__internal__.CompositeTensor) and not isinstance(value, tf.Variable)


def is_floating(tensor: Any) -> bool:
    """Whether a tensor has a gradient."""
    dtype = tensor.dtype
    return bool(dtype.is_floating or dtype.is_complex)


def is_part(value: object) -> bool:
    """Whether something is a plain tensor with a gradient."""
    return isinstance(value, tf.Tensor) and is_floating(value)


def components(tensors: Sequence[Any]) -> list[Any]:
    """All that `tensors` are made of."""
    if all([type(tensor) in PLAIN for tensor in tensors]):
        return list(tensors)
    return list(tf.nest.flatten(list(tensors), expand_composites=True))


def parts(tensors: Sequence[Any]) -> list[Any]:
    """Those of the components that have a gradient."""
    return [component for component in components(tensors) if is_floating(component)]


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
    return tuple([fill(tensor, filling) for tensor in tensors])


def mapped(function: Callable[[Any], Any], tensor: Any) -> Any:
    """`tensor` made of `function` of each of its components."""
    if type(tensor) in PLAIN:
        return function(tensor)
    return tf.nest.map_structure(function, tensor, expand_composites=True)


def dense(tensor: Any) -> Any:
    """A tensor with all its elements: the gradient of what was gathered comes as slices."""
    return tf.convert_to_tensor(tensor) if isinstance(tensor, tf.IndexedSlices) else tensor
