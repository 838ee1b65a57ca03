"""Custom gradients that behave the same on JAX, PyTorch, TensorFlow and NumPy.

`custom_gradient` uses the rule that a function returns as its gradient, or raises an error. `grad` and the other
derivatives, `ops` and `recipes` run on the active backend, which `set_backend` and `use_backend` choose.
"""

import importlib as _importlib
import typing as _typing

from keras_cg import ops
from keras_cg.autodiff import grad, hessian, jacobian, jvp, value_and_grad, vjp
from keras_cg.bridge import keras_interop as _keras_interop
from keras_cg.errors import CapturedVariableError, GradientError
from keras_cg.frontend import config as _config
from keras_cg.frontend.config import available_backends, backend, set_backend, use_backend
from keras_cg.frontend.decorator import custom_gradient

__version__ = "0.4.0"

__all__ = [
    "CapturedVariableError",
    "GradientError",
    "available_backends",
    "backend",
    "custom_gradient",
    "grad",
    "hessian",
    "jacobian",
    "jvp",
    "ops",
    "recipes",
    "set_backend",
    "use_backend",
    "value_and_grad",
    "vjp",
]

_config.warn_of_unknown_variables()

# The frontend meets Keras's operation, which is built on the frontend: here both are known.
_keras_interop.operation = lambda: _importlib.import_module("keras_cg.keras.operation")


if _typing.TYPE_CHECKING:
    from keras_cg import recipes


def __getattr__(name: str) -> object:
    # `keras_cg.keras` imports Keras, and the recipes take a fifth of the time of `import keras_cg`.
    if name in ("keras", "recipes"):
        return _importlib.import_module(f"keras_cg.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "keras", "recipes"})
