"""The bound arguments of one call, and the names that the user has for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any

from keras_cg.bridge import keras_interop
from keras_cg.engine.contract import Backend
from keras_cg.engine.functions import inner, is_bound
from keras_cg.frontend import signature
from keras_cg.frontend.tree import Tree


class Arguments:
    """The bound arguments of one call of the function `user`, without their tensors.

    `positionals` counts the arguments by position; `keywords` names the others in the order of the signature. Ordinary
    arguments are plain tensors by position, and have no tree.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        user: Callable[..., Any],
        positionals: int,
        keywords: tuple[str, ...] = (),
        static: Tree | None = None,
    ):
        self.backend, self.name, self.user = backend, name, user
        self.positionals, self.keywords, self._static = positionals, keywords, static
        self.is_plain = static is None or static.is_plain

    @property
    def is_ordinary(self) -> bool:
        """Whether the arguments are plain tensors by position.

        No attribute, which would be data: another run may take the road of pytrees, because Keras has a scope there.
        """
        return self._static is None

    @property
    def static(self) -> Tree:
        """The static part of `(*args, *kwargs.values())`."""
        return self._static or Tree([None] * self.positionals, places=range(self.positionals))

    def bind(self, tensors: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the positional and the keyword arguments that have `tensors` as their tensors."""
        if self._static is None:
            return tensors, {}
        values, count = self._static.combine(tensors), self.positionals
        return values[:count], dict(zip(self.keywords, values[count:], strict=True))

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


# How many values a message looks at for names.
_LOOKED_AT = 1000


def names_of(fun: Any, values: Sequence[Any], described: Sequence[str]) -> list[str]:
    """Returns the user's name for each value that a function reads, such as `self.w`; without one, what `described`.

    Errors alone ask for it, because it looks at what closures, globals, containers and attributes have.
    """
    names: dict[int, str] = {}
    waiting = [("", fun)]
    for name, value in waiting:
        value = keras_interop.unwrap(value)
        if id(value) not in names:
            names[id(value)] = name
            waiting += _inside(name, value) if len(waiting) < _LOOKED_AT else ()
    return [names.get(id(value)) or text for value, text in zip(values, described, strict=True)]


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields what a function reads, a container holds or an object has, each with its name."""
    if isinstance(value, MethodType):
        yield "self", value.__self__
    if isinstance(value, FunctionType):
        code = value.__code__
        cells = zip(code.co_freevars, value.__closure__ or (), strict=True)
        yield from ((each, cell.cell_contents) for each, cell in cells if is_bound(cell))
        yield from ((each, value.__globals__[each]) for each in code.co_names if each in value.__globals__)
    elif isinstance(value, Mapping):
        yield from ((f"{name}[{key!r}]", each) for key, each in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"{name}[{place}]", each) for place, each in enumerate(value))
    elif not isinstance(value, (type, ModuleType)):
        members = [*getattr(value, "__dict__", {}).items()]
        if hasattr(type(value), "named_children"):  # a module of torch, whose attributes are not its members
            members += [*value.named_children(), *value.named_parameters(recurse=False)]
        yield from ((f"{name}.{each}", member) for each, member in members)
    yield name, inner(value)
