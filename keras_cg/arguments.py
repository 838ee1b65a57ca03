"""The bound arguments of one call, and what the user would call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras_cg import signature
from keras_cg.engine.contract import Backend
from keras_cg.pytree import Tree


class Arguments:
    """The bound arguments of one call, without their tensors.

    Attributes:
        backend: The backend of the call.
        name: What messages call the function.
        user: The user's function.
        positionals: How many arguments were given by position.
        keywords: The names of the others, in the order of the signature.
        static: The static part of `(*args, *kwargs.values())`.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        user: Callable[..., Any],
        positionals: int,
        keywords: tuple[str, ...],
        static: Tree,
    ):
        self.backend, self.name, self.user = backend, name, user
        self.positionals, self.keywords, self.static = positionals, keywords, static

    def bind(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the function with, so that its tensors are `tensors`."""
        values = self.static.combine(tensors)
        if not self.keywords:
            return values, {}
        count = self.positionals
        return values[:count], dict(zip(self.keywords, values[count:], strict=True))

    def by_position(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The positional arguments of such a call, those that were given by keyword included."""
        return (*args, *signature.by_position(self.user, len(args), kwargs)) if kwargs else args

    def labels(self) -> list[str]:
        """Every leaf as the user would name it: `x`, `params["w"][0]`."""
        return labels(self.user, self.positionals, self.keywords, self.static)


def labels(fun: Callable[..., Any], positionals: int, keywords: tuple[str, ...], tree: Tree) -> list[str]:
    """What the user would call each leaf of the arguments of a call.

    In a path such as `[2]["w"]`, the first step is the number of the argument; its name is put in the place of that.
    """
    parameters = signature.parameters(fun)
    named = []
    for path in tree.paths():
        index, _, inside = path[1:].partition("]")
        position = int(index)
        if position >= positionals:
            label = keywords[position - positionals]
        else:
            label = parameters.label(position) if parameters else f"argument {position}"
        named.append(label + inside)
    return named
