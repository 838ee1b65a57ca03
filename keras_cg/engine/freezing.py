"""Keeps the rule of a run as it is then: Python looks a name up late, and a copy does not see it bound again.

Only names are kept: the cells of the rule, and of the functions that its run defined. Objects, containers and functions
from elsewhere stay themselves, and are read when the rule runs. Where that could go wrong, a `Watch` notices it.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from inspect import getattr_static
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType
from typing import Any

_NOTHING = object()

# Values that are equal if Python says so; each is as good as another equal one.
ATOMS = (type(None), bool, int, float, complex, str, bytes)


class Decorated:
    """A function around `__wrapped__`; `of` returns the same around another one."""

    __wrapped__: Any

    def of(self, fun: Any) -> Any:
        """Returns this function around `fun`."""
        raise NotImplementedError


def freeze(
    rule: Callable[..., Any], function: Callable[..., Any]
) -> tuple[Callable[..., Any], Watch | None, list[Any] | None]:
    """Copies the rule of a run of `function`, which then keeps what its names are bound to now.

    A cell stays shared if a function that the rule reaches assigns to it. Returns also what has to be watched, and what
    a plain closure holds; None for any other rule.
    """
    if type(rule) is FunctionType:
        known = facts(rule.__code__)
        cells = rule.__closure__ or ()
        try:
            values = [cell.cell_contents for cell in cells]
            values += [*(rule.__defaults__ or ()), *(rule.__kwdefaults__ or {}).values()]
            # Most rules are closures without functions: one loop takes a fifth of the time.
            for value in values:
                if (callable(value) and _leads(value)) or "<locals>" in type(value).__qualname__:
                    break
            else:
                if not known.assigned:
                    copy = _function(rule, tuple(map(CellType, values[: len(cells)]))) if cells else rule
                    entries = [*_entries(copy, copy, {id(copy)}, set())] if known.has_self else ()
                    return copy, Watch(entries) if entries else None, values
        except ValueError:  # a name that is not bound yet
            pass
    return *_freeze(rule, function), None


def _leads(value: Any) -> bool:
    """Whether a callable value leads to a function that the run may have defined."""
    return isinstance(value, (FunctionType, type, Decorated)) or _inner(value) is not None


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
            entries += [entry for each, _ in _reached(fun, definitions).values() for entry in _cells(each, shared)]
    return _replaced(rule, copies), Watch(entries) if entries else None


def _function(function: FunctionType, closure: tuple[CellType, ...]) -> FunctionType:
    """Returns a function with other cells, and the same attributes: a function may keep a state in them."""
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__ = function.__dict__
    return copy


# --- which functions a rule reaches, and which of them its run defined -----------------------------------------------


class Facts:
    """Facts about the code of a function, with the codes inside of it.

    Attributes:
        assigned: The free names that it assigns.
        names: The names of globals and attributes, and texts that may be names, as in `getattr(self, "x")`.
        inner: The identities of the codes of the functions that it defines.
        has_self: Whether one of its free names is `self`.
        style: How a rule of this code is called, once `signature.style` has read it.
    """

    style: Any
    assigned: frozenset[str]
    names: frozenset[str]

    def __init__(self, code: CodeType):
        self.code = code
        inner = [facts(const) for const in code.co_consts if isinstance(const, CodeType)]
        stored = {step.argval for step in dis.get_instructions(code) if step.opname in ("STORE_DEREF", "DELETE_DEREF")}
        self.assigned = frozenset(stored).union(*[each.assigned for each in inner]).intersection(code.co_freevars)
        texts = [const for const in code.co_consts if isinstance(const, str) and const.isidentifier()]
        self.names = frozenset([*code.co_names, *texts]).union(*[each.names for each in inner])
        self.inner: frozenset[int] = frozenset([id(each.code) for each in inner]).union(*[each.inner for each in inner])
        self.has_self = "self" in code.co_freevars
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


def _inner(fun: Any) -> Any:
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
        inner = _inner(fun)
        if inner is None:
            call = type(fun).__call__
            return call if type(call) is FunctionType else None
        fun = inner
    return fun


class _Definitions:
    """Tells which functions a run of `function` has defined, or the scope that has defined its rule."""

    def __init__(self, rule: Any, function: Any):
        self.codes: frozenset[int] = frozenset()
        user = name = innermost(function)
        while user is not None:
            name = user.__name__
            self.codes |= facts(user.__code__).inner
            user = innermost(user.__dict__.get("__wrapped__"))
        # AutoGraph of TensorFlow (2.21) compiles the functions inside of a function again, under such a name.
        self.rewritten = f"inner_factory.<locals>.tf__{name}.<locals>."
        inside = innermost(rule)
        self.scope = None if inside is None else _scope(inside)

    def by_run(self, fun: Any) -> bool:
        """Whether the run itself has defined a function."""
        return fun is not None and (id(fun.__code__) in self.codes or self.rewritten in fun.__code__.co_qualname)

    def __contains__(self, fun: FunctionType) -> bool:
        return self.by_run(fun) or (self.scope is not None and _scope(fun) == self.scope)


def _scope(fun: FunctionType) -> tuple[str, str] | None:
    """Returns the file and the name of the function that has defined another one, if one has."""
    scope, is_inside, _ = fun.__code__.co_qualname.rpartition(".<locals>.")
    return (fun.__code__.co_filename, scope) if is_inside else None


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
        methods = [innermost(member) for member in vars(value).values() if _is_method(member)]
        bases = [base for base in value.__bases__ if "<locals>" in base.__qualname__]
        return [*methods, *bases] if bases or any(map(definitions.by_run, methods)) else None
    if callable(value) and _inner(value) is not None:
        return [_inner(value)]
    # A class statement inside of a function says so in the name of the class.
    return [kind] if "<locals>" in kind.__qualname__ else None


def _is_method(member: Any) -> bool:
    return isinstance(member, (FunctionType, staticmethod, classmethod, property, functools.cached_property))


def _refers(value: Any, parts: list[Any], copied: set[int]) -> bool:
    """Whether a function refers to one that is copied, and can be copied itself."""
    is_copyable = type(value) in (FunctionType, MethodType) or isinstance(value, (functools.partial, Decorated))
    return is_copyable and not copied.isdisjoint(map(id, parts))


def _assigned_cells(value: Any) -> Iterator[CellType]:
    if type(value) is FunctionType and value.__closure__:
        assigned = facts(value.__code__).assigned
        named = zip(value.__code__.co_freevars, value.__closure__, strict=True)
        yield from [cell for name, cell in named if name in assigned]


def references(fun: Any) -> list[Any]:
    """Lists what a function has in its cells and defaults; of a partial, the function and the arguments."""
    if isinstance(fun, functools.partial):
        return [fun.func, *fun.args, *fun.keywords.values()]
    cells = [cell.cell_contents for cell in fun.__closure__ or () if is_bound(cell)]
    return [*cells, *(fun.__defaults__ or ()), *(fun.__kwdefaults__ or {}).values()]


def is_bound(cell: CellType) -> bool:
    """Whether a cell has a value already: Python compares an empty cell with another without looking inside."""
    return cell != CellType()


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
        copy = (
            copies.get(id(member if type(member) is FunctionType else _inner(member))) if _is_method(member) else None
        )
        if isinstance(member, functools.cached_property) and copy is not None:
            member.func = copy
        elif copy is not None:
            if isinstance(member, (staticmethod, classmethod)):
                copy = type(member)(copy)
            elif isinstance(member, property):
                copy = property(copy, member.fset, member.fdel, member.__doc__)
            type.__setattr__(kind, name, copy)


# --- what is watched -------------------------------------------------------------------------------------------------


class _Name:
    """One attribute of an object, or one cell: how often it was bound by something else than a rule.

    Attributes:
        last: What it was bound to when that was last looked at.
        epoch: How often it had been bound to something else until then, and not by a rule.
    """

    __slots__ = "__weakref__", "epoch", "last", "read"

    def __init__(self, read: Callable[[], Any]):
        self.read, self.epoch = read, 0
        self.last = _reference(read())

    def look(self) -> int:
        """Counts a binding since the last look, and returns the epoch."""
        now = self.read()
        if not _is_same(now, _referent(self.last)):
            self.epoch, self.last = self.epoch + 1, _reference(now)
        return self.epoch


# By the identity of the object or the cell, and the name: the rules of all runs share what is known of it. It is known
# as long as a rule is watched because of it.
_names: weakref.WeakValueDictionary[tuple[int, str], _Name] = weakref.WeakValueDictionary()


def _name(holder: Any, name: str, read: Callable[[], Any]) -> _Name:
    known = _names.setdefault((id(holder), name), _Name(read))
    known.read = read  # another object may have got the identity of one that is gone
    known.look()
    return known


def _reference(value: Any) -> Any:
    """Refers to a value weakly where that is possible, so that it can be freed."""
    try:
        return weakref.ref(value)
    except TypeError:
        return value


def _referent(reference: Any) -> Any:
    return reference() if isinstance(reference, weakref.ref) else reference


# A name, what is known of it, its epoch when the rule was made, and its value then.
Entry = tuple[str, _Name, int, Any]
# What is known of each name, and its epoch when a rule was made.
Epochs = dict[str, tuple[_Name, int]]


class Watch:
    """Names that a rule reads and that are not copied, as they were when the rule was made.

    These are the attributes of its `self` that its code names, and the cells of functions from elsewhere. What a rule
    itself binds is its own state.
    """

    __slots__ = ("entries",)

    def __init__(self, entries: Sequence[Entry]):
        self.entries = entries

    def changed(self) -> str | None:
        """Returns a name that was bound to something else since, and not by a rule."""
        return next((name for name, known, epoch, _ in self.entries if known.look() != epoch), None)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Takes what the rule binds while it runs for its own state."""
        for _, known, _, _ in self.entries:
            known.look()
        try:
            yield
        finally:
            for _, known, _, _ in self.entries:
                known.last = _reference(known.read())

    def epochs(self) -> Epochs:
        """Returns how often each name had been bound to something else when the rule was made."""
        return {name: (known, epoch) for name, known, epoch, _ in self.entries}

    def values(self, epochs: Epochs) -> list[tuple[str, Any]]:
        """Lists the names with their values, but for those that only a rule has bound since `epochs`."""
        return [
            (name, value)
            for name, known, epoch, value in self.entries
            if value is not _NOTHING and epochs.get(name) != (known, epoch)
        ]


