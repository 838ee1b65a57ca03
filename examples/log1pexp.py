"""The gradient of log(1 + exp(x)) where plain differentiation gives NaN.

In float32 exp(100) overflows, and the chain rule divides infinity by infinity. The rule writes the same
derivative as 1 - 1 / (1 + exp(x)), which overflows to the right answer.

    KERAS_CG_BACKEND=jax python examples/log1pexp.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

import keras_cg
from keras_cg import ops


def plain(x: Any) -> Any:
    """log(1 + exp(x)), differentiated by the framework."""
    return ops.log(1 + ops.exp(x))


@keras_cg.custom_gradient
def log1pexp(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """log(1 + exp(x)), with a rule for its gradient."""
    e = ops.exp(x)

    def grad(upstream: Any) -> Any:
        return upstream * (1 - 1 / (1 + e))

    return ops.log(1 + e), grad


# For `keras-cg check examples/log1pexp.py`.
log1pexp.example_args = {"x": "rng.normal(size=(4, 3))"}


def main() -> None:
    x = ops.asarray(100.0, dtype=ops.float32)
    # The overflow is the point of this example; NumPy alone would warn of it.
    with numpy.errstate(over="ignore", invalid="ignore"):
        print(f"backend: {keras_cg.backend()}")
        print(f"gradient at 100, plain:         {float(keras_cg.grad(plain)(x))}")
        print(f"gradient at 100, with the rule: {float(keras_cg.grad(log1pexp)(x))}")


if __name__ == "__main__":
    main()
