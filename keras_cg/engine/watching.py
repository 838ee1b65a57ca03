"""Watches the names of a rule that are not copied: what binds them again, and whether a rule did that itself."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from inspect import getattr_static
from types import CellType, FunctionType, MemberDescriptorType, MethodType
from typing import Any

from keras_cg.engine.functions import ATOMS, facts, innermost, is_method

_NOTHING = object()


class _Cell:
    """One cell that no function which a rule reaches assigns, so that a binding is by something else."""

    __slots__ = "cell", "last"

    def __init__(self, cell: CellType):
        self.cell, self.last = cell, _content(cell)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Cell) and self.cell is other.cell and _is_same(self.last, other.last)

    __hash__ = None  # type: ignore[assignment]

    def look(self) -> int:
        """Returns 0 as long as the cell is bound to the same."""
        return 0 if _is_same(_content(self.cell), self.last) else 1

    def settle(self) -> None:
        """Takes what it is bound to now for the same."""
        self.last = _content(self.cell)


class _Name:
    """One attribute of an object: how often it was bound by something else than a rule.

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

    def settle(self) -> None:
        """Takes what it is bound to now for the state of a rule."""
        now = self.read()
        if now is not _referent(self.last):
            self.last = _reference(now)


# By the identity of the object, and the name: the rules of all runs share what is known of it. It is known as long as a
# rule is watched because of it.
_names: weakref.WeakValueDictionary[tuple[int, str], _Name] = weakref.WeakValueDictionary()


def _name(holder: Any, name: str, read: Callable[[], Any]) -> _Name:
    known = _names.get((id(holder), name))
    if known is None:
        known = _names[id(holder), name] = _Name(read)
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
Entry = tuple[str, _Name | _Cell, int, Any]
# What is known of each name, and its epoch when a rule was made.
Epochs = dict[str, tuple[_Name | _Cell, int]]


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

    def settle(self) -> None:
        """Takes what was bound since `changed` for the rule's own state: the rule has run."""
        for _, known, _, _ in self.entries:
            known.settle()

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


def of_cells(fun: Any, shared: Collection[int]) -> Iterator[Entry]:
    """Yields the cells of a function that is no copy."""
    if type(fun) is not FunctionType or not fun.__closure__:
        return
    assigned = facts(fun.__code__).assigned
    for name, cell in zip(fun.__code__.co_freevars, fun.__closure__, strict=True):
        if id(cell) not in shared and name not in assigned:
            known = _Cell(cell)
            yield name, known, 0, known.last


def of_owner(owner: Any, method: Any) -> Iterator[Entry]:
    """Yields the attributes of the object of a method that the method names."""
    for name in () if method is None else _attributes(method, type(owner)):
        known = _name(owner, name, functools.partial(_stored, _reference(owner), name))
        yield name, known, known.epoch, known.read()


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _NOTHING


def _stored(reference: Any, name: str) -> Any:
    """Returns what an object has stored under a name; no code of its class runs."""
    owner = _referent(reference)
    stored = getattr(owner, "__dict__", {})
    if name in stored:
        return stored[name]
    for base in type(owner).__mro__:
        member = vars(base).get(name)
        if type(member) is MemberDescriptorType:
            try:
                return member.__get__(owner)
            except AttributeError:
                return _NOTHING
    # A module of torch keeps these in tables of its own.
    for table in ("_parameters", "_buffers", "_modules"):
        found = stored.get(table)
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
            others = [innermost(member) for member in members if is_method(member)]
            others += [_content(cell) for cell in each.__closure__ or ()] + [each.__dict__.get("__wrapped__")]
            waiting += [other for other in others if type(other) is FunctionType and other not in waiting]
        # Not `__class__`, which a context manager of torch reads: it is not bound to something else.
        named = [name for name in found if not name.startswith("__")]
        known[kind] = frozenset([name for name in named if not is_method(getattr_static(kind, name, None))])
    return known[kind]
