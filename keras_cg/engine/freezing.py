"""Copies the rule of a run as it is then: Python looks a name up late, and a copy does not see it bound again."""

from __future__ import annotations

import contextlib
import dis
import functools
from collections.abc import Callable
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType
from typing import Any, NamedTuple

# Functions of frameworks are not copied: autograd, for example, finds the derivative of a function by its identity.
_FRAMEWORKS = frozenset(["autograd", "jax", "keras", "numpy", "scipy", "tensorflow", "torch"])

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class statement defined the class


def freeze(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Copies a rule, which then keeps reading what it reads now.

    Copied are its cells, the object whose bound method or callable it is, and the functions in its cells, defaults,
    attributes and the arguments of partials. A cell stays shared if one of these functions assigns to it, and an object
    if its methods assign to its attributes. Globals, containers and other objects are read when the rule runs.
    """
    if type(rule) is FunctionType and not rule.__defaults__ and not rule.__kwdefaults__:
        # Most rules are closures without functions: one loop takes a fifth of the time.
        alone = []
        try:
            for cell in rule.__closure__ or ():
                value = cell.cell_contents
                if callable(value):
                    break
                alone.append(CellType(value))
            else:
                if not alone:
                    return rule
                if not _writes(rule.__code__).cells:
                    return _function(rule, tuple(alone))
        except ValueError:  # a name that is not bound yet
            pass
    pairs = [(function, function.__closure__ or ()) for function in _functions(rule)]
    cells: dict[int, CellType] = {}
    copies: dict[int, Any] = {}
    for function, closure in pairs:
        named = zip(function.__code__.co_freevars, closure, strict=True)
        cells |= {id(cell): cell for name, cell in named if name in _writes(function.__code__).cells}
    # All copies are there before their cells are filled: functions may call each other.
    for function, closure in pairs:
        copies[id(function)] = _function(function, tuple([cells.setdefault(id(cell), CellType()) for cell in closure]))
    for function, closure in pairs:
        copy, keywords = copies[id(function)], function.__kwdefaults__ or {}
        if function.__defaults__:
            copy.__defaults__ = tuple([_frozen(part, copies) for part in function.__defaults__])
        copy.__kwdefaults__ = {name: _frozen(part, copies) for name, part in keywords.items()}
        for cell in closure:
            if cells[id(cell)] is not cell and is_bound(cell):
                cells[id(cell)].cell_contents = _frozen(cell.cell_contents, copies)
    return _frozen(rule, copies, is_called=True)  # type: ignore[no-any-return]


def _function(function: FunctionType, closure: tuple[CellType, ...]) -> FunctionType:
    """A function with other cells."""
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, closure)
    copy.__dict__.update(function.__dict__)
    return copy


def _functions(rule: Any) -> list[FunctionType]:
    """Finds the functions with cells or defaults that a rule reaches; the rule itself may be one of them."""
    found, seen, waiting = [], set(), [rule]
    for value in waiting:
        if id(value) in seen or not callable(value):
            continue
        seen.add(id(value))
        parts: list[Any] = []
        if isinstance(value, FunctionType):
            is_frameworks = value.__globals__.get("__name__", "").partition(".")[0] in _FRAMEWORKS
            defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            if not is_frameworks and (value.__closure__ or defaults):
                found.append(value)
                parts = [cell.cell_contents for cell in value.__closure__ or () if is_bound(cell)] + defaults
        elif isinstance(value, MethodType):
            parts = [value.__func__, *attributes(value.__self__).values()]
        elif isinstance(value, functools.partial):
            parts = [value.func, type(value.func).__call__, *value.args, *value.keywords.values()]
        elif hasattr(type(value), "frozen_by"):
            parts = [value.__wrapped__]
        elif value is rule:
            parts = [type(value).__call__, *attributes(value).values()]
        waiting += parts
    return found


def _frozen(value: Any, copies: dict[int, Any], is_called: bool = False) -> Any:
    """Returns the copy of a function, and of what calls one: an object only if the rule calls it; else the value."""
    if isinstance(value, FunctionType):
        return copies.get(id(value), value)
    call = type(value).__call__ if is_called else None
    if isinstance(call, FunctionType):
        copy = _copied(value, call, copies)
        return MethodType(copies[id(call)], copy) if id(call) in copies else copy
    if isinstance(value, MethodType):
        return MethodType(_frozen(value.__func__, copies), _copied(value.__self__, value.__func__, copies))
    if isinstance(value, functools.partial):
        keywords = {name: _frozen(part, copies) for name, part in value.keywords.items()}
        args = [_frozen(part, copies) for part in value.args]
        return type(value)(_frozen(value.func, copies, is_called=True), *args, **keywords)
    if hasattr(type(value), "frozen_by"):
        return value.frozen_by(lambda fun: _frozen(fun, copies))
    return value


def is_bound(cell: CellType) -> bool:
    """Whether a cell has a value already: Python compares an empty cell with another without looking inside."""
    return cell != CellType()


def _copied(value: Any, method: Any, copies: dict[int, Any]) -> Any:
    """Copies the object behind a method, but not if the method assigns to its attributes.

    The copy is shallow. It runs neither the constructor nor `copy.copy`, which a class may define in its own way.
    """
    kind = type(value)
    if not has_python_layout(kind) or hasattr(kind, "__del__") or _assigns_attributes(method, kind, set()):
        return value
    if id(value) not in copies:
        # First without attributes: these may be methods of the same object.
        copy = copies[id(value)] = object.__new__(kind)
        members = _slots(kind)
        for name, part in attributes(value).items():
            if name in members:
                members[name].__set__(copy, _frozen(part, copies))
            else:
                vars(copy)[name] = _frozen(part, copies)
    return copies[id(value)]


def attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object in its dict and in slots, by their names."""
    found = dict(getattr(value, "__dict__", {}))
    for name, member in _slots(type(value)).items():
        with contextlib.suppress(AttributeError):
            found[name] = member.__get__(value)
    return found


def _slots(kind: type) -> dict[str, MemberDescriptorType]:
    bases = [vars(base) for base in reversed(kind.__mro__) if base.__flags__ & _HEAP_TYPE]
    members = [item for base in bases for item in base.items()]
    return {name: member for name, member in members if isinstance(member, MemberDescriptorType)}


def has_python_layout(kind: type) -> bool:
    """Whether all values of an object of a class are in its slots and its dict, and none in memory of C."""
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
    writes = _writes(code)
    others = [getattr(kind, name, None) for name in writes.names]
    return writes.attributes or any([_assigns_attributes(other, kind, seen) for other in others])


class _Writes(NamedTuple):
    """The cells that a function assigns to, whether it assigns to attributes, and the names that it looks up."""

    cells: frozenset[str]
    attributes: bool
    names: frozenset[str]


@functools.lru_cache(4096)
def _writes(code: CodeType) -> _Writes:
    """Reads the code of a function and of those inside."""
    inner = [_writes(const) for const in code.co_consts if isinstance(const, CodeType)]
    steps = [(step.opname, step.argval) for step in dis.get_instructions(code)]
    cells = {name for operation, name in steps if operation in ("STORE_DEREF", "DELETE_DEREF")}
    attributes = any([operation in ("STORE_ATTR", "DELETE_ATTR") for operation, _ in steps])
    return _Writes(
        frozenset(cells.union(*[each.cells for each in inner]).intersection(code.co_freevars)),
        attributes or any([each.attributes for each in inner]),
        frozenset(code.co_names).union(*[each.names for each in inner]),
    )
