"""Errors that JAX raises later than they arise: where a gradient is asked for that there is none of."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import jax

from keras_cg.engine import messages
from keras_cg.engine.contract import Function, Tensors

# What a message calls a captured value without a name.
CAPTURED = "(a value that JAX differentiates)"


def without_frames(error: Exception) -> Exception:
    """Returns an exception that may be kept: its frames, and those of its causes, hold traced values."""
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error


def copied(error: Exception) -> Exception:
    """Returns an exception to be raised in the place of one that is kept, and that would get the frames."""
    try:
        other = copy.copy(error)
    except TypeError:
        return error  # a class whose constructor takes something else than it passes on
    other.__cause__, other.__suppress_context__ = error.__cause__, error.__suppress_context__
    return other


def refusals(
    fun: Function, tensors: Sequence[Any], captured: Sequence[Any], refusal: Exception | None
) -> list[Exception]:
    """Returns for each captured value why it cannot be differentiated, with the user's name for it."""
    refusal = refusal or messages.unserved_variables("jax", "its rule calls it again, or its like.", fun)
    refusals = []
    for value, name in zip(captured, fun.names(captured, [CAPTURED] * len(captured)), strict=True):
        error = copy.copy(refusal)
        error.args = (str(refusal).replace(CAPTURED, name),)
        refusals.append(messages.argument_also_captured(fun.name, [value], tensors) or error)
    return refusals


def guarded(value: Any, refusal: Exception) -> Any:
    """Returns a captured value whose differentiation raises `refusal`."""
    guard = jax.custom_jvp(lambda value: value)

    @guard.defjvp
    def refuse(primals: Tensors, tangents: Tensors) -> tuple[Any, Any]:
        raise copied(refusal)

    return guard(value)
