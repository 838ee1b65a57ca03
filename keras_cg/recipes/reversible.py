"""Reversible chains, whose inputs are recomputed from their outputs instead of being saved."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from keras_cg import ops
from keras_cg.engine import precision
from keras_cg.frontend import config
from keras_cg.frontend.call import function_name
from keras_cg.frontend.pickling import picklable
from keras_cg.recipes import messages, tensors
from keras_cg.recipes.tensors import Pair


@picklable
def invertible(
    f: Callable[..., Any], inverse: Callable[..., Any], *, tolerance: float | None = None
) -> Callable[..., Any]:
    """Returns a chain of reversible blocks, which saves only its last output for the backward pass.

    `chain(x, *params)` applies `f` once for each of `params`. The backward pass runs through the chain in reverse:
    it computes the input of each block from its output, by `inverse`, and differentiates that block alone. So the
    memory for activations does not grow with the number of blocks.

        x_(k+1) = f(x_k, p_k),    x_k = inverse(x_(k+1), p_k)
        dL/dx_k = (df/dx_k)^T dL/dx_(k+1),    dL/dp_k = (df/dp_k)^T dL/dx_(k+1)

    **All gradients are NaN** if the recomputed `x` differs from `x` by more than `tolerance` times the largest number
    in `x` and `y`. Rounding or a wrong `inverse` can cause this, and no compiled program can raise.
    Up to 128 numbers of each tensor of `x` are saved for the comparison. A second derivative runs the chain again, and
    needs memory for each block, as without `invertible`.

    Source: Gomez, Ren, Urtasun & Grosse 2017, The reversible residual network, algorithm 1,
    https://arxiv.org/abs/1707.04585; Dinh, Krueger & Bengio 2015, NICE, https://arxiv.org/abs/1410.8516, for the blocks

    Args:
        f: A function `f(x, p)` of two pytrees, which returns the input of the next block. It must be one-to-one in
            `x`, and draw no random numbers. All values that have a gradient must be in its arguments.
        inverse: The function `inverse(y, p)` with `inverse(f(x, p), p) == x`, up to rounding.
        tolerance: A positive number, relative to the largest number in `x` and `y`; None for the square root of the
            dtype's epsilon.

    Returns:
        A function `chain(x, *params)`. `x` is a pytree with at least one `float[...]`. Each of `params` is the
        parameters of one block: any pytree, or None.

    Raises:
        TypeError: `f` or `inverse` cannot be called. When the result is called: there are no `params`, or there is no
            floating tensor in `x`.
        ValueError: `tolerance` is not a positive number.
        GradientError: In the backward pass: structure or shapes of the result of `inverse` differ from the input of
            the block.
        CapturedVariableError: When the result is called: `f` closes over a value that is being differentiated.

    See Also:
        `keras_cg.recipes.recompute`, for a function without an inverse.

    Example:
        Two residual blocks, as in the paper:

        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import ops, recipes
        >>> def forward(x, w):
        ...     first = x[0] + w * ops.tanh(x[1])
        ...     return first, x[1] + w * ops.tanh(first)
        >>> def backward(y, w):
        ...     second = y[1] - w * ops.tanh(y[0])
        ...     return y[0] - w * ops.tanh(second), second
        >>> chain = recipes.invertible(forward, backward)
        >>> x = np.array(1.0), np.array(2.0)
        >>> loss = lambda x, *params: sum(chain(x, *params))
        >>> [gradient.round(3).item() for gradient in keras_cg.grad(loss, (1, 2))(x, np.array(0.5), np.array(0.7))]
        [2.011, 1.995]
    """
    for fun in (f, inverse):
        if not callable(fun):
            raise messages.not_a_function("invertible", fun)
    tolerance = tensors.plain(tolerance)
    if tolerance is not None:
        tolerance = tensors.positive("invertible", "tolerance", tolerance)
    name = f"invertible({function_name(f)})"

    @tensors.recipe(name)
    def chain(x: Any, *params: Any) -> Pair:
        if not params:
            raise messages.no_blocks(name)
        before = [*map(_some, _floating(x))]
        if not before:
            raise messages.no_floating(name, "x")
        y = x
        for each in params:
            y = f(y, each)

        def grad(upstream: Any, needs_input_grad: Any) -> Any:
            z, gradients = y, []
            _, *needs = tensors.needed(needs_input_grad, x, *params)
            for each, of_params in zip(reversed(params), reversed(needs), strict=True):
                block, z = z, inverse(z, each)
                output, pullback = tensors.pulled(f, z, (each,), of_params)
                tensors.check_alike(
                    f"{name}, of what its inverse gave", tensors.leaves(block), tensors.leaves(output), "what that got"
                )
                upstream, (gradient,) = pullback(upstream)
                gradients.append(gradient)
            after = [*map(_some, _floating(z))]
            tensors.check_alike(f"the inverse of {name}", before, after, "x")
            is_same = _is_same(before, after, _floating(y), tolerance)

            # A factor, and not NaN itself, because forward mode needs a rule that is linear in upstream.
            def checked(gradient: Any) -> Any:
                one = ops.ones_like(gradient)
                return gradient * ops.where(is_same, one, math.nan * one)

            return tensors.mapped(checked, (upstream, *reversed(gradients)))

        return y, grad

    return chain


def _floating(value: Any) -> list[Any]:
    """Returns the floating tensors in a pytree."""
    return [leaf for leaf in tensors.leaves(value) if tensors.is_floating(leaf)]


def _some(x: Any) -> Any:
    """Returns a copy of some elements of a tensor, without a gradient."""
    flat = ops.reshape(ops.stop_gradient(x), (-1,))
    (size,) = config.active.shape(flat) or (None,)
    # An odd step, because an even one could sample one channel alone.
    return 1 * (flat[:64] if size is None else flat[:: size // 64 | 1])


def _is_same(before: list[Any], after: list[Any], outputs: list[Any], tolerance: float | None) -> Any:
    """Whether samples of two tensors are equal, up to a part of the largest element of these and of the outputs."""
    full = filter(tensors.is_full, (*before, *map(ops.stop_gradient, outputs)))
    sizes = [ops.max(ops.abs(tensors.wide(each))) for each in full]
    if not sizes:
        return ops.asarray(True)
    widest = max(map(config.active.dtype, sizes))
    size = ops.max(ops.stack([tensors.cast(each, widest) for each in sizes]))
    same = [size < math.inf]
    for first, other in filter(lambda pair: tensors.is_full(pair[0]), zip(before, after, strict=True)):
        epsilon = precision.of(config.active.dtype(first)).epsilon
        change = ops.max(ops.abs(tensors.wide(other) - tensors.wide(first)))
        # Bounded, because an infinite factor times 0 would be NaN.
        allowed = size * (epsilon**0.5 if tolerance is None else min(tolerance, 1e30))
        same.append(tensors.cast(change, widest) <= allowed)
    return ops.all(ops.stack(same))
