"""The files of recipes that know a framework: that of the active backend, or `generic` if it has none.

They are attributes of a module, because torch.compile traces no import, and evaluates such an attribute for real.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from keras_cg import backends
from keras_cg.frontend import config


class _Frameworks(ModuleType):
    @property
    def checkpoint(self) -> Any:
        """The module with `recompute(function, tensors)`."""
        return _file("checkpoint", backends.name_of(config.active))

    @property
    def callback(self) -> Any:
        """The module with `call(host, tensors)`."""
        return _file("callback", backends.name_of(config.active))

    @property
    def forward(self) -> Any:
        """The module with `transposed(name, push, zeros, upstream)`."""
        return _file("forward", backends.name_of(config.active))


@functools.cache
def _file(recipe: str, backend: str) -> Any:
    name = f"keras_cg.recipes.{recipe}.{backend}"
    return importlib.import_module(name if importlib.util.find_spec(name) else f"keras_cg.recipes.{recipe}.generic")


this: Any = sys.modules[__name__]
this.__class__ = _Frameworks
