"""The TensorFlow backend, on `tf.custom_gradient`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import tensorflow as tf

from keras_cg.backends import Function

__all__ = ["asarray", "attach", "cast", "children", "dtype", "is_tensor", "namespace", "shape", "tensors", "vjp"]

namespace = tf.experimental.numpy
tensors = (tf.Tensor, tf.Variable, tf.__internal__.CompositeTensor)


def is_tensor(value: object) -> bool:
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return value.dtype.kind in "biufc"
    return bool(tf.is_tensor(value))


def asarray(value: Any) -> Any:
    if isinstance(value, tf.__internal__.CompositeTensor) and not isinstance(value, tf.Variable):
        return value
    return tf.convert_to_tensor(value)


def shape(tensor: Any) -> tuple[int | None, ...] | None:
    return None if tensor.shape.rank is None else tuple(tensor.shape)


def dtype(tensor: Any) -> str:
    return str(tensor.dtype.name)


def cast(value: Any, dtype: str) -> Any:
    return tf.cast(value, dtype)


def children(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    if not tf.nest.is_nested(value):
        return None
    # Lists and dicts that are attributes of a module or a layer are wrapped, so that they are saved with it.
    if isinstance(value, list):
        return list(value), list
    if isinstance(value, dict):
        return list(value.values()), lambda parts: dict(zip(value, parts, strict=True))
    return tf.nest.flatten(value), lambda parts: tf.nest.pack_sequence_as(value, parts)


def attach(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    count = len(tensors)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(*given: Any) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        outputs, pullback = fun(*given[:count])

        def backward(*cotangents: Any, variables: Sequence[Any] = ()) -> Any:
            pullback.capture([variable.name for variable in variables])
            gradients, others = pullback(cotangents, variables)
            padded = [*gradients, *[None] * (len(given) - count)]
            return (padded, list(others)) if variables else padded

        return outputs, backward

    # In a graph, TensorFlow cannot wrap a function without any tensor.
    return tuple(run(*tensors) if tensors else run(tf.zeros(())))


def vjp(
    fun: Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]], tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], Callable[[Sequence[Any]], tuple[Any, ...]], tuple[Any, ...]]:
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        outputs, aux = fun(*tensors)

    def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(tape.gradient(outputs, tensors, list(cotangents), tf.UnconnectedGradients.ZERO))

    return outputs, pullback, aux
