"""Whether a function can reach nothing but its arguments, so that it captures nothing that is traced.

It is closed if its names lead to numbers, texts, arrays, modules of JAX and of this package, and to functions that are
closed as well. What may hold anything else, such as a list, an object, a class or another module, is not closed.
"""

from __future__ import annotations

import dis
import functools
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import jax

from keras_cg.engine.functions import ATOMS, Decorated
from keras_cg.engine.references import parts

_PACKAGES = frozenset(["jax", "jaxlib", "keras_cg", "math"])

# Operations, and functions of Python and JAX, that reach further than the names of a code show.
_OPERATIONS = frozenset(
    ["DELETE_ATTR", "DELETE_DEREF", "DELETE_GLOBAL", "IMPORT_NAME", "LOAD_NAME", "STORE_ATTR", "STORE_GLOBAL"]
)
_FUNCTIONS = frozenset(["__import__", "axis_index", "delattr", "eval", "exec", "globals", "locals", "setattr", "vars"])


def is_closed_call(call: Any) -> bool:
    """Whether a call can reach nothing that is traced, but for the tensors among its arguments."""
    return not call.extras and is_closed(call.user, *call.static.leaves, *call.whole.values())


def is_closed(*values: Any) -> bool:
    """Whether functions, or other values, lead to nothing that is traced, but for their arguments."""
    waiting, seen = [*values], set()
    for value in waiting:
        if id(value) in seen or _is_constant(value):
            continue
        seen.add(id(value))
        if isinstance(value, Decorated):
            waiting.append(value.__wrapped__)
        elif type(value) is tuple:
            waiting += value
        elif type(value) is FunctionType and not value.__dict__:
            names = _names(value.__code__)
            if names is None:
                return False
            waiting += [
                *parts(value).values(),
                *[value.__globals__[name] for name in names if name in value.__globals__],
            ]
        else:
            return False
    return True


def _is_constant(value: Any) -> bool:
    """Whether a value never leads to anything that is traced."""
    kind = type(value)
    if isinstance(value, jax.Array):
        return not isinstance(value, jax.core.Tracer)
    if kind is ModuleType or (kind is FunctionType and value.__closure__ is None):
        # A function of a package without cells has no state but that of its module.
        name = value.__name__ if kind is ModuleType else value.__globals__.get("__name__", "")
        return name.partition(".")[0] in _PACKAGES
    if kind is BuiltinFunctionType:
        return value.__self__ is None or type(value.__self__) is ModuleType
    return kind in ATOMS or (isinstance(value, type) and value.__module__ == "builtins")


@functools.cache
def _names(code: CodeType) -> frozenset[str] | None:
    """Returns the names in a code and in those inside of it; None if it may reach more than they show."""
    if any([step.opname in _OPERATIONS for step in dis.get_instructions(code)]) or _FUNCTIONS & {*code.co_names}:
        return None
    # Of a rule that takes the output, the function must be traced by itself: then nothing differentiates what it does.
    if "output" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        return None
    names = frozenset(code.co_names)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            inner = _names(const)
            if inner is None:
                return None
            names |= inner
    return names
