"""Functions whose output is that of another function, or their input, with another gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from keras_cg import ops
from keras_cg.frontend import config
from keras_cg.frontend.call import function_name
from keras_cg.frontend.decorator import custom_gradient
from keras_cg.frontend.pickling import picklable
from keras_cg.recipes import messages, tensors
from keras_cg.recipes.safe import unit_of
from keras_cg.recipes.tensors import Pair


@picklable
def straight_through(fn: Callable[..., Any], soft: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Returns `fn` with the gradient of the identity, or of another function: the straight-through estimator.

    The gradient of the first argument is the upstream gradient itself. All other arguments get no gradient.

        y = fn(x, ...),    dL/dx = dL/dy

    With `soft`, a smooth function of the same arguments, the gradient is that of `soft`. It is the gradient for every
    argument, and for every value that `soft` closes over. If one argument is a temperature, this is an annealed
    estimator. Pass the temperature as a tensor: a schedule can then change it without recompiling. To keep it fixed in
    training, stop its gradient inside `soft`.

        y = fn(x, ...),    dL/dx = (dsoft/dx)^T dL/dy

    Source: Bengio, Léonard & Courville 2013, Estimating or propagating gradients through stochastic neurons,
    https://arxiv.org/abs/1308.3432; with a temperature: Chung, Ahn & Bengio 2017, Hierarchical multiscale recurrent
    neural networks (the slope-annealing trick), https://arxiv.org/abs/1609.01704

    Args:
        fn: A function `fn(x, ...)` of a pytree of `float[...]`, which returns the same structure and shapes. With
            `soft`, it returns those of the output of `soft`. It may be compiled.
        soft: A function of the arguments of `fn`, or None for the first argument itself.

    Returns:
        A function with the arguments and the output of `fn`.

    Raises:
        TypeError: `fn` or `soft` cannot be called.
        GradientError: When the result is called: structure or shapes of the output differ from the first argument, or
            from the output of `soft`.
        CapturedVariableError: When the result is called: `fn` closes over a value that is being differentiated.

    See Also:
        `keras_cg.keras.layers.StraightThrough`, the layer. `keras_cg.recipes.quantize`, which learns its step.
        `keras_cg.recipes.soft_round`, a smooth rounding.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> sign = recipes.straight_through(np.sign)
        >>> sign(np.array([-0.3, 2.0]))
        array([-1.,  1.])
        >>> keras_cg.grad(sign)(np.array([-0.3, 2.0]))
        array([1., 1.])
        >>> rounded = recipes.straight_through(lambda x, alpha: np.round(x), recipes.soft_round)
        >>> rounded(np.array([0.4, 1.0]), 5.0)
        array([0., 1.])
        >>> keras_cg.grad(rounded)(np.array([0.4, 1.0]), 5.0).round(3)
        array([1.993, 0.067])
    """
    for fun in (fn,) if soft is None else (fn, soft):
        if not callable(fun):
            raise messages.not_a_function("straight_through", fun)
    name = f"straight_through({function_name(fn)})"
    if soft is not None:
        return _softened(name, fn, soft)

    @custom_gradient
    @tensors.named_like(fn)
    def estimate(*args: Any, **kwargs: Any) -> Pair:
        if not (args or kwargs):
            raise messages.no_arguments(name)
        output = fn(*args, **kwargs)
        first, *others = (*args, *kwargs.values())
        tensors.check_alike(name, tensors.leaves(first), tensors.leaves(output))
        count = len(tensors.leaves(others))

        def grad(upstream: Any) -> Any:
            return [*tensors.leaves(upstream), *[None] * count]

        return output, grad

    return estimate


