"""Smooth versions of jumps, with a temperature that a schedule may change during training."""

from __future__ import annotations

import math
from typing import Any

from keras_cg import ops
from keras_cg.engine import precision
from keras_cg.frontend import config
from keras_cg.recipes import messages, tensors
from keras_cg.recipes.safe import shares
from keras_cg.recipes.tensors import Pair

# An alpha from here on gives plain rounding, and its square is still finite in float32.
_HARD = 2.0**60


def soft_round(x: Any, alpha: Any) -> Any:
    """Rounds smoothly: the identity for alpha = 0, and nearly a staircase for a large alpha.

        r = x - floor(x) - 1/2
        y = floor(x) + 1/2 + tanh(alpha r) / (2 tanh(alpha / 2))
        dL/dx = dL/dy alpha (1 - tanh(alpha r)^2) / (2 tanh(alpha / 2))

    Whole numbers and those half-way between them do not change. With `straight_through` the output is rounded, and
    only the gradient is smooth: `straight_through(lambda x, alpha: ops.round(x), soft_round)`.

    Source: Agustsson & Theis 2020, Universally quantized neural compression, equation 12,
    https://arxiv.org/abs/2006.09952

    Args:
        x: `float[...]`
        alpha: The steepness half-way. A number of at least 0, or a `float[...]` that broadcasts to `x`, such as a
            schedule. It gets no gradient. A negative tensor gives NaN, because no compiled program can raise.

    Returns:
        `float[...]`, with the shape and dtype of `x`.

    Raises:
        TypeError: `x` is not a real floating tensor, or `alpha` is neither a number nor such a tensor.
        ValueError: `alpha` is a negative number, or does not broadcast to `x`.

    See Also:
        `keras_cg.recipes.straight_through`, for a rounded output with this gradient.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> x = np.array([0.1, 0.5, 0.9, 1.0])
        >>> for alpha in (0.0, 5.0, 50.0):
        ...     print(recipes.soft_round(x, alpha).round(3))
        [0.1 0.5 0.9 1. ]
        [0.011 0.5   0.989 1.   ]
        [0.  0.5 1.  1. ]
        >>> keras_cg.grad(recipes.soft_round)(x, 5.0).round(3)
        array([0.179, 2.534, 0.179, 0.067])
    """
    return _soft_round(x, tensors.plain(alpha))


@tensors.recipe("soft_round")
def _soft_round(x: Any, alpha: Any) -> Pair:
    x = tensors.real("soft_round", "x", x)
    sharp = tensors.number("soft_round", "alpha", alpha)
    if tensors.is_number(sharp) and not sharp >= 0:
        raise messages.bad_parameter("soft_round", "alpha", alpha, "a number from 0 on")
    tensors.check_broadcasts("soft_round", "alpha", sharp, x)
    wide, sharp = tensors.together(x, sharp)
    one, none = ops.ones_like(wide), ops.zeros_like(wide)
    sharp = sharp * one if not tensors.is_number(sharp) else ops.full_like(wide, min(sharp, _HARD))
    sharp = ops.where(sharp >= 0, ops.where(sharp > _HARD, _HARD * one, sharp), math.nan * one)
    # Every large number is whole, and so is infinity.
    is_infinite = ops.abs(wide) == math.inf
    finite = ops.where(is_infinite, none, wide)
    whole = ops.round(ops.stop_gradient(finite))
    off = finite - whole
    # tanh(a) - tanh(b) loses digits next to a whole number. These exponentials do not: with d = |off|,
    # y - whole = sinh(alpha d) / (2 sinh(alpha / 2) cosh(alpha (1/2 - d))), with the sign of off.
    # Not abs, because frameworks differ in its derivative at 0; nor 0 * off, which inductor replaces by 0 for NaN.
    distance = ops.where(off > 0, off, ops.where(off < 0, -off, ops.where(off == 0, none, off)))
    fall = ops.exp(-sharp * (1 - 2 * distance))
    epsilon = precision.of(config.active.dtype(wide)).epsilon
    is_flat = sharp <= epsilon
    slope = ops.where(is_flat, one, sharp / -ops.expm1(-ops.where(is_flat, one, sharp)))
    part = 2 * sharp * ops.stop_gradient(distance)
    is_near = part <= epsilon
    inside = ops.where(is_near, one, part)
    shift = 2 * off * ops.where(is_near, one, -ops.expm1(-inside) / inside) * slope * (fall / (1 + fall))
    value = ops.where(is_infinite, wide, whole + shift)

    def grad(upstream: Any) -> Any:
        bell = fall / (1 + fall) / (1 + fall)
        return tensors.as_like(upstream, wide) * (2 * slope * (1 + ops.exp(-sharp)) * bell), None

    return tensors.as_like(value, x), grad


