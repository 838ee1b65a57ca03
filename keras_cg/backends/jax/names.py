"""The names that JAX does not document, looked up in whichever module a release has them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import jax
import numpy
from jax.extend import core as extend
from jax.extend import linear_util
from jax.interpreters import ad, partial_eval


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
NEEDED = (jax.core.eval_jaxpr, linear_util.wrap_init, ad.Zero, ad.instantiate_zeros, partial_eval.dce_jaxpr)


def is_reversed(tracer: Any) -> bool:
    """Whether JAX differentiates a traced value in reverse mode alone; False where that is not sure."""
    # JAX 0.8 does not tell, nor does any release for a tracer of a program.
    return getattr(getattr(tracer, "_trace", None), "is_vjp", False) is True


def _kind(transform: Any) -> Any:
    """Returns the class of what a function gets inside of a transform."""
    seen: list[type] = []

    def look(value: Any) -> Any:
        # The value itself would be a leak under `jax.checking_leaks`.
        seen.append(type(value))
        return value

    transform(look)
    return seen[0]


# How JAX calls what a traced value stands for at the next outer level: found out by trying, once.
_MAPPED: Any = _kind(lambda fun: jax.vmap(fun)(numpy.zeros(1, "float32")))
_INSIDE = {_MAPPED: _MAPPED.val}
for _transform in (lambda fun: jax.jvp(fun, (0.0,), (0.0,)), lambda fun: jax.linearize(fun, 0.0)):
    _differentiated: Any = _kind(_transform)
    _INSIDE[_differentiated] = _differentiated.primal


def inside(value: Any) -> Any:
    """Returns what a traced value stands for at the next outer level; the value itself where JAX does not tell."""
    member = _INSIDE.get(type(value))
    return value if member is None else member.__get__(value)


def is_at_one_level(values: Iterable[Any]) -> bool:
    """Whether a single level traces all those of some values that are traced; False where JAX does not tell."""
    traced = [value for value in values if isinstance(value, jax.core.Tracer)]
    return len({id(value._trace) for value in traced}) == 1 and not any(
        [isinstance(inside(value), jax.core.Tracer) for value in traced]
    )


def is_mapped(value: Any) -> bool:
    """Whether the innermost level that traces a value is a vmap."""
    return isinstance(value, _MAPPED)


def is_only_mapped(value: Any) -> bool:
    """Whether every level that traces a value is a vmap."""
    while isinstance(value, _MAPPED):
        value = inside(value)
    return not isinstance(value, jax.core.Tracer)


def is_differentiated(value: Any) -> bool:
    """Whether some level differentiates a traced value outside of the innermost program; False if JAX does not tell."""
    while type(value) is _MAPPED:
        value = inside(value)
    return type(value) in _INSIDE
