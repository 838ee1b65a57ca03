"""Reading signatures: the parameters of a function or a rule.

`inspect.signature` reads every callable, but `torch.compile` cannot trace it on a function that is defined while it
traces, as most rules are. So plain functions, methods and partials are read from their code object, and everything
else by `inspect`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from types import FunctionType, MethodType
from typing import Any, NamedTuple

_STARS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


class Parameters(NamedTuple):
    """The parameters of a function."""

    positional: tuple[str, ...]
    keyword_only: tuple[str, ...]
    varargs: str | None
    varkw: str | None
    # Returns the defaults of the last positional parameters. Asked only where nothing else decides, because
    # torch.compile (2.13) cannot read the defaults of a function that is defined while it traces.
    defaults: Callable[[], tuple[Any, ...]]
    keyword_defaults: Callable[[], dict[str, Any]]

    def names(self) -> tuple[str, ...]:
        """Returns every named parameter, in order."""
        return (*self.positional, *self.keyword_only)

    def label(self, index: int) -> str:
        """Returns the name of the positional argument number `index`."""
        if index < len(self.positional):
            return self.positional[index]
        return f"{self.varargs or 'args'}[{index - len(self.positional)}]"

    def positional_defaults(self) -> dict[str, Any]:
        """Returns the defaults of positional parameters, by name."""
        defaults = self.defaults()
        return dict(zip(self.positional[len(self.positional) - len(defaults) :], defaults, strict=True))

    def without(self, name: str) -> tuple[str, ...]:
        """Returns the positional parameters but for one."""
        return tuple(other for other in self.positional if other != name)

    def binds(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call has an argument for every parameter that has no default."""
        needed = self.positional[: len(self.positional) - len(self.defaults())][len(args) :]
        needed += tuple(name for name in self.keyword_only if name not in self.keyword_defaults())
        return all(name in kwargs for name in needed)

    def required(self) -> int:
        """Returns how many positional parameters have no default, `variables` not counted."""
        required = self.positional[: len(self.positional) - len(self.defaults())]
        return len(required) - ("variables" in required)

    def show(self, name: str) -> str:
        """Returns the signature as a message shows it."""
        star = [f"*{self.varargs or ''}"] if self.varargs or self.keyword_only else []
        stars = [f"**{self.varkw}"] if self.varkw else []
        return f"{name}({', '.join([*self.positional, *star, *self.keyword_only, *stars])})"

    def without_first(self, count: int) -> Parameters:
        """Returns the parameters that are left when the first positional ones are bound."""
        positional = self.positional[count:]
        return self._replace(positional=positional, defaults=lambda: _last(len(positional), self.defaults()))


# Parameters that a call did not bind by position, each with its default, or None if it was bound by name.
Unbound = list[tuple[str, Any]]


def unbound(fun: Callable[..., Any], count: int, named: Collection[str]) -> Unbound:
    """Returns the positional parameters that a call of `fun` with `count` positional arguments did not bind."""
    own = parameters(fun)
    return _with_defaults(own.positional[count:], named, own.positional_defaults) if own else []


def unbound_keyword_only(fun: Callable[..., Any], named: Collection[str]) -> Unbound:
    """Returns the keyword-only parameters of `fun`."""
    own = parameters(fun)
    return _with_defaults(own.keyword_only, named, own.keyword_defaults) if own else []


def _with_defaults(names: Sequence[str], named: Collection[str], defaults: Callable[[], dict[str, Any]]) -> Unbound:
    """Pairs every name with its default; with None if it is `named`, or has none."""
    # Asked only where they are needed: see `Parameters.defaults`.
    known = {} if all([name in named for name in names]) else defaults()
    return [(name, known.get(name)) for name in names]


