"""The world of a run: the variables from outside that it reads, and the attributes that it sets.

Python looks a name up late. When a rule runs, other code may have bound a loop variable again, or the object that the
rule reads may have been called again. So what differs is put back while the rule runs, and afterwards it is what it
was. When the function runs again, it starts in the world that its first run found, and leaves the user's objects as
they were. Nothing is copied, and nothing is done where nothing differs.

- A variable from outside is a cell that the function, its rule, or a function that these reach can read. A variable
  that one of them assigns is state, and stays as it is, unless the function itself alone assigns it.
- An attribute counts if the run has set it, on an object at hand: `self`, its class, a callable object, a static
  argument, an object or a function in a cell, or an object in an attribute of these. The parameters and buffers of such
  a module of torch always count.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from types import CellType, FunctionType, MemberDescriptorType, MethodType
from typing import Any

from keras_cg.engine.functions import Facts, facts, innermost, is_closed, is_frameworks, keeps_nothing, known_facts
from keras_cg.engine.reach import (
    CONTAINER,
    DATA,
    OBJECT,
    OTHER,
    Variable,
    content,
    inside,
    kind_of,
    kinds,
    members,
    named_cells,
    reachable,
)
from keras_cg.engine.references import MISSING, TABLES, dict_of, near, slot_of, slots

# A place that can be bound again, and what was there. A place is a name or a slot in a holder: an object or a class, a
# dict of a module of torch, or a variable.
Entry = tuple[Any, Any, Any]


class World:
    """The variables and attributes of one run, as it found and as it left them.

    Attributes:
        found: Each place with what another run must find there.
        left: Each place with what the run left there, which its rule must find.
        named: What the run set, under its name.
        holders: Where the run may set something: objects, then the variables that the function assigns.
        before: What was in each of the objects before the run.
        cells: The variables from outside that the function can read, by identity; None for one that is state.
    """

    __slots__ = "before", "cells", "found", "holders", "left", "named"

    def __init__(self, user: Any, static: Sequence[Any] = ()):
        self.found: list[Entry] = []
        self.left: list[Entry] = []
        self.named: list[tuple[str, Any]] = []
        fun = user.__func__ if type(user) is MethodType else user
        fun = fun if type(fun) is FunctionType else innermost(user)
        frame = None if fun is None else known_facts.get(id(fun.__code__)) or facts(fun.__code__)
        owner = user.__self__ if type(user) is MethodType else user
        is_alone = owner is fun or (kinds.get(type(owner)) == OBJECT and not members(owner, OBJECT, True))
        objects: list[Any] = [] if owner is fun else [owner, type(owner)]
        cells = _simple_cells(fun, frame, objects) if is_alone and frame is not None and not static else None
        if cells is not None:  # as a walk would find, for most functions and methods
            self.cells = cells
        else:
            self.cells, objects = reachable(user, static, frame, fun)
        self.holders: list[Any] = [each for owner in objects for each in holders_of(owner)]
        self.before = [contents(holder).copy() for holder in self.holders]
        if frame is not None and frame.own:
            self.holders += [cell for name, cell in named_cells(fun) if name in frame.own]

    def values(self) -> list[Any]:
        """Lists what stood at hand before the run, and what containers and objects there have."""
        waiting: list[Any] = [variable[2] for variable in self.cells.values() if variable is not None]
        for before in self.before:
            waiting += before.values()
        found = waiting
        for _ in range(2):
            waiting = [value for value in waiting if kinds.get(type(value), OBJECT) >= CONTAINER]
            waiting = [each for value in waiting for each in inside(value, kind_of(value))] if waiting else waiting
            found = found + waiting
        return found

    def close(self, rules: dict[int, Variable | None], sets: set[tuple[str, str]]) -> World | None:
        """Notes how the run left the world; returns None if there is nothing to put back, now or after another run.

        `rules` are the variables that the rule can read. `sets` has the attributes that some run of the function has
        set: they count in each later run, which may set the same object again.
        """
        for holder, before in zip(self.holders, self.before, strict=False):
            is_table = type(holder) is dict
            now = holder if is_table else contents(holder)
            # By identity, and in one order: most runs set nothing.
            is_same = len(now) == len(before) and all(map(operator.is_, now.values(), before.values()))
            if not sets and not is_table and is_same and all(map(operator.is_, now, before)):
                continue
            for key in {**before, **now}:
                old, new, name = before.get(key, MISSING), now.get(key, MISSING), getattr(key, "__name__", key)
                # By name, because a class of a run must not stay alive.
                place = type(holder).__qualname__, name
                if old is not new or (not is_table and place in sets):
                    sets.add(place)
                    self.named.append((f"self.{name}", new))
                elif not is_table:
                    continue
                self.left.append((holder, key, new))
                self.found.append((holder, key, new if _is_lazy(old, key, holder) else old))
        for key, known in {**self.cells, **rules}.items():
            first = self.cells.get(key, known)
            # One that is bound after the run is state.
            if known is None or first is None or (new := content(known[0])) is first[2] is MISSING:
                continue
            cell, name, old = first
            self.named += [] if new is old else [(name, new)]
            self.left.append((cell, name, new))
            if key in self.cells:
                self.found.append((cell, name, new if old is MISSING or old is None else old))
        self.cells, self.before = {}, []
        return self if self.left or self.holders else None

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
        with _Turn(self.found, self.holders):
            before = [contents(holder).copy() for holder in self.holders]
            try:
                return fun(*args)
            finally:
                for holder, known in zip(self.holders, before, strict=True):
                    for key in {**contents(holder), **known}:
                        if read(holder, key) is not known.get(key, MISSING):
                            write(holder, key, known.get(key, MISSING))


def note(opened: World | None, rule: Any, function: Any) -> tuple[World | None, Sequence[Any], bool, Facts | None]:
    """Notes how a run of `function` left the world; `opened` is the world before it, if it had anything at hand.

    Returns also what the rule holds, by a quick look; whether all that it can read is data; and the facts of a rule
    that the run has defined and that holds data and helpers alone.
    """
    fun = function.__func__ if type(function) is MethodType else function
    if type(rule) is FunctionType and type(fun) is FunctionType:
        frame, own = known_facts.get(id(fun.__code__)), _in_a_context(rule) if rule.__dict__ else rule
        known = None if frame is None else frame.inner.get(id(own.__code__))
        # Most rules are closures over tensors and numbers of the run, and lead to no other variable.
        if frame is not None and known is not None and not known.assigned:
            parts: list[Any] = []
            try:
                for cell in own.__closure__ or ():
                    parts.append(cell.cell_contents)
            except ValueError:  # a name that is not bound yet
                parts.append(function)
            if own.__defaults__ or own.__kwdefaults__:
                parts += [*(own.__defaults__ or ()), *(own.__kwdefaults__ or {}).values()]
            rules: dict[int, Variable | None] = {}
            is_data = is_closed(own) if known.is_closed is None else known.is_closed
            for part in parts:
                if kinds.get(type(part)) != DATA:
                    if not _add_helper(part, rules):
                        break
                    is_data = is_data and is_closed(part)
            else:
                opened = World(function) if opened is None and rules else opened
                return None if opened is None else opened.close(rules, frame.sets), parts, is_data, known
    user = innermost(function)
    frame = None if user is None else facts(user.__code__)
    rules, _ = reachable(rule, (), frame, user)
    parts = near(rule)
    is_plain = type(rule) is FunctionType and is_closed(rule)
    world = (opened or World(function)).close(rules, set() if frame is None else frame.sets)
    return world, parts, is_plain and all(map(_is_data, parts)), None


def _in_a_context(rule: FunctionType) -> FunctionType:
    """Returns the rule inside a wrapper such as `torch.no_grad()(rule)`, if that leads to nothing else of the user."""
    wrapped = rule.__dict__.get("__wrapped__")
    if type(wrapped) is not FunctionType or wrapped.__dict__ or not is_frameworks(rule.__globals__.get("__name__")):
        return rule
    for cell in rule.__closure__ or ():
        part = cell.cell_contents
        # The method of a context, or the context.
        owner = part.__self__ if type(part) is MethodType else part
        if part is not wrapped and not is_frameworks(type(owner).__module__):
            return rule
    return wrapped


def leads_outside(user: Any) -> bool:
    """Whether a function has variables from outside, or defaults that lead to more than data."""
    return type(user) is not FunctionType or bool(user.__closure__) or _leads_by_defaults(user)


def _leads_by_defaults(fun: FunctionType) -> bool:
    """Whether the defaults of a function lead to more than data."""
    return not are_data([*(fun.__defaults__ or ()), *(fun.__kwdefaults__ or {}).values()])


def are_data(values: Iterable[Any]) -> bool:
    """Whether all values are numbers, texts and tensors, which lead to nothing else."""
    return all([kinds.get(type(value)) == DATA for value in values])


def _is_data(value: Any) -> bool:
    """Whether a part of a rule can be compared, and leads to nothing that a run could change."""
    if type(value) is FunctionType:
        return not value.__dict__ and is_closed(value)
    if type(value) is tuple:  # unlike a list, which a run may have changed
        return all(map(_is_data, value))
    return kind_of(value) == DATA or keeps_nothing(value)


def _simple_cells(fun: FunctionType, frame: Facts, objects: list[Any]) -> dict[int, Variable | None] | None:
    """Returns the variables of a function, if they lead to data and helpers alone, which are added to the objects."""
    cells: dict[int, Variable | None] = {}
    if frame.assigned or _leads_by_defaults(fun):
        return None
    for name, cell in named_cells(fun):
        value = content(cell)
        if kinds.get(type(value)) != DATA:
            if not _add_helper(value, cells):
                return None
            objects.append(value)
        cells[id(cell)] = cell, name, value
    return cells


def _add_helper(value: Any, cells: dict[int, Variable | None]) -> bool:
    """Adds the variables of a function that leads to data alone; returns False for another value."""
    if type(value) is not FunctionType or value.__dict__ or facts(value.__code__).assigned or _leads_by_defaults(value):
        return False
    for name, cell in named_cells(value):
        part = content(cell)
        if kinds.get(type(part)) != DATA:
            return False
        cells.setdefault(id(cell), (cell, name, part))
    return True


# The turns that are taken now, in the order in which they began.
_turns: list[_Turn] = []
_changed = threading.Condition()


class _Turn:
    """A context in which places are bound to other values; what is set in it stays.

    A thread waits while another one uses the same holder in another state, or sets what it likes there. Threads that
    want the same values go on together, and the last one brings back what was there.
    """

    __slots__ = "changed", "entries", "holders", "thread"

    def __init__(self, entries: Sequence[Entry], holders: Sequence[Any] = ()):
        self.entries, self.holders, self.thread = entries, holders, threading.get_ident()

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
        is_alone = bool(self.holders or self.changed)
        others = [each for each in _turns if each.thread != self.thread and (is_alone or each.holders)]
        return any(map(self._meets, others))

    def _meets(self, other: _Turn) -> bool:
        return not self._used().isdisjoint(other._used())

    def _used(self) -> set[int]:
        return {*map(id, self.holders), *[id(entry[0]) for entry in self.entries]}

    def __exit__(self, *error: object) -> None:
        with _changed:
            place = _turns.index(self)
            # Another thread may still need the values.
            others = [each for each in _turns[place + 1 :] if self._meets(each)]
            del _turns[place]
            if others:
                others[0].changed = self.changed + others[0].changed
            else:
                for holder, key, value, now in self.changed:
                    if read(holder, key) is value:
                        write(holder, key, now)
            _changed.notify_all()


def _differing(entries: Iterable[Entry]) -> list[tuple[Any, Any, Any, Any]]:
    """Lists the entries that are bound to something else now, with what that is."""
    return [(*entry, now) for entry in entries if (now := read(entry[0], entry[1])) is not entry[2]]


# --- one place -------------------------------------------------------------------------------------------------------


def read(holder: Any, key: Any) -> Any:
    """Returns what a place is bound to; MISSING if nothing."""
    if type(holder) is CellType:
        return content(holder)
    return slot_of(key, holder) if type(key) is MemberDescriptorType else contents(holder).get(key, MISSING)


def write(holder: Any, key: Any, value: Any) -> None:
    """Binds a place to a value, or to nothing for MISSING; no code of the user runs."""
    is_missing = value is MISSING
    if type(holder) is CellType:
        if is_missing:
            del holder.cell_contents
        else:
            holder.cell_contents = value
    elif type(key) is MemberDescriptorType:
        key.__delete__(holder) if is_missing else key.__set__(holder, value)
    elif isinstance(holder, type):
        type.__delattr__(holder, key) if is_missing else type.__setattr__(holder, key, value)
    else:
        attributes = holder if type(holder) is dict else dict_of(holder)
        dict.pop(attributes, key, None) if is_missing else dict.__setitem__(attributes, key, value)


def contents(holder: Any) -> Any:
    """Returns what is bound in a holder, by name or slot."""
    kind = type(holder)
    if kind is dict:
        return holder
    if kind is CellType:
        return {} if (value := content(holder)) is MISSING else {None: value}
    if isinstance(holder, type):
        return vars(holder)
    attributes = dict_of(holder)
    if not (places := slots(kind)):
        return attributes
    return attributes | {key: value for key in places if (value := slot_of(key, holder)) is not MISSING}


def holders_of(owner: Any) -> list[Any]:
    """Returns where a run may set attributes of an object."""
    # The parameters and buffers of a module of torch, which `torch.func.functional_call` exchanges for one call.
    if isinstance(owner, type):
        return [owner]
    attributes = dict_of(owner)
    tables = [table for name in TABLES[:2] if type(table := attributes.get(name)) is dict]
    return tables if kind_of(owner) == OTHER else [owner, *tables]


def _is_lazy(old: Any, key: Any, holder: Any) -> bool:
    """Whether an attribute had no value before the run, which computed it once and for all."""
    for base in type(holder).__mro__ if old is MISSING else ():
        old = vars(base).get(key, MISSING)
        if old is not MISSING:
            break
    # A descriptor of Python, such as a cached property, computes what is missing.
    return old is MISSING or old is None or hasattr(type(old), "__get__")
