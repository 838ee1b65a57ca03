"""Compares the rule of one run with the rule of another, as data; what is no data is left to the gradient.

Data are numbers, strings, tensors by value, and containers, functions, methods and objects of Python classes of these.
What is the same object in both is skipped. A number or a tensor that differs refuses the second run. Structure that
differs, and what C hides, is neither believed nor refused: then the gradients of both rules have to agree.
"""

from __future__ import annotations

import array
import collections
import functools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from keras_cg.engine import precision, references
from keras_cg.engine.functions import ATOMS, Decorated

_NUMBERS = (bool, int, float, complex)
_ARRAYS = (numpy.ndarray, numpy.generic)
# The modules of C whose values Python compares as a whole.
_VALUES = ("datetime", "decimal", "re")

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
    """Compares what two runs hold; `is_tensor` and `agreement` are those of the backend.

    `first` may come from `outline`; then `saved` are the inputs and the tensors that stood in it.
    """
    tensors: list[tuple[str, Any, Any]] = []
    first, other = _numbered(first), _numbered(other)
    others = dict(other)
    is_unknown = [name for name, _ in first] != [*others]
    # The pairs stay alive while they are walked, so that no identity is used twice.
    seen: dict[tuple[int, int], Any] = {}
    waiting = [(path, one, others[path]) for path, one in first if path in others]
    for path, one, two in waiting:
        one = saved[one.place] if type(one) is _Place else one
        if one is two or (id(one), id(two)) in seen:
            continue
        seen[id(one), id(two)] = one, two
        if is_tensor(one) and is_tensor(two) and not _has_parts(one):
            tensors.append((path, one, two))
            continue
        is_equal = _compared(path, one, two)
        if is_equal is False:
            return Difference(_told(path, one, two))
        if is_equal is None:
            (head, parts), (other_head, other_parts) = _opened(one), _opened(two)
            is_unknown |= head is None or head != other_head or parts.keys() != other_parts.keys()
            for step in filter(other_parts.__contains__, parts):
                # A step such as `.field` or `[0]` goes on from the path; a name begins a new one.
                waiting.append((path + step if step[:1] in ".[" else step, parts[step], other_parts[step]))
    answers = agreement([(one, two) for _, one, two in tensors]) if tensors else ()
    for pair, is_equal in zip(tensors, answers, strict=True):
        if is_equal is False:
            return Difference(_told(*pair))
    is_unknown |= any([answer is None for answer in answers])
    return Difference(None, is_unknown, [answer for answer in answers if answer is not True and answer is not None])


def _numbered(steps: Sequence[Step]) -> Sequence[Step]:
    """Returns the steps, those with the name of an earlier one with a number: two objects may have an attribute `k`."""
    if len({name for name, _ in steps}) == len(steps):
        return steps
    names, found = collections.Counter[str](), []
    for name, value in steps:
        names[name] += 1
        found.append((name if names[name] == 1 else f"{name} ({names[name]})", value))
    return found


def _compared(path: str, one: Any, two: Any) -> bool | None:
    """Whether two numbers, arrays or texts are equal; None for others, and for numbers of different types.

    Texts in objects are often names that a library counts: these are left to the gradient if they differ.
    """
    if isinstance(one, _NUMBERS) and isinstance(two, _NUMBERS):
        is_equal = bool(one == two or (one != one and two != two))
        return is_equal and (True if type(one) is type(two) else None)
    if isinstance(one, _ARRAYS) and isinstance(two, _ARRAYS) and not (_has_parts(one) or _has_parts(two)):
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


# An outline with more values than this lets the others stand for themselves.
_MOST = 1000


def outline(
    steps: Sequence[Step],
    is_tensor: Callable[[Any], bool],
    shared: Iterable[Any],
    inputs: Sequence[Any],
    names: Mapping[str, Any],
) -> tuple[list[Step], list[Any], bool]:
    """Describes what a rule holds, where the rule must not stay alive: without tensors, which are returned beside it.

    What existed before the run stands for itself: `shared` objects, which are those of all runs, modules of torch, and
    the globals `names`. `inputs` are the arguments of the run. Returns also whether something is no data.
    """
    saved = list(inputs)
    # Each value stays alive as long as the search, so that no identity is used twice.
    known: dict[int, tuple[Any, Any]] = {id(value): (value, value) for value in shared}
    known |= {id(tensor): (_Place(place), tensor) for place, tensor in enumerate(inputs)}
    whole: dict[str, Any] = {}
    waiting = [(whole, dict(_numbered(steps)))]
    is_unknown, standing = False, None
    for target, parts in waiting:
        for step, value in parts.items():
            # A text in an object may be a name that a library counts.
            is_unknown |= isinstance(value, str) and step.startswith(".")
            if isinstance(value, (*ATOMS, types.ModuleType)):
                target[step] = value
            elif id(value) in known:
                target[step] = known[id(value)][0]
            elif is_tensor(value):
                known[id(value)] = target[step], _ = _Place(len(saved)), value
                saved.append(value)
            else:
                standing = {id(each) for each in names.values()} if standing is None else standing
                if id(value) in standing or len(known) > _MOST or _stands(value):
                    known[id(value)] = target[step], _ = value, value
                    continue
                head, inside = _opened(value)
                is_unknown |= head is None
                known[id(value)] = target[step], _ = _Node(head, {}), value
                waiting.append((target[step].parts, inside))
    return [*whole.items()], saved[len(inputs) :], is_unknown


