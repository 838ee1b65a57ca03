"""Reads the result of a rule in any of the accepted structures, and checks it.

A result may be one gradient for each tensor, a pytree like the arguments, or a flat list over all leaves. Where it may
be several of these, `_Reader` tries all readings, and takes the one that is possible.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from keras_cg import errors, user_code
from keras_cg.engine.precision import is_differentiable, is_key
from keras_cg.frontend import messages, pytree, signature
from keras_cg.frontend.arguments import Arguments
from keras_cg.frontend.pytree import compatible, describe, flatten

# What the gradient of a tensor must look like: its dtype and its shape.
Spec = tuple[str, tuple[int | None, ...] | None]

# One argument: its treespec, or None for a leaf in a flat list; and for each of its leaves whether it is a tensor.
Part = tuple[Any, list[bool]]


class Reading(NamedTuple):
    """One meaning of a result: a gradient for each tensor, what stands at static leaves, and whether it has no keys."""

    gradients: list[Any]
    others: list[Any]
    is_flat: bool


class _Served(NamedTuple):
    """The gradients of the arguments, in the result of a rule that also has gradients of captured values."""

    result: Any


# The functions that were told to have no gradient, by name and place: a function may be defined again at each call.
_told: set[tuple[str, str]] = set()


def collect(
    arguments: Arguments, specs: Sequence[Spec], result: Any, needs_grad: Sequence[bool] | None, rule: Any = None
) -> tuple[Any, ...]:
    """Returns one checked gradient for each tensor argument; those that are not needed are None, without a check.

    Raises GradientError if the result does not fit. Warns once for each function if there is no gradient at all.
    """

    def label() -> str:
        return arguments.labels()[arguments.static.places[index]]

    checked: list[Any] = []
    is_served = isinstance(result, _Served)
    gradients = _Reader(arguments, specs).pick(result.result if is_served else result)
    is_asked = not is_served and (needs_grad is None or any(needs_grad))
    if gradients and is_asked and all([gradient is None for gradient in gradients]):
        _warn(arguments, rule or arguments.user)
    for index, (gradient, spec) in enumerate(zip(gradients, specs, strict=True)):
        is_needed = needs_grad is None or needs_grad[index]
        checked.append(check(arguments, gradient, spec, label) if is_needed else None)
    return tuple(checked)


def _warn(arguments: Arguments, rule: Any) -> None:
    """Warns of a rule without a gradient, but not of one of this package, nor while torch.compile traces."""
    where = None if user_code.is_traced_by_dynamo() else user_code.location(rule, arguments.user)
    if where is not None and (arguments.name, where) not in _told:
        _told.add((arguments.name, where))
        warnings.warn(errors.locate(messages.no_gradient(arguments.name), rule, arguments.user), stacklevel=2)


class _Reader:
    """Reads the result of a rule as one gradient for each tensor argument. Keys of `jax.random` are static leaves."""

    def __init__(self, arguments: Arguments, specs: Sequence[Spec]):
        self.arguments, self.static = arguments, arguments.static
        pairs = [(place, spec) for place, spec in zip(self.static.places, specs, strict=True) if not is_key(spec[0])]
        self.places, self.specs = [place for place, _ in pairs], [spec for _, spec in pairs]

    def pick(self, result: Any) -> Sequence[Any]:
        """Returns what the rule returned for each tensor argument, in order."""
        backend, static = self.arguments.backend, self.static
        if len(self.places) == 1 and backend.is_tensor(result):
            return self._with_keys([result])
        value = tuple(result) if type(result) in (tuple, list) else (result,)
        gradients: Sequence[Any] = static.tensors_of(value)
        if gradients and all(map(backend.is_tensor, gradients)):
            return gradients
        # With something at every leaf, a pytree like the arguments is nothing else.
        whole = flatten(value, backend.is_tensor, backend.children)
        if whole.treespec == static.treespec and not any(map(_is_nothing, whole.leaves)):
            return [whole.leaves[place] for place in static.places]
        value = pytree.wrap(result, backend.is_tensor, backend.children)
        return self._with_keys(self._choose(value, list(self._readings(value))))

    def _with_keys(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """Returns the gradients with None in the place of each key."""
        found = dict(zip(self.places, gradients, strict=True))
        return [*map(found.get, self.static.places)]

    def _choose(self, value: Any, readings: list[Reading]) -> Sequence[Any]:
        """Returns the gradients of the one reading that a result allows.

        A reading that gives a static argument a gradient is dropped, if there is another. None may stand for a whole
        pytree as for a leaf, so a result can have two meanings: both must give the same gradients.
        """
        ordered = [*filter(self._is_in_order, readings)]
        if not ordered:
            raise self._error(messages.unsorted_result, value) if readings else self._misfit(value)
        first, *others = [*filter(self._is_clean, ordered)] or ordered
        if not all(self._is_same(first.gradients, other.gradients) for other in others):
            raise self._error(messages.ambiguous, value)
        return first.gradients

    def _is_clean(self, reading: Reading) -> bool:
        """Whether a reading has gradients for tensors, and nothing at static leaves."""
        is_tensor, numbers = self.arguments.backend.is_tensor, (type(None), int, float, complex)
        are_gradients = all([isinstance(value, numbers) or is_tensor(value) for value in reading.gradients])
        return are_gradients and all(map(_is_nothing, reading.others))

    def _is_in_order(self, reading: Reading) -> bool:
        """Whether a reading by keys, or over leaves in the order in which the user wrote them down."""
        static = self.static
        return not reading.is_flat or static.is_in_order(range(len(static.leaves)) if reading.others else self.places)

    def _is_same(self, one: Sequence[Any], other: Sequence[Any]) -> bool:
        """Whether two readings of a result give every argument the same gradient."""
        return all(
            a is b or (_is_nothing(a) and _is_nothing(b)) or not is_differentiable(dtype)
            for a, b, (dtype, _) in zip(one, other, self.specs, strict=True)
        )

    def _readings(self, value: Any) -> Iterator[Reading]:
        """Yields every meaning of a result."""
        for parts in self._structures():
            leaves = _align_all([spec for spec, _ in parts], value)
            if leaves is not None:
                pairs = list(zip(leaves, [mark for _, marks in parts for mark in marks], strict=True))
                gradients, others = [leaf for leaf, mark in pairs if mark], [leaf for leaf, mark in pairs if not mark]
                yield Reading(gradients, others, all(spec is None for spec, _ in parts))

    def _structures(self) -> Iterator[list[Part]]:
        """Yields the structures that a rule may return.

        For `f(x, (a, n))` with a static leaf n, and a third argument left at its default, these are `(gx, ga)`,
        `(gx, (ga, None))`, `(gx, ga, None)`, and the last two with a further None. An argument without tensors may be
        left out.
        """
        tensors = set(self.places)
        marks = iter([place in tensors for place in range(len(self.static.leaves))])
        children = self.static.treespec.children()
        explicit: list[Part] = [(spec, [next(marks) for _ in range(spec.num_leaves)]) for spec in children]
        complete = self._with_defaults(explicit)
        yield [(None, [True]) for _ in tensors]
        yield [(spec, marks) for spec, marks in explicit if any(marks)]
        for parts in (explicit, complete):
            yield parts
            yield [(None, [mark]) for _, marks in parts for mark in marks]

    def _with_defaults(self, explicit: list[Part]) -> list[Part]:
        """Returns the arguments of the call, with those left at their defaults where the signature has them."""
        arguments, count = self.arguments, self.arguments.positionals
        named = dict(zip(arguments.keywords, explicit[count:], strict=True))

        def part(name: str, default: Any) -> Part:
            if name in named:
                return named.pop(name)
            spec = flatten(default, arguments.backend.is_tensor, arguments.backend.children).treespec
            return spec, [False] * spec.num_leaves

        unbound = signature.unbound(arguments.user, count, named, with_keyword_only=True)
        return [*explicit[:count], *(part(name, default) for name, default in unbound), *named.values()]

    def _error(self, error: Callable[..., errors.GradientError], value: Any) -> errors.GradientError:
        """Returns an error that shows the structure of the result, and that of the arguments with their names."""
        arguments, backend = self.arguments, self.arguments.backend
        named = pytree.wrap(arguments.static.unflatten(arguments.labels()), backend.is_tensor, backend.children)
        expected = named[0] if isinstance(named, tuple) and len(named) == 1 else named
        return error(arguments.name, pytree.show(value), pytree.show(expected, str))

    def _misfit(self, value: Any) -> errors.GradientError:
        """Returns the error for a result that fits no structure: its count is wrong, or else its pytree."""
        name, labels = self.arguments.name, self.arguments.labels()
        if not pytree.is_leaf(value) and not _is_flat(value):
            return self._error(messages.wrong_structure, value)
        if pytree.is_leaf(value) and value is not None and not self.arguments.backend.is_tensor(value):
            came = errors.article(errors.type_name(value))
            return messages.not_a_gradient(name, came, f"({', '.join(labels)})", ", ".join(labels))
        count = len(value) if _is_flat(value) else 1
        return messages.wrong_count(name, count, [labels[place] for place in self.places], len(labels))


def check(arguments: Arguments, gradient: Any, spec: Spec, label: Callable[[], str]) -> Any:
    """Returns a gradient as a tensor that fits `spec`, or None if it is nothing; raises GradientError otherwise."""
    backend, name, (dtype, shape) = arguments.backend, arguments.name, spec
    if gradient is None or not is_differentiable(dtype):
        return None
    number = None
    if not backend.is_tensor(gradient):
        if not isinstance(gradient, (int, float, complex)):
            came = errors.article(errors.type_name(gradient))
            raise messages.not_a_gradient(name, came, describe(dtype, shape), label())
        if gradient == 0 and not isinstance(gradient, bool):
            return None
        # Which dtype a number gets differs from framework to framework.
        number = type(gradient).__name__
    gradient = backend.asarray(gradient)
    came, size = backend.dtype(gradient), backend.shape(gradient)
    if came == dtype and size == shape:
        return gradient
    shown, expected = describe(number or came, size), describe(dtype, shape)
    if came == "bool":
        raise messages.boolean_gradient(name, shown, expected, label())
    if came.startswith("complex") and not dtype.startswith("complex"):
        raise messages.wrong_kind(name, shown, expected, label())
    if not compatible(size, shape):
        raise messages.wrong_shape(name, shown, expected, label(), _broadcast_axes(size, shape))
    return gradient if came == dtype else backend.cast(gradient, dtype)


def check_variables(arguments: Arguments, result: Any, variables: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Splits the result of a rule with `variables` into the gradients of the arguments, and the checked others."""
    backend, due = arguments.backend, errors.count(len(variables), "gradient")
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise messages.wrong_variable_count(arguments.name, errors.article(errors.type_name(result)), due)
    gradients, others = result
    if not isinstance(others, (tuple, list)) or len(others) != len(variables):
        came = f"{len(others)} of them" if isinstance(others, (tuple, list)) else errors.type_name(others)
        raise messages.wrong_variable_count(arguments.name, came, due)
    specs = [(backend.dtype(variable), backend.shape(variable)) for variable in variables]
    labels = [functools.partial("variables[{}]".format, index) for index in range(len(variables))]
    return _Served(gradients), tuple(map(functools.partial(check, arguments), others, specs, labels))


