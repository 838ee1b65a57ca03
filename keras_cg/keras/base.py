"""The base class of the layers, which checks their arguments when a layer is made."""

from __future__ import annotations

import numbers
from typing import Any

import keras
import numpy

from keras_cg.keras import messages
from keras_cg.recipes import tensors
from keras_cg.recipes.messages import bad_parameter


class SameShape(keras.layers.Layer):  # type: ignore[misc]
    """A layer whose output has the shape of its input."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Returns the shape of the input."""
        return input_shape

    def _add_number(self, name: str, initial: float, **options: Any) -> Any:
        """A weight of one number, in float32 where the layer computes in half precision.

        Float16 represents neither a scale of 1e-8 nor one of 1e5, nor the gradient of a step, which is a sum.
        """
        dtype = keras.backend.result_type(self.variable_dtype, "float32")
        value = keras.initializers.Constant(initial)
        return self.add_weight(name=name, shape=(), initializer=value, dtype=dtype, autocast=False, **options)

    def _finite(self, argument: str, value: Any, others: str = "") -> float:
        """Returns a number as a float.

        Raises:
            ValueError: It is none, or not finite in the dtype of the layer's weights.
        """
        name, dtype = type(self).__name__, keras.backend.result_type(self.variable_dtype, "float32")
        number = value.item() if isinstance(value, numpy.ndarray) and value.ndim == 0 else tensors.plain(value)
        most = float(numpy.finfo(dtype).max)
        if not isinstance(number, numbers.Real) or not -most <= float(number) <= most:
            raise bad_parameter(name, argument, value, f"{others}a finite number of {dtype}")
        return float(number)

    def _positive(self, argument: str, value: Any) -> float:
        """Returns a positive, finite number as a float.

        Raises:
            ValueError: It is none, or would be 0 or infinite in float32.
        """
        return tensors.finite(type(self).__name__, argument, tensors.plain(value), keras.ops.zeros(1, "float32"))


def check_is_settable(variable: Any, what: str, layer: str) -> None:
    """Raises if an assignment to a variable would be lost."""
    # Keras's trainer on JAX (3.15) moves the values out of a model's variables in the middle of an epoch, and would
    # overwrite this one. No public name says so.
    if not hasattr(variable, "_value"):
        raise messages.keras_lacks("keras.Variable._value", keras.__version__)
    if variable._value is None:
        raise messages.weights_are_away(what, layer)
