"""Keras layers of the recipes in `keras_cg.recipes`.

They keep the shape of their input, pass its mask on, work under mixed precision, and can be saved, loaded and cloned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy

from keras_cg import recipes
from keras_cg.keras import messages
from keras_cg.keras.base import SameShape, check_is_settable
from keras_cg.recipes.discrete import levels, surrogate
from keras_cg.recipes.messages import bad_parameter, not_a_function, not_one_limit
from keras_cg.recipes.tensors import flag, plain, positive

__all__ = ["GradientClipping", "GradientReversal", "GradientScaling", "Quantize", "StraightThrough", "SurrogateSpike"]


class _Scaled(SameShape):
    """A layer with a `scale` that may be set at any time, in compiled training, too."""

    def __init__(self, scale: float, **kwargs: Any):
        super().__init__(**kwargs)
        self._initial_scale = self._finite("scale", scale)
        # A weight, because a number would be a constant of a compiled training step.
        self._scale = self._add_number("scale", self._initial_scale, trainable=False)

    @property
    def scale(self) -> Any:
        """The factor, a variable that is not trained; `layer.scale = 0.5` sets it."""
        return self._scale

    @scale.setter
    def scale(self, value: float) -> None:
        check_is_settable(self._scale, "scale", self.name)
        is_tensor = isinstance(value, keras.Variable) or keras.ops.is_tensor(value)
        self._scale.assign(value if is_tensor else self._finite("scale", value))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self._initial_scale}


@keras.saving.register_keras_serializable(package="keras_cg")
class GradientReversal(_Scaled):
    """Returns its input, and reverses the gradient: the layer of domain-adversarial training.

    The gradient is multiplied by `-scale`. So the layers before it learn to increase the loss that the layers behind it
    learn to decrease. Input and output are `float[...]`.

    Args:
        scale: The initial factor, a finite number; 1 by default. Set `layer.scale` to change it during training, such
            as by a schedule. It is a weight of the layer, which is saved with it and not trained.

    Raises:
        ValueError: `scale` is not a finite number.
        RuntimeError: `layer.scale` is set in the middle of an epoch on JAX, and not through `self.model` of a callback.

    See Also:
        `keras_cg.recipes.reverse_gradient`, the function, with formula and source.

    Example:
        >>> import keras
        >>> from keras_cg.keras import layers
        >>> domain = keras.Sequential([layers.GradientReversal(0.1), keras.layers.Dense(2)])
        >>> domain.layers[0].scale = 0.2
        >>> domain(keras.ops.ones((4, 3))).shape == (4, 2)
        True
    """

    def __init__(self, scale: float = 1.0, **kwargs: Any):
        super().__init__(scale, **kwargs)

    def call(self, inputs: Any) -> Any:
        return recipes.reverse_gradient(inputs, self._scale)


@keras.saving.register_keras_serializable(package="keras_cg")
class GradientScaling(_Scaled):
    """Returns its input, and multiplies the gradient by `scale`.

    With a factor below one, the layers before it learn more slowly than the others, and with zero not at all. Input
    and output are `float[...]`.

    Args:
        scale: The initial factor, a finite number. Set `layer.scale` to change it during training. It is a weight of
            the layer, which is saved with it and not trained.

    Raises:
        ValueError: `scale` is not a finite number.
        RuntimeError: `layer.scale` is set in the middle of an epoch on JAX, and not through `self.model` of a callback.

    See Also:
        `keras_cg.recipes.scale_gradient`, the function, with formula and source.

    Example:
        >>> import keras
        >>> from keras_cg.keras import layers
        >>> layer = layers.GradientScaling(0.1)
        >>> layer(keras.ops.ones((4, 3))).shape == (4, 3)
        True
    """

    def call(self, inputs: Any) -> Any:
        return recipes.scale_gradient(inputs, self._scale)


@keras.saving.register_keras_serializable(package="keras_cg")
class GradientClipping(SameShape):
    """Returns its input, and clips the gradient, by value or by norm.

    Unlike `clipnorm` of an optimizer it acts at one place of the network, such as between the steps of a recurrent
    network. Input and output are `float[...]`.

    A loss scale, as for `mixed_float16`, multiplies the gradient. Then the limit must be multiplied as well, by
    `loss_scale`. The guide "Choose a recipe" says how to train with a fixed one.

    Args:
        value: A positive number: each element of the gradient is limited to `[-value, value]`.
        norm: A positive number: the gradient of the whole batch is scaled down to this Euclidean norm if it is longer.
        loss_scale: The factor of the loss, a positive number; 1.0 for none. You must pass it if the layer or Keras's
            global dtype policy computes in float16.

    Raises:
        TypeError: Not exactly one of `value` and `norm` is passed.
        ValueError: `value`, `norm` or `loss_scale` is not a positive number, or `loss_scale` is missing in float16.

    See Also:
        `keras_cg.recipes.clip_gradient`, the function, with formula and source.

    Example:
        >>> import keras
        >>> from keras_cg.keras import layers
        >>> layers.GradientClipping(norm=1.0)(keras.ops.ones((4, 3))).shape == (4, 3)
        True
    """

    def __init__(
        self,
        value: float | None = None,
        norm: float | None = None,
        loss_scale: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if (value is None) == (norm is None):
            raise not_one_limit(type(self).__name__)
        self.value = None if value is None else positive(type(self).__name__, "value", plain(value))
        self.norm = None if norm is None else positive(type(self).__name__, "norm", plain(norm))
        is_half = "float16" in (self.compute_dtype, keras.config.dtype_policy().compute_dtype)
        if loss_scale is None and is_half:
            raise messages.missing_loss_scale(self.name)
        self.loss_scale = positive(type(self).__name__, "loss_scale", 1.0 if loss_scale is None else plain(loss_scale))

    def call(self, inputs: Any) -> Any:
        limits = {"value": self.value, "norm": self.norm}
        scaled = {name: limit * self.loss_scale for name, limit in limits.items() if limit is not None}
        return recipes.clip_gradient(inputs, **scaled)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "value": self.value, "norm": self.norm, "loss_scale": self.loss_scale}


@keras.saving.register_keras_serializable(package="keras_cg")
class StraightThrough(SameShape):
    """Applies a function with the gradient of the identity: the straight-through estimator.

    It trains through functions such as rounding, whose own gradient is zero. Input and output are `float[...]`.

    Args:
        function: The name of a function of `keras.ops`, such as `"round"`, that function itself, or any function from
            `float[...]` to `float[...]` of the same shape. To save and load a function of your own, decorate it with
            `@keras.saving.register_keras_serializable()`, as for `keras.layers.Activation`.

    Raises:
        ValueError: `keras.ops` has no function of that name.
        TypeError: `function` is neither a name nor callable.

    See Also:
        `keras_cg.recipes.straight_through`, with formula and source. `keras_cg.keras.layers.Quantize`, which learns.

    Example:
        >>> import keras
        >>> from keras_cg.keras import layers
        >>> keras.ops.convert_to_numpy(layers.StraightThrough("sign")(keras.ops.array([-0.2, 3.0]))).tolist()
        [-1.0, 1.0]
    """

    def __init__(self, function: str | Callable[[Any], Any], **kwargs: Any):
        super().__init__(**kwargs)
        self.function = _operation(function) if isinstance(function, str) else function
        if not callable(self.function):
            raise not_a_function("StraightThrough", function)
        self._estimate = recipes.straight_through(self.function)

    def call(self, inputs: Any) -> Any:
        return self._estimate(inputs)

    def get_config(self) -> dict[str, Any]:
        name = getattr(self.function, "__name__", None)
        # By its name, because Keras (3.15) cannot load an operation of its own that it has saved.
        is_operation = name is not None and getattr(keras.ops, name, None) is self.function
        function = name if is_operation else keras.saving.serialize_keras_object(self.function)
        return {**super().get_config(), "function": function}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> StraightThrough:
        function = config["function"]
        if not isinstance(function, str):
            function = keras.saving.deserialize_keras_object(function)
        return cls(**{**config, "function": function})


def _operation(name: str) -> Callable[[Any], Any]:
    function = getattr(keras.ops, name, None)
    if not callable(function):
        raise messages.unknown_operation(name, dir(keras.ops))
    return function  # type: ignore[no-any-return]


class _Positive(keras.constraints.Constraint):  # type: ignore[misc]
    """Bounds a step from below. It is a class, because Keras 3.12 takes no plain function."""

    def __call__(self, step: Any) -> Any:
        return keras.ops.maximum(step, keras.config.epsilon())


@keras.saving.register_keras_serializable(package="keras_cg")
class Quantize(SameShape):
    """Rounds its input to 2**bits evenly spaced levels, and learns their distance.

    With `low, high = -2**(bits - 1), 2**(bits - 1) - 1`, or `0, 2**bits - 1` if not `signed`, the output is
    `step * round(clip(x / step, low, high))`. The input gets the upstream gradient where it lies within the range, else
    0. The step gets the gradient of LSQ. Input and output are `float[...]`; the step is a `float[]`.

    The constraint of the step bounds it from below by `keras.config.epsilon()`.

    Args:
        bits: The bits of a level, from 1 to 24; at least 2 if `signed`.
        signed: Whether levels may be negative. False for outputs of a ReLU.
        initial_step: A positive number. None for `2 / sqrt(high)`, the paper's choice for inputs whose mean magnitude
            is one; `adapt(data)` sets it from data, as in the paper.
        gradient_scale: The factor of the step's gradient, a finite number. None for the paper's `1 / sqrt(n * high)`
            for activations, where n counts the elements of one example, without the first axis. `"lsq"` for its factor
            for weights, where n counts all elements.

    Raises:
        ValueError: An argument is none of the above.

    See Also:
        `keras_cg.recipes.quantize`, the function, with formula and source.

    Example:
        >>> import keras
        >>> from keras_cg.keras import layers
        >>> layer = layers.Quantize(bits=2, initial_step=0.5)
        >>> keras.ops.convert_to_numpy(layer(keras.ops.array([-9.0, -0.6, 0.1, 0.4, 9.0]))).tolist()
        [-1.0, -0.5, 0.0, 0.5, 0.5]
    """

    def __init__(
        self,
        bits: int = 8,
        signed: bool = True,
        initial_step: float | None = None,
        gradient_scale: float | str | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        name = type(self).__name__
        self.bits, self.signed = plain(bits), flag(name, "signed", signed)
        levels(name, self.bits, self.signed)
        self.initial_step = None if initial_step is None else self._positive("initial_step", initial_step)
        if gradient_scale is not None and gradient_scale != "lsq":
            gradient_scale = self._finite("gradient_scale", gradient_scale, 'None, "lsq" or ')
        self.gradient_scale = gradient_scale
        initial = self._step_for(1.0) if self.initial_step is None else self.initial_step
        self.step = self._add_number("step", initial, constraint=_Positive())

    @property
    def _high(self) -> float:
        return levels(type(self).__name__, self.bits, self.signed)[1]

    def _step_for(self, magnitude: float) -> float:
        """Returns the paper's initial step for inputs of that mean magnitude (section 2.1)."""
        return 2 * magnitude / math.sqrt(self._high)

    def adapt(self, data: Any) -> None:
        """Sets the step from inputs, to `2 * mean(abs(data)) / sqrt(high)`.

        Args:
            data: `any[...]`, the inputs.

        Raises:
            ValueError: The mean magnitude is not positive and finite.
            RuntimeError: It is called in the middle of an epoch on JAX, and not through `self.model` of a callback.
        """
        check_is_settable(self.step, "step", self.name)
        array = keras.ops.convert_to_numpy(data)
        # In double precision, because the smallest int8 has no magnitude, and a sum overflows before its mean does.
        wide = array.astype("complex128" if array.dtype.kind == "c" else "float64")
        with numpy.errstate(over="ignore"):
            magnitude = float(numpy.mean(numpy.abs(wide))) if wide.size else math.nan
            step = numpy.float32(self._step_for(magnitude))
        if not 0 < step < math.inf:
            choices = "positive and finite as a float32"
            raise bad_parameter("Quantize.adapt", "the mean magnitude of data", magnitude, choices)
        self.step.assign(step)

    def call(self, inputs: Any) -> Any:
        scale = self.gradient_scale
        if scale is None:
            # In the call, because an axis may be unknown until run time; each as a float, because their product may
            # overflow an int32. At least 1, because an empty example would make the scale infinite.
            sizes = [keras.ops.cast(size, self.step.dtype) for size in keras.ops.shape(inputs)[1:]]
            scale = keras.ops.rsqrt(keras.ops.maximum(math.prod(sizes, start=self._high), 1.0))
        return recipes.quantize(inputs, self.step, self.bits, self.signed, scale)

    def get_config(self) -> dict[str, Any]:
        names = ("bits", "signed", "initial_step", "gradient_scale")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="keras_cg")
class SurrogateSpike(SameShape):
    """Returns 1 where its input is not negative and 0 elsewhere, with a surrogate gradient.

    It trains spiking networks, because a step has the gradient zero. Input and output are `float[...]`. The input is a
    membrane potential minus its threshold.

    Args:
        kind: The surrogate: `"fast_sigmoid"`, `"arctan"` or `"triangle"`.
        slope: A positive, finite number; None for the slope of the surrogate's source.

    Raises:
        ValueError: There is no such kind, or `slope` is not positive and finite.

    See Also:
        `keras_cg.recipes.surrogate_spike`, the function, with formulas and sources.

    Example:
        >>> import keras
        >>> from keras_cg.keras import layers
        >>> keras.ops.convert_to_numpy(layers.SurrogateSpike("triangle")(keras.ops.array([-0.2, 3.0]))).tolist()
        [0.0, 1.0]
    """

    def __init__(self, kind: str = "fast_sigmoid", slope: float | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        surrogate(type(self).__name__, kind)
        self.kind = kind
        self.slope = None if slope is None else self._positive("slope", slope)

    def call(self, inputs: Any) -> Any:
        return recipes.surrogate_spike(inputs, self.kind, self.slope)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "kind": self.kind, "slope": self.slope}
