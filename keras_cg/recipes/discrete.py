"""Piecewise constant functions with a surrogate gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from keras_cg import ops
from keras_cg.frontend import config
from keras_cg.recipes import messages, tensors
from keras_cg.recipes.tensors import Pair


def _magnitude(x: Any) -> Any:
    """Returns |x| with the derivative 0 at 0: `abs` has 1 there on JAX, and NaN at infinity on NumPy."""
    one, none = ops.ones_like(x), ops.zeros_like(x)
    return x * ops.where(x > 0, one, ops.where(x < 0, -one, none))


def _fast_sigmoid(x: Any, slope: float) -> Any:
    factor = 1 / (1 + slope * _magnitude(x))
    return factor * factor


def _arctan(x: Any, slope: float) -> Any:
    scaled = math.pi / 2 * slope * x
    # By the inverse, because the square of a large number overflows.
    is_large = ops.abs(scaled) > 1
    inverse = 1 / ops.where(is_large, scaled, ops.ones_like(scaled))
    small = ops.where(is_large, ops.zeros_like(scaled), scaled)
    far = slope / 2 * inverse * (inverse / (1 + inverse * inverse))
    return ops.where(is_large, far, slope / 2 / (1 + small * small))


def _triangle(x: Any, slope: float) -> Any:
    height = 1 - _magnitude(x)
    return slope * ops.where(height <= 0, ops.zeros_like(height), height)


# The surrogate derivative, and the slope in its source.
_SURROGATES: dict[str, tuple[Callable[[Any, float], Any], float]] = {
    "fast_sigmoid": (_fast_sigmoid, 100.0),
    "arctan": (_arctan, 2.0),
    "triangle": (_triangle, 0.3),
}


def surrogate_spike(x: Any, kind: str = "fast_sigmoid", slope: float | None = None) -> Any:
    """Returns 1 where a membrane potential has reached its threshold and 0 elsewhere, with a surrogate gradient.

        y = 1 where x >= 0, else 0,    dL/dx = dL/dy s(x)

        s(x) = 1 / (1 + a |x|)^2             for fast_sigmoid, a = 100
        s(x) = a / (2 (1 + (pi a x / 2)^2))  for arctan, a = 2
        s(x) = a max(0, 1 - |x|)             for triangle, a = 0.3

    Sources: fast_sigmoid: Zenke & Ganguli 2018, SuperSpike, https://arxiv.org/abs/1705.11146, with the slope of the
    tutorial to Neftci, Mostafa & Zenke 2019, https://arxiv.org/abs/1901.09948. arctan: Fang et al. 2021, Incorporating
    learnable membrane time constant, https://arxiv.org/abs/2007.05785. triangle: Esser et al. 2016,
    https://arxiv.org/abs/1603.08270, with the dampening factor of Bellec et al. 2018, https://arxiv.org/abs/1803.09574.

    Args:
        x: `float[...]`, the membrane potential minus the threshold.
        kind: The surrogate s: "fast_sigmoid", "arctan" or "triangle".
        slope: The slope a, a positive and finite number. None for the slope above, which is the source's.

    Returns:
        `float[...]` of zeros and ones, with the shape and dtype of `x`. It is NaN where `x` is NaN.

    Raises:
        TypeError: `x` is not a real floating tensor.
        ValueError: There is no surrogate of that name, or `slope` is not positive and finite.

    See Also:
        `keras_cg.keras.layers.SurrogateSpike`, the layer. `keras_cg.recipes.straight_through`, for other jumps.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> recipes.surrogate_spike(np.array([-0.5, 0.0, 1.0]))
        array([0., 1., 1.])
        >>> keras_cg.grad(recipes.surrogate_spike)(np.array([-0.5, 0.0, 1.0]), "triangle")
        array([0.15, 0.3 , 0.  ])
    """
    return _surrogate_spike(x, kind, tensors.plain(slope))


@tensors.recipe("surrogate_spike")
def _surrogate_spike(x: Any, kind: str, slope: float | None) -> Pair:
    derivative, default = surrogate("surrogate_spike", kind)
    x = tensors.real("surrogate_spike", "x", x)
    steep = tensors.finite("surrogate_spike", "slope", default if slope is None else slope, x)
    wide = tensors.wide(x)

    def grad(upstream: Any) -> Any:
        return tensors.as_like(upstream, wide) * derivative(wide, steep), None, None

    # NaN is neither.
    return ops.where(x >= 0, ops.ones_like(x), ops.where(x < 0, ops.zeros_like(x), x)), grad


def surrogate(recipe: str, kind: Any) -> tuple[Callable[[Any, float], Any], float]:
    """Returns the surrogate derivative of that name, and the slope of its source.

    Raises:
        ValueError: There is none of that name.
    """
    if not isinstance(kind, str) or kind not in _SURROGATES:
        raise messages.unknown_surrogate(recipe, kind, tuple(_SURROGATES))
    return _SURROGATES[kind]


def quantize(x: Any, step: Any, bits: int = 8, signed: bool = True, gradient_scale: Any = None) -> Any:
    """Quantises uniformly, with a fixed step size, or one that is learned as in LSQ.

        y = step round(min(max(x / step, -Qn), Qp)),

    where round returns the nearest integer, and the even one of two. The levels are limited by

        Qn = 2^(bits - 1), Qp = 2^(bits - 1) - 1    if signed
        Qn = 0, Qp = 2^bits - 1                     if not signed

    With r = x / step, and sums over the elements that share a step:

        dL/dx = dL/dy               where -Qn < r < Qp, else 0
        dL/dstep = gradient_scale sum dL/dy q
        q = round(r) - r            where -Qn < r < Qp, -Qn below, Qp above

    Source: Esser et al. 2020, Learned step size quantization, equations 1 to 5, https://arxiv.org/abs/1902.08153

    Args:
        x: `float[...]`
        step: The distance between two levels. A positive number is fixed. A floating tensor is learned. It must
            broadcast to `x`: `float[]` is one step for all, and `float[c]` one step for each channel. Its gradient is
            summed to its shape.
        bits: 1 to 24; at least 2 if `signed`.
        signed: Whether the levels lie on both sides of zero.
        gradient_scale: The factor of the gradient of `step`. None for 1, which is equation 3 itself. "lsq" for the
            paper's 1 / sqrt(N Qp) for weights, where N counts the elements of `x` that share a step. Otherwise a
            number, or a tensor that broadcasts to `step` and gets no gradient. For activations the paper's N does not
            count the batch: pass the number.

    Returns:
        `float[...]`, with the shape and dtype of `x`.

    Raises:
        TypeError: `x` or `step` is not a real floating tensor.
        ValueError: `step` is a number that is not positive and finite, or a tensor that does not broadcast to `x`. Or
            `bits`, `signed` or `gradient_scale` is none of the above.

    See Also:
        `keras_cg.keras.layers.Quantize`, the layer. `keras_cg.recipes.straight_through`, for any other rounding.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> x = np.array([-9.0, -0.6, 0.3, 9.0])
        >>> recipes.quantize(x, 0.5, bits=3)
        array([-2. , -0.5,  0.5,  1.5])
        >>> for gradient in keras_cg.grad(lambda x, s: recipes.quantize(x, s, bits=3), (0, 1))(x, np.array(0.5)):
        ...     print(gradient.round(3))
        [0. 1. 1. 0.]
        -0.4
    """
    step, bits, scale = map(tensors.plain, (step, bits, gradient_scale))
    return _quantize(x, step, bits, tensors.flag("quantize", "signed", signed), scale)


@tensors.recipe("quantize")
def _quantize(x: Any, step: Any, bits: int, signed: bool, gradient_scale: Any) -> Pair:
    low, high = levels("quantize", bits, signed)
    argument, x = x, tensors.real("quantize", "x", x)
    size = tensors.number("quantize", "step", step)
    if tensors.is_number(size):
        tensors.finite("quantize", "step", size, x)
    tensors.check_broadcasts("quantize", "step", size, x)
    _check_scale(gradient_scale, size)
    wide, stride = tensors.together(x, size)
    # Without a derivative, because that of the ratio is NaN where x is infinite, and 0 times NaN is NaN.
    ratio = ops.stop_gradient(wide) / (stride if tensors.is_number(stride) else ops.stop_gradient(stride))
    is_high, is_low = ratio >= high, ratio <= low
    level = ops.where(
        is_high, ops.full_like(ratio, high), ops.where(is_low, ops.full_like(ratio, low), ops.round(ratio))
    )

    def grad(upstream: Any, needs_input_grad: Any) -> Any:
        of_x, of_step = tensors.needed(needs_input_grad, argument, step)
        upstream = tensors.as_like(upstream, ratio)
        is_out = is_high | is_low
        gradient = ops.where(is_out, ops.zeros_like(upstream), upstream) if any(of_x) else None
        if not any(of_step):
            return gradient, None, None, None, None
        inside = ops.where(is_out, ops.zeros_like(wide), wide) / stride
        total = ops.sum_to(upstream * (level - inside), size)
        return gradient, tensors.times(total, _step_scale(gradient_scale, x, size, high)), None, None, None

    return tensors.as_like(level * stride, x), grad


def levels(recipe: str, bits: Any, signed: bool) -> tuple[float, float]:
    """Returns the lowest and the highest level, -Qn and Qp.

    Raises:
        ValueError: There is no such number of bits.
    """
    if not isinstance(bits, int) or not (2 if signed else 1) <= bits <= 24:
        raise messages.bad_parameter(recipe, "bits", bits, "a whole number from 1 (if signed, from 2) to 24")
    return (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if signed else (0.0, 2.0**bits - 1)


def _check_scale(scale: Any, step: Any) -> None:
    """Checks the factor of a step's gradient.

    Raises:
        ValueError: It is none, or does not broadcast to the step.
    """
    if scale is None or (isinstance(scale, str) and scale == "lsq") or tensors.is_number(scale):
        return
    if not tensors.is_real(scale):
        raise messages.bad_parameter("quantize", "gradient_scale", scale, 'None, "lsq", a number or a floating tensor')
    if not tensors.is_number(step):
        tensors.check_broadcasts("quantize", "gradient_scale", scale, step, "step")


def _step_scale(scale: Any, x: Any, step: Any, high: float) -> Any:
    """Returns the factor of the gradient of a learned step."""
    if not isinstance(scale, str):
        return 1.0 if scale is None else scale
    sizes = config.active.shape(x), config.active.shape(step)
    if any(size is None or None in size for size in sizes):
        raise messages.unknown_count("quantize")
    elements, steps = map(math.prod, sizes)
    return 1 / math.sqrt(max(elements // max(steps, 1), 1) * high)
