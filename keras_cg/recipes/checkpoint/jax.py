"""A function that runs again in the backward pass, on JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from keras_cg.engine.contract import Tensors
from keras_cg.recipes.checkpoint import OutputFunction


def recompute(fun: OutputFunction, tensors: Sequence[Any]) -> Tensors:
    """Calls `jax.checkpoint`, which also differentiates the values that a function closes over."""
    return jax.checkpoint(fun)(*tensors)  # type: ignore[no-any-return]
