"""The JAX backend, on `jax.custom_vjp`.

`tensors` says what a tensor is. `attach` runs a function once, eagerly or as a program, and gives its outputs the rule.
`rule_primitives` keeps the rule on them where JAX differentiates again or in forward mode. `linear` proves that a rule
is linear and transposes it. `derivatives` calls JAX's own engine, and `names` lists the names that JAX does not
document.
"""

from __future__ import annotations

from jax import numpy as namespace

from keras_cg.backends.jax.attach import attach
from keras_cg.backends.jax.derivatives import (
    compiled,
    devices,
    double_precision,
    exported,
    jacobian,
    jvp,
    stop_gradient,
    vjp,
)
from keras_cg.backends.jax.tensors import (
    asarray,
    cast,
    children,
    dtype,
    is_recording,
    is_tensor,
    shape,
    tensors,
    to_numpy,
)

__all__ = [  # noqa: RUF022 - in the order of keras_cg.engine.contract
    "namespace",
    "tensors",
    "is_tensor",
    "asarray",
    "to_numpy",
    "shape",
    "dtype",
    "cast",
    "children",
    "is_recording",
    "attach",
    "vjp",
    "jvp",
    "jacobian",
    "compiled",
    "exported",
    "double_precision",
    "devices",
    "stop_gradient",
]
