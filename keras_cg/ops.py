"""The functions of the Python array API standard on the active backend, and what its own namespace has beside them.

`keras_cg.ops.exp` is that of `jax.numpy`, `array_api_compat.torch`, `tf.experimental.numpy` or `autograd.numpy`, or one
of the backend's where those lack it or differ from the standard: docs/ops.md has the table. It is looked up whenever it
is read. Write `from keras_cg import ops` and `ops.exp(x)`; `from keras_cg.ops import exp` would fix the backend of that
moment.
"""

from __future__ import annotations

from typing import Any

from keras_cg import config, namespaces
from keras_cg.decorator import custom_gradient
from keras_cg.namespaces import messages

__all__ = ["custom_gradient", "stop_gradient"]


def stop_gradient(x: Any, /) -> Any:
    """The same values, of which nobody gets a gradient through here, inside of a rule or outside, in any order.

    Args:
        x: A tensor, or a number.

    Returns:
        A tensor: by `jax.lax.stop_gradient`, `tf.stop_gradient`, torch's `detach`; on NumPy a copy.

    Example:
        >>> from keras_cg import grad, ops
        >>> float(grad(lambda x: x * ops.stop_gradient(x))(3.0))
        3.0
    """
    return config.active.stop_gradient(config.active.asarray(x))


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name not in ("__array_namespace_info__", "__array_api_version__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(namespaces.active, name)
    except AttributeError:
        raise messages.no_such_op(name, config.backend(), __dir__()) from None


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(namespaces.active)})
