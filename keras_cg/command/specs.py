"""Parses the specs of arguments: `normal:4,3`, `uniform:0,1:4:float64`, `linspace:-5,5,400`, `0.5`, `@x.npy`."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from keras_cg.command import messages

__all__ = ["Maker", "named", "parse"]

FLOATING = ("float16", "float32", "float64", "complex64", "complex128")
DTYPES = (*FLOATING, "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

# Returns the value; one state of the generator gives the same numbers in every process.
Maker = Callable[[numpy.random.Generator], Any]


class _SpecError(ValueError):
    """An invalid spec; the message names the problem."""


def named(texts: Sequence[str]) -> dict[str, str]:
    """Returns the values of `--arg` as specs by name.

    Raises:
        UsageError: A value is not of the form `name=spec`, or a name occurs twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, spec = text.partition("=")
        if not equals or not name.isidentifier():
            raise messages.bad_argument(text)
        if name in found:
            raise messages.repeated_argument(name)
        found[name] = spec.strip()
    return found


def parse(name: str, spec: str) -> Maker:
    """Parses the spec of the argument `name` to a function that creates its value.

    Raises:
        UsageError: `spec` is invalid.
    """
    kind, colon, rest = spec.partition(":")
    try:
        if colon and kind in _RANDOM:
            return _RANDOM[kind](rest.split(":"))
        return _file(spec[1:]) if spec.startswith("@") else _literal(spec)
    except _SpecError as error:
        raise messages.bad_spec(name, spec, str(error)) from None


def _normal(parts: list[str]) -> Maker:
    shape_text, dtype = _with_dtype(parts, 1, "normal:SHAPE", FLOATING)
    shape = _shape(shape_text[0])

    def make(random: numpy.random.Generator) -> Any:
        values = random.standard_normal(shape)
        return _cast(values + 1j * random.standard_normal(shape) if dtype.startswith("complex") else values, dtype)

    return make


def _uniform(parts: list[str]) -> Maker:
    (bounds, shape_text), dtype = _with_dtype(parts, 2, "uniform:LO,HI:SHAPE", DTYPES)
    low, high = _numbers(bounds, "LO,HI")
    if low >= high:
        raise _SpecError(f"LO must be below HI, and {low:g} is not below {high:g}")
    shape = _shape(shape_text)

    def make(random: numpy.random.Generator) -> Any:
        values = random.uniform(low, high, shape)
        if dtype.startswith("complex"):
            return _cast(values + 1j * random.uniform(low, high, shape), dtype)
        return _cast(values if dtype in FLOATING else numpy.floor(values), dtype)

    return make


def _linspace(parts: list[str]) -> Maker:
    (text,), dtype = _with_dtype(parts, 1, "linspace:LO,HI,N", DTYPES)
    low, high, count = _numbers(text, "LO,HI,N")
    if count != int(count) or count < 1:
        raise _SpecError(f"N must be a whole number above 0, and is {count:g}")
    return lambda random: _cast(numpy.linspace(low, high, int(count)), dtype)


_RANDOM: dict[str, Callable[[list[str]], Maker]] = {"normal": _normal, "uniform": _uniform, "linspace": _linspace}


def _file(path: str) -> Maker:
    stem, _, dtype = path.rpartition(":")
    if dtype in DTYPES:
        path = stem
    try:
        array = numpy.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise _SpecError(f"there is no file {path!r}") from None
    except (OSError, ValueError, EOFError) as error:
        raise _SpecError(f"{path!r} cannot be read as .npy: {error}".splitlines()[0]) from None
    if not isinstance(array, numpy.ndarray) or array.dtype.kind not in "biufc":
        raise _SpecError(f"{path!r} does not hold one array of numbers")
    return lambda random: _cast(array, dtype if dtype in DTYPES else str(array.dtype))


def _literal(text: str) -> Maker:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _array(text)
    return lambda random: value


def _array(text: str) -> Maker:
    """Parses a literal with a dtype to an array."""
    literal, _, dtype = text.rpartition(":")
    try:
        value = ast.literal_eval(literal)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        quotes = f"; a string needs quotes: '\"{text}\"'" if text.isidentifier() else ""
        raise _SpecError(f"{text!r} is not a valid spec{quotes}") from None
    _known(dtype, DTYPES)
    try:
        array = _cast(numpy.asarray(value), dtype)
    except (ValueError, TypeError):
        raise _SpecError(f"{literal} cannot be converted to an array of {dtype}") from None
    return lambda random: array


def _with_dtype(parts: list[str], count: int, syntax: str, allowed: tuple[str, ...]) -> tuple[list[str], str]:
    """Splits the parts into the first `count` and the dtype after them."""
    if len(parts) not in (count, count + 1):
        raise _SpecError(f"expected {syntax} or {syntax}:DTYPE")
    return parts[:count], _known(parts[count], allowed) if len(parts) > count else "float32"


def _known(dtype: str, allowed: tuple[str, ...]) -> str:
    if dtype == "bfloat16":
        raise _SpecError("NumPy, which creates the array, has no bfloat16; use float16, or cast inside the function")
    if dtype not in DTYPES:
        raise _SpecError(f"unknown dtype {dtype!r}; use one of {', '.join(DTYPES)}")
    if dtype not in allowed:
        raise _SpecError(f"{dtype} is not possible here; use one of {', '.join(allowed)}")
    return dtype


def _cast(values: Any, dtype: str) -> Any:
    return numpy.asarray(values).astype(dtype)


def _numbers(text: str, syntax: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != syntax.count(",") + 1 or not all(map(math.isfinite, numbers)):
        raise _SpecError(f"{text!r} is not {syntax}, with finite numbers")
    return numbers


def _shape(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.strip().removeprefix("(").removesuffix(")").split(",")]
    if parts[-1] == "":  # "", "()" and "4,"
        parts.pop()
    if not all(part.isdecimal() for part in parts):
        raise _SpecError(f"{text!r} is not a SHAPE such as 4,3")
    return tuple(map(int, parts))
