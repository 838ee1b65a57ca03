"""Reading signatures: which parameters a function or a rule has.

`inspect.signature` knows every callable, but `torch.compile` cannot trace it on a function that is made
while it traces, and most rules are. So plain functions, methods and partials are read from their code
object, and everything else by `inspect`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from types import FunctionType, MethodType
from typing import Any, NamedTuple

_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
_STARS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


class Parameters(NamedTuple):
    """What a call of a function may look like."""

    positional: tuple[str, ...]
    keyword_only: tuple[str, ...]
    varargs: str | None
    varkw: str | None
    # Gives the defaults of the last positional parameters. Asked only where nothing else decides, because
    # torch.compile (2.13) cannot read those of a function that is made while it traces.
    defaults: Callable[[], tuple[Any, ...]]
    keyword_defaults: Callable[[], dict[str, Any]]

    def names(self) -> tuple[str, ...]:
        """Every named parameter, in order."""
        return (*self.positional, *self.keyword_only)

    def label(self, index: int) -> str:
        """The name of the positional argument number `index`."""
        if index < len(self.positional):
            return self.positional[index]
        return f"{self.varargs or 'args'}[{index - len(self.positional)}]"

    def positional_defaults(self) -> dict[str, Any]:
        """The defaults of positional parameters, by name."""
        defaults = self.defaults()
        return dict(zip(self.positional[len(self.positional) - len(defaults) :], defaults, strict=True))

    def without(self, name: str) -> tuple[str, ...]:
        """The positional parameters but for one."""
        return tuple(other for other in self.positional if other != name)

    def binds(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call gives every parameter that has no default."""
        needed = self.positional[: len(self.positional) - len(self.defaults())][len(args) :]
        needed += tuple(name for name in self.keyword_only if name not in self.keyword_defaults())
        return all(name in kwargs for name in needed)

    def required(self) -> int:
        """How many positional parameters have no default, `variables` not counted."""
        required = self.positional[: len(self.positional) - len(self.defaults())]
        return len(required) - ("variables" in required)

    def show(self, name: str) -> str:
        """The signature as a message shows it."""
        parts = [*self.positional]
        if self.varargs or self.keyword_only:
            parts.append(f"*{self.varargs or ''}")
        parts += self.keyword_only
        if self.varkw:
            parts.append(f"**{self.varkw}")
        return f"{name}({', '.join(parts)})"

    def without_first(self, count: int) -> Parameters:
        """The same with the first positional parameters already bound."""
        positional = self.positional[count:]
        return self._replace(positional=positional, defaults=lambda: _last(len(positional), self.defaults()))


# Parameters that a call did not give by position, each with its default, or None if it was given by name.
Left = list[tuple[str, Any]]


def left_positional(fun: Callable[..., Any], count: int, named: Collection[str]) -> Left:
    """What a call of `fun` with `count` positional arguments and those `named` left of the positional parameters."""
    own = parameters(fun)
    names = own.positional[count:] if own else ()
    return _with_defaults(names, named, own.positional_defaults if own else dict)


def left_keyword_only(fun: Callable[..., Any], named: Collection[str]) -> Left:
    """The same for the keyword-only parameters, all of them."""
    own = parameters(fun)
    return _with_defaults(own.keyword_only if own else (), named, own.keyword_defaults if own else dict)


def _with_defaults(names: Sequence[str], named: Collection[str], defaults: Callable[[], dict[str, Any]]) -> Left:
    """Pairs every name with its default; with None if it is `named`, or has none."""
    # Asked only where they are needed: torch.compile (2.13) cannot read those of a function that is made while it
    # traces.
    known = {} if all([name in named for name in names]) else defaults()
    return [(name, known.get(name)) for name in names]


def in_order(fun: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments in the order of the signature, those that it does not name last."""
    own = parameters(fun)
    if own is None:
        return kwargs
    known = {name: kwargs[name] for name in own.names() if name in kwargs}
    return known | {name: value for name, value in kwargs.items() if name not in known}


def by_position(fun: Callable[..., Any], count: int, kwargs: dict[str, Any]) -> list[Any]:
    """Arguments given by keyword to positional parameters, with the defaults of those between them."""
    pairs = left_positional(fun, count, kwargs)
    while pairs and pairs[-1][0] not in kwargs:
        pairs = pairs[:-1]
    return [kwargs.get(name, default) for name, default in pairs]


def takes_one(fun: Callable[..., Any]) -> bool:
    """Whether `fun` is a plain function of one positional parameter, as most rules are: a short cut."""
    if type(fun) is not FunctionType or hasattr(fun, "__wrapped__") or hasattr(fun, "__signature__"):
        return False
    code = fun.__code__
    only = code.co_argcount == 1 and not code.co_kwonlyargcount and not code.co_flags & _STARS
    return only and code.co_varnames[0] != "variables"


def parameters(fun: Callable[..., Any]) -> Parameters | None:
    """The parameters of `fun`, or None if it has no readable signature.

    A method or a partial has those of its function, but for what is bound already. A plain function, and an object that
    is called by one, is read from its code object. `inspect` reads all others, those with a `__wrapped__` among them.
    """
    if isinstance(fun, MethodType):
        whole = parameters(fun.__func__)
        return whole and whole.without_first(1)
    if isinstance(fun, functools.partial):
        whole = parameters(fun.func)
        return whole and _bind_keywords(whole.without_first(len(fun.args)), tuple(fun.keywords))
    if isinstance(fun, FunctionType) and not hasattr(fun, "__wrapped__") and not hasattr(fun, "__signature__"):
        return _from_code(fun)
    called = type(fun).__call__
    if isinstance(called, FunctionType) and not hasattr(fun, "__wrapped__") and not hasattr(fun, "__signature__"):
        return _from_code(called).without_first(1)
    return _from_inspect(fun)


def _from_code(fun: FunctionType) -> Parameters:
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


def _defaults(fun: FunctionType) -> tuple[Any, ...]:
    # The next line is what torch.compile shows when it stops there, so that is where the remedy stands.
    return fun.__defaults__ or ()  # torch.compile cannot read these: make them keyword-only, as in `*, k=7`


def _last(count: int, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The last `count` of `values`, or all if there are fewer."""
    return values[max(0, len(values) - count) :]


def _bind_keywords(whole: Parameters, bound: tuple[str, ...]) -> Parameters:
    """What a partial that binds the keywords `bound` leaves: from the first of them on, parameters are keyword-only."""
    at = next((index for index, name in enumerate(whole.positional) if name in bound), None)
    if at is None:
        return whole
    keyword_only = whole.positional[at:]
    return whole._replace(
        positional=whole.positional[:at],
        keyword_only=(*keyword_only, *whole.keyword_only),
        varargs=None,
        defaults=lambda: whole.defaults()[: -len(keyword_only)],
    )


def _from_inspect(fun: Callable[..., Any]) -> Parameters | None:
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):
        return None
    listed = signature.parameters.values()
    positional = [one for one in listed if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return Parameters(
        positional=tuple(one.name for one in positional),
        keyword_only=tuple(one.name for one in listed if one.kind is _KEYWORD_ONLY),
        varargs=next((one.name for one in listed if one.kind is one.VAR_POSITIONAL), None),
        varkw=next((one.name for one in listed if one.kind is one.VAR_KEYWORD), None),
        defaults=lambda: tuple(one.default for one in positional if one.default is not one.empty),
        keyword_defaults=lambda: {one.name: one.default for one in listed if one.kind is _KEYWORD_ONLY},
    )
