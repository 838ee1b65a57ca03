"""Reads the signature of a function or a rule.

`torch.compile` cannot trace `inspect.signature` of a function that is defined while it traces, as most rules are. So
plain functions, methods and partials are read from their code object, and everything else by `inspect`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from keras_cg import user_code
from keras_cg.engine.functions import Decorated, innermost

# What a rule may take by name, in any convention.
EXTRAS = ("variables", "needs_input_grad", "output")
# What a decorated function may take by name, as a keyword-only parameter.
NEEDS = "needs_input_grad"


class Parameters(NamedTuple):
    """The parameters of a function.

    `defaults` returns those of positional parameters by name. It is called only where nothing else decides, because
    torch.compile (2.13) cannot read the defaults of a function that is defined while it traces. `extras` are the names
    of what a rule gets beside every convention.
    """

    positional: tuple[str, ...]
    keyword_only: tuple[str, ...]
    varargs: str | None
    varkw: str | None
    defaults: Callable[[], dict[str, Any]]
    keyword_defaults: Callable[[], dict[str, Any]]
    extras: tuple[str, ...] = EXTRAS

    def names(self) -> tuple[str, ...]:
        """Returns every named parameter, in order."""
        return (*self.positional, *self.keyword_only)

    def label(self, index: int) -> str:
        """Returns the name of the positional argument number `index`."""
        if index < len(self.positional):
            return self.positional[index]
        return f"{self.varargs or 'args'}[{index - len(self.positional)}]"

    def plain(self) -> tuple[str, ...]:
        """Returns the positional parameters of a rule but for its extras, such as `variables`."""
        return tuple(name for name in self.positional if name not in self.extras)

    def binds(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call has an argument for every parameter that has no default."""
        known = {**self.defaults(), **self.keyword_defaults(), **kwargs}
        return all(name in known for name in (*self.positional[len(args) :], *self.keyword_only))

    def required(self) -> int:
        """Returns how many positional parameters have no default, its extras not counted."""
        return len([name for name in self.plain() if name not in self.defaults()])

    def show(self, name: str) -> str:
        """Returns the signature as a message shows it."""
        star = [f"*{self.varargs or ''}"] if self.varargs or self.keyword_only else []
        stars = [f"**{self.varkw}"] if self.varkw else []
        return f"{name}({', '.join([*self.positional, *star, *self.keyword_only, *stars])})"


def unbound(
    fun: Callable[..., Any], count: int, named: Collection[str], with_keyword_only: bool = False
) -> list[tuple[str, Any]]:
    """Returns the parameters that a call of `fun` with `count` positional arguments did not bind by position.

    Each has its default, or None if it has none or is among the `named` arguments. `needs_input_grad` is no argument.
    """
    found, pairs = parameters(fun), []
    if found is not None:
        keyword_only = tuple([name for name in found.keyword_only if name != NEEDS])
        groups = [(found.positional[count:], found.defaults), (keyword_only, found.keyword_defaults)]
        for names, defaults in groups if with_keyword_only else groups[:1]:
            # Asked only where they are needed: see `Parameters.defaults`.
            known = {} if all([name in named for name in names]) else defaults()
            pairs += [(name, known.get(name)) for name in names]
    return pairs


