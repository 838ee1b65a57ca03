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
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, MethodType
from typing import Any

from keras_cg.engine.functions import (
    Facts,
    facts,
    innermost,
    is_closed,
    is_frameworks,
    keeps_nothing,
    known_facts,
)
from keras_cg.engine.reach import (
    DATA,
    OBJECT,
    OTHER,
    Variable,
    add_cells,
    add_helper,
    are_bound,
    content,
    data,
    flat,
    inside,
    kind_of,
    kinds,
    leads_by_defaults,
    leads_on,
    leads_outside,
    named_cells,
    reachable,
    shares,
)
from keras_cg.engine.references import MISSING, TABLES, is_module, near
from keras_cg.engine.turns import Entry, Turn, contents, read, write

_FUNCTIONS = (FunctionType, MethodType)


class World:
    """The variables and attributes of one run, as it found and as it left them.

    Attributes:
        added: The variables that the rule alone leads to: another run must find them as this one left them.
        found: Each other place with what another run must find there.
        left: Each place with what the run left there, which its rule must find.
        named: What the run set, under its name.
        holders: Where the run may set something: objects, then the variables that the function assigns.
        before: What was in each of the objects before the run.
        cells: The variables from outside that the function can read, by identity; None for one that is state.
        owner: The object of a method, if no function that it leads to has variables.
        is_ground: Whether a `Ground` has collected it, and the run has not ended.
    """

    __slots__ = "added", "before", "cells", "found", "holders", "is_ground", "left", "named", "owner"

    def __init__(self, user: Any, static: Sequence[Any] = ()):
        self.added: list[Entry] = []
        self.found: list[Entry] = []
        self.left: list[Entry] = []
        self.named: list[tuple[str, Any]] = []
        self.is_ground = False
        fun = user.__func__ if type(user) is MethodType else user
        fun = fun if type(fun) is FunctionType else innermost(user)
        frame = None if fun is None else known_facts.get(id(fun.__code__)) or facts(fun.__code__)
        owner = user.__self__ if type(user) is MethodType else user
        is_object = kinds.get(type(owner)) == OBJECT
        objects = [owner, type(owner)] if is_object else []
        is_simple = frame is not None and not static and not frame.assigned and not leads_by_defaults(fun)
        is_simple = is_simple and (not leads_on(owner) if is_object else owner is fun)
        self.cells: dict[int, Variable | None] = {}
        # As a walk would find, for most functions and methods.
        if not (is_simple and (not fun.__closure__ or add_cells(fun, self.cells, objects))):
            self.cells, objects = reachable(user, static, frame, fun)
        self.owner = owner if is_object and not self.cells else None
        self.holders: list[Any] = []
        self.before: list[dict[Any, Any]] = []
        for each in objects:
            there = contents(each)
            if kinds.get(type(each)) != OTHER:
                self.holders.append(each)
                self.before.append(there.copy())
            # The parameters and buffers of a module of torch, which `functional_call` exchanges for one call.
            if is_module(there):
                self.holders += (tables := [there[name] for name in TABLES[:2]])
                self.before += [table.copy() for table in tables]
        if frame is not None and frame.own:
            self.holders += [cell for name, cell in named_cells(fun) if name in frame.own]

    def widen(self) -> None:
        """Becomes the world before the run as it is collected for any function."""
        self.cells = {id(entry[0]): entry for entry in self.found}
        self.found, self.left, self.before, self.is_ground = [], [], [{} for _ in self.holders], False

    def values(self) -> list[Any]:
        """Lists what stood at hand before the run, and what containers and objects there have."""
        waiting = [variable[2] for variable in self.cells.values() if variable is not None] if self.cells else []
        for holder, before in zip(self.holders, self.before, strict=False):
            waiting += inside(holder, OBJECT) if is_module(before) else before.values()
        found = waiting
        for _ in range(2):
            if flat.issuperset(map(type, waiting)):
                break
            waiting = [each for value in waiting for each in inside(value, kind_of(value))]
            found = found + waiting
        return found

    def close(self, rules: dict[int, Variable | None], sets: dict[str, set[str]]) -> World | None:
        """Notes how the run left the world; returns None if there is nothing to put back, now or after another run.

        `rules` are the variables that the rule can read. `sets` has the attributes that some run of the function has
        set, by the name of the class: they count in each later run, which may set the same object again.
        """
        if self.is_ground:
            self._add(rules)
            return self
        for holder, before in zip(self.holders, self.before, strict=False):
            is_table = type(holder) is dict
            now = holder if is_table else contents(holder)
            # By name, because a class of a run must not stay alive.
            names: Any = () if is_table or not sets else sets.get(type(holder).__qualname__, ())
            # Most runs set nothing.
            if not names and not is_table and _are_same(now, before):
                continue
            for key in {**before, **now}:
                old, new, name = before.get(key, MISSING), now.get(key, MISSING), getattr(key, "__name__", key)
                if old is not new or name in names:
                    self.named.append((f"self.{name}", new))
                    if not is_table:
                        sets.setdefault(type(holder).__qualname__, set()).add(name)
                elif not is_table:
                    continue
                self.left.append((holder, key, new))
                self.found.append((holder, key, new if _is_lazy(old, key, holder) else old))
        for key, variable in self.cells.items():
            if variable is not None and rules.get(key, variable) is not None:
                cell, name, old = variable
                new = content(cell)
                self.named += [] if new is old else [(name, new)]
                self.found.append((cell, name, new if old is MISSING or old is None else old))
        for key in self.cells.keys() & rules.keys():
            variable, first = rules.pop(key), self.cells[key]
            # One that is bound after the run is state.
            if variable is not None and first is not None and not variable[2] is first[2] is MISSING:
                self.left.append(variable)
        self._add(rules)
        self.cells, self.before = {}, []
        return self if self.left or self.found or self.holders else None

    def _add(self, rules: dict[int, Variable | None]) -> None:
        """Adds the variables that the rule can read, and to which the function does not lead."""
        added = [each for each in rules.values() if each is not None and each[2] is not MISSING]
        if added:
            self.added, self.left = added, self.left + added
            self.named += [(name, value) for _, name, value in added]

    def is_owner(self, value: Any) -> bool:
        """Whether a value is the object of the method, and still leads to no function that has variables."""
        if value is not self.owner or value is None:
            return False
        return _are_same(contents(value), self.before[0]) or not leads_on(value)

    def bound(self, keys: Iterable[int]) -> dict[int, Variable | None]:
        """Returns some of the variables, given by identity, with what they are bound to now."""
        found: dict[int, Variable | None] = {}
        for key in keys:
            known = self.cells.get(key)
            if known is not None:
                found[key] = known[0], known[1], content(known[0])
        return found

    def forget(self) -> None:
        """Drops what the run left and its rule holds, of which the comparison has an outline."""
        self.left, self.named, self.added = [], [], []

    def run(self, fun: Callable[..., Any], *args: Any) -> Any:
        """Calls a rule in the world that its run left. What the rule itself sets stays."""
        if not self.left:
            return fun(*args)
        with Turn(self.left):
            return fun(*args)

    def again(self, fun: Callable[..., Any], *args: Any) -> Any:
        """Calls the function of the run in the world that the run found, and brings back what is there now."""
        found = self.found + self.added
        with Turn(found, self.holders):
            before = [contents(holder).copy() for holder in self.holders]
            try:
                return fun(*args)
            finally:
                for holder, known in zip(self.holders, before, strict=True):
                    for key in {**contents(holder), **known}:
                        if read(holder, key) is not known.get(key, MISSING):
                            write(holder, key, known.get(key, MISSING))
                # A variable that the run has bound by a way that does not show, such as a function in a table.
                for holder, key, value in found:
                    if read(holder, key) is not value:
                        write(holder, key, value)


