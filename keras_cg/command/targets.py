"""Finds the function that `path/to/file.py:function` or `package.module:function` means, and its arguments."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy
import optree

from keras_cg import errors, user_code
from keras_cg.command import messages, specs
from keras_cg.frontend.decorator import CustomGradient

__all__ = ["Target", "decorated_functions", "decorated_methods", "find", "left_out", "split", "validate", "where"]


class Target(NamedTuple):
    """A function to check, with its arguments and, optionally, the expected gradient and output."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    expected: Callable[..., Any] | None
    value: Callable[..., Any] | None = None


def split(target: str) -> tuple[str, str]:
    """Splits a target into its file or module and its function; "" for all functions."""
    if target.endswith(".py") or ":" not in target:
        return target, ""
    place, _, name = target.rpartition(":")
    return place, name


def _is_file(place: str) -> bool:
    return place.endswith(".py") or os.sep in place or "/" in place


def _require_file(target: str) -> None:
    """Raises if the target names nothing, or its file does not exist.

    Raises:
        UsageError: The target is invalid.
    """
    place, name = split(target)
    if not place.strip() or (":" in place and not _is_file(place)):
        raise messages.no_target(target)
    if not name and place != target:
        raise messages.nothing_after_colon(place)
    # By os.path, because a Path raises for a name that is too long.
    if os.path.isdir(place) and (_is_file(place) or place.startswith(".")):
        raise messages.folder(place)
    if _is_file(place) and not os.path.isfile(place):
        near = f"{place}.py"
        raise messages.no_such_file(place, near if os.path.isfile(near) else None)


def validate(target: str, arguments: Sequence[str], expected: str | None, value: str | None = None) -> dict[str, str]:
    """Validates everything that needs no import, and returns the expressions of the arguments by name.

    Raises:
        UsageError: An option is invalid or does not go with the target, or the file is missing.
    """
    by_name = specs.named(arguments)
    for name, text in by_name.items():
        specs.evaluate(name, text, 0)
    _require_file(target)
    if not split(target)[1]:
        for option, words in (("--arg", arguments), ("--expected", expected), ("--value", value)):
            if words:
                raise messages.needs_function(target, option)
    return by_name


def find(
    target: str, arguments: Mapping[str, str], expected: str | None, seed: int, value: str | None = None
) -> list[Target]:
    """Finds the functions that `target` names, and creates their arguments.

    Args:
        target: A file or module, with `:function` or without.
        arguments: The expressions of the command line, which override `example_args`.
        expected: A target, or a name in the module of the function; overrides the function's attribute `expected`.
        seed: The seed of the random numbers.
        value: A target or name like `expected`: a function that returns the right output.

    Raises:
        UsageError: The target, an argument or a reference does not exist or is invalid.
    """
    place, name = split(target)
    # Before the target is imported, because the target may change the directory that `np.load` refers to.
    values = {each: specs.evaluate(each, text, seed) for each, text in arguments.items()}
    home = os.getcwd()
    module = _load(place)
    if not name:
        return [_build(each, getattr(module, each), {}, seed) for each in _hinted(place, module)]
    function = _attribute(place, module, name, decorated_functions(module))
    if not _is_decorated(function):
        raise messages.not_decorated(target, function)
    references = {"expected": expected, "value": value}
    with contextlib.chdir(home):
        found = {key: _reference(place, module, key, each) for key, each in references.items() if each is not None}
    return [_build(name, function, values, seed, **found)]


def left_out(target: str, found: Sequence[Target]) -> dict[str, str]:
    """Returns the decorated functions and methods of a whole module that are not checked, each with the reason."""
    if split(target)[1]:
        return {}
    module = sys.modules[found[0].function.__module__]
    functions = [name for name in decorated_functions(module) if not hasattr(getattr(module, name), "example_args")]
    return dict.fromkeys(functions, messages.NO_EXAMPLE) | dict.fromkeys(decorated_methods(module), messages.METHOD)


def decorated_methods(module: ModuleType) -> list[str]:
    """Returns the names of the decorated methods of the classes that a module defines, such as `Layer.call`."""
    owners = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    return [f"{each.__qualname__}.{name}" for each in owners for name in vars(each) if _is_decorated(vars(each)[name])]


def _load(place: str) -> ModuleType:
    """Imports a file, or a module by its name."""
    # The user's code may raise anything at import, SystemExit included.
    try:
        return _import_file(Path(place)) if _is_file(place) else _import_module(place)
    except messages.UsageError:
        raise
    except BaseException as error:
        raise messages.not_importable(place, error, where(error)) from error


