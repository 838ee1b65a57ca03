"""Functions that are applied until nothing moves any more."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from keras_cg import config, ops
from keras_cg.autodiff import vjp
from keras_cg.call import function_name
from keras_cg.engine import precision
from keras_cg.recipes import messages, tensors
from keras_cg.recipes.tensors import Pair


def fixed_point(f: Callable[..., Any], *, steps: int = 50, tolerance: float | None = None) -> Callable[..., Any]:
    """The solution of z = f(z, ...), with the gradient of the implicit function theorem.

    `solve(z0, *args)` applies `f` so many times, and forgets how it got there: the gradient needs the solution alone.

        z = f(z, args),    w = dL/dz + (df/dz)^T w,    dL/dargs = (df/dargs)^T w,    none for z0

    Both are iterated `steps` times, so that they compile everywhere: `f` must be a contraction near the solution. If
    the last step moves any element of z, or w, by more than `tolerance` times its size, and by more than the rounding
    of the largest element (of its row, in a tensor with several axes), then **all of the result is NaN**, for no
    compiled program can raise: give more steps.

    Source: Christianson 1994, Reverse accumulation and attractive fixed points,
    https://doi.org/10.1080/10556789408805572; Bai, Kolter & Koltun 2019, Deep equilibrium models,
    https://arxiv.org/abs/1909.01377

    Args:
        f: A function `f(z, *args)` that returns a nest like `z`. What it is differentiated by must be in `args`.
        steps: How often it is applied, at least 1.
        tolerance: A positive number; None for the square root of the dtype's epsilon. An element that is zero must
            have come to rest, up to the dtype's epsilon times the largest element of z, or of z0 (at most 1). Infinity
            lets all pass but what is infinite or NaN.

    Returns:
        A function `solve(z0, *args)`, where `z0` is a real floating tensor or a nest of such and each of `args` is any
        nest; it returns the solution.

    Raises:
        TypeError: `f` cannot be called. When the result is called: `z0` has something else than real floating tensors.
        ValueError: `steps` or `tolerance` is none of the above.
        GradientError: When the result is called: `f` returned something that is not like `z`.
        CapturedVariableError: When the result is called: `f` closes over a value that is being differentiated.

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
            # Differentiated again, z hangs on the arguments by its own iteration, and w by this one.
            _, pullback = vjp(f, z, *args)
            w = _iterate(
                name, lambda w: tensors.mapped(lambda a, b: a + b, upstream, pullback(w)[0]), upstream, steps, tolerance
            )
            return tensors.mapped(lambda each: None, z0), *pullback(w)[1:]

        return z, grad

    return solve


def _iterate(name: str, f: Callable[[Any], Any], start: Any, steps: int, tolerance: float | None) -> Any:
    """What `f` leads to from `start`, and NaN if it still moves."""
    before, z = start, f(start)
    tensors.check_alike(name, tensors.leaves(start), tensors.leaves(z))
    for _ in range(steps - 1):
        before, z = z, f(z)
    moves = zip(*map(tensors.leaves, (z, before, start)), strict=True)
    # What is empty has come to rest.
    still = [ops.max(_excess(z, before, start, tolerance)) <= 0 for z, before, start in moves if tensors.is_full(z)]
    if not still:
        return z
    is_still = ops.all(ops.stack(still))
    return tensors.mapped(lambda each: ops.where(is_still, each, ops.full_like(each, math.nan)), z)


def _excess(z: Any, before: Any, start: Any, tolerance: float | None) -> Any:
    """By how much more each element moved than it may; NaN for what is no number."""
    if tolerance == math.inf:
        return 0 * (z - before)
    epsilon = precision.of(config.active.dtype(z)).epsilon
    z, before, start = map(tensors.wide, (z, before, start))
    size, first = _largest(z), _largest(start)
    rounding = epsilon * ops.maximum(size, ops.minimum(first, ops.ones_like(first)))
    # What is infinite in the dtype, times 0, would be NaN.
    factor = epsilon**0.5 if tolerance is None else min(tolerance, 1e30)
    return ops.abs(z - before) - ops.maximum(factor * ops.abs(z), rounding + ops.zeros_like(z))


def _largest(x: Any) -> Any:
    """The largest magnitude in a tensor, in a batch that of each row: one must not hide what another does."""
    axes = tuple(range(1, len(config.active.shape(x) or ())))
    return ops.max(ops.abs(x), axis=axes, keepdims=True) if axes else ops.max(ops.abs(x))
