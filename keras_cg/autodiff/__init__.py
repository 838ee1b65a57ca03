"""`grad`, `vjp`, `jvp` and their like: derivatives of any function on any backend, by the framework's own engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from keras_cg.autodiff import messages
from keras_cg.autodiff.run import LossRun, RealRun, Run
from keras_cg.call import function_name

__all__ = ["grad", "hessian", "jacobian", "jvp", "value_and_grad", "vjp"]


def grad(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The gradient of a function, as a function of the same arguments.

    As `jax.grad`, on every backend: JAX's own engine, torch's, a `tf.GradientTape`, HIPS autograd. It can be
    nested (`grad(grad(f))`), and what it returns can be differentiated by the framework's own means.

    - The output is summed if it is not a scalar.
    - An argument that the output does not depend on gets zeros.
    - A Python float counts as a tensor of the framework's default dtype.
    - For complex arguments the gradient is dL/dx + i dL/dy on every backend.

    Args:
        f: A function that returns one real floating tensor, of any shape; with `has_aux`, a pair of
            that and any nest.
        argnums: Which positional arguments to differentiate: an index or a tuple of indices. Each may be any
            nest of floating or complex tensors.
        has_aux: Whether `f` returns `(output, aux)`.

    Returns:
        A function that returns the gradient: the nest, shapes and dtypes of the argument, or a tuple of such if
        `argnums` is a tuple. With `has_aux`, the pair `(gradient, aux)`.

    Raises:
        TypeError: When the result is called: an integer or boolean argument is to be differentiated, `argnums`
            names no argument, or `f` returned something other than one real floating tensor.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> keras_cg.grad(lambda x: x**3)(2.0).item()
        12.0
        >>> keras_cg.grad(keras_cg.grad(lambda x: x**3))(2.0).item()
        12.0
        >>> keras_cg.grad(lambda p, x: p["w"] * x)({"w": np.array([1.0, 2.0])}, 5.0)
        {'w': array([5., 5.])}
    """
    return _gradient("grad", f, argnums, has_aux)


