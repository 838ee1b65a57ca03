"""Tensors that are valid under conditions, also where no value is known yet."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from keras_cg.engine.contract import Backend


def check_or_nan(
    backend: Backend, tensors: Sequence[Any], conditions: Sequence[Any], error: Callable[[], Exception]
) -> Sequence[Any]:
    """Returns floating `tensors` if all boolean tensors `conditions` hold.

    In a program that is only traced no value is known. There the tensors become NaN if a condition does not hold, and
    by the product so do their derivatives.

    Raises:
        Exception: A condition does not hold; `error` creates the exception.
    """
    if not conditions:
        return tensors
    if backend.is_known(conditions):
        if not all([bool(backend.to_numpy(condition).all()) for condition in conditions]):
            raise error()
        return tensors
    xp = backend.namespace
    factor = xp.where(functools.reduce(operator.and_, map(xp.all, conditions)), 1.0, float("nan"))
    return [tensor * backend.cast(factor, backend.dtype(tensor)) for tensor in tensors]
