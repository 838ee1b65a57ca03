"""Finds what a function can reach in a few steps: variables from outside, and the objects that it has at hand."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

from keras_cg.engine.functions import ATOMS, Decorated, Facts, facts, inner, is_stable
from keras_cg.engine.references import (
    CONTAINERS,
    MISSING,
    TABLES,
    dict_of,
    elements,
    is_module,
    names_of_framework,
    of_class,
)

# What the walk does with a value: nothing with data (tensors, numbers, texts), nor at another end; or it enters a
# function, what calls another one, a container, a class, or an object, of which a framework's sets no attributes.
DATA, END, FUNCTION, CALLER, CONTAINER, CLASS, OTHER, OBJECT = range(8)
_CALLED = (FUNCTION, CALLER)
_CALLERS = (functools.partial, MethodType, Decorated)
_ENDS = (ModuleType, BuiltinFunctionType, CellType, slice, range, bytearray)
# The kinds of classes that exist longer than a run; and the classes of data, of what has no parts, and of what leads to
# no function and no object.
kinds: dict[type, int] = {}
data: set[type] = set()
flat: set[type] = set()
quiet: set[type] = set()
# Whether the tensors of a loaded backend include a value. They are ends, too.
_are_tensors: list[Callable[[Any], bool]] = []

# A variable from outside: its cell, its name and what was there.
Variable = tuple[CellType, str, Any]


def note_tensors(is_tensor: Callable[[Any], bool]) -> None:
    """Lets the walk end at the tensors of a backend, of which `is_tensor` tells."""
    _are_tensors.append(is_tensor)
    for each in (kinds, data, flat, quiet):
        each.clear()


def kind_of(value: Any) -> int:
    """Returns what the walk does with a value; it depends on the class, but for a class itself."""
    kind = type(value)
    known = kinds.get(kind)
    if known is None:
        known = _kind_of(value, kind)
        # What a class is depends on the class itself, and a wrapper's kind on its attributes.
        is_told = known != CALLER or isinstance(value, _CALLERS)
        if is_told and not isinstance(value, type) and "<locals>" not in kind.__qualname__:
            kinds[kind] = known
            for classes, found in ((data, [DATA]), (flat, range(CONTAINER)), (quiet, [DATA, END, CONTAINER])):
                if known in found:
                    classes.add(kind)
    return known


def _kind_of(value: Any, kind: type) -> int:
    if kind is FunctionType:
        return FUNCTION
    if isinstance(value, _CALLERS) or inner(value) is not None:
        return CALLER
    is_users = not is_stable(kind.__module__)
    if isinstance(value, type):
        return CLASS if is_users or not is_stable(value.__module__) else END
    if isinstance(value, ATOMS) or any([is_tensor(value) for is_tensor in _are_tensors]):
        return DATA
    if isinstance(value, _ENDS):
        return END
    if isinstance(value, CONTAINERS):
        return CONTAINER
    # Of the objects of frameworks, modules of torch have tables, and our recipes hold functions of the user.
    is_holder = kind.__module__.startswith("keras_cg.") or is_module(dict_of(value))
    return OBJECT if is_users or kind is SimpleNamespace else OTHER if is_holder else END


# A longer container, or an object with more attributes, is data and no table of functions.
_LONGEST = 100


def reachable(
    root: Any, static: Sequence[Any], frame: Facts | None, user: Any
) -> tuple[dict[int, Variable | None], list[Any]]:
    """Finds the variables that functions from `root` and `static` on can read, by identity, and the objects at hand.

    A variable is None if one of the functions assigns it, but for what `user` alone does. Of functions that the run has
    defined, which have their code inside of `frame`, the variables are those of its own frame, which is over, or those
    of `user`. Objects at hand are `root`, its `self`, what is in its cells and arguments, and in attributes of these.
    """
    cells: dict[int, Variable | None] = {}
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
            is_of_run = id(value.__code__) in inside and shares(value, user)
            for name, cell in named_cells(value):
                part = content(cell)
                if not is_of_run:
                    cells[id(cell)] = cell, name, part
                if name in assigned:
                    state.append(id(cell))
                if part is value:  # which sets attributes of its own
                    objects.append(value)
                waiting.append((part, depth + 1))
            others = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            waiting += [(each, depth + 1) for each in others]
        elif kind == CALLER:
            waiting += [(each, depth) for each in _called(value)]
        elif depth < 4:
            # Behind objects and containers, only functions, and the objects in attributes.
            waiting += [(each, 4 if kind_of(each) < CONTAINER else 3) for each in members(value, kind, depth < 2)]
        if kind >= OTHER and depth < 4:
            objects += [value] if depth or kind == OTHER else [value, type(value)]
        elif (kind == CLASS and depth < 2) or (kind < CONTAINER and depth == 1):
            objects.append(value)
    for key in state:
        cells[key] = None
    return cells, objects


def named_cells(fun: Any) -> Iterable[tuple[str, CellType]]:
    """Returns the variables from outside of a function, with their names."""
    return zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True)


def shares(fun: FunctionType, user: Any) -> bool:
    """Whether a function with a code inside that of `user` reads the variables of `user`.

    Another function of the same factory has functions of this code, too, with variables of its own.
    """
    if not user.__closure__ or not fun.__closure__:
        return True
    own = dict(named_cells(user))
    return all([own.get(name, cell) is cell for name, cell in named_cells(fun)])


def content(cell: CellType) -> Any:
    """Returns what a variable is bound to; MISSING if nothing."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def leads_by_defaults(fun: FunctionType) -> bool:
    """Whether the defaults of a function lead to more than data."""
    if not fun.__defaults__ and not fun.__kwdefaults__:
        return False
    return any([kind_of(each) != DATA for each in (*(fun.__defaults__ or ()), *(fun.__kwdefaults__ or {}).values())])


