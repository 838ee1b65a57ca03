"""The rule of one run, kept whole: compared with the rule of another run, and searched for tensors.

A higher order runs the function again, and `difference` says whether the second rule is the first one. It walks what
Python's garbage collector says that each object refers to: there is no list of places where a rule may keep a tensor.
"""

from __future__ import annotations

import contextlib
import gc
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy

from keras_cg.engine.freezing import is_bound, slots

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
        parts = [(name, cell.cell_contents) for name, cell in named if is_bound(cell)]
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
    for name, member in slots(type(value)):
        with contextlib.suppress(AttributeError):
            found[name] = member.__get__(value)
    return [(f".{name}", found[name]) for name in sorted(found)]


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
