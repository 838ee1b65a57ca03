"""The bound arguments of one call, and the names that the user has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from keras_cg.engine.contract import Backend
from keras_cg.frontend import signature
from keras_cg.frontend.tree import Tree

# Of a call that has nothing of the kind. It is no proxy, because Dynamo of torch (2.13) takes an empty one for true.
NOTHING: Mapping[Any, Any] = {}


class Arguments:
    """The bound arguments of one call of the function `user`, without their tensors.

    `positionals` counts the arguments by position; `keywords` names the others in the order of the signature. Ordinary
    arguments are plain tensors by position, and have no `nest`, which is the tree of all others.
    """

    # What the function gets by name and is no argument of the call.
    extras: Mapping[str, Any] = NOTHING
    keywords: tuple[str, ...] = ()
    nest: Tree | None = None
    is_plain = True
    # The containers without a tensor, by place, which the function gets as they are.
    whole: Mapping[int, Any] = NOTHING

    def __init__(self, backend: Backend, name: str, user: Callable[..., Any], positionals: int):
        self.backend, self.name, self.user, self.positionals = backend, name, user, positionals

    def of(self, keywords: tuple[str, ...], nest: Tree) -> Self:
        """Returns this call with arguments of any kind."""
        self.keywords, self.nest, self.is_plain = keywords, nest, nest.is_plain
        return self

    @property
    def static(self) -> Tree:
        """The static part of `(*args, *kwargs.values())`."""
        return self.nest or Tree([None] * self.positionals, places=range(self.positionals))

    def bind(self, tensors: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the positional and the keyword arguments that have `tensors` as their tensors."""
        if self.nest is None:
            return tensors, {}
        values, count = self.nest.combine(tensors), self.positionals
        if self.whole:
            values = tuple([self.whole.get(place, value) for place, value in enumerate(values)])
        if not self.keywords and not self.extras:
            return values, {}
        return values[:count], {**dict(zip(self.keywords, values[count:], strict=True)), **self.extras}

    def labels(self) -> list[str]:
        """Returns the user's name for each leaf: `x`, `params["w"][0]`."""
        return labels(self.user, self.positionals, self.keywords, self.static)


def labels(fun: Callable[..., Any], positionals: int, keywords: tuple[str, ...], tree: Tree) -> list[str]:
    """Returns the user's name for each leaf of a call's arguments, in which the name replaces the first step `[2]`."""
    parameters = signature.parameters(fun)
    names = [parameters.label(place) if parameters else f"argument {place}" for place in range(positionals)]
    names += keywords
    split = [path[1:].partition("]") for path in tree.paths()]
    return [names[int(index)] + inside for index, _, inside in split]