def in_order(fun: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns keyword arguments in the order of the signature, and those that it does not name last."""
    own = parameters(fun)
    known = {name: kwargs[name] for name in own.names() if name in kwargs} if own else {}
    return known | {name: value for name, value in kwargs.items() if name not in known}


def by_position(fun: Callable[..., Any], count: int, kwargs: dict[str, Any]) -> list[Any]:
    """Returns the keyword arguments of positional parameters, with the defaults of those between them."""
    pairs = unbound(fun, count, kwargs)
    while pairs and pairs[-1][0] not in kwargs:
        pairs = pairs[:-1]
    return [kwargs.get(name, default) for name, default in pairs]


def takes_one(fun: Callable[..., Any]) -> bool:
    """Whether `fun` is a plain function of one positional parameter, as most rules are: a fast path."""
    if not _is_plain(fun):
        return False
    code = fun.__code__
    only = code.co_argcount == 1 and not code.co_kwonlyargcount and not code.co_flags & _STARS
    return only and code.co_varnames[0] != "variables"


def _is_plain(fun: Any) -> bool:
    """Whether the code object of `fun` has its signature."""
    return type(fun) is FunctionType and not hasattr(fun, "__wrapped__") and not hasattr(fun, "__signature__")


def parameters(fun: Callable[..., Any]) -> Parameters | None:
    """Returns the parameters of `fun`, or None if it has no readable signature.

    A method or a partial has those of its function, but for what is bound already. A plain function, and an object
    whose class calls one, is read from its code object. `inspect` reads all others, such as those with `__wrapped__`.
    """
    if isinstance(fun, MethodType):
        whole = parameters(fun.__func__)
        return whole and whole.without_first(1)
    if isinstance(fun, functools.partial):
        whole = parameters(fun.func)
        return whole and _bind_keywords(whole.without_first(len(fun.args)), tuple(fun.keywords))
    if _is_plain(fun):
        return _from_code(fun)
    called = type(fun).__call__
    if isinstance(called, FunctionType) and not hasattr(fun, "__wrapped__") and not hasattr(fun, "__signature__"):
        return _from_code(called).without_first(1)
    return _from_inspect(fun)


def _from_code(fun: Any) -> Parameters:
    """Reads a code object: it names positional parameters, keyword-only ones, `*args`, `**kwargs`, in this order."""
    code = fun.__code__
    names = code.co_varnames
    first, last = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    has_varargs = bool(code.co_flags & inspect.CO_VARARGS)
    return Parameters(
        positional=names[:first],
        keyword_only=names[first:last],
        varargs=names[last] if has_varargs else None,
        varkw=names[last + has_varargs] if code.co_flags & inspect.CO_VARKEYWORDS else None,
        defaults=lambda: _defaults(fun),
        keyword_defaults=lambda: fun.__kwdefaults__ or {},
    )


def _defaults(fun: Any) -> tuple[Any, ...]:
    # torch.compile shows the next line when it stops there, so the remedy stands in it.
    return fun.__defaults__ or ()  # torch.compile cannot read these: make them keyword-only, as in `*, k=7`


def _last(count: int, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the last `count` of `values`, or all if there are fewer."""
    return values[max(0, len(values) - count) :]


def _bind_keywords(whole: Parameters, bound: tuple[str, ...]) -> Parameters:
    """Binds keywords as a partial does: from the first of them on, parameters are keyword-only."""
    count = next((index for index, name in enumerate(whole.positional) if name in bound), None)
    if count is None:
        return whole
    keyword_only = whole.positional[count:]
    return whole._replace(
        positional=whole.positional[:count],
        keyword_only=(*keyword_only, *whole.keyword_only),
        varargs=None,
        defaults=lambda: whole.defaults()[: -len(keyword_only)],
    )


def _from_inspect(fun: Callable[..., Any]) -> Parameters | None:
    try:
        listed = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return None

    def of(*kinds: Any) -> list[inspect.Parameter]:
        return [parameter for parameter in listed if parameter.kind in kinds]

    def defaults(some: list[inspect.Parameter]) -> dict[str, Any]:
        return {parameter.name: parameter.default for parameter in some if parameter.default is not parameter.empty}

    kinds = inspect.Parameter
    positional, keyword_only = of(kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD), of(kinds.KEYWORD_ONLY)
    return Parameters(
        positional=tuple(parameter.name for parameter in positional),
        keyword_only=tuple(parameter.name for parameter in keyword_only),
        varargs=next((parameter.name for parameter in of(kinds.VAR_POSITIONAL)), None),
        varkw=next((parameter.name for parameter in of(kinds.VAR_KEYWORD)), None),
        defaults=lambda: tuple(defaults(positional).values()),
        keyword_defaults=lambda: defaults(keyword_only),
    )
