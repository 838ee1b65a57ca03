"""Pytrees: a nest of containers is flattened once, partitioned into tensors and static leaves, and built again.

optree knows tuples, lists, dicts, namedtuples and the like. Dataclasses, and the types that are registered with the
active framework's own tree utility, are put into a `_Node`, which optree knows as well.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy
import optree

from keras_cg import backends, config, errors, keras_interop
from keras_cg.engine.contract import Backend

_NAMESPACE = "keras_cg"

# Leaves that are no containers for certain. Asking further would only cost time.
ATOMS = (type(None), bool, int, float, complex, str, bytes, type, numpy.generic, numpy.ndarray)

# Structures that need no optree: a single leaf, and a tuple of leaves.
LEAF, ROW = "leaf", "row"

Children = Callable[[Any], tuple[list[Any], Callable[[list[Any]], Any]] | None]

# Says where a leaf stands, for a message.
Label = Callable[["Tree", int], str]


class Tree:
    """A flattened value; after `partition`, its static part.

    Attributes:
        leaves: The leaves. `partition` puts None in the place of each tensor.
        structure: `LEAF`, `ROW`, or what optree calls a treespec.
        places: Where the tensors are among the leaves, in ascending order; set by `partition`.
        is_wrapped: Whether some containers are wrapped in a `_Node`.
    """

    def __init__(self, leaves: list[Any], structure: Any, is_wrapped: bool = False, places: Sequence[int] = ()):
        self.leaves, self.structure, self.is_wrapped, self.places = leaves, structure, is_wrapped, places

    @property
    def treespec(self) -> Any:
        """The structure as optree describes it.

        It is made when it is needed: most calls need none, and torch.compile (2.13) cannot use one from elsewhere.
        """
        if self.structure is LEAF:
            return optree.treespec_leaf(none_is_leaf=True, namespace=_NAMESPACE)
        if self.structure is ROW:
            leaves: Any = tuple(self.leaves)
            return optree.tree_structure(leaves, none_is_leaf=True, namespace=_NAMESPACE)
        return self.structure

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """A value of the same structure with other leaves."""
        if self.structure is LEAF:
            return leaves[0]
        if self.structure is ROW:
            return tuple(leaves)
        value = optree.tree_unflatten(self.structure, leaves)
        return _unwrap(value) if self.is_wrapped else value

    def fill(self, places: Sequence[int], values: Sequence[Any]) -> Any:
        """The value again, with `values` at `places`, which ascend, and its own leaves elsewhere."""
        if len(places) == len(self.leaves):
            return self.unflatten(values)
        leaves = list(self.leaves)
        for place, value in zip(places, values, strict=True):
            leaves[place] = value
        return self.unflatten(leaves)

    def combine(self, tensors: Sequence[Any]) -> Any:
        """The value again, with other tensors."""
        return self.fill(self.places, tensors)

    def blank(self, tensors: Sequence[Any]) -> Any:
        """The value with other tensors, and None in the place of every static leaf."""
        return Tree([None] * len(self.leaves), self.structure, self.is_wrapped).fill(self.places, tensors)

    def is_in_order(self, places: Sequence[int]) -> bool:
        """Whether the leaves at `places`, which ascend, come in the order in which the user wrote them down.

        optree lists the leaves of a dict by sorted keys. Built again, a dict has its keys in the order in which they
        were inserted.
        """
        if self.structure is LEAF or self.structure is ROW:
            return True
        # Objects and not numbers: torch.compile (2.13) cannot make a dict of constants from what optree knows.
        marks = [_Mark(place) for place in range(len(self.leaves))]
        order = [mark.place for mark in _as_written(optree.tree_unflatten(self.structure, marks))]
        ranks = [place for place in order if place in places]
        return ranks == sorted(ranks)

    def paths(self) -> list[str]:
        """Where each leaf stands, as an index expression: `["w"][0]`."""
        return [accessor.codify("") for accessor in optree.treespec_accessors(self.treespec)]


# The static part of a single tensor. It is shared, because nothing in it changes.
SINGLE = Tree([None], LEAF, False, (0,))


def flatten(value: Any, is_tensor: Callable[[Any], bool], children: Children) -> Tree:
    """Flattens any nest; None and everything else that is no container is a leaf.

    optree flattens the containers that it knows. If there are others among the leaves, a node is put in the place of
    each, and all is flattened once more. A single tensor, and a tuple of tensors and atoms, need no optree.

    Args:
        value: Any nest.
        is_tensor: Says which leaves are tensors, and so no containers.
        children: Opens the containers of the active framework's own tree utility.
    """
    if type(value) is tuple and all([is_tensor(part) or isinstance(part, ATOMS) for part in value]):
        return Tree(list(value), ROW)
    if is_tensor(value):
        return Tree([value], LEAF)
    leaves, treespec = optree.tree_flatten(value, none_is_leaf=True, namespace=_NAMESPACE)
    nodes = [leaf if is_tensor(leaf) else _wrap(leaf, is_tensor, children) for leaf in leaves]
    if all(map(operator.is_, nodes, leaves)):
        return Tree(leaves, treespec)
    value = optree.tree_unflatten(treespec, nodes)
    leaves, treespec = optree.tree_flatten(value, none_is_leaf=True, namespace=_NAMESPACE)
    return Tree(leaves, treespec, True)


# --- tensors and static leaves ---------------------------------------------------------------------------------------


def partition(backend: Backend, where: str, tree: Tree, label: Label) -> list[Any]:
    """Takes the tensors out of a flattened value, as the backend's own, and leaves the static part behind.

    Keras variables are unwrapped.

    Raises:
        TypeError: A leaf is a tensor of another framework, or a placeholder of Keras.
    """
    tensors, places, leaves = [], [], tree.leaves
    is_tensor, variables = backend.is_tensor, keras_interop.variables()
    for place, given in enumerate(leaves):
        leaf = given
        if not is_tensor(given) or isinstance(given, variables):
            if isinstance(given, (type(None), bool, int, float, str, FunctionType)):
                continue
            leaf = leaves[place] = keras_interop.unwrap(given)
            if leaf is given or not is_tensor(leaf) or not isinstance(leaf, backend.tensors):
                _refuse_stranger(where, leaf, given, tree, place, label)
                continue
        places.append(place)
        tensors.append(backend.asarray(leaf))
        leaves[place] = None
    tree.places = places
    return tensors


def _refuse_stranger(where: str, leaf: Any, given: Any, tree: Tree, place: int, label: Label) -> None:
    """Raises if a leaf is a tensor that the active backend does not take as its own."""
    # To torch.compile (2.13) a scalar of NumPy is an array without dimensions.
    is_scalar = isinstance(leaf, numpy.generic) or (isinstance(leaf, numpy.ndarray) and leaf.ndim == 0)
    if isinstance(leaf, complex) or is_scalar:
        return
    if keras_interop.is_symbolic([leaf]):
        raise errors.symbolic_tensor(where, label(tree, place))
    owner = backends.owner(type(leaf))
    if owner is None or not backends.load(owner, owner).is_tensor(leaf):
        return
    keras = keras_interop.choice()
    if keras and keras[0] == owner:
        raise errors.keras_elsewhere(where, label(tree, place), given, *config.resolve(), *keras)
    raise errors.foreign_tensor(where, label(tree, place), given, *config.resolve(), owner)


def describe(dtype: str, shape: tuple[int | None, ...] | None) -> str:
    """A tensor in a message: `float32[3, ?]`."""
    if shape is None:
        return f"{dtype}[...]"
    return f"{dtype}[{', '.join('?' if size is None else str(size) for size in shape)}]"


def compatible(came: tuple[int | None, ...] | None, expected: tuple[int | None, ...] | None) -> bool:
    """Whether two shapes are equal, as far as they are known."""
    if came is None or expected is None:
        return True
    if len(came) != len(expected):
        return False
    return all(a is None or b is None or a == b for a, b in zip(came, expected, strict=True))


# --- containers one by one -------------------------------------------------------------------------------------------


def wrap(value: Any, is_tensor: Callable[[Any], bool], children: Children) -> Any:
    """`value` with a node in the place of every container that optree does not know."""
    tree = flatten(value, is_tensor, children)
    return optree.tree_unflatten(tree.treespec, tree.leaves)


def leaves(value: Any) -> list[Any]:
    """The leaves of a nest of Python's own containers."""
    return optree.tree_leaves(value, none_is_leaf=True, namespace=_NAMESPACE)


