"""Reads a nested value as another: the result of a rule as the gradients of its arguments, tangents as the output.

A result may be one gradient for each tensor, a pytree like the arguments, or a flat list over all leaves. Where it may
be several of these, `Reader` tries all readings, and takes the one that is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from keras_cg import errors
from keras_cg.engine.contract import Backend
from keras_cg.engine.precision import is_differentiable, is_key
from keras_cg.frontend import messages, signature
from keras_cg.frontend.arguments import Arguments
from keras_cg.frontend.containers import flatten_one_level, is_leaf, is_like, show, treespec_of, wrap
from keras_cg.frontend.pytree import flatten
from keras_cg.frontend.tree import Tree

# One argument: its treespec, or None for a leaf in a flat list; and for each of its leaves whether it is a tensor.
Part = tuple[Any, list[bool]]


class Reading(NamedTuple):
    """One meaning of a result: a gradient for each tensor, what stands at static leaves, and whether it has no keys."""

    gradients: list[Any]
    others: list[Any]
    is_flat: bool


class Reader:
    """Reads the result of a rule as one gradient for each tensor argument. Keys of `jax.random` are static leaves."""

    def __init__(self, arguments: Arguments, specs: Sequence[tuple[str, Any]]):
        self.arguments, self.static = arguments, arguments.static
        pairs = [(place, spec) for place, spec in zip(self.static.places, specs, strict=True) if not is_key(spec[0])]
        self.places, self.specs = [place for place, _ in pairs], [spec for _, spec in pairs]

    def pick(self, result: Any) -> Sequence[Any]:
        """Returns what the rule returned for each tensor argument, in order."""
        backend, static = self.arguments.backend, self.static
        if len(self.places) == 1 and backend.is_tensor(result):
            return self._with_keys([result])
        # With something at every leaf, a pytree like the arguments is nothing else.
        value = tuple(result) if type(result) in (tuple, list) else (result,)
        whole = flatten(value, backend)
        if treespec_of(whole) == treespec_of(static) and not any(map(_is_nothing, whole.leaves)):
            return [whole.leaves[place] for place in static.places]
        value = wrap(result, backend)
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
        children = treespec_of(self.static).children()
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
            spec = treespec_of(flatten(default, arguments.backend))
            return spec, [False] * spec.num_leaves

        unbound = signature.unbound(arguments.user, count, named, with_keyword_only=True)
        return [*explicit[:count], *(part(name, default) for name, default in unbound), *named.values()]

    def _error(self, error: Callable[..., errors.GradientError], value: Any) -> errors.GradientError:
        """Returns an error that shows the structure of the result, and that of the arguments with their names."""
        arguments, backend = self.arguments, self.arguments.backend
        named = wrap(arguments.static.unflatten(arguments.labels()), backend)
        expected = named[0] if isinstance(named, tuple) and len(named) == 1 else named
        return error(arguments.name, show(value), show(expected, str))

    def _misfit(self, value: Any) -> errors.GradientError:
        """Returns the error for a result that fits no structure: its count is wrong, or else its pytree."""
        name, labels = self.arguments.name, self.arguments.labels()
        if not is_leaf(value) and not _is_flat(value):
            return self._error(messages.wrong_structure, value)
        if is_leaf(value) and value is not None and not self.arguments.backend.is_tensor(value):
            came = errors.article(errors.type_name(value))
            return messages.not_a_gradient(name, came, f"({', '.join(labels)})", ", ".join(labels))
        count = len(value) if _is_flat(value) else 1
        return messages.wrong_count(name, count, [labels[place] for place in self.places], len(labels))


def _is_nothing(value: Any) -> bool:
    """Whether `value` says that there is no gradient."""
    # The exact types: NumPy's float64 is a float, too, and a gradient.
    return value is None or (type(value) in (int, float) and value == 0)


def _is_flat(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether a value from `wrap` is a sequence of leaves."""
    return isinstance(value, (tuple, list)) and all(map(is_leaf, value))


def _align_all(specs: list[Any], value: Any) -> list[Any] | None:
    """Returns the leaves of `value`, a sequence with one part for each of `specs`; a single part may stand bare."""
    aligned = None
    if isinstance(value, (tuple, list)) and len(value) == len(specs):
        aligned = _align_each(specs, value)
    return _align(specs[0], value) if aligned is None and len(specs) == 1 else aligned


def aligned(value: Any, tree: Tree, backend: Backend, misfit: Callable[[str, str], Exception]) -> list[Any]:
    """Returns the leaves of `value` in the order of those of `tree`; raises `misfit` if it has another structure."""
    wrapped = wrap(value, backend)
    leaves = _align(treespec_of(tree), wrapped)
    if leaves is None:
        blank = wrap(tree.unflatten([None] * len(tree.leaves)), backend)
        raise misfit(show(wrapped), show(blank))
    return leaves


def _align(spec: Any, value: Any) -> list[Any] | None:
    """Returns the leaves of `value` in the order of `spec` (None for a leaf), or None if it has another structure.

    None or the number 0 may stand for a whole part; a list may stand for a tuple.
    """
    if spec is None or spec.is_leaf():
        return [value] if is_leaf(value) else None
    if _is_nothing(value):
        return [None] * spec.num_leaves
    if is_leaf(value):
        return None
    entries, children = flatten_one_level(value)
    if issubclass(spec.type, (tuple, list)):
        if not isinstance(value, (tuple, list)) or len(children) != spec.num_children:
            return None
    elif issubclass(spec.type, Mapping):
        if not isinstance(value, Mapping) or set(entries) != set(spec.entries()):
            return None
        by_key = dict(zip(entries, children, strict=True))
        children = [by_key[key] for key in spec.entries()]
    elif not is_like(value, spec):
        return None
    return _align_each(spec.children(), children)


def _align_each(specs: Sequence[Any], values: Sequence[Any]) -> list[Any] | None:
    """Returns the leaves of all `values`, each in the order of its spec, or None if one has another structure."""
    parts = [_align(spec, value) for spec, value in zip(specs, values, strict=True)]
    return None if any([part is None for part in parts]) else [leaf for part in parts for leaf in part or ()]
