"""Functions of Python: what their code says, and what they call."""

from __future__ import annotations

import dis
import functools
import itertools
import sys
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

# Values that are equal if Python says so; each is as good as another equal one.
ATOMS = (type(None), bool, int, float, complex, str, bytes)


class Decorated:
    """A function around `__wrapped__`."""

    __wrapped__: Any


_ASKS = "LOAD_ATTR", "requires_grad"
# Methods of Python's containers that change them; those of torch that change a tensor in place end with an underscore.
_MUTATORS = ("add", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update")


UNREAD: Any = object()


class Facts:
    """Facts about the code of a function, with the codes inside of it.

    Attributes:
        assigned: The free names that it assigns.
        own: Those of them that it assigns itself, and no function inside of it.
        named: The names of globals that it reads.
        asks: The names whose `requires_grad` it reads.
        sets: The attributes that a run of it was seen to set, by the name of the class.
        is_closed: Whether it reads nothing that changes, once `is_closed` has looked.
        changes: The names from outside on which it seems to set something.
        reads: The attributes of its first parameter that it reads; None if it may do more with that object.
        style: How a rule of this code is called, once `conventions.style` has read it.
    """

    style: Any = UNREAD
    asks: frozenset[str]
    assigned: frozenset[str]
    is_closed: bool | None = None

    def __init__(self, code: CodeType):
        self.code = code
        self.sets: dict[str, set[str]] = {}
        inner = [facts(const) for const in code.co_consts if isinstance(const, CodeType)]
        steps = [*dis.get_instructions(code)]
        stored = {step.argval for step in steps if step.opname in ("STORE_DEREF", "DELETE_DEREF")}
        inside: frozenset[str] = frozenset().union(*[each.assigned for each in inner]).intersection(code.co_freevars)
        self.assigned = inside.union(stored).intersection(code.co_freevars)
        self.own = self.assigned - inside
        read = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        self.named: frozenset[str] = frozenset(read).union(*[each.named for each in inner])
        asked = [one.argval for one, two in itertools.pairwise(steps) if (two.opname, two.argval) == _ASKS]
        self.asks = frozenset(map(str, asked)).union(*[each.asks.intersection(each.code.co_freevars) for each in inner])
        self.changes: frozenset[str] = self.assigned.union(_written(steps), *[each.changes for each in inner])
        self.changes -= {*code.co_cellvars, *code.co_varnames} - {"self"}
        self.reads = _reads(code, steps)
        self.inner: dict[int, Facts] = {id(each.code): each for each in inner}
        for each in inner:
            self.inner.update(each.inner)


def _written(steps: list[dis.Instruction]) -> set[str]:
    """Returns the names on which code seems to set something: an attribute, an item, or by a method."""
    found = set()
    for step, after, last in zip(steps, steps[1:], steps[2:], strict=False):
        is_variable = step.opname in ("LOAD_DEREF", "LOAD_GLOBAL") or step.argval == "self"
        name = str(after.argval) if after.opname in ("LOAD_ATTR", "LOAD_METHOD") else ""
        is_method = name in _MUTATORS or (name[-1:] == "_" and name[-2:-1] != "_")
        # `COPY` stands before an item that is read and set, as in `kept[0] += 1`.
        is_item = last.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "COPY")
        is_attribute = after.opname in ("STORE_ATTR", "COPY")
        if step.opname == "STORE_GLOBAL" or (is_variable and (is_method or is_item or is_attribute)):
            found.add(str(step.argval))
    return found


# Functions that find a variable of the frame that calls them.
_FINDERS = frozenset({"eval", "exec", "locals", "vars"})


def _reads(code: CodeType, steps: list[dis.Instruction]) -> frozenset[str] | None:
    """Returns the attributes of the first parameter that code reads; None if it may do more with that object."""
    owner = code.co_varnames[0] if code.co_argcount else None
    if owner is None or not _FINDERS.isdisjoint(code.co_names):
        return None
    found = set()
    for step, after in itertools.pairwise(steps):
        # From Python 3.13 on, an instruction may have two names.
        if step.argval == owner or (isinstance(step.argval, tuple) and owner in step.argval):
            # From Python 3.12 on, LOAD_ATTR with an odd argument is the call of a method.
            is_read = after.opname == "LOAD_ATTR" and (sys.version_info < (3, 12) or not (after.arg or 0) % 2)
            if step.argval != owner or not is_read:
                return None
            found.add(str(after.argval))
    return frozenset(found)


# What is read already, by identity, because the hash of a code is computed again each time. Each entry keeps its code
# alive.
known_facts: dict[int, Facts] = {}


def facts(code: CodeType) -> Facts:
    """Returns what a code says; read once."""
    known = known_facts.get(id(code))
    if known is None:
        if len(known_facts) >= 10_000:
            known_facts.clear()
        known = known_facts[id(code)] = Facts(code)
    return known


_FRAMEWORKS = {"autograd", "jax", "jaxlib", "keras", "keras_cg", "numpy", "scipy", "tensorflow", "torch"}


def is_stable(module: str | None) -> bool:
    """Whether a module is Python's or a framework's, whose functions keep nothing that a run could change."""
    return is_frameworks(module) or (module or "builtins").partition(".")[0] in sys.stdlib_module_names


def is_frameworks(module: str | None) -> bool:
    """Whether a module is a framework's."""
    return (module or "").partition(".")[0] in _FRAMEWORKS


def is_closed(fun: FunctionType) -> bool:
    """Whether the globals that a function names lead only to code that reads nothing which a run could change.

    It is read once for each code.
    """
    known = facts(fun.__code__)
    if known.is_closed is None:
        known.is_closed = True  # for a function that leads to itself
        found = [fun.__globals__[name] for name in known.named if name in fun.__globals__]
        known.is_closed = all(map(keeps_nothing, found))
    return known.is_closed


def keeps_nothing(value: Any) -> bool:
    """Whether a value is a module, a class or a function that keeps nothing."""
    if isinstance(value, ModuleType):
        return is_stable(value.__name__)
    if isinstance(value, (FunctionType, type, Decorated, BuiltinFunctionType)):
        if is_stable(getattr(value, "__module__", None)):
            return True
        fun = innermost(value) if isinstance(value, (FunctionType, Decorated)) else None
        return fun is not None and not fun.__closure__ and is_closed(fun)
    return False


def keeps_state(rule: Any) -> bool:
    """Whether the code of a rule seems to set something outside of itself, so that a trial would change that."""
    fun = innermost(rule)
    return fun is None or bool(facts(fun.__code__).changes)


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
    try:
        attributes = object.__getattribute__(fun, "__dict__")
    except (AttributeError, TypeError):  # TypeError: a proxy that claims another class
        return None
    return attributes.get("__wrapped__") if isinstance(attributes, dict) else None


def innermost(fun: Any) -> Any:
    """Returns the plain function behind partials, methods, wrappers and callable objects; None if there is none."""
    while type(fun) is not FunctionType:
        called = inner(fun)
        if called is None:
            call = type(fun).__call__
            return call if type(call) is FunctionType else None
        fun = called
    return fun


def is_bound(cell: CellType) -> bool:
    """Whether a cell has a value already: Python compares an empty cell with another without looking inside."""
    return cell != CellType()
