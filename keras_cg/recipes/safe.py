"""Functions whose plain derivative overflows, or is NaN somewhere."""

from __future__ import annotations

import math
from typing import Any

from keras_cg import ops
from keras_cg.engine import precision
from keras_cg.frontend import config
from keras_cg.frontend.decorator import custom_gradient
from keras_cg.recipes import messages, tensors
from keras_cg.recipes.tensors import Pair


@custom_gradient
def log1pexp(x: Any) -> Pair:
    """Computes log(1 + exp(x)), the softplus, accurately for numbers of any size and in every derivative.

        y = max(x, 0) + log1p(exp(-|x|)),    dL/dx = dL/dy / (1 + exp(-x))

    Plain autodiff of log(1 + exp(x)) gives NaN where exp(x) overflows.

    Source: Mächler 2012, Accurately computing log(1 - exp(-|a|)),
    https://cran.r-project.org/web/packages/Rmpfr/vignettes/log1mexp-note.pdf

    Args:
        x: `float[...]`

    Returns:
        `float[...]`, with the shape and dtype of `x`.

    Raises:
        TypeError: `x` is not a real floating tensor.

    See Also:
        `keras_cg.recipes.log_sum_exp`, for a sum of exponentials. `keras_cg.recipes.safe_log`, for a logarithm near 0.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> x = np.array([-1000.0, 0.0, 1000.0])
        >>> recipes.log1pexp(x).tolist()
        [0.0, 0.6931471805599453, 1000.0]
        >>> keras_cg.grad(recipes.log1pexp)(x)
        array([0. , 0.5, 1. ])
    """
    x = tensors.real("log1pexp", "x", x)
    wide = tensors.wide(x)
    is_positive = wide >= 0
    # Not abs, because its derivative at 0 is 0, and the second derivative would be wrong there.
    e = ops.exp(ops.where(is_positive, -wide, wide))
    value = ops.where(is_positive, wide, ops.zeros_like(wide)) + ops.log1p(e)

    def grad(upstream: Any) -> Any:
        return tensors.as_like(upstream, e) * ops.where(is_positive, 1 / (1 + e), e / (1 + e))

    return tensors.as_like(value, x), grad


