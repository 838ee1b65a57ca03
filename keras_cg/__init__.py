"""Custom gradients that behave the same on JAX, PyTorch, TensorFlow and NumPy.

`custom_gradient` uses the rule that a function returns as its gradient, or raises an error. `grad` and the other
derivatives, `ops` and `recipes` run on the active backend, which `set_backend` and `use_backend` choose.
"""

import importlib as _importlib

from keras_cg import ops, recipes
from keras_cg.autodiff import grad, hessian, jacobian, jvp, value_and_grad, vjp
from keras_cg.bridge import keras_interop as _keras_interop
from keras_cg.errors import CapturedVariableError, GradientError
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

# The frontend meets Keras's operation, which is built on the frontend: here both are known.
_keras_interop.operation = lambda: _importlib.import_module("keras_cg.keras.operation")


def __getattr__(name: str) -> object:
    if name == "keras":  # It imports Keras, which `import keras_cg` must not.
        return _importlib.import_module("keras_cg.keras")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
