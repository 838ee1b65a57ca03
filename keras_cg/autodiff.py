"""`grad` and `value_and_grad`: the gradient of any function on any backend, by the framework's own engine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from keras_cg import config, errors, nest
from keras_cg.backends import Backend
from keras_cg.frontend import function_name, split
from keras_cg.nest import Nest
from keras_cg.rule import describe, is_differentiable

__all__ = ["grad", "value_and_grad"]


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
    both = value_and_grad(f, argnums, has_aux)

    @functools.wraps(f, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


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

    @functools.wraps(f, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        backend = config.active
        name = function_name(f)
        indices = _indices(name, argnums, len(args))
        chosen = nest.flatten([args[index] for index in indices], backend.is_tensor, backend.children)
        places, tensors = _differentiated(backend, name, chosen, indices)
        others: list[tuple[Nest, tuple[int, ...]]] = []

        def fun(*tensors: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            given = list(args)
            for index, value in zip(indices, chosen.fill(places, tensors), strict=True):
                given[index] = value
            output = f(*given, **kwargs)
            aux = None
            if has_aux:
                if not isinstance(output, (tuple, list)) or len(output) != 2:
                    raise errors.no_aux(name, output)
                output, aux = output
            if not backend.is_tensor(output):
                raise errors.not_a_scalar_output(name, errors.article(errors.type_name(output)))
            kind = backend.dtype(output)
            if not is_differentiable(kind) or kind.startswith("complex"):
                raise errors.not_a_scalar_output(name, describe(kind, backend.shape(output)))
            laid = nest.flatten(aux, backend.is_tensor, backend.children)
            found = split(backend, name, laid, lambda place: f"aux{laid.paths()[place]}")
            others.append((laid, found))
            return (output,), tuple(backend.asarray(laid.leaves[place]) for place in found)

        (output,), pullback, aux = backend.vjp(fun, tensors)
        gradients = pullback([backend.namespace.ones_like(output)])
        found = chosen._replace(leaves=[None] * len(chosen.leaves)).fill(places, gradients)
        gradient = found[0] if isinstance(argnums, int) else tuple(found)
        if not has_aux:
            return output, gradient
        laid, at = others[0]
        return (output, laid.fill(at, aux)), gradient

    return both


def _indices(name: str, argnums: Any, count: int) -> list[int]:
    """`argnums` as indices into the positional arguments."""
    wanted = (argnums,) if isinstance(argnums, int) else argnums
    if not isinstance(wanted, (tuple, list)) or not wanted:
        raise errors.bad_argnums(name, argnums, count)
    for index in wanted:
        if not isinstance(index, int) or not -count <= index < count:
            raise errors.bad_argnums(name, argnums, count)
    found = [index % count for index in wanted]
    if len(set(found)) < len(found):
        raise errors.bad_argnums(name, argnums, count)
    return found


def _differentiated(backend: Backend, name: str, chosen: Nest, indices: list[int]) -> tuple[tuple[int, ...], list[Any]]:
    """Where the differentiated tensors stand among the leaves of the chosen arguments, and the tensors."""

    def label(place: int) -> str:
        number, _, rest = chosen.paths()[place][1:].partition("]")
        return f"argument {indices[int(number)]}{rest}"

    for place, leaf in enumerate(chosen.leaves):
        if isinstance(leaf, (int, float, complex)) and not backend.is_tensor(leaf):
            if isinstance(leaf, int):
                raise errors.not_differentiable(name, label(place), errors.article(errors.type_name(leaf)))
            chosen.leaves[place] = backend.asarray(leaf)
    places = split(backend, name, chosen, label)
    tensors = [backend.asarray(chosen.leaves[place]) for place in places]
    for place, tensor in zip(places, tensors, strict=True):
        kind = backend.dtype(tensor)
        if not is_differentiable(kind):
            raise errors.not_differentiable(name, label(place), describe(kind, backend.shape(tensor)))
    return places, tensors
