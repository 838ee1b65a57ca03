"""The functions of the Python array API standard on the active backend, and further ones of its own namespace.

`keras_cg.ops.exp` is the function of `jax.numpy`, `array_api_compat.torch`, `tf.experimental.numpy` or
`autograd.numpy`. Where those lack a function or differ from the standard, it is one of `keras_cg.namespaces`:
docs/ops.md has the table. Every access looks the function up. Write `from keras_cg import ops` and `ops.exp(x)`,
because `from keras_cg.ops import exp` would fix the backend of that moment.
"""

from __future__ import annotations

from typing import Any

from keras_cg import config, namespaces
from keras_cg.decorator import custom_gradient
from keras_cg.namespaces import messages

__all__ = ["custom_gradient", "stop_gradient"]


def stop_gradient(x: Any, /) -> Any:
    """Returns the values of a tensor without a gradient, inside a rule or outside, in any order of differentiation.

    Args:
        x: A tensor, or a number.

    Returns:
        A tensor of the shape and dtype of `x`: by `jax.lax.stop_gradient`, `tf.stop_gradient`, torch's `detach`; on
        NumPy a copy.

    Example:
        >>> from keras_cg import grad, ops
        >>> float(grad(lambda x: x * ops.stop_gradient(x))(3.0))
        3.0
    """
    return config.active.stop_gradient(config.active.asarray(x))


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(namespaces.active, name)
    except AttributeError:
        raise messages.no_such_op(name, config.backend(), __dir__()) from None


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(namespaces.active)})
