"""Functions of NumPy arrays in a framework without compiled programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_cg.frontend import config
from keras_cg.recipes.callback.host import Host


def call(host: Host, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Calls a function of NumPy arrays, without a gradient."""
    backend = config.active
    arrays = host.function().run([backend.to_numpy(tensor) for tensor in tensors], host.arguments)
    return tuple(map(backend.asarray, arrays))
