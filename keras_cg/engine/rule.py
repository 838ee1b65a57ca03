"""Compares the rule of one run with the rule of another, and searches a rule for tensors.

Python's garbage collector tells what a value refers to, so there is no list of places where a rule may keep a tensor.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import sys
import threading
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy

from keras_cg.engine.freezing import attributes, has_python_layout, is_bound

# These refer to nothing that a rule could differentiate.
_ATOMS = (type(None), bool, int, float, complex, str, bytes, memoryview, types.CodeType, type(Ellipsis), range)

# One object or class has several, such as `array.__mul__` and `array.__add__`.
_NAMED = (types.BuiltinFunctionType, types.MethodWrapperType, types.GetSetDescriptorType)

# Objects without a value, which pickle refuses.
_LOCKS = (type(threading.Lock()), type(threading.RLock()))

# Of Python's own numbers: rounding of sums in another order, of what may have been float32.
_TOLERANCE = 1e-6


def reached(roots: Iterable[Any], is_wanted: Callable[[Any], bool], limit: int = 100_000) -> Iterator[Any]:
    """Finds what can be reached from `roots` without calling anything; globals and modules are not entered.

    The search does not enter what is wanted, and it gives up after `limit` objects.
    """
    # The objects stay alive while the search runs, so that no identity is used twice.
    seen: dict[int, Any] = {}
    waiting = deque(roots)
    while waiting and len(seen) < limit:
        value = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if is_wanted(value):
            yield value
        elif not isinstance(value, (*_ATOMS, types.ModuleType)):
            waiting.extend([part for _, part in _parts(value)])


def refers(fun: Any) -> bool:
    """Whether a function may refer to anything but globals."""
    is_plain_function = type(fun) is types.FunctionType
    return not is_plain_function or bool(fun.__closure__ or fun.__defaults__ or fun.__kwdefaults__ or fun.__dict__)


def referents(fun: Any) -> list[Any]:
    """Lists what a function refers to by itself: its cells, defaults, and the object whose method it is."""
    parts = [part for _, part in _parts(fun)]
    return parts + (referents(fun.__func__) if isinstance(fun, types.MethodType) else [])


def near(fun: Any) -> list[Any]:
    """Lists what a function refers to, one level deep: cells, defaults, arguments of partials, `vars` of its object."""
    if isinstance(fun, functools.partial):
        return [*fun.args, *fun.keywords.values(), *near(fun.func)]
    if isinstance(fun, types.MethodType):
        return [*near(fun.__func__), *getattr(fun.__self__, "__dict__", {}).values()]
    if isinstance(fun, types.FunctionType):
        cells = [cell.cell_contents for cell in fun.__closure__ or () if is_bound(cell)]
        return [*cells, *(fun.__defaults__ or ()), *(fun.__kwdefaults__ or {}).values()]
    wrapped = getattr(fun, "__wrapped__", None)
    return [*getattr(fun, "__dict__", {}).values(), *(() if wrapped is None else near(wrapped))]


def difference(
    first: Any,
    other: Any,
    is_tensor: Callable[[Any], bool],
    agreement: Callable[[Sequence[tuple[Any, Any]]], Sequence[Any]],
) -> tuple[str | None, list[Any]]:
    """Says where a rule differs from the rule of the first run, such as `k was 2.0 and is 5.0`; None if nowhere.

    Two rules are equal if they are the same code with equal numbers and tensors, in whatever objects these are. An
    object that both rules refer to is not entered. Classes and functions that each run defines are compared by parts.
    `is_tensor` and `agreement` are those of the backend. Returns also the boolean tensors of `agreement`.
    """
    tensors: list[tuple[str, Any, Any]] = []
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
        (head, parts), (other_head, others) = _opened(one), _opened(two)
        if head != other_head:
            return _told(path, one, two), []
        pairs = zip(parts, others, strict=True)
        # A step such as `.field` or `[0]` goes on from the path; a name begins a new one.
        waiting.extend([(path + step if step[:1] in ".[(" else step, a, b) for (step, a), (_, b) in pairs])
    answers = agreement([(one, two) for _, one, two in tensors]) if tensors else ()
    for pair, is_equal in zip(tensors, answers, strict=True):
        if is_equal is False:
            return _told(*pair), []
    return None, [answer for answer in answers if answer is not True]


def outline(
    rule: Any, is_tensor: Callable[[Any], bool], shared: Iterable[Any], inputs: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Lists what a rule consists of, where the rule itself must not stay alive: its tensors, and everything else.

    Two rules with equal tensors are equal if their second lists are. `shared` objects, which are those of all runs, are
    not entered; `inputs` are the arguments of the run.
    """
    # The fact for an object that was met before, and the object: it stays alive, so that no identity is used twice.
    known: dict[int, Any] = {id(value): ((id(value), value),) for value in shared if not isinstance(value, _ATOMS)}
    known |= {id(tensor): (f"argument {place}", tensor) for place, tensor in enumerate(inputs)}
    tensors, facts = [], []
    for value in (waiting := [rule]):
        if id(value) in known:
            facts.append(known[id(value)][0])
            continue
        if is_tensor(value) or not isinstance(value, _ATOMS):
            known[id(value)] = len(facts), value
        if is_tensor(value):
            facts.append("tensor")
            tensors.append(value)
        else:
            head, parts = _opened(value)
            facts.append(head)
            waiting += [part for _, part in parts]
    return tensors, facts