def note(opened: World | None, rule: Any, function: Any) -> tuple[World | None, Sequence[Any], bool, Facts | None]:
    """Notes how a run of `function` left the world; `opened` is the world before it, if it had anything at hand.

    Returns also what the rule holds, by a quick look; whether all that it can read is data; and the facts of a rule
    that the run has defined and that holds data and helpers alone.
    """
    # A method has the code of its function; no other object is asked.
    code = getattr(function, "__code__", None) if type(function) in _FUNCTIONS else None
    frame = known_facts.get(id(code))
    if opened is not None and opened.is_ground and not are_bound(opened.found, opened.holders):
        opened.widen()
    if frame is not None and type(rule) is FunctionType:
        own = _in_a_context(rule) if rule.__dict__ else rule
        known = frame.inner.get(id(own.__code__))
        fun = function.__func__ if type(function) is MethodType else function
        # Most rules are closures over tensors and numbers of the run, and lead to no other variable.
        if known is not None and not known.assigned and (not fun.__closure__ or shares(own, fun)):
            parts: list[Any] = []
            try:
                for cell in own.__closure__ or ():
                    parts.append(cell.cell_contents)
            except ValueError:  # a name that is not bound yet
                parts.append(function)
            if own.__defaults__:
                parts += own.__defaults__
            if own.__kwdefaults__:
                parts += own.__kwdefaults__.values()
            is_data = is_closed(own) if known.is_closed is None else known.is_closed
            rules: dict[int, Variable | None] = {}
            if opened is not None and opened.cells:
                rules = opened.bound(map(id, own.__closure__ or ()))
            for part in parts:
                if type(part) not in data:
                    if not _add_part(part, opened, fun, frame, rules):
                        break
                    is_data = is_data and _is_data(part)
            else:
                if opened is None:
                    if not rules:
                        return None, parts, is_data, known
                    opened = World(function)
                return opened.close(rules, frame.sets), parts, is_data, known
    if opened is not None and opened.is_ground:
        opened.widen()
    parts = near(rule)
    is_plain = type(rule) is FunctionType and is_closed(rule)
    is_of_owner = type(rule) is MethodType and opened is not None and opened.is_owner(rule.__self__)
    if opened is not None and frame is not None and is_of_owner and not leads_outside(rule.__func__):
        return opened.close({}, frame.sets), parts, False, None
    user = innermost(function)
    frame = None if user is None else facts(user.__code__)
    opened = opened or World(function)
    # The variables of the function, too: a generator, or an object of C, may read them.
    rules = opened.bound(opened.cells) | reachable(rule, (), frame, user)[0]
    return opened.close(rules, {} if frame is None else frame.sets), parts, is_plain and all(map(_is_data, parts)), None


