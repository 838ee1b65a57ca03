"""Pytrees: a nested value is flattened, partitioned into tensors and static leaves, and built again.

optree opens tuples, lists, dicts, namedtuples and the like. It does not open dataclasses, nor the types that are
registered with the active framework's own tree utility: these are wrapped in a `_Node`, which optree opens.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy
import optree

from keras_cg import backends, user_code
from keras_cg.bridge import keras_interop
from keras_cg.bridge import messages as keras_messages
from keras_cg.engine.contract import Backend
from keras_cg.frontend import config, messages

_NAMESPACE = "keras_cg"

# Leaves that are no containers for certain. Asking the framework's tree utility about them would only cost time.
ATOMS = (type(None), bool, int, float, complex, str, bytes, type, numpy.generic, numpy.ndarray)

# Structures that need no optree: a single tensor, and a tuple of leaves.
_LEAF, _TUPLE = "leaf", "tuple"

# Opens a container of the active framework's own tree utility: its children, and how to build it again.
Children = Callable[[Any], tuple[list[Any], Callable[[list[Any]], Any]] | None]

# Names the leaf at a place, for a message.
Label = Callable[["Tree", int], str]


class Tree:
    """A flattened value, by default a tuple of leaves; after `partition`, its static part.

    `structure` is the treespec of optree, or the mark of a structure that needs none. `is_wrapped` says whether some
    containers are wrapped in a `_Node`. `partition` puts None in the place of each tensor, lists these `places`, and
    notes whether all of the tensors are plain.
    """

    is_plain = False

    def __init__(
        self, leaves: list[Any], structure: Any = _TUPLE, is_wrapped: bool = False, places: Sequence[int] = ()
    ):
        self.leaves, self.structure, self.is_wrapped, self.places = leaves, structure, is_wrapped, places

    @property
    def treespec(self) -> Any:
        """The structure as optree describes it.

        Most calls need none, and torch.compile (2.13) cannot use one that was built before it traced.
        """
        if self.structure is not _LEAF and self.structure is not _TUPLE:
            return self.structure
        return optree.tree_structure(self.unflatten([None] * len(self.leaves)), none_is_leaf=True, namespace=_NAMESPACE)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Builds a value of this structure with other leaves."""
        if self.structure is _LEAF:
            return leaves[0]
        if self.structure is _TUPLE:
            return tuple(leaves)
        value = optree.tree_unflatten(self.structure, leaves)
        return _unwrap(value) if self.is_wrapped else value

    def fill(self, places: Sequence[int], values: Sequence[Any]) -> Any:
        """Builds the value with `values` at `places`, which ascend, and its own leaves elsewhere."""
        if len(places) == len(self.leaves):
            return self.unflatten(values)
        leaves = list(self.leaves)
        for place, value in zip(places, values, strict=True):
            leaves[place] = value
        return self.unflatten(leaves)

    def combine(self, tensors: Sequence[Any]) -> Any:
        """Builds the value with other tensors."""
        return self.fill(self.places, tensors)

    def blank(self, tensors: Sequence[Any]) -> Any:
        """Builds the value with other tensors, and None in the place of every static leaf."""
        return Tree([None] * len(self.leaves), self.structure, self.is_wrapped).fill(self.places, tensors)

    def tensors_of(self, value: Any) -> Any:
        """Returns what a tuple has in the place of each tensor; () for another structure, but for tensors alone."""
        if self.structure is not _TUPLE and len(self.places) == len(self.leaves):
            # A container in the place of a tensor counts as its gradient here, and fails the check of each.
            try:
                return self.structure.flatten_up_to(value)
            except ValueError:
                return ()
        if self.structure is not _TUPLE:
            leaves, treespec = optree.tree_flatten(value, none_is_leaf=True, namespace=_NAMESPACE)
            return [leaves[place] for place in self.places] if treespec == self.structure else ()
        if len(value) == len(self.places):
            return value
        return tuple(value[place] for place in self.places) if len(value) == len(self.leaves) else ()

    def is_in_order(self, places: Sequence[int]) -> bool:
        """Whether the leaves at `places`, which ascend, come in the order in which the user wrote them down.

        optree lists the leaves of a dict by sorted keys. It builds a dict with the keys in their order of insertion.
        """
        if self.structure is _LEAF or self.structure is _TUPLE:
            return True
        # Objects and not numbers: torch.compile (2.13) cannot make a dict of constants from what optree knows.
        marks = [Tree([place]) for place in range(len(self.leaves))]
        written = [mark.leaves[0] for mark in _as_written(optree.tree_unflatten(self.structure, marks))]
        ranks = [place for place in written if place in places]
        return ranks == sorted(ranks)

    def paths(self) -> list[str]:
        """Returns the path to each leaf, as an index expression: `["w"][0]`."""
        return [accessor.codify("") for accessor in optree.treespec_accessors(self.treespec)]


