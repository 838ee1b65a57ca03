"""What is known of a dtype by its plain name: whether it has gradients, and how exact it is."""

from __future__ import annotations

from typing import NamedTuple


class Precision(NamedTuple):
    """What is known of a floating dtype.

    `epsilon` is the step from 1 to the next number, `smallest` the smallest normal number, and `reach` the exponent of
    2 up to which numbers around 1 can be scaled without leaving the dtype by far. Two results of one computation are
    the same if they differ by less than `repeated` times the largest, for sums may run in another order; and a map is
    linear if its values differ from a linear map's by less than `linear` times the largest, for a rule may lose digits.
    """

    epsilon: float
    smallest: float
    reach: int
    repeated: float
    linear: float


_TABLE = {
    "float16": Precision(2.0**-10, 2.0**-14, 14, 0.05, 0.1),
    "bfloat16": Precision(2.0**-7, 2.0**-126, 40, 0.05, 0.1),
    "float32": Precision(2.0**-23, 2.0**-126, 40, 1e-5, 1e-3),
    "float64": Precision(2.0**-52, 2.0**-1022, 80, 1e-13, 1e-6),
}
_TABLE["complex64"], _TABLE["complex128"] = _TABLE["float32"], _TABLE["float64"]


def is_differentiable(dtype: str) -> bool:
    """Whether tensors of this dtype have a gradient: floats of any width, and complex numbers."""
    return dtype.startswith(("float", "bfloat", "complex"))


def of(dtype: str) -> Precision:
    """The precision of a floating or complex dtype, by its plain name; of any other, that of float64."""
    return _TABLE.get(dtype, _TABLE["float64"])
