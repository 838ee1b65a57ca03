"""What holds only if some conditions do, where it may be too early to look at them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from keras_cg.engine.contract import Backend


def check_or_nan(
    backend: Backend, tensors: Sequence[Any], conditions: Sequence[Any], error: Callable[[], Exception]
) -> Sequence[Any]:
    """Floating `tensors`, if all boolean tensors `conditions` hold.

    In a program that is only traced no value can be looked at: there they are NaN if one of the conditions does not
    hold, and so are their derivatives, hence the product.

    Raises:
        Exception: One of them does not hold: what `error` makes.
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