# The static part of a single tensor. It is shared, because nothing in it changes.
SINGLE = Tree([None], _LEAF, False, (0,))


def flatten(value: Any, is_tensor: Callable[[Any], bool], children: Children) -> Tree:
    """Flattens any nested value; None and everything else that is no container is a leaf.

    optree flattens the containers that it knows. If there are others among the leaves, each is wrapped in a node, and
    the value is flattened once more. A single tensor, and a tuple of tensors and atoms, need no optree.
    """
    if type(value) is tuple:
        if all([is_tensor(part) or isinstance(part, ATOMS) for part in value]):
            return Tree(list(value))
    elif is_tensor(value):
        return Tree([value], _LEAF)
    leaves, treespec = optree.tree_flatten(value, none_is_leaf=True, namespace=_NAMESPACE)
    if all(map(is_tensor, leaves)):
        return Tree(leaves, treespec)
    nodes = [_wrap(leaf, is_tensor, children) for leaf in leaves]
    if all(map(operator.is_, nodes, leaves)):
        return Tree(leaves, treespec)
    value = optree.tree_unflatten(treespec, nodes)
    return Tree(*optree.tree_flatten(value, none_is_leaf=True, namespace=_NAMESPACE), True)


def partition(backend: Backend, where: str, tree: Tree, label: Label) -> list[Any]:
    """Moves the tensors out of a flattened value, as the backend's own, and leaves the static part behind.

    Keras variables are unwrapped. A tensor of another framework, or a placeholder of Keras, raises a TypeError.
    """
    leaves = tree.leaves
    if all(map(backend.is_plain, leaves)):
        tree.leaves, tree.places, tree.is_plain = [None] * len(leaves), range(len(leaves)), True
        return leaves
    tensors: list[Any] = []
    tree.places = places = []
    is_tensor, variables = backend.is_tensor, keras_interop.variables()
    for place, value in enumerate(leaves):
        leaf = value
        if not is_tensor(value) or isinstance(value, variables):
            if isinstance(value, (type(None), bool, int, float, str, FunctionType)):
                continue
            leaf = leaves[place] = keras_interop.unwrap(value)
            if leaf is value or not is_tensor(leaf) or not isinstance(leaf, backend.tensors):
                _refuse_foreign(where, leaf, value, functools.partial(label, tree, place))
                _refuse_objects(where, leaf, backend, functools.partial(label, tree, place))
                continue
        if backend.dtype(leaf) == "object":
            raise messages.tensors_in_objects(where, label(tree, place))
        places.append(place)
        tensors.append(backend.asarray(leaf))
        leaves[place] = None
    tree.is_plain = all(map(backend.is_plain, tensors))
    return tensors


def _refuse_foreign(where: str, leaf: Any, value: Any, label: Callable[[], str]) -> None:
    """Raises if a leaf, the content of `value`, is a tensor that the active backend does not take as its own."""
    # To torch.compile (2.13) a scalar of NumPy is an array without dimensions.
    if isinstance(leaf, (complex, numpy.generic)) or (isinstance(leaf, numpy.ndarray) and leaf.ndim == 0):
        return
    if keras_interop.is_symbolic([leaf]):
        raise keras_messages.symbolic_tensor(where, label())
    owner = backends.owner(type(leaf))
    if owner is None or not backends.load(owner, owner).is_tensor(leaf):
        return
    keras = keras_interop.choice()
    if keras and keras[0] == owner:
        raise keras_messages.keras_elsewhere(where, label(), value, *config.resolve(), *keras)
    raise messages.foreign_tensor(where, label(), value, *config.resolve(), owner)


