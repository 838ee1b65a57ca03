"""`grad`, `vjp`, `jvp` and their like: derivatives of any function on any backend, by the framework's own engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from keras_cg import config, errors, pytree, state
from keras_cg.call import function_name
from keras_cg.engine.precision import is_differentiable
from keras_cg.gradients import align
from keras_cg.pytree import ROW, Tree, compatible, describe

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
    run = _Run(f"vjp({function_name(f)})", f, args, {}, range(len(args)))
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
            raise errors.not_arguments(where, name, value)
    run = _Run(where, f, primals, {}, range(len(primals)))
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
        run = _LossRun(where, f, args, kwargs, _indices(where, argnums, len(args)), has_aux)
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
        run = _RealRun(where, differentiated, args, kwargs, _indices(where, argnums, len(args)))
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
        raise errors.bad_argnums(where, argnums, count)
    for index in wanted:
        if not isinstance(index, int) or not -count <= index < count:
            raise errors.bad_argnums(where, argnums, count)
    found = [index % count for index in wanted]
    if len(set(found)) < len(found):
        raise errors.bad_argnums(where, argnums, count)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex))


class _Run:
    """One call of a function as a backend sees it, `run(*tensors) -> (outputs, aux)`.

    From the floating tensors among some of its arguments to those in its output; aux is the other tensors there.
    """

    # Whether every number and tensor among the arguments must have a gradient.
    is_strict = False

    def __init__(self, where: str, f: Callable[..., Any], args: Any, kwargs: Any, indices: Sequence[int]):
        self.backend = config.active
        state.stop_gradients(self.backend)
        self.where, self.f = where, f
        self.args, self.kwargs, self.indices = args, kwargs, indices
        self.tensors, self.arguments = self._differentiated(tuple(args[index] for index in indices))
        # The output without its differentiated tensors, and where its other tensors stand.
        self.output: Tree
        self.others: list[int]

    def __call__(self, *tensors: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        args = list(self.args)
        for index, value in zip(self.indices, self.arguments.combine(tensors), strict=True):
            args[index] = value
        try:
            value = self.f(*args, **self.kwargs)
        except (AttributeError, TypeError) as error:
            for index in self.indices:
                if isinstance(self.args[index], (list, tuple)) and all(map(_is_number, self.args[index])):
                    error.add_note(errors.nest_of_numbers(self.where, f"argument {index}", self.args[index]))
            raise
        return self.read(value)

    def read(self, value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The tensors that the function returned: those that are differentiated, and the others."""
        outputs, aux = self._flatten(value, "the output{}".format, is_all=True)
        if not outputs:
            raise errors.no_floating_output(self.where, self._describe(value))
        return outputs, aux

    def _flatten(
        self, value: Any, label: Callable[[str], str], is_all: bool
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Parts what was returned; of `(output, aux)`, where not all is differentiated, the first leaf alone is."""
        tree = pytree.flatten(value, self.backend.is_tensor, self.backend.children)
        tensors = pytree.partition(self.backend, self.where, tree, lambda tree, place: label(tree.paths()[place]))
        marked = [
            (place, tensor, is_differentiable(self.backend.dtype(tensor)) and (is_all or place == 0))
            for place, tensor in zip(tree.places, tensors, strict=True)
        ]
        tree.places = [place for place, _, is_wanted in marked if is_wanted]
        self.output = tree
        self.others = [place for place, _, is_wanted in marked if not is_wanted]
        return (
            tuple(tensor for _, tensor, is_wanted in marked if is_wanted),
            tuple(tensor for _, tensor, is_wanted in marked if not is_wanted),
        )

    def result(self, outputs: Sequence[Any], aux: Sequence[Any]) -> Any:
        """The output again, of what the backend made of its tensors."""
        values = dict(zip([*self.output.places, *self.others], [*outputs, *aux], strict=True))
        places = sorted(values)
        return self.output.fill(places, [values[place] for place in places])

    def like_arguments(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """A nest like each of the arguments, with one of `values` for each tensor, and None elsewhere."""
        return self.arguments.blank(values)  # type: ignore[no-any-return]

    def fit(self, name: str, value: Any, tree: Tree, tensors: Sequence[Any], model: str) -> list[Any]:
        """What `value`, a nest like `tree`, has where `tensors` stand: each a tensor like its own."""
        backend, places = self.backend, tree.places
        wrapped = pytree.wrap(value, backend.is_tensor, backend.children)
        aligned = align(tree.treespec, wrapped)
        if aligned is None:
            blank = pytree.wrap(tree.unflatten([None] * len(tree.leaves)), backend.is_tensor, backend.children)
            raise errors.not_the_nest(self.where, name, pytree.show(wrapped), pytree.show(blank), model)

        def label(_: Tree, index: int) -> str:
            return name + tree.paths()[places[index]]

        given = Tree([aligned[place] for place in places], ROW)
        came = pytree.partition(backend, self.where, given, label)
        parts = dict(zip(given.places, came, strict=True))
        return [
            self._fit_leaf(parts.get(index, given.leaves[index]), tensor, functools.partial(label, given, index), model)
            for index, tensor in enumerate(tensors)
        ]

    def _fit_leaf(self, leaf: Any, tensor: Any, label: Callable[[], str], model: str) -> Any:
        """An upstream or a tangent as a tensor like the one that it belongs to."""
        backend = self.backend
        kind, shape = backend.dtype(tensor), backend.shape(tensor)
        if leaf is None:
            return backend.namespace.zeros_like(tensor)
        came, size = "", None
        if backend.is_tensor(leaf):
            came, size = backend.dtype(leaf), backend.shape(leaf)
        elif isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool):
            came, size = "complex" if isinstance(leaf, complex) else "float", ()
        is_too_complex = came.startswith("complex") and not kind.startswith("complex")
        if not is_differentiable(came) or is_too_complex or not compatible(size, shape):
            raise errors.not_alike(self.where, label(), self._describe(leaf), describe(kind, shape), model)
        if not backend.is_tensor(leaf):
            return backend.namespace.ones_like(tensor) * (leaf if came == "complex" else float(leaf))
        leaf = backend.asarray(leaf)
        return leaf if came == kind else backend.cast(leaf, kind)

    def _describe(self, value: Any) -> str:
        """A value in a message."""
        if self.backend.is_tensor(value):
            return describe(self.backend.dtype(value), self.backend.shape(value))
        return errors.article(errors.type_name(value))

    def _differentiated(self, value: tuple[Any, ...]) -> tuple[list[Any], Tree]:
        """The differentiated tensors among the arguments, and the rest of these."""
        backend, tree = self.backend, pytree.flatten(value, self.backend.is_tensor, self.backend.children)
        for place, leaf in enumerate(tree.leaves):
            if isinstance(leaf, (int, float, complex)) and not backend.is_tensor(leaf):
                if not isinstance(leaf, int):
                    tree.leaves[place] = backend.asarray(leaf)
                elif self.is_strict:
                    raise errors.not_differentiable(self.where, self._label(tree, place), self._describe(leaf))
        tensors = pytree.partition(backend, self.where, tree, self._label)
        wanted, places = [], []
        for place, tensor in zip(tree.places, tensors, strict=True):
            if is_differentiable(backend.dtype(tensor)):
                places.append(place)
                wanted.append(tensor)
            elif self.is_strict:
                raise errors.not_differentiable(self.where, self._label(tree, place), self._describe(tensor))
            else:
                tree.leaves[place] = tensor
        if not wanted:
            raise errors.nothing_to_differentiate(self.where)
        tree.places = places
        return wanted, tree

    def _label(self, tree: Tree, place: int) -> str:
        number, _, inside = tree.paths()[place][1:].partition("]")
        return f"argument {self.indices[int(number)]}{inside}"


class _LossRun(_Run):
    """One call of a function of which `grad` is asked for: its result is the pair `(output, aux)`."""

    is_strict = True

    def __init__(
        self, where: str, f: Callable[..., Any], args: Any, kwargs: Any, indices: Sequence[int], has_aux: bool
    ):
        super().__init__(where, f, args, kwargs, indices)
        self.has_aux = has_aux

    def read(self, value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        output, aux = value, None
        if self.has_aux:
            if not isinstance(value, (tuple, list)) or len(value) != 2:
                raise errors.no_aux(self.where, value)
            output, aux = value
        kind = self.backend.dtype(output) if self.backend.is_tensor(output) else ""
        if not is_differentiable(kind) or kind.startswith("complex"):
            raise errors.not_a_scalar_output(self.where, self._describe(output))
        return self._flatten((output, aux), lambda path: f"aux{path.removeprefix('[1]')}", is_all=False)


class _RealRun(_Run):
    """One call of a function of which a Jacobian is asked for."""

    is_strict = True

    def __init__(self, where: str, f: Callable[..., Any], args: Any, kwargs: Any, indices: Sequence[int]):
        super().__init__(where, f, args, kwargs, indices)
        for place, tensor in zip(self.arguments.places, self.tensors, strict=True):
            self._refuse_complex(tensor, functools.partial(self._label, self.arguments, place))

    def read(self, value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        outputs, aux = super().read(value)
        for place, output in zip(self.output.places, outputs, strict=True):
            self._refuse_complex(output, functools.partial(self._output_label, place))
        return outputs, aux

    def _output_label(self, place: int) -> str:
        return f"the output{self.output.paths()[place]}"

    def _refuse_complex(self, tensor: Any, label: Callable[[], str]) -> None:
        if self.backend.dtype(tensor).startswith("complex"):
            raise errors.complex_jacobian(self.where, label(), self._describe(tensor))