def gumbel_noise(uniform: Any) -> Any:
    """Computes noise of the standard Gumbel distribution from uniform numbers.

        y = -log(-log(u))

    Draw the uniform numbers with the framework's own keys, seeds or generators. Then compiled programs and batches draw
    new ones in each run. Equal numbers give equal noise on every backend.

    Source: Gumbel 1954, Statistical theory of extreme values and some practical applications; as in Jang, Gu & Poole
    2017, https://arxiv.org/abs/1611.01144

    Args:
        uniform: `float[...]` of numbers from 0 to 1, such as from `jax.random.uniform(key, shape)`,
            `torch.rand(shape)`, `tf.random.stateless_uniform(shape, seed)`, `numpy.random.default_rng(0).random(shape)`
            or `keras.random.uniform(shape, seed=seed)`. A number below the dtype's smallest normal number counts as
            that number. The largest number is 1 minus half the dtype's epsilon (float32's for half precision).

    Returns:
        `float[...]`, with the shape and dtype of `uniform`, and no gradient. It is NaN where `uniform` is not between 0
        and 1.

    Raises:
        TypeError: `uniform` is not a real floating tensor.

    See Also:
        `keras_cg.recipes.gumbel_softmax`, which takes this noise.

    Example:
        >>> import numpy as np
        >>> from keras_cg import recipes
        >>> recipes.gumbel_noise(np.array([0.1, 0.5, 0.9])).round(3)
        array([-0.834,  0.367,  2.25 ])
    """
    uniform = tensors.real("gumbel_noise", "uniform", uniform)
    wide = ops.stop_gradient(tensors.wide(uniform))
    limits = precision.of(config.active.dtype(wide))
    one = ops.ones_like(wide)
    least, most = limits.smallest * one, (1 - limits.epsilon / 2) * one
    inside = ops.where(wide < least, least, ops.where(wide > most, most, wide))
    noise = -ops.log(-ops.log(inside))
    return tensors.as_like(ops.where((wide >= 0) & (wide <= 1), noise, math.nan * one), uniform)