def _softened(name: str, fn: Callable[..., Any], soft: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function with the outputs of `fn`, whose upstream goes to the outputs of `soft`."""

    # Keywords as two tuples, because torch.compile (2.13) refuses a dict among the arguments.
    def estimate(smooth: Any, args: Any, names: tuple[str, ...], values: Any) -> Pair:
        output = fn(*args, **dict(zip(names, values, strict=True)))
        tensors.check_alike(name, tensors.leaves(smooth), tensors.leaves(output), "the output of soft")
        count = len(tensors.leaves((args, names, values)))
        return output, lambda upstream: [*tensors.leaves(upstream), *[None] * count]

    attached = tensors.recipe(name)(estimate)

    @tensors.named_like(fn)
    def softened(*args: Any, **kwargs: Any) -> Any:
        return attached(soft(*args, **kwargs), args, tuple(kwargs), tuple(kwargs.values()))

    return softened


def reverse_gradient(x: Any, scale: Any = 1.0) -> Any:
    """Returns its argument and reverses the gradient, so one part of a network works against another.

        y = x,    dL/dx = -scale dL/dy

    Source: Ganin & Lempitsky 2015, Unsupervised domain adaptation by backpropagation,
    https://arxiv.org/abs/1409.7495

    Args:
        x: Any pytree of `inexact[...]`.
        scale: A number, or a `float[...]` that broadcasts to every tensor of `x` and gets no gradient.

    Returns:
        `x`.

    Raises:
        TypeError: `scale` is neither a number nor a real floating tensor.
        ValueError: In the backward pass: `scale` does not broadcast to a tensor of `x`.

    See Also:
        `keras_cg.keras.layers.GradientReversal`, the layer. `keras_cg.recipes.scale_gradient`, without the sign.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> keras_cg.grad(lambda x: 3 * recipes.reverse_gradient(x, 0.5))(np.array([1.0, 2.0]))
        array([-1.5, -1.5])
    """
    return _reverse_gradient(x, tensors.plain(scale))


@tensors.recipe("reverse_gradient")
def _reverse_gradient(x: Any, scale: Any) -> Pair:
    scale = tensors.number("reverse_gradient", "scale", scale)
    return x, lambda upstream: (_scaled("reverse_gradient", upstream, -scale), None)


def scale_gradient(x: Any, scale: Any) -> Any:
    """Returns its argument and multiplies the gradient by a number.

        y = x,    dL/dx = scale dL/dy

    With 0 there is no gradient; between 0 and 1 a part of a network learns more slowly than the others.

    Source: Ganin & Lempitsky 2015, https://arxiv.org/abs/1409.7495, where the number is negative.

    Args:
        x: Any pytree of `inexact[...]`.
        scale: A number, or a `float[...]` that broadcasts to every tensor of `x` and gets no gradient.

    Returns:
        `x`.

    Raises:
        TypeError: `scale` is neither a number nor a real floating tensor.
        ValueError: In the backward pass: `scale` does not broadcast to a tensor of `x`.

    See Also:
        `keras_cg.keras.layers.GradientScaling`, the layer. `keras_cg.recipes.clip_gradient`, which limits a gradient.
        `keras_cg.ops.stop_gradient`, which blocks it.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> keras_cg.grad(lambda x: 3 * recipes.scale_gradient(x, 0.5))(np.array([1.0, 2.0]))
        array([1.5, 1.5])
    """
    return _scale_gradient(x, tensors.plain(scale))


@tensors.recipe("scale_gradient")
def _scale_gradient(x: Any, scale: Any) -> Pair:
    scale = tensors.number("scale_gradient", "scale", scale)
    return x, lambda upstream: (_scaled("scale_gradient", upstream, scale), None)


def _scaled(recipe: str, upstream: Any, scale: Any) -> Any:
    """Multiplies each tensor of a pytree by a number, or by a tensor that broadcasts to it."""

    def scaled(each: Any) -> Any:
        tensors.check_broadcasts(recipe, "scale", scale, each)
        return tensors.times(each, scale)

    return tensors.mapped(scaled, upstream)


def clip_gradient(x: Any, *, value: Any = None, norm: Any = None) -> Any:
    """Returns its argument and clips the gradient, by value or by norm.

        y = x,    dL/dx = min(max(dL/dy, -value), value)
        y = x,    dL/dx = dL/dy min(1, norm / |dL/dy|)

    The norm is the 2-norm of the upstream gradients of the whole pytree together, batch included. Clipping by norm
    keeps the direction. If an element is infinite or NaN, all gradients are NaN. Clipping is not linear in upstream, so
    forward mode raises. A loss scale, such as for mixed precision in float16, multiplies upstream and not the limit:
    multiply the limit by it.

    Source: Pascanu, Mikolov & Bengio 2013, On the difficulty of training recurrent neural networks,
    https://arxiv.org/abs/1211.5063

    Args:
        x: Any pytree of `float[...]`.
        value: The largest magnitude of an element, in the unit of the gradient. A positive number, or a `float[...]`
            that broadcasts to every tensor of `x` and gets no gradient.
        norm: The largest norm. A positive number, or a `float[]` that gets no gradient. An infinite limit clips
            nothing. A negative tensor gives NaN, because no compiled program can raise.

    Returns:
        `x`.

    Raises:
        TypeError: Not exactly one of `value` and `norm` is passed, the limit is neither a number nor a real floating
            tensor, or `x` is complex.
        ValueError: The limit is a number that is not positive. In the backward pass: it does not broadcast to `x`.

    See Also:
        `keras_cg.keras.layers.GradientClipping`, the layer, which knows the loss scale.
        `keras_cg.recipes.scale_gradient`, which is linear.

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
    return _clip_gradient(x, value=tensors.plain(value), norm=tensors.plain(norm))


@tensors.recipe("clip_gradient")
def _clip_gradient(x: Any, *, value: Any, norm: Any) -> Pair:
    if (value is None) == (norm is None):
        raise messages.not_one_limit("clip_gradient")
    name = "value" if norm is None else "norm"
    limit = tensors.number("clip_gradient", name, value if norm is None else norm)
    if tensors.is_number(limit):
        tensors.positive("clip_gradient", name, limit)
    elif norm is not None and config.active.shape(limit) != ():
        raise messages.bad_parameter("clip_gradient", name, tensors.described(limit), "a number or a scalar tensor")
    else:
        # NaN, because a negative limit would reverse the gradient, and no compiled program can raise.
        limit = ops.where(limit >= 0, limit, ops.full_like(limit, math.nan))
    for leaf in filter(config.active.is_tensor, tensors.leaves(x)):
        if config.active.dtype(leaf).startswith("complex"):
            raise messages.not_real("clip_gradient", "x", tensors.described(leaf))
    clipped = clipped_by_value if norm is None else clipped_by_norm
    return x, lambda upstream: (clipped(upstream, limit), None, None)


def clipped_by_value(upstream: Any, limit: Any) -> Any:
    """Clips each element of a pytree of tensors to a limit: a number, or a tensor that broadcasts."""

    def clipped(each: Any) -> Any:
        tensors.check_broadcasts("clip_gradient", "value", limit, each)
        wide, bound = tensors.together(each, limit)
        most = bound * ops.ones_like(wide)
        # Not minimum and maximum, because frameworks differ in their derivative where the two are equal.
        within = ops.where(wide > most, most, ops.where(wide < -most, -most, wide))
        return tensors.as_like(ops.where(most >= 0, within, most), each)

    return tensors.mapped(clipped, upstream)


def clipped_by_norm(upstream: Any, limit: Any) -> Any:
    """Scales a pytree of tensors so that the norm of all does not exceed a limit: a number, or a scalar tensor."""
    parts = [tensors.wide(each) for each in tensors.leaves(upstream) if each is not None]
    # Without empty tensors, because `max` refuses them.
    parts = [*filter(tensors.is_full, parts)]
    if not parts:
        return upstream
    widest = max(map(config.active.dtype, parts))
    parts = [tensors.cast(each, widest) for each in parts]
    unit = unit_of(ops.max(ops.stack([ops.max(ops.abs(ops.stop_gradient(each))) for each in parts])))
    total = ops.sum(ops.stack([ops.sum(ops.square(each / unit)) for each in parts]))
    is_zero = total <= 0
    length = ops.sqrt(ops.where(is_zero, ops.ones_like(total), total))
    unit, bound = tensors.together(unit, limit)
    length = tensors.as_like(length, unit)
    is_short = is_zero | (length <= bound / unit)
    if not tensors.is_number(bound):
        is_short = is_short & (bound >= 0)
    factor = bound / ops.where(is_short, ops.ones_like(length), length)

    def scaled(each: Any) -> Any:
        wide = tensors.as_like(each, unit)
        return tensors.as_like(ops.where(is_short, wide, wide / unit * factor), each)

    return tensors.mapped(scaled, upstream)
