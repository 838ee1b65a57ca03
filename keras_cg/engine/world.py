"""The world of a run: the variables from outside that it reads, and the attributes that it sets.

Python looks a name up late. When a rule runs, other code may have bound a loop variable again, or the object that the
rule reads may have been called again. So what differs is put back while the rule runs, and afterwards it is what it
was. When the function runs again, it starts in the world that its first run found, and leaves the user's objects as
they were. Nothing is copied, and nothing is done where nothing differs.

- A variable from outside is a cell that the function, its rule, or a function that these reach can read. A variable
  that one of them assigns is state, and stays as it is, unless the function itself alone assigns it.
- An attribute counts if the run has set it, on an object at hand: `self`, its class, a callable object, a static
  argument, or an object in a cell. The parameters and buffers of such a module of torch always count.
"""

from __future__ import annotations

import functools
import itertools
import operator
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinFunctionType, CellType, FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from keras_cg.engine.functions import (
    ATOMS,
    Decorated,
    Facts,
    facts,
    inner,
    innermost,
    is_closed,
    is_stable,
    known_facts,
)
from keras_cg.engine.references import MISSING, TABLES, dict_of, near, slot_of, slots

# A place that can be bound again: a variable and its name, a dict or a class and a name, or an object and a slot; and
# what was there.
Entry = tuple[Any, Any, Any]


class Table(NamedTuple):
    """Where a run may set something, with what was there before it.

    Attributes:
        holder: A dict, a class, an object with slots, or a variable.
        keys: The slots, or the name of the variable.
        before: What was there.
        kind: The class that has defaults for the attributes of an object; None for other places.
        is_whole: Whether each place counts, and not only those that the run sets.
    """

    holder: Any
    keys: Sequence[Any]
    before: dict[Any, Any]
    kind: type | None = None
    is_whole: bool = False


class World:
    """What a run found and left.

    Attributes:
        found: Each place with what another run must find there.
        left: Each place with what the run left there, which its rule must find.
        named: What the run set, under its name.
        tables: Where the run may set attributes.
        known: Holders, by identity, with a name that the code of the function sets on every way, or that an earlier run
            of the same call has set. They count, also where the run sets the same object again.
        cells: The variables from outside that the function can read, by identity; None for one that is state.
        frame: What the code of the function says.
    """

    __slots__ = "cells", "found", "frame", "known", "left", "named", "tables"

    def __init__(self, user: Any, static: Sequence[Any] = ()):
        self.found: list[Entry] = []
        self.left: list[Entry] = []
        self.named: list[tuple[str, Any]] = []
        self.known: set[tuple[int, str]] = set()
        self.tables: list[Table] = []
        fun = innermost(user)
        self.frame = None if fun is None else facts(fun.__code__)
        self.cells, objects = reachable(user, static, self.frame, fun)
        if self.frame is not None and self.frame.own:
            own = [(name, cell) for name, cell in named_cells(fun) if name in self.frame.own]
            self.tables += [Table(cell, (name,), contents(cell, (name,))) for name, cell in own]
        owner = user.__self__ if type(user) is MethodType else user
        if objects and owner is objects[0] and not isinstance(owner, type) and not is_stable(type(owner).__module__):
            objects.append(type(owner))
        for each in objects:
            self.tables += tables_of(each)
        if self.frame is not None and (self.frame.sets or self.frame.calls):
            self.known = surely_set(fun, owner, self.frame)

    def values(self) -> list[Any]:
        """Lists what stood at hand before the run, with what is in containers, objects and modules there."""
        held = [value for table in self.tables for value in table.before.values()]
        held += [read(cell, name) for name, cell in filter(None, self.cells.values())]
        inside = _inside(held)
        return [*held, *inside, *_inside(inside)]

    def close(self, rule: Any, frame: Facts | None) -> World | None:
        """Notes how the run left the world; returns None if there is nothing to put back, now or after another run."""
        noted = set()
        for holder, keys, before, kind, is_whole in self.tables:
            now = contents(holder, keys)
            if not is_whole and not self.known and len(now) == len(before) and _are_same(now, before):
                continue
            for key in {**before, **now}:
                old, new = before.get(key, MISSING), now.get(key, MISSING)
                name = getattr(key, "__name__", key)
                if old is not new or (not is_whole and (id(holder), name) in self.known):
                    self.named.append((name if type(holder) is CellType else f"self.{name}", new))
                elif not is_whole:
                    continue
                noted.add(id(holder))
                self.left.append((holder, key, new))
                self.found.append((holder, key, new if _is_lazy(old, key, kind) else old))
        rules, _ = reachable(rule, (), frame or self.frame, None)
        for key, known in {**self.cells, **rules}.items():
            if known is None or self.cells.get(key, known) is None or key in noted:
                continue
            name, cell = known
            if (value := read(cell, name)) is not MISSING:
                self.left.append((cell, name, value))
                if key in self.cells:
                    self.found.append((cell, name, value))
        self.cells, self.tables = {}, [table._replace(before={}) for table in self.tables]
        return self if self.left or self.tables else None

    def forget(self) -> None:
        """Drops what the run left, which its rule alone needs."""
        self.left, self.named = [], []

    def run(self, fun: Callable[..., Any], *args: Any) -> Any:
        """Calls a rule in the world that its run left. What the rule itself sets stays."""
        with _Turn(self.left):
            return fun(*args)

    def again(self, call: Any, *args: Any) -> Any:
        """Runs the function of a `Call` in the world that the run found, and brings back what is there now."""
        with _Turn(self.found, self.tables):
            if self.tables and not call.is_traced:
                call.at_hand()
                call.opened.known |= {(id(holder), getattr(key, "__name__", key)) for holder, key, _ in self.found}
            before = [(table, dict(contents(table.holder, table.keys))) for table in self.tables]
            try:
                return call(*args)
            finally:
                for (holder, keys, *_), known in before:
                    for key in {**contents(holder, keys), **known}:
                        if read(holder, key) is not known.get(key, MISSING):
                            write(holder, key, known.get(key, MISSING))