def safe_norm(x: Any, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Any:
    """Computes the 2-norm, with the gradient 0 at 0, without overflow or underflow.

        y = sqrt(sum x^2) = m sqrt(sum (x / m)^2)  with m = max |x|
        dL/dx = dL/dy x / y                        where y > 0, else 0

    Plain autodiff gives NaN at 0. In float32 the plain norm is infinite for elements of 1e20 and zero for 1e-30.
    At infinity the gradient is its limit: 1 or -1 for the infinite element, 0 for the others.

    Source: Blue 1978, A portable Fortran program to find the Euclidean norm of a vector,
    https://doi.org/10.1145/355769.355771 (the scaling); at 0 it is the subgradient of least norm.

    Args:
        x: `float[..., n]`
        axis: The axis or the axes to sum over; None for all.
        keepdims: Whether the result has these axes, with size 1.

    Returns:
        `float[...]`, the shape of `x` without the axes, in the dtype of `x`.

    Raises:
        TypeError: `x` is not a real floating tensor.
        ValueError: There is no such axis, the rank of `x` is unknown, or `keepdims` is neither true nor false.

    See Also:
        `keras_cg.recipes.safe_sqrt`, for a square root near 0.

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
    return _safe_norm(
        _ranked("safe_norm", x, axis, keepdims), _places(axis), tensors.flag("safe_norm", "keepdims", keepdims)
    )


@tensors.recipe("safe_norm")
def _safe_norm(x: Any, axis: Any, keepdims: bool) -> Pair:
    x = tensors.real("safe_norm", "x", x)
    wide, axes = tensors.wide(x), tensors.axes("safe_norm", "x", x, axis)
    # `sum` for an empty tensor, because `max` refuses one.
    reduced = ops.max if tensors.is_full(x) else ops.sum
    size = ops.abs(ops.stop_gradient(wide))
    unit, is_infinite = unit_of(reduced(size, axis=axes, keepdims=True) if axes else size), size == math.inf
    # Infinite elements count as equally large, and the finite ones beside them as 0.
    finite, one = ops.where(is_infinite, ops.zeros_like(wide), wide), ops.ones_like(wide)
    scaled = ops.where(is_infinite, ops.where(wide > 0, one, -one), finite / unit)
    total = ops.sum(scaled * scaled, axis=axes, keepdims=True) if axes else scaled * scaled
    is_zero = total <= 0
    length = ops.sqrt(ops.where(is_zero, ops.ones_like(total), total))
    norm = tensors.as_like(ops.where(is_zero, ops.zeros_like(length), unit * length), x)

    def grad(upstream: Any) -> Any:
        for place in () if keepdims else axes:
            upstream = ops.expand_dims(upstream, axis=place)
        direction = ops.where(is_zero, ops.zeros_like(scaled), scaled / length)
        return tensors.as_like(upstream, direction) * direction, None, None

    return norm if keepdims or not axes else ops.squeeze(norm, axis=axes), grad


def _places(axis: Any) -> Any:
    """Returns one axis, several or None, with Python's numbers in the place of NumPy's."""
    return tuple(map(tensors.plain, axis)) if isinstance(axis, (tuple, list)) else tensors.plain(axis)


def _ranked(recipe: str, x: Any, axis: Any, keepdims: Any) -> Any:
    """Returns a tensor of known rank; flattens one of unknown rank if all axes are summed."""
    if not config.active.is_tensor(x) or config.active.shape(x) is not None:
        return x
    if axis is not None or keepdims:
        raise messages.unknown_rank(recipe, "x", tensors.described(x))
    return ops.reshape(x, (-1,))


def unit_of(largest: Any) -> Any:
    """Returns a divisor for numbers up to `largest`, so that their squares neither overflow nor underflow."""
    # XLA flushes numbers below the smallest normal one to 0 in some operations and not in others. It also multiplies by
    # the inverse instead of dividing, so the inverse must be a normal number as well.
    smallest = precision.of(config.active.dtype(largest)).smallest
    least, most = ops.full_like(largest, smallest), ops.full_like(largest, 1 / smallest)
    unit = ops.where(largest > least, ops.where((largest > most) & (largest < math.inf), most, largest), least)
    return ops.where(largest > 0, unit, ops.ones_like(unit))


@custom_gradient
def safe_sqrt(x: Any) -> Pair:
    """Computes the square root of max(x, 0), with the gradient 0 for x <= 0.

        y = sqrt(max(x, 0)),    dL/dx = dL/dy / (2 sqrt(x)) where x > 0, else 0

    Plain autodiff gives infinity at 0, and NaN as soon as that is multiplied by zero.

    Source: the convention of the subgradient that is finite, as in `safe_norm`; written as in the JAX FAQ,
    https://docs.jax.dev/en/latest/faq.html#gradients-contain-nan-where-using-where

    Args:
        x: `float[...]`

    Returns:
        `float[...]`, with the shape and dtype of `x`.

    Raises:
        TypeError: `x` is not a real floating tensor.

    See Also:
        `keras_cg.recipes.safe_norm`, for the root of a sum of squares. `keras_cg.recipes.safe_log`, for a logarithm.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> recipes.safe_sqrt(np.array([-1.0, 0.0, 4.0]))
        array([0., 0., 2.])
        >>> keras_cg.grad(recipes.safe_sqrt)(np.array([-1.0, 0.0, 4.0]))
        array([0.  , 0.  , 0.25])
    """
    x = tensors.real("safe_sqrt", "x", x)
    wide = tensors.wide(x)
    is_negative = wide <= 0
    root = ops.sqrt(ops.where(is_negative, ops.ones_like(wide), wide))
    # On XLA the root of a positive number below the smallest normal one is 0.
    is_out = is_negative | (root <= 0)
    root = ops.where(is_out, ops.ones_like(root), root)
    value = ops.where(is_out, ops.zeros_like(root), root)

    def grad(upstream: Any) -> Any:
        return tensors.as_like(upstream, root) * ops.where(is_out, ops.zeros_like(root), 0.5 / root)

    return tensors.as_like(value, x), grad


def safe_log(x: Any, floor: float | None = None) -> Any:
    """Computes the logarithm of max(x, floor), with the gradient 0 below the floor.

        y = log(max(x, floor)),    dL/dx = dL/dy / x where x >= floor, else 0

    Plain autodiff gives infinity or NaN at 0, a usual value of probabilities and likelihoods.

    Source: the derivative of the formula, written as in the JAX FAQ,
    https://docs.jax.dev/en/latest/faq.html#gradients-contain-nan-where-using-where

    Args:
        x: `float[...]`
        floor: A positive number. None for the smallest normal number of the dtype, which is also the lowest floor.

    Returns:
        `float[...]`, with the shape and dtype of `x`.

    Raises:
        TypeError: `x` is not a real floating tensor.
        ValueError: `floor` is not a positive number.

    See Also:
        `keras_cg.recipes.log_sum_exp` and `keras_cg.recipes.log1pexp`, for logarithms of exponentials.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> recipes.safe_log(np.array([0.0, 1.0]), 1e-3).round(2)
        array([-6.91,  0.  ])
        >>> keras_cg.grad(recipes.safe_log)(np.array([0.0, 1.0, 4.0]))
        array([0.  , 1.  , 0.25])
    """
    return _safe_log(x, tensors.plain(floor))


@tensors.recipe("safe_log")
def _safe_log(x: Any, floor: float | None) -> Pair:
    x = tensors.real("safe_log", "x", x)
    least = precision.of(config.active.dtype(x)).smallest
    if floor is not None:
        least = max(least, tensors.positive("safe_log", "floor", floor))
    wide = tensors.wide(x)
    is_out = wide < least
    inside = ops.where(is_out, ops.ones_like(wide), wide)
    value = ops.where(is_out, ops.full_like(wide, math.log(least)), ops.log(inside))

    def grad(upstream: Any) -> Any:
        return tensors.as_like(upstream, wide) * ops.where(is_out, ops.zeros_like(inside), 1 / inside), None

    return tensors.as_like(value, x), grad


def shares(x: Any, axes: tuple[int, ...], is_out: Any, heat: Any = 1.0) -> tuple[Any, Any, Any]:
    """Computes the softmax of x / heat over some axes, 0 where `is_out`; infinite elements count as equally large.

    Returns the softmax, the sum of exponentials in it (1 where nothing counts), and the peak that was subtracted. The
    framework can differentiate it: no intermediate value is infinite or NaN where x is finite.
    """
    one, none = ops.ones_like(x), ops.zeros_like(x)
    level = ops.stop_gradient(ops.where(is_out, -math.inf * one, x))
    if axes and tensors.is_full(x):
        level = ops.max(level, axis=axes, keepdims=True)
    elif axes:  # `max` refuses an empty tensor
        level = -math.inf * ops.ones_like(ops.sum(level, axis=axes, keepdims=True))
    is_infinite, is_nothing = level == math.inf, level == -math.inf
    peak = ops.where(is_infinite | is_nothing, ops.zeros_like(level), level)
    is_left = is_out | is_infinite
    height = ops.exp((ops.where(is_left, none, x) - ops.where(is_left, none, peak)) / heat)
    height = ops.where(is_left, ops.where(~is_out & (x == math.inf), one, none), height)
    total = ops.sum(height, axis=axes, keepdims=True) if axes else height
    total = ops.where(total <= 0, ops.ones_like(total), total)
    return height / total, total, ops.where(is_infinite | is_nothing, level, peak)


def log_sum_exp(x: Any, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, where: Any = None) -> Any:
    """Computes the logarithm of a sum of exponentials, over the elements that a mask selects.

        y = m + log(sum exp(x - m))  with m = max x
        dL/dx = dL/dy exp(x - y)     and 0 where masked

    If all elements are masked or minus infinity, the result is minus infinity, with the gradient 0. A masked element
    has a gradient of exactly 0 in every order, even if it is NaN or infinite. Plain autodiff gives NaN in all of these
    cases. If an element is infinity, so is the result, and the infinite elements share the gradient.

    Source: Blanchard, Higham & Higham 2021, Accurately computing the log-sum-exp and softmax functions, algorithm 3.1,
    https://doi.org/10.1093/imanum/draa038; the mask as in the JAX FAQ,
    https://docs.jax.dev/en/latest/faq.html#gradients-contain-nan-where-using-where

    Args:
        x: `float[..., n]`
        axis: The axis or the axes to sum over; None for all.
        keepdims: Whether the result has these axes, with size 1.
        where: The mask, a `bool[...]` that broadcasts to `x`: True where an element counts. None for all.

    Returns:
        `float[...]`, the shape of `x` without the axes, in the dtype of `x`.

    Raises:
        TypeError: `x` is not a real floating tensor, or `where` is not a boolean one.
        ValueError: There is no such axis, the rank of `x` is unknown, `where` does not broadcast to `x`, or `keepdims`
            is neither true nor false.

    See Also:
        `keras_cg.recipes.log1pexp`, for two elements of which one is 0. `keras_cg.recipes.gumbel_softmax`, which draws
        from a softmax.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> x = np.array([[1000.0, 1000.0, np.nan], [-np.inf, -np.inf, 5.0]])
        >>> mask = np.array([True, True, False])
        >>> recipes.log_sum_exp(x, axis=1, where=mask).round(3)
        array([1000.693,     -inf])
        >>> keras_cg.grad(lambda x: recipes.log_sum_exp(x, axis=1, where=mask))(x)
        array([[0.5, 0.5, 0. ],
               [0. , 0. , 0. ]])
    """
    keepdims = tensors.flag("log_sum_exp", "keepdims", keepdims)
    if where is not None and not (config.active.is_tensor(where) and config.active.dtype(where) == "bool"):
        raise messages.not_a_mask("log_sum_exp", "where", tensors.described(where))
    return _log_sum_exp(_ranked("log_sum_exp", x, axis, keepdims), _places(axis), keepdims, where)


@tensors.recipe("log_sum_exp")
def _log_sum_exp(x: Any, axis: Any, keepdims: bool, where: Any) -> Pair:
    x = tensors.real("log_sum_exp", "x", x)
    wide, axes = tensors.wide(x), tensors.axes("log_sum_exp", "x", x, axis)
    is_out = wide == -math.inf
    if where is not None:
        tensors.check_broadcasts("log_sum_exp", "where", where, x)
        is_out = is_out | ~where
    share, total, peak = shares(wide, axes, is_out)
    value = tensors.as_like(peak + ops.log(total), x)

    def grad(upstream: Any) -> Any:
        for place in () if keepdims else axes:
            upstream = ops.expand_dims(upstream, axis=place)
        slope = tensors.as_like(upstream, share) * share
        return tensors.as_like(ops.where(is_out, ops.zeros_like(slope), slope), x), None, None, None

    return value if keepdims or not axes else ops.squeeze(value, axis=axes), grad
