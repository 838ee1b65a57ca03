"""`grad` and `value_and_grad`: the gradient of any function on any backend, by the framework's own engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from keras_cg import config, errors, nest
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
        run = _LossRun(where, f, args, kwargs, _indices(where, argnums, len(args)), has_aux)
        (output,), pullback, aux = run.backend.vjp(run, run.tensors)
        gradients = run.like_arguments(pullback([run.backend.namespace.ones_like(output)]))
        value = run.result([output], aux)
        return (value if has_aux else value[0]), _chosen(gradients, argnums)

    return both


def _named(f: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    # Not `__wrapped__`: what the function returns is another.
    return functools.wraps(f, assigned=("__module__", "__name__", "__qualname__", "__doc__"))


def _chosen(found: Sequence[Any], argnums: int | tuple[int, ...]) -> Any:
    """One part for each index of `argnums`, bare if that is a number."""
    return found[0] if isinstance(argnums, int) else tuple(found)


def _indices(where: str, argnums: Any, count: int) -> list[int]:
    """`argnums` as indices into the positional arguments."""
    wanted = (argnums,) if isinstance(argnums, int) else argnums
    if not isinstance(wanted, (tuple, list)) or not wanted:
        raise errors.bad_argnums(where, argnums, count)
    for index in wanted:
        if not isinstance(index, int) or not -count <= index < count:
            raise errors.bad_argnums(where, argnums, count)
    found = [index % count for index in wanted]
    if len(set(found)) < len(found):
        raise errors.bad_argnums(where, argnums, count)
    return found


class _Run:
    """One call of a function as a backend sees it, `run(*tensors) -> (outputs, aux)`.

    From the floating tensors among some of its arguments to those in its output; aux is the other tensors there.
    """

    # Whether every number and tensor among the arguments must have a gradient.
    is_strict = False

    def __init__(self, where: str, f: Callable[..., Any], args: Any, kwargs: Any, indices: Sequence[int]):
        self.backend = config.active
        self.where, self.f = where, f
        self.args, self.kwargs, self.indices = args, kwargs, indices
        self.arguments = self._flatten([args[index] for index in indices])
        self.places, self.tensors = self._differentiated()
        # The output, and which of its leaves are differentiated, and which are other tensors.
        self.output: Nest
        self.floating: list[int]
        self.others: list[int]

    def __call__(self, *tensors: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        args = list(self.args)
        for index, value in zip(self.indices, self.arguments.fill(self.places, tensors), strict=True):
            args[index] = value
        self.output, found, self.floating = self.read(self.f(*args, **self.kwargs))
        self.others = [place for place in found if place not in self.floating]
        leaves = self.output.leaves
        return tuple(leaves[place] for place in self.floating), tuple(leaves[place] for place in self.others)

    def read(self, value: Any) -> tuple[Nest, tuple[int, ...], list[int]]:
        """What the function returned, laid flat: which of the leaves are tensors, and which of these differentiated."""
        output, found = self._lay(value, "the output{}".format)
        floating = [place for place in found if is_differentiable(self.backend.dtype(output.leaves[place]))]
        return output, found, floating

    def result(self, outputs: Sequence[Any], aux: Sequence[Any]) -> Any:
        """The output again, of what the backend made of its tensors."""
        return self.output.fill([*self.floating, *self.others], [*outputs, *aux])

    def like_arguments(self, values: Sequence[Any]) -> list[Any]:
        """A nest like each of the arguments, with one of `values` for each tensor, and None elsewhere."""
        blank = self.arguments._replace(leaves=[None] * len(self.arguments.leaves))
        return blank.fill(self.places, values)  # type: ignore[no-any-return]

    def _flatten(self, value: Any) -> Nest:
        return nest.flatten(value, self.backend.is_tensor, self.backend.children)

    def _lay(self, value: Any, label: Callable[[str], str]) -> tuple[Nest, tuple[int, ...]]:
        """A nest laid flat, its tensors as the framework's own, and where they stand."""
        laid = self._flatten(value)
        found = split(self.backend, self.where, laid, lambda place: label(laid.paths()[place]))
        for place in found:
            laid.leaves[place] = self.backend.asarray(laid.leaves[place])
        return laid, found

    def _differentiated(self) -> tuple[list[int], list[Any]]:
        """Where the differentiated tensors stand among the leaves of the arguments, and the tensors."""
        backend, leaves = self.backend, self.arguments.leaves
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, (int, float, complex)) and not backend.is_tensor(leaf):
                if not isinstance(leaf, int):
                    leaves[place] = backend.asarray(leaf)
                elif self.is_strict:
                    came = errors.article(errors.type_name(leaf))
                    raise errors.not_differentiable(self.where, self._label(place), came)
        places, tensors = [], []
        for place in split(backend, self.where, self.arguments, self._label):
            tensor = backend.asarray(leaves[place])
            kind = backend.dtype(tensor)
            if is_differentiable(kind):
                places.append(place)
                tensors.append(tensor)
            elif self.is_strict:
                raise errors.not_differentiable(self.where, self._label(place), describe(kind, backend.shape(tensor)))
        if not places:
            raise errors.nothing_to_differentiate(self.where)
        return places, tensors

    def _label(self, place: int) -> str:
        number, _, rest = self.arguments.paths()[place][1:].partition("]")
        return f"argument {self.indices[int(number)]}{rest}"


class _LossRun(_Run):
    """One call of a function of which `grad` is asked for: its result is the pair `(output, aux)`."""

    is_strict = True

    def __init__(
        self, where: str, f: Callable[..., Any], args: Any, kwargs: Any, indices: Sequence[int], has_aux: bool
    ):
        super().__init__(where, f, args, kwargs, indices)
        self.has_aux = has_aux

    def read(self, value: Any) -> tuple[Nest, tuple[int, ...], list[int]]:
        output, aux = value, None
        if self.has_aux:
            if not isinstance(value, (tuple, list)) or len(value) != 2:
                raise errors.no_aux(self.where, value)
            output, aux = value
        if not self.backend.is_tensor(output):
            raise errors.not_a_scalar_output(self.where, errors.article(errors.type_name(output)))
        kind = self.backend.dtype(output)
        if not is_differentiable(kind) or kind.startswith("complex"):
            raise errors.not_a_scalar_output(self.where, describe(kind, self.backend.shape(output)))
        laid, found = self._lay((output, aux), lambda path: f"aux{path.removeprefix('[1]')}")
        return laid, found, [0]
