"""Finds the user's own code in a traceback or a rule, for messages that name its file and line."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_OWN = os.path.join(os.path.dirname(__file__), "")
# AutoGraph of TensorFlow (2.21) writes the code that it rewrites to a temporary file.
_GENERATED = "__autograph_generated_file"


def is_users(filename: str) -> bool:
    """Whether a file is the user's: not part of Python, of an installed package, or of keras_cg."""
    paths = sysconfig.get_paths()
    installed = (paths["stdlib"], paths["purelib"], paths["platlib"], _OWN)
    # Cython's frames have the relative path of the file at build time.
    return os.path.isabs(filename) and not filename.startswith(installed) and _GENERATED not in filename


def is_own(frame: FrameType) -> bool:
    """Whether a frame runs code of keras_cg."""
    return frame.f_code.co_filename.startswith(_OWN)


def innermost(error: BaseException) -> traceback.FrameSummary | None:
    """Returns the innermost frame of user code in the traceback of an exception; None if there is none."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if is_users(each.filename)]
    return frames[-1] if frames else None


def location(rule: Any, function: Any = None) -> str | None:
    """Returns the file and line of a rule, such as `model.py:41`; None if it has no Python code, or that of keras_cg.

    A rule that AutoGraph rewrote has the line of the rule of that name in `function`.
    """
    code = _code(rule)
    if code is not None and _GENERATED in code.co_filename:
        original = _code(function)
        same_name = [each for each in _nested(original) if each.co_name == code.co_name]
        code = same_name[0] if same_name else original
    if code is None or code.co_filename.startswith(_OWN):
        return None
    return f"{code.co_filename}:{code.co_firstlineno}"


def _code(fun: Any) -> CodeType | None:
    """Returns the code of a function, a method, a partial, a wrapper with `__wrapped__` or a callable object."""
    fun = inspect.unwrap(fun)
    while isinstance(fun, functools.partial):
        fun = inspect.unwrap(fun.func)
    code = getattr(fun, "__code__", None) or getattr(inspect.unwrap(type(fun).__call__), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _nested(code: CodeType | None) -> Iterator[CodeType]:
    """Yields the code of all functions that are defined inside a function."""
    for each in code.co_consts if code is not None else ():
        if isinstance(each, CodeType):
            yield each
            yield from _nested(each)


def constant_result(fun: Function) -> Function:
    """Lets torch.compile call `fun` while it traces, and take the result for a constant.

    This is `torch.compiler.assume_constant_result`, which imports the compiler (torch 2.13): seconds, in programs that
    compile nothing. A test compares the attribute, which is not public, with what that function sets.
    """
    fun._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return fun


def is_traced_by_dynamo() -> bool:
    """Whether Dynamo of torch traces the code that calls this: it traces little that is done with an exception."""
    compiler: Any = getattr(sys.modules.get("torch"), "compiler", None)
    return compiler is not None and bool(compiler.is_dynamo_compiling())
