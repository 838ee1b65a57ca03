"""What people write custom gradients for, done once, for every backend.

Each recipe is a plain function of tensors. It runs on whichever backend is active, keeps the dtype of what it is given,
and can be differentiated, compiled and batched by the framework's own means. Where a number or a step size may be a
tensor (a schedule, a variable), it gets no gradient unless the recipe says so.

Half precision is computed in float32, and rounded once, at the end.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable
from typing import Any

from keras_cg import config, errors, nest, ops
from keras_cg.frontend import custom_gradient, function_name
from keras_cg.rule import compatible, describe, is_differentiable

__all__ = ["clip_gradient", "quantize", "reverse_gradient", "safe_norm", "scale_gradient", "straight_through"]

Pair = tuple[Any, Callable[..., Any]]


# --- what goes forward as it is, and comes back changed ----------------------------------------------------------


def straight_through(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the gradient of the identity: the straight-through estimator.

    As `fn`, but the gradient of its first argument is upstream itself, as if the output were that argument. What else
    `fn` is given, by position or by keyword, gets no gradient.

        y = fn(x, ...),    dL/dx = dL/dy

    Source: Bengio, Léonard & Courville 2013, Estimating or propagating gradients through stochastic neurons,
    https://arxiv.org/abs/1308.3432

    Args:
        fn: A function whose output has the structure and the shapes of its first argument, and a floating dtype. A
            compiled one serves as well.

    Returns:
        A function with the arguments and the output of `fn`.

    Raises:
        TypeError: `fn` cannot be called.
        GradientError: When the result is called: the output is not like the first argument.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> sign = recipes.straight_through(np.sign)
        >>> sign(np.array([-0.3, 2.0]))
        array([-1.,  1.])
        >>> keras_cg.grad(sign)(np.array([-0.3, 2.0]))
        array([1., 1.])
    """
    if not callable(fn):
        raise errors.not_a_function("straight_through", fn)
    name = f"straight_through({function_name(fn)})"

    @custom_gradient
    @functools.wraps(fn, updated=())
    def estimate(*args: Any, **kwargs: Any) -> Pair:
        output = fn(*args, **kwargs)
        first, *others = (*args, *kwargs.values())
        _check_alike(name, _leaves(first), _leaves(output))
        count = len(_leaves(others))

        def grad(upstream: Any) -> Any:
            return [*_leaves(upstream), *[None] * count]

        return output, grad

    return estimate


@custom_gradient
def reverse_gradient(x: Any, scale: Any = 1.0) -> Pair:
    """The identity, with the gradient reversed: what makes one part of a network work against another.

        y = x,    dL/dx = -scale dL/dy

    Source: Ganin & Lempitsky 2015, Unsupervised domain adaptation by backpropagation,
    https://arxiv.org/abs/1409.7495

    Args:
        x: A tensor or any nest of tensors.
        scale: A number, or a tensor that broadcasts to every tensor of `x`, which gets no gradient.

    Returns:
        `x`.

    Raises:
        TypeError: `scale` is neither a number nor a real floating tensor.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> keras_cg.grad(lambda x: 3 * recipes.reverse_gradient(x, 0.5))(np.array([1.0, 2.0]))
        array([-1.5, -1.5])
    """
    scale = _number("reverse_gradient", "scale", scale)
    return x, lambda upstream: (_map(lambda each: -each * _fit(scale, each), upstream), None)


@custom_gradient
def scale_gradient(x: Any, scale: Any) -> Pair:
    """The identity, with the gradient multiplied by a number.

        y = x,    dL/dx = scale dL/dy

    With 0 no gradient passes; between 0 and 1 a part of a network learns more slowly than the rest.

    Source: Ganin & Lempitsky 2015, as `reverse_gradient`, which is this with a negative number.

    Args:
        x: A tensor or any nest of tensors.
        scale: A number, or a tensor that broadcasts to every tensor of `x`, which gets no gradient.

    Returns:
        `x`.

    Raises:
        TypeError: `scale` is neither a number nor a real floating tensor.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> keras_cg.grad(lambda x: 3 * recipes.scale_gradient(x, 0.5))(np.array([1.0, 2.0]))
        array([1.5, 1.5])
    """
    scale = _number("scale_gradient", "scale", scale)
    return x, lambda upstream: (_map(lambda each: each * _fit(scale, each), upstream), None)