def _add_part(part: Any, opened: World | None, fun: Any, frame: Facts, rules: dict[int, Variable | None]) -> bool:
    """Adds the variables to which a part of a rule of `fun` leads; returns False if it leads to more."""
    is_function = type(part) is FunctionType
    if opened is not None and (opened.is_owner(part) or (opened.is_ground and is_function and part in opened.holders)):
        return True
    if is_function and id(part.__code__) in frame.inner and shares(part, fun):
        # The run has defined it: its variables are those of its frame, which is over, or of the function.
        if opened is not None:
            rules.update(opened.bound(map(id, part.__closure__ or ())))
        return add_helper(part, {})
    return add_helper(part, rules)


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


def _are_same(now: Any, before: Any) -> bool:
    """Whether a holder has what it had, by identity and in one order."""
    is_same = len(now) == len(before) and all(map(operator.is_, now.values(), before.values()))
    return is_same and all(map(operator.is_, now, before))


def _is_data(value: Any) -> bool:
    """Whether a part of a rule can be compared, and leads to nothing that a run could change."""
    if type(value) is FunctionType:
        return not value.__dict__ and is_closed(value)
    if type(value) is tuple:  # unlike a list, which a run may have changed
        return all(map(_is_data, value))
    return kind_of(value) == DATA or keeps_nothing(value)


def _is_lazy(old: Any, key: Any, holder: Any) -> bool:
    """Whether an attribute had no value before the run, which computed it once and for all."""
    for base in type(holder).__mro__ if old is MISSING else ():
        old = vars(base).get(key, MISSING)
        if old is not MISSING:
            break
    # A descriptor of Python, such as a cached property, computes what is missing.
    return old is MISSING or old is None or hasattr(type(old), "__get__")
