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

import collections
import functools
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinFunctionType, CellType, FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any

from keras_cg.engine.functions import (
    ATOMS,
    Decorated,
    Facts,
    facts,
    inner,
    innermost,
    is_closed,
    is_stable,
    keeps_nothing,
    known_facts,
)
from keras_cg.engine.references import MISSING, TABLES, dict_of, near, slot_of, slots

# A place that can be bound again: a variable and its name, a dict or a class and a name, or an object and a slot; and
# what was there.
Entry = tuple[Any, Any, Any]


# Where a run may set something: a dict, a class, an object with slots, or a variable; the slots, or the name of the
# variable; the class that has defaults for the attributes of an object; and whether each place counts, and not only
# those that the run sets.
Table = tuple[Any, Sequence[Any], type | None, bool]


class World:
    """The variables and attributes of one run, as it found and as it left them.

    Attributes:
        found: Each place with what another run must find there.
        left: Each place with what the run left there, which its rule must find.
        named: What the run set, under its name.
        tables: Where the run may set attributes.
        before: What was in each of these before the run.
        cells: The variables from outside that the function can read, by identity; None for one that is state.
    """

    __slots__ = "before", "cells", "found", "left", "named", "tables"

    def __init__(self, user: Any, static: Sequence[Any] = ()):
        self.found: list[Entry] = []
        self.left: list[Entry] = []
        self.named: list[tuple[str, Any]] = []
        fun = user.__func__ if type(user) is MethodType else user
        fun = fun if type(fun) is FunctionType else innermost(user)
        frame = None if fun is None else known_facts.get(id(fun.__code__)) or facts(fun.__code__)
        owner = user.__self__ if type(user) is MethodType else user
        is_simple = owner is not user and not static and fun is not None and not (fun.__closure__ or fun.__defaults__)
        if is_simple and _kinds.get(type(owner)) == _OBJECT and not _functions_in(owner, _OBJECT):
            # As a walk would find, for most methods.
            cells, objects = dict[int, Any](), [owner]
        else:
            cells, objects = reachable(user, static, frame, fun)
        self.cells = cells
        self.tables: list[Table] = []
        if frame is not None and frame.own:
            self.tables += [(cell, (name,), None, False) for name, cell in named_cells(fun) if name in frame.own]
        if objects and owner is objects[0] and not isinstance(owner, type) and is_users(type(owner)):
            objects.append(type(owner))
        for each in objects:
            self.tables += tables_of(each)
        self.before = [contents(holder, keys).copy() for holder, keys, *_ in self.tables]

    def values(self) -> list[Any]:
        """Lists what stood at hand before the run, and what containers and objects there have."""
        parts = [value for before in self.before for value in before.values()]
        parts += [read(cell, name) for name, cell in filter(None, self.cells.values())]
        inside = _inside(parts)
        return [*parts, *inside, *_inside(inside)]

    def close(self, rules: dict[int, tuple[str, CellType] | None], sets: set[tuple[str, str]]) -> World | None:
        """Notes how the run left the world; returns None if there is nothing to put back, now or after another run.

        `rules` are the variables that the rule can read. `sets` has the attributes that some run of the function has
        set: they count in each later run, which may set the same object again.
        """
        noted = set()
        for (holder, keys, kind, is_whole), before in zip(self.tables, self.before, strict=True):
            now = holder if type(holder) is dict else contents(holder, keys)
            # By identity, and in one order: most runs set nothing.
            is_same = len(now) == len(before) and all(map(operator.is_, now.values(), before.values()))
            if not sets and not is_whole and is_same and all(map(operator.is_, now, before)):
                continue
            for key in {**before, **now}:
                old, new, name = before.get(key, MISSING), now.get(key, MISSING), getattr(key, "__name__", key)
                # By name, because a class of a run must not stay alive.
                place = (kind or type(holder)).__qualname__, name
                if old is not new or (not is_whole and place in sets):
                    sets.add(place)
                    self.named.append((name if type(holder) is CellType else f"self.{name}", new))
                elif not is_whole:
                    continue
                noted.add(id(holder))
                self.left.append((holder, key, new))
                self.found.append((holder, key, new if _is_lazy(old, key, kind) else old))
        for key, known in {**self.cells, **rules}.items():
            if known is None or self.cells.get(key, known) is None or key in noted:
                continue
            name, cell = known
            if (value := read(cell, name)) is not MISSING:
                self.left.append((cell, name, value))
                if key in self.cells:
                    self.found.append((cell, name, value))
        self.cells, self.before = {}, []
        return self if self.left or self.tables else None

    def forget(self) -> None:
        """Drops what the run left, which its rule alone needs."""
        self.left, self.named = [], []

    def run(self, fun: Callable[..., Any], *args: Any) -> Any:
        """Calls a rule in the world that its run left. What the rule itself sets stays."""
        if not self.left:
            return fun(*args)
        with _Turn(self.left):
            return fun(*args)

    def again(self, fun: Callable[..., Any], *args: Any) -> Any:
        """Calls the function of the run in the world that the run found, and brings back what is there now."""
        with _Turn(self.found, self.tables):
            before = [contents(holder, keys).copy() for holder, keys, *_ in self.tables]
            try:
                return fun(*args)
            finally:
                for (holder, keys, *_), known in zip(self.tables, before, strict=True):
                    for key in {**contents(holder, keys), **known}:
                        if read(holder, key) is not known.get(key, MISSING):
                            write(holder, key, known.get(key, MISSING))