@custom_gradient
def clip_gradient(x: Any, *, value: Any = None, norm: Any = None) -> Pair:
    """The identity, with the gradient clipped: by value, or by its norm.

        y = x,    dL/dx = min(max(dL/dy, -value), value)
        y = x,    dL/dx = dL/dy min(1, norm / |dL/dy|)

    The norm is the 2-norm of the upstreams of the whole nest together, so that their direction stays. Neither is linear
    in upstream: forward mode refuses it.

    Source: Pascanu, Mikolov & Bengio 2013, On the difficulty of training recurrent neural networks,
    https://arxiv.org/abs/1211.5063

    Args:
        x: A real floating tensor or any nest of such.
        value: The largest element that passes: a positive number, or a tensor that broadcasts, which gets no gradient.
        norm: The largest norm that passes: a positive number or a scalar tensor, which gets no gradient.

    Returns:
        `x`.

    Raises:
        TypeError: Not exactly one of `value` and `norm` is given, it is no number and no real floating tensor, or `x`
            is complex.
        ValueError: It is not positive.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> upstream = np.array([3.0, 4.0])
        >>> keras_cg.grad(lambda x: upstream * recipes.clip_gradient(x, value=3.5))(np.zeros(2))
        array([3. , 3.5])
        >>> keras_cg.grad(lambda x: upstream * recipes.clip_gradient(x, norm=1.0))(np.zeros(2))
        array([0.6, 0.8])
    """
    if (value is None) == (norm is None):
        raise errors.not_one_limit()
    name = "value" if norm is None else "norm"
    limit = _number("clip_gradient", name, value if norm is None else norm)
    if isinstance(limit, float) and not limit > 0:
        raise errors.bad_parameter("clip_gradient", name, limit, "a positive number")
    for leaf in filter(config.active.is_tensor, _leaves(x)):
        if config.active.dtype(leaf).startswith("complex"):
            raise errors.not_real("clip_gradient", "x", _describe(leaf))

    def by_value(each: Any) -> Any:
        bound = _fit(limit, each) * ops.ones_like(each)
        return ops.maximum(ops.minimum(each, bound), -bound)

    def by_norm(upstream: Any) -> Any:
        parts = [_wide(each) for each in _leaves(upstream) if each is not None]
        if not parts:
            return upstream
        widest = max(map(config.active.dtype, parts))
        total = safe_norm(ops.stack([_cast(safe_norm(each), widest) for each in parts]))
        bound = _fit(limit, total) * ops.ones_like(total)
        factor = bound / ops.maximum(total, bound)
        return _map(lambda each: each * _fit(factor, each), upstream)

    return x, lambda upstream: (_map(by_value, upstream) if norm is None else by_norm(upstream), None)


# --- functions whose plain derivative fails ------------------------------------------------------------------------


