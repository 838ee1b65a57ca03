"""Clips a gradient by its norm at one place inside a model, not at the end of it.

The value passes unchanged. What comes back has at most the given norm and keeps its direction, so one steep
loss term cannot drown the others before they meet.

    KERAS_CG_BACKEND=tensorflow python examples/gradient_clipping.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

import keras_cg
from keras_cg import ops


@keras_cg.custom_gradient
def clip_gradient(x: Any, limit: float) -> tuple[Any, Callable[[Any], Any]]:
    """Returns `x`; the gradient that comes back is shortened to the norm `limit` if it is longer."""

    def grad(upstream: Any) -> Any:
        norm = ops.sum(upstream**2) ** 0.5
        return upstream * (limit / ops.clip(norm, limit, None))

    return x, grad


def expected(x: Any, limit: float, upstream: Any) -> Any:
    """What `clip_gradient` promises: the direction of upstream, and its norm up to the limit."""
    norm = ops.sqrt(ops.sum(upstream * upstream))
    return upstream if norm <= limit else limit * (upstream / norm)


# For `keras-cg check examples/gradient_clipping.py`.
clip_gradient.example_args = {"x": "rng.normal(size=(4, 3))", "limit": 2.0}
clip_gradient.expected = expected


def steep(x: Any, limit: float) -> Any:
    """A loss whose gradient is 100 * x before it is clipped."""
    return 50 * ops.sum(clip_gradient(x, limit) ** 2)


def main() -> None:
    x = ops.asarray(numpy.array([0.3, -0.4], "float32"))
    print(f"backend: {keras_cg.backend()}")
    for limit in (1000.0, 5.0, 1.0):
        gradient = numpy.asarray(keras_cg.grad(steep)(x, limit))
        print(f"limit {limit:6.1f}: gradient {gradient}, norm {numpy.linalg.norm(gradient):.3f}")


if __name__ == "__main__":
    main()
