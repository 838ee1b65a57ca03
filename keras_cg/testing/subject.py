"""The function under test on one backend, with flat lists of NumPy arrays as input and output."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from keras_cg import backends
from keras_cg.bridge.keras_interop import unwrap
from keras_cg.engine import precision
from keras_cg.engine.contract import Backend
from keras_cg.engine.precision import is_differentiable
from keras_cg.frontend import config, pytree, signature
from keras_cg.frontend.arguments import labels
from keras_cg.frontend.call import function_name
from keras_cg.frontend.decorator import CustomGradient, custom_gradient
from keras_cg.frontend.tree import Tree
from keras_cg.testing import messages
from keras_cg.testing.arrays import Array, wide

Arrays = list[Array]


class Arguments(NamedTuple):
    """The arguments of a call, flattened, every tensor as a NumPy array."""

    tree: Tree
    positionals: int
    keywords: tuple[str, ...]
    # The indices of the leaves that are arrays, the names of their dtypes, and which of them are differentiated.
    places: tuple[int, ...]
    dtypes: tuple[str, ...]
    floating: tuple[int, ...]
    labels: tuple[str, ...]

    @property
    def points(self) -> Arrays:
        """Where the function is differentiated: the floating arrays as float64 or complex128."""
        return [wide(self.tree.leaves[self.places[index]]) for index in self.floating]

    @property
    def names(self) -> list[str]:
        """The labels of the differentiated arguments, for messages."""
        return [self.labels[self.places[index]] for index in self.floating]


def bind_arguments(f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Flattens the arguments of a call and turns every tensor into a NumPy array.

    Raises:
        ValueError: No argument is a floating or complex array.
        TypeError: An argument is a tensor that has no dense array.
    """
    backend = config.active
    tree = pytree.flatten((*args, *kwargs.values()), backend, _is_array)
    keywords = tuple(kwargs)
    fun = f.__wrapped__ if isinstance(f, CustomGradient) else f
    named = tuple(labels(fun, len(args), keywords, tree))
    places, dtypes = [], []
    for place, leaf in enumerate(tree.leaves):
        leaf = unwrap(leaf)
        if not _is_array(leaf):
            continue
        owner = _owner(leaf)
        places.append(place)
        dtypes.append(leaf.dtype.name if owner is None else owner.dtype(leaf))
        try:
            array = numpy.array(leaf if owner is None else owner.to_numpy(leaf))
        except (TypeError, ValueError, AttributeError) as error:
            raise messages.not_dense(function_name(f), named[place], leaf) from error
        if owner is not None and array.dtype == object:  # NumPy wrapped the tensor itself as an object
            raise messages.not_dense(function_name(f), named[place], leaf)
        tree.leaves[place] = array
    floating = tuple(index for index, dtype in enumerate(dtypes) if is_differentiable(dtype))
    if not floating:
        raise messages.nothing_to_check(function_name(f))
    return Arguments(tree, len(args), keywords, tuple(places), tuple(dtypes), floating, named)


def _is_array(value: Any) -> bool:
    return isinstance(value, (numpy.ndarray, numpy.generic)) or _owner(value) is not None


def _owner(value: Any) -> Backend | None:
    """Returns the backend that `value` is a tensor of; None for a NumPy array and for any other value."""
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return None
    name = backends.owner(type(value))
    found = None if name is None else backends.load(name, name)
    return found if found is not None and found.is_tensor(value) else None


def epsilon(dtypes: Sequence[str]) -> float:
    """Returns the machine epsilon of the coarsest dtype."""
    return max((precision.of(dtype).epsilon for dtype in dtypes), default=precision.of("float64").epsilon)


class Slot:
    """Marks the place of a tensor in a pytree."""

    def __init__(self, number: int):
        self.number = number


def filled(template: Any, fill: Callable[[Slot], Any]) -> Any:
    """Returns a copy of Python's builtin containers with each slot replaced by `fill(slot)`.

    torch.compile (2.13) can trace this function. It cannot trace optree (0.20) over a dict from outside the graph.
    """
    if isinstance(template, Slot):
        return fill(template)
    if type(template) is dict:
        return {key: filled(value, fill) for key, value in template.items()}
    if type(template) is list:
        return [filled(value, fill) for value in template]
    if type(template) is tuple:
        return tuple([filled(value, fill) for value in template])
    return template


