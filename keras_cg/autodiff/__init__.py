"""`grad`, `vjp`, `jvp`, `jacobian` and `hessian`: derivatives of any function, by each framework's own engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from keras_cg.autodiff import messages
from keras_cg.autodiff.run import LossRun, RealRun, Run
from keras_cg.errors import article, type_name
from keras_cg.frontend.call import function_name
from keras_cg.frontend.pickling import picklable
from keras_cg.frontend.tracebacks import shortened

__all__ = ["grad", "hessian", "jacobian", "jvp", "value_and_grad", "vjp"]


@picklable
def grad(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Returns the gradient of a function, as a function of the same arguments.

    It is `jax.grad` on every backend: by JAX's own engine, torch's, a `tf.GradientTape`, or HIPS autograd. It can be
    nested (`grad(grad(f))`), and native autodiff can differentiate the gradient.

    - If the output is not a scalar, its sum is differentiated.
    - An argument that the output does not depend on gets zeros.
    - Arguments may be NumPy arrays on every backend. On torch `f` gets tensors in their place.
    - A Python float is a tensor, of the dtype of the first floating tensor among the arguments. If there is none, it
      has the dtype that `keras_cg.ops.asarray` gives it.
    - A list of numbers is a pytree of scalars. For one tensor pass an array.
    - For a complex argument z = x + i y the gradient is dL/dx + i dL/dy on every backend.

    Args:
        f: A function that returns one `float[...]`. With `has_aux`, it returns a pair of that and any pytree.
        argnums: The index of the positional argument to differentiate, or a tuple of indices. Each argument may be any
            pytree of `inexact[...]`.
        has_aux: Whether `f` returns `(output, aux)`.

    Returns:
        A function that returns the gradient: a pytree of `inexact[...]` with the shapes and dtypes of the argument, or
        a tuple of pytrees if `argnums` is a tuple. With `has_aux`, it returns the pair `(gradient, aux)`.

    Raises:
        TypeError: When the result is called: a differentiated argument is an integer or a boolean, `argnums`
            names no argument, or `f` did not return one real floating tensor.

    See Also:
        `keras_cg.value_and_grad`, which also returns the output. `keras_cg.vjp`, for an upstream gradient of your own.

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


@picklable
def value_and_grad(
    f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Returns the output of a function and its gradient, as a function of the same arguments.

    It runs `f` once for both. The gradient is that of `keras_cg.grad`.

    Args:
        f: A function that returns one `float[...]`. With `has_aux`, it returns a pair of that and any pytree.
        argnums: The index of the positional argument to differentiate, or a tuple of indices. Each argument may be any
            pytree of `inexact[...]`.
        has_aux: Whether `f` returns `(output, aux)`.

    Returns:
        A function that returns `(output, gradient)`. The output is as `f` returned it, not summed. With `has_aux`, it
        returns `((output, aux), gradient)`.

    Raises:
        TypeError: When the result is called: a differentiated argument is an integer or a boolean, `argnums`
            names no argument, or `f` did not return one real floating tensor.

    See Also:
        `keras_cg.grad`, for the gradient alone.

    Example:
        >>> import keras_cg
        >>> value, gradient = keras_cg.value_and_grad(lambda x: x**2)(3.0)
        >>> value.item(), gradient.item()
        (9.0, 6.0)
    """
    return _value_and_gradient("value_and_grad", f, argnums, has_aux)


