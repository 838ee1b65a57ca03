"""The JAX backend, on `jax.custom_jvp` and `jax.custom_vjp`.

`tensors` says which values are tensors, and whether JAX differentiates, batches or traces. `attach` runs a function
once, eagerly or as a program, and ties its outputs to the rule. `closed` says whether a function can capture anything.
`rule_primitives` keeps the rule where JAX differentiates again or in forward mode. `linear` proves that a rule is
linear and transposes it. `refusing` has what raises where a gradient is asked for that there is none of. `derivatives`
calls JAX's own derivatives, compiler and exporter. `names` looks up the names that JAX does not document.
"""

from __future__ import annotations

from jax import jit as compiled
from jax import numpy as namespace
from jax.lax import stop_gradient

from keras_cg.backends.jax.attach import attach
from keras_cg.backends.jax.derivatives import devices, double_precision, exported, jacobian, jvp, needs_grad, vjp
from keras_cg.backends.jax.tensors import (
    asarray,
    cast,
    children,
    dtype,
    is_known,
    is_plain,
    is_recording,
    is_tensor,
    shape,
    tensors,
    to_numpy,
    types,
)
