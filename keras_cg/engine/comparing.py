"""Compares the rule of one run with the rule of another, as data; what is no data is left to the gradient.

Data are numbers, strings, tensors by value, and containers, functions, methods and objects of Python classes of these.
What is the same object in both is skipped. A number or a tensor that differs refuses the second run. Structure that
differs, and what C hides, is neither believed nor refused: then the gradients of both rules have to agree.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy

from keras_cg.engine import precision
from keras_cg.engine.functions import ATOMS, Decorated, facts, is_bound, references

_NUMBERS = (bool, int, float, complex)
_ARRAYS = (numpy.ndarray, numpy.generic)
_VALUES = (numpy.dtype, range, frozenset, type(Ellipsis))
_BUILTIN_METHODS = (types.BuiltinMethodType, types.MethodWrapperType)

# A name or a way into a value, such as `k` or `.field`, and the value there.
Step = tuple[str, Any]


class Difference(NamedTuple):
    """The difference of two rules.

    Attributes:
        name: What differs, such as `k was 2.0 and is 5.0`; None if no number and no tensor does.
        is_unknown: Whether something is no data, so that only the gradients can tell.
        conditions: Boolean tensors that must all hold, where values are not known yet.
    """

    name: str | None
    is_unknown: bool = False
    conditions: Sequence[Any] = ()


def difference(
    first: Sequence[Step],
    other: Sequence[Step],
    is_tensor: Callable[[Any], bool],
    agreement: Callable[[Sequence[tuple[Any, Any]]], Sequence[Any]],
    saved: Sequence[Any] = (),
) -> Difference:
    """Compares what two rules hold; `is_tensor` and `agreement` are those of the backend.

    `first` may come from `outline`; then `saved` are the inputs and the tensors that stood in it.
    """
    tensors: list[tuple[str, Any, Any]] = []
    is_unknown = len(first) != len(other)
    # The pairs stay alive while they are walked, so that no identity is used twice.
    seen: dict[tuple[int, int], Any] = {}
    waiting = [(path, one, two) for (path, one), (_, two) in zip(first, other, strict=False)]
    for path, one, two in waiting:
        one = saved[one.place] if type(one) is _Place else one
        if one is two or (id(one), id(two)) in seen:
            continue
        seen[id(one), id(two)] = one, two
        if is_tensor(one) and is_tensor(two):
            tensors.append((path, one, two))
            continue
        is_equal = _compared(path, one, two)
        if is_equal is False:
            return Difference(_told(path, one, two))
        if is_equal is None:
            (head, parts), (other_head, others) = _opened(one), _opened(two)
            is_unknown |= head is None or head != other_head or len(parts) != len(others)
            for step, part in parts.items():
                if step in others:
                    # A step such as `.field` or `[0]` goes on from the path; a name begins a new one.
                    waiting.append((path + step if step[:1] in ".[" else step, part, others[step]))
                else:
                    is_unknown = True
    answers = agreement([(one, two) for _, one, two in tensors]) if tensors else ()
    for pair, is_equal in zip(tensors, answers, strict=True):
        if is_equal is False:
            return Difference(_told(*pair))
    return Difference(None, is_unknown, [answer for answer in answers if answer is not True])


def _compared(path: str, one: Any, two: Any) -> bool | None:
    """Whether two numbers, arrays or texts are equal; None for others, and for numbers of different types.

    Texts in objects are often names that a library counts: these are left to the gradient if they differ.
    """
    if isinstance(one, _NUMBERS) and isinstance(two, _NUMBERS):
        is_equal = bool(one == two or (one != one and two != two))
        return is_equal and (True if type(one) is type(two) else None)
    if isinstance(one, _ARRAYS) and isinstance(two, _ARRAYS) and not (one.dtype.hasobject or two.dtype.hasobject):
        return precision.is_repeated(numpy.asarray(two), numpy.asarray(one), precision.of(one.dtype.name).repeated)
    if isinstance(one, str) and isinstance(two, str):
        return one == two or (None if "." in path else False)
    return None


# --- a rule that must not stay alive ---------------------------------------------------------------------------------


class _Place(NamedTuple):
    """Stands for a tensor in an outline: its place among the inputs and the tensors."""

    place: int


class _Node(NamedTuple):
    """Stands for any other value in an outline."""

    head: Any
    parts: dict[str, Any]


def outline(
    steps: Sequence[Step], is_tensor: Callable[[Any], bool], shared: Iterable[Any], inputs: Sequence[Any]
) -> tuple[list[Step], list[Any], bool]:
    """Describes what a rule holds, where the rule must not stay alive: without tensors, which are returned beside it.

    `shared` objects, which are those of all runs, stand for themselves; `inputs` are the arguments of the run. Returns
    also whether something is no data.
    """
    saved = list(inputs)
    # Each value stays alive as long as the search, so that no identity is used twice.
    known: dict[int, tuple[Any, Any]] = {id(value): (value, value) for value in shared}
    known |= {id(tensor): (_Place(place), tensor) for place, tensor in enumerate(inputs)}
    whole: dict[str, Any] = {}
    waiting = [(whole, dict(steps))]
    is_unknown = False
    for target, parts in waiting:
        for step, value in parts.items():
            # A text in an object may be a name that a library counts.
            is_unknown |= isinstance(value, str) and step.startswith(".")
            is_array = isinstance(value, _ARRAYS) and not is_tensor(value)
            is_everywhere = isinstance(value, type) and "<locals>" not in value.__qualname__
            if is_array or is_everywhere or isinstance(value, ATOMS):
                target[step] = value
            elif id(value) in known:
                target[step] = known[id(value)][0]
            elif is_tensor(value):
                known[id(value)] = target[step], _ = _Place(len(saved)), value
                saved.append(value)
            else:
                head, inside = _opened(value)
                is_unknown |= head is None
                known[id(value)] = target[step], _ = _Node(head, {}), value
                waiting.append((target[step].parts, inside))
    return [*whole.items()], saved[len(inputs) :], is_unknown


# --- values and their parts ------------------------------------------------------------------------------------------


def _opened(value: Any) -> tuple[Any, dict[str, Any]]:
    """Splits a value into its head, which is equal for equal structure, and its parts; the head is None if unknown."""
    kind = type(value)
    if kind is types.FunctionType:
        return (value.__code__, id(value.__globals__)), _of_function(value)
    if kind is _Node:
        return value  # type: ignore[no-any-return]
    if kind in ATOMS:
        return (kind, value), {}
    if isinstance(value, Decorated):
        return kind, {"": value.__wrapped__}
    if kind is types.MethodType:
        return kind, {"": value.__func__, ".__self__": value.__self__}
    if isinstance(value, _BUILTIN_METHODS):
        owner = value.__self__
        return (kind, value.__name__), {} if isinstance(owner, types.ModuleType) else {".__self__": owner}
    if kind is slice:
        return kind, {".start": value.start, ".stop": value.stop, ".step": value.step}
    named = _attributes(value)
    if isinstance(value, functools.partial):
        args = {f"[{place}]": part for place, part in enumerate(value.args)}
        return _class(kind), {"": value.func} | args | dict(value.keywords) | named
    if isinstance(value, (list, tuple)):
        return (_class(kind), len(value)), {f"[{place}]": part for place, part in enumerate(value)} | named
    if isinstance(value, dict):
        keys = [key for key in value if isinstance(key, ATOMS)]
        head = (_class(kind), tuple(keys)) if len(keys) == len(value) else None
        return head, {f"[{key!r}]": value[key] for key in keys} | named
    if isinstance(value, type):
        members = {f".{name}": _member(part) for name, part in vars(value).items() if _counts(name, part)}
        bases = {f".{base.__name__}": base for base in value.__bases__ if "<locals>" in base.__qualname__}
        return _class(value), members | bases
    # What C makes may hide values, and has a constructor of C.
    news = [vars(base).get("__new__") for base in kind.__mro__[:-1]]
    if kind is types.SimpleNamespace or not any([isinstance(new, types.BuiltinMethodType) for new in news]):
        has_parts = hasattr(value, "__dict__") or any(["__slots__" in vars(base) for base in kind.__mro__])
        return (_class(kind) if has_parts else None), {".__class__": kind} | named
    # Values of C that Python can compare; those of frameworks are dtypes and devices.
    is_value = isinstance(value, _VALUES) or kind.__name__ in ("dtype", "device")
    return ((kind, value) if is_value else None), named


def _class(kind: type) -> Any:
    """Returns what two classes that two runs of a function define have in common."""
    return kind.__module__, kind.__qualname__


def _counts(name: str, part: Any) -> bool:
    """Whether a member of a class is data: what Python itself adds to it is none."""
    return not name.startswith("__") or isinstance(part, types.FunctionType)


def _member(part: Any) -> Any:
    if isinstance(part, property):
        return part.fget
    return part.__func__ if isinstance(part, (staticmethod, classmethod)) else part


def _of_function(fun: types.FunctionType) -> dict[str, Any]:
    code, parts = fun.__code__, {}
    for name, cell in zip(code.co_freevars, fun.__closure__ or (), strict=True):
        if name in facts(code).assigned:
            parts[name] = cell  # the cell itself: what a function assigns is its state, and no data
        elif is_bound(cell):
            parts[name] = cell.cell_contents
    for place, part in enumerate(fun.__defaults__ or ()):
        parts[f"default {place}"] = part
    parts.update(fun.__kwdefaults__ or {})
    for name, part in fun.__dict__.items():
        parts[f".{name}"] = part
    return parts


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object in its dict and in slots."""
    found = {f".{name}": part for name, part in getattr(value, "__dict__", {}).items()}
    for base in type(value).__mro__[:-1]:
        for name, member in vars(base).items() if "__slots__" in vars(base) else ():
            if type(member) is types.MemberDescriptorType and hasattr(value, name):
                found[f".{name}"] = member.__get__(value)
    return found if not isinstance(value, type) else {}


