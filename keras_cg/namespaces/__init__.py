"""The array API standard on each framework: the functions that `keras_cg.ops` hands out.

This package knows frameworks, not gradients, and nothing of the core imports it. The module or folder that is named
after a backend puts functions of the standard in the place of those that its framework lacks, or defines otherwise.
A backend from another package brings a whole namespace of its own.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from types import ModuleType
from typing import Any

from keras_cg import config
from keras_cg.engine.contract import Backend


@functools.cache
def of(backend: Backend) -> Any:
    """The functions of `keras_cg.ops` on a backend."""
    name = backend.__name__.removeprefix("keras_cg.backends.")
    if name in {module.name for module in pkgutil.iter_modules(__path__)}:
        return importlib.import_module(f"{__name__}.{name}").namespace
    return backend.namespace


class _Namespaces(ModuleType):
    @property
    def active(self) -> Any:
        """The functions of the active backend.

        It is an attribute for the reason that `config.active` is one: torch.compile evaluates it and does not trace it.
        """
        return of(config.active)


active: Any
sys.modules[__name__].__class__ = _Namespaces
