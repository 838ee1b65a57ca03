"""Functions of the Python array API standard on the active backend, and the other functions of its own namespace.

`keras_cg.ops.exp` is `exp` of `jax.numpy`, `array_api_compat.torch`, `tf.experimental.numpy` or `autograd.numpy`. Where
these lack a function or differ from the standard, keras_cg has its own. Each access looks the name up on the active
backend. So write `from keras_cg import ops` and `ops.exp(x)`: `from keras_cg.ops import exp` would keep the function of
the backend that is active at the import. The guide "Write backend-neutral code" lists the differences and the traps.
"""

from __future__ import annotations

from typing import Any

from keras_cg import config, namespaces
from keras_cg.decorator import custom_gradient
from keras_cg.namespaces import messages

__all__ = ["custom_gradient", "stop_gradient"]


def stop_gradient(x: Any, /) -> Any:
    """Returns `x` and blocks gradients through it, in any order, inside and outside of a rule.

    It calls `jax.lax.stop_gradient`, `tf.stop_gradient` or `detach` of torch. On NumPy it copies `x`.

    Args:
        x: `any[...]`, or a number.

    Returns:
        `any[...]` with the values, the shape and the dtype of `x`.

    See Also:
        `keras_cg.recipes.scale_gradient`, which multiplies a gradient instead.

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