def _is_same(now: Any, value: Any) -> bool:
    """Whether two values are one, or as good as one: equal numbers, texts and methods, and containers of these."""
    if now is value:
        return True
    if type(now) is not type(value) or not isinstance(now, (*ATOMS, tuple, list, dict, MethodType)):
        return False
    try:
        return bool(now == value)
    except Exception:
        return False  # tensors in containers have no truth value


def _entries(value: Any, rule: Any, copied: set[int], shared: set[int]) -> Iterator[Entry]:
    """Yields what has to be watched because of one value that a rule reaches."""
    owner: Any = None
    method: Any = None
    if type(value) is FunctionType and id(value) not in copied:
        yield from _cells(value, shared)
    elif type(value) is FunctionType and "self" in value.__code__.co_freevars:
        owner, method = _content((value.__closure__ or ())[value.__code__.co_freevars.index("self")]), value
    elif type(value) is MethodType:
        owner, method = value.__self__, innermost(value)
    elif value is rule and type(type(value).__call__) is FunctionType:
        owner, method = value, type(value).__call__
    for name in () if method is None else _attributes(method, type(owner)):
        yield _entry(owner, name, functools.partial(_stored, _reference(owner), name))


def _cells(fun: Any, shared: set[int]) -> Iterator[Entry]:
    """Yields the cells of a function that is no copy."""
    if type(fun) is not FunctionType:
        return
    for name, cell in zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True):
        if id(cell) not in shared and name not in facts(fun.__code__).assigned:
            yield _entry(cell, name, functools.partial(_content, cell))


