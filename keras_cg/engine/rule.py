"""The rule of one run, kept whole: frozen, compared with the rule of another run, and searched for tensors.

The first order calls the rule of the one forward run. `freeze` keeps it as it was at that run: Python binds names late,
so a loop or a second call of the same object would change what the rule reads. A higher order runs the function again,
and `difference` says whether the second rule is the first one. It walks what Python's garbage collector says that each
object refers to, so there is no list of places where a rule may keep a tensor.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy

# Python functions and the objects that call one: their cells are frozen with those of the rule.
_FUNCTIONS = (FunctionType, MethodType, functools.partial)

# Frameworks know functions of theirs by identity (autograd finds a derivative so), and a copy would be a stranger.
_FRAMEWORKS = frozenset(["autograd", "jax", "keras", "numpy", "scipy", "tensorflow", "torch"])

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class was made by a class statement


# --- freezing --------------------------------------------------------------------------------------------------------


def freeze(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Copies a rule around what it reads now.

    Copied are its cells, those of the functions in them, and the object whose bound method or callable it is. A cell
    stays shared if one of these functions assigns to it, and an object if its methods assign to its attributes.
    Everything else (globals, containers, other objects) is read when the rule runs, as in any Python function.
    """
    if type(rule) is not FunctionType:
        return _Freezer(rule).value(rule)  # type: ignore[no-any-return]
    if rule.__closure__ is None:
        return rule
    if _assigned(rule.__code__) or not _is_function(rule):
        return _Freezer(rule).value(rule)  # type: ignore[no-any-return]
    cells = []
    try:
        for cell in rule.__closure__:
            value = cell.cell_contents
            if callable(value) and _is_function(value):
                return _Freezer(rule).value(rule)  # type: ignore[no-any-return]
            cells.append(CellType(value))
    except ValueError:  # a name that is not bound yet
        return _Freezer(rule).value(rule)  # type: ignore[no-any-return]
    copy = FunctionType(rule.__code__, rule.__globals__, rule.__name__, rule.__defaults__, tuple(cells))
    if rule.__kwdefaults__ or rule.__dict__:
        return _with_attributes(copy, rule)
    return copy


def _is_function(value: Any) -> bool:
    """Whether `freeze` follows a value that a rule calls."""
    if isinstance(value, FunctionType):
        return value.__globals__.get("__name__", "").partition(".")[0] not in _FRAMEWORKS
    return isinstance(value, _FUNCTIONS) or hasattr(type(value), "frozen_by")


class _Freezer:
    """Freezes the functions that one rule reaches through cells. Functions that share a cell share its copy."""

    def __init__(self, rule: Callable[..., Any]):
        self.copies: dict[int, Any] = {}
        self.cells: dict[int, CellType] = {}
        self._share_assigned(rule)

    def _share_assigned(self, rule: Any) -> None:
        """Notes the cells that a function assigns to: they stay the same cells."""
        waiting, seen = [rule], set()
        while waiting:
            value = waiting.pop()
            if id(value) in seen or not _is_function(value):
                continue
            seen.add(id(value))
            waiting.extend(_functions_in(value))
            if isinstance(value, FunctionType):
                names = _assigned(value.__code__)
                for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                    if name in names:
                        self.cells[id(cell)] = cell

    def value(self, value: Any) -> Any:
        """A frozen function; a copy of the object behind a method or a callable; anything else unchanged."""
        if id(value) in self.copies:
            return self.copies[id(value)]
        if isinstance(value, FunctionType):
            return self.function(value) if _is_function(value) else value
        if isinstance(value, MethodType):
            return MethodType(self.value(value.__func__), _copied(value.__self__, value.__func__))
        if isinstance(value, functools.partial):
            return type(value)(self.value(value.func), *value.args, **value.keywords)
        if hasattr(type(value), "frozen_by"):
            return value.frozen_by(self.value)
        call = type(value).__call__
        return _copied(value, call) if isinstance(call, FunctionType) else value

    def function(self, function: FunctionType) -> FunctionType:
        """The function around copies of its cells."""
        if function.__closure__ is None:
            return function
        cells = tuple([self.cells.setdefault(id(cell), CellType()) for cell in function.__closure__])
        copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
        self.copies[id(function)] = _with_attributes(copy, function)
        for cell, original in zip(cells, function.__closure__, strict=True):
            if cell is not original and not _is_bound(cell) and _is_bound(original):
                inside = original.cell_contents
                cell.cell_contents = self.value(inside) if _is_function(inside) else inside
        return copy


def _with_attributes(copy: FunctionType, function: FunctionType) -> FunctionType:
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    return copy


