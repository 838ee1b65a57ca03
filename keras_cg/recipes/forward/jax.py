"""`from_jvp` on JAX: the program of a map mostly shows that it is linear, and then nothing has to be tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from keras_cg.backends.jax import linear
from keras_cg.backends.jax.tensors import conjugate


def transposed(
    name: str, push: Callable[..., Sequence[Any]], zeros: Sequence[Any], upstream: Sequence[Any]
) -> list[Any] | None:
    """Applies the transpose of a map to `upstream`; returns None if its program does not show that it is linear."""
    try:
        gradients = linear.transposed_plainly(name, push, [*map(jax.typeof, zeros)], [*map(conjugate, upstream)])
    except ValueError:
        # An error of the map itself comes again where it is tried.
        return None
    return [*map(conjugate, gradients)]
