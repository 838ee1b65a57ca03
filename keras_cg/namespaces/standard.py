"""The Python array API standard, 2024.12: `keras_cg.ops` has all of it on every backend.

`SECTIONS` has the signatures by their heading, as the standard writes them. A name with a dot is of an extension:
`linalg` or `fft`. A backend's `namespace` is a `Namespace`: the framework's own, with functions in it for what is
missing there, or differs, composed of what the framework differentiates and compiles.
"""

from __future__ import annotations

import functools
import inspect
from collections import namedtuple
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy

VERSION = "2024.12"

CONSTANTS = ("e", "inf", "nan", "newaxis", "pi")

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)

# The types of Python whose numbers may stand for arrays.
NUMBERS = (bool, int, float, complex)

_UNARY = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_invert", "ceil", "conj", "cos", "cosh"),
    *("exp", "expm1", "floor", "imag", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2"),
    *("logical_not", "negative", "positive", "real", "reciprocal", "round", "sign", "signbit", "sin"),
    *("sinh", "sqrt", "square", "tan", "tanh", "trunc"),
)
_BINARY = (
    *("add", "atan2", "bitwise_and", "bitwise_left_shift", "bitwise_or"),
    *("bitwise_right_shift", "bitwise_xor", "copysign", "divide", "equal", "floor_divide"),
    *("greater", "greater_equal", "hypot", "less", "less_equal", "logaddexp", "logical_and"),
    *("logical_or", "logical_xor", "maximum", "minimum", "multiply", "nextafter", "not_equal"),
    *("pow", "remainder", "subtract"),
)