def surely_set(fun: Any, owner: Any, frame: Facts) -> set[tuple[int, str]]:
    """Returns holders with the attributes that a function sets by itself, or by a method that it calls."""
    holders = {name: read(cell, name) for name, cell in named_cells(fun)}
    if owner is not fun:
        holders |= dict.fromkeys(fun.__code__.co_varnames[:1], owner)
    found = {(id(holders[name]), key) for name, key in frame.sets if name in holders}
    for name, method in frame.calls:
        bases = type(holders[name]).__mro__ if name in holders else ()
        called = next((vars(base)[method] for base in bases if method in vars(base)), None)
        if type(called) is FunctionType:
            this = called.__code__.co_varnames[:1]
            found |= {(id(holders[name]), key) for each, key in facts(called.__code__).sets if each in this}
    return found


def note(opened: World | None, rule: Any, function: Any) -> tuple[World | None, Sequence[Any], bool]:
    """Notes how a run of `function` left the world; `opened` is the world before it, if it had anything at hand.

    Returns also what the rule holds, by a quick look, and whether all that it can read is data.
    """
    if opened is None and type(rule) is FunctionType and type(function) is FunctionType:
        code = rule.__code__
        known = known_facts.get(id(code)) or facts(code)
        frame = known_facts.get(id(function.__code__)) or facts(function.__code__)
        if id(code) in frame.inner and not known.assigned:
            # Most rules are closures over tensors and numbers of the run.
            try:
                held = [cell.cell_contents for cell in rule.__closure__ or ()]
            except ValueError:  # a name that is not bound yet
                held = [function]
            if rule.__defaults__ or rule.__kwdefaults__:
                held += [*(rule.__defaults__ or ()), *(rule.__kwdefaults__ or {}).values()]
            for value in held:
                if _kinds.get(type(value), _END) != _DATA:
                    break
            else:
                return None, held, is_closed(rule) if known.is_closed is None else known.is_closed
    inside = innermost(function)
    world = (opened or World(function)).close(rule, None if inside is None else facts(inside.__code__))
    held = near(rule)
    is_plain = type(rule) is FunctionType and is_closed(rule)
    return world, held, is_plain and all(map(_is_data, held))


def _is_data(value: Any) -> bool:
    """Whether a part of a rule can be compared, and leads to nothing that a run could change."""
    if type(value) is FunctionType:
        return not value.__dict__ and is_closed(value)
    return kind_of(value) == _DATA


# The turns that are taken now, in the order in which they began.
_turns: list[_Turn] = []
_changed = threading.Condition()


class _Turn:
    """A context in which places are bound to other values; what is set in it stays.

    A thread waits while another one uses the same holder in another state, or sets what it likes there. Threads that
    want the same values go on together, and the last one brings back what was there.
    """

    __slots__ = "changed", "entries", "holders", "is_setting", "thread"

    def __init__(self, entries: Sequence[Entry], tables: Sequence[Table] = ()):
        self.entries, self.is_setting, self.thread = entries, bool(tables), threading.get_ident()
        self.holders = {id(holder) for holder, *_ in (*entries, *tables)}

    def __enter__(self) -> None:
        with _changed:
            while self._must_wait():
                _changed.wait()
            for holder, key, value, _ in self.changed:
                write(holder, key, value)
            _turns.append(self)

    def _must_wait(self) -> bool:
        self.changed = _differing(self.entries)
        is_alone = self.is_setting or bool(self.changed)
        return any([each.is_setting or is_alone for each in _turns if each.thread != self.thread and self._meets(each)])

    def _meets(self, other: _Turn) -> bool:
        return not self.holders.isdisjoint(other.holders)

    def __exit__(self, *error: object) -> None:
        with _changed:
            place = _turns.index(self)
            # Another thread may still need the values.
            others = [each for each in _turns[place + 1 :] if self._meets(each)]
            del _turns[place]
            if others:
                others[0].changed = self.changed + others[0].changed
            else:
                for holder, key, value, now in reversed(self.changed):
                    if read(holder, key) is value:
                        write(holder, key, now)
            _changed.notify_all()


