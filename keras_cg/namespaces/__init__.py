"""The functions that rules are written with, on each framework: what `keras_cg.ops` hands out.

`table.py` lists them. The module or folder that is named after a backend has those that its framework lacks, or defines
otherwise; all others are the framework's own. A backend from another package brings a whole namespace of its own. This
package knows frameworks, not gradients, and nothing of the core imports it.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from types import ModuleType
from typing import Any

from keras_cg.engine.contract import Backend
from keras_cg.frontend import config


@functools.cache
def of(backend: Backend) -> Any:
    """The functions of `keras_cg.ops` on a backend."""
    name = backend.__name__.removeprefix("keras_cg.backends.")
    if name in {module.name for module in pkgutil.iter_modules(__path__)}:
        return importlib.import_module(f"{__name__}.{name}").namespace
    return backend.namespace


# Modules of a framework with functions that its namespace does not have, by the name of its backend.
_ELSEWHERE = {
    "jax": ("jax.nn", "jax.scipy.special", "jax.numpy.linalg", "jax.scipy.linalg", "jax.numpy.fft", "jax.lax"),
    "torch": ("torch.nn.functional", "torch.special", "torch.linalg", "torch.fft"),
    "tensorflow": ("tf.nn", "tf.math", "tf", "tf.linalg", "tf.signal"),
    "numpy": ("autograd.scipy.special", "autograd.numpy.linalg", "autograd.scipy.linalg", "autograd.numpy.fft"),
}
# Functions of the array API standard that a framework has by another name.
_RENAMED = {
    "tensorflow": {
        **{f"bitwise_{name}": f"tf.bitwise.{name}" for name in ("invert", "left_shift", "right_shift")},
        "cumulative_prod": "tf.math.cumprod",
        "unique_counts": "tf.unique_with_counts",
        "unique_values": "tf.unique",
    }
}


def elsewhere(name: str, backend: str) -> str | None:
    """Finds a function of the framework that is in another of its modules: `jax.nn.gelu` for `gelu`."""
    if name in _RENAMED.get(backend, ()):
        return _RENAMED[backend][name]
    for place in _ELSEWHERE.get(backend, ()):
        package, *path = place.split(".")
        module = importlib.import_module({"tf": "tensorflow"}.get(package, package))
        try:
            for step in path:
                # TensorFlow (2.21) has submodules as attributes alone, and autograd (1.9) some only where SciPy is.
                module = getattr(module, step, None) or importlib.import_module(f"{module.__name__}.{step}")
        except ImportError:
            continue
        if callable(getattr(module, name, None)):
            return f"{place}.{name}"
    return None


class _Namespaces(ModuleType):
    @property
    def active(self) -> Any:
        """The functions of the active backend.

        It is an attribute for the reason that `config.active` is one: torch.compile evaluates it and does not trace it.
        """
        return of(config.active)


active: Any
sys.modules[__name__].__class__ = _Namespaces