SECTIONS = {
    "Elementwise": (
        *(f"{name}(x, /)" for name in _UNARY),
        *(f"{name}(x1, x2, /)" for name in _BINARY),
        "clip(x, /, min=None, max=None)",
    ),
    "Creation": (
        "arange(start, /, stop=None, step=1, *, dtype=None, device=None)",
        "asarray(obj, /, *, dtype=None, device=None, copy=None)",
        "empty(shape, *, dtype=None, device=None)",
        "empty_like(x, /, *, dtype=None, device=None)",
        "eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None)",
        "from_dlpack(x, /, *, device=None, copy=None)",
        "full(shape, fill_value, *, dtype=None, device=None)",
        "full_like(x, /, fill_value, *, dtype=None, device=None)",
        "linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True)",
        "meshgrid(*arrays, indexing='xy')",
        "ones(shape, *, dtype=None, device=None)",
        "ones_like(x, /, *, dtype=None, device=None)",
        "tril(x, /, *, k=0)",
        "triu(x, /, *, k=0)",
        "zeros(shape, *, dtype=None, device=None)",
        "zeros_like(x, /, *, dtype=None, device=None)",
    ),
    "Data types": (
        "astype(x, dtype, /, *, copy=True, device=None)",
        "can_cast(from_, to, /)",
        "finfo(type, /)",
        "iinfo(type, /)",
        "isdtype(dtype, kind)",
        "result_type(*arrays_and_dtypes)",
    ),
    "Manipulation": (
        "broadcast_arrays(*arrays)",
        "broadcast_to(x, /, shape)",
        "concat(arrays, /, *, axis=0)",
        "expand_dims(x, /, *, axis=0)",
        "flip(x, /, *, axis=None)",
        "moveaxis(x, source, destination, /)",
        "permute_dims(x, /, axes)",
        "repeat(x, repeats, /, *, axis=None)",
        "reshape(x, /, shape, *, copy=None)",
        "roll(x, /, shift, *, axis=None)",
        "squeeze(x, /, axis)",
        "stack(arrays, /, *, axis=0)",
        "tile(x, repetitions, /)",
        "unstack(x, /, *, axis=0)",
    ),
    "Indexing and searching": (
        "argmax(x, /, *, axis=None, keepdims=False)",
        "argmin(x, /, *, axis=None, keepdims=False)",
        "count_nonzero(x, /, *, axis=None, keepdims=False)",
        "nonzero(x, /)",
        "searchsorted(x1, x2, /, *, side='left', sorter=None)",
        "take(x, indices, /, *, axis=None)",
        "take_along_axis(x, indices, /, *, axis=-1)",
        "where(condition, x1, x2, /)",
    ),
    "Sets and sorting": (
        "argsort(x, /, *, axis=-1, descending=False, stable=True)",
        "sort(x, /, *, axis=-1, descending=False, stable=True)",
        "unique_all(x, /)",
        "unique_counts(x, /)",
        "unique_inverse(x, /)",
        "unique_values(x, /)",
    ),
    "Statistics and utilities": (
        "all(x, /, *, axis=None, keepdims=False)",
        "any(x, /, *, axis=None, keepdims=False)",
        "cumulative_prod(x, /, *, axis=None, dtype=None, include_initial=False)",
        "cumulative_sum(x, /, *, axis=None, dtype=None, include_initial=False)",
        "diff(x, /, *, axis=-1, n=1, prepend=None, append=None)",
        "max(x, /, *, axis=None, keepdims=False)",
        "mean(x, /, *, axis=None, keepdims=False)",
        "min(x, /, *, axis=None, keepdims=False)",
        "prod(x, /, *, axis=None, dtype=None, keepdims=False)",
        "std(x, /, *, axis=None, correction=0.0, keepdims=False)",
        "sum(x, /, *, axis=None, dtype=None, keepdims=False)",
        "var(x, /, *, axis=None, correction=0.0, keepdims=False)",
    ),
    "Linear algebra": (
        "matmul(x1, x2, /)",
        "matrix_transpose(x, /)",
        "tensordot(x1, x2, /, *, axes=2)",
        "vecdot(x1, x2, /, *, axis=-1)",
        "linalg.cholesky(x, /, *, upper=False)",
        "linalg.cross(x1, x2, /, *, axis=-1)",
        "linalg.det(x, /)",
        "linalg.diagonal(x, /, *, offset=0)",
        "linalg.eigh(x, /)",
        "linalg.eigvalsh(x, /)",
        "linalg.inv(x, /)",
        "linalg.matmul(x1, x2, /)",
        "linalg.matrix_norm(x, /, *, keepdims=False, ord='fro')",
        "linalg.matrix_power(x, n, /)",
        "linalg.matrix_rank(x, /, *, rtol=None)",
        "linalg.matrix_transpose(x, /)",
        "linalg.outer(x1, x2, /)",
        "linalg.pinv(x, /, *, rtol=None)",
        "linalg.qr(x, /, *, mode='reduced')",
        "linalg.slogdet(x, /)",
        "linalg.solve(x1, x2, /)",
        "linalg.svd(x, /, *, full_matrices=True)",
        "linalg.svdvals(x, /)",
        "linalg.tensordot(x1, x2, /, *, axes=2)",
        "linalg.trace(x, /, *, offset=0, dtype=None)",
        "linalg.vecdot(x1, x2, /, *, axis=-1)",
        "linalg.vector_norm(x, /, *, axis=None, keepdims=False, ord=2)",
    ),
    "Fourier transforms": (
        *(f"fft.{name}(x, /, *, n=None, axis=-1, norm='backward')" for name in ("fft", "ifft", "rfft", "irfft")),
        *(f"fft.{name}(x, /, *, n=None, axis=-1, norm='backward')" for name in ("hfft", "ihfft")),
        *(f"fft.{name}(x, /, *, s=None, axes=None, norm='backward')" for name in ("fftn", "ifftn", "rfftn", "irfftn")),
        "fft.fftfreq(n, /, *, d=1.0, dtype=None, device=None)",
        "fft.rfftfreq(n, /, *, d=1.0, dtype=None, device=None)",
        "fft.fftshift(x, /, *, axes=None)",
        "fft.ifftshift(x, /, *, axes=None)",
    ),
}

# The signature of every function, by name.
FUNCTIONS = {line.partition("(")[0]: line for lines in SECTIONS.values() for line in lines}

# Functions of rules that the standard does not have, written as it would write them. `ops` documents them.
_BEYOND = (
    *("erf(x, /)", "relu(x, /)", "sigmoid(x, /)", "softplus(x, /)"),
    *("log_softmax(x, /, *, axis=-1)", "softmax(x, /, *, axis=-1)", "logsumexp(x, /, *, axis=None, keepdims=False)"),
)
BEYOND = {line.partition("(")[0]: line for line in _BEYOND}

# Beyond these the error function is 1 or -1, and all its derivatives are 0, in every dtype.
ERF_BOUNDS = (-30.0, 30.0)