def _is_bound(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _functions_in(value: Any) -> list[Any]:
    """What a function calls through its cells, as far as `freeze` follows it."""
    if isinstance(value, FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or () if _is_bound(cell)]
    if isinstance(value, MethodType):
        return [value.__func__]
    if isinstance(value, functools.partial):
        return [value.func]
    return [value.__wrapped__]


def _copied(value: Any, method: Any) -> Any:
    """A shallow copy of the object behind a method, or the object itself if the method assigns to its attributes.

    The copy is made without the constructor and without `copy.copy`: a class may have given these another meaning.
    """
    kind = type(value)
    if not _is_plain(kind) or hasattr(kind, "__del__") or _assigns_attributes(method, kind, set()):
        return value
    copy = object.__new__(kind)
    for _, member in _slots(kind):
        with contextlib.suppress(AttributeError):
            member.__set__(copy, member.__get__(value))
    if hasattr(value, "__dict__"):
        vars(copy).update(vars(value))
    return copy


def _is_plain(kind: type) -> bool:
    """Whether all that an object of a class holds is in its slots and its dict, and none of it in memory of C."""
    while kind is not object:
        own, base = vars(kind), kind.__base__ or object
        words = [name for name, member in own.items() if isinstance(member, MemberDescriptorType)]
        words += [name for name in ("__dict__", "__weakref__") if name in own]
        size = kind.__basicsize__ - base.__basicsize__
        if not kind.__flags__ & _HEAP_TYPE or size > len(words) * object().__sizeof__() // 2:
            return False
        kind = base
    return True


def _assigns_attributes(method: Any, kind: type, seen: set[CodeType]) -> bool:
    """Whether a method, or one that it calls by name, assigns to attributes."""
    code = getattr(method, "__code__", None)
    if code is None or code in seen:
        return False
    seen.add(code)
    names = _assigned_attributes(code)
    return names is None or any([_assigns_attributes(getattr(kind, name, None), kind, seen) for name in names])


@functools.lru_cache(4096)
def _assigned_attributes(code: CodeType) -> tuple[str, ...] | None:
    """The names that a function looks up, or None if it assigns to an attribute."""
    if any(step.opname in ("STORE_ATTR", "DELETE_ATTR") for step in dis.get_instructions(code)):
        return None
    names = set(code.co_names)
    for inner in _inner(code):
        found = _assigned_attributes(inner)
        if found is None:
            return None
        names.update(found)
    return tuple(names)


@functools.lru_cache(4096)
def _assigned(code: CodeType) -> frozenset[str]:
    """The names that a function closes over and assigns to, itself or in a function inside."""
    steps = dis.get_instructions(code)
    names = {step.argval for step in steps if step.opname in ("STORE_DEREF", "DELETE_DEREF")}
    return frozenset(names.union(*map(_assigned, _inner(code))).intersection(code.co_freevars))


def _inner(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


# --- searching -------------------------------------------------------------------------------------------------------

# What refers to nothing that a rule could differentiate.
_ATOMS = (type(None), bool, int, float, complex, str, bytes, CodeType, type(Ellipsis), range)
_OUTSIDE = (*_ATOMS, ModuleType)


def reached(roots: Iterable[Any], is_wanted: Callable[[Any], bool], limit: int = 100_000) -> Iterator[Any]:
    """Finds what can be reached from some values without calling anything; globals and modules are not entered.

    Args:
        roots: Where the search begins.
        is_wanted: Says what to yield; the search does not enter that.
        limit: How many objects it looks at before it gives up.
    """
    walked = _walk(roots, lambda value: is_wanted(value) or isinstance(value, _OUTSIDE), limit)
    return (value for value in walked if is_wanted(value))


def outline(rule: Any, is_tensor: Callable[[Any], bool], known: Mapping[int, Any]) -> tuple[list[Any], list[Any]]:
    """What a rule consists of: its tensors, and what has to be equal in the rule of another run.

    It serves where the rule itself must not be kept.

    Args:
        rule: The rule.
        is_tensor: Whether a value is a tensor of the backend.
        known: What to note of objects that were there before the run, by their identity; they are not entered.
    """
    tensors, facts = [], []
    for value in _walk([rule], lambda value: id(value) in known or is_tensor(value) or isinstance(value, _OUTSIDE)):
        if isinstance(value, _OUTSIDE):
            facts.append(value)
        elif id(value) in known:
            facts.append(known[id(value)])
        elif is_tensor(value):
            tensors.append(value)
        else:
            facts.append(getattr(value, "__code__", type(value).__qualname__))
    return tensors, facts


def refers(fun: Any) -> bool:
    """Whether a function may refer to anything by itself, besides globals."""
    if type(fun) is not FunctionType:
        return True
    return bool(fun.__closure__ or fun.__defaults__ or fun.__kwdefaults__ or fun.__dict__)


def referents(fun: Any) -> list[Any]:
    """What a function refers to by itself: its cells, defaults, and the object whose method it is."""
    parts = [part for _, part in _parts(fun)]
    return parts + (referents(fun.__func__) if isinstance(fun, MethodType) else [])


def _walk(roots: Iterable[Any], is_end: Callable[[Any], bool], limit: int = 100_000) -> Iterator[Any]:
    """Every object that is reached from some others, once, the nearest first."""
    # The objects stay alive while the search runs, so that no identity is used twice.
    seen: dict[int, Any] = {}
    waiting = deque(roots)
    while waiting and len(seen) < limit:
        value = waiting.popleft()
        if id(value) not in seen:
            seen[id(value)] = value
            yield value
            if not is_end(value):
                waiting.extend([part for _, part in _parts(value)])


# --- comparing -------------------------------------------------------------------------------------------------------

# Of Python's own numbers: rounding of sums in another order, of what may have been float32.
_TOLERANCE = 1e-6


def difference(
    first: Any,
    other: Any,
    is_tensor: Callable[[Any], bool],
    agreement: Callable[[Sequence[tuple[Any, Any]]], Sequence[Any]],
) -> tuple[str | None, list[Any]]:
    """Says where a rule differs from the rule of the first run.

    Two rules are the same if they are the same code around equal numbers and tensors, wherever these are held. What is
    one object in both is not entered. Classes and functions that each run makes anew are compared by what they hold.

    Args:
        first: The rule of the first run.
        other: The rule of another run.
        is_tensor: Whether a value is a tensor of the backend.
        agreement: Says of each pair of tensors whether they are equal but for the rounding of sums in another order:
            True or False, or a boolean tensor where no value can be looked at yet.

    Returns:
        A description such as `k was 2.0 and is 5.0`, or None; and the boolean tensors that must all hold.
    """
    tensors: list[tuple[str, Any, Any]] = []
    found = _walk_pairs(first, other, is_tensor, tensors)
    if found is not None or not tensors:
        return found, []
    answers = agreement([(one, two) for _, one, two in tensors])
    for (path, one, two), is_equal in zip(tensors, answers, strict=True):
        if is_equal is False:
            return _told(path, one, two), []
    return None, [answer for answer in answers if answer is not True]


def _walk_pairs(
    first: Any, other: Any, is_tensor: Callable[[Any], bool], tensors: list[tuple[str, Any, Any]]
) -> str | None:
    """The first difference but for tensors, whose pairs are collected."""
    # The pairs stay alive while they are walked, so that no identity is used twice.
    seen: dict[tuple[int, int], Any] = {}
    waiting = deque([("", first, other)])
    while waiting:
        path, one, two = waiting.popleft()
        if one is two or (id(one), id(two)) in seen:
            continue
        seen[id(one), id(two)] = one, two
        if is_tensor(one) and is_tensor(two):
            tensors.append((path, one, two))
            continue
        parts = _paired(one, two)
        if parts is None:
            return _told(path, one, two)
        waiting.extend([(_joined(path, step), a, b) for step, a, b in parts])
    return None


def _paired(one: Any, two: Any) -> list[tuple[str, Any, Any]] | None:
    """The parts of two values in pairs, or None if the values differ."""
    if not _is_same_type(type(one), type(two)):
        return None
    if isinstance(one, _ATOMS):
        return [] if _is_same_atom(one, two) else None
    if isinstance(one, numpy.ndarray) and not one.dtype.hasobject:
        return [] if is_repeated(two, one, _TOLERANCE) else None
    if isinstance(one, (set, frozenset)):
        return _paired_sets(one, two)
    if isinstance(one, FunctionType):
        if one.__code__ != two.__code__ or one.__globals__ is not two.__globals__:
            return None
    elif isinstance(one, type):
        if not _is_same_type(one, two):
            return None
    elif isinstance(one, _BUILTINS) and one.__name__ != two.__name__:
        return None
    parts, others = _parts(one), _parts(two)
    if not parts and not others:
        return [] if _is_equal_leaf(one, two) else None
    if [step for step, _ in parts] != [step for step, _ in others]:
        return None
    return [(step, a, b) for (step, a), (_, b) in zip(parts, others, strict=True)]


# Of one object there are several, such as `array.__mul__` and `array.__add__`.
_BUILTINS = (BuiltinFunctionType, MethodWrapperType)


def _is_same_type(one: type, two: type) -> bool:
    return one is two or (one.__qualname__, one.__module__) == (two.__qualname__, two.__module__)


def _is_same_atom(one: Any, two: Any) -> bool:
    if isinstance(one, (float, complex)):
        parts = ((one.real, two.real), (one.imag, two.imag))
        return all([math.isclose(a, b, rel_tol=_TOLERANCE) or (a != a and b != b) for a, b in parts])
    return bool(one == two)


def _is_equal_leaf(one: Any, two: Any) -> bool:
    """Whether two objects that refer to nothing are equal; a type without `==` of its own has nothing to compare."""
    equality: Any = type(one).__eq__
    if equality is object.__eq__:
        return True
    try:
        return bool(one == two)
    except Exception:
        return False


def _paired_sets(one: Any, two: Any) -> list[tuple[str, Any, Any]] | None:
    """The members of two sets in pairs. Those that are no numbers or strings have no order: only one can be paired."""
    if len(one) != len(two):
        return None
    left, right = [each for each in one if each not in two], [each for each in two if each not in one]
    return [("[...]", left[0], right[0])] if len(left) == 1 else None if left else []


def _parts(value: Any) -> list[tuple[str, Any]]:
    """What a value refers to, each with the step that leads there.

    A function's module is left out, because both rules share it, and so is the class of an object.
    """
    if isinstance(value, FunctionType):
        named = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        parts = [(name, cell.cell_contents) for name, cell in named if _is_bound(cell)]
        parts += [("default", default) for default in value.__defaults__ or ()]
        parts += (value.__kwdefaults__ or {}).items()
        return parts + [(f".{name}", part) for name, part in value.__dict__.items()]
    if isinstance(value, dict):
        items = [(f"[{_key(key)}]", part) for key, part in value.items()]
        return items + [("key", key) for key in value if not isinstance(key, _ATOMS)] + _attributes(value)
    if isinstance(value, (list, tuple, deque)):
        return [(f"[{index}]", part) for index, part in enumerate(value)] + _attributes(value)
    if isinstance(value, weakref.ref):
        return [("()", value())]
    if isinstance(value, numpy.ndarray):
        return [("[...]", part) for part in value.flat] if value.dtype.hasobject else []
    if isinstance(value, type):
        kept = (FunctionType, property, staticmethod, classmethod)
        members = [(f".{name}", part) for name, part in vars(value).items()]
        return [(step, part) for step, part in members if isinstance(part, kept) or not callable(part)]
    if isinstance(value, GetSetDescriptorType):
        return []
    named_parts = _attributes(value)
    known = {id(part) for _, part in named_parts} | {id(type(value)), id(getattr(value, "__dict__", None))}
    return named_parts + [("", part) for part in gc.get_referents(value) if id(part) not in known]


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """An object's attributes by their names: the collector lists them in an order of its own."""
    found = dict(getattr(value, "__dict__", {}))
    for name, member in _slots(type(value)):
        with contextlib.suppress(AttributeError):
            found[name] = member.__get__(value)
    return [(f".{name}", found[name]) for name in sorted(found)]


def _slots(kind: type) -> list[tuple[str, MemberDescriptorType]]:
    """The slots of a class and its bases."""
    members = [item for base in kind.__mro__ if base.__flags__ & _HEAP_TYPE for item in vars(base).items()]
    return [(name, member) for name, member in members if isinstance(member, MemberDescriptorType)]


def _key(key: Any) -> str:
    return repr(key) if isinstance(key, _ATOMS) else "..."


def _joined(path: str, step: str) -> str:
    return f"{path}{step}" if not path or step.startswith((".", "[", "(")) or not step else step


def _told(path: str, one: Any, two: Any) -> str:
    before, now = _shown(one), _shown(two)
    where = path or "the rule itself"
    return f"{where} is another {now}" if before == now else f"{where} was {before} and is {now}"


def _shown(value: Any) -> str:
    """A value in a message, short."""
    if isinstance(value, _ATOMS):
        text = repr(value)
        return text if len(text) <= 40 else text[:37] + "..."
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
        return f"{name}[{', '.join(map(str, shape))}]"
    return getattr(value, "__qualname__", type(value).__qualname__)


def is_repeated(other: numpy.ndarray, first: numpy.ndarray, tolerance: float) -> bool:
    """Whether two arrays are equal but for the rounding of sums in another order.

    Args:
        other: An array.
        first: The array that it is compared with.
        tolerance: How much an element may differ, in units of the largest finite element of `first`.
    """
    if other.shape != first.shape or other.dtype != first.dtype:
        return False
    if numpy.array_equal(other, first):
        return True
    if first.dtype.kind not in "fcV":
        return False
    size = numpy.max(numpy.abs(first), initial=0.0, where=numpy.isfinite(first))
    return bool(numpy.allclose(other, first, rtol=0, atol=tolerance * float(size), equal_nan=True))
