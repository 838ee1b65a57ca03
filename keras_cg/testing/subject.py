"""The function under test on one backend, as flat NumPy arrays in and out."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from keras_cg import backends, config, pytree, signature
from keras_cg.arguments import labels
from keras_cg.call import function_name
from keras_cg.decorator import CustomGradient, custom_gradient
from keras_cg.engine import precision
from keras_cg.engine.contract import Backend
from keras_cg.engine.precision import is_differentiable
from keras_cg.keras_interop import unwrap
from keras_cg.pytree import Tree
from keras_cg.testing import messages
from keras_cg.testing.arrays import Array, wide

Arrays = list[Array]


class Arguments(NamedTuple):
    """The arguments of a call, flattened, every tensor as a NumPy array."""

    tree: Tree
    positionals: int
    keywords: tuple[str, ...]
    # Which leaves are arrays, their dtypes by name, and which of them are differentiated.
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
        """What messages call those."""
        return [self.labels[self.places[index]] for index in self.floating]


def arguments(f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Flattens the arguments of a call.

    Raises:
        ValueError: There is no floating or complex array among them.
        TypeError: One is a tensor without a dense array.
    """
    backend = config.active
    tree = pytree.flatten((*args, *kwargs.values()), _is_array, backend.children)
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
        if owner is not None and array.dtype == object:  # one that holds the tensor itself
            raise messages.not_dense(function_name(f), named[place], leaf)
        tree.leaves[place] = array
    floating = tuple(index for index, dtype in enumerate(dtypes) if is_differentiable(dtype))
    if not floating:
        raise messages.nothing_to_check(function_name(f))
    return Arguments(tree, len(args), keywords, tuple(places), tuple(dtypes), floating, named)


def _is_array(value: Any) -> bool:
    return isinstance(value, (numpy.ndarray, numpy.generic)) or _owner(value) is not None


def _owner(value: Any) -> Backend | None:
    """The backend whose tensor `value` is, NumPy's arrays excepted."""
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return None
    name = backends.owner(type(value))
    found = None if name is None else backends.load(name, name)
    return found if found is not None and found.is_tensor(value) else None


# Whatever has fewer digits, in double precision.
_DOUBLE = {"float16": "float64", "bfloat16": "float64", "float32": "float64", "complex64": "complex128"}


def epsilon(dtypes: Sequence[str]) -> float:
    """The machine epsilon of the coarsest of some dtypes."""
    return max((precision.of(dtype).epsilon for dtype in dtypes), default=precision.of("float64").epsilon)


class Slot:
    """The place of a tensor in a nest."""

    def __init__(self, number: int):
        self.number = number