def _refuse_objects(where: str, leaf: Any, backend: Backend, label: Callable[[], str]) -> None:
    """Raises if a leaf is an array of objects that holds tensors: these would silently get no gradient."""
    # Dynamo of torch (2.13) traces no dtype of an array, and no array of objects.
    if not isinstance(leaf, numpy.ndarray) or user_code.is_traced_by_dynamo():
        return
    parts = leaf.flat if leaf.dtype.hasobject else ()
    if any([isinstance(part, backend.tensors) and not isinstance(part, ATOMS) for part in parts]):
        raise messages.tensors_in_objects(where, label())


def describe(dtype: str, shape: tuple[int | None, ...] | None) -> str:
    """Describes a tensor for a message: `float32[3, ?]`."""
    sizes = ["..."] if shape is None else ["?" if size is None else str(size) for size in shape]
    return f"{dtype}[{', '.join(sizes)}]"


def compatible(came: tuple[int | None, ...] | None, expected: tuple[int | None, ...] | None) -> bool:
    """Whether two shapes are equal, as far as they are known."""
    if came is None or expected is None:
        return True
    pairs = zip(came, expected, strict=False)
    return len(came) == len(expected) and all(a is None or b is None or a == b for a, b in pairs)


def wrap(value: Any, is_tensor: Callable[[Any], bool], children: Children) -> Any:
    """Returns `value` with a node in the place of every container that optree does not know."""
    tree = flatten(value, is_tensor, children)
    return optree.tree_unflatten(tree.treespec, tree.leaves)


def is_leaf(wrapped: Any) -> bool:
    """Whether a value from `wrap` is no container."""
    return optree.tree_is_leaf(wrapped, none_is_leaf=True, namespace=_NAMESPACE)


def is_like(wrapped: Any, treespec: Any) -> bool:
    """Whether a value from `wrap` is a container of the type of a treespec, and with as many children."""
    if type(wrapped) is not treespec.type or len(flatten_one_level(wrapped)[1]) != treespec.num_children:
        return False
    like = optree.tree_unflatten(treespec, [None] * treespec.num_leaves)
    return not isinstance(wrapped, _Node) or wrapped.kind == like.kind


def flatten_one_level(wrapped: Any) -> tuple[Sequence[Any], list[Any]]:
    """Returns the keys and the children of a container from `wrap`."""
    level = optree.tree_flatten_one_level(wrapped, none_is_leaf=True, namespace=_NAMESPACE)
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
    namespace=_NAMESPACE,
)


def _wrap(leaf: Any, is_tensor: Callable[[Any], bool], children: Children) -> Any:
    """Returns a node for a container that optree takes for a leaf, and any other leaf unchanged.

    The framework's own tree utility opens it, or it is a dataclass. The children are wrapped as well.
    """
    if isinstance(leaf, ATOMS) or is_tensor(leaf):
        return leaf
    if (opened := children(leaf)) is not None:
        values, rebuild = opened
        plain = rebuild(values)
        if not is_leaf(plain):
            # One of Python's own containers in disguise: a box of autograd, a list that TensorFlow tracks.
            return wrap(plain, is_tensor, children)
        entries, written = _steps(leaf, values)
    elif dataclasses.is_dataclass(leaf):
        values, rebuild = _fields(leaf)
        entries, written = tuple(f".{field.name}" for field in dataclasses.fields(leaf)), None
    else:
        return leaf
    keys = frozenset(leaf) if isinstance(leaf, Mapping) else frozenset()
    parts = [wrap(value, is_tensor, children) for value in values]
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

    return optree.tree_map(rebuild, value, is_leaf=is_node, none_is_leaf=True, namespace=_NAMESPACE)


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
