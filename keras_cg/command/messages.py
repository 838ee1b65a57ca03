"""What the command line says, each in one line."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from keras_cg import backends
from keras_cg.errors import article, count, type_name


class UsageError(Exception):
    """What the command line was asked cannot be done; told in one line.

    Attributes:
        data: What is known all the same, for `--json`.
    """

    data: Mapping[str, Any] = {}


SPEC_FORMS = "normal:SHAPE, uniform:LO,HI:SHAPE, linspace:LO,HI,N, a Python literal, @FILE.npy; also with :DTYPE"


def _one_line(error: BaseException) -> str:
    """An exception in one line, as the last line of a traceback; with what a colon at its end leads to."""
    try:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    except Exception:
        lines = []  # not even that may be relied on
    told = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return f"{type_name(error)}: {told}" if told else type_name(error)


def missing_extra(module: str) -> UsageError:
    """What draws tables or plots is not installed."""
    return UsageError(f'{module} is not installed: pip install "keras-cg[cli]"')


def bad_argument(text: str) -> UsageError:
    """Something after `--arg` that is no `name=spec`."""
    return UsageError(f"--arg {text}: expected NAME=SPEC, such as x=normal:4,3 or n=3")


def repeated_argument(name: str) -> UsageError:
    """The same name after two `--arg`."""
    return UsageError(f"--arg {name}: given twice; give each argument once")


def bad_spec(name: str, spec: str, problem: str) -> UsageError:
    """An argument's spec that does not parse."""
    return UsageError(f"argument {name}={spec}: {problem}. The forms are: {SPEC_FORMS}")


def no_such_file(path: str, near: str | None) -> UsageError:
    """The target's file is not there."""
    return UsageError(f"no file {path!r}" + (f"; did you mean {near!r}?" if near else "; check the path"))


def no_target(target: str) -> UsageError:
    """A target without a file or a module."""
    return UsageError(f"{target!r} names no file and no module; expected FILE.py:FUNCTION or MODULE:FUNCTION")


def nothing_after_colon(target: str) -> UsageError:
    """A target that ends where the name of a function is due."""
    place = target.removesuffix(":")
    return UsageError(f"{target} names no function; name one after the colon, or write {place} for all of them")


def folder(place: str) -> UsageError:
    """The target is a folder."""
    return UsageError(f"{place} is a folder; name a file in it that ends in .py, or a module: package.module")


def not_importable(target: str, error: BaseException, where: str | None) -> UsageError:
    """The target's file or module raised while it was imported."""
    if isinstance(error, SystemExit):
        what = f"it calls sys.exit({error.code!r})"
    elif isinstance(error, SyntaxError):
        what = f"SyntaxError: {error.msg}"
    else:
        what = _one_line(error)
    at = f" ({where})" if where else ""
    if isinstance(error, ModuleNotFoundError) and error.name == target.partition(":")[0]:
        remedy = "give the path of a file ending in .py, or the name of a module that can be imported from here"
    elif isinstance(error, ImportError) and "relative import" in str(error):
        remedy = "name a file of a package as a module: package.module:function"
    elif isinstance(error, ModuleNotFoundError):
        remedy = f"install {error.name!r}, or put the folder that has it on PYTHONPATH"
    else:
        remedy = "see that python can import it by itself"
    return UsageError(f"{target} cannot be imported: {what}{at}; {remedy}")


def no_such_function(target: str, name: str, known: Sequence[str]) -> UsageError:
    """The target's module has no attribute of that name."""
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known) or 'none'}"
    return UsageError(f"{target} has no {name!r}; {hint}")


def not_decorated(target: str, value: object) -> UsageError:
    """The target is something else than what `custom_gradient` makes."""
    return UsageError(
        f"{target} is {article(type_name(value))}, not a function with a custom gradient;"
        " decorate it with @keras_cg.custom_gradient, and name what the decorator gave"
    )


def missing_arguments(function: str, names: Sequence[str]) -> UsageError:
    """Required arguments that nobody gave."""
    if names[0] == "self":
        return UsageError(f"{function} is the method of a class; name that of an object: MODULE:OBJECT.METHOD")
    options = " ".join(f"--arg {name}=..." for name in names)
    return UsageError(
        f"{function} needs {count(len(names), 'more argument')}: add {options}, or set {function}.example_args"
    )


