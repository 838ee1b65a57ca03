"""The functions that rules are written with: `keras_cg.ops` has these, and only these, on every backend.

`FUNCTIONS` has their signatures by name. They have the names of the Python array API standard, and accept by position
what NumPy accepts so. A name with a dot is of `linalg`. A backend's `namespace` is a `Namespace`: the framework's own,
with functions in it for what is missing there, or has a wrong gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

CONSTANTS = ("e", "inf", "nan", "newaxis", "pi")

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)

# The types of Python whose numbers may stand for arrays.
NUMBERS = (bool, int, float, complex)

UNARY = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "conj", "cos", "cosh", "erf", "exp", "expm1"),
    *("floor", "imag", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "logical_not", "negative"),
    *("real", "reciprocal", "relu", "round", "sigmoid", "sign", "sin", "sinh", "sqrt", "square"),
    *("tan", "tanh", "trunc"),
)
BINARY = (
    *("add", "atan2", "divide", "equal", "floor_divide", "greater", "greater_equal", "hypot", "less", "less_equal"),
    *("logaddexp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "not_equal", "pow"),
    *("remainder", "subtract"),
)

SECTIONS = {
    "Elementwise": (
        *(f"{name}(x, /)" for name in UNARY),
        *(f"{name}(x1, x2, /)" for name in BINARY),
        "clip(x, /, min=None, max=None)",
        "where(condition, x1, x2, /)",
    ),
    "Reductions": (
        *(f"{name}(x, /, axis=None, *, keepdims=False)" for name in ("all", "any", "argmax", "argmin", "max", "mean")),
        *(f"{name}(x, /, axis=None, *, keepdims=False)" for name in ("min", "prod", "sum")),
        *(f"{name}(x, /, axis=None, *, correction=0, keepdims=False)" for name in ("std", "var")),
    ),
    "Along an axis": (
        "softmax(x, /, *, axis=-1)",
        "log_softmax(x, /, *, axis=-1)",
        "cumulative_sum(x, /, *, axis=None)",
        "sort(x, /, axis=-1, *, descending=False)",
        "argsort(x, /, axis=-1, *, descending=False)",
    ),
    "Shapes": (
        "broadcast_to(x, /, shape)",
        "concat(arrays, /, axis=0)",
        "expand_dims(x, /, axis)",
        "flip(x, /, axis=None)",
        "moveaxis(x, source, destination, /)",
        "permute_dims(x, /, axes)",
        "repeat(x, repeats, /, axis=None)",
        "reshape(x, /, shape)",
        "roll(x, /, shift, axis=None)",
        "squeeze(x, /, axis)",
        "stack(arrays, /, axis=0)",
        "tile(x, repetitions, /)",
        "tril(x, /, k=0)",
        "triu(x, /, k=0)",
        "unstack(x, /, *, axis=0)",
    ),
    "Indexing": (
        "take(x, indices, /, axis=None)",
        "take_along_axis(x, indices, /, axis=-1)",
    ),
    "Creation": (
        "arange(start, /, stop=None, step=1, dtype=None)",
        "asarray(obj, /, dtype=None)",
        "eye(n_rows, n_cols=None, /, k=0, dtype=None)",
        "full(shape, fill_value, dtype=None)",
        "full_like(x, /, fill_value, dtype=None)",
        "ones(shape, dtype=None)",
        "ones_like(x, /, dtype=None)",
        "zeros(shape, dtype=None)",
        "zeros_like(x, /, dtype=None)",
    ),
    "Data types": (
        "astype(x, dtype, /)",
        "finfo(type, /)",
        "isdtype(dtype, kind)",
        "result_type(*arrays_and_dtypes)",
    ),
    "Linear algebra": (
        "matmul(x1, x2, /)",
        "matrix_transpose(x, /)",
        "tensordot(x1, x2, /, axes=2)",
        "vecdot(x1, x2, /, *, axis=-1)",
        "linalg.cholesky(x, /)",
        "linalg.solve(x1, x2, /)",
    ),
}

# The signature of every function, by name.
FUNCTIONS = {line.partition("(")[0]: line for lines in SECTIONS.values() for line in lines}

# Beyond these the error function is 1 or -1, and all its derivatives are 0, in every dtype.
ERF_BOUNDS = (-30.0, 30.0)


def dtype_of(array_or_dtype: Any) -> Any:
    """Returns the dtype of an array, and a dtype as it is; scalar types of NumPy are dtypes that have a `dtype`."""
    is_dtype = isinstance(array_or_dtype, (str, type))
    return array_or_dtype if is_dtype else getattr(array_or_dtype, "dtype", array_or_dtype)


class Namespace(ModuleType):
    """A framework's own namespace, with functions of the table for those that it lacks, or that differ."""

    def __init__(self, framework: Any, *defined: Mapping[str, Any], **parts: Any):
        super().__init__(framework.__name__, framework.__doc__)
        # The names are copied, because a look-up in the framework at each access costs time. What the framework itself
        # creates at its first access, `__getattr__` below asks for.
        for names in (vars(framework), *defined, parts):
            vars(self).update({name: value for name, value in names.items() if not name.startswith("_")})
        self._framework = framework

    def __getattr__(self, name: str) -> Any:
        return getattr(self._framework, name)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *dir(self._framework)})


def defined(module: ModuleType) -> dict[str, Any]:
    """Returns what a module of ours defines of the table; functions of `linalg` without the dot."""
    names = {name.rpartition(".")[2] for name in (*FUNCTIONS, *CONSTANTS, *DTYPES)}
    return {name: value for name, value in vars(module).items() if name in names}