@functools.cache
def parameters(line: str) -> list[inspect.Parameter]:
    """Returns the parameters of a signature that is written as above."""
    function = eval(f"lambda {line[line.index('(') + 1 : -1]}: None")
    return [*inspect.signature(function).parameters.values()]


def with_signature(function: Any, name: str) -> Any:
    """Returns a function that shows the standard's signature of `name`, for `help`, editors and `inspect`."""
    function.__signature__ = inspect.Signature(parameters(FUNCTIONS[name]))
    return function


# Between these kinds the standard promotes, and to no other.
# "V" is the kind of the floats that NumPy does not know as such, such as bfloat16.
_KIND = {"b": "boolean", "i": "integer", "u": "integer", "f": "floating", "c": "floating", "V": "floating"}


def can_cast(from_: str | numpy.dtype[Any], to: str | numpy.dtype[Any]) -> bool:
    """Whether the standard promotes one dtype to the other, each given as a dtype of NumPy or by its name.

    NumPy says which dtype holds all values of which, but it also lets a boolean become a number.
    """
    if from_ == to:
        return True
    if "bfloat16" in (str(from_), str(to)):  # NumPy knows it only where ml_dtypes is imported
        return str(to) in ("float32", "float64", "complex64", "complex128")
    start, end = numpy.dtype(from_), numpy.dtype(to)
    return _KIND[start.kind] == _KIND[end.kind] and bool(numpy.can_cast(start, end))


def dtype_of(array_or_dtype: Any) -> Any:
    """Returns the dtype of an array, and a dtype as it is; scalar types of NumPy are dtypes that have a `dtype`."""
    is_dtype = isinstance(array_or_dtype, (str, type))
    return array_or_dtype if is_dtype else getattr(array_or_dtype, "dtype", array_or_dtype)


class Namespace(ModuleType):
    """A framework's own namespace, with functions of the standard for those that it lacks, or that differ."""

    __array_api_version__ = VERSION

    def __init__(self, framework: Any, *defined: Mapping[str, Any], **parts: Any):
        super().__init__(framework.__name__, framework.__doc__)
        # The names are copied, because a look-up in the framework at each access costs time. What the framework itself
        # creates at its first access, `__getattr__` below asks for.
        for names in (vars(framework), *defined, parts):
            vars(self).update({name: value for name, value in names.items() if not name.startswith("_")})
        self._framework = framework

    def __array_namespace_info__(self) -> Any:
        """Returns what the standard's inspection functions tell: the framework's own, or those of `Inspection`."""
        return getattr(self._framework, "__array_namespace_info__", functools.partial(Inspection, self))()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._framework, name)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *dir(self._framework)})


class Inspection:
    """The standard's inspection functions, for a framework that has none: TensorFlow (2.21) and autograd (1.9)."""

    def __init__(self, namespace: Namespace):
        self._namespace = namespace

    def capabilities(self) -> dict[str, Any]:
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> Any:
        return self._namespace.asarray(0.0).device

    def devices(self) -> list[Any]:
        """Returns the default device alone."""
        return [self.default_device()]

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        numbers = {"real floating": 0.0, "complex floating": 0j, "integral": 0}
        found = {kind: self._namespace.asarray(number).dtype for kind, number in numbers.items()}
        return {**found, "indexing": self._namespace.argmax(self._namespace.asarray([0.0])).dtype}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        every = {name: getattr(self._namespace, name) for name in DTYPES}
        return {name: each for name, each in every.items() if kind is None or self._namespace.isdtype(each, kind)}


def defined(module: ModuleType) -> dict[str, Any]:
    """Returns the functions of the tables that a module of ours defines; of `linalg` and `fft` without the dot."""
    names = {name.rpartition(".")[2] for name in (*FUNCTIONS, *BEYOND, *CONSTANTS, *DTYPES)}
    return {name: value for name, value in vars(module).items() if name in names}


# The results of functions that return several, by the standard's names.
EighResult = namedtuple("EighResult", "eigenvalues eigenvectors")
QRResult = namedtuple("QRResult", "Q R")
SlogdetResult = namedtuple("SlogdetResult", "sign logabsdet")
SVDResult = namedtuple("SVDResult", "U S Vh")
UniqueAllResult = namedtuple("UniqueAllResult", "values indices inverse_indices counts")
UniqueCountsResult = namedtuple("UniqueCountsResult", "values counts")
UniqueInverseResult = namedtuple("UniqueInverseResult", "values inverse_indices")