def _stands(value: Any) -> bool:
    """Whether a value holds no tensor of a run: an array, a class that is no local one, a module of torch."""
    if isinstance(value, type):
        return "<locals>" not in value.__qualname__
    return isinstance(value, _ARRAYS) or references.is_module(references.dict_of(value))


# --- values and their parts ------------------------------------------------------------------------------------------


def _opened(value: Any) -> tuple[Any, dict[str, Any]]:
    """Splits a value into its head, which is equal for equal structure, and its parts; the head is None if unknown."""
    if type(value) is _Node:
        return value
    if isinstance(value, _ARRAYS) and _has_parts(value):
        return _of_array(value)
    head, found = _head(value), references.parts(value)
    if isinstance(value, collections.defaultdict):
        found[".default_factory"] = value.default_factory
    if head == _class(type(value)):
        found[".__class__"] = type(value)
    return head, found


def _head(value: Any) -> Any:
    kind = type(value)
    if kind is types.FunctionType:
        return value.__code__, id(value.__globals__) if references.is_of_module(value) else None
    if kind in ATOMS:
        return kind, value
    if isinstance(value, Decorated) or kind in (types.MethodType, slice):
        return kind
    if kind in (types.BuiltinMethodType, types.MethodWrapperType):
        return kind, value.__name__
    if isinstance(value, functools.partial):
        return _class(kind)
    if isinstance(value, (list, tuple)):
        return _class(kind), len(references.elements(value))
    if isinstance(value, dict):
        keys = tuple(dict.keys(value))
        return (_class(kind), keys) if all([isinstance(key, ATOMS) for key in keys]) else None
    if isinstance(value, type):
        return _class(value)
    # What C makes may hide values, and has a constructor of C.
    news = [vars(base).get("__new__") for base in kind.__mro__[:-1]]
    if kind is types.SimpleNamespace or not any([isinstance(new, types.BuiltinMethodType) for new in news]):
        has_parts = hasattr(value, "__dict__") or any(["__slots__" in vars(base) for base in kind.__mro__])
        return _class(kind) if has_parts else None
    if isinstance(value, (bytearray, array.array)):
        return kind, bytes(value)
    if isinstance(value, collections.deque):
        return kind, value.maxlen, len(references.elements(value))
    return (kind, value) if _is_value(value, kind) else None


def _is_value(value: Any, kind: type) -> bool:
    """Whether Python compares a value of C as a whole: a set of numbers and texts, a date, a decimal, a dtype."""
    if isinstance(value, (set, frozenset)):
        return all([isinstance(each, ATOMS) for each in references.elements(value)])
    if isinstance(value, (range, type(Ellipsis), numpy.dtype)) or kind.__module__ in _VALUES:
        return True
    return kind.__name__ in ("dtype", "device")  # of other frameworks


def _of_array(value: Any) -> tuple[Any, dict[str, Any]]:
    """Splits an array that NumPy cannot compare as it is: a masked one, one with fields, of times, or of objects."""
    head = type(value).__qualname__, str(value.dtype), value.shape
    if isinstance(value, numpy.ma.MaskedArray):
        mask = numpy.ma.getmaskarray(value)
        return head, {".mask": mask, ".data": numpy.where(mask, numpy.zeros_like(value.data), value.data)}
    if value.dtype.names:
        return head, {f"[{name!r}]": numpy.asarray(value[name]) for name in value.dtype.names}
    if value.dtype.kind in "mM":
        return head, {".view": numpy.asarray(value).view("int64")}
    return head, {f"[{place}]": part for place, part in enumerate(numpy.asarray(value).flat)}


def _has_parts(value: Any) -> bool:
    """Whether a value is an array that NumPy cannot compare as it is."""
    if not isinstance(value, _ARRAYS):
        return False
    return isinstance(value, numpy.ma.MaskedArray) or value.dtype.names is not None or value.dtype.kind in "mMO"


def _class(kind: type) -> Any:
    """Returns what two classes that two runs of a function define have in common."""
    return kind.__module__, kind.__qualname__


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
