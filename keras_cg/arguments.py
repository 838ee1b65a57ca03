"""The arguments of one call: bound, laid flat, and called as the user would name them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras_cg import leaves, nest, signature
from keras_cg.engine.contract import Backend
from keras_cg.leaves import Rest
from keras_cg.nest import Nest


class Arguments(NamedTuple):
    """The arguments of one call of `fun`, without their tensors.

    Attributes:
        positionals: How many were given by position.
        keywords: The names of the others, in the order of the signature.
    """

    backend: Backend
    name: str
    fun: Callable[..., Any]
    positionals: int
    keywords: tuple[str, ...]
    rest: Rest

    def bind(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call `fun` with, so that its tensors are `tensors`."""
        values = self.rest.combine(tensors)
        if not self.keywords:
            return values, {}
        count = self.positionals
        return values[:count], dict(zip(self.keywords, values[count:], strict=True))

    def by_position(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The positional arguments of such a call, those that were given by keyword included."""
        return (*args, *signature.by_position(self.fun, len(args), kwargs))

    def labels(self) -> list[str]:
        """Every leaf as the user would name it: `x`, `params["w"][0]`."""
        return labels(self.fun, self.positionals, self.keywords, self.rest.nest)


def bind(
    backend: Backend, name: str, fun: Callable[..., Any], positionals: int, keywords: tuple[str, ...], laid: Nest
) -> tuple[list[Any], Arguments]:
    """The tensors among the arguments of a call, which are laid flat, and the rest of these.

    Raises:
        TypeError: One is a tensor of another framework, or a placeholder of Keras where none can be.
    """

    def label(laid: Nest, place: int) -> str:
        return f"the argument {labels(fun, positionals, keywords, laid)[place]}"

    tensors, rest = leaves.take(backend, name, laid, label)
    return tensors, Arguments(backend, name, fun, positionals, keywords, rest)


def labels(fun: Callable[..., Any], positionals: int, keywords: tuple[str, ...], laid: Nest) -> list[str]:
    """What the user would call each leaf of the arguments of a call.

    In a path such as `[2]["w"]`, the first step is the number of the argument; its name is put in the place of that.
    """
    parameters = signature.parameters(fun)
    named = []
    for path in laid.paths():
        index, _, inside = path[1:].partition("]")
        position = int(index)
        if position >= positionals:
            label = keywords[position - positionals]
        else:
            label = parameters.label(position) if parameters else f"argument {position}"
        named.append(label + inside)
    return named


def default_spec(backend: Backend, value: Any) -> Any:
    """The structure of an argument that was left at its default."""
    return nest.flatten(value, backend.is_tensor, backend.children).spec