def _told(path: str, one: Any, two: Any) -> str:
    before, now = _shown(one), _shown(two)
    where = path or "the rule itself"
    return f"{where} is another {now}" if before == now else f"{where} was {before} and is {now}"


def _shown(value: Any) -> str:
    """A value in a message, short."""
    if isinstance(value, ATOMS):
        text = repr(value)
        return text if len(text) <= 40 else text[:37] + "..."
    dtype = getattr(value, "dtype", type(value).__qualname__)
    name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    return f"{name}[{', '.join(map(str, getattr(value, 'shape', ())))}]"


# --- what a function refers to ---------------------------------------------------------------------------------------


def near(fun: Any) -> list[Any]:
    """Lists what the cells, defaults and arguments of a function hold, with the functions there; and `vars(self)`."""
    if type(fun) is types.FunctionType:
        # Most rules are closures without functions.
        found = references(fun)
        if not any(map(callable, found)):
            return found
    found, seen = [], set()
    waiting = [fun]
    for value in waiting:
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is types.FunctionType:
            found += [value] if value is not fun else []
            waiting += references(value)
        elif isinstance(value, functools.partial):
            waiting += references(value)
        elif isinstance(value, Decorated):
            waiting.append(value.__wrapped__)
        elif isinstance(value, types.MethodType):
            waiting.append(value.__func__)
            found += [value.__self__, *_attributes(value.__self__).values()]
        else:
            found += [value, *(_attributes(value).values() if value is fun else ())]
    return found


def reached(roots: Iterable[Any], is_wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """Finds what can be reached from `roots` without calling anything; this may take long.

    Globals and modules are not entered, nor is what is wanted.
    """
    # The objects stay alive while the search runs, so that no identity is used twice.
    seen: dict[int, Any] = {}
    waiting = list(roots)
    for value in waiting:
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if is_wanted(value):
            yield value
        elif type(value) is types.FunctionType:
            waiting += [value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__]
        elif isinstance(value, types.BuiltinMethodType):
            waiting.append(value.__self__)
        elif not isinstance(value, (*ATOMS, types.ModuleType, types.CodeType)) and not _is_importable(value):
            waiting += gc.get_referents(value)
            waiting += [value()] if isinstance(value, weakref.ref) else []


def _is_importable(value: Any) -> bool:
    if not isinstance(value, type):
        return False
    return getattr(sys.modules.get(value.__module__), value.__qualname__, None) is value