def filled(template: Any, fill: Callable[[Slot], Any]) -> Any:
    """A nest of Python's own containers with other values in its slots; what else is in it stays.

    torch.compile (2.13) follows this; where it meets a dict from outside, optree (0.20) it does not.
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

    What goes in and comes out are lists of arrays of float64 or complex128: the differentiated arguments, and the
    floating leaves of the output.
    """

    def __init__(self, f: Callable[..., Any], given: Arguments, double: bool = False):
        self.backend = config.active
        self.f = f
        self.name = function_name(f)
        self.given = given
        slots = [Slot(number) for number in range(len(given.places))]
        self.template = given.tree.fill(given.places, slots)
        # Whether Python's own containers are all that there is around the tensors.
        seen: list[Any] = []
        filled(self.template, seen.append)
        self.is_plain = len(seen) == len(slots)
        self.dtypes = [_DOUBLE.get(dtype, dtype) if double else dtype for dtype in given.dtypes]

    def watched(self, seen: list[weakref.ref[Any]]) -> Subject:
        """The same, and references to the tensors that the function gets."""
        found = copy.copy(self)
        found.f = watched(self.f, seen)
        return found

    def tensors(self, points: Sequence[Array]) -> list[Any]:
        """The arguments that are tensors, with `points` in the places of those that are differentiated."""
        values = [self.given.tree.leaves[place] for place in self.given.places]
        for index, point in zip(self.given.floating, points, strict=True):
            values[index] = point
        return [self.tensor(value, dtype) for value, dtype in zip(values, self.dtypes, strict=True)]

    def tensor(self, value: Array, dtype: str) -> Any:
        """A NumPy array as a tensor of the backend."""
        if dtype == "bfloat16":  # which NumPy has not
            return self.backend.cast(self.backend.asarray(value.astype(numpy.float32)), dtype)
        return self.backend.asarray(numpy.array(value, dtype))

    def call(self, *tensors: Any) -> Any:
        """The output of the function."""
        given = self.given
        if self.is_plain:
            values = filled(self.template, lambda slot: tensors[slot.number])
        else:
            # Flattened here again, because torch.compile (2.13) takes no structure from outside of what it traces.
            tree = pytree.flatten(self.template, self.backend.is_tensor, self.backend.children)
            values = tree.fill(given.places, tensors)
        return self.f(
            *values[: given.positionals], **dict(zip(given.keywords, values[given.positionals :], strict=True))
        )

    def flat(self, *floating: Any, others: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The floating leaves of the output for the differentiated tensors; the others are what `tensors` gave."""
        tensors = list(others)
        for index, tensor in zip(self.given.floating, floating, strict=True):
            tensors[index] = tensor
        leaves = pytree.flatten(self.call(*tensors), self.backend.is_tensor, self.backend.children).leaves
        found = [self.backend.asarray(leaf) for leaf in map(unwrap, leaves) if self.backend.is_tensor(leaf)]
        return tuple(leaf for leaf in found if is_differentiable(self.backend.dtype(leaf))), ()

    def bound(self, points: Sequence[Array]) -> tuple[Callable[..., Any], list[Any]]:
        """`flat` as a function of the differentiated tensors alone, and these."""
        tensors = self.tensors(points)
        return functools.partial(self.flat, others=tensors), [tensors[index] for index in self.given.floating]

    def output(self, points: Sequence[Array]) -> Arrays:
        """The floating leaves of the output."""
        flat, floating = self.bound(points)
        return self.arrays(flat(*floating)[0])

    def changed_argument(self, points: Sequence[Array]) -> str | None:
        """The name of an argument that the function changes in place."""
        flat, floating = self.bound(points)
        before = self.arrays(floating)
        flat(*floating)
        pairs = zip(self.given.names, before, self.arrays(floating), strict=True)
        return next((name for name, one, other in pairs if not numpy.array_equal(one, other)), None)

    def epsilon(self, points: Sequence[Array]) -> float:
        """The machine epsilon of the coarsest dtype among the floating leaves of the output."""
        flat, floating = self.bound(points)
        return epsilon([self.backend.dtype(each) for each in flat(*floating)[0]])

    def arrays(self, tensors: Sequence[Any]) -> Arrays:
        """Tensors as arrays."""
        return [wide(self.backend.to_numpy(each)) for each in tensors]

    def cast(self, arrays: Sequence[Array], likes: Sequence[Any]) -> list[Any]:
        """Arrays as tensors of the dtypes of other tensors."""
        return [self.tensor(array, self.backend.dtype(each)) for array, each in zip(arrays, likes, strict=True)]

    def gradients(self, points: Sequence[Array], upstreams: Sequence[Sequence[Array]]) -> Arrays:
        """The derivative of order `len(upstreams)`, one array for each differentiated argument.

        The first of `upstreams` arrives at the output, the next at the gradient, and so on.
        """
        flat, floating = self.bound(points)
        for upstream in upstreams:
            flat = functools.partial(self._pulled, flat, upstream)
        return self.arrays(flat(*floating)[0])

    def gradients_after(self, points: Sequence[Array], upstream: Sequence[Array], others: Sequence[Array]) -> Arrays:
        """The gradient at `points`, asked for when the function has been called at other ones."""
        flat, floating = self.bound(points)
        outputs, pullback, _ = self.backend.vjp(flat, floating)
        self.gradients(others, [upstream])
        return self.arrays(pullback(self.cast(upstream, outputs)))

    def _pulled(self, flat: Callable[..., Any], upstream: Sequence[Array], *floating: Any) -> Any:
        outputs, pullback, _ = self.backend.vjp(flat, floating)
        return pullback(self.cast(upstream, outputs)), ()

    def gradients_by_upstream(
        self, points: Sequence[Array], upstream: Sequence[Array], weights: Array, number: int
    ) -> Arrays:
        """The derivative by upstream of the sum of one gradient, weighed."""
        flat, floating = self.bound(points)
        outputs, pullback, _ = self.backend.vjp(flat, floating)
        upstreams = self.cast(upstream, outputs)
        gradients, second, _ = self.backend.vjp(lambda *upstreams: ((pullback(upstreams)[number],), ()), upstreams)
        return self.arrays(second(self.cast([weights], gradients)))

    def tangents(self, points: Sequence[Array], directions: Sequence[Array]) -> Arrays:
        """The forward derivative of the output along a direction."""
        flat, floating = self.bound(points)
        _, found, _ = self.backend.jvp(flat, floating, self.cast(directions, floating))
        return self.arrays(found)


def with_rule(f: Callable[..., Any], rule: Callable[..., Any]) -> Callable[..., Any]:
    """`f` with another rule in the place of its own."""
    plain = f.__wrapped__ if isinstance(f, CustomGradient) else f

    @functools.wraps(plain)
    def pair(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs), rule

    return custom_gradient(pair)


def watched(f: Callable[..., Any], seen: list[weakref.ref[Any]]) -> Callable[..., Any]:
    """`f` as it is, and references to the tensors that it gets, which are not those that it is called with."""
    if not isinstance(f, CustomGradient):
        return f
    plain, backend = f.__wrapped__, config.active

    @functools.wraps(plain)
    def spy(*args: Any, **kwargs: Any) -> Any:
        leaves = pytree.flatten((args, kwargs), backend.is_tensor, backend.children).leaves
        seen.extend(weakref.ref(leaf) for leaf in leaves if backend.is_tensor(leaf) and type(leaf).__weakrefoffset__)
        return plain(*args, **kwargs)

    return custom_gradient(spy)


def is_rule(expected: Callable[..., Any]) -> bool:
    """Whether `expected` is a rule, which has a parameter called `upstream`, and not a function."""
    found = signature.parameters(expected)
    return found is not None and "upstream" in found.names()
