"""Nests: any structure of containers is laid flat once, and packed again, by optree.

optree knows tuple, list, dict, namedtuple and the like. What it does not know by itself, dataclasses and
types registered with the active framework's own tree utility, is put into a `_Node` that it does know.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy
import optree

_NAMESPACE = "keras_cg"

# Leaves that are no containers for certain; asking further would only cost time.
ATOMS = (type(None), bool, int, float, complex, str, bytes, type, numpy.generic, numpy.ndarray)

Children = Callable[[Any], tuple[list[Any], Callable[[list[Any]], Any]] | None]


class _Node:
    """A container that optree does not know, as one that it does."""

    def __init__(self, children: list[Any], rebuild: Callable[[list[Any]], Any], kind: type, entries: tuple[str, ...]):
        self.children = children
        self.rebuild = rebuild
        self.kind = kind
        self.entries = entries


class _Kind:
    """What distinguishes two nodes: the type they stand for. How to rebuild one rides along."""

    def __init__(self, node: _Node):
        self.rebuild = node.rebuild
        self.kind = node.kind
        self.entries = node.entries

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kind) and self.kind is other.kind

    def __hash__(self) -> int:
        return hash(self.kind)

    def __repr__(self) -> str:
        return self.kind.__qualname__


class _Entry(optree.PyTreeEntry):
    """A step into a node, as it is written: `.field` or `[0]`."""

    def codify(self, /, node: str = "") -> str:
        return f"{node}{self.entry}"


def _take_apart(node: Any) -> tuple[list[Any], _Kind, tuple[str, ...]]:
    """A node as optree wants it: its children, what else there is to it, and the steps into the children."""
    return node.children, _Kind(node), node.entries


def _put_together(kind: Any, children: Iterable[Any]) -> Any:
    """The reverse. A node again, and not the container: `_unwrap` makes that, when all of its children are there."""
    return _Node(list(children), kind.rebuild, kind.kind, kind.entries)


_node_type: Any = _Node  # optree types custom nodes as collections, which this need not be
optree.register_pytree_node(_node_type, _take_apart, _put_together, path_entry_type=_Entry, namespace=_NAMESPACE)


class Nest(NamedTuple):
    """A structure laid flat: its leaves, and what it takes to pack as many again."""

    leaves: list[Any]
    spec: Any
    wrapped: bool

    def pack(self, leaves: Sequence[Any]) -> Any:
        """The structure again, with other leaves."""
        value = optree.tree_unflatten(self.spec, leaves)
        return _unwrap(value) if self.wrapped else value

    def fill(self, places: Sequence[int], values: Sequence[Any]) -> Any:
        """The structure again, with `values` at `places`, which ascend, and its own leaves elsewhere."""
        if len(places) == len(self.leaves):
            return self.pack(values)
        leaves = list(self.leaves)
        for place, value in zip(places, values, strict=True):
            leaves[place] = value
        return self.pack(leaves)

    def is_in_order(self, places: Sequence[int]) -> bool:
        """Whether the leaves at `places`, which ascend, come in the order in which the user wrote them down.

        They come by sorted keys. Packed again, a dict has its keys in the order in which they were inserted.
        """
        # Objects and no numbers, for torch.compile (2.13) cannot make a dict of constants of what optree knows.
        marks = [_Mark(place) for place in range(len(self.leaves))]
        order = [mark.place for mark in _as_written(optree.tree_unflatten(self.spec, marks))]
        ranks = [place for place in order if place in places]
        return ranks == sorted(ranks)

    def paths(self) -> list[str]:
        """Where each leaf stands, as an index expression: `["w"][0]`."""
        return [accessor.codify("") for accessor in optree.treespec_accessors(self.spec)]


class Leaf(Nest):
    """A single leaf as a nest: most outputs are one."""

    # Not kept, but made when somebody asks: most calls need none, and torch.compile (2.13) cannot use one of elsewhere.
    @property
    def spec(self) -> Any:
        """The structure, as optree writes it."""
        return optree.treespec_leaf(none_is_leaf=True, namespace=_NAMESPACE)

    def pack(self, leaves: Sequence[Any]) -> Any:
        """The only one of `leaves`."""
        return leaves[0]

    def is_in_order(self, places: Sequence[int]) -> bool:
        """There is only one order."""
        return True


class Row(Nest):
    """A tuple of leaves as a nest: the arguments of most calls are one."""

    @property
    def spec(self) -> Any:
        """The structure, as optree writes it."""
        return optree.tree_flatten(self.pack(self.leaves), none_is_leaf=True, namespace=_NAMESPACE)[1]

    def pack(self, leaves: Sequence[Any]) -> Any:
        """`leaves` as a tuple."""
        return tuple(leaves)

    def is_in_order(self, places: Sequence[int]) -> bool:
        """A tuple has no keys."""
        return True


def flatten(value: Any, is_tensor: Callable[[Any], bool], children: Children) -> Nest:
    """Lays `value` flat; None and everything else that is no container is a leaf.

    optree lays flat the containers that it knows. If there are others among the leaves, a node is put in the place of
    each, and all is laid flat once more. A single tensor, and a tuple of tensors and atoms, need no optree.

    Args:
        value: Any nest.
        is_tensor: Says which leaves are tensors, and so no containers.
        children: Opens the containers of the active framework's own tree utility.
    """
    if type(value) is tuple and all([is_tensor(part) or isinstance(part, ATOMS) for part in value]):
        return Row(list(value), None, False)
    if is_tensor(value):
        return Leaf([value], None, False)
    leaves, spec = optree.tree_flatten(value, none_is_leaf=True, namespace=_NAMESPACE)
    nodes = [leaf if is_tensor(leaf) else _wrap(leaf, is_tensor, children) for leaf in leaves]
    if all(map(operator.is_, nodes, leaves)):
        return Nest(leaves, spec, False)
    value = optree.tree_unflatten(spec, nodes)
    leaves, spec = optree.tree_flatten(value, none_is_leaf=True, namespace=_NAMESPACE)
    return Nest(leaves, spec, True)


def lay(value: Any) -> tuple[list[Any], Any]:
    """The leaves and the structure of a nest of the containers that optree knows; all others are leaves."""
    leaves, spec = optree.tree_flatten(value, none_is_leaf=True, namespace=_NAMESPACE)
    return leaves, spec


def has_plain_keys(spec: Any) -> bool:
    """Whether the keys in a structure are strings and numbers, and not objects that it would keep alive."""
    return all(isinstance(entry, (str, int)) for path in optree.treespec_paths(spec) for entry in path)


def wrap(value: Any, is_tensor: Callable[[Any], bool], children: Children) -> Any:
    """`value` with a node in the place of every container that optree does not know."""
    laid = flatten(value, is_tensor, children)
    return optree.tree_unflatten(laid.spec, laid.leaves)


def leaves(value: Any) -> list[Any]:
    """The leaves of a nest of Python's own containers."""
    return optree.tree_leaves(value, none_is_leaf=True, namespace=_NAMESPACE)


