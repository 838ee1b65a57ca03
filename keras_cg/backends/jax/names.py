"""What JAX does not export for everybody to use, wherever a release has it."""

from __future__ import annotations

import warnings
from typing import Any

import jax
from jax.extend import core as extend
from jax.extend import linear_util
from jax.interpreters import ad


def _find(name: str) -> Any:
    # Earlier releases (0.8) have some of these in `jax.core`, and warn that they will leave it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for module in (extend, jax.core):
            if hasattr(module, name):
                return getattr(module, name)
    raise ImportError(f"jax {jax.__version__} has no {name}, neither in jax.extend.core nor in jax.core.")


# What JAX's own messages say of a program that it did not begin to trace by itself.
DebugInfo = _find("DebugInfo")

# The type of an array in a program.
ShapedArray = _find("ShapedArray")

# One element of a batch, as JAX describes it.
unmapped_aval = _find("unmapped_aval")

# Whether a jit, or what works like one, is building a program. JAX (0.10) exports no other way to ask but to make an
# array and look at it, which takes fifty times as long.
is_staging = _find("unsafe_am_i_under_a_jit_DO_NOT_USE")

# What tells one state of JAX from another: what is differentiated, batched or traced.
trace_state = _find("get_opaque_trace_state")


# What the other files read when they need it: if one is gone, importing this file fails, and with it the backend.
NEEDED = (jax.core.eval_jaxpr, linear_util.wrap_init, ad.Zero, ad.instantiate_zeros)


def is_reversed(tracer: Any) -> bool:
    """Whether JAX differentiates what stands for a value, and surely in reverse alone."""
    # Releases before 0.9 do not say, nor does JAX of what it traces for a program; then it is not sure.
    return getattr(getattr(tracer, "_trace", None), "is_vjp", False) is True


def unbatched(value: Any) -> Any:
    """What is batched by `vmap`, which differentiates nothing by itself; anything else as it is."""
    while hasattr(value, "batch_dim"):
        value = value.val
    return value
