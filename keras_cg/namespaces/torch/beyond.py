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


def log_softmax(x: Any, /, *, axis: int = -1) -> Any:
    return torch.log_softmax(_floating(x), axis)


def softmax(x: Any, /, *, axis: int = -1) -> Any:
    return torch.softmax(_floating(x), axis)


def _floating(x: Any) -> Any:
    x = as_tensor(x)
    return x if x.is_floating_point() or x.is_complex() else x.to(torch.get_default_dtype())