def _differing(entries: Iterable[Entry]) -> list[tuple[Any, Any, Any, Any]]:
    """Lists the entries that are bound to something else now, with what that is."""
    return [(*entry, now) for entry in entries if (now := read(entry[0], entry[1])) is not entry[2]]


# --- one place -------------------------------------------------------------------------------------------------------


def read(holder: Any, key: Any) -> Any:
    """Returns what a place is bound to; MISSING if nothing."""
    if type(holder) is dict:
        return holder.get(key, MISSING)
    if type(holder) is CellType:
        try:
            return holder.cell_contents
        except ValueError:
            return MISSING
    return members_of(holder).get(key, MISSING) if type(key) is str else slot_of(key, holder)


def write(holder: Any, key: Any, value: Any) -> None:
    """Binds a place to a value, or to nothing for MISSING; no code of the user runs."""
    if type(holder) is dict:
        if value is MISSING:
            holder.pop(key, None)
        else:
            holder[key] = value
    elif type(holder) is CellType:
        if value is MISSING:
            del holder.cell_contents
        else:
            holder.cell_contents = value
    elif type(key) is not str:
        key.__delete__(holder) if value is MISSING else key.__set__(holder, value)
    elif isinstance(holder, type):
        type.__delattr__(holder, key) if value is MISSING else type.__setattr__(holder, key, value)
    elif value is MISSING:
        dict.pop(dict_of(holder), key, None)
    else:
        dict.__setitem__(dict_of(holder), key, value)


def members_of(holder: Any) -> Any:
    """Returns the attributes that a class or an object has itself."""
    return vars(holder) if isinstance(holder, type) else dict_of(holder)


def contents(holder: Any, keys: Sequence[Any]) -> Any:
    """Returns what is bound in a holder: of a variable and of slots, at `keys`."""
    if type(holder) is dict:
        return holder
    if not keys:
        return members_of(holder)
    return {key: value for key in keys if (value := read(holder, key)) is not MISSING}


def tables_of(owner: Any) -> list[Table]:
    """Returns where a run may set attributes of an object."""
    if isinstance(owner, type):
        return [Table(owner, (), dict(vars(owner)))]
    members, kind, found = dict_of(owner), type(owner), []
    if not is_stable(kind.__module__) or kind is SimpleNamespace or kind_of(owner) in (_FUNCTION, _CALLER):
        if hasattr(owner, "__dict__"):
            found.append(Table(owner, (), dict(members), kind))
        if places := slots(kind):
            found.append(Table(owner, places, contents(owner, places), kind))
    # The parameters and buffers of a module of torch, which `torch.func.functional_call` exchanges for one call.
    tables = [table for name in TABLES[:2] if type(table := members.get(name)) is dict]
    return found + [Table(table, (), dict(table), None, True) for table in tables]


def _are_same(now: Any, before: dict[Any, Any]) -> bool:
    """Whether two dicts of one length have the same keys and values, in one order, by identity."""
    return all(map(operator.is_, now.values(), before.values())) and all(map(operator.is_, now, before))


def _is_lazy(old: Any, key: Any, kind: type | None) -> bool:
    """Whether an attribute had no value before the run, which thus made it once and for all."""
    if old is MISSING and kind is not None:
        for base in kind.__mro__:
            old = vars(base).get(key, MISSING) if type(key) is str else MISSING
            if old is not MISSING:
                break
    # A descriptor of Python, such as a cached property, computes what is missing.
    return old is MISSING or old is None or hasattr(type(old), "__get__")


# --- what can be reached ---------------------------------------------------------------------------------------------

# What the walk does with a value: nothing with data (tensors, numbers, texts), nor at another end; or it enters a
# function, what calls another one, a container, an object or a class.
_DATA, _END, _FUNCTION, _CALLER, _CONTAINER, _OBJECT, _CLASS = range(7)
_kinds: dict[type, int] = {}
_ENDS = (ModuleType, BuiltinFunctionType, CellType, slice, range, bytearray)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque, MappingProxyType)
# Whether the tensors of a loaded backend include a value. They are ends, too.
_are_tensors: list[Callable[[Any], bool]] = []