class Subject:
    """A function on the active backend, in the dtypes of its arguments or in double precision.

    Inputs and outputs are lists of float64 or complex128 arrays: the differentiated arguments, and the floating leaves
    of the output.
    """

    def __init__(self, f: Callable[..., Any], arguments: Arguments, double: bool = False):
        self.backend = config.active
        self.f = f
        self.name = function_name(f)
        self.arguments = arguments
        slots = [Slot(number) for number in range(len(arguments.places))]
        self.template = arguments.tree.fill(arguments.places, slots)
        # Whether every tensor is inside Python's builtin containers only, so that `filled` reaches all slots.
        seen: list[Any] = []
        filled(self.template, seen.append)
        self.is_plain = len(seen) == len(slots)
        self.dtypes = [*map(precision.double, arguments.dtypes)] if double else list(arguments.dtypes)

    def tensors(self, points: Sequence[Array]) -> list[Any]:
        """Returns all tensor arguments, with `points` as the values of the differentiated ones."""
        values = [self.arguments.tree.leaves[place] for place in self.arguments.places]
        for index, point in zip(self.arguments.floating, points, strict=True):
            values[index] = point
        return [self.tensor(value, dtype) for value, dtype in zip(values, self.dtypes, strict=True)]

    def tensor(self, value: Array, dtype: str) -> Any:
        """Converts a NumPy array to a tensor of the backend."""
        if dtype == "bfloat16":  # NumPy has no bfloat16
            return self.backend.cast(self.backend.asarray(value.astype(numpy.float32)), dtype)
        return self.backend.asarray(numpy.array(value, dtype))

    def call(self, *tensors: Any) -> Any:
        """Calls the function with its tensor arguments and returns its output."""
        arguments = self.arguments
        if self.is_plain:
            values = filled(self.template, lambda slot: tensors[slot.number])
        else:
            # Flattened again here, because torch.compile (2.13) cannot use a treespec from outside the traced code.
            tree = pytree.flatten(self.template, self.backend)
            values = tree.fill(arguments.places, tensors)
        count = arguments.positionals
        return self.f(*values[:count], **dict(zip(arguments.keywords, values[count:], strict=True)))

    def flat(self, *floating: Any, others: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns the floating leaves of the output; `others` are all tensor arguments, as `tensors` returns them."""
        tensors = list(others)
        for index, tensor in zip(self.arguments.floating, floating, strict=True):
            tensors[index] = tensor
        leaves = pytree.flatten(self.call(*tensors), self.backend).leaves
        found = [self.backend.asarray(leaf) for leaf in map(unwrap, leaves) if self.backend.is_tensor(leaf)]
        return tuple(leaf for leaf in found if is_differentiable(self.backend.dtype(leaf))), ()

    def bound(self, points: Sequence[Array]) -> tuple[Callable[..., Any], list[Any]]:
        """Returns `flat` as a function of only the differentiated tensors, and those tensors."""
        tensors = self.tensors(points)
        return functools.partial(self.flat, others=tensors), [tensors[index] for index in self.arguments.floating]

    def output(self, points: Sequence[Array]) -> Arrays:
        """Returns the floating leaves of the output as arrays."""
        flat, floating = self.bound(points)
        return self.arrays(flat(*floating)[0])

    def changed_argument(self, points: Sequence[Array]) -> str | None:
        """Returns the name of an argument that the function changes in place; None if there is none."""
        flat, floating = self.bound(points)
        before = self.arrays(floating)
        flat(*floating)
        pairs = zip(self.arguments.names, before, self.arrays(floating), strict=True)
        return next((name for name, one, other in pairs if not numpy.array_equal(one, other)), None)

    def epsilon(self, points: Sequence[Array]) -> float:
        """Returns the machine epsilon of the coarsest dtype among the floating leaves of the output."""
        flat, floating = self.bound(points)
        return epsilon([self.backend.dtype(each) for each in flat(*floating)[0]])

    def arrays(self, tensors: Sequence[Any]) -> Arrays:
        """Converts tensors to arrays."""
        return [wide(self.backend.to_numpy(each)) for each in tensors]

    def cast(self, arrays: Sequence[Array], tensors: Sequence[Any]) -> list[Any]:
        """Converts arrays to tensors that have the dtypes of `tensors`."""
        return [self.tensor(array, self.backend.dtype(each)) for array, each in zip(arrays, tensors, strict=True)]

    def gradients(self, points: Sequence[Array], upstreams: Sequence[Sequence[Array]]) -> Arrays:
        """Returns the derivative of order `len(upstreams)`, one array for each differentiated argument.

        The first of `upstreams` is the cotangent of the output, the next one that of the gradient, and so on.
        """
        flat, floating = self.bound(points)
        for upstream in upstreams:
            flat = functools.partial(self._pulled, flat, upstream)
        return self.arrays(flat(*floating)[0])

    def gradients_alone(self, points: Sequence[Array], upstream: Sequence[Array], numbers: Sequence[int]) -> Arrays:
        """Returns the gradients of some arguments, where those of the others are not asked for."""
        flat, floating = self.bound(points)

        def alone(*some: Any) -> Any:
            tensors = list(floating)
            for number, tensor in zip(numbers, some, strict=True):
                tensors[number] = tensor
            return flat(*tensors)

        return self.pulled(alone, [floating[number] for number in numbers], upstream)[1]

    def gradients_after(self, points: Sequence[Array], upstream: Sequence[Array], others: Sequence[Array]) -> Arrays:
        """Returns the gradient at `points`, computed after the function was also called at other points."""
        flat, floating = self.bound(points)
        outputs, pullback, _ = self.backend.vjp(flat, floating)
        self.gradients(others, [upstream])
        return self.arrays(pullback(self.cast(upstream, outputs)))

    def pulled(
        self, flat: Callable[..., Any], floating: Sequence[Any], upstream: Sequence[Array]
    ) -> tuple[Sequence[Any], Arrays]:
        """Returns the outputs of a function of tensors, such as `flat`, and its gradients."""
        outputs, pullback, _ = self.backend.vjp(flat, floating)
        return outputs, self.arrays(pullback(self.cast(upstream, outputs)))

    def _pulled(self, flat: Callable[..., Any], upstream: Sequence[Array], *floating: Any) -> Any:
        outputs, pullback, _ = self.backend.vjp(flat, floating)
        return pullback(self.cast(upstream, outputs)), ()

    def gradients_by_upstream(
        self, points: Sequence[Array], upstream: Sequence[Array], weights: Array, number: int
    ) -> Arrays:
        """Returns the derivative of `sum(weights * gradient[number])` with respect to upstream."""
        flat, floating = self.bound(points)
        outputs, pullback, _ = self.backend.vjp(flat, floating)
        upstreams = self.cast(upstream, outputs)
        gradients, second, _ = self.backend.vjp(lambda *upstreams: ((pullback(upstreams)[number],), ()), upstreams)
        return self.arrays(second(self.cast([weights], gradients)))

    def tangents(self, points: Sequence[Array], directions: Sequence[Array]) -> Arrays:
        """Returns the forward derivative (jvp) of the output along a direction."""
        flat, floating = self.bound(points)
        _, found, _ = self.backend.jvp(flat, floating, self.cast(directions, floating))
        return self.arrays(found)


def with_rule(f: Callable[..., Any], rule: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `f` with its rule replaced by `rule`."""
    plain = f.__wrapped__ if isinstance(f, CustomGradient) else f

    @functools.wraps(plain)
    def pair(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop(signature.NEEDS, None)  # `f` is told by its own decorator
        return f(*args, **kwargs), rule

    return custom_gradient(pair)


def watched(f: Callable[..., Any], seen: list[weakref.ref[Any]]) -> Callable[..., Any]:
    """Returns `f` with weak references added to `seen` for the tensors that it receives.

    A decorated function receives detached tensors, which are other objects than the tensors of the call.
    """
    if not isinstance(f, CustomGradient):
        return f
    plain, backend = f.__wrapped__, config.active

    @functools.wraps(plain)
    def spy(*args: Any, **kwargs: Any) -> Any:
        leaves = pytree.flatten((args, kwargs), backend).leaves
        seen.extend(weakref.ref(leaf) for leaf in leaves if backend.is_tensor(leaf) and type(leaf).__weakrefoffset__)
        return plain(*args, **kwargs)

    return custom_gradient(spy)


def is_rule(expected: Callable[..., Any]) -> bool:
    """Whether `expected` is a rule (it has a parameter called `upstream`) instead of a function."""
    found = signature.parameters(expected)
    return found is not None and "upstream" in found.names()