def _broadcast_axes(came: tuple[int | None, ...] | None, expected: tuple[int | None, ...] | None) -> list[int]:
    """Returns the axes along which a tensor of the expected shape may have been broadcast to the shape that came."""
    if came is None or expected is None or len(came) < len(expected):
        return []
    added = len(came) - len(expected)
    aligned = (*[1] * added, *expected)
    if any(small not in (1, size) for size, small in zip(came, aligned, strict=True)):
        return []
    return [axis for axis, size in enumerate(came) if axis < added or (aligned[axis] == 1 and size != 1)]


def _is_nothing(value: Any) -> bool:
    """Whether `value` says that there is no gradient."""
    # The exact types: NumPy's float64 is a float, too, and a gradient.
    return value is None or (type(value) in (int, float) and value == 0)


def _is_flat(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether a value from `pytree.wrap` is a sequence of leaves."""
    return isinstance(value, (tuple, list)) and all(map(pytree.is_leaf, value))


def _align_all(specs: list[Any], value: Any) -> list[Any] | None:
    """Returns the leaves of `value`, a sequence with one part for each of `specs`; a single part may stand bare."""
    aligned = None
    if isinstance(value, (tuple, list)) and len(value) == len(specs):
        aligned = _align_each(specs, value)
    return align(specs[0], value) if aligned is None and len(specs) == 1 else aligned


def align(spec: Any, value: Any) -> list[Any] | None:
    """Returns the leaves of `value` in the order of `spec` (None for a leaf), or None if it has another structure.

    None or the number 0 may stand for a whole part; a list may stand for a tuple.
    """
    if spec is None or spec.is_leaf():
        return [value] if pytree.is_leaf(value) else None
    if _is_nothing(value):
        return [None] * spec.num_leaves
    if pytree.is_leaf(value):
        return None
    entries, children = pytree.flatten_one_level(value)
    if issubclass(spec.type, (tuple, list)):
        if not isinstance(value, (tuple, list)) or len(children) != spec.num_children:
            return None
    elif issubclass(spec.type, Mapping):
        if not isinstance(value, Mapping) or set(entries) != set(spec.entries()):
            return None
        by_key = dict(zip(entries, children, strict=True))
        children = [by_key[key] for key in spec.entries()]
    elif not pytree.is_like(value, spec):
        return None
    return _align_each(spec.children(), children)


def _align_each(specs: Sequence[Any], values: Sequence[Any]) -> list[Any] | None:
    """Returns the leaves of all `values`, each in the order of its spec, or None if one has another structure."""
    parts = [align(spec, value) for spec, value in zip(specs, values, strict=True)]
    return None if any([part is None for part in parts]) else [leaf for part in parts for leaf in part or ()]
