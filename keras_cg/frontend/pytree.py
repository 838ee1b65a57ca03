"""Pytrees: a nested value is flattened, partitioned into tensors and static leaves, and built again.

A single tensor, and a tuple of tensors and atoms, need no other file. Any other value is flattened by `containers`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy

from keras_cg import backends, user_code
from keras_cg.bridge import keras_interop
from keras_cg.bridge import messages as keras_messages
from keras_cg.engine.contract import LEAVES, Backend
from keras_cg.frontend import config, messages
from keras_cg.frontend.tree import SINGLE, Single, Tree

# Names the leaf at a place, for a message.
Label = Callable[[Tree, int], str]


def flatten(value: Any, backend: Backend, is_tensor: Callable[[Any], bool] | None = None) -> Tree:
    """Flattens any nested value; None and everything else that is no container is a leaf.

    `is_tensor` says what is a tensor, if that is another question than the backend's.
    """
    is_tensor, kind = is_tensor or backend.is_tensor, type(value)
    if kind is tuple:
        for part in value:
            if not isinstance(part, LEAVES) and (type(part) in _CONTAINERS or not is_tensor(part)):
                break
        else:
            return Tree(list(value))
    elif kind not in _CONTAINERS and is_tensor(value):
        return Single([value])
    # Here, because it imports optree: see `containers`.
    import keras_cg.frontend.containers as containers

    return containers.flatten(value, backend, is_tensor)


# What holds tensors, and is none.
_CONTAINERS = frozenset({dict, list, tuple})
# What a call has most often beside tensors.
_STATIC = frozenset({type(None), bool, int, float, str})


def split(backend: Backend, value: Any) -> tuple[Tree, Sequence[Any]] | None:
    """Flattens and partitions a plain tensor or a container; None if that has more than such, numbers and texts."""
    plain, kind = backend.plain, type(value)
    if kind not in _CONTAINERS:
        return (SINGLE, (value,)) if kind in plain or backend.is_plain(value) else None
    is_nested = kind is not tuple
    # A loop, because Dynamo of torch (2.13) asks for the type of no scalar of NumPy from C.
    for part in () if is_nested else value:
        if type(part) in _CONTAINERS:
            is_nested = True
            break
    if is_nested:
        # Here, because it imports optree: see `containers`.
        import keras_cg.frontend.containers as containers

        tree: Tree = containers.opened(value)
    else:
        tree = Tree([*value])
    leaves, tree.is_plain = tree.leaves, True
    if plain.issuperset(map(type, leaves)):
        tree.leaves, tree.places = [None] * len(leaves), range(len(leaves))
        return tree, leaves
    places, tensors = [], []
    for place, leaf in enumerate(leaves):
        if type(leaf) not in _STATIC:
            if type(leaf) not in plain and not backend.is_plain(leaf):
                return None
            leaves[place] = None
            places.append(place)
            tensors.append(leaf)
    tree.places = places
    return tree, tensors


def partition(backend: Backend, where: str, tree: Tree, label: Label) -> list[Any]:
    """Moves the tensors out of a flattened value, as the backend's own, and leaves the static part behind.

    Keras variables are unwrapped. A tensor of another framework, or a placeholder of Keras, raises a TypeError.
    """
    leaves = tree.leaves
    if _are_plain(backend, leaves):
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
    tree.is_plain = _are_plain(backend, tensors)
    return tensors


def _are_plain(backend: Backend, values: list[Any]) -> bool:
    return backend.plain.issuperset(map(type, values)) or all(map(backend.is_plain, values))


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
    if any([isinstance(part, backend.tensors) and not isinstance(part, LEAVES) for part in parts]):
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
