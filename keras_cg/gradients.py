"""On the way out: what a rule returned, read in any of the accepted structures, and checked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from keras_cg import errors, pytree, signature
from keras_cg.arguments import Arguments
from keras_cg.engine.precision import is_differentiable
from keras_cg.pytree import ROW, compatible, describe, flatten

# What the gradient of a tensor must look like: its dtype and its shape.
Spec = tuple[str, tuple[int | None, ...] | None]

# One argument of the call: its structure, and for each of its leaves whether it is a tensor.
Part = tuple[Any, list[bool]]


class Reading(NamedTuple):
    """What a result may mean: a gradient for each tensor argument, and what then stands at the other leaves.

    `is_flat` says that it was read as a flat sequence, which has an order and no keys.
    """

    gradients: Sequence[Any]
    others: Sequence[Any]
    is_flat: bool


def collect(
    arguments: Arguments, specs: Sequence[Spec], result: Any, needs_grad: Sequence[bool] | None
) -> tuple[Any, ...]:
    """One checked gradient for each tensor argument, from whatever structure the rule chose.

    Args:
        arguments: The arguments of the call.
        specs: What the gradient of each tensor among them must look like.
        result: What the rule returned.
        needs_grad: Which gradients to look at; None for all.

    Raises:
        GradientError: The result is not the gradient of the arguments.
    """
    backend = arguments.backend
    if len(specs) == 1 and (needs_grad is None or needs_grad[0]) and backend.is_plain(result):
        dtype, shape = specs[0]
        if backend.dtype(result) == dtype and backend.shape(result) == shape and is_differentiable(dtype):
            return (result,)
    gradients, places = _Reader(arguments, specs).pick(result), arguments.static.places
    checked: list[Any] = []
    for index, (gradient, spec) in enumerate(zip(gradients, specs, strict=True)):
        if needs_grad is not None and not needs_grad[index]:
            checked.append(None)
            continue
        checked.append(check(arguments, gradient, spec, functools.partial(_label, arguments, places[index])))
    return tuple(checked)


def _label(arguments: Arguments, place: int) -> str:
    """What the user would call the leaf at a place."""
    return arguments.labels()[place]


class _Reader:
    """Reads what a rule returned as one gradient for each tensor argument."""

    def __init__(self, arguments: Arguments, specs: Sequence[Spec]):
        self.arguments, self.specs = arguments, specs

    def pick(self, result: Any) -> Sequence[Any]:
        """What the rule returned for each tensor argument, in order.

        The usual results are read at once: a bare tensor, a tensor for each argument, a nest like the arguments with
        something at every leaf. Of any other all readings are tried, and one is chosen.
        """
        backend, static = self.arguments.backend, self.arguments.static
        places = static.places
        if len(places) == 1 and backend.is_tensor(result):
            return [result]
        is_row = static.structure is ROW and type(result) in (tuple, list) and len(result) == len(places)
        if is_row and all(map(backend.is_tensor, result)):
            return result  # type: ignore[no-any-return]
        # With something at every leaf, a nest like the arguments is nothing else.
        value = tuple(result) if type(result) in (tuple, list) else (result,)
        whole = flatten(value, backend.is_tensor, backend.children)
        if whole.treespec == static.treespec and not any(map(_is_nothing, whole.leaves)):
            return [whole.leaves[place] for place in places]
        value = pytree.wrap(result, backend.is_tensor, backend.children)
        return self._choose(value, list(self._readings(value)))

    def _choose(self, value: Any, readings: list[Reading]) -> Sequence[Any]:
        """The gradients of the one reading that a result allows.

        A reading that gives a static argument a gradient is none, if there is another. None may stand for a whole nest
        as for a leaf, so that one result can still mean two things: then both must come to the same.
        """
        treespec = self.arguments.static.treespec
        name, expected = self.arguments.name, f"({', '.join(self.arguments.labels())})"
        sorted_ones = [reading for reading in readings if not reading.is_flat or self._is_in_order(reading)]
        if not sorted_ones:
            raise errors.unsorted_result(name, pytree.show(value), expected) if readings else self._misfit(value)
        clean = [reading for reading in sorted_ones if self._is_clean(reading)] or sorted_ones
        has_containers = treespec.num_nodes > treespec.num_leaves + 1
        is_blank = has_containers and any(map(_is_nothing, pytree.leaves(value)))
        chosen = clean[0].gradients
        if is_blank and not all(self._is_same(chosen, other.gradients) for other in clean):
            raise errors.ambiguous(name, pytree.show(value), expected)
        return chosen

    def _is_clean(self, reading: Reading) -> bool:
        """Whether a reading gives gradients where they belong, and nothing where they do not."""
        is_tensor = self.arguments.backend.is_tensor
        return all(map(_is_nothing, reading.others)) and all(
            gradient is None or isinstance(gradient, (int, float, complex)) or is_tensor(gradient)
            for gradient in reading.gradients
        )

    def _is_in_order(self, reading: Reading) -> bool:
        """Whether the leaves that a flat result runs over come as the user wrote them down."""
        static = self.arguments.static
        return static.is_in_order(range(len(static.leaves)) if reading.others else static.places)

    def _is_same(self, one: Sequence[Any], other: Sequence[Any]) -> bool:
        """Whether two readings of a result give every argument the same gradient."""
        return all(
            a is b or (_is_nothing(a) and _is_nothing(b)) or not is_differentiable(dtype)
            for a, b, (dtype, _) in zip(one, other, self.specs, strict=True)
        )

    def _readings(self, value: Any) -> Iterator[Reading]:
        """Every structure that a result may be."""
        places = self.arguments.static.places
        count, tensors = len(self.arguments.static.leaves), set(places)
        others = [place for place in range(count) if place not in tensors]
        if _is_flat(value):
            if len(value) == len(places):
                yield Reading(value, (), True)
            if len(value) == count:
                yield Reading([value[place] for place in places], [value[place] for place in others], True)
        elif pytree.is_leaf(value) and len(places) == 1:
            yield Reading([value], (), False)
        for parts in self._forms():
            leaves = _align_all([spec for spec, _ in parts], value)
            if leaves is not None:
                marks = [mark for _, marks in parts for mark in marks]
                pairs = list(zip(leaves, marks, strict=True))
                yield Reading(
                    [leaf for leaf, mark in pairs if mark],
                    [leaf for leaf, mark in pairs if not mark],
                    all(spec is None for spec, _ in parts),
                )

    def _forms(self) -> Iterator[list[Part]]:
        """The structures a rule may return.

        The arguments of the call; those of them with tensors; all parameters, with those left at their defaults; the
        leaves of all these in a row.
        """
        static = self.arguments.static
        tensors = set(static.places)
        explicit: list[Part] = []
        start = 0
        for spec in static.treespec.children():
            leaves = range(start, start + spec.num_leaves)
            explicit.append((spec, [leaf in tensors for leaf in leaves]))
            start = leaves.stop
        yield explicit
        yield [(spec, marks) for spec, marks in explicit if any(marks)]
        complete = self._with_every_default(explicit)
        yield complete
        yield [(None, [mark]) for _, marks in complete for mark in marks]

    def _with_every_default(self, explicit: list[Part]) -> list[Part]:
        """The arguments of the call, those left at their defaults put in where the signature has them."""
        arguments, count = self.arguments, self.arguments.positionals
        named = dict(zip(arguments.keywords, explicit[count:], strict=True))

        def take(name: str, default: Any) -> Part:
            if name in named:
                return named.pop(name)
            spec = flatten(default, arguments.backend.is_tensor, arguments.backend.children).treespec
            return spec, [False] * spec.num_leaves

        positional = signature.left_positional(arguments.user, count, named)
        keyword_only = signature.left_keyword_only(arguments.user, named)
        own = [*explicit[:count], *(take(name, default) for name, default in positional)]
        own += [take(name, default) for name, default in keyword_only]
        return [*own, *named.values()]

    def _misfit(self, value: Any) -> errors.GradientError:
        """The error for a result that fits no structure: its count is wrong, or else its nest."""
        name, labels = self.arguments.name, self.arguments.labels()
        expected = f"({', '.join(labels)})"
        if pytree.is_leaf(value):
            if value is not None and not self.arguments.backend.is_tensor(value):
                return errors.not_a_gradient(name, ", ".join(labels), value, expected)
            came = 1
        elif _is_flat(value):
            came = len(value)
        else:
            return errors.wrong_structure(name, pytree.show(value), expected)
        return errors.wrong_count(name, came, [labels[place] for place in self.arguments.static.places], len(labels))


def check(arguments: Arguments, gradient: Any, spec: Spec, label: Callable[[], str]) -> Any:
    """A gradient as a tensor like the one it belongs to, or None.

    Raises:
        GradientError: It is no tensor, boolean, complex where real is due, or of another shape.
    """
    backend, name = arguments.backend, arguments.name
    dtype, shape = spec
    if gradient is None or not is_differentiable(dtype):
        return None
    number = None
    if not backend.is_tensor(gradient):
        if not isinstance(gradient, (int, float, complex)):
            raise errors.not_a_gradient(name, label(), gradient, describe(dtype, shape))
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
        raise errors.boolean_gradient(name, label(), shown, expected)
    if came.startswith("complex") and not dtype.startswith("complex"):
        raise errors.wrong_kind(name, label(), shown, expected)
    if not compatible(size, shape):
        raise errors.wrong_shape(name, label(), shown, expected, _broadcast_axes(size, shape))
    return gradient if came == dtype else backend.cast(gradient, dtype)


def check_variables(arguments: Arguments, result: Any, variables: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """The two parts of what a rule with `variables` returned: those of the arguments, and the checked others."""
    backend = arguments.backend
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        came = errors.article(errors.type_name(result))
        raise errors.wrong_variable_count(arguments.name, came, len(variables))
    gradients, others = result
    if not isinstance(others, (tuple, list)) or len(others) != len(variables):
        came = f"{len(others)} of them" if isinstance(others, (tuple, list)) else errors.type_name(others)
        raise errors.wrong_variable_count(arguments.name, came, len(variables))
    return gradients, tuple(
        check(
            arguments,
            other,
            (backend.dtype(variable), backend.shape(variable)),
            functools.partial("variables[{}]".format, index),
        )
        for index, (other, variable) in enumerate(zip(others, variables, strict=True))
    )


def _broadcast_axes(came: tuple[int | None, ...] | None, expected: tuple[int | None, ...] | None) -> list[int]:
    """The axes of the shape `came` along which a tensor of the other shape may have been broadcast to it."""
    if came is None or expected is None or len(came) < len(expected):
        return []
    added = len(came) - len(expected)
    aligned = (*[1] * added, *expected)
    if any(small not in (1, size) for size, small in zip(came, aligned, strict=True)):
        return []
    return [axis for axis, size in enumerate(came) if axis < added or (aligned[axis] == 1 and size != 1)]


def _is_nothing(value: Any) -> bool:
    """Whether a rule says by `value` that there is no gradient."""
    # The exact types: a number of NumPy is a float, too, and a gradient.
    return value is None or (type(value) in (int, float) and value == 0)


def _is_flat(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether something that `pytree.wrap` gave is a sequence of leaves."""
    return isinstance(value, (tuple, list)) and all(map(pytree.is_leaf, value))


def _align_all(specs: list[Any], value: Any) -> list[Any] | None:
    """The leaves of `value`, a sequence with one part for each of `specs`; a single part may stand bare."""
    if isinstance(value, (tuple, list)) and len(value) == len(specs):
        aligned = _align_each(specs, value)
        if aligned is not None:
            return aligned
    return align(specs[0], value) if len(specs) == 1 else None


def align(spec: Any, value: Any) -> list[Any] | None:
    """The leaves of `value` in the order of `spec`, or None if it is another structure.

    A `spec` of None is a leaf. None or the number 0 may stand for a whole part; a list may stand for a tuple.
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
    elif type(value) is not spec.type or list(entries) != list(spec.entries()):
        return None
    return _align_each(spec.children(), children)


def _align_each(specs: Sequence[Any], values: Sequence[Any]) -> list[Any] | None:
    """The leaves of all `values`, each in the order of its spec, or None if one is another structure."""
    leaves: list[Any] = []
    for spec, value in zip(specs, values, strict=True):
        part = align(spec, value)
        if part is None:
            return None
        leaves += part
    return leaves
