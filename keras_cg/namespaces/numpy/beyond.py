"""The functions of `keras_cg.ops` that the array API standard does not have, on NumPy.

autograd has most of them in `autograd.scipy.special`, which needs SciPy. So they are composed here. Half precision is
computed in float32, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy
from autograd.extend import Box, defjvp, defvjp, primitive

from keras_cg.namespaces import table
from keras_cg.namespaces.numpy.linalg import constant


def elementwise(value: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Callable[..., Any]:
    """Returns a function of floats with a derivative, which is itself differentiated in higher orders."""
    function = primitive(value)
    defvjp(function, lambda ans, x: lambda g: g * slope(x))
    defjvp(function, lambda g, ans, x: g * slope(x))
    return function  # type: ignore[no-any-return]


def _logistic(x: Any) -> Any:
    e = numpy.exp(-numpy.abs(x))
    return numpy.where(x < 0, e, 1) / (1 + e)


_sigmoid: Callable[..., Any] = elementwise(_logistic, lambda x: _sigmoid(x) * _sigmoid(-x))
# By Python's own function, because NumPy (2.5) has none; it computes in double precision.
_each = numpy.frompyfunc(math.erf, 1, 1)
_erf = elementwise(
    lambda x: numpy.asarray(_each(x)).astype(numpy.asarray(x).dtype), lambda x: 2 / math.sqrt(math.pi) * anp.exp(-x * x)
)


def erf(x: Any, /) -> Any:
    # Within bounds, because the second derivative would be NaN at infinity, and squares overflow.
    low, high = table.ERF_BOUNDS
    return _computed(x, lambda x: _erf(anp.where(x > high, high, anp.where(x < low, low, x))))


def relu(x: Any, /) -> Any:
    return anp.where(constant(x) <= 0, anp.zeros_like(x), x)


def sigmoid(x: Any, /) -> Any:
    return 1 / (1 + anp.exp(-x)) if anp.iscomplexobj(x) else _computed(x, _sigmoid)


def log_softmax(x: Any, /, *, axis: int = -1) -> Any:
    def compute(x: Any) -> Any:
        shifted = x - numpy.max(constant(x), axis, keepdims=True)
        return shifted - anp.log(anp.sum(anp.exp(shifted), axis, keepdims=True))

    return _computed(x, compute)


def softmax(x: Any, /, *, axis: int = -1) -> Any:
    def compute(x: Any) -> Any:
        e = anp.exp(x - numpy.max(constant(x), axis, keepdims=True))
        return e / anp.sum(e, axis, keepdims=True)

    return _computed(x, compute)


def _computed(x: Any, function: Callable[[Any], Any]) -> Any:
    """Computes a function of floats: integers in float64, and half precision in float32."""
    kind = numpy.result_type(constant(x))
    if kind.kind not in "fc":
        return function(numpy.asarray(x, "float64"))
    x = x if isinstance(x, Box) else numpy.asarray(x)
    return function(x.astype("float32")).astype(kind) if kind == "float16" else function(x)
