"""Binds places to other values while something runs, a thread at a time where that matters."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from types import CellType, FunctionType, MemberDescriptorType
from typing import Any

from keras_cg.engine.reach import OBJECT, content, kinds
from keras_cg.engine.references import MISSING, dict_of, slot_of, slots

# A place that can be bound again, and what was there. A place is a name or a slot in a holder: an object or a class, a
# dict of a module of torch, or a variable.
Entry = tuple[Any, Any, Any]

# The classes without slots that exist longer than a run: what their objects have is in a dict.
_bare: set[type] = {FunctionType}


def contents(holder: Any) -> Any:
    """Returns what is bound in a holder, by name or slot."""
    kind = type(holder)
    if kind in _bare:
        return object.__getattribute__(holder, "__dict__")
    if kind is dict:
        return holder
    if kind is CellType:
        return {} if (value := content(holder)) is MISSING else {None: value}
    if isinstance(holder, type):
        return vars(holder)
    attributes = dict_of(holder)
    if not (places := slots(kind)):
        if kinds.get(kind) == OBJECT and kind.__dictoffset__:
            _bare.add(kind)
        return attributes
    return attributes | {key: value for key in places if (value := slot_of(key, holder)) is not MISSING}


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


# The turns that are taken now, in the order in which they began, and those that wait.
_turns: list[Turn] = []
_waiting: list[Turn] = []
_lock = threading.RLock()
_changed = threading.Condition(_lock)


class Turn:
    """A context in which places are bound to other values; what is set in it stays.

    A thread waits while another one uses the same holder in another state, or sets what it likes there. Threads that
    want the same values go on together, and the last one brings back what was there.
    """

    __slots__ = "changed", "entries", "holders", "thread"

    def __init__(self, entries: Sequence[Entry], holders: Sequence[Any] = ()):
        self.entries, self.holders, self.thread = entries, holders, threading.get_ident()

    def __enter__(self) -> None:
        with _lock:
            self.changed = _differing(self.entries)
            while _turns and self._must_wait():
                _waiting.append(self)
                _changed.wait()
                _waiting.remove(self)
                self.changed = _differing(self.entries)
            for holder, key, value, _ in self.changed:
                write(holder, key, value)
            _turns.append(self)

    def _must_wait(self) -> bool:
        is_alone = bool(self.holders or self.changed)
        others = [each for each in _turns if each.thread != self.thread and (is_alone or each.holders)]
        return any(map(self._meets, others))

    def _meets(self, other: Turn) -> bool:
        return not self._used().isdisjoint(other._used())

    def _used(self) -> set[int]:
        return {*map(id, self.holders), *[id(entry[0]) for entry in self.entries]}

    def __exit__(self, *error: object) -> None:
        with _lock:
            place = _turns.index(self)
            # Another thread may still need the values.
            others = [each for each in _turns[place + 1 :] if self._meets(each)] if self.changed else ()
            del _turns[place]
            if others:
                others[0].changed = self.changed + others[0].changed
            else:
                for holder, key, value, now in self.changed:
                    if read(holder, key) is value:
                        write(holder, key, now)
            if _waiting:
                _changed.notify_all()


def _differing(entries: Iterable[Entry]) -> list[tuple[Any, Any, Any, Any]]:
    """Lists the entries that are bound to something else now, with what that is."""
    return [(*entry, now) for entry in entries if (now := read(entry[0], entry[1])) is not entry[2]]
