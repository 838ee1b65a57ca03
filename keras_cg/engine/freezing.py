"""Keeps the rule of a run as it is then: Python looks a name up late, and a copy does not see it bound again.

Only names are kept: the cells of the rule, and of the functions that its run defined. Objects, containers and functions
from elsewhere stay themselves, and are read when the rule runs. Where that could go wrong, a `Watch` notices it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import CellType, FunctionType, MethodType
from typing import Any

from keras_cg.engine.functions import (
    Decorated,
    facts,
    inner,
    innermost,
    is_bound,
    is_method,
    references,
)
from keras_cg.engine.watching import Entry, Watch, of_cells, of_owner


def freeze(
    rule: Callable[..., Any], function: Callable[..., Any]
) -> tuple[Callable[..., Any], Watch | None, list[Any] | None]:
    """Copies the rule of a run of `function`, which then keeps what its names are bound to now.

    A cell stays shared if a function that the rule reaches assigns to it. Returns also what has to be watched, and what
    a plain closure holds; None for any other rule.
    """
    if type(rule) is FunctionType and not (known := facts(rule.__code__)).assigned:
        cells = rule.__closure__ or ()
        try:
            values = [cell.cell_contents for cell in cells]
            if rule.__defaults__ or rule.__kwdefaults__:
                values += [*(rule.__defaults__ or ()), *(rule.__kwdefaults__ or {}).values()]
            # Most rules are closures without functions of their run: one loop takes a fifth of the time.
            helpers = []
            for value in values:
                if _leads(value):
                    if type(value) is not FunctionType or not _is_end(value):
                        break
                    helpers.append(value)
            else:
                if helpers and any(map(_Definitions(rule, function).__contains__, helpers)):
                    return *_freeze(rule, function), None
                copy = _function(rule, tuple(map(CellType, values[: len(cells)]))) if cells else rule
                entries = [*_entries(copy, copy, {id(copy)}, set())] if known.has_self else []
                for helper in helpers:
                    entries += of_cells(helper, frozenset())
                    values += references(helper)
                return copy, Watch(entries) if entries else None, values
        except ValueError:  # a name that is not bound yet
            pass
    return *_freeze(rule, function), None


def _leads(value: Any) -> bool:
    """Whether a value may lead to a function that the run has defined."""
    if callable(value) and (isinstance(value, (FunctionType, type, Decorated)) or inner(value) is not None):
        return True
    return "<locals>" in type(value).__qualname__


def _is_end(fun: FunctionType) -> bool:
    """Whether a function assigns no name of another one, and leads to none."""
    return not facts(fun.__code__).assigned and not any(map(_leads, references(fun)))


def _freeze(rule: Any, function: Any) -> tuple[Any, Watch | None]:
    definitions = _Definitions(rule, function)
    found = _reached(rule, definitions)
    copied = {key for key, (value, _) in found.items() if type(value) is FunctionType and value in definitions}
    if type(rule) is FunctionType:
        copied.add(id(rule))
    while more := {key for key, (value, parts) in found.items() if _refers(value, parts, copied)} - copied:
        # A wrapper such as `torch.no_grad()(rule)` is copied because it refers to what is copied.
        copied |= more
    chosen = [value for key, (value, _) in found.items() if key in copied]
    functions = [value for value in chosen if type(value) is FunctionType]
    shared = {id(cell) for value, _ in found.values() for cell in _assigned_cells(value)}
    cells = {id(cell): cell for fun in functions for cell in fun.__closure__ or () if id(cell) in shared}
    # All copies are there before their cells are filled: functions may call each other.
    copies: dict[int, Any] = {
        id(fun): _function(fun, tuple([cells.setdefault(id(cell), CellType()) for cell in fun.__closure__ or ()]))
        for fun in functions
    }
    for fun in functions:
        copy = copies[id(fun)]
        copy.__defaults__ = fun.__defaults__ and tuple([_replaced(part, copies) for part in fun.__defaults__])
        copy.__kwdefaults__ = {name: _replaced(part, copies) for name, part in (fun.__kwdefaults__ or {}).items()}
        for cell in fun.__closure__ or ():
            if cells[id(cell)] is not cell and is_bound(cell):
                cells[id(cell)].cell_contents = _replaced(cell.cell_contents, copies)
    for value, _ in found.values():
        if isinstance(value, type):
            _define_again(value, copies)
    entries: list[Entry] = []
    for value, _ in found.values():
        entries += _entries(value, rule, copied, shared)
        for fun in _fixed(value, rule, definitions):
            # What it reaches stays itself, because nothing can put a copy there.
            entries += [entry for each, _ in _reached(fun, definitions).values() for entry in of_cells(each, shared)]
    return _replaced(rule, copies), Watch(entries) if entries else None


def _function(function: FunctionType, closure: tuple[CellType, ...]) -> FunctionType:
    """Returns a function with other cells, and the same attributes: a function may keep a state in them."""
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__ = function.__dict__
    return copy


# --- which functions a rule reaches, and which of them its run defined -----------------------------------------------


class _Definitions:
    """Tells which functions a run of `function` has defined, or the scope that has defined its rule."""

    def __init__(self, rule: Any, function: Any):
        self.codes: frozenset[int] = frozenset()
        user = name = innermost(function)
        while user is not None:
            name = user.__name__
            self.codes |= facts(user.__code__).inner
            wrapped = user.__dict__.get("__wrapped__")
            user = None if wrapped is None else innermost(wrapped)
        # AutoGraph of TensorFlow (2.21) compiles the functions inside of a function again, under such a name.
        self.rewritten = f"inner_factory.<locals>.tf__{name}.<locals>."
        inside = innermost(rule)
        self.scope = None if inside is None else facts(inside.__code__).scope

    def by_run(self, fun: Any) -> bool:
        """Whether the run itself has defined a function."""
        return fun is not None and (id(fun.__code__) in self.codes or self.rewritten in fun.__code__.co_qualname)

    def __contains__(self, fun: FunctionType) -> bool:
        return self.by_run(fun) or (self.scope is not None and facts(fun.__code__).scope == self.scope)


def _reached(rule: Any, definitions: _Definitions) -> dict[int, tuple[Any, list[Any]]]:
    """Finds the functions that a rule reaches, and what leads to them, each with what it refers to itself."""
    found: dict[int, tuple[Any, list[Any]]] = {}
    waiting = [rule]
    if type(rule) is not FunctionType and type(type(rule).__call__) is FunctionType:
        waiting.append(type(rule).__call__)
    for value in waiting:
        if id(value) not in found:
            parts = _inside(value, definitions)
            if parts is not None or value is rule:
                found[id(value)] = value, parts or []
                waiting += parts or []
    return found


def _inside(value: Any, definitions: _Definitions) -> list[Any] | None:
    kind = type(value)
    if kind is FunctionType or isinstance(value, functools.partial):
        return references(value)
    if kind is MethodType:
        return [value.__func__, value.__self__]
    if isinstance(value, type):
        methods = [innermost(member) for member in vars(value).values() if is_method(member)]
        bases = [base for base in value.__bases__ if "<locals>" in base.__qualname__]
        return [*methods, *bases] if bases or any(map(definitions.by_run, methods)) else None
    if callable(value) and inner(value) is not None:
        return [inner(value)]
    # A class statement inside of a function says so in the name of the class.
    return [kind] if "<locals>" in kind.__qualname__ else None


def _refers(value: Any, parts: list[Any], copied: set[int]) -> bool:
    """Whether a function refers to one that is copied, and can be copied itself."""
    is_copyable = type(value) in (FunctionType, MethodType) or isinstance(value, (functools.partial, Decorated))
    return is_copyable and not copied.isdisjoint(map(id, parts))


def _assigned_cells(value: Any) -> Iterator[CellType]:
    if type(value) is FunctionType and value.__closure__:
        assigned = facts(value.__code__).assigned
        named = zip(value.__code__.co_freevars, value.__closure__, strict=True)
        yield from [cell for name, cell in named if name in assigned]


def _replaced(value: Any, copies: dict[int, Any]) -> Any:
    """Returns the copy of a function, and of what calls one; any other value unchanged."""
    if id(value) in copies:
        return copies[id(value)]
    if type(value) is MethodType:
        fun: Any = value.__func__
        return MethodType(copies[id(fun)], value.__self__) if id(fun) in copies else value
    if isinstance(value, functools.partial):
        parts = references(value)
        others = [_replaced(part, copies) for part in parts]
        if any([one is not two for one, two in zip(parts, others, strict=True)]):
            count = 1 + len(value.args)
            kind: Any = type(value)
            copies[id(value)] = kind(*others[:count], **dict(zip(value.keywords, others[count:], strict=True)))
            return copies[id(value)]
    if isinstance(value, Decorated) and (fun := _replaced(value.__wrapped__, copies)) is not value.__wrapped__:
        copies[id(value)] = value.of(fun)
        return copies[id(value)]
    return value


def _define_again(kind: type, copies: dict[int, Any]) -> None:
    """Puts the copies of methods into a class that the run defined; so it and its objects keep their identity."""
    for name, member in [*vars(kind).items()]:
        copy = copies.get(id(member if type(member) is FunctionType else inner(member))) if is_method(member) else None
        if isinstance(member, functools.cached_property) and copy is not None:
            member.func = copy
        elif copy is not None:
            if isinstance(member, (staticmethod, classmethod)):
                copy = type(member)(copy)
            elif isinstance(member, property):
                copy = property(copy, member.fset, member.fdel, member.__doc__)
            type.__setattr__(kind, name, copy)


def _entries(value: Any, rule: Any, copied: set[int], shared: set[int]) -> Iterator[Entry]:
    """Yields what has to be watched because of one value that a rule reaches."""
    if type(value) is FunctionType and id(value) not in copied:
        yield from of_cells(value, shared)
    elif type(value) is FunctionType and "self" in value.__code__.co_freevars:
        cell = (value.__closure__ or ())[value.__code__.co_freevars.index("self")]
        yield from of_owner(cell.cell_contents, value) if is_bound(cell) else ()
    elif type(value) is MethodType:
        yield from of_owner(value.__self__, innermost(value))
    elif value is rule and type(type(value).__call__) is FunctionType:
        yield from of_owner(value, type(value).__call__)


def _fixed(value: Any, rule: Any, definitions: _Definitions) -> list[Any]:
    """Lists the functions that stay in their place in an object: what a framework has wrapped, and attributes."""
    if isinstance(value, (FunctionType, type, functools.partial, Decorated)):
        return []
    owner = value.__self__ if type(value) is MethodType else value
    found = [part for part in getattr(owner, "__dict__", {}).values() if type(part) is FunctionType]
    if value is rule and type(value) is not MethodType and not definitions.by_run(innermost(type(value).__call__)):
        found.append(innermost(type(value).__call__))
    return [fun for fun in found if fun is not None]
