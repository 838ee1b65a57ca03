"""The messages of the command line, each in one line."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from keras_cg import backends
from keras_cg.errors import article, count, message, type_name


class UsageError(Exception):
    """The command line cannot do what its options request; the message is one line.

    Attributes:
        data: The partial result, for `--json`.
    """

    data: Mapping[str, Any] = {}


def _one_line(error: BaseException) -> str:
    """Formats an exception in one line, like the last line of a traceback.

    A first line that ends in a colon is joined with the second one.
    """
    try:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    except Exception:
        lines = []  # `__str__` of the user's exception may raise
    text = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return f"{type_name(error)}: {text}" if text else type_name(error)


missing_extra = message(UsageError, '{0} is not installed: pip install "keras-cg[cli]"')
bad_argument = message(UsageError, "--arg {0}: expected NAME=EXPRESSION, such as 'x=rng.normal(size=(4, 3))' or n=3")
repeated_argument = message(UsageError, "--arg {0}: appears twice; pass each argument once")
no_target = message(UsageError, "{0!r} names neither a file nor a module; expected FILE.py:FUNCTION or MODULE:FUNCTION")
nothing_after_colon = message(
    UsageError, "{0}: names no function; name one after the colon, or write {0} for all functions"
)
folder = message(UsageError, "{0} is a folder; name a .py file in it, or a module: package.module")


def bad_spec(name: str, text: str, error: Exception) -> UsageError:
    """The expression of an argument raises."""
    quotes = f"; a string needs quotes: '\"{text}\"'" if text.isidentifier() else ""
    return UsageError(
        f"argument {name}={text}: {_one_line(error)}{quotes}; expected a Python expression with `np` and `rng`, such as"
        " rng.normal(size=(4, 3))"
    )


def old_spec(spec: str, expression: str) -> DeprecationWarning:
    """A spec of keras_cg 0.3 was mapped to a Python expression."""
    return DeprecationWarning(f"{spec} is deprecated, and raises from 0.5 on; write {expression}")


def no_such_file(path: str, near: str | None) -> UsageError:
    """The file of the target does not exist."""
    return UsageError(f"no file {path!r}" + (f"; did you mean {near!r}?" if near else "; check the path"))


def not_importable(target: str, error: BaseException, where: str | None) -> UsageError:
    """The file or module of the target raised during its import."""
    if isinstance(error, SystemExit):
        what = f"it calls sys.exit({error.code!r})"
    elif isinstance(error, SyntaxError):
        what = f"SyntaxError: {error.msg}"
    else:
        what = _one_line(error)
    at = f" ({where})" if where else ""
    if isinstance(error, ModuleNotFoundError) and error.name == target.partition(":")[0]:
        remedy = "name a file that ends in .py, or a module that can be imported from this folder"
    elif isinstance(error, ImportError) and "relative import" in str(error):
        remedy = "name a file of a package as a module: package.module:function"
    elif isinstance(error, ModuleNotFoundError):
        remedy = f"install {error.name!r}, or add its folder to PYTHONPATH"
    else:
        remedy = "check that `python` can import it"
    return UsageError(f"{target} cannot be imported: {what}{at}; {remedy}")


def no_such_function(target: str, name: str, known: Sequence[str]) -> UsageError:
    """The module of the target has no attribute of that name."""
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known) or 'none'}"
    return UsageError(f"{target} has no {name!r}; {hint}")


def not_decorated(target: str, value: object) -> UsageError:
    """The target is not decorated by `custom_gradient`."""
    return UsageError(
        f"{target} is {article(type_name(value))}, not a function with a custom gradient;"
        " decorate it with @keras_cg.custom_gradient, and name the decorated function"
    )


def missing_arguments(function: str, names: Sequence[str]) -> UsageError:
    """Required arguments are missing."""
    if names[0] == "self":
        return UsageError(f"{function} is a method of a class; name the method of an object: MODULE:OBJECT.METHOD")
    options = " ".join(f"--arg {name}=..." for name in names)
    return UsageError(
        f"{function} needs {count(len(names), 'more argument')}: add {options}, or set {function}.example_args"
    )


def unknown_argument(function: str, name: str, known: Sequence[str]) -> UsageError:
    """The function has no parameter of that name."""
    return UsageError(f"{function} has no argument {name!r}; its arguments are: {', '.join(known) or 'none'}")


no_array = message(
    UsageError,
    "no argument of {0} is a floating or complex array, and a number such as x=3 is static; pass x=np.float32(3)"
    " or x=rng.normal(size=(4, 3))",
)
# `example_args` has an invalid type or content.
bad_hint = message(
    UsageError, "{0}.example_args {1}; expected a dict such as {{'x': 'rng.normal(size=(4, 3))', 'n': 3}}, or a tuple"
)


def no_hints(target: str, decorated: Sequence[str]) -> UsageError:
    """No function of the module has `example_args`."""
    if not decorated:
        return UsageError(f"{target} has no function decorated with @keras_cg.custom_gradient; nothing to check")
    return UsageError(
        f"no function of {target} has example_args; name one, such as {target}:{decorated[0]} with --arg,"
        f" or set {decorated[0]}.example_args = {{'x': 'rng.normal(size=(4, 3))'}}"
    )


# Why a function of a whole module is not checked.
NO_EXAMPLE, METHOD = "no example_args", "a method: name it as OBJECT.METHOD"


needs_function = message(UsageError, "{1} is for one function: name it, as in {0}:FUNCTION")


def not_a_reference(option: str, target: str, value: object) -> UsageError:
    """`--expected` or `--value` names an object that cannot be called."""
    what = {"expected": "a function, or a rule with a parameter `upstream`", "value": "a function"}[option]
    return UsageError(f"--{option} {target} is {article(type_name(value))}; name {what}")


def install(name: str) -> str:
    """Returns the command that installs a backend."""
    return f'pip install "{backends.requirement(name)}"'


def not_installed(name: str) -> UsageError:
    """A requested backend is not installed."""
    return UsageError(f"{name}: not installed: {install(name)}")


not_a_file_to_write = message(UsageError, "cannot write {0}: {1}")
output_lost = message(UsageError, "cannot write to the standard output: {0}; redirect it, or free some space")


def no_range(function: str, came: Sequence[str]) -> UsageError:
    """Not exactly one argument of a plot is a range for the axis."""
    found = f"{', '.join(came)} have them" if came else "none has them"
    return UsageError(
        f"plot needs exactly one argument of {function} with increasing numbers (one axis, 3 or more), and {found};"
        " pass one as --arg 'x=np.linspace(-5, 5, 400)'"
    )


not_elementwise = message(UsageError, "plot draws elementwise functions, and {0} is not one: {1}")


def process_died(backend: str, how: str, doing: str, where: str | None) -> str:
    """The process of a backend ended before its work was done."""
    at = f", in {where}" if where else ""
    causes = {"SIGKILL": "usual cause: out of memory; use smaller arguments", "exit": "the function must not exit"}
    remedy = next((text for key, text in causes.items() if key in how), "run the function alone on this backend")
    return f"{backend}: the process {how} while {doing}{at}; {remedy}"


def process_late(backend: str, seconds: float, doing: str, where: str | None) -> str:
    """The process of a backend reached the time limit."""
    at = f", in {where}" if where else ""
    return f"{backend}: not done after {seconds:g} s while {doing}{at}; use smaller arguments or a larger --timeout"


def process_raised(backend: str, error: BaseException, where: str | None) -> str:
    """The process of a backend raised an exception outside a check."""
    at = f" ({where})" if where else ""
    if isinstance(error, MemoryError):
        return f"{backend}: out of memory{at}; use smaller arguments"
    remedy = getattr(error, "remedy", None)
    return f"{backend}: {_one_line(error)}{at}" + (f"; {remedy.rstrip('.')}" if isinstance(remedy, str) else "")
