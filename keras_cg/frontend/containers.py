"""Containers, which optree opens: a nested value, one level of it, and its structure for a message.

optree opens tuples, lists, dicts, namedtuples and the like. It does not open dataclasses, nor the types that are
registered with the active framework's own tree utility: these are wrapped in a `_Node`, which optree opens.

This is a file of its own because `import keras_cg` would take nearly twice as long with optree, which is imported with
the first value that has such a container in it.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import optree

from keras_cg.engine.contract import LEAVES, Backend
from keras_cg.frontend.tree import Tree

IsTensor = Callable[[Any], bool]

# How optree is asked everywhere: None is a leaf, and `_Node` is known under this name.
_KIND: dict[str, Any] = {"none_is_leaf": True, "namespace": "keras_cg"}


class Nest(Tree):
    """A flattened value with containers; `is_wrapped` says whether some of them are wrapped in a `_Node`."""

    def __init__(self, leaves: list[Any], treespec: Any, is_wrapped: bool):
        super().__init__(leaves)
        self.treespec, self.is_wrapped = treespec, is_wrapped

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Builds a value of this structure with other leaves."""
        value = self.treespec.unflatten(leaves)
        return _unwrap(value) if self.is_wrapped else value

    def tensors_of(self, value: Any) -> Any:
        """Returns what a tuple has in the place of each tensor; () for another structure.

        The tuple may leave out arguments without a tensor.
        """
        leaves, treespec = optree.tree_flatten(value, **_KIND)
        if treespec == self.treespec:
            return leaves if len(leaves) == len(self.places) else [leaves[place] for place in self.places]
        left_out = self.without_tensors()
        children = [child for place, child in enumerate(self.treespec.children()) if place not in left_out]
        # Only where every leaf is a tensor: a None among these may stand for a whole pytree.
        is_short = len(leaves) == len(self.places) and treespec == optree.treespec_tuple(children, **_KIND)
        return leaves if is_short else ()

    def without_tensors(self) -> Sequence[int]:
        """Returns the places of the parts of a tuple that have no tensor."""
        if len(self.places) == len(self.leaves) and 0 not in [child.num_leaves for child in self.treespec.children()]:
            return ()
        found, stop = [], 0
        for part, child in enumerate(self.treespec.children()):
            start, stop = stop, stop + child.num_leaves
            if not any([start <= place < stop for place in self.places]):
                found.append(part)
        return found

    def is_in_order(self, places: Sequence[int]) -> bool:
        """Whether the leaves are in the order in which they were written down.

        optree lists the leaves of a dict by sorted keys. It builds a dict with the keys in their order of insertion.
        """
        # Objects and not numbers: torch.compile (2.13) cannot make a dict of constants from what optree knows.
        marks = [Tree([place]) for place in range(len(self.leaves))]
        written = [mark.leaves[0] for mark in _as_written(optree.tree_unflatten(self.treespec, marks))]
        ranks = [place for place in written if place in places]
        return ranks == sorted(ranks)

    def paths(self) -> list[str]:
        """Returns the path to each leaf, as an index expression: `["w"][0]`."""
        return [accessor.codify("") for accessor in optree.treespec_accessors(self.treespec)]


def opened(value: Any) -> Nest:
    """Flattens a value whose containers are all known to optree."""
    return Nest(*optree.tree_flatten(value, **_KIND), False)


def flatten(value: Any, backend: Backend, is_tensor: IsTensor | None = None) -> Nest:
    """Flattens a value with containers; None and everything else that is no container is a leaf.

    optree flattens the containers that it knows. If there are others among the leaves, each is wrapped in a node, and
    the value is flattened once more.
    """
    leaves, treespec = optree.tree_flatten(value, **_KIND)
    is_tensor = is_tensor or backend.is_tensor
    if backend.plain.issuperset(map(type, leaves)) or all(map(is_tensor, leaves)):
        return Nest(leaves, treespec, False)
    nodes = [_wrap(leaf, backend, is_tensor) for leaf in leaves]
    if all(map(operator.is_, nodes, leaves)):
        return Nest(leaves, treespec, False)
    return Nest(*optree.tree_flatten(optree.tree_unflatten(treespec, nodes), **_KIND), True)


