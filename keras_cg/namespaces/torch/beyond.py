"""The functions of `keras_cg.ops` that the array API standard does not have, on torch."""

from __future__ import annotations

from typing import Any

import torch

from keras_cg.namespaces import table
from keras_cg.namespaces.torch.arguments import as_tensor


def erf(x: Any, /) -> Any:
    # The second derivative of torch.erf (2.13) is NaN at infinity. Not clamped: the gradient at NaN would be 0.
    x, (low, high) = _floating(x), table.ERF_BOUNDS
    return torch.erf(torch.where(x > high, high, torch.where(x < low, low, x)))


def relu(x: Any, /) -> Any:
    return torch.relu(as_tensor(x))


def sigmoid(x: Any, /) -> Any:
    return torch.sigmoid(_floating(x))


def softplus(x: Any, /) -> Any:
    # From the default threshold (20) on, the second derivative is 0, and the value is inexact in float64.
    return torch.nn.functional.softplus(_floating(x), threshold=40)


def log_softmax(x: Any, /, *, axis: int = -1) -> Any:
    return torch.log_softmax(_floating(x), axis)


def softmax(x: Any, /, *, axis: int = -1) -> Any:
    return torch.softmax(_floating(x), axis)


def logsumexp(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    x = _floating(x)
    axes = tuple(range(x.ndim)) if axis is None else axis
    # To torch.logsumexp (2.13) no axis means all of them.
    return x if axes == () else torch.logsumexp(x, axes, keepdim=keepdims)


def _floating(x: Any) -> Any:
    x = as_tensor(x)
    return x if x.is_floating_point() or x.is_complex() else x.to(torch.get_default_dtype())
