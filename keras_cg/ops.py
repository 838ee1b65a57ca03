"""The functions that rules are written with, on the active backend.

`keras_cg.ops.exp` is `exp` of `jax.numpy`, `array_api_compat.torch`, `tf.experimental.numpy` or `autograd.numpy`. Where
these lack a function that rules need, or have a wrong gradient, keras_cg has its own. Every other name is the
framework's own function, as it is. Each access looks the name up on the active backend. So write
`from keras_cg import ops` and `ops.exp(x)`: `from keras_cg.ops import exp` would keep the function of the backend that
is active at the import. The guide "Write backend-neutral code" lists the functions of every backend, and the traps.
"""

from __future__ import annotations

from typing import Any

import numpy

from keras_cg import namespaces
from keras_cg.bridge import keras_interop
from keras_cg.errors import article, type_name
from keras_cg.frontend import config
from keras_cg.frontend.decorator import custom_gradient
from keras_cg.frontend.pytree import describe
from keras_cg.namespaces import messages

__all__ = [
    "custom_gradient",
    "erf",
    "log_softmax",
    "relu",
    "sigmoid",
    "softmax",
    "stop_gradient",
    "sum_to",
]


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


def sum_to(gradient: Any, like: Any) -> Any:
    """Sums a gradient to the shape of an argument that was broadcast.

    It is the transpose of broadcasting: `sum_to_size` of torch, and what each framework does with the gradients of its
    own operations. A rule needs it for an argument that may be smaller than the output.

        y = f(broadcast(x)),    dL/dx = sum of dL/d broadcast(x), over the axes that were added or had the length 1

    Args:
        gradient: `inexact[...]`, in the shape that the argument was broadcast to.
        like: The argument: `any[...]`, or a number. Only its shape is used.

    Returns:
        `inexact[...]` with the shape of `like` and the dtype of `gradient`.

    Raises:
        TypeError: One of them is neither a tensor nor a number, such as a shape.
        ValueError: The shape of `like` does not broadcast to that of `gradient`. Where a graph of TensorFlow does not
            know the sizes, the program raises when it runs.

    See Also:
        `keras_cg.GradientError`, which a rule without this sum raises.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import ops
        >>> @keras_cg.custom_gradient
        ... def product(x, w):
        ...     return x * w, lambda upstream: (ops.sum_to(upstream * w, x), ops.sum_to(upstream * x, w))
        >>> keras_cg.grad(product, 1)(np.ones((3, 2)), np.array([1.0, 2.0]))
        array([3., 3.])
    """
    backend = config.active
    gradient, like = map(keras_interop.unwrap, (gradient, like))
    for argument, value in (("gradient", gradient), ("like", like)):
        if not (backend.is_tensor(value) or isinstance(value, (int, float, complex, numpy.ndarray))):
            raise messages.not_a_tensor("sum_to", argument, article(type_name(value)))
    gradient, like = backend.asarray(gradient), backend.asarray(like)
    came, size = backend.shape(gradient), backend.shape(like)
    if came is None or size is None or None in (*came, *size):
        # Only TensorFlow has tensors of unknown sizes, and its own function for them.
        return namespaces.active.sum_to(gradient, like)
    added = len(came) - len(size)
    aligned = [(whole, part) for whole, part in zip(came[max(added, 0) :], size, strict=False)]
    if added < 0 or any([part not in (1, whole) for whole, part in aligned]):
        raise messages.not_summed(
            "sum_to", *[describe(backend.dtype(each), backend.shape(each)) for each in (gradient, like)]
        )
    axes = tuple(added + place for place, (whole, part) in enumerate(aligned) if whole != part)
    summed = namespaces.active.sum(gradient, axis=axes, keepdims=True) if axes else gradient
    return namespaces.active.sum(summed, axis=tuple(range(added))) if added else summed


def sigmoid(x: Any, /) -> Any:
    """Computes the logistic function 1 / (1 + exp(-x)), without overflow in any order.

        y = 1 / (1 + exp(-x)),    dL/dx = dL/dy y (1 - y)

    It is `jax.nn.sigmoid`, `torch.sigmoid` or `tf.sigmoid`.

    Args:
        x: `float[...]`, or a number. Integers are computed in the default floating dtype of the framework.

    Returns:
        `float[...]` with the shape and the dtype of `x`.

    See Also:
        `keras_cg.recipes.log1pexp`, whose derivative it is. `keras_cg.ops.softmax`, for several classes.

    Example:
        >>> import keras_cg
        >>> from keras_cg import ops
        >>> float(ops.sigmoid(-1e4)), float(keras_cg.grad(ops.sigmoid)(0.0))
        (0.0, 0.25)
    """
    return _active("sigmoid")(x)


