"""The loss scale of a training step, found by the gradient of a loss of 0."""

from __future__ import annotations

import math
from typing import Any

import keras

from keras_cg.keras import messages
from keras_cg.recipes.passing import clipped_by_norm, clipped_by_value
from keras_cg.recipes.tensors import recipe, times


@recipe("GradientClipping")
def probed(x: Any, value: float | None, norm: float | None, layer: str) -> Any:
    """The identity beside a loss of 0. The gradient of that loss is the loss scale, which multiplies the limit."""

    def grad(upstream: Any) -> Any:
        output, probe = upstream
        scale = _known(probe, layer) * _replicas()
        if norm is not None:
            return clipped_by_norm(output, times(scale, norm)), None, None, None
        return clipped_by_value(output, times(scale, value)), None, None, None

    return (x, keras.ops.zeros((), keras.config.floatx())), grad


@recipe("GradientClipping")
def unknown(x: Any, layer: str) -> Any:
    """The identity, whose gradient raises because the loss scale cannot be known."""
    # Not when it is called: Keras may trace the gradients of a model that it saves, and never use them.
    return x, lambda upstream: (upstream * _known(keras.ops.zeros((), upstream.dtype), layer), None)


def _known(scale: Any, layer: str) -> Any:
    """Returns the loss scale; where it is 0, raises, or in a program, which holds no value to look at, returns NaN."""
    try:
        is_missing = bool(scale == 0)
    except TypeError:  # of JAX and of TensorFlow
        return keras.ops.where(scale == 0, math.nan, scale)
    if is_missing:
        raise messages.unknown_loss_scale(layer)
    return scale


def _replicas() -> int:
    """Counts the replicas among which Keras divides a loss: a replica's gradient is that part of the loss scale."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync  # type: ignore[no-any-return]
