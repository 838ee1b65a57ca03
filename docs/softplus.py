"""The worked example of checking.md: a custom gradient with a bug in it, and one without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras_cg
from keras_cg import ops


@keras_cg.custom_gradient
def softplus(x: Any, beta: float) -> tuple[Any, Callable[[Any], Any]]:
    """log(1 + exp(beta x)) / beta, a smooth ramp."""
    e = ops.exp(beta * x)

    def grad(upstream: Any) -> Any:
        return upstream * beta * (1 - 1 / (1 + e))

    return ops.log(1 + e) / beta, grad


@keras_cg.custom_gradient
def fixed(x: Any, beta: float) -> tuple[Any, Callable[[Any], Any]]:
    """Like `softplus`, without the bug: the factor of the chain rule cancels the division."""
    e = ops.exp(beta * x)

    def grad(upstream: Any) -> Any:
        return upstream * (1 - 1 / (1 + e))

    return ops.log(1 + e) / beta, grad


softplus.example_args = fixed.example_args = {"x": "rng.normal(size=(4, 3))", "beta": 3.0}
