"""Reading signatures: which parameters a function or a rule has.

`inspect.signature` knows every callable, but `torch.compile` cannot trace it on a function that is made
while it traces, and most rules are. So plain functions, methods and partials are read from their code
object, and everything else by `inspect`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, NamedTuple

_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY


class Parameters(NamedTuple):
    """What a call of a function may look like."""

    positional: tuple[str, ...]
    keyword_only: tuple[str, ...]
    varargs: str | None
    varkw: str | None
    # The defaults of the last positional parameters, or None. Looked at as late as possible: torch.compile
    # knows that there are some, but not how many if one of them is a tensor.
    defaults: tuple[Any, ...] | None

    def names(self) -> tuple[str, ...]:
        """Every named parameter, in order."""
        return (*self.positional, *self.keyword_only)

    def label(self, index: int) -> str:
        """The name of the positional argument number `index`."""
        if index < len(self.positional):
            return self.positional[index]
        return f"{self.varargs or 'args'}[{index - len(self.positional)}]"

    def without_first(self, count: int) -> Parameters:
        """The same with the first positional parameters already bound."""
        positional = self.positional[count:]
        defaults = self.defaults
        if defaults is not None and len(defaults) > len(positional):
            defaults = defaults[len(defaults) - len(positional) :]
        return self._replace(positional=positional, defaults=defaults)


def parameters(fun: Callable[..., Any]) -> Parameters | None:
    """The parameters of `fun`, or None if it has no readable signature."""
    if isinstance(fun, MethodType):
        found = parameters(fun.__func__)
        return found and found.without_first(1)
    if isinstance(fun, functools.partial):
        found = parameters(fun.func)
        return found and _bind_keywords(found.without_first(len(fun.args)), tuple(fun.keywords))
    if isinstance(fun, FunctionType) and not hasattr(fun, "__wrapped__") and not hasattr(fun, "__signature__"):
        return _from_code(fun)
    called = getattr(type(fun), "__call__", None)
    if isinstance(called, FunctionType) and not hasattr(fun, "__wrapped__") and not hasattr(fun, "__signature__"):
        return _from_code(called).without_first(1)
    return _from_inspect(fun)


def _from_code(fun: FunctionType) -> Parameters:
    code = fun.__code__
    names = code.co_varnames
    first, last = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    has_varargs = bool(code.co_flags & inspect.CO_VARARGS)
    return Parameters(
        positional=names[:first],
        keyword_only=names[first:last],
        varargs=names[last] if has_varargs else None,
        varkw=names[last + has_varargs] if code.co_flags & inspect.CO_VARKEYWORDS else None,
        defaults=fun.__defaults__,
    )


def _bind_keywords(found: Parameters, bound: tuple[str, ...]) -> Parameters:
    """From the first parameter on that a partial binds by keyword, all are keyword-only."""
    at = next((index for index, name in enumerate(found.positional) if name in bound), None)
    if at is None:
        return found
    defaults = found.defaults
    if defaults is not None:
        kept = max(0, len(defaults) - (len(found.positional) - at))
        defaults = defaults[:kept] or None
    return found._replace(
        positional=found.positional[:at],
        keyword_only=(*found.positional[at:], *found.keyword_only),
        varargs=None,
        defaults=defaults,
    )


def _from_inspect(fun: Callable[..., Any]) -> Parameters | None:
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):
        return None
    found = signature.parameters.values()
    positional = [each for each in found if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return Parameters(
        positional=tuple(each.name for each in positional),
        keyword_only=tuple(each.name for each in found if each.kind is _KEYWORD_ONLY),
        varargs=next((each.name for each in found if each.kind is each.VAR_POSITIONAL), None),
        varkw=next((each.name for each in found if each.kind is each.VAR_KEYWORD), None),
        defaults=tuple(each.default for each in positional if each.default is not each.empty) or None,
    )