def value_and_grad(
    f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The output of a function and its gradient, as a function of the same arguments.

    As `grad`, but the output comes with it, and `f` runs once for both.

    Args:
        f: As for `grad`.
        argnums: As for `grad`.
        has_aux: As for `grad`.

    Returns:
        A function that returns `(output, gradient)`, the output as `f` returned it (not summed). With `has_aux`,
        `((output, aux), gradient)`.

    Raises:
        TypeError: As for `grad`.

    Example:
        >>> import keras_cg
        >>> value, gradient = keras_cg.value_and_grad(lambda x: x**2)(3.0)
        >>> value.item(), gradient.item()
        (9.0, 6.0)
    """
    return _value_and_gradient("value_and_grad", f, argnums, has_aux)


def vjp(f: Callable[..., Any], *args: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """The output of a function, and its pullback: from an upstream to the gradients of all arguments.

    As `jax.vjp`, on every backend. With J the Jacobian of `f` at `args`, the pullback gives upstream times J, at the
    cost of a backward pass; `grad` is the pullback of ones.

    - The pullback can be called any number of times, and what it gives can be differentiated again, with respect to
      the arguments and to upstream.
    - An argument that the output does not depend on gets zeros.
    - A Python float among the arguments counts as a tensor of the framework's default dtype. Integers, booleans,
      strings, None and the like ride along.
    - For complex numbers, upstream and gradients are dL/dx + i dL/dy on every backend.

    Args:
        f: A function of `args` that returns any nest with at least one floating or complex tensor in it.
        *args: The positional arguments, each any nest.

    Returns:
        The pair `(output, pullback)`. `pullback(upstream)` takes a nest like the output: at each floating leaf a
        tensor of its shape, a number if that is a scalar, or None for zeros; anything at the others. It returns a
        tuple with one nest for each argument: at each floating leaf the gradient, of its shape and dtype, and None
        at the others.

    Raises:
        TypeError: There is no floating tensor among the arguments, or none in the output.
        ValueError: When the pullback is called: upstream has another structure, shape or kind than the output.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> output, pullback = keras_cg.vjp(lambda x, n: {"power": x**n}, np.array([1.0, 2.0]), 3)
        >>> output
        {'power': array([1., 8.])}
        >>> pullback({"power": np.array([1.0, 10.0])})
        (array([  3., 120.]), None)
    """
    run = Run(f"vjp({function_name(f)})", f, args, {}, range(len(args)))
    outputs, back, aux = run.backend.vjp(run, run.tensors)

    def pullback(upstream: Any) -> tuple[Any, ...]:
        cotangents = run.fit("upstream", upstream, run.output, outputs, "the output")
        return run.like_arguments(back(cotangents))

    return run.result(outputs, aux), pullback


def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The output of a function, and its derivative along a direction: forward mode.

    As `jax.jvp`, on every backend. With J the Jacobian of `f` at `primals`, the second part is J times `tangents`.
    For a function with a `custom_gradient` it comes from the rule: a rule is linear in upstream, and the transpose of
    that linear map is the forward derivative. For complex numbers it is the plain directional derivative.

    Args:
        f: A function that returns any nest with at least one floating or complex tensor in it.
        primals: A tuple or list of the positional arguments, each any nest, as for `vjp`.
        tangents: The direction, the same structure: at each floating leaf a tensor of its shape, a number if that is
            a scalar, or None for zeros; anything at the others.

    Returns:
        The pair `(output, output_tangent)`, the second with the output's structure: at each floating leaf the
        derivative, of its shape and dtype, and None at the others.

    Raises:
        TypeError: `primals` or `tangents` is no tuple or list, or as for `vjp`.
        ValueError: `tangents` has another structure, shape or kind than `primals`; or a rule is not linear in
            upstream, as one that clips it. Inside a `tf.function` such a rule gives NaN, and inside `jax.jit` JAX
            raises a TypeError of its own.

    Example:
        >>> import keras_cg
        >>> output, tangent = keras_cg.jvp(lambda x, y: x * y, (3.0, 5.0), (1.0, 10.0))
        >>> output.item(), tangent.item()
        (15.0, 35.0)
    """
    where = f"jvp({function_name(f)})"
    for name, value in (("primals", primals), ("tangents", tangents)):
        if not isinstance(value, (tuple, list)):
            raise messages.not_arguments(where, name, value)
    run = Run(where, f, primals, {}, range(len(primals)))
    given = run.fit("tangents", tuple(tangents), run.arguments, run.tensors, "primals")
    outputs, moved, aux = run.backend.jvp(run, run.tensors, given)
    return run.result(outputs, aux), run.output.blank(moved)


def jacobian(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The Jacobian of a function, as a function of the same arguments.

    As `jax.jacrev`, on every backend: one backward pass for each number in the output. It can be nested, and what it
    returns can be differentiated by the framework's own means.

    Args:
        f: A function that returns any nest with at least one real floating tensor in it.
        argnums: Which positional arguments to differentiate: an index or a tuple of indices. Each may be any
            nest of real floating tensors.

    Returns:
        A function that returns a nest like the output of `f`. In the place of each floating leaf stands a nest like
        the argument, or a tuple of such if `argnums` is a tuple; each of its tensors has the shape of that output
        followed by the shape of that argument. Elsewhere stands None.

    Raises:
        TypeError: When the result is called: an argument to be differentiated is an integer, a boolean or complex,
            `argnums` names no argument, or an output is complex (use `vjp` or `jvp` there).

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> keras_cg.jacobian(lambda x: x**2)(np.array([1.0, 2.0]))
        array([[2., 0.],
               [0., 4.]])
    """
    return _jacobian("jacobian", f, f, argnums)


def hessian(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The matrix of second derivatives of a function, as a function of the same arguments.

    It is `jacobian(grad(f))`: reverse mode twice, which serves every rule on every backend.

    Args:
        f: A function that returns one real floating tensor. It is summed if it is not a scalar.
        argnums: As for `jacobian`.

    Returns:
        A function that returns a nest like the argument; at each floating leaf stands a nest like the argument
        again, whose tensors have the shape of the one followed by the shape of the other. If `argnums` is a tuple,
        both nests are tuples, so that `hessian(f, (0, 1))(x, y)[0][1]` is that of x and y.

    Raises:
        TypeError: As for `jacobian`, and as for `grad`.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> keras_cg.hessian(lambda x: x[0] ** 2 * x[1])(np.array([3.0, 5.0]))
        array([[10.,  6.],
               [ 6.,  0.]])
    """
    return _jacobian("hessian", f, _gradient("hessian", f, argnums, has_aux=False), argnums)


def _gradient(caller: str, f: Callable[..., Any], argnums: int | tuple[int, ...], has_aux: bool) -> Callable[..., Any]:
    both = _value_and_gradient(caller, f, argnums, has_aux)

    @_named(f)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def _value_and_gradient(
    caller: str, f: Callable[..., Any], argnums: int | tuple[int, ...], has_aux: bool
) -> Callable[..., Any]:
    where = f"{caller}({function_name(f)})"

    @_named(f)
    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        run = LossRun(where, f, args, kwargs, _indices(where, argnums, len(args)), has_aux)
        outputs, gradients, aux = run.backend.gradient(run, run.tensors)
        value = run.result(outputs, aux)
        return (value if has_aux else value[0]), _chosen(run.like_arguments(gradients), argnums)

    return both


def _jacobian(
    caller: str, f: Callable[..., Any], differentiated: Callable[..., Any], argnums: int | tuple[int, ...]
) -> Callable[..., Any]:
    where = f"{caller}({function_name(f)})"

    @_named(f)
    def found(*args: Any, **kwargs: Any) -> Any:
        run = RealRun(where, differentiated, args, kwargs, _indices(where, argnums, len(args)))
        _, rows, _ = run.backend.jacobian(run, run.tensors)
        return run.output.blank([_chosen(run.like_arguments(row), argnums) for row in rows])

    return found


def _named(f: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    # Not `__wrapped__`: what the function returns is another.
    return functools.wraps(f, assigned=("__module__", "__name__", "__qualname__", "__doc__"))


def _chosen(found: tuple[Any, ...], argnums: int | tuple[int, ...]) -> Any:
    """One part for each index of `argnums`, bare if that is a number."""
    return found[0] if isinstance(argnums, int) else found


def _indices(where: str, argnums: Any, count: int) -> list[int]:
    """`argnums` as indices into the positional arguments."""
    wanted = (argnums,) if isinstance(argnums, int) else argnums
    if not isinstance(wanted, (tuple, list)) or not wanted:
        raise messages.bad_argnums(where, argnums, count)
    for index in wanted:
        if not isinstance(index, int) or not -count <= index < count:
            raise messages.bad_argnums(where, argnums, count)
    found = [index % count for index in wanted]
    if len(set(found)) < len(found):
        raise messages.bad_argnums(where, argnums, count)
    return found