def treespec_of(tree: Tree) -> Any:
    """Returns the structure of a flattened value as optree describes it."""
    if isinstance(tree, Nest):
        return tree.treespec
    return optree.tree_structure(tree.unflatten([None] * len(tree.leaves)), **_KIND)


def wrap(value: Any, backend: Backend, is_tensor: IsTensor | None = None) -> Any:
    """Returns `value` with a node in the place of every container that optree does not know."""
    tree = flatten(value, backend, is_tensor)
    return optree.tree_unflatten(tree.treespec, tree.leaves)


def is_leaf(wrapped: Any) -> bool:
    """Whether a value from `wrap` is no container."""
    return optree.tree_is_leaf(wrapped, **_KIND)


def is_like(wrapped: Any, treespec: Any) -> bool:
    """Whether a value from `wrap` is a container of the type of a treespec, and with as many children."""
    if type(wrapped) is not treespec.type or len(flatten_one_level(wrapped)[1]) != treespec.num_children:
        return False
    like = optree.tree_unflatten(treespec, [None] * treespec.num_leaves)
    return not isinstance(wrapped, _Node) or wrapped.kind == like.kind


def flatten_one_level(wrapped: Any) -> tuple[Sequence[Any], list[Any]]:
    """Returns the keys and the children of a container from `wrap`."""
    level = optree.tree_flatten_one_level(wrapped, **_KIND)
    return level.entries, list(level.children)


def show(wrapped: Any, leaf: Callable[[Any], str] = lambda _: "*") -> str:
    """Describes the structure of a value from `wrap`, for a message; `leaf` describes a leaf."""
    if is_leaf(wrapped):
        return leaf(wrapped)
    entries, children = flatten_one_level(wrapped)
    is_mapping = wrapped.kind.keys if isinstance(wrapped, _Node) else isinstance(wrapped, Mapping)
    if is_mapping:
        keys = [entry[1:-1] for entry in entries] if isinstance(wrapped, _Node) else [*map(repr, entries)]
        return "{" + ", ".join(f"{key}: {show(child, leaf)}" for key, child in zip(keys, children, strict=True)) + "}"
    inside = ", ".join(show(child, leaf) for child in children)
    return f"[{inside}]" if isinstance(wrapped, list) else f"({inside})"


def _as_written(wrapped: Any) -> list[Any]:
    """Returns the leaves of a value from `wrap`, those of a dict in the order of insertion."""
    if is_leaf(wrapped):
        return [wrapped]
    children = list(wrapped.values() if isinstance(wrapped, Mapping) else flatten_one_level(wrapped)[1])
    if isinstance(wrapped, _Node):
        children = [children[place] for place in wrapped.kind.written or range(len(children))]
    return [leaf for child in children for leaf in _as_written(child)]


class _Kind:
    """The type of a container, which optree compares, and how to rebuild one, which it does not compare.

    `written` lists the places of the children in the order in which the user wrote them down, if that is another one.
    `keys` are those of a mapping.
    """

    def __init__(
        self,
        kind: type,
        rebuild: Callable[[list[Any]], Any],
        entries: tuple[str, ...],
        written: tuple[int, ...] | None = None,
        keys: frozenset[Any] = frozenset(),
    ):
        self.kind, self.rebuild, self.entries, self.written, self.keys = kind, rebuild, entries, written, keys

    def __eq__(self, other: object) -> bool:
        # Without the entries, which are names for messages: two equal children may have no names of their own.
        return isinstance(other, _Kind) and self.kind is other.kind and self.keys == other.keys

    def __hash__(self) -> int:
        return hash(self.kind)


class _Node:
    """A container that optree does not know. `_unwrap` builds that, when all of its children are there."""

    def __init__(self, children: Iterable[Any], kind: _Kind):
        self.children, self.kind = list(children), kind