@custom_gradient
def safe_norm(x: Any, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Pair:
    """The 2-norm, whose gradient is 0 at 0, and which neither overflows nor underflows.

        y = sqrt(sum x^2) = m sqrt(sum (x / m)^2)  with m = max |x|,    dL/dx = dL/dy x / y, and 0 where y = 0

    Plain differentiation gives NaN at 0. In float32 the plain norm is infinite for elements of 1e20 and zero for 1e-30.

    Source: Blue 1978, A portable Fortran program to find the Euclidean norm of a vector,
    https://doi.org/10.1145/355769.355771 (the scaling); at 0 it is the subgradient of least norm.

    Args:
        x: A real floating tensor.
        axis: The axis or the axes to sum over; None for all.
        keepdims: Whether these stay, with size 1.

    Returns:
        A tensor of the dtype of `x`.

    Raises:
        TypeError: `x` is no real floating tensor.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> x = np.array([[3e200, 4e200], [0.0, 0.0]])
        >>> recipes.safe_norm(x, axis=1)
        array([5.e+200, 0.e+000])
        >>> keras_cg.grad(lambda x: recipes.safe_norm(x, axis=1))(x)
        array([[0.6, 0.8],
               [0. , 0. ]])
    """
    x = _real("safe_norm", "x", x)
    wide, axes = _wide(x), _axes(x, axis)
    # Of nothing there is no maximum; the sum of nothing is 0.
    reduced = ops.sum if 0 in config.active.shape(x) else ops.max
    largest = _constant(reduced(ops.abs(wide), axis=axes, keepdims=True) if axes else ops.abs(wide))
    unit = ops.where((largest > 0) & (largest < math.inf), largest, ops.ones_like(largest))
    scaled = wide / unit
    total = ops.sum(scaled * scaled, axis=axes, keepdims=True) if axes else scaled * scaled
    is_zero = total <= 0
    length = ops.sqrt(ops.where(is_zero, ops.ones_like(total), total))
    norm = _as(ops.where(is_zero, ops.zeros_like(length), unit * length), x)

    def grad(upstream: Any) -> Any:
        for place in () if keepdims else axes:
            upstream = ops.expand_dims(upstream, axis=place)
        direction = ops.where(is_zero, ops.zeros_like(scaled), scaled / length)
        return _as(upstream, direction) * direction, None, None

    return norm if keepdims or not axes else ops.squeeze(norm, axis=axes), grad


# --- quantisation ------------------------------------------------------------------------------------------------


@custom_gradient
def quantize(x: Any, step: Any, bits: int = 8, signed: bool = True, gradient_scale: Any = None) -> Pair:
    """Uniform quantisation with a step size that is given, or learned as in LSQ.

        y = step round(min(max(x / step, -Qn), Qp)),

    where round goes to the nearest integer and half-way cases to the even one, and Qn = 2^(bits-1), Qp = Qn - 1 if
    `signed`, Qn = 0, Qp = 2^bits - 1 otherwise. With r = x / step:

        dL/dx    = dL/dy    where -Qn < r < Qp, else 0
        dL/dstep = gradient_scale sum dL/dy (round(r) - r  where -Qn < r < Qp; -Qn below; Qp above)

    Source: Esser et al. 2020, Learned step size quantization, equations 1 to 5, https://arxiv.org/abs/1902.08153

    Args:
        x: A real floating tensor.
        step: The distance of two levels. A positive number is taken as it is. A floating tensor is learned: a scalar, or
            one that broadcasts to `x`, such as one step per channel; its gradient is summed to its shape.
        bits: 1 to 24; at least 2 if `signed`.
        signed: Whether the levels lie on both sides of zero.
        gradient_scale: What the gradient of `step` is multiplied by: None for 1, which is equation 3 as it stands;
            "lsq" for the paper's 1 / sqrt(N Qp) with N the number of elements of `x` that share a step, as it is meant
            for weights; or a number. For activations the paper's N does not count the batch: give the number.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        TypeError: `x` or `step` is no real floating tensor.
        ValueError: `step` is a number that is not positive, or `bits` or `gradient_scale` is none of the above.

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
    low, high = _levels(bits, signed)
    if not (gradient_scale is None or gradient_scale == "lsq" or isinstance(gradient_scale, numbers.Real)):
        raise errors.bad_parameter("quantize", "gradient_scale", gradient_scale, 'None, "lsq" or a number')
    wide = _wide(_real("quantize", "x", x))
    size = _number("quantize", "step", step)
    if isinstance(size, float) and not size > 0:
        raise errors.bad_parameter("quantize", "step", step, "a positive number or a floating tensor")
    ratio = wide / _fit(size, wide)
    level = _round(ops.maximum(ops.minimum(ratio, ops.full_like(ratio, high)), ops.full_like(ratio, low)))

    def grad(upstream: Any) -> Any:
        inside = (ratio > low) & (ratio < high)
        arriving = _as(upstream, ratio)
        found = ops.where(inside, arriving, ops.zeros_like(arriving))
        if isinstance(size, float):
            return found, None, None, None, None
        slope = arriving * ops.where(inside, level - ratio, level)
        return found, _sum_to(slope, size) * _step_scale(gradient_scale, x, size, high), None, None, None

    return _as(level * _fit(size, wide), _real("quantize", "x", x)), grad


@custom_gradient
def _constant(x: Any) -> Pair:
    """`x` without a gradient."""
    return x, lambda upstream: None


def _axes(x: Any, axis: Any) -> tuple[int, ...]:
    """One axis, several or None for all, as numbers from 0 on."""
    rank = len(config.active.shape(x) or ())
    if axis is None:
        return tuple(range(rank))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    if not all(isinstance(each, int) and -rank <= each < rank for each in given):
        raise errors.bad_parameter("safe_norm", "axis", axis, f"an axis of a tensor with {rank}, or a tuple of such")
    return tuple(sorted({each % rank for each in given}))


def _levels(bits: Any, signed: bool) -> tuple[float, float]:
    """-Qn and Qp."""
    if not isinstance(bits, int) or not (2 if signed else 1) <= bits <= 24:
        raise errors.bad_parameter("quantize", "bits", bits, "a whole number from 1 (if signed, from 2) to 24")
    return (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if signed else (0.0, 2.0**bits - 1)


def _round(x: Any) -> Any:
    """The nearest integers, half-way cases to the even one."""
    # By hand, because tf.experimental.numpy.round raises (TensorFlow 2.21).
    down = ops.floor(x)
    rest = x - down
    is_odd = down - 2 * ops.floor(down / 2) > 0
    return ops.where((rest > 0.5) | ((rest >= 0.5) & is_odd), down + 1, down)


def _step_scale(scale: Any, x: Any, step: Any, high: float) -> Any:
    """What the gradient of a learned step is multiplied by."""
    if scale is None:
        return 1.0
    if scale != "lsq":
        return float(scale)
    sizes = config.active.shape(x), config.active.shape(step)
    if any(size is None or None in size for size in sizes):
        raise errors.unknown_count("quantize")
    elements, steps = map(math.prod, sizes)
    return 1 / math.sqrt(max(elements // steps, 1) * high)


def _sum_to(x: Any, like: Any) -> Any:
    """`x` summed to the shape of `like`, which broadcasts to it."""
    size = config.active.shape(like)
    lead = len(config.active.shape(x)) - len(size)
    kept = tuple(lead + place for place, length in enumerate(size) if length == 1)
    if kept:
        x = ops.sum(x, axis=kept, keepdims=True)
    return ops.sum(x, axis=tuple(range(lead))) if lead else x


# --- tensors and nests -------------------------------------------------------------------------------------------


def _leaves(value: Any) -> list[Any]:
    return nest.flatten(value, config.active.is_tensor, config.active.children).leaves


def _map(function: Callable[..., Any], *values: Any) -> Any:
    """A nest of what `function` makes of the tensors of one nest, or of several that are alike."""
    is_tensor = config.active.is_tensor
    laid = nest.flatten(values[0], is_tensor, config.active.children)
    places = [place for place, leaf in enumerate(laid.leaves) if is_tensor(leaf)]
    others = [_leaves(value) for value in values[1:]]
    return laid.fill(places, [function(laid.leaves[at], *(leaves[at] for leaves in others)) for at in places])


def _describe(value: Any) -> str:
    backend = config.active
    return describe(backend.dtype(value), backend.shape(value)) if backend.is_tensor(value) else repr(value)


def _is_real(value: Any) -> bool:
    backend = config.active
    return (
        backend.is_tensor(value) and is_differentiable(backend.dtype(value)) and "complex" not in backend.dtype(value)
    )


def _real(recipe: str, argument: str, value: Any) -> Any:
    """A real floating tensor."""
    if isinstance(value, numbers.Real) and not config.active.is_tensor(value):
        return config.active.asarray(float(value))
    if not _is_real(value):
        raise errors.not_real(recipe, argument, _describe(value))
    return value


def _number(recipe: str, argument: str, value: Any) -> Any:
    """A number as a float, or a real floating tensor."""
    if isinstance(value, numbers.Real) and not config.active.is_tensor(value):
        return float(value)
    if not _is_real(value):
        raise errors.not_a_number(recipe, argument, value)
    return value


def _cast(x: Any, dtype: str) -> Any:
    return x if config.active.dtype(x) == dtype else config.active.cast(x, dtype)


def _as(x: Any, like: Any) -> Any:
    """`x` in the dtype of another tensor."""
    return _cast(x, config.active.dtype(like))


def _fit(number: Any, like: Any) -> Any:
    """A number, or a tensor in the dtype of another one."""
    return number if isinstance(number, float) else _as(number, like)


def _wide(x: Any) -> Any:
    """`x` in at least float32: half precision is too narrow, and TensorFlow (2.21) lacks much of it."""
    return x if config.active.dtype(x) in ("float32", "float64") else config.active.cast(x, "float32")


def _check_alike(name: str, inputs: list[Any], outputs: list[Any]) -> None:
    """Whether upstream, of some outputs, can be the gradient of some inputs."""
    backend = config.active
    pairs = list(zip(inputs, outputs, strict=False))
    if len(inputs) != len(outputs) or any(
        not (_is_floating(output) and compatible(backend.shape(output), backend.shape(each)))
        for each, output in pairs
        if _is_floating(each)
    ):
        raise errors.not_alike_output(name, *(", ".join(map(_describe, leaves)) for leaves in (outputs, inputs)))


def _is_floating(value: Any) -> bool:
    return config.active.is_tensor(value) and is_differentiable(config.active.dtype(value))
