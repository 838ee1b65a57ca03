"""Parts a nest into the tensors of the active backend and the rest, and combines them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import numpy

from keras_cg import backends, config, errors, nest, presence
from keras_cg.engine.contract import Backend
from keras_cg.nest import Nest

# What says where a leaf stands, for a message.
Label = Callable[[Nest, int], str]


class Rest(NamedTuple):
    """A nest without its tensors, which never holds one.

    Attributes:
        nest: The nest, with None where tensors were.
        places: Where they were among the leaves; ascending.
    """

    nest: Nest
    places: Sequence[int]

    def combine(self, tensors: Sequence[Any]) -> Any:
        """The nest again, with as many other tensors in their places."""
        return self.nest.fill(self.places, tensors)

    def blank(self, tensors: Sequence[Any]) -> Any:
        """The same, with None in the place of every other leaf."""
        leaves: list[Any] = [None] * len(self.nest.leaves)
        return self.nest._replace(leaves=leaves).fill(self.places, tensors)


def flatten(backend: Backend, value: Any) -> Nest:
    """A nest laid flat, as the backend knows containers."""
    return nest.flatten(value, backend.is_tensor, backend.children)


def partition(backend: Backend, where: str, value: Any, label: Label) -> tuple[list[Any], Rest]:
    """The tensors in a nest, as the backend's own, and the rest of it.

    Raises:
        TypeError: A leaf is a tensor of another framework, or a placeholder of Keras.
    """
    return take(backend, where, flatten(backend, value), label)


def take(backend: Backend, where: str, laid: Nest, label: Label) -> tuple[list[Any], Rest]:
    """The same of a nest that is laid flat already: its tensors are taken out, its Keras variables unwrapped."""
    tensors, places = [], []
    is_tensor, variables, leaves = backend.is_tensor, presence.variables(), laid.leaves
    for place, given in enumerate(leaves):
        leaf = given
        if not is_tensor(given) or isinstance(given, variables):
            if isinstance(given, (type(None), bool, int, float, str, FunctionType)):
                continue
            leaf = leaves[place] = presence.unwrap(given)
            if leaf is given or not is_tensor(leaf) or not isinstance(leaf, backend.tensors):
                _refuse_stranger(where, leaf, given, laid, place, label)
                continue
        places.append(place)
        tensors.append(backend.asarray(leaf))
        leaves[place] = None
    return tensors, Rest(laid, places)


def _refuse_stranger(where: str, leaf: Any, given: Any, laid: Nest, place: int, label: Label) -> None:
    """Raises if a leaf is a tensor that the active backend does not take as its own."""
    # To torch.compile (2.13) a scalar of NumPy is an array without dimensions.
    is_scalar = isinstance(leaf, numpy.generic) or (isinstance(leaf, numpy.ndarray) and leaf.ndim == 0)
    if isinstance(leaf, complex) or is_scalar:
        return
    if presence.is_symbolic([leaf]):
        raise errors.symbolic_tensor(where, label(laid, place))
    owner = backends.owner(type(leaf))
    if owner is None or not backends.load(owner, owner).is_tensor(leaf):
        return
    keras = presence.choice()
    if keras and keras[0] == owner:
        raise errors.keras_elsewhere(where, label(laid, place), given, *config.resolve(), *keras)
    raise errors.foreign_tensor(where, label(laid, place), given, *config.resolve(), owner)


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
