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

import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from types import CellType, FunctionType, MethodType, SimpleNamespace
from typing import Any

from keras_cg.engine.functions import facts, innermost, is_closed, keeps_nothing, known_facts
from keras_cg.engine.reach import (
    DATA,
    END,
    OBJECT,
    content,
    functions_in,
    inside,
    is_users,
    kind_of,
    kinds,
    named_cells,
    reachable,
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
        if is_simple and kinds.get(type(owner)) == OBJECT and not functions_in(owner, OBJECT):
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
        members = inside(parts)
        return [*parts, *members, *inside(members)]

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


def note(opened: World | None, rule: Any, function: Any) -> tuple[World | None, Sequence[Any], bool]:
    """Notes how a run of `function` left the world; `opened` is the world before it, if it had anything at hand.

    Returns also what the rule holds, by a quick look, and whether all that it can read is data.
    """
    inside = function if type(function) is FunctionType else innermost(function)
    frame = None if inside is None else known_facts.get(id(inside.__code__)) or facts(inside.__code__)
    if type(rule) is FunctionType and frame is not None and id(rule.__code__) in frame.inner:
        known = known_facts.get(id(rule.__code__)) or facts(rule.__code__)
        # Most rules are closures over tensors and numbers of the run, and lead to no other variable.
        try:
            parts = [cell.cell_contents for cell in rule.__closure__ or ()]
        except ValueError:  # a name that is not bound yet
            parts = [function]
        if rule.__defaults__ or rule.__kwdefaults__:
            parts += [*(rule.__defaults__ or ()), *(rule.__kwdefaults__ or {}).values()]
        for value in parts:
            if kinds.get(type(value), END) != DATA:
                break
        else:
            if not known.assigned:
                is_data = is_closed(rule) if known.is_closed is None else known.is_closed
                return None if opened is None else opened.close({}, frame.sets), parts, is_data
    rules, _ = reachable(rule, (), frame, None)
    parts = near(rule)
    is_plain = type(rule) is FunctionType and is_closed(rule)
    world = (opened or World(function)).close(rules, set() if frame is None else frame.sets)
    return world, parts, is_plain and all(map(_is_data, parts))


def _is_data(value: Any) -> bool:
    """Whether a part of a rule can be compared, and leads to nothing that a run could change."""
    if type(value) is FunctionType:
        return not value.__dict__ and is_closed(value)
    if type(value) is tuple:  # unlike a list, which a run may have changed
        return all(map(_is_data, value))
    return kind_of(value) == DATA or keeps_nothing(value)


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
        return content(holder)
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


# The slots of the objects of each class.
_slots: dict[type, Any] = {}


def _is_lazy(old: Any, key: Any, kind: type | None) -> bool:
    """Whether an attribute had no value before the run, which computed it once and for all."""
    if old is MISSING and kind is not None:
        for base in kind.__mro__:
            old = vars(base).get(key, MISSING) if type(key) is str else MISSING
            if old is not MISSING:
                break
    # A descriptor of Python, such as a cached property, computes what is missing.
    return old is MISSING or old is None or hasattr(type(old), "__get__")
