"""Facts about a dtype, by its plain name: whether it has gradients, and how exact it is.

Other tables of dtypes: the names that `ops` has (`DTYPES` in namespaces/table.py), real and complex ones
(autodiff/run.py), and the tolerances of the checker and of plots (testing/inspection.py, command/curves.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy


class Precision(NamedTuple):
    """The numbers of a floating dtype, and how much two results may differ.

    `epsilon` is the step from 1 to the next number, and `smallest` the smallest normal number. Numbers near 1 stay in
    range if they are scaled by 2 ** `reach`. Two results of one computation differ by less than `repeated` times the
    largest, because sums may run in another order.
    """

    epsilon: float
    smallest: float
    reach: int
    repeated: float


_TABLE = {
    "float16": Precision(2.0**-10, 2.0**-14, 14, 0.05),
    "bfloat16": Precision(2.0**-7, 2.0**-126, 40, 0.05),
    "float32": Precision(2.0**-23, 2.0**-126, 40, 1e-5),
    "float64": Precision(2.0**-52, 2.0**-1022, 80, 1e-13),
}
_TABLE["complex64"], _TABLE["complex128"] = _TABLE["float32"], _TABLE["float64"]


def is_differentiable(dtype: str) -> bool:
    """Whether tensors of this dtype have a gradient: floats of any width, and complex numbers."""
    return dtype.startswith(("float", "bfloat", "complex"))


def double(dtype: str) -> str:
    """Returns the dtype of double precision, of a real or a complex one; any other as it is."""
    return "complex128" if dtype.startswith("complex") else "float64" if is_differentiable(dtype) else dtype


def is_key(dtype: str) -> bool:
    """Whether tensors of this dtype are keys of `jax.random`."""
    return dtype.startswith("key<")


def of(dtype: str) -> Precision:
    """The precision of a floating or complex dtype, by its plain name; of any other, that of float64."""
    return _TABLE.get(dtype, _TABLE["float64"])


def of_linear(dtypes: Sequence[str]) -> tuple[float, float]:
    """Returns how much two values of a linear map of these dtypes may differ: relative to the largest, and absolute.

    A linear map may lose digits. Numbers below the normal ones may be 0.
    """
    # With dynamic shapes, Dynamo (torch 2.13) makes variables of floats that are not written here, and fails if two
    # rules have the same.
    kinds = {*dtypes}
    if "float16" in kinds:
        return 0.1, 8 * 2.0**-14
    if "bfloat16" in kinds:
        return 0.1, 8 * 2.0**-126
    return (1e-3, 8 * 2.0**-126) if {"float32", "complex64"} & kinds else (1e-6, 8 * 2.0**-1022)


def is_repeated(other: numpy.ndarray, first: numpy.ndarray, tolerance: float) -> bool:
    """Whether two arrays are equal but for the rounding of sums in another order.

    An element may differ by `tolerance` times the largest finite element of `first`.
    """
    if other.shape != first.shape or other.dtype != first.dtype:
        return False
    if numpy.array_equal(other, first):
        return True
    if first.dtype.kind not in "fcV":
        return False
    size = numpy.max(numpy.abs(first), initial=0.0, where=numpy.isfinite(first))
    return bool(numpy.allclose(other, first, rtol=0, atol=tolerance * float(size), equal_nan=True))