def _inside(values: list[Any]) -> list[Any]:
    """Lists what the containers and objects among `values` have, if that is not much."""
    found: list[Any] = []
    for value in values:
        if kind_of(value) == _OBJECT:
            members = dict_of(value)
            tables = [members, *[table for table in map(members.get, TABLES) if table]]
        else:
            tables = [value] if kind_of(value) == _CONTAINER else []
        for table in tables:
            if len(table) <= _LONGEST:
                found += table.values() if isinstance(table, (dict, MappingProxyType)) else table
    return found


def note(opened: World | None, rule: Any, function: Any) -> tuple[World | None, Sequence[Any], bool, Facts | None]:
    """Notes how a run of `function` left the world; `opened` is the world before it, if it had anything at hand.

    Returns also what the rule holds, by a quick look; whether all that it can read is data; and the facts of a rule
    that the run has defined and that holds data alone.
    """
    if type(rule) is FunctionType and type(function) is FunctionType:
        frame = known_facts.get(id(function.__code__))
        known = None if frame is None else frame.inner.get(id(rule.__code__))
        # Most rules are closures over tensors and numbers of the run, and lead to no other variable.
        if known is not None and not known.assigned and not rule.__dict__:
            parts: list[Any] = []
            try:
                for cell in rule.__closure__ or ():
                    parts.append(cell.cell_contents)
            except ValueError:  # a name that is not bound yet
                parts.append(function)
            if rule.__defaults__ or rule.__kwdefaults__:
                parts += [*(rule.__defaults__ or ()), *(rule.__kwdefaults__ or {}).values()]
            for part in parts:
                if _kinds.get(type(part)) != _DATA:
                    break
            else:
                is_data = is_closed(rule) if known.is_closed is None else known.is_closed
                return None if opened is None else opened.close({}, frame.sets), parts, is_data, known
    inside = function if type(function) is FunctionType else innermost(function)
    frame = None if inside is None else facts(inside.__code__)
    rules, _ = reachable(rule, (), frame, None)
    parts = near(rule)
    is_plain = type(rule) is FunctionType and is_closed(rule)
    world = (opened or World(function)).close(rules, set() if frame is None else frame.sets)
    return world, parts, is_plain and all(map(_is_data, parts)), None


def leads_outside(user: Any) -> bool:
    """Whether a function has variables from outside, or defaults that lead to more than data."""
    if type(user) is not FunctionType or user.__closure__:
        return True
    return bool(
        (user.__defaults__ and not are_data(user.__defaults__))
        or (user.__kwdefaults__ and not are_data(user.__kwdefaults__.values()))
    )


def are_data(values: Iterable[Any]) -> bool:
    """Whether all values are numbers, texts and tensors, which lead to nothing else."""
    for value in values:
        if kind_of(value) != _DATA:
            return False
    return True


def _is_data(value: Any) -> bool:
    """Whether a part of a rule can be compared, and leads to nothing that a run could change."""
    if type(value) is FunctionType:
        return not value.__dict__ and is_closed(value)
    if type(value) is tuple:  # unlike a list, which a run may have changed
        return all(map(_is_data, value))
    return kind_of(value) == _DATA or keeps_nothing(value)


# The turns that are taken now, in the order in which they began.
_turns: list[_Turn] = []
_changed = threading.Condition()