@shortened
def vjp(f: Callable[..., Any], *args: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Returns the output of a function and its pullback, from an upstream gradient to the gradients of all arguments.

    It is `jax.vjp` on every backend. With J the Jacobian of `f` at `args`, the pullback returns upstream times J, at
    the cost of a backward pass. `keras_cg.grad` is the pullback of ones.

    - The pullback can be called any number of times. Its gradients can be differentiated again, with respect to the
      arguments and to upstream.
    - An argument that the output does not depend on gets zeros.
    - NumPy arrays, Python floats and lists of numbers count as in `keras_cg.grad`. Integers, booleans, strings and None
      have no gradient.
    - For complex numbers, upstream and gradients are dL/dx + i dL/dy on every backend.

    Args:
        f: A function of `args` that returns any pytree with at least one `inexact[...]` in it.
        *args: The positional arguments, each any pytree.

    Returns:
        The pair `(output, pullback)`. `pullback(upstream)` takes a pytree like the output. At each `inexact[...]` leaf
        it has a tensor of that shape, a number for a scalar, or None for zeros. The other leaves are ignored. It
        returns a tuple with one pytree for each argument: at each `inexact[...]` leaf the gradient, of its shape and
        dtype, and None at the others.

    Raises:
        TypeError: There is no floating tensor among the arguments, or none in the output.
        ValueError: When the pullback is called: upstream has another structure or shape than the output, or is complex
            for a real output.

    See Also:
        `keras_cg.jvp`, forward mode. `keras_cg.grad`, for a loss.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> output, pullback = keras_cg.vjp(lambda x, n: {"power": x**n}, np.array([1.0, 2.0]), 3)
        >>> output
        {'power': array([1., 8.])}
        >>> pullback({"power": np.array([1.0, 10.0])})
        (array([  3., 120.]), None)
    """
    run = Run(_where("vjp", f), f, args, {}, range(len(args)))
    outputs, back, aux = run.backend.vjp(run, run.tensors)

    @shortened
    def pullback(upstream: Any) -> tuple[Any, ...]:
        cotangents = run.fit("upstream", upstream, run.output, outputs, "the output")
        return run.like_arguments(back(cotangents))

    return run.result(outputs, aux), pullback


@shortened
def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Returns the output of a function and its derivative along a direction: forward mode.

    It is `jax.jvp` on every backend. With J the Jacobian of `f` at `primals`, the second part is J times `tangents`.
    The derivative of a function with a `custom_gradient` comes from the rule: a rule is linear in upstream, and the
    transpose of that linear map is the forward derivative. For complex numbers it is the plain directional derivative.

    Args:
        f: A function that returns any pytree with at least one `inexact[...]` in it.
        primals: A tuple or list of the positional arguments, each any pytree. NumPy arrays, Python floats and lists of
            numbers count as in `keras_cg.grad`.
        tangents: The direction, in the structure of `primals`. At each `inexact[...]` leaf it has a tensor of that
            shape, a number for a scalar, or None for zeros. The other leaves are ignored.

    Returns:
        The pair `(output, output_tangent)`. The second has the output's structure: at each `inexact[...]` leaf the
        derivative, of its shape and dtype, and None at the others.

    Raises:
        TypeError: `primals` or `tangents` is not a tuple or list, or there is no floating tensor among the arguments
            or in the output.
        ValueError: `tangents` has another structure or shape than `primals`, or is complex for a real argument. Or a
            rule is not linear in upstream, because it clips, for example. Inside a `tf.function` such a rule gives NaN.

    See Also:
        `keras_cg.vjp`, reverse mode.

    Example:
        >>> import keras_cg
        >>> output, tangent = keras_cg.jvp(lambda x, y: x * y, (3.0, 5.0), (1.0, 10.0))
        >>> output.item(), tangent.item()
        (15.0, 35.0)
    """
    where = _where("jvp", f)
    for name, value in (("primals", primals), ("tangents", tangents)):
        if not isinstance(value, (tuple, list)):
            raise messages.not_arguments(where, name, article(type_name(value)))
    run = Run(where, f, primals, {}, range(len(primals)))
    directions = run.fit("tangents", tuple(tangents), run.arguments, run.tensors, "primals")
    outputs, derivatives, aux = run.backend.jvp(run, run.tensors, directions)
    return run.result(outputs, aux), run.output.blank(derivatives)


@picklable
def jacobian(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """Returns the Jacobian of a function, as a function of the same arguments.

    It is `jax.jacrev` on every backend: one backward pass for each element of the output. It can be nested, and native
    autodiff can differentiate the Jacobian.

    Args:
        f: A function that returns any pytree with at least one `float[*m]` in it.
        argnums: The index of the positional argument to differentiate, or a tuple of indices. Each argument may be any
            pytree of `float[*n]`. NumPy arrays, Python floats and lists of numbers count as in `keras_cg.grad`.

    Returns:
        A function that returns a pytree like the output of `f`. Each `float[*m]` is replaced by a pytree like the
        argument, or by a tuple of pytrees if `argnums` is a tuple. In it, each `float[*n]` is replaced by a
        `float[*m, *n]`. Every other leaf is replaced by None.

    Raises:
        TypeError: When the result is called: a differentiated argument is an integer, a boolean or complex,
            `argnums` names no argument, or an output is complex (use `vjp` or `jvp` there).

    See Also:
        `keras_cg.hessian`, the Jacobian of a gradient. `keras_cg.jvp` and `keras_cg.vjp`, for one product with it.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> keras_cg.jacobian(lambda x: x**2)(np.array([1.0, 2.0]))
        array([[2., 0.],
               [0., 4.]])
    """
    return _jacobian("jacobian", f, f, argnums)


@picklable
def hessian(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """Returns the matrix of second derivatives of a function, as a function of the same arguments.

    It is `jacobian(grad(f))`, reverse mode twice, which works for every rule on every backend.

    Args:
        f: A function that returns one `float[...]`. If it is not a scalar, its sum is differentiated.
        argnums: The index of the positional argument to differentiate, or a tuple of indices. Each argument may be any
            pytree of `float[*n]`.

    Returns:
        A function that returns a pytree like the argument. Each leaf `float[*m]` is replaced by a pytree like the
        argument again, with a `float[*m, *n]` for each `float[*n]`. If `argnums` is a tuple, both pytrees are tuples:
        `hessian(f, (0, 1))(x, y)[0][1]` is the derivative with respect to x and y.

    Raises:
        TypeError: When the result is called: a differentiated argument is an integer, a boolean or complex,
            `argnums` names no argument, or `f` did not return one real floating tensor.

    See Also:
        `keras_cg.jacobian`, for the first derivatives of a function with several outputs.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> keras_cg.hessian(lambda x: x[0] ** 2 * x[1])(np.array([3.0, 5.0]))
        array([[10.,  6.],
               [ 6.,  0.]])
    """
    return _jacobian("hessian", f, _gradient("hessian", f, argnums, has_aux=False), argnums)


def _where(caller: str, f: Callable[..., Any]) -> str:
    """Returns what messages call a derivative of `f`, such as `jvp(f)`."""
    if not callable(f):
        raise messages.not_a_function(caller, article(type_name(f)))
    return f"{caller}({function_name(f)})"


def _gradient(caller: str, f: Callable[..., Any], argnums: int | tuple[int, ...], has_aux: bool) -> Callable[..., Any]:
    both = _value_and_gradient(caller, f, argnums, has_aux)

    @_named(f)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, gradients = both(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return gradient


def _value_and_gradient(
    caller: str, f: Callable[..., Any], argnums: int | tuple[int, ...], has_aux: bool
) -> Callable[..., Any]:
    where = _where(caller, f)

    @_named(f)
    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        run = LossRun(where, f, args, kwargs, _indices(where, argnums, len(args)), has_aux)
        outputs, gradients, aux = run.backend.gradient(run, run.tensors)
        value = run.result(outputs, aux)
        return (value if has_aux else value[0]), _unpack(run.like_arguments(gradients), argnums)

    return both


def _jacobian(
    caller: str, f: Callable[..., Any], differentiated: Callable[..., Any], argnums: int | tuple[int, ...]
) -> Callable[..., Any]:
    where = _where(caller, f)

    @_named(f)
    def matrix(*args: Any, **kwargs: Any) -> Any:
        run = RealRun(where, differentiated, args, kwargs, _indices(where, argnums, len(args)))
        _, rows, _ = run.backend.jacobian(run, run.tensors)
        return run.output.blank([_unpack(run.like_arguments(row), argnums) for row in rows])

    return matrix


def _named(f: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator for a derivative of `f`, which has the name of `f` and shortens tracebacks."""
    # Without `__wrapped__`, because the signature of the result has another return value.
    like_f = functools.wraps(f, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    return lambda derivative: like_f(shortened(derivative))


def _unpack(parts: tuple[Any, ...], argnums: int | tuple[int, ...]) -> Any:
    """Returns one part for each index of `argnums`, bare if that is a number."""
    return parts[0] if isinstance(argnums, int) else parts


def _indices(where: str, argnums: Any, count: int) -> list[int]:
    """Returns `argnums` as indices from 0 on into the positional arguments."""
    indices = (argnums,) if isinstance(argnums, int) else argnums
    is_sequence = isinstance(indices, (tuple, list)) and bool(indices)
    if not is_sequence or not all(isinstance(index, int) and -count <= index < count for index in indices):
        raise messages.bad_argnums(where, argnums, count)
    positive = [index % count for index in indices]
    if len(set(positive)) < len(positive):
        raise messages.bad_argnums(where, argnums, count)
    return positive