def relu(x: Any, /) -> Any:
    """Computes max(x, 0), whose derivative at 0 is 0.

        y = max(x, 0),    dL/dx = dL/dy where x > 0, else 0

    It is `jax.nn.relu`, `torch.relu` or `tf.nn.relu`. For NaN the output is NaN; its gradient is the framework's own.

    Args:
        x: `float[...]`, or a number. Integers stay integers.

    Returns:
        `float[...]` with the shape and the dtype of `x`.

    See Also:
        `keras_cg.recipes.log1pexp`, which is smooth.

    Example:
        >>> import numpy as np
        >>> import keras_cg
        >>> from keras_cg import ops
        >>> keras_cg.grad(ops.relu)(np.array([-1.0, 0.0, 2.0]))
        array([0., 0., 1.])
    """
    return _active("relu")(x)


def erf(x: Any, /) -> Any:
    """Computes the error function, with derivatives of any order that are finite everywhere.

        y = 2 / sqrt(pi) integral of exp(-t^2) from 0 to x,    dL/dx = dL/dy 2 / sqrt(pi) exp(-x^2)

    It is `jax.scipy.special.erf`, `torch.erf` or `tf.math.erf`. On NumPy it calls Python's `math.erf` for each element,
    because SciPy may not be installed.

    Args:
        x: `float[...]`, or a number. Integers are computed in the default floating dtype of the framework.

    Returns:
        `float[...]` with the shape and the dtype of `x`.

    See Also:
        `keras_cg.ops.sigmoid`, another smooth step.

    Example:
        The Gaussian error linear unit:

        >>> import math
        >>> from keras_cg import ops
        >>> gelu = lambda x: x * (1 + ops.erf(x / math.sqrt(2))) / 2
        >>> round(float(gelu(1.0)), 6)
        0.841345
    """
    return _active("erf")(x)


def softmax(x: Any, /, *, axis: int = -1) -> Any:
    """Computes exponentials along an axis, divided by their sum, without overflow.

        y = exp(x) / sum exp(x),    dL/dx = y (dL/dy - sum(y dL/dy))

    It is `jax.nn.softmax`, `torch.softmax` or `tf.nn.softmax`. An element of minus infinity gets 0. The result is NaN
    where an element is infinity, or all are minus infinity.

    Args:
        x: `float[..., n]`. Integers are computed in the default floating dtype of the framework.
        axis: The axis of the sum.

    Returns:
        `float[..., n]` with the shape and the dtype of `x`.

    See Also:
        `keras_cg.ops.log_softmax`, its logarithm. `keras_cg.recipes.gumbel_softmax`, which draws from it.

    Example:
        >>> import numpy as np
        >>> from keras_cg import ops
        >>> ops.softmax(np.array([1e4, 1e4, -np.inf]))
        array([0.5, 0.5, 0. ])
    """
    return _active("softmax")(x, axis=axis)


def log_softmax(x: Any, /, *, axis: int = -1) -> Any:
    """Computes the logarithm of `softmax`, accurately where that is nearly 0.

        y = x - log(sum exp(x)),    dL/dx = dL/dy - exp(y) sum(dL/dy)

    It is `jax.nn.log_softmax`, `torch.log_softmax` or `tf.nn.log_softmax`. An element of minus infinity gets minus
    infinity. The result is NaN where an element is infinity, or all are minus infinity.

    Args:
        x: `float[..., n]`. Integers are computed in the default floating dtype of the framework.
        axis: The axis of the sum.

    Returns:
        `float[..., n]` with the shape and the dtype of `x`.

    See Also:
        `keras_cg.ops.softmax`. `keras_cg.recipes.log_sum_exp`, the logarithm of the sum.

    Example:
        >>> import numpy as np
        >>> from keras_cg import ops
        >>> ops.log_softmax(np.array([1e4, 0.0]))
        array([     0., -10000.])
    """
    return _active("log_softmax")(x, axis=axis)


def _active(name: str) -> Any:
    """Returns a function of the active backend."""
    try:
        return getattr(namespaces.active, name)
    except AttributeError:
        place = namespaces.elsewhere(name, config.backend())
        raise messages.no_such_op(name, config.backend(), __dir__(), place) from None


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _active(name)


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(namespaces.active)})
