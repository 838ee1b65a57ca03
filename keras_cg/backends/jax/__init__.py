"""The JAX backend, on `jax.custom_vjp`.

`tensors` says what a tensor is. `attach` runs a function once, eagerly or as a program, and gives its outputs the rule.
`carried` keeps the rule on them where JAX differentiates again or forwards. `linear` proves that a rule is linear and
transposes it. `derivatives` is JAX's engine, `host` calls functions of NumPy, and `names` has what JAX does not export
for everybody.
"""

from __future__ import annotations

from keras_cg.backends.jax.attach import attach
from keras_cg.backends.jax.derivatives import (
    compiled,
    cut,
    devices,
    double_precision,
    exported,
    jacobian,
    jvp,
    vjp,
)
from keras_cg.backends.jax.functions import namespace
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
    "cut",
]
