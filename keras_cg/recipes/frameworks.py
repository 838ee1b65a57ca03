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


@functools.cache
def _file(recipe: str, backend: str) -> Any:
    name = f"keras_cg.recipes.{recipe}.{backend}"
    return importlib.import_module(name if importlib.util.find_spec(name) else f"keras_cg.recipes.{recipe}.generic")


def _active(recipe: str, doc: str) -> property:
    return property(lambda this: _file(recipe, backends.name_of(config.active)), doc=doc)


class _Frameworks(ModuleType):
    autograd_function = _active("autograd_function", "The module with `forward(function, *args, inputs=inputs)`.")
    checkpoint = _active("checkpoint", "The module with `recompute(function, tensors)`.")
    callback = _active("callback", "The module with `call(host, tensors)`.")
    forward = _active("forward", "The module with `transposed(name, push, zeros, upstream)`.")


this: Any = sys.modules[__name__]
this.__class__ = _Frameworks