def in_order(fun: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns keyword arguments in the order of the signature, and those that it does not name last."""
    found = parameters(fun)
    known = {name: kwargs[name] for name in found.names() if name in kwargs} if found else {}
    return known | {name: value for name, value in kwargs.items() if name not in known}


def by_position(fun: Callable[..., Any], count: int, kwargs: dict[str, Any]) -> list[Any]:
    """Returns the keyword arguments of positional parameters, with the defaults of those between them."""
    pairs = unbound(fun, count, kwargs)
    while pairs and pairs[-1][0] not in kwargs:
        pairs = pairs[:-1]
    return [kwargs.get(name, default) for name, default in pairs]


def is_plain_function(fun: Any) -> bool:
    """Whether the code object of `fun` has its signature."""
    return type(fun) is FunctionType and not hasattr(fun, "__wrapped__") and not hasattr(fun, "__signature__")


def parameters(fun: Callable[..., Any]) -> Parameters | None:
    """Returns the parameters of `fun`, those of a method or a partial without the bound ones; None if unreadable.

    A plain function, and an object whose class calls one, is read from its code object. `inspect` reads all others,
    such as those with `__wrapped__`.
    """
    if isinstance(fun, MethodType):
        return _bind(parameters(fun.__func__), 1, {})
    if isinstance(fun, functools.partial):
        return _bind(parameters(fun.func), len(fun.args), fun.keywords)
    if is_plain_function(fun):
        return from_code(fun)
    called = type(fun).__call__
    if isinstance(called, FunctionType) and not hasattr(fun, "__wrapped__") and not hasattr(fun, "__signature__"):
        return _bind(from_code(called), 1, {})
    return _from_inspect(fun)


def _bind(whole: Parameters | None, count: int, keywords: dict[str, Any]) -> Parameters | None:
    """Binds the first positional parameters and some keywords: from these on, parameters are keyword-only."""
    if whole is None:
        return None
    positional = whole.positional[count:]
    first = next((index for index, name in enumerate(positional) if name in keywords), None)
    if first is None:
        return whole._replace(positional=positional)
    return whole._replace(
        positional=positional[:first],
        keyword_only=(*positional[first:], *whole.keyword_only),
        varargs=None,
        keyword_defaults=lambda: {**whole.defaults(), **whole.keyword_defaults(), **keywords},
    )


def asks(fun: Callable[..., Any]) -> bool:
    """Whether a function has a keyword-only parameter `needs_input_grad`, which is no argument of a call."""
    plain = innermost(fun)
    while plain is not None and hasattr(plain, "__wrapped__"):
        # What a decorated function is told, another one that calls it need not be told.
        if isinstance(plain.__wrapped__, Decorated):
            return False
        plain = innermost(plain.__wrapped__)
    return plain is not None and _asks(plain.__code__)


# As a constant, because torch.compile would trace all that reads a signature.
@user_code.constant_result
def _asks(code: CodeType) -> bool:
    return bool(code.co_kwonlyargcount) and NEEDS in of_code(code).keyword_only


def from_code(fun: Any) -> Parameters:
    """Reads the code and the defaults of a plain function."""
    code = fun.__code__
    names = code.co_varnames[: code.co_argcount]
    return of_code(code, lambda: _defaults(fun, names), lambda: fun.__kwdefaults__ or {})


def of_code(
    code: CodeType,
    defaults: Callable[[], dict[str, Any]] = dict,
    keyword_defaults: Callable[[], dict[str, Any]] = dict,
) -> Parameters:
    """Reads a code object: it names positional parameters, keyword-only ones, `*args`, `**kwargs`, in this order."""
    names = code.co_varnames
    first, last = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    has_varargs = bool(code.co_flags & inspect.CO_VARARGS)
    return Parameters(
        positional=names[:first],
        keyword_only=names[first:last],
        varargs=names[last] if has_varargs else None,
        varkw=names[last + has_varargs] if code.co_flags & inspect.CO_VARKEYWORDS else None,
        defaults=defaults,
        keyword_defaults=keyword_defaults,
    )


def _defaults(fun: Any, names: tuple[str, ...]) -> dict[str, Any]:
    # torch.compile shows the next line when it stops there, so the remedy stands in it.
    values = fun.__defaults__ or ()  # torch.compile cannot read these: make them keyword-only, as in `*, k=7`
    return dict(zip(names[len(names) - len(values) :], values, strict=True))


def _from_inspect(fun: Callable[..., Any]) -> Parameters | None:
    try:
        listed = [*inspect.signature(fun).parameters.values()]
    except (TypeError, ValueError):
        return None

    def names(*kinds: Any) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in listed if parameter.kind in kinds)

    kind = inspect.Parameter
    defaults = {parameter.name: parameter.default for parameter in listed if parameter.default is not kind.empty}
    return Parameters(
        positional=names(kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD),
        keyword_only=names(kind.KEYWORD_ONLY),
        varargs=next(iter(names(kind.VAR_POSITIONAL)), None),
        varkw=next(iter(names(kind.VAR_KEYWORD)), None),
        defaults=lambda: defaults,
        keyword_defaults=lambda: defaults,
    )
