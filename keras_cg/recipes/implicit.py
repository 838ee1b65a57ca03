"""Roots of equations, with the gradient of the implicit function theorem."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from keras_cg import ops
from keras_cg.autodiff import jacobian
from keras_cg.frontend import config
from keras_cg.frontend.call import function_name
from keras_cg.frontend.pickling import picklable
from keras_cg.recipes import messages, tensors
from keras_cg.recipes.tensors import Pair

# The highest derivative of a root. It is bounded, because torch (2.13) asks for the rules of all orders where forward
# mode is around `vmap`, as in `torch.func.hessian`.
_ORDERS = 3


@picklable
def custom_root(
    f: Callable[..., Any], solve: Callable[..., Any], *, linear_solve: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Returns a function that solves f(x, ...) = 0 by any solver, with the gradient of the implicit function theorem.

    It is `jax.lax.custom_root` on every backend. `root(x0, *args)` returns the solver's result from `x0`. The solver is
    not differentiated: it may be a loop, a bisection, or a call of SciPy by `from_numpy(solver, None)`.

        f(x, args) = 0,    (df/dx)^T w = -dL/dx,    dL/dargs = (df/dargs)^T w

    - `x0` gets no gradient.
    - The gradient is as accurate as the root. keras_cg does not check that f is 0 there, because the tolerance is part
      of the solver. A solver that fails should return NaN.
    - First, second and third derivatives are those of the root; a fourth one is NaN. Under `jit_compile=True` of
      TensorFlow a second one raises without `linear_solve`.
    - The Jacobian df/dx must be invertible. If it is not, the framework's `linalg.solve` raises, or the gradient is
      infinite or NaN.

    Source: Krantz & Parks 2002, The implicit function theorem, https://doi.org/10.1007/978-1-4614-5981-1; Blondel et
    al. 2022, Efficient and modular implicit differentiation, equation 2, https://arxiv.org/abs/2105.15183

    Args:
        f: A function `f(x, *args)` that returns a pytree like `x`. All values that have a gradient must be in `args`.
        solve: The solver: `solve(g, x0)` with `g(x) = f(x, *args)` returns a pytree like `x0` at which g is zero.
        linear_solve: `linear_solve(matvec, b)` returns a pytree w like `b` with `matvec(w) == b`, where `matvec` is a
            linear map: the product with the transposed Jacobian. None computes the Jacobian, with one backward pass
            for each element of x, and calls `ops.linalg.solve`. If f is elementwise in x, pass
            `lambda matvec, b: b / matvec(ops.ones_like(b))`. Higher orders differentiate it: write it with `ops`.

    Returns:
        A function `root(x0, *args)`, where `x0` is a pytree of `float[...]` and each of `args` is any pytree. It
        returns the solution, in the shapes and dtypes of `x0`.

    Raises:
        TypeError: One of the functions cannot be called. When the result is called: `x0` has anything but real
            floating tensors.
        GradientError: When the result is called: structure or shapes of the result of `solve` differ from `x0`, or of
            the result of `f` from `x`. In the backward pass: those of the result of `linear_solve` differ from `b`.
        ValueError: In the backward pass: the size of x is unknown, and there is no `linear_solve`.
        CapturedVariableError: When the result is called: `f` closes over a value that is being differentiated.

    See Also:
        `keras_cg.recipes.fixed_point`, for equations of the kind z = f(z), which iterates f itself.
        `keras_cg.recipes.from_numpy`, for a solver of SciPy.

    Example:
        The cube root by bisection, whose autodiff gradient is 0, and its derivative 1 / (3 x^2):

        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import ops, recipes
        >>> def bisect(g, x0):
        ...     low, high = x0, x0 + 4
        ...     for _ in range(60):
        ...         middle = (low + high) / 2
        ...         low, high = ops.where(g(middle) < 0, middle, low), ops.where(g(middle) < 0, high, middle)
        ...     return low
        >>> cbrt = recipes.custom_root(lambda x, a: x**3 - a, bisect)
        >>> round(cbrt(np.array(0.0), np.array(8.0)).item(), 9)
        2.0
        >>> round(keras_cg.grad(cbrt, 1)(np.array(0.0), np.array(8.0)).item(), 9)
        0.083333333
    """
    for fun in (f, solve, *(() if linear_solve is None else (linear_solve,))):
        if not callable(fun):
            raise messages.not_a_function("custom_root", fun)
    name = f"custom_root({function_name(f)})"
    rules = _Rules(name, f, linear_solve)

    @tensors.recipe(name)
    def root(x0: Any, *args: Any) -> Pair:
        tensors.check_start(name, "x0", x0)
        solved = solve(lambda x: f(x, *args), x0)
        tensors.check_alike(f"the solver of {name}", tensors.leaves(x0), tensors.leaves(solved), "x0")
        x = tensors.mapped(lambda like, each: ops.stop_gradient(tensors.as_like(each, like)), x0, solved)
        return rules.pair(_ORDERS, x, args)

    @functools.wraps(root)
    def solution(x0: Any, *args: Any) -> Any:
        return root(x0, *args)[0]

    return solution


