"""The recipes of `keras_cg.recipes` as Keras layers.

They keep the shape of their input, pass its mask on, work under mixed precision, and save, load and clone:

    from keras_cg.keras import layers

    model = keras.Sequential([features, layers.GradientReversal(0.1), domain])
"""

from __future__ import annotations

import math
import numbers
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy

from keras_cg import custom_gradient, recipes
from keras_cg.keras import messages
from keras_cg.recipes.messages import bad_parameter
from keras_cg.recipes.passing import clipped_by_norm, clipped_by_value
from keras_cg.recipes.tensors import as_float, plain, times

__all__ = ["GradientClipping", "GradientReversal", "GradientScaling", "Quantize", "StraightThrough", "SurrogateSpike"]


try:
    # Nothing public tells in which scope of Keras (3.15) a layer is called.
    _stateless_scope = keras.src.backend.get_stateless_scope
except AttributeError as error:
    raise messages.keras_lacks("keras.src.backend.get_stateless_scope", keras.__version__) from error


class _SameShape(keras.layers.Layer):  # type: ignore[misc]
    """A layer whose output has the shape of its input."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def _add_number(self, name: str, initial: float, **options: Any) -> Any:
        """A weight of one number, in float32 where the layer computes in half precision.

        Float16 holds neither a scale of 1e-8 nor one of 1e5, nor the gradient of a step, which is a sum.
        """
        dtype = keras.backend.result_type(self.variable_dtype, "float32")
        value = keras.initializers.Constant(initial)
        return self.add_weight(name=name, shape=(), initializer=value, dtype=dtype, autocast=False, **options)

    def _try(self) -> None:
        """Raises what the recipe says of its arguments, and not only in the first step of a training."""
        self.call(keras.ops.zeros(1))


def _check_is_here(variable: Any, what: str, layer: str) -> None:
    """Raises where setting a variable would be lost."""
    # Keras's trainer on JAX (3.15) takes the values out of a model's variables in the middle of an epoch, and would
    # overwrite this one. Nothing public tells.
    if not hasattr(variable, "_value"):
        raise messages.keras_lacks("keras.Variable._value", keras.__version__)
    if variable._value is None:
        raise messages.weights_are_away(what, layer)


class _Scaled(_SameShape):
    """A layer with a `scale` that may be set at any time, in compiled training, too."""

    def __init__(self, scale: float, **kwargs: Any):
        super().__init__(**kwargs)
        self._initial_scale = as_float(type(self).__name__, "scale", scale)
        # A weight, and not a number, which a compiled training step would take for a constant.
        self._scale = self._add_number("scale", self._initial_scale, trainable=False)

    @property
    def scale(self) -> Any:
        """The factor, a variable that is not trained; `layer.scale = 0.5` sets it."""
        return self._scale

    @scale.setter
    def scale(self, value: float) -> None:
        _check_is_here(self._scale, "scale", self.name)
        self._scale.assign(value)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self._initial_scale}


@keras.saving.register_keras_serializable(package="keras_cg")
class GradientReversal(_Scaled):
    """Returns its input, and turns the gradient around: the layer of domain-adversarial training.

    The gradient of the output is multiplied by `-scale`: what lies before the layer learns to increase the loss that
    what lies behind it learns to decrease. Input and output are tensors of floating numbers of any shape. From Ganin
    and Lempitsky, *Unsupervised domain adaptation by backpropagation*, 2015, [arXiv:1409.7495](https://arxiv.org/abs/1409.7495).

    Args:
        scale: The factor at the beginning, 1 by default. Set `layer.scale` to change it during training, as a schedule
            does; it is a weight of the layer, which is saved with it and not trained.

    Raises:
        RuntimeError: `layer.scale` is set in the middle of an epoch on JAX, and not through `self.model` of a callback.

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

    With a factor below one, what lies before the layer learns more slowly than the rest, and not at all with zero.
    Input and output are tensors of floating numbers of any shape.

    Args:
        scale: The factor at the beginning. Set `layer.scale` to change it during training; it is a weight of the
            layer, which is saved with it and not trained.

    Raises:
        RuntimeError: `layer.scale` is set in the middle of an epoch on JAX, and not through `self.model` of a callback.

    Example:
        >>> import keras
        >>> from keras_cg.keras import layers
        >>> layer = layers.GradientScaling(0.1)
        >>> layer(keras.ops.ones((4, 3))).shape == (4, 3)
        True
    """

    def __init__(self, scale: float, **kwargs: Any):
        super().__init__(scale, **kwargs)

    def call(self, inputs: Any) -> Any:
        return recipes.scale_gradient(inputs, self._scale)


@keras.saving.register_keras_serializable(package="keras_cg")
class GradientClipping(_SameShape):
    """Returns its input, and clips the gradient, by value or by norm.

    Unlike `clipnorm` of an optimizer it acts at one place of the network, such as between the steps of a recurrent
    one. Input and output are tensors of floating numbers of any shape.

    Where the loss is multiplied by a loss scale, as `keras.optimizers.LossScaleOptimizer` does under `mixed_float16`,
    the gradient comes multiplied, too, and so must be the limit. A layer with `loss_scale="dynamic"` finds the factor
    in each step: it adds a loss of 0 to the model's, by `add_loss`, and the gradient of that is the factor. `fit` and
    `compute_loss` do what is needed. A `train_step` of one's own adds `sum(model.losses)`, as it is, to the loss before
    that is scaled, after each call of the model. Inside of a loop, as of an RNN that is not unrolled, and of a
    rematerialised layer, Keras on JAX and TensorFlow lets no loss out: they raise errors of their own, or the gradient
    is NaN. Give the number there.

    Args:
        value: Each number of the gradient is kept within `[-value, value]`.
        norm: The gradient, that of the whole batch, is shortened to this Euclidean length where it is longer.
        loss_scale: What the loss is multiplied by: `"dynamic"`, or a number. None for `"dynamic"` if the layer, or the
            dtype policy by which Keras makes layers at that time, computes in float16, else for 1.

    Raises:
        TypeError: Not exactly one of `value` and `norm` is given.
        ValueError: It is not positive, or `loss_scale` is none of the above.
        RuntimeError: In the backward pass: the loss scale is `"dynamic"`, and nothing of the layer's loss arrived. In
            a compiled step, where no value can be looked at, the gradient is NaN then.

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
        loss_scale: float | str | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.value = value
        self.norm = norm
        is_half = "float16" in (self.compute_dtype, keras.config.dtype_policy().compute_dtype)
        given: Any = ("dynamic" if is_half else 1.0) if loss_scale is None else loss_scale
        is_number = isinstance(given, numbers.Real) and 0 < as_float("GradientClipping", "loss_scale", given) < math.inf
        if not is_number and given != "dynamic":
            raise bad_parameter("GradientClipping", "loss_scale", given, '"dynamic" or a positive number')
        self.loss_scale: float | str = float(given) if is_number else given
        self._probes: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        # Raises here, and not in the first step of a training.
        recipes.clip_gradient(keras.ops.zeros(1), value=value, norm=norm)

    def call(self, inputs: Any) -> Any:
        if self.loss_scale != "dynamic":
            limits = {"value": self.value, "norm": self.norm}
            scale = float(self.loss_scale)
            scaled = {name: limit * scale for name, limit in limits.items() if limit is not None}
            return recipes.clip_gradient(inputs, **scaled)
        output, probe = _probed(inputs, self.value, self.norm, self.name)
        return output if self._add(probe) else _unknown(inputs, self.name)

    def _add(self, probe: Any) -> bool:
        """Adds a loss of 0 to the model's; a `stateless_call` that is not to return losses does not take it."""
        # Keras on JAX (3.15) forgets the losses of a layer when it is called again in the same step, and the first call
        # would be without a loss scale.
        scope = _stateless_scope()
        probes = [] if scope is None else self._probes.setdefault(scope, [])
        probes.append(probe)
        present = {id(loss) for loss in self.losses}
        for each in probes:
            if id(each) not in present:
                self.add_loss(each)
        return id(probe) in {id(loss) for loss in self.losses}

    def get_config(self) -> dict[str, Any]:
        # The loss scale as it was chosen, because a model is loaded under another dtype policy.
        return {**super().get_config(), "value": self.value, "norm": self.norm, "loss_scale": self.loss_scale}


@custom_gradient
def _probed(x: Any, value: float | None, norm: float | None, layer: str) -> Any:
    """The identity beside a loss of 0, the gradient of which is the loss scale, by which the limit is multiplied."""

    def grad(upstream: Any) -> Any:
        arrived, scale = upstream
        scale = _known(scale, layer) * _replicas()
        if norm is not None:
            return clipped_by_norm(arrived, times(scale, plain(norm))), None, None, None
        return clipped_by_value(arrived, times(scale, plain(value))), None, None, None

    return (x, keras.ops.zeros((), keras.config.floatx())), grad


@custom_gradient
def _unknown(x: Any, layer: str) -> Any:
    """The identity, which has no gradient, because the loss scale cannot be known."""
    # Not an error at once, because who saves a model may have its gradients traced, and never use them.
    return x, lambda upstream: (upstream * _known(keras.ops.zeros((), upstream.dtype), layer), None)


def _known(scale: Any, layer: str) -> Any:
    """The loss scale; an error if nothing arrived, or NaN where a program holds no value to look at."""
    try:
        is_missing = bool(scale == 0)
    except TypeError:  # as JAX and TensorFlow say it
        return keras.ops.where(scale == 0, math.nan, scale)
    if is_missing:
        raise messages.unknown_loss_scale(layer)
    return scale


def _replicas() -> int:
    """Among how many replicas Keras shares a loss out: the gradient of the layer's is that part of the loss scale."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync  # type: ignore[no-any-return]


@keras.saving.register_keras_serializable(package="keras_cg")
class StraightThrough(_SameShape):
    """Applies a function, and gives it the gradient of the identity.

    For functions such as rounding, whose own gradient is zero and teaches nothing. Input and output are tensors of
    floating numbers of any shape. From Bengio et al., *Estimating or propagating gradients through stochastic
    neurons*, 2013, [arXiv:1308.3432](https://arxiv.org/abs/1308.3432).

    Args:
        function: The name of a function of `keras.ops`, such as `"round"`; that function itself; or another that keeps
            the shape of its argument. To be loaded again, one of your own is decorated with
            `@keras.saving.register_keras_serializable()`, as one for `keras.layers.Activation` is.

    Raises:
        ValueError: `keras.ops` has no function of that name.
        TypeError: What is given cannot be called.

    Example:
        >>> import keras
        >>> from keras_cg.keras import layers
        >>> keras.ops.convert_to_numpy(layers.StraightThrough("sign")(keras.ops.array([-0.2, 3.0]))).tolist()
        [-1.0, 1.0]
    """

    def __init__(self, function: str | Callable[[Any], Any], **kwargs: Any):
        super().__init__(**kwargs)
        self.function = _operation(function) if isinstance(function, str) else function
        self._estimate = recipes.straight_through(self.function)

    def call(self, inputs: Any) -> Any:
        return self._estimate(inputs)

    def get_config(self) -> dict[str, Any]:
        name = getattr(self.function, "__name__", None)
        # Keras (3.15) writes an operation of its own in a way that it cannot read.
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
    if function is None:
        raise messages.unknown_operation(name, dir(keras.ops))
    return function  # type: ignore[no-any-return]


class _Positive(keras.constraints.Constraint):  # type: ignore[misc]
    """Keeps a step away from zero. A plain function would not do for Keras 3.12."""

    def __call__(self, step: Any) -> Any:
        return keras.ops.maximum(step, keras.config.epsilon())


@keras.saving.register_keras_serializable(package="keras_cg")
class Quantize(_SameShape):
    """Rounds its input to 2**bits evenly spaced levels, whose distance it learns.

    With `low, high = -2**(bits - 1), 2**(bits - 1) - 1`, or `0, 2**bits - 1` if not `signed`, the output is
    `step * round(clip(x / step, low, high))`. The gradient passes straight through where the input lies within the
    range, and the step has that of Esser et al., *Learned step size quantization*, 2020,
    [arXiv:1902.08153](https://arxiv.org/abs/1902.08153). Input and output are tensors of floating numbers of any shape.

    Args:
        bits: How many bits a level takes.
        signed: Whether levels may be negative. False for what comes from a ReLU.
        initial_step: The step at the beginning. None for `2 / sqrt(high)`, what the paper takes for inputs whose mean
            magnitude is one; `adapt(data)` sets it from data, as the paper does.
        gradient_scale: What the gradient of the step is multiplied by. None for the paper's `1 / sqrt(n * high)` for
            activations: n counts the numbers of one example, without the first axis. `"lsq"` for that of weights, where
            n counts all; or a number.

    The step stays positive: it is kept above `keras.config.epsilon()`.

    Raises:
        ValueError: `bits` is no number of bits, or `initial_step` is not positive.

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
        self.bits = bits
        self.signed = signed
        self.initial_step = initial_step
        self.gradient_scale = gradient_scale
        # Raises here, and not in the first step of a training.
        recipes.quantize(
            keras.ops.zeros(1), 1.0 if initial_step is None else initial_step, bits, signed, gradient_scale
        )
        initial = self._step_for(1.0) if initial_step is None else initial_step
        self.step = self._add_number("step", initial, constraint=_Positive())

    @property
    def _high(self) -> int:
        return (1 << (self.bits - self.signed)) - 1

    def _step_for(self, magnitude: float) -> float:
        """The paper's initial step for inputs of that mean magnitude (section 2.1)."""
        return 2 * magnitude / math.sqrt(self._high)

    def adapt(self, data: Any) -> None:
        """Sets the step from an array of inputs: to `2 * mean(abs(data)) / sqrt(high)`.

        Raises:
            ValueError: That is not positive and finite.
            RuntimeError: In the middle of an epoch on JAX, and not through `self.model` of a callback.
        """
        _check_is_here(self.step, "step", self.name)
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
            # Not before the call, because an axis may be unknown until run time; each as a float, because their
            # product may be more than an int32 holds. Of no numbers there is no root, and the gradient is 0.
            sizes = [keras.ops.cast(size, self.step.dtype) for size in keras.ops.shape(inputs)[1:]]
            scale = keras.ops.rsqrt(keras.ops.maximum(math.prod(sizes, start=float(self._high)), 1.0))
        return recipes.quantize(inputs, self.step, self.bits, self.signed, scale)

    def get_config(self) -> dict[str, Any]:
        names = ("bits", "signed", "initial_step", "gradient_scale")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="keras_cg")
class SurrogateSpike(_SameShape):
    """Fires where its input is not negative: 1 there and 0 elsewhere, with the gradient of something smooth.

    What trains spiking networks, since a step has the gradient zero. Input and output are tensors of floating numbers
    of any shape, the input a membrane potential less its threshold. Formulas and sources: `recipes.surrogate_spike`.

    Args:
        kind: Whose gradient it has: `"fast_sigmoid"`, `"arctan"` or `"triangle"`.
        slope: A positive number; None for that of the source.

    Raises:
        ValueError: There is no such kind, or `slope` is not positive.

    Example:
        >>> import keras
        >>> from keras_cg.keras import layers
        >>> keras.ops.convert_to_numpy(layers.SurrogateSpike("triangle")(keras.ops.array([-0.2, 3.0]))).tolist()
        [0.0, 1.0]
    """

    def __init__(self, kind: str = "fast_sigmoid", slope: float | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.kind = kind
        self.slope = slope
        self._try()

    def call(self, inputs: Any) -> Any:
        return recipes.surrogate_spike(inputs, self.kind, self.slope)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "kind": self.kind, "slope": self.slope}
