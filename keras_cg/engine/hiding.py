"""Whether a tensor may be reached from something that nobody opens: an object, a class, an iterator."""

from __future__ import annotations

import contextlib
import functools
import gc
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy

# How many things are looked at before something is taken to hide a tensor: more would cost more than it may save.
_PATIENCE = 200

_NOTHING = (
    *(type(None), bool, int, float, complex, str, bytes, range, type(...), numpy.dtype, numpy.generic),
    *(types.GetSetDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType, MemberDescriptorType),
    *(types.ClassMethodDescriptorType, types.CodeType, ModuleType),
)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


def may_hide(value: Any, is_tensor: Callable[[Any], bool], scope: dict[str, Any] | None = None) -> bool:
    """Whether a tensor may be reached from `value`: yes, unless everything there is known to hold none.

    Looked through are containers, attributes, slots, classes, and what functions close over. Functions that a module
    defines are passed over, but for those whose globals are `scope`, which may read what a run has put there.
    """
    return any(True for _ in _walk(value, is_tensor, scope, ()))


def reached(
    value: Any, is_tensor: Callable[[Any], bool], scope: dict[str, Any] | None, passed: tuple[type, ...]
) -> list[Any]:
    """The tensors that are reached from `value` by the same ways; what is of the types `passed` is passed over."""
    return [tensor for tensor in _walk(value, is_tensor, scope, passed) if tensor is not None]


def _walk(
    value: Any, is_tensor: Callable[[Any], bool], scope: dict[str, Any] | None, passed: tuple[type, ...]
) -> Iterator[Any]:
    """The tensors there, and None for each thing of which nobody knows whether it holds one."""
    stack: list[Any] = [value]
    seen: set[int] = set()
    closed = (*_NOTHING, *passed)
    while stack and len(seen) <= _PATIENCE:
        value = stack.pop()
        if is_tensor(value):
            yield value
            continue
        if isinstance(value, closed) or id(value) in seen:
            continue
        seen.add(id(value))
        parts = _parts(value, scope)
        if parts is None:
            yield None
        stack += parts or ()
    if stack:
        yield None


def _parts(value: Any, scope: dict[str, Any] | None) -> Iterable[Any] | None:
    """What can be reached from something in one step; None if nobody knows."""
    if isinstance(value, FunctionType):
        return _of_function(value, scope)
    if isinstance(value, type):
        return [part for base in value.__mro__ if base is not object for part in vars(base).values()]
    if isinstance(value, (dict, types.MappingProxyType)):
        return [*value.keys(), *value.values(), *_attributes(value)]
    if isinstance(value, (list, tuple, set, frozenset)) or type(value) in _VIEWS:
        return [*value, *_attributes(value)]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):
        return [value.__self__]
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, (staticmethod, classmethod)):
        return [value.__func__]
    if isinstance(value, (functools.partial, functools.partialmethod)):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, numpy.ndarray):
        return list(value.flat) if value.dtype == object else []
    if isinstance(value, weakref.ref):
        return [value(), *_attributes(value)]
    if isinstance(value, Iterator):
        return None
    return [*getattr(value, "args", ()), *_attributes(value)] if isinstance(value, BaseException) else _of_object(value)


def _of_object(value: Any) -> Iterable[Any] | None:
    attributes = [*_attributes(value)]
    kind = type(value)
    # Something written in C, such as a dtype, a device or a lock, which has neither attributes nor items.
    is_closed = not hasattr(value, "__dict__") and not hasattr(kind, "__len__") and not hasattr(kind, "__get__")
    if attributes or hasattr(value, "__dict__"):
        return [*attributes, kind]
    # The collector of garbage is told of all that such a thing refers to, as `operator.methodcaller` to its arguments.
    return [kind, *gc.get_referents(value)] if is_closed else None


def _of_function(function: FunctionType, scope: dict[str, Any] | None) -> Iterable[Any]:
    parts = [*function.__dict__.values(), *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # nothing was assigned to it yet
            parts.append(cell.cell_contents)
    if scope is not None and function.__globals__ is scope:
        parts += [scope[name] for name in function.__code__.co_names if name in scope]
    return parts


def _attributes(value: Any) -> Iterator[Any]:
    """The attributes of an object, those in slots included."""
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        for member in vars(kind).values():
            if isinstance(member, MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # nothing was assigned to it yet
                    yield member.__get__(value)