def note_tensors(is_tensor: Callable[[Any], bool]) -> None:
    """Lets the walk end at the tensors of a backend, of which `is_tensor` tells."""
    _are_tensors.append(is_tensor)
    _kinds.clear()


def kind_of(value: Any) -> int:
    """Returns what the walk does with a value; it depends on the class."""
    kind = type(value)
    known = _kinds.get(kind)
    if known is None:
        known = _kind_of(value, kind)
        if "<locals>" not in kind.__qualname__ and inner(value) is None:
            _kinds[kind] = known
    return known


def _kind_of(value: Any, kind: type) -> int:
    if kind is FunctionType:
        return _FUNCTION
    if isinstance(value, (functools.partial, MethodType, Decorated)) or inner(value) is not None:
        return _CALLER
    if isinstance(value, type):
        return _END if is_stable(kind.__module__) and is_stable(value.__module__) else _CLASS
    if isinstance(value, ATOMS) or any([is_tensor(value) for is_tensor in _are_tensors]):
        return _DATA
    if isinstance(value, _CONTAINERS):
        return _CONTAINER
    if isinstance(value, _ENDS):
        return _END
    # Of the objects of frameworks, modules of torch have tables, and our recipes hold functions of the user.
    is_holder = kind is SimpleNamespace or kind.__module__.startswith("keras_cg.")
    return _OBJECT if is_holder or not is_stable(kind.__module__) or TABLES[0] in dict_of(value) else _END


# A longer container, or an object with more attributes, is data and no table of functions.
_LONGEST = 100


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
    # A function seldom has attributes of its own: it counts if it has one, or if the code of `user` sets some.
    has_attributes = dict_of if frame is None or not frame.changes else lambda value: type(value) is not MethodType
    # Each with the number of functions on the way: objects and containers are entered behind three of them at most.
    waiting = [(root, 0), *[(each, 1) for each in static]]
    for value, depth in waiting:
        kind = _kinds.get(type(value))
        if kind is None:
            kind = kind_of(value)
        if kind <= _END or id(value) in seen:
            continue
        seen.add(id(value))
        if depth < 2 and (kind >= _OBJECT or (kind != _CONTAINER and has_attributes(value))):
            objects.append(value)
        if kind == _FUNCTION:
            known = facts(value.__code__)
            assigned = known.assigned - known.own if value is user else known.assigned
            for name, cell in named_cells(value):
                if id(value.__code__) not in inside:
                    cells.setdefault(id(cell), (name, cell))
                if name in assigned:
                    state.append(id(cell))
                waiting.append((read(cell, name), depth + 1))
            others = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            waiting += [(each, depth + 1) for each in others]
        elif kind == _CALLER:
            waiting += [(each, depth) for each in _called(value)]
        elif depth < 4:
            waiting += [(each, 4) for each in _functions_in(value, kind)]
    for key in state:
        cells[key] = None
    return cells, objects


def named_cells(fun: Any) -> Iterable[tuple[str, CellType]]:
    """Returns the variables from outside of a function, with their names."""
    return zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True)


def _called(value: Any) -> Sequence[Any]:
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    return (value.__self__, value.__func__) if type(value) is MethodType else (inner(value),)


def _functions_in(value: Any, kind: int) -> list[Any]:
    """Lists the functions that a container or an object has, and those of a class that a function has defined."""
    found: list[Any] = [value.default_factory] if isinstance(value, defaultdict) else []
    if kind != _CONTAINER:
        made = [base for base in (value if kind == _CLASS else type(value)).__mro__ if "<locals>" in base.__qualname__]
        for each in itertools.chain.from_iterable([vars(base).values() for base in made]):
            found.append(each if type(each) is FunctionType else inner(each))
    return found + [each for each in _members(value, kind) if kind_of(each) in (_FUNCTION, _CALLER)]


def _inside(values: Iterable[Any]) -> list[Any]:
    """Lists what is in the containers and objects among `values`."""
    found: list[Any] = []
    for value in values:
        kind = _kinds.get(type(value))
        if kind is None:
            kind = kind_of(value)
        if kind == _OBJECT or (kind == _CONTAINER and value):
            found += _members(value, kind)
    return found


def _members(value: Any, kind: int) -> Iterable[Any]:
    """Returns what is in a container, or in the attributes of an object; nothing of a long one."""
    members: Any = ()
    if kind == _CONTAINER:
        members = value.values() if isinstance(value, (dict, MappingProxyType)) else value
    elif kind == _OBJECT:
        found = dict_of(value)
        members = [*found[TABLES[1]].values(), *found[TABLES[2]].values()] if TABLES[0] in found else found.values()
    return members if len(members) <= _LONGEST else ()
