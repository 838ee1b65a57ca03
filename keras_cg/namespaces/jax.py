"""What `keras_cg.ops` is on JAX: `jax.numpy`, which is the standard but for this."""

from __future__ import annotations

import sys
from typing import Any

import jax.numpy as jnp

from keras_cg.namespaces import standard


def can_cast(from_: Any, to: Any, /) -> bool:
    return bool(jnp.can_cast(from_.dtype if hasattr(from_, "shape") else from_, to))


def expand_dims(x: Any, /, axis: Any = 0) -> Any:
    return jnp.expand_dims(x, axis)


namespace = standard.Namespace(jnp, standard.defined(sys.modules[__name__]))
