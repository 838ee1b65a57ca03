"""Pickles functions that other functions return, such as `grad(f)`, as the calls that return them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

from keras_cg import user_code

P = ParamSpec("P")
Function = TypeVar("Function", bound=Callable[..., Any])


def picklable(maker: Callable[P, Function]) -> Callable[P, Function]:
    """Decorates a function that returns functions: these can be pickled, if its arguments can."""

    @functools.wraps(maker)
    def make(*args: P.args, **kwargs: P.kwargs) -> Function:
        function: Any = maker(*args, **kwargs)
        # Dynamo of torch (2.13) makes no object of a subclass of `partial` while it traces.
        if user_code.is_traced_by_dynamo():
            return function  # type: ignore[no-any-return]
        if isinstance(function, FunctionType):
            derived = functools.update_wrapper(_Derived(function), function)
            # The `__wrapped__` of the function, and not the function itself.
            vars(derived).update(vars(function))
            function = derived
        function._origin = make, args, kwargs
        return function  # type: ignore[no-any-return]

    return make


class _Derived(functools.partial):  # type: ignore[type-arg]
    """A function with its name, and the call that returned it."""

    __qualname__: str
    _origin: Any

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the function. `inspect.getfullargspec`, which Keras calls, finds none of a subclass."""
        return inspect.signature(self.func)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # No `MethodType`, which pickle would save by the name of the function that this one was derived from.
        return self if instance is None else functools.partial(self, instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return reduced(self, self.__qualname__, self._origin)


def reduced(function: Any, qualname: str, origin: Any) -> str | tuple[Any, ...]:
    """Returns what pickle saves of a function: its name if it is found by that, else the call that returned it."""
    found: Any = sys.modules.get(function.__module__)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    if found is function or origin is None:
        return qualname
    maker, args, kwargs = origin
    return functools.partial(maker, **kwargs), args