class _Rules:
    """The rules of a root: the rule of each order contains that of the next."""

    def __init__(self, name: str, f: Callable[..., Any], linear_solve: Callable[..., Any] | None):
        self.name, self.f, self.linear_solve = name, f, linear_solve
        self.solved = [self._solved(order) for order in range(_ORDERS)]

    def _solved(self, order: int) -> Callable[..., Any]:
        """Returns a known root as a function of the arguments, which can be differentiated `order` times."""

        @tensors.recipe(self.name)
        def solved(x: Any, *args: Any) -> Pair:
            return self.pair(order, x, args)

        return solved

    def pair(self, order: int, x: Any, args: tuple[Any, ...]) -> Pair:
        """Returns a root and the value of f there, with the rule."""
        # An output, because a value that f closes over and that has a gradient is found in outputs alone.
        residual = self.f(x, *args)
        tensors.check_alike(self.name, tensors.leaves(x), tensors.leaves(residual))

        def grad(upstream: Any, needs_input_grad: Any) -> Any:
            if order == 0:
                return tensors.mapped(lambda each: None, x), *tensors.mapped(_unknown, args)
            at, _ = self.solved[order - 1](x, *args)
            _, needs = tensors.needed(needs_input_grad, x, args)
            _, pullback = tensors.pulled(self.f, at, args, needs)
            w = tensors.mapped(lambda each: -each, self._transposed(pullback, at, args, upstream[0]))
            return tensors.mapped(lambda each: None, x), *pullback(w)[1]

        return (x, residual), grad

    def _transposed(self, pullback: Callable[..., Any], x: Any, args: tuple[Any, ...], b: Any) -> Any:
        """Solves (df/dx)^T w = b for w."""
        if self.linear_solve is None:
            return _dense(self.name, lambda x: self.f(x, *args), x, b)
        w = self.linear_solve(lambda each: pullback(each)[0], b)
        tensors.check_alike(f"the linear_solve of {self.name}", tensors.leaves(b), tensors.leaves(w), "b")
        return w


def _unknown(argument: Any) -> Any:
    """Returns NaN as the gradient of an order that is not there."""
    return ops.full_like(argument, math.nan) if tensors.is_floating(argument) else None


def _dense(name: str, f: Callable[..., Any], x: Any, b: Any) -> Any:
    """Solves (df/dx)^T w = b for w by the Jacobian as a matrix, in at least float32."""
    parts = tensors.leaves(x)
    sizes = [config.active.shape(part) for part in parts]
    if any(size is None or None in size for size in sizes):
        raise messages.unknown_size(name)
    counts = [math.prod(size) for size in sizes]
    if not sum(counts):
        return b
    widest = max(config.active.dtype(tensors.wide(part)) for part in parts)

    def ravel(tree: Any) -> Any:
        return ops.concat([tensors.cast(ops.reshape(part, (-1,)), widest) for part in tensors.leaves(tree)])

    def unravel(flat: Any) -> Any:
        starts = [sum(counts[:place]) for place in range(len(counts))]
        pieces = iter(
            ops.reshape(flat[start : start + count], size)
            for start, count, size in zip(starts, counts, sizes, strict=True)
        )
        return tensors.mapped(lambda like: tensors.as_like(next(pieces), like), x)

    matrix = jacobian(lambda flat: ravel(f(unravel(flat))))(ravel(x))
    return unravel(ops.linalg.solve(ops.permute_dims(matrix, (1, 0)), ravel(b)))