class _Entry(optree.PyTreeEntry):
    """A step into a node, as it is written: `.field` or `[0]`."""

    def codify(self, /, node: str = "") -> str:
        return f"{node}{self.entry}"


# optree types nodes as collections, which these need not be.
_register: Any = optree.register_pytree_node
_register(
    _Node,
    lambda node: (node.children, node.kind, node.kind.entries),
    lambda kind, children: _Node(children, kind),
    path_entry_type=_Entry,
    namespace=_KIND["namespace"],
)


def _wrap(leaf: Any, backend: Backend, is_tensor: IsTensor) -> Any:
    """Returns a node for a container that optree takes for a leaf, and any other leaf unchanged.

    The framework's own tree utility opens it, or it is a dataclass. The children are wrapped as well.
    """
    if isinstance(leaf, LEAVES) or is_tensor(leaf):
        return leaf
    if (opened := backend.children(leaf)) is not None:
        values, rebuild = opened
        plain = rebuild(values)
        if not is_leaf(plain):
            # One of Python's own containers in disguise: a box of autograd, a list that TensorFlow tracks.
            return wrap(plain, backend, is_tensor)
        entries, written = _steps(leaf, values)
    elif dataclasses.is_dataclass(leaf):
        values, rebuild = _fields(leaf)
        entries, written = tuple(f".{field.name}" for field in dataclasses.fields(leaf)), None
    else:
        return leaf
    keys = frozenset(leaf) if isinstance(leaf, Mapping) else frozenset()
    parts = [wrap(value, backend, is_tensor) for value in values]
    return _Node(parts, _Kind(type(leaf), rebuild, entries, written, keys))


def _steps(container: Any, values: Sequence[Any]) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    """Returns the steps into the children of a container: a key, the name of a dataclass's field, or a number.

    Returns also the places of the children in the order of the keys or fields, if the framework sorts them by name: JAX
    (0.10) sorts the keys of a `FrozenDict` of flax, and the fields of a dataclass of chex.
    """
    names: list[Any] = []
    parts: list[Any] = []
    step = ""
    if isinstance(container, Mapping):
        names, parts, step = [*container], [*container.values()], "[{!r}]"
    elif dataclasses.is_dataclass(container):
        names, step = [field.name for field in dataclasses.fields(container)], ".{}"
        parts = [getattr(container, name, None) for name in names]
    if len(names) == len(values):
        if all(map(operator.is_, parts, values)):
            return tuple(map(step.format, names)), None
        if all(isinstance(name, str) for name in names):
            ranks = sorted(names)
            return tuple(map(step.format, ranks)), tuple(map(ranks.index, names))
    steps, left = [], list(zip(map(step.format, names), parts, strict=True))
    for place, value in enumerate(values):
        match = next((pair for pair in left if pair[1] is value), (f"[{place}]", None))
        left = [pair for pair in left if pair is not match]
        steps.append(match[0])
    return tuple(steps), None


def _unwrap(value: Any) -> Any:
    """Builds the container of every node, from the inside out."""

    def is_node(part: Any) -> bool:
        return isinstance(part, _Node)

    def rebuild(part: Any) -> Any:
        return part.kind.rebuild([*map(_unwrap, part.children)]) if is_node(part) else part

    return optree.tree_map(rebuild, value, is_leaf=is_node, **_KIND)


def _fields(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Returns the fields of a dataclass, and a function that copies it with other fields.

    The copy skips the constructor, which may convert or refuse what a framework passes while it traces.
    """
    kind, names = type(value), [field.name for field in dataclasses.fields(value)]
    # Without the fields: a structure that is saved must not save the leaves.
    others = {name: part for name, part in getattr(value, "__dict__", {}).items() if name not in names}

    def rebuild(children: list[Any]) -> Any:
        copy = object.__new__(kind)
        for name, child in {**others, **dict(zip(names, children, strict=True))}.items():
            object.__setattr__(copy, name, child)
        return copy

    return [getattr(value, name) for name in names], rebuild
