"""What a function can reach in a few steps: variables from outside, and the objects that it has at hand."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinFunctionType, CellType, FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any

from keras_cg.engine.functions import ATOMS, Decorated, Facts, facts, inner, is_stable
from keras_cg.engine.references import MISSING, TABLES, dict_of

# What the walk does with a value: nothing with data (tensors, numbers, texts), nor at another end; or it enters a
# function, what calls another one, a container, an object or a class.
DATA, END, FUNCTION, CALLER, CONTAINER, OBJECT, CLASS = range(7)
kinds: dict[type, int] = {}
_ENDS = (ModuleType, BuiltinFunctionType, CellType, slice, range, bytearray)
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, MappingProxyType)
# Whether the tensors of a loaded backend include a value. They are ends, too.
_are_tensors: list[Callable[[Any], bool]] = []


def note_tensors(is_tensor: Callable[[Any], bool]) -> None:
    """Lets the walk end at the tensors of a backend, of which `is_tensor` tells."""
    _are_tensors.append(is_tensor)
    kinds.clear()


def kind_of(value: Any) -> int:
    """Returns what the walk does with a value; it depends on the class."""
    kind = type(value)
    known = kinds.get(kind)
    if known is None:
        known = _kind_of(value, kind)
        if "<locals>" not in kind.__qualname__ and inner(value) is None:
            kinds[kind] = known
    return known


_users: dict[type, bool] = {}


def is_users(kind: type) -> bool:
    """Whether a class is neither Python's nor a framework's."""
    known = _users.get(kind)
    if known is None:
        known = not is_stable(kind.__module__)
        if "<locals>" not in kind.__qualname__:
            _users[kind] = known
    return known


def _kind_of(value: Any, kind: type) -> int:
    if kind is FunctionType:
        return FUNCTION
    if isinstance(value, (functools.partial, MethodType, Decorated)) or inner(value) is not None:
        return CALLER
    if isinstance(value, type):
        return END if is_stable(kind.__module__) and is_stable(value.__module__) else CLASS
    if isinstance(value, ATOMS) or any([is_tensor(value) for is_tensor in _are_tensors]):
        return DATA
    if isinstance(value, _ENDS):
        return END
    if isinstance(value, _CONTAINERS):
        return CONTAINER
    # Of the objects of frameworks, modules of torch have tables, and our recipes hold functions of the user.
    is_holder = kind is SimpleNamespace or kind.__module__.startswith("keras_cg.")
    return OBJECT if is_holder or is_users(kind) or TABLES[0] in dict_of(value) else END


# A longer container, or an object with more attributes, is data and no table of functions.
LONGEST = 100


def reachable(
    root: Any, static: Sequence[Any], frame: Facts | None, user: Any
) -> tuple[dict[int, tuple[str, CellType] | None], list[Any]]:
    """Finds the variables that functions from `root` and `static` on can read, by identity, and the objects at hand.

    A variable is None if one of the functions assigns it, but for what `user` alone does. Of functions that the run has
    defined, which have their code inside of `frame`, the variables are those of its own frame, which is over, or those
    of `user`. Objects at hand are `root`, its `self`, and what is in its cells and arguments.
    """
    cells: dict[int, tuple[str, CellType] | None] = {}
    objects: list[Any] = []
    state: list[int] = []
    seen: set[int] = set()
    inside: Any = () if frame is None else frame.inner
    # Each with the number of functions on the way: objects and containers are entered behind three of them at most.
    waiting = [(root, 0), *[(each, 1) for each in static]]
    for value, depth in waiting:
        kind = kinds.get(type(value))
        if kind is None:
            kind = kind_of(value)
        if kind <= END or id(value) in seen:
            continue
        seen.add(id(value))
        if kind == FUNCTION:
            known = facts(value.__code__)
            assigned = known.assigned - known.own if value is user else known.assigned
            for name, cell in named_cells(value):
                if id(value.__code__) not in inside:
                    cells.setdefault(id(cell), (name, cell))
                if name in assigned:
                    state.append(id(cell))
                waiting.append((content(cell), depth + 1))
            others = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            waiting += [(each, depth + 1) for each in others]
        elif kind == CALLER:
            waiting += [(each, depth) for each in _called(value)]
        elif depth < 4:
            if depth < 2 and kind != CONTAINER:
                objects.append(value)
            waiting += [(each, 4) for each in functions_in(value, kind)]
    for key in state:
        cells[key] = None
    return cells, objects


def named_cells(fun: Any) -> Iterable[tuple[str, CellType]]:
    """Returns the variables from outside of a function, with their names."""
    return zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True)


def content(cell: CellType) -> Any:
    """Returns what a variable is bound to; MISSING if nothing."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _called(value: Any) -> Sequence[Any]:
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    return (value.__self__, value.__func__) if type(value) is MethodType else (inner(value),)


def functions_in(value: Any, kind: int) -> list[Any]:
    """Lists the functions that a container or an object has, and those of a class that a function has defined."""
    found: list[Any] = []
    if kind == CONTAINER:
        members: Any = value.values() if isinstance(value, (dict, MappingProxyType)) else value
    else:
        members = dict_of(value).values() if kind == OBJECT else ()
        origin = value if kind == CLASS else type(value)
        if "<locals>" in origin.__qualname__:
            for each in vars(origin).values():
                found.append(each if type(each) is FunctionType else inner(each))
    if len(members) <= LONGEST:
        for each in members:
            if kinds.get(type(each), FUNCTION) >= FUNCTION and kind_of(each) in (FUNCTION, CALLER):
                found.append(each)
    return found


def inside(values: list[Any]) -> list[Any]:
    """Lists what the containers and objects among `values` have, if that is not much."""
    found: list[Any] = []
    for value in values:
        if kind_of(value) == OBJECT:
            members = dict_of(value)
            tables = [members, *[table for table in map(members.get, TABLES) if table]]
        else:
            tables = [value] if kind_of(value) == CONTAINER else []
        for table in tables:
            if len(table) <= LONGEST:
                found += table.values() if isinstance(table, (dict, MappingProxyType)) else table
    return found
