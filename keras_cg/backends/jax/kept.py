"""Programs that serve again: a function that is called a thousand times in a program is traced once.

A program stands for another call only while JAX traces what it traced then, and if whatever the function and its rule
could read besides tensors is the same: code, what it closes over, defaults, globals, static arguments. Somebody who
reads anything else, or changes something, is called each time.
"""

from __future__ import annotations

import builtins
import dis
import functools
import threading
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import jax
from jax.extend import linear_util

from keras_cg.backends.jax.names import DebugInfo, trace_state
from keras_cg.backends.jax.tensors import is_traced

# How many programs are kept, and how many functions are read for one.
_ROOM = 256
_PATIENCE = 50

_ATOMS = (type(None), bool, int, float, complex, str, bytes)

# Modules that give the same for the same; and what is in them that does not.
_MODULES = ("jax", "math", "keras_cg.ops")
_IMPURE = frozenset(["fromfile", "load", "save", "savez"])
# Likewise what everybody may call. Not `print`, which would be heard once.
_BUILTINS = frozenset(
    "abs all any bool callable complex dict divmod enumerate filter float frozenset int isinstance len list map max min"  # noqa: SIM905 - as a list it would fill a screen
    " pow range reversed round set slice sorted str sum tuple zip".split()
) | {name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, Exception)}


class _Store(threading.local):
    """The programs of what a thread traces now."""

    def __init__(self) -> None:
        self.state: Any = None
        self.programs: dict[Any, Any] = {}


_store = _Store()


def program(fun: Any, tensors: Sequence[Any], trace: Callable[[], Any]) -> Any:
    """What `trace` gives for `fun` and `tensors`: an earlier one, or a new one, which is kept if it can serve again."""
    key = _key(fun, tensors)
    if key is None:
        return trace()
    state = trace_state()
    if _store.state != state or len(_store.programs) >= _ROOM:
        _store.state, _store.programs = state, {}
    # A trace inside of this one replaces the store's, and not this one.
    programs = _store.programs
    if key in programs:
        kept, output = programs[key]
        # What the frontend makes the output of: that of the run that was traced.
        fun.outputs.append(output)
        return kept
    made = trace()
    output = fun.outputs[0]
    if made.serves_again and not output.nest.wrapped and all([type(leaf) in _ATOMS for leaf in output.nest.leaves]):
        programs[key] = made, output
    return made


def _key(fun: Any, tensors: Sequence[Any]) -> Any:
    """All that a program depends on; None if that is not known."""
    given, reading = fun.given, _Reading()
    laid = given.rest.nest
    if not reading.value(given.fun) or not reading.structure(laid.pack(laid.leaves)):
        return None
    types = [(jax.typeof(tensor), is_traced(tensor)) for tensor in tensors]
    return given.keywords, *given.rest.places, *types, *reading.facts, _context(_NOBODY)


# For each of JAX's settings that tracing depends on, one object: JAX alone knows which these are.
_context = linear_util.cache(lambda nobody: object())
_NOBODY = linear_util.wrap_init(lambda: None, debug_info=DebugInfo("keras_cg", "nobody", None, None))


class _Reading:
    """What a function reads besides tensors: facts, which are equal where it reads the same.

    The methods say whether it is all known.
    """

    def __init__(self) -> None:
        self.facts: list[Any] = []
        self.functions: list[FunctionType] = []
        # What the function that is read now asks modules for.
        self.names: tuple[str, ...] = ()

    def structure(self, value: Any) -> bool:
        """Of arguments: plain containers of atoms. The run has containers of its own, so that it may change them."""
        kind = type(value)
        if kind not in (tuple, list, dict):
            return kind in _ATOMS and self.value(value)
        self.facts += kind, len(value)
        return all([self.structure(part) for part in ([*value, *value.values()] if kind is dict else value)])

    def value(self, value: Any) -> bool:
        """Of anything else: what nobody changes."""
        kind = type(value)
        if kind in _ATOMS:
            # A number equals others that are of another type, or have another sign.
            self.facts += kind, repr(value) if kind in (float, complex) else value
            return True
        self.facts.append(kind)
        if kind is tuple:
            self.facts.append(len(value))
            return all([self.value(part) for part in value])
        if kind is ModuleType:
            self.module(value)
            return _is_trusted(value.__name__)
        return kind is FunctionType and self.function(value)

    def module(self, module: ModuleType) -> None:
        """Of a module: itself, and what is there under the names that are asked for, which somebody may replace."""
        self.facts.append(module)
        for name in self.names:
            part = vars(module).get(name)
            self.facts.append(_Itself(part))
            if isinstance(part, ModuleType) and _Itself(part) not in self.facts[:-1]:
                self.module(part)

    def function(self, function: FunctionType) -> bool:
        scope, code = function.__globals__, function.__code__
        if _is_trusted(scope.get("__name__", "")):
            self.facts.append(function)
            return True
        if function in self.functions:  # it calls itself
            self.facts.append(self.functions.index(function))
            return True
        names = _globals(code)
        if names is None or function.__dict__ or len(self.functions) > _PATIENCE:
            return False
        self.functions.append(function)
        self.facts.append(code)
        try:
            cells = [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:  # nothing was assigned to one of them yet
            return False
        parts = [*cells, function.__defaults__, *(function.__kwdefaults__ or {}).items()]
        outer, self.names = self.names, _attributes(code)
        known = all([self.value(part) for part in parts]) and all([self.named(name, scope) for name in names])
        self.names = outer
        return known

    def named(self, name: str, scope: dict[str, Any]) -> bool:
        """Of what a name stands for."""
        if name in scope:
            return self.value(scope[name])
        self.facts.append(name)
        return name in _BUILTINS


class _Itself:
    """An object that is equal to itself alone."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@functools.lru_cache(maxsize=4096)
def _attributes(code: CodeType) -> tuple[str, ...]:
    """The names that a function and those that it makes ask for, those of attributes among them."""
    inner = [name for each in code.co_consts if isinstance(each, CodeType) for name in _attributes(each)]
    return tuple(dict.fromkeys((*code.co_names, *inner)))


def _is_trusted(module: str) -> bool:
    return module in _MODULES or module.startswith("jax.")


@functools.lru_cache(maxsize=4096)
def _globals(code: CodeType) -> tuple[str, ...] | None:
    """The globals that a function and those that it makes read; None if they do more than to read and to compute.

    They may not assign to what outlives the run, import, define classes, or look at what Python has behind things.
    """
    names: list[str] = []
    for step in dis.get_instructions(code):
        name = step.argval
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.append(name)
        if step.opname in _CHANGES or (step.opname in ("STORE_DEREF", "DELETE_DEREF") and name in code.co_freevars):
            return None
    if any(name in _IMPURE or name.startswith("__") for name in code.co_names):
        return None
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            others = _globals(inner)
            if others is None:
                return None
            names += others
    return tuple(dict.fromkeys(names))


_CHANGES = frozenset(
    "DELETE_ATTR DELETE_GLOBAL IMPORT_FROM IMPORT_NAME IMPORT_STAR LOAD_BUILD_CLASS LOAD_FROM_DICT_OR_GLOBALS"  # noqa: SIM905 - as a list it would fill a screen
    " STORE_ATTR STORE_GLOBAL".split()
)
