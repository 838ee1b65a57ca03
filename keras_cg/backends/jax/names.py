"""The names that JAX does not document, looked up in whichever module a release has them."""

from __future__ import annotations

import warnings
from typing import Any

import jax
from jax.extend import core as extend
from jax.extend import linear_util
from jax.interpreters import ad


def _find(name: str) -> Any:
    # JAX 0.8 has some of these in `jax.core`, and warns that they will move.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for module in (extend, jax.core):
            if hasattr(module, name):
                return getattr(module, name)
    raise ImportError(f"jax {jax.__version__} has no {name}, neither in jax.extend.core nor in jax.core.")


# What JAX's own messages call a traced function.
DebugInfo = _find("DebugInfo")

# The type of an array in a program.
ShapedArray = _find("ShapedArray")

# Adds a batched axis to the type of one element of the batch.
unmapped_aval = _find("unmapped_aval")

# Whether a jit, or a transform that works like one, is building a program. The public way is to make an array and look
# at it, which takes fifty times as long (JAX 0.10).
is_staging = _find("unsafe_am_i_under_a_jit_DO_NOT_USE")

# Differs from one state of JAX to another: what is differentiated, batched or traced.
trace_state = _find("get_opaque_trace_state")


# The other files read these only when they need them. If one is gone, importing this file fails, and so the backend.
NEEDED = (jax.core.eval_jaxpr, linear_util.wrap_init, ad.Zero, ad.instantiate_zeros)


def is_reversed(tracer: Any) -> bool:
    """Whether JAX differentiates a traced value in reverse mode alone; False where that is not sure."""
    # JAX 0.8 does not tell, nor does any release for a tracer of a program.
    return getattr(getattr(tracer, "_trace", None), "is_vjp", False) is True