def is_leaf(wrapped: Any) -> bool:
    """Whether something that `wrap` gave is no container."""
    return optree.tree_is_leaf(wrapped, none_is_leaf=True, namespace=_NAMESPACE)


def open(wrapped: Any) -> tuple[Sequence[Any], list[Any]]:
    """The keys and the children, one level deep, of a container that `wrap` gave."""
    level = optree.tree_flatten_one_level(wrapped, none_is_leaf=True, namespace=_NAMESPACE)
    return level.entries, list(level.children)


def show(wrapped: Any) -> str:
    """The structure of something that `wrap` gave, for a message."""
    if is_leaf(wrapped):
        return "*"
    entries, children = open(wrapped)
    if isinstance(wrapped, Mapping):
        return "{" + ", ".join(f"{key!r}: {show(child)}" for key, child in zip(entries, children, strict=True)) + "}"
    inside = ", ".join(show(child) for child in children)
    return f"[{inside}]" if isinstance(wrapped, list) else f"({inside})"


class _Mark:
    """A leaf that knows its place."""

    def __init__(self, place: int):
        self.place = place


def _as_written(wrapped: Any) -> list[Any]:
    """The leaves of something that `wrap` gave, those of a dict in the order of insertion."""
    if is_leaf(wrapped):
        return [wrapped]
    children = wrapped.values() if isinstance(wrapped, Mapping) else open(wrapped)[1]
    return [leaf for child in children for leaf in _as_written(child)]


def _wrap(leaf: Any, is_tensor: Callable[[Any], bool], children: Children) -> Any:
    """What optree takes for a leaf, as a node if it is a container all the same; so are its parts, however deep.

    The framework's own tree utility is asked first, then whether it is a dataclass.
    """
    if isinstance(leaf, ATOMS) or is_tensor(leaf):
        return leaf
    opened = children(leaf)
    if opened is not None:
        values, rebuild = opened
        plain = rebuild(values)
        if not is_leaf(plain):
            # One of Python's own containers in disguise: a box of autograd, a list that TensorFlow tracks.
            return wrap(plain, is_tensor, children)
        entries = _steps(leaf, values)
    elif dataclasses.is_dataclass(leaf):
        values, rebuild = _fields(leaf)
        entries = tuple(f".{field.name}" for field in dataclasses.fields(leaf))
    else:
        return leaf

    parts = [wrap(value, is_tensor, children) for value in values]
    return _Node(parts, rebuild, type(leaf), entries)


def _steps(container: Any, values: Sequence[Any]) -> tuple[str, ...]:
    """The steps into the parts of a container: the name of the field, if it is a dataclass, or a number."""
    fields = dataclasses.fields(container) if dataclasses.is_dataclass(container) else ()
    named = [(field.name, getattr(container, field.name, None)) for field in fields]
    steps = []
    for index, value in enumerate(values):
        names = [name for name, part in named if part is value]
        steps.append(f".{names[0]}" if len(names) == 1 else f"[{index}]")
    return tuple(steps)


def _unwrap(value: Any) -> Any:
    """A structure with every node made the container that it stands for, from the inside out."""

    def rebuild(node: Any) -> Any:
        if isinstance(node, _Node):
            return node.rebuild([_unwrap(child) for child in node.children])
        return node

    return optree.tree_map(
        rebuild,
        value,
        is_leaf=lambda node: isinstance(node, _Node),
        none_is_leaf=True,
        namespace=_NAMESPACE,
    )


def _fields(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The fields of a dataclass, and the same object with others.

    The copy is made without its constructor, which may convert or refuse what a framework passes through
    while it traces.
    """
    names = [field.name for field in dataclasses.fields(value)]
    kind = type(value)
    # Not the fields: whoever keeps the structure must not keep the leaves.
    others = {name: part for name, part in getattr(value, "__dict__", {}).items() if name not in names}

    def rebuild(children: list[Any]) -> Any:
        made = object.__new__(kind)
        for name, child in {**others, **dict(zip(names, children, strict=True))}.items():
            object.__setattr__(made, name, child)
        return made

    return [getattr(value, name) for name in names], rebuild
