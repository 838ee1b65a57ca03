"""Fixed points, with the gradient of the implicit function theorem."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from keras_cg import ops
from keras_cg.autodiff import vjp
from keras_cg.engine import precision
from keras_cg.frontend import config
from keras_cg.frontend.call import function_name
from keras_cg.frontend.pickling import picklable
from keras_cg.recipes import messages, tensors
from keras_cg.recipes.tensors import Pair


@picklable
def fixed_point(f: Callable[..., Any], *, steps: int = 50, tolerance: float | None = None) -> Callable[..., Any]:
    """Returns a function that solves z = f(z, ...), with the gradient of the implicit function theorem.

    `solve(z0, *args)` applies `f` `steps` times, and saves the solution alone for the gradient.

        z = f(z, args),    w = dL/dz + (df/dz)^T w,    dL/dargs = (df/dargs)^T w

    `z0` gets no gradient. Both equations are iterated `steps` times, because a fixed count compiles everywhere: `f`
    must be a contraction near the solution.

    **The whole result is NaN** if the last step changes any element of z, or w, by more than `tolerance` times its
    size. A change up to the rounding of the largest element (of its row, in a tensor with several axes) does not count.
    The result is NaN because no compiled program can raise: take more steps.

    Source: Christianson 1994, Reverse accumulation and attractive fixed points,
    https://doi.org/10.1080/10556789408805572; Bai, Kolter & Koltun 2019, Deep equilibrium models,
    https://arxiv.org/abs/1909.01377

    Args:
        f: A function `f(z, *args)` that returns a pytree like `z`. All values that have a gradient must be in `args`.
        steps: The number of iterations, at least 1.
        tolerance: A positive number, relative to the size of each element; None for the square root of the dtype's
            epsilon. An element that is zero must have converged up to the dtype's epsilon times the largest element of
            z, or of z0 (at most 1). With infinity only infinite and NaN elements fail.

    Returns:
        A function `solve(z0, *args)`, where `z0` is a pytree of `float[...]` and each of `args` is any pytree. It
        returns the solution, in the shapes and dtypes of `z0`.

    Raises:
        TypeError: `f` cannot be called. When the result is called: `z0` has anything but real floating tensors.
        ValueError: `steps` or `tolerance` is none of the above.
        GradientError: When the result is called: structure or shapes of the result of `f` differ from `z`.
        CapturedVariableError: When the result is called: `f` closes over a value that is being differentiated.

    See Also:
        `keras_cg.recipes.custom_root`, for any solver.

    Example:
        The square root of a by Heron's rule, and its derivative 1 / (2 sqrt(a)):

        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import recipes
        >>> sqrt = recipes.fixed_point(lambda z, a: (z + a / z) / 2, steps=10)
        >>> sqrt(np.array(1.0), np.array(4.0)).item()
        2.0
        >>> keras_cg.grad(sqrt, 1)(np.array(1.0), np.array(4.0)).item()
        0.25
    """
    if not callable(f):
        raise messages.not_a_function("fixed_point", f)
    steps, tolerance = tensors.plain(steps), tensors.plain(tolerance)
    if not isinstance(steps, int) or steps < 1:
        raise messages.bad_parameter("fixed_point", "steps", steps, "a whole number from 1 on")
    if tolerance is not None:
        tolerance = tensors.positive("fixed_point", "tolerance", tolerance)
    name = f"fixed_point({function_name(f)})"

    @tensors.recipe(name)
    def solve(z0: Any, *args: Any) -> Pair:
        tensors.check_start(name, "z0", z0)
        z = _iterate(name, lambda z: f(z, *args), z0, steps, tolerance)

        def grad(upstream: Any) -> Any:
            # A second derivative goes through the iteration of z, by its rule, and through this one of w.
            _, pullback = vjp(f, z, *args)
            w = _iterate(
                name, lambda w: tensors.mapped(lambda a, b: a + b, upstream, pullback(w)[0]), upstream, steps, tolerance
            )
            return tensors.mapped(lambda each: None, z0), *pullback(w)[1:]

        return z, grad

    return solve


def _iterate(name: str, f: Callable[[Any], Any], start: Any, steps: int, tolerance: float | None) -> Any:
    """Applies `f` repeatedly from `start`; returns NaN if it has not converged."""
    before, z = start, f(start)
    tensors.check_alike(name, tensors.leaves(start), tensors.leaves(z))
    for _ in range(steps - 1):
        before, z = z, f(z)
    runs = zip(*map(tensors.leaves, (z, before, start)), strict=True)
    # Without empty tensors, because `max` refuses them.
    converged = [ops.max(_excess(z, before, start, tolerance)) <= 0 for z, before, start in runs if tensors.is_full(z)]
    if not converged:
        return z
    are_all = ops.all(ops.stack(converged))
    return tensors.mapped(lambda each: ops.where(are_all, each, ops.full_like(each, math.nan)), z)


def _excess(z: Any, before: Any, start: Any, tolerance: float | None) -> Any:
    """Returns by how much the change of each element exceeds the tolerance; NaN if the element is infinite or NaN."""
    if tolerance == math.inf:
        return 0 * (z - before)
    epsilon = precision.of(config.active.dtype(z)).epsilon
    z, before, start = map(tensors.wide, (z, before, start))
    size, first = _largest(z), _largest(start)
    rounding = epsilon * ops.maximum(size, ops.minimum(first, ops.ones_like(first)))
    # Bounded, because an infinite factor times 0 would be NaN.
    factor = epsilon**0.5 if tolerance is None else min(tolerance, 1e30)
    return ops.abs(z - before) - ops.maximum(factor * ops.abs(z), rounding + ops.zeros_like(z))


def _largest(x: Any) -> Any:
    """Returns the largest magnitude in a tensor, or in each row of a batch: a large row must not hide a small one."""
    axes = tuple(range(1, len(config.active.shape(x) or ())))
    return ops.max(ops.abs(x), axis=axes, keepdims=True) if axes else ops.max(ops.abs(x))
