"""The tensors of NumPy, and the boxes that autograd puts them in."""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import autograd.numpy as anp
import numpy
from autograd.builtins import DictBox, SequenceBox
from autograd.core import VJPNode
from autograd.extend import Box
from autograd.numpy.numpy_boxes import ArrayBox
from autograd.tracer import trace_stack

# Names that autograd does not document: if one is gone, importing this file fails, and with it the backend.
_NEEDED = (Box._value, Box._trace, Box._node, VJPNode.parents, trace_stack.top)

# A box never changes, so its copy is itself, also by `copy.deepcopy`: this would copy the nodes of autograd (1.9), and
# the value would silently lose its gradient (HIPS/autograd#555). pickle refuses a box.
for _box in Box.types:
    copyreg.pickle(_box, lambda box: "a box of autograd")

tensors = (numpy.ndarray, Box)
_arrays = (numpy.ndarray, numpy.generic)
_classes = (*_arrays, Box)


def is_tensor(value: object) -> bool:
    if isinstance(value, _arrays):
        return value.dtype.kind in "biufc"
    return isinstance(value, Box) and not isinstance(value, (SequenceBox, DictBox))


def asarray(value: Any) -> Any:
    return value if isinstance(value, _classes) else numpy.asarray(value)


def to_numpy(tensor: Any) -> numpy.ndarray:
    return numpy.asarray(innermost(tensor))


def shape(tensor: Any) -> tuple[int | None, ...]:
    # In autograd 1.8 a box may hold a number of Python, which has neither shape nor dtype.
    return numpy.shape(innermost(tensor))  # type: ignore[no-any-return]


def dtype(tensor: Any) -> str:
    value = innermost(tensor)
    return _dtype_name(value.dtype if isinstance(value, _arrays) else numpy.asarray(value).dtype)


@functools.cache
def _dtype_name(dtype: numpy.dtype) -> str:
    # The name has no byte order, unlike `str`: ">f8" is a float64.
    return dtype.name


def cast(value: Any, dtype: str) -> Any:
    return value.astype(dtype)


def children(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    # autograd differentiates containers as one box, whose parts are boxes again.
    if isinstance(value, SequenceBox):
        return list(value), type(innermost(value))
    if isinstance(value, DictBox):
        keys = list(value)
        return [value[key] for key in keys], lambda parts: dict(zip(keys, parts, strict=True))
    return None


def is_recording() -> bool:
    # autograd (1.9) does not count back where an exception ended a trace. From then on the answer is yes, which costs
    # time alone.
    return trace_stack.top >= 0  # type: ignore[no-any-return]


def needs_grad(tensors: Sequence[Any]) -> list[bool]:
    return [isinstance(tensor, Box) for tensor in tensors]


def is_plain(value: object) -> bool:
    kind = type(value)
    if kind is ArrayBox:
        while isinstance(value, Box):
            value = value._value
        return isinstance(value, _arrays) and value.dtype.kind in "biufc"
    return kind is numpy.ndarray and value.dtype.kind in "biufc"  # type: ignore[attr-defined]


def innermost(tensor: Any) -> Any:
    while isinstance(tensor, Box):
        tensor = tensor._value
    return tensor


def unboxed(tensors: Sequence[Any]) -> tuple[list[Any], set[int]]:
    """Returns the arrays in all boxes, and the levels of differentiation of these."""
    levels, found = set(), []
    for tensor in tensors:
        while isinstance(tensor, Box):
            levels.add(tensor._trace)
            tensor = tensor._value
        found.append(tensor if isinstance(tensor, _arrays) else numpy.asarray(tensor))
    return found, levels


def boxes(tensor: Any) -> Iterator[Any]:
    """The boxes that `tensor` is in, one for each level of differentiation, from the inside out."""
    while isinstance(tensor, Box):
        yield tensor
        tensor = tensor._value


def conjugate(tensor: Any) -> Any:
    # autograd's gradient of a real loss at x + iy is dL/dx - i dL/dy.
    return anp.conj(tensor) if tensor.dtype.kind == "c" else tensor
