"""The rule of one run as it was at that run: Python binds names late, and a frozen rule does not see it."""

from __future__ import annotations

import contextlib
import dis
import functools
from collections.abc import Callable
from sys import getrefcount
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType
from typing import Any

# Python functions and the objects that call one: their cells are frozen with those of the rule.
_FUNCTIONS = (FunctionType, MethodType, functools.partial)

# Frameworks know functions of theirs by identity (autograd finds a derivative so), and a copy would be a stranger.
_FRAMEWORKS = frozenset(["autograd", "jax", "keras", "numpy", "scipy", "tensorflow", "torch"])

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class was made by a class statement


def freeze(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Copies a rule around what it reads now.

    Copied are its cells, those of the functions in them, and the object whose bound method or callable it is. A cell
    stays shared if one of these functions assigns to it, and an object if its methods assign to its attributes.
    Everything else (globals, containers, other objects) is read when the rule runs, as in any Python function.
    """
    if type(rule) is FunctionType:
        try:
            for cell in rule.__closure__ or ():
                # Where no other function has the cell, no other code can bind it again.
                if getrefcount(cell) > _ALONE or callable(cell.cell_contents):
                    break
            else:
                return rule
        except ValueError:  # a name that is not bound yet
            pass
    return _Freezer(rule).value(rule)  # type: ignore[no-any-return]


def _is_function(value: Any) -> bool:
    """Whether `freeze` follows a value that a rule calls."""
    if isinstance(value, FunctionType):
        return value.__globals__.get("__name__", "").partition(".")[0] not in _FRAMEWORKS
    return isinstance(value, _FUNCTIONS) or hasattr(type(value), "frozen_by")


class _Freezer:
    """Freezes the functions that one rule reaches through cells. Functions that share a cell share its copy."""

    def __init__(self, rule: Callable[..., Any]):
        self.copies: dict[int, Any] = {}
        self.cells: dict[int, CellType] = {}
        self._share_assigned(rule)

    def _share_assigned(self, rule: Any) -> None:
        """Notes the cells that a function assigns to: they stay the same cells."""
        waiting, seen = [rule], set()
        while waiting:
            value = waiting.pop()
            if id(value) in seen or not _is_function(value):
                continue
            seen.add(id(value))
            waiting.extend(_functions_in(value))
            if isinstance(value, FunctionType):
                names = _assigned(value.__code__)
                for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                    if name in names:
                        self.cells[id(cell)] = cell

    def value(self, value: Any) -> Any:
        """A frozen function; a copy of the object behind a method or a callable; anything else unchanged."""
        if id(value) in self.copies:
            return self.copies[id(value)]
        if isinstance(value, FunctionType):
            return self.function(value) if _is_function(value) else value
        if isinstance(value, MethodType):
            return MethodType(self.value(value.__func__), _copied(value.__self__, value.__func__))
        if isinstance(value, functools.partial):
            return type(value)(self.value(value.func), *value.args, **value.keywords)
        if hasattr(type(value), "frozen_by"):
            return value.frozen_by(self.value)
        call = type(value).__call__
        return _copied(value, call) if isinstance(call, FunctionType) else value

    def function(self, function: FunctionType) -> FunctionType:
        """The function around copies of its cells."""
        if function.__closure__ is None:
            return function
        cells = tuple([self.cells.setdefault(id(cell), CellType()) for cell in function.__closure__])
        copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
        self.copies[id(function)] = _with_attributes(copy, function)
        for cell, original in zip(cells, function.__closure__, strict=True):
            if cell is not original and not is_bound(cell) and is_bound(original):
                inside = original.cell_contents
                cell.cell_contents = self.value(inside) if _is_function(inside) else inside
        return copy


def _with_attributes(copy: FunctionType, function: FunctionType) -> FunctionType:
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    return copy


def is_bound(cell: CellType) -> bool:
    """Whether a cell holds something already."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _functions_in(value: Any) -> list[Any]:
    """What a function calls through its cells, as far as `freeze` follows it."""
    if isinstance(value, FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or () if is_bound(cell)]
    if isinstance(value, MethodType):
        return [value.__func__]
    if isinstance(value, functools.partial):
        return [value.func]
    return [value.__wrapped__]


def _copied(value: Any, method: Any) -> Any:
    """A shallow copy of the object behind a method, or the object itself if the method assigns to its attributes.

    The copy is made without the constructor and without `copy.copy`: a class may have given these another meaning.
    """
    kind = type(value)
    if not _is_plain(kind) or hasattr(kind, "__del__") or _assigns_attributes(method, kind, set()):
        return value
    copy = object.__new__(kind)
    for _, member in slots(kind):
        with contextlib.suppress(AttributeError):
            member.__set__(copy, member.__get__(value))
    if hasattr(value, "__dict__"):
        vars(copy).update(vars(value))
    return copy


def _is_plain(kind: type) -> bool:
    """Whether all that an object of a class holds is in its slots and its dict, and none of it in memory of C."""
    while kind is not object:
        own, base = vars(kind), kind.__base__ or object
        words = [name for name, member in own.items() if isinstance(member, MemberDescriptorType)]
        words += [name for name in ("__dict__", "__weakref__") if name in own]
        size = kind.__basicsize__ - base.__basicsize__
        if not kind.__flags__ & _HEAP_TYPE or size > len(words) * object().__sizeof__() // 2:
            return False
        kind = base
    return True


def _assigns_attributes(method: Any, kind: type, seen: set[CodeType]) -> bool:
    """Whether a method, or one that it calls by name, assigns to attributes."""
    code = getattr(method, "__code__", None)
    if code is None or code in seen:
        return False
    seen.add(code)
    names = _assigned_attributes(code)
    return names is None or any([_assigns_attributes(getattr(kind, name, None), kind, seen) for name in names])


@functools.lru_cache(4096)
def _assigned_attributes(code: CodeType) -> tuple[str, ...] | None:
    """The names that a function looks up, or None if it assigns to an attribute."""
    if any(step.opname in ("STORE_ATTR", "DELETE_ATTR") for step in dis.get_instructions(code)):
        return None
    names = set(code.co_names)
    for inner in _inner(code):
        found = _assigned_attributes(inner)
        if found is None:
            return None
        names.update(found)
    return tuple(names)


@functools.lru_cache(4096)
def _assigned(code: CodeType) -> frozenset[str]:
    """The names that a function closes over and assigns to, itself or in a function inside."""
    steps = dis.get_instructions(code)
    names = {step.argval for step in steps if step.opname in ("STORE_DEREF", "DELETE_DEREF")}
    return frozenset(names.union(*map(_assigned, _inner(code))).intersection(code.co_freevars))


def _inner(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


def slots(kind: type) -> list[tuple[str, MemberDescriptorType]]:
    """The slots of a class and its bases."""
    members = [item for base in kind.__mro__ if base.__flags__ & _HEAP_TYPE for item in vars(base).items()]
    return [(name, member) for name, member in members if isinstance(member, MemberDescriptorType)]


def _probe() -> FunctionType:
    value = None
    return lambda: value  # type: ignore[return-value]


# How many references `freeze` counts of a cell that one function has; each release of Python counts in its own way.
_ALONE = 0
while freeze(probe := _probe()) is not probe:
    _ALONE += 1
