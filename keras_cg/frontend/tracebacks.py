"""Shortens the traceback of an exception to the frames of the user."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from keras_cg import errors, user_code

P = ParamSpec("P")
Result = TypeVar("Result")


def shortened(fun: Callable[P, Result]) -> Callable[P, Result]:
    """Returns `fun` with the traceback of an exception shortened."""

    @functools.wraps(fun)
    def shortened(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            return fun(*args, **kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    return shortened


def hide_frames(error: BaseException) -> None:
    """Takes all frames of keras_cg but the first out of the traceback of the user's exception, or of a message of ours.

    All frames stay with the environment variable `KERAS_CG_TRACEBACK=full`.
    """
    if user_code.is_traced_by_dynamo() or os.environ.get("KERAS_CG_TRACEBACK") == "full":
        return
    shown: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        if not shown or not user_code.is_own(entry.tb_frame):
            shown.append(entry)
        last, entry = entry, entry.tb_next
    cause = error.__cause__
    if type(cause).__module__.startswith("jax.") and str(error).partition("\n")[0] in str(cause):
        # JAX (0.10) quotes a whole exception in the cause that it adds, so a message would stand twice.
        error.__cause__, error.__suppress_context__ = None, True
    # Another exception from inside keras_cg is a bug, and its report needs the frames.
    if shown and (last is shown[-1] or is_reported(error)):
        for entry, following in zip(shown, [*shown[1:], None], strict=True):
            entry.tb_next = following


def is_reported(error: BaseException) -> bool:
    """Whether an exception has one of our messages."""
    return vars(error).keys() >= set(errors.DATA)
