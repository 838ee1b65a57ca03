"""Lists what a value holds, and by which step: for comparisons, for captured values and for names in messages."""

from __future__ import annotations

import collections
import functools
import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from keras_cg.engine.functions import ATOMS, Decorated, facts, inner, is_bound

# The tables in which a module of torch keeps what are its attributes.
TABLES = ("_parameters", "_buffers", "_modules")


def parts(value: Any) -> dict[str, Any]:
    """Returns what a value holds, each part under the step that leads to it: a name, `.field`, `[0]`, `["key"]`.

    The step to what is called in the place of the value is empty. Nothing of the user's code runs. A variable that a
    function assigns is given as its cell. What C hides is left out.
    """
    kind = type(value)
    if kind is types.FunctionType:
        return _of_function(value)
    if isinstance(value, ATOMS):
        return {}
    if isinstance(value, Decorated):
        return {"": value.__wrapped__}
    if kind is types.MethodType:
        return {"": value.__func__, ".__self__": value.__self__}
    if kind in (types.BuiltinMethodType, types.MethodWrapperType):
        return {} if isinstance(value.__self__, types.ModuleType) else {".__self__": value.__self__}
    if kind is slice:
        return {".start": value.start, ".stop": value.stop, ".step": value.step}
    if isinstance(value, functools.partial):
        args = {f"[{place}]": part for place, part in enumerate(value.args)}
        return {"": value.func} | args | dict(value.keywords) | attributes(value)
    if isinstance(value, (list, tuple, collections.deque)):
        return {f"[{place}]": part for place, part in enumerate(elements(value))} | attributes(value)
    if isinstance(value, dict):
        items = {f"[{key!r}]": part for key, part in dict.items(value) if isinstance(key, ATOMS)}
        return items | attributes(value)
    if isinstance(value, type):
        members = {f".{name}": _member(part) for name, part in vars(value).items() if _counts(name, part)}
        return members | {f".{base.__name__}": base for base in value.__bases__ if "<locals>" in base.__qualname__}
    return attributes(value)


def is_of_module(fun: types.FunctionType) -> bool:
    """Whether the globals of a function are those of a module; if not, its code was generated."""
    module = sys.modules.get(fun.__globals__.get("__name__", ""))
    return getattr(module, "__dict__", None) is fun.__globals__


def _of_function(fun: types.FunctionType) -> dict[str, Any]:
    code = fun.__code__
    found = {} if is_of_module(fun) else {name: fun.__globals__[name] for name in globals_of(fun)}
    for name, cell in zip(code.co_freevars, fun.__closure__ or (), strict=True):
        if name in facts(code).assigned:
            found[name] = cell
        elif is_bound(cell):
            found[name] = cell.cell_contents
    for place, part in enumerate(fun.__defaults__ or ()):
        found[f"default {place}"] = part
    found.update(fun.__kwdefaults__ or {})
    for name, part in fun.__dict__.items():
        found[f".{name}"] = part
    return found


def globals_of(fun: types.FunctionType) -> list[str]:
    """Lists the names in the code of a function that its globals have."""
    return [name for name in fun.__code__.co_names if name in fun.__globals__]


def _counts(name: str, part: Any) -> bool:
    """Whether a member of a class is data: what Python itself adds to it is none."""
    return not name.startswith("__") or isinstance(part, types.FunctionType)


def _member(part: Any) -> Any:
    called = inner(part) if isinstance(part, (staticmethod, classmethod, property)) else None
    return part if called is None else called


def attributes(value: Any) -> dict[str, Any]:
    """Returns the attributes that an object has in its dict and in slots; those of a module of torch by their names."""
    found = {f".{name}": part for name, part in dict_of(value).items()} if not isinstance(value, type) else {}
    for name in TABLES:
        if type(table := found.get(f".{name}")) is dict:
            del found[f".{name}"]
            found |= {f".{key}": part for key, part in table.items()}
    for slot in slots(type(value)):
        if (part := slot_of(slot, value)) is not MISSING:
            found[f".{slot.__name__}"] = part
    return found


# Stands for an attribute or a variable that is not there.
MISSING = object()
CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, types.MappingProxyType)