def is_leaf(wrapped: Any) -> bool:
    """Whether something that `wrap` gave is no container."""
    return optree.tree_is_leaf(wrapped, none_is_leaf=True, namespace=_NAMESPACE)


def flatten_one_level(wrapped: Any) -> tuple[Sequence[Any], list[Any]]:
    """The keys and the children of a container that `wrap` gave."""
    level = optree.tree_flatten_one_level(wrapped, none_is_leaf=True, namespace=_NAMESPACE)
    return level.entries, list(level.children)


def show(wrapped: Any) -> str:
    """The structure of something that `wrap` gave, for a message."""
    if is_leaf(wrapped):
        return "*"
    entries, children = flatten_one_level(wrapped)
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
    children = wrapped.values() if isinstance(wrapped, Mapping) else flatten_one_level(wrapped)[1]
    return [leaf for child in children for leaf in _as_written(child)]


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


def _flatten_node(node: Any) -> tuple[list[Any], _Kind, tuple[str, ...]]:
    """A node as optree wants it: its children, what else there is to it, and the steps into the children."""
    return node.children, _Kind(node), node.entries


def _unflatten_node(kind: Any, children: Iterable[Any]) -> Any:
    """A node again, and not the container: `_unwrap` makes that, when all of its children are there."""
    return _Node(list(children), kind.rebuild, kind.kind, kind.entries)


_node_type: Any = _Node  # optree types custom nodes as collections, which this need not be
optree.register_pytree_node(_node_type, _flatten_node, _unflatten_node, path_entry_type=_Entry, namespace=_NAMESPACE)


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
        return node.rebuild([_unwrap(child) for child in node.children]) if isinstance(node, _Node) else node

    def is_node(value: Any) -> bool:
        return isinstance(value, _Node)

    return optree.tree_map(rebuild, value, is_leaf=is_node, none_is_leaf=True, namespace=_NAMESPACE)


def _fields(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The fields of a dataclass, and how to make a copy with others.

    The copy is made without its constructor, which may convert or refuse what a framework passes through while it
    traces.
    """
    names = [field.name for field in dataclasses.fields(value)]
    kind = type(value)
    # Without the fields: a structure that is kept must not keep the leaves.
    others = {name: part for name, part in getattr(value, "__dict__", {}).items() if name not in names}

    def rebuild(children: list[Any]) -> Any:
        copy = object.__new__(kind)
        for name, child in {**others, **dict(zip(names, children, strict=True))}.items():
            object.__setattr__(copy, name, child)
        return copy

    return [getattr(value, name) for name in names], rebuild