def gumbel_softmax(logits: Any, noise: Any, temperature: Any = 1.0, *, axis: int = -1, hard: bool = True) -> Any:
    """Chooses one category at random, one-hot, with the gradient of a softmax: the Gumbel-softmax estimator.

        s = softmax((logits + noise) / temperature)
        y = onehot(argmax(logits + noise))    if hard, else s
        dL/dlogits = s (dL/dy - sum(s dL/dy)) / temperature

    With noise of the standard Gumbel distribution, category i is drawn with the probability softmax(logits)[i]. The
    noise is an argument for two reasons: a compiled program would draw it only once, and equal noise gives the same
    choice on every backend. Zeros as noise give the most likely category. A category with a logit of minus infinity is
    never drawn, and gets a gradient of exactly 0. If all logits are minus infinity, the output is 0.

    Source: Jang, Gu & Poole 2017, Categorical reparameterization with Gumbel-softmax,
    https://arxiv.org/abs/1611.01144; Maddison, Mnih & Teh 2017, The Concrete distribution,
    https://arxiv.org/abs/1611.00712

    Args:
        logits: `float[..., n]`, unnormalised logarithms of the probabilities of n categories.
        noise: `float[..., n]`, with the shape of `logits`. It gets the gradient that `logits` gets.
        temperature: A positive number, or a `float[...]` that broadcasts to `logits`, such as a schedule. It gets no
            gradient. A tensor that is not positive gives NaN, because no compiled program can raise.
        axis: The axis of the categories.
        hard: Whether the output is one-hot (straight-through), or the softmax itself.

    Returns:
        `float[..., n]`, with the shape and dtype of `logits`.

    Raises:
        TypeError: `logits` or `noise` is not a real floating tensor, or `temperature` is neither a number nor such a
            tensor.
        ValueError: `noise` has another shape, `temperature` is a number that is not positive and finite or does not
            broadcast to `logits`, there is no such axis, or `hard` is neither true nor false.

    See Also:
        `keras_cg.recipes.gumbel_noise`, the noise. `keras_cg.recipes.straight_through`, for other hard choices.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> logits = np.array([0.0, 1.0, 2.0])
        >>> noise = recipes.gumbel_noise(np.random.default_rng(0).random(3))
        >>> recipes.gumbel_softmax(logits, noise)
        array([0., 0., 1.])
        >>> recipes.gumbel_softmax(logits, noise, 2.0, hard=False).round(3)
        array([0.335, 0.324, 0.342])
        >>> prices = np.array([1.0, 2.0, 4.0])
        >>> keras_cg.grad(lambda logits: prices * recipes.gumbel_softmax(logits, noise, 2.0))(logits).round(3)
        array([-0.226, -0.056,  0.282])
    """
    hard = tensors.flag("gumbel_softmax", "hard", hard)
    return _gumbel_softmax(logits, noise, tensors.plain(temperature), tensors.plain(axis), hard)


@tensors.recipe("gumbel_softmax")
def _gumbel_softmax(logits: Any, noise: Any, temperature: Any, axis: Any, hard: bool) -> Pair:
    recipe = "gumbel_softmax"
    logits, noise = (tensors.real(recipe, name, each) for name, each in (("logits", logits), ("noise", noise)))
    tensors.check_shape(recipe, "noise", noise, "logits", logits)
    if not isinstance(axis, int):
        raise messages.bad_parameter(recipe, "axis", axis, "a whole number: categories lie along one axis")
    (place,) = tensors.axes(recipe, "logits", logits, axis)
    heat = tensors.number(recipe, "temperature", temperature)
    if tensors.is_number(heat):
        tensors.finite(recipe, "temperature", heat, logits)
    tensors.check_broadcasts(recipe, "temperature", heat, logits, "logits")
    wide, other = tensors.together(logits, noise)
    score, heat = tensors.together(wide + other, heat)
    if not tensors.is_number(heat):
        heat = ops.where(heat > 0, heat, ops.full_like(heat, math.nan))
    is_out = score == -math.inf
    share, _, _ = shares(score, (place,), is_out, heat)
    output = _one_hot(share, score, place) if hard else share

    def grad(upstream: Any) -> Any:
        upstream = tensors.as_like(upstream, share)
        slope = share * (upstream - ops.sum(share * upstream, axis=place, keepdims=True)) / heat

        def masked(like: Any) -> Any:
            return tensors.as_like(ops.where(is_out, ops.zeros_like(slope), slope), like)

        return masked(logits), masked(noise), None, None, None

    return tensors.as_like(output, logits), grad


def _one_hot(share: Any, score: Any, axis: int) -> Any:
    """Returns 1 at the first of the largest scores along an axis, and 0 elsewhere; NaN where a share is NaN."""
    one, none = ops.ones_like(score), ops.zeros_like(score)
    chosen = ops.expand_dims(ops.argmax(score, axis=axis), axis=axis)
    places = ops.cumulative_sum(one, axis=axis) - 1
    is_chosen = (places == tensors.as_like(chosen, score)) & (score > -math.inf)
    return ops.where(share == share, ops.where(is_chosen, one, none), share)
