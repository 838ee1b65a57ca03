"""Functions of Python, as data: what their code says, what they call and what they refer to."""

from __future__ import annotations

import dis
import functools
import itertools
import weakref
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

# Values that are equal if Python says so; each is as good as another equal one.
ATOMS = (type(None), bool, int, float, complex, str, bytes)


class Decorated:
    """A function around `__wrapped__`; `of` returns the same around another one."""

    __wrapped__: Any

    def of(self, fun: Any) -> Any:
        """Returns this function around `fun`."""
        raise NotImplementedError


_ASKS = "LOAD_ATTR", "requires_grad"


class Facts:
    """Facts about the code of a function, with the codes inside of it.

    Attributes:
        assigned: The free names that it assigns.
        names: The names of globals and attributes, and texts that may be names, as in `getattr(self, "x")`.
        inner: The identities of the codes of the functions that it defines.
        asks: The names whose `requires_grad` it reads.
        has_self: Whether one of its free names is `self`.
        scope: The file and the name of the function that has defined it, if one has.
        style: How a rule of this code is called, once `conventions.style` has read it.
    """

    style: Any
    asks: frozenset[str]
    assigned: frozenset[str]
    names: frozenset[str]

    def __init__(self, code: CodeType):
        self.code = code
        inner = [facts(const) for const in code.co_consts if isinstance(const, CodeType)]
        steps = [*dis.get_instructions(code)]
        stored = {step.argval for step in steps if step.opname in ("STORE_DEREF", "DELETE_DEREF")}
        self.assigned = frozenset(stored).union(*[each.assigned for each in inner]).intersection(code.co_freevars)
        texts = [const for const in code.co_consts if isinstance(const, str) and const.isidentifier()]
        self.names = frozenset([*code.co_names, *texts]).union(*[each.names for each in inner])
        self.inner: frozenset[int] = frozenset([id(each.code) for each in inner]).union(*[each.inner for each in inner])
        asked = [one.argval for one, two in itertools.pairwise(steps) if (two.opname, two.argval) == _ASKS]
        self.asks = frozenset(map(str, asked)).union(*[each.asks.intersection(each.code.co_freevars) for each in inner])
        self.has_self = "self" in code.co_freevars
        scope, is_inside, _ = code.co_qualname.rpartition(".<locals>.")
        self.scope = (code.co_filename, scope) if is_inside else None
        self.attributes: weakref.WeakKeyDictionary[type, frozenset[str]] = weakref.WeakKeyDictionary()


# By identity, because the hash of a code is computed again each time. Each entry keeps its code alive.
_facts: dict[int, Facts] = {}


def facts(code: CodeType) -> Facts:
    """Returns what a code says; read once."""
    known = _facts.get(id(code))
    if known is None:
        if len(_facts) >= 10_000:
            _facts.clear()
        known = _facts[id(code)] = Facts(code)
    return known


def inner(fun: Any) -> Any:
    """Returns what a partial, a method, a descriptor or a wrapper calls; None for anything else."""
    if isinstance(fun, functools.partial):
        return fun.func
    if isinstance(fun, (MethodType, staticmethod, classmethod)):
        return fun.__func__
    if isinstance(fun, property):
        return fun.fget
    if isinstance(fun, functools.cached_property):
        return fun.func
    return getattr(fun, "__dict__", {}).get("__wrapped__")


def innermost(fun: Any) -> Any:
    """Returns the plain function behind partials, methods, wrappers and callable objects; None if there is none."""
    while type(fun) is not FunctionType:
        called = inner(fun)
        if called is None:
            call = type(fun).__call__
            return call if type(call) is FunctionType else None
        fun = called
    return fun


def is_method(member: Any) -> bool:
    """Whether a member of a class is Python code that an object calls or looks up."""
    return isinstance(member, (FunctionType, staticmethod, classmethod, property, functools.cached_property))


def references(fun: Any) -> list[Any]:
    """Lists what a function has in its cells and defaults; of a partial, the function and the arguments."""
    if isinstance(fun, functools.partial):
        return [fun.func, *fun.args, *fun.keywords.values()]
    cells = fun.__closure__ or ()
    try:
        values = [cell.cell_contents for cell in cells]
    except ValueError:
        values = [cell.cell_contents for cell in cells if is_bound(cell)]
    return [*values, *(fun.__defaults__ or ()), *(fun.__kwdefaults__ or {}).values()]


def is_bound(cell: CellType) -> bool:
    """Whether a cell has a value already: Python compares an empty cell with another without looking inside."""
    return cell != CellType()