def _entry(holder: Any, name: str, read: Callable[[], Any]) -> Entry:
    known = _name(holder, name, read)
    return name, known, known.epoch, read()


def _fixed(value: Any, rule: Any, definitions: _Definitions) -> list[Any]:
    """Lists the functions that stay in their place in an object: what a framework has wrapped, and attributes."""
    if isinstance(value, (FunctionType, type, functools.partial, Decorated)):
        return []
    owner = value.__self__ if type(value) is MethodType else value
    found = [part for part in getattr(owner, "__dict__", {}).values() if type(part) is FunctionType]
    if value is rule and type(value) is not MethodType and not definitions.by_run(innermost(type(value).__call__)):
        found.append(innermost(type(value).__call__))
    return [fun for fun in found if fun is not None]


def _content(cell: CellType) -> Any:
    return cell.cell_contents if is_bound(cell) else _NOTHING


def _stored(reference: Any, name: str) -> Any:
    """Returns what an object has stored under a name; no code of its class runs."""
    owner = _referent(reference)
    own = getattr(owner, "__dict__", {})
    if name in own:
        return own[name]
    for base in type(owner).__mro__:
        member = vars(base).get(name)
        if type(member) is MemberDescriptorType:
            try:
                return member.__get__(owner)
            except AttributeError:
                return _NOTHING
    # A module of torch keeps these in tables of its own.
    for table in ("_parameters", "_buffers", "_modules"):
        found = own.get(table)
        if type(found) is dict and name in found:
            return found[name]
    return _NOTHING


def _attributes(method: FunctionType, kind: type) -> frozenset[str]:
    """Returns the names that a method looks up, and those that it calls by name or wraps; not those of methods."""
    known = facts(method.__code__).attributes
    if kind not in known:
        found: set[str] = set()
        waiting: list[Any] = [method]
        for each in waiting:
            new = facts(each.__code__).names - found
            found |= new
            members = [vars(base)[name] for base in kind.__mro__ for name in new if name in vars(base)]
            others = [innermost(member) for member in members if _is_method(member)]
            others += [_content(cell) for cell in each.__closure__ or ()] + [each.__dict__.get("__wrapped__")]
            waiting += [other for other in others if type(other) is FunctionType and other not in waiting]
        named = [name for name in found if not _is_method(getattr_static(kind, name, None))]
        known[kind] = frozenset(named)
    return known[kind]