def unknown_argument(function: str, name: str, known: Sequence[str]) -> UsageError:
    """A name that is no parameter of the function."""
    return UsageError(f"{function} has no argument {name!r}; its arguments are: {', '.join(known) or 'none'}")


def no_array(function: str) -> UsageError:
    """Nothing among the arguments can be differentiated."""
    return UsageError(
        f"no argument of {function} is an array of floating or complex numbers, and a number as in x=3 is static;"
        " give x=3:float32 or x=normal:4,3"
    )


def bad_hint(function: str, problem: str) -> UsageError:
    """`example_args` of a form that is not known."""
    return UsageError(
        f"{function}.example_args {problem}; expected a dict such as {{'x': 'normal:4,3', 'n': 3}}, or a tuple"
    )


def no_hints(target: str, decorated: Sequence[str]) -> UsageError:
    """A whole module without a function that says how it may be called."""
    if not decorated:
        return UsageError(f"{target} has no function decorated with @keras_cg.custom_gradient; nothing to check")
    return UsageError(
        f"no function of {target} has example_args; name one, such as {target}:{decorated[0]} with --arg,"
        f" or set {decorated[0]}.example_args = {{'x': 'normal:4,3'}}"
    )


def needs_function(target: str, option: str) -> UsageError:
    """An option that is about one function, and a whole module."""
    return UsageError(f"{option} is for one function: name it, as in {target}:FUNCTION")


def not_a_reference(option: str, target: str, value: object) -> UsageError:
    """`expected` or `value` that cannot be called."""
    what = {"expected": "a function, or a rule with `upstream`", "value": "a function"}[option]
    return UsageError(f"--{option} {target} is {article(type_name(value))}; name {what}")


def install(name: str) -> str:
    """The command that installs a backend."""
    return f'pip install "{backends.requirement(name)}"'


def not_installed(name: str) -> UsageError:
    """A backend that was asked for is absent."""
    return UsageError(f"{name}: not installed: {install(name)}")


def not_a_file_to_write(path: str, problem: str) -> UsageError:
    """A plot that cannot be saved."""
    return UsageError(f"cannot write {path}: {problem}")


def output_lost(problem: str) -> UsageError:
    """The standard output does not take what a command wrote."""
    return UsageError(f"cannot write to the standard output: {problem}; send it elsewhere, or make room")


def no_range(function: str, came: Sequence[str]) -> UsageError:
    """A plot needs one argument that runs along the axis."""
    found = f"{', '.join(came)} do" if came else "none does"
    return UsageError(
        f"plot needs exactly one argument of {function} with increasing numbers (one axis, 3 or more), and {found};"
        " give one as --arg x=linspace:-5,5,400"
    )


def not_elementwise(function: str, problem: str) -> UsageError:
    """A function of which no curve can be drawn."""
    return UsageError(f"plot draws functions that act on each number by itself, and {function} does not: {problem}")


def process_died(backend: str, how: str, doing: str, where: str | None) -> str:
    """A backend's process ended before its work was done."""
    at = f", in {where}" if where else ""
    causes = {"SIGKILL": "usual cause: out of memory; use smaller arguments", "exit": "the function must not exit"}
    remedy = next((text for key, text in causes.items() if key in how), "run the function alone on this backend")
    return f"{backend}: the process {how} while {doing}{at}; {remedy}"


def process_late(backend: str, seconds: float, doing: str, where: str | None) -> str:
    """A backend's process was still busy when its time was over."""
    at = f", in {where}" if where else ""
    return f"{backend}: not done after {seconds:g} s while {doing}{at}; use smaller arguments or a longer --timeout"


def process_raised(backend: str, error: BaseException, where: str | None) -> str:
    """Something raised where a result was expected."""
    at = f" ({where})" if where else ""
    if isinstance(error, MemoryError):
        return f"{backend}: out of memory{at}; use smaller arguments"
    remedy = getattr(error, "remedy", None)
    return f"{backend}: {_one_line(error)}{at}" + (f"; {remedy.rstrip('.')}" if isinstance(remedy, str) else "")