def leads_outside(user: Any) -> bool:
    """Whether a function has variables from outside, or defaults that lead to more than data."""
    return type(user) is not FunctionType or bool(user.__closure__) or leads_by_defaults(user)


def are_bound(variables: Sequence[Variable], functions: Sequence[FunctionType]) -> bool:
    """Whether variables are bound to what they were, and functions have no attributes and no defaults."""
    try:
        for cell, _, value in variables:
            if cell.cell_contents is not value:
                return False
    except ValueError:  # a variable that is deleted
        return False
    return not any([fun.__dict__ or fun.__defaults__ or fun.__kwdefaults__ for fun in functions])


def add_cells(fun: FunctionType, cells: dict[int, Variable | None], objects: list[Any]) -> bool:
    """Adds the variables of a function, and its helpers to the objects; returns False if they lead to more."""
    for name, cell in named_cells(fun):
        value = content(cell)
        if type(value) not in data:
            if not add_helper(value, cells):
                return False
            objects += [value] if type(value) is FunctionType else []
        cells[id(cell)] = cell, name, value
    return True


def add_helper(value: Any, cells: dict[int, Variable | None]) -> bool:
    """Adds the variables of a function that leads to data alone; returns False if a value leads to more."""
    if _is_end(value):
        return True
    if type(value) is not FunctionType or value.__dict__ or facts(value.__code__).assigned or leads_by_defaults(value):
        return False
    for name, cell in named_cells(value):
        part = content(cell)
        if not _is_end(part):
            return False
        cells.setdefault(id(cell), (cell, name, part))
    return True


def _is_end(value: Any) -> bool:
    """Whether a value is data, or a module; an object of C may lead to the variables of a function."""
    return type(value) in (ModuleType, *ATOMS) or kind_of(value) == DATA


def _called(value: Any) -> Sequence[Any]:
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    return (value.__self__, value.__func__) if type(value) is MethodType else (inner(value),)


def members(value: Any, kind: int, is_near: bool) -> list[Any]:
    """Lists the functions of a container, of an object, or of a class that a function defined; and objects there."""
    found: list[Any] = [value.default_factory] if isinstance(value, collections.defaultdict) else []
    if kind >= CLASS:
        for base in (*(local_bases(value) if kind == CLASS else ()), *local_bases(type(value))):
            found += [each for each in vars(base).values() if kind_of(each) in (*_CALLED, OBJECT)]
    wanted = (*_CALLED, OTHER, OBJECT) if is_near and kind != CONTAINER else _CALLED
    parts = inside(value, kind)
    if not quiet.issuperset(map(type, parts)):
        found += [each for each in parts if kind_of(each) in wanted]
    return found


@of_class
def local_bases(kind: type) -> Sequence[type]:
    """Lists a class and its bases, as far as functions defined them."""
    return [base for base in kind.__mro__ if "<locals>" in base.__qualname__]


def leads_on(value: Any) -> bool:
    """Whether an object may lead to functions or to other objects."""
    return bool(local_bases(type(value))) or not quiet.issuperset(map(type, inside(value, OBJECT)))


def inside(value: Any, kind: int) -> Iterable[Any]:
    """Returns what a container or an object has; nothing if that is much."""
    if kind == CONTAINER:
        found = elements(value)
    elif kind >= OTHER:
        attributes = dict_of(value)
        found = attributes.values()
        if is_module(attributes):
            own = map(attributes.get, attributes.keys() - names_of_framework(type(value)))
            found = [*own, *attributes[TABLES[1]].values(), *attributes[TABLES[2]].values()]
    else:
        return ()
    return found if len(found) <= _LONGEST else ()