def _import_module(name: str) -> ModuleType:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    _require_file(str(path))
    sys.path.insert(0, str(path.resolve().parent))
    # Another module may have the name of the file already; a second name keeps both importable.
    name = path.stem if path.stem not in sys.modules else f"{path.stem} (target)"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def where(error: BaseException) -> str | None:
    """Returns file and line of the innermost user code in the traceback of an exception; None if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    frame = user_code.innermost(error)
    return f"{Path(frame.filename).name}:{frame.lineno}" if frame is not None else None


def _is_decorated(value: object) -> bool:
    # A class method is a bound method whose function is decorated (Python 3.13).
    return isinstance(value, CustomGradient) or isinstance(getattr(value, "__func__", None), CustomGradient)


def decorated_functions(module: ModuleType) -> list[str]:
    """Returns the names of the decorated functions that a module defines, in order of definition."""
    found = [name for name, value in vars(module).items() if isinstance(value, CustomGradient)]
    return [name for name in found if getattr(module, name).__module__ == module.__name__]


def _hinted(place: str, module: ModuleType) -> list[str]:
    names = decorated_functions(module)
    hinted = [name for name in names if hasattr(getattr(module, name), "example_args")]
    if not hinted:
        raise messages.no_hints(place, names)
    return hinted


def _attribute(place: str, module: ModuleType, name: str, known: Sequence[str]) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise messages.no_such_function(place, name, known)
        found = getattr(found, part)
    return found


def _reference(place: str, module: ModuleType, option: str, expected: str) -> Any:
    """Returns the function that `--expected` or `--value` names."""
    other, name = split(expected) if ":" in expected else ("", expected)
    home = _load(other) if other else module
    found = _attribute(other or place, home, name, [key for key, each in vars(home).items() if callable(each)])
    if not callable(found):
        raise messages.not_a_reference(option, expected, found)
    return found


def _build(
    name: str, function: Any, values: Mapping[str, Any], seed: int, expected: Any = None, value: Any = None
) -> Target:
    hints = _by_name(name, function, getattr(function, "example_args", {}))
    texts = {each: hint for each, hint in hints.items() if isinstance(hint, str) and each not in values}
    built = {each: specs.evaluate(each, text, seed) for each, text in texts.items()}
    args, kwargs = _bound(name, function, {**hints, **built, **values})
    if not any(map(_is_differentiated, optree.tree_leaves((args, kwargs)))):  # type: ignore[arg-type]
        raise messages.no_array(name)
    expected = expected or getattr(function, "expected", None)
    return Target(name, function, args, kwargs, expected, value or getattr(function, "value", None))


def _is_differentiated(leaf: Any) -> bool:
    """Whether a leaf may be differentiated: a floating or complex array, or an object of an unknown type."""
    static = (str, bytes, bool, int, float, complex, type(None))
    return leaf.dtype.kind in "fc" if isinstance(leaf, (numpy.ndarray, numpy.generic)) else not isinstance(leaf, static)


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _by_name(name: str, function: Callable[..., Any], hints: Any) -> dict[str, Any]:
    """Returns `example_args` as a dict."""
    if isinstance(hints, Mapping):
        if not all(isinstance(key, str) for key in hints):
            raise messages.bad_hint(name, "has keys that are not names")
        return dict(hints)
    if not isinstance(hints, (tuple, list)):
        raise messages.bad_hint(name, f"is {errors.article(errors.type_name(hints))}")
    found = _signature(function)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [key for key, each in found.parameters.items() if each.kind in kinds] if found else []
    if len(hints) > len(names):
        raise messages.bad_hint(name, f"has {len(hints)} values for {len(names)} positional parameters")
    return dict(zip(names, hints, strict=False))


def _bound(name: str, function: Callable[..., Any], values: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Binds the arguments of the call; positional wherever possible, because a rule receives only those."""
    found = _signature(function)
    if found is None:
        return (), values
    parameters = found.parameters
    further = next((key for key, each in parameters.items() if each.kind is each.VAR_KEYWORD), None)
    variadic = [key for key, each in parameters.items() if each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    named = {key: value for key, value in values.items() if key in parameters and key not in variadic}
    others = {key: value for key, value in values.items() if key not in named}
    if others and further is None:
        known: Sequence[str] = [key for key in parameters if key not in variadic]
        raise messages.unknown_argument(name, next(iter(others)), known)
    missing = [
        key
        for key, each in parameters.items()
        if each.default is each.empty and key not in named and key not in variadic
    ]
    if missing:
        raise messages.missing_arguments(name, missing)
    ordered = {key: named[key] for key in parameters if key in named}
    call = inspect.BoundArguments(found, {**ordered, **({further: others} if further else {})})
    return call.args, call.kwargs