class _Turn:
    """A context in which places are bound to other values; what is set in it stays.

    A thread waits while another one uses the same holder in another state, or sets what it likes there. Threads that
    want the same values go on together, and the last one brings back what was there.
    """

    __slots__ = "changed", "entries", "tables", "thread"

    def __init__(self, entries: Sequence[Entry], tables: Sequence[Table] = ()):
        self.entries, self.tables, self.thread = entries, tables, threading.get_ident()

    def __enter__(self) -> None:
        with _changed:
            self.changed = _differing(self.entries)
            while _turns and self._must_wait():
                _changed.wait()
                self.changed = _differing(self.entries)
            for holder, key, value, _ in self.changed:
                write(holder, key, value)
            _turns.append(self)

    def _must_wait(self) -> bool:
        is_alone = bool(self.tables or self.changed)
        others = [each for each in _turns if each.thread != self.thread and (is_alone or each.tables)]
        return any(map(self._meets, others))

    def _meets(self, other: _Turn) -> bool:
        here = {id(holder) for holder, *_ in (*self.entries, *self.tables)}
        return not here.isdisjoint([id(holder) for holder, *_ in (*other.entries, *other.tables)])

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
    return vars(holder).get(key, MISSING) if type(key) is str else slot_of(key, holder)


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
    elif value is MISSING:
        type.__delattr__(holder, key)
    else:
        type.__setattr__(holder, key, value)


def contents(holder: Any, keys: Sequence[Any]) -> Any:
    """Returns what is bound in a holder: of a variable and of slots, at `keys`."""
    if type(holder) is dict:
        return holder
    if not keys:
        return vars(holder)
    return {key: value for key in keys if (value := read(holder, key)) is not MISSING}


def tables_of(owner: Any) -> list[Table]:
    """Returns where a run may set attributes of an object."""
    if isinstance(owner, type):
        return [(owner, (), None, False)]
    members, kind = dict_of(owner), type(owner)
    found: list[Table] = []
    if is_users(kind) or kind is SimpleNamespace:
        found = [(members, (), kind, False)] if members or hasattr(owner, "__dict__") else []
        places = _slots.get(kind)
        if places is None:
            places = slots(kind)
            if "<locals>" not in kind.__qualname__:
                _slots[kind] = places
        if places:
            found.append((owner, places, kind, False))
    # The parameters and buffers of a module of torch, which `torch.func.functional_call` exchanges for one call.
    tables = [table for name in TABLES[:2] if name in members and type(table := members[name]) is dict]
    return found + [(table, (), None, True) for table in tables]


# The slots of the objects of each class, and whether it is the user's.
_slots: dict[type, Any] = {}
_users: dict[type, bool] = {}


def is_users(kind: type) -> bool:
    """Whether a class is neither Python's nor a framework's."""
    known = _users.get(kind)
    if known is None:
        known = not is_stable(kind.__module__)
        if "<locals>" not in kind.__qualname__:
            _users[kind] = known
    return known


def _is_lazy(old: Any, key: Any, kind: type | None) -> bool:
    """Whether an attribute had no value before the run, which computed it once and for all."""
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
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, MappingProxyType)
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
    if isinstance(value, _ENDS):
        return _END
    if isinstance(value, _CONTAINERS):
        return _CONTAINER
    # Of the objects of frameworks, modules of torch have tables, and our recipes hold functions of the user.
    is_holder = kind is SimpleNamespace or kind.__module__.startswith("keras_cg.")
    return _OBJECT if is_holder or is_users(kind) or TABLES[0] in dict_of(value) else _END


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
    # Each with the number of functions on the way: objects and containers are entered behind three of them at most.
    waiting = [(root, 0), *[(each, 1) for each in static]]
    for value, depth in waiting:
        kind = _kinds.get(type(value))
        if kind is None:
            kind = kind_of(value)
        if kind <= _END or id(value) in seen:
            continue
        seen.add(id(value))
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
            if depth < 2 and kind != _CONTAINER:
                objects.append(value)
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
    found: list[Any] = []
    if kind == _CONTAINER:
        members: Any = value.values() if isinstance(value, (dict, MappingProxyType)) else value
    else:
        members = dict_of(value).values() if kind == _OBJECT else ()
        origin = value if kind == _CLASS else type(value)
        if "<locals>" in origin.__qualname__:
            for each in vars(origin).values():
                found.append(each if type(each) is FunctionType else inner(each))
    if len(members) <= _LONGEST:
        for each in members:
            if _kinds.get(type(each), _FUNCTION) >= _FUNCTION and kind_of(each) in (_FUNCTION, _CALLER):
                found.append(each)
    return found