def elements(value: Any) -> Any:
    """Returns what a container of Python holds, of a dict the values; nothing of the user's code runs."""
    kind: Any = type(value)
    if kind in (list, tuple):
        return value
    if kind not in CONTAINERS:
        kind = next(base for base in CONTAINERS if isinstance(value, base))
    return kind.values(value) if kind in (dict, types.MappingProxyType) else [*kind.__iter__(value)]


def dict_of(value: Any) -> dict[str, Any]:
    """Returns the dict of an object itself; an empty one if it has none."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def is_module(attributes: Any) -> bool:
    """Whether these are the attributes of a module of torch."""
    return attributes.keys() >= _TABLES  # type: ignore[no-any-return]


_TABLES = frozenset(TABLES)


def of_class(fun: Callable[[type], Any]) -> Callable[[type], Any]:
    """Caches what a function says of each class, but for one that a function defined: that must not stay alive."""
    known: dict[type, Any] = {}

    def cached(kind: type) -> Any:
        found = known.get(kind)
        if found is None:
            found = fun(kind)
            if "<locals>" not in kind.__qualname__:
                known[kind] = found
        return found

    return cached


@of_class
def names_of_framework(kind: type) -> frozenset[str]:
    """Returns the attributes that a module of torch has for torch alone: tables, hooks and modes."""
    # torch (2.13) annotates them all. Where it does not, they are looked at as the user's own are, which takes longer.
    annotations = [vars(base).get("__annotations__", ()) for base in kind.__mro__]
    return _TABLES.union(*[names for names in annotations if TABLES[0] in names])


@of_class
def slots(kind: type) -> list[Any]:
    """Lists the slots of the objects of a class."""
    bases = [base for base in kind.__mro__[:-1] if "__slots__" in vars(base)]
    return [each for base in bases for each in vars(base).values() if type(each) is types.MemberDescriptorType]


def slot_of(slot: Any, value: Any) -> Any:
    """Returns what an object has in a slot; MISSING if nothing."""
    try:
        return slot.__get__(value)
    except AttributeError:
        return MISSING


# --- one step, and as far as it goes ---------------------------------------------------------------------------------


def near(fun: Any) -> list[Any]:
    """Lists what the cells, defaults and arguments of a function hold, with the functions there; and `vars(self)`."""
    found: list[Any] = []
    seen: set[int] = set()
    waiting: list[Any] = [fun]
    for value in waiting:
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is types.FunctionType:
            found += [value] if value is not fun else []
            waiting += [*(cell.cell_contents for cell in value.__closure__ or () if is_bound(cell))]
            waiting += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        elif isinstance(value, functools.partial):
            waiting += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, Decorated):
            waiting.append(value.__wrapped__)
        elif isinstance(value, types.MethodType):
            waiting.append(value.__func__)
            found += [value.__self__, *attributes(value.__self__).values()]
        else:
            found += [value, *(attributes(value).values() if value is fun else ())]
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


# How many values a message looks at for names.
_LOOKED_AT = 1000


def names_of(
    fun: Any, values: Sequence[Any], described: Sequence[str], unwrap: Callable[[Any], Any] = lambda value: value
) -> list[str]:
    """Returns the user's name for each value that a function reads, such as `self.w`; without one, what `described`.

    Errors alone ask for it, because it looks at what closures, globals, containers and attributes have. `unwrap`
    returns the tensor in a variable.
    """
    names: dict[int, str] = {}
    waiting = [("", fun)]
    for name, value in waiting:
        value = unwrap(value)
        if id(value) in names:
            continue
        names[id(value)] = name
        if len(waiting) < _LOOKED_AT and not isinstance(value, types.ModuleType):
            found = {"self" if step == ".__self__" else step: part for step, part in parts(value).items()}
            if type(value) is types.FunctionType:
                found = {each: value.__globals__[each] for each in globals_of(value)} | found
            steps = [(name + step if step[:1] in ".[" else step or name, part) for step, part in found.items()]
            waiting += [(step, part.cell_contents if type(part) is types.CellType else part) for step, part in steps]
    return [names.get(id(value)) or text for value, text in zip(values, described, strict=True)]