class _Head:
    """A value without its parts: its class, the steps to the parts, and its code, name or number."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any, own: Any, steps: list[str]):
        self.names = type(value).__module__, type(value).__qualname__, steps
        self.own = own

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Head) or self.names != other.names:
            return False
        one, two = self.own, other.own
        if isinstance(one, (float, complex)):
            pairs = ((one.real, two.real), (one.imag, two.imag))
            return all([math.isclose(a, b, rel_tol=_TOLERANCE) or (a != a and b != b) for a, b in pairs])
        if isinstance(one, (numpy.ndarray, numpy.generic)):
            return is_repeated(numpy.asarray(two), numpy.asarray(one), _TOLERANCE)
        kind: Any = type(one)
        if kind.__eq__ is object.__eq__:
            # The value of other objects of C is unknown.
            return one is two or isinstance(one, _LOCKS)
        try:
            return bool(one == two)
        except Exception:
            return False


def _opened(value: Any) -> tuple[_Head, list[tuple[str, Any]]]:
    """Splits a value into its head and its parts."""
    kind = type(value)
    own: Any = None
    if isinstance(value, types.ModuleType) or kind in _ATOMS:
        return _Head(value, value, []), []
    parts = _saved(value) or _parts(value)
    if isinstance(value, types.FunctionType):
        own = value.__code__, value.__globals__
    elif isinstance(value, type):
        own = [(each.__module__, each.__qualname__) for each in (value, *value.__bases__)]
    elif isinstance(value, _NAMED):
        own = value.__name__
    elif isinstance(value, (*_ATOMS, numpy.ndarray, numpy.generic)):
        own = None if isinstance(value, numpy.ndarray) and value.dtype.hasobject else value
    elif not has_python_layout(kind) and all([part is kind for _, part in parts]):
        own = value
    return _Head(value, own, [step for step, _ in parts]), parts


def _saved(value: Any) -> list[tuple[str, Any]]:
    """An object as pickle would save it, if it is one of C: the garbage collector sees no number of it."""
    if isinstance(value, _OPENED) or has_python_layout(type(value)):
        return []
    with contextlib.suppress(Exception):
        # First, because an exception gets its `__dict__` when something asks for it, and then saves that.
        own = _attributes(value)
        saved = value.__reduce_ex__(4)
        return [(".__reduce__()", saved), *own] if isinstance(saved, tuple) else []
    return []


# Methods that are written in C.
_DESCRIPTORS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
)

# Classes all of whose parts `_parts` finds.
_OPENED = (
    *(types.FunctionType, types.MethodType, functools.partial, dict, list, tuple, deque, set, frozenset, weakref.ref),
    *(types.SimpleNamespace, type, types.GetSetDescriptorType, numpy.ndarray, numpy.generic),
)


def _parts(value: Any) -> list[tuple[str, Any]]:
    """Lists what a value refers to, each with the step that leads there.

    A function's module is left out, because both rules share it, and so is the class of an object unless a run has
    defined it.
    """
    if isinstance(value, types.FunctionType):
        named = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        parts = [(name, cell.cell_contents) for name, cell in named if is_bound(cell)]
        parts += [("default", default) for default in value.__defaults__ or ()]
        parts += (value.__kwdefaults__ or {}).items()
        return parts + [(f".{name}", part) for name, part in value.__dict__.items()]
    if isinstance(value, dict):
        items = [(f"[{repr(key) if isinstance(key, _ATOMS) else '...'}]", part) for key, part in value.items()]
        items += [("key", key) for key in value if not isinstance(key, _ATOMS)]
        items += [("default", value.default_factory)] if isinstance(value, defaultdict) else []
        return items + _attributes(value)
    if isinstance(value, (list, tuple, deque)):
        return [(f"[{index}]", part) for index, part in enumerate(value)] + _attributes(value)
    if isinstance(value, (set, frozenset)):
        # In the same order in each run, if the members are values or objects that both runs share.
        members = sorted(value, key=lambda part: repr(part) if isinstance(part, (*_ATOMS, tuple)) else str(id(part)))
        return [("[...]", part) for part in members] + _attributes(value)
    if isinstance(value, weakref.ref):
        return [("()", value())]
    if isinstance(value, numpy.ndarray):
        items = [(f"{index}", part) for index, part in numpy.ndenumerate(value)] if value.dtype.hasobject else []
        return items + _attributes(value)
    if isinstance(value, type):
        # Python adds `__annotations__` where something first asks for them, as AutoGraph of TensorFlow (2.21) does.
        own = [(f".{name}", part) for name, part in vars(value).items() if not name.startswith(("__annot", "_abc_"))]
        bases = [(".__bases__", base) for base in value.__bases__ if not _is_importable(base)]
        return bases + [(step, part) for step, part in own if not isinstance(part, _DESCRIPTORS)]
    if isinstance(value, types.GetSetDescriptorType):
        return []
    named_parts = _attributes(value)
    known = {id(part) for _, part in named_parts} | {id(getattr(value, "__dict__", None))}
    if _is_importable(type(value)):
        known.add(id(type(value)))
    return named_parts + [("", part) for part in gc.get_referents(value) if id(part) not in known]


def _is_importable(kind: type) -> bool:
    return getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind


def _attributes(value: Any) -> list[tuple[str, Any]]:
    # By their names: the collector lists them in an order of its own.
    return [(f".{name}", part) for name, part in sorted(attributes(value).items())]


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

    An element may differ by `tolerance` times the largest finite element of `first`.
    """
    if other.shape != first.shape or other.dtype != first.dtype:
        return False
    if numpy.array_equal(other, first):
        return True
    if first.dtype.kind not in "fcV":
        return False
    size = numpy.max(numpy.abs(first), initial=0.0, where=numpy.isfinite(first))
    return bool(numpy.allclose(other, first, rtol=0, atol=tolerance * float(size), equal_nan=True))
