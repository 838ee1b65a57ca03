"""A gradient reversal layer: the identity forwards, the negated gradient backwards.

It trains features that help one task and hide another, such as which domain an image comes from.
Y. Ganin et al., "Domain-Adversarial Training of Neural Networks", JMLR 17(59), 2016.

    KERAS_CG_BACKEND=torch python examples/gradient_reversal.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

import keras_cg
from keras_cg import ops


@keras_cg.custom_gradient
def reverse_gradient(x: Any, strength: float) -> tuple[Any, Callable[[Any], Any]]:
    """Returns `x`; the gradient that comes back is multiplied by `-strength`."""

    def grad(upstream: Any) -> Any:
        return -strength * upstream

    return x, grad


# For `keras-cg check examples/gradient_reversal.py`: the gradient is that of the negated function.
reverse_gradient.example_args = {"x": "rng.normal(size=(4, 3))", "strength": 0.5}
reverse_gradient.expected = lambda x, strength: -strength * x


def domain_loss(features: Any, strength: float) -> Any:
    """What a domain classifier would minimise; here the sum of squares, whose gradient is 2 * features."""
    return ops.sum(reverse_gradient(features, strength) ** 2)


def main() -> None:
    features = ops.asarray(numpy.array([1.0, -2.0, 3.0], "float32"))
    print(f"backend: {keras_cg.backend()}")
    print(f"without the layer: {keras_cg.grad(lambda x: ops.sum(x**2))(features)}")
    for strength in (0.0, 0.5, 1.0):
        print(f"strength {strength}:      {keras_cg.grad(domain_loss)(features, strength)}")


if __name__ == "__main__":
    main()
