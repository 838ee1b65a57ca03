"""Questions about Keras that do not import it: its variables, its placeholders, its backend."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

# Imports `keras_cg.keras.operation` and Keras. `keras_cg/__init__.py` sets it, because that file builds on this one.
operation: Callable[[], Any]


def keras() -> Any:
    """Returns Keras if it is imported, else None. While it is being imported, it lacks some of its names."""
    return sys.modules.get("keras")


def chosen() -> str | None:
    """Returns the name of the backend that Keras runs on, if Keras is imported."""
    module: Any = getattr(keras(), "backend", None)
    return module.backend() if hasattr(module, "backend") else None


def choice() -> tuple[str, str] | None:
    """Returns the name of the backend that Keras runs on, and where that choice came from, if Keras is imported."""
    name = chosen()
    if name is None:
        return None
    if os.environ.get("KERAS_BACKEND") == name:
        return name, "the environment variable KERAS_BACKEND"
    return name, "Keras's file keras.json, or its default"


def variables() -> tuple[Any, ...]:
    """Returns the class of Keras's variables, for `isinstance`; () without Keras."""
    kind = getattr(sys.modules.get("keras"), "Variable", None)
    return () if kind is None else (kind,)


def holders() -> tuple[Any, ...]:
    """Returns the classes of Keras with a state, its variables and layers; () without Keras."""
    layer = getattr(getattr(keras(), "layers", None), "Layer", None)
    return variables() if layer is None else (*variables(), layer)


def unwrap(leaf: Any) -> Any:
    """Returns the value of a Keras variable; any other leaf unchanged."""
    return leaf.value if isinstance(leaf, variables()) else leaf


def is_symbolic(leaves: Sequence[Any]) -> bool:
    """Whether there is a placeholder of Keras's functional API among some leaves."""
    module = keras()
    symbolic = None if module is None else getattr(module, "KerasTensor", None)
    return symbolic is not None and any(isinstance(leaf, symbolic) for leaf in leaves)
