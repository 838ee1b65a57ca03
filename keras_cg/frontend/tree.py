"""A flattened value, and how it is built again; `pytree` makes these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Tree:
    """A flattened tuple of leaves; after `partition`, its static part.

    `partition` puts None in the place of each tensor, lists these `places`, and notes whether all of the tensors are
    plain.
    """

    is_plain = False

    def __init__(self, leaves: list[Any], places: Sequence[int] = ()):
        self.leaves, self.places = leaves, places

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Builds a value of this structure with other leaves."""
        return tuple(leaves)

    def fill(self, places: Sequence[int], values: Sequence[Any]) -> Any:
        """Builds the value with `values` at `places`, which ascend, and its own leaves elsewhere."""
        return self.unflatten(_filled(self.leaves, places, values))

    def combine(self, tensors: Sequence[Any]) -> Any:
        """Builds the value with other tensors."""
        is_whole = len(self.places) == len(self.leaves)
        return self.unflatten(tensors if is_whole else _filled(self.leaves, self.places, tensors))

    def blank(self, tensors: Sequence[Any]) -> Any:
        """Builds the value with other tensors, and None in the place of every static leaf."""
        return self.unflatten(_filled([None] * len(self.leaves), self.places, tensors))

    def tensors_of(self, value: Any) -> Any:
        """Returns what a tuple has in the place of each tensor; () for another structure, but for tensors alone."""
        if len(value) == len(self.places):
            return value
        return tuple(value[place] for place in self.places) if len(value) == len(self.leaves) else ()

    def without_tensors(self) -> Sequence[int]:
        """Returns the places of the parts of a tuple that are containers, or beside one, and have no tensor."""
        return ()

    def is_in_order(self, places: Sequence[int]) -> bool:
        """Whether the leaves at `places`, which ascend, come in the order in which the user wrote them down."""
        return True

    def paths(self) -> list[str]:
        """Returns the path to each leaf, as an index expression: `[0]`."""
        return [f"[{place}]" for place in range(len(self.leaves))]


class Single(Tree):
    """A value that is a leaf itself."""

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Returns the one leaf."""
        return leaves[0]

    def paths(self) -> list[str]:
        """Returns the path to the one leaf."""
        return [""]


# The static part of a single tensor. It is shared, because nothing in it changes.
SINGLE: Tree = Single([None], (0,))


def _filled(leaves: list[Any], places: Sequence[int], values: Sequence[Any]) -> Sequence[Any]:
    """Returns `leaves` with `values` at these places."""
    if len(places) == len(leaves):
        return values
    leaves = list(leaves)
    for place, value in zip(places, values, strict=True):
        leaves[place] = value
    return leaves
