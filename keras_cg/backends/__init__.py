"""The registry: finds, loads and checks backends, and adds the defaults of `keras_cg.engine.defaults`.

The modules of this folder are the built-in backends. Another package registers an entry point of the group
`keras_cg.backends`: its name is the backend's, and its value is the module. No backend is imported before it is asked
for. `keras_cg.engine.contract` says what a backend defines.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import sys
from typing import TYPE_CHECKING, Any

from keras_cg.engine import defaults, messages, reach
from keras_cg.engine.contract import OPTIONAL, REQUIRED, Backend

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "keras_cg.backends"

# The backends that were asked for already, by name.
loaded: dict[str | None, Backend] = {}
_names: dict[Backend, str] = {}


@functools.cache
def _entry_points() -> dict[str, EntryPoint]:
    # Imported when needed: it takes as long as the rest of this package.
    import importlib.metadata

    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


@functools.cache
def _built_in() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


@functools.cache
def names() -> tuple[str, ...]:
    """Returns every backend's name: the modules of this folder, then the entry points."""
    return (*_built_in(), *sorted(set(_entry_points()) - set(_built_in())))


def name_of(backend: Backend) -> str:
    """Returns the name under which a backend was loaded."""
    return _names[backend]


def _framework(name: str) -> str:
    """Returns the module of a backend's framework: a built-in backend has its name."""
    return name if name in _built_in() else _entry_points()[name].module.partition(".")[0]


def requirement(name: str) -> str:
    """Returns what pip must install for a backend: an extra of this package, or the package of the entry point."""
    if name in _built_in():
        return f"keras-cg[{name}]"
    distribution = _entry_points()[name].dist
    return name if distribution is None else distribution.name


def installed() -> tuple[str, ...]:
    """Returns the backends whose framework is installed here, and imports none."""
    return tuple(name for name in names() if importlib.util.find_spec(_framework(name)) is not None)


def load(name: str, source: str) -> Backend:
    """Returns the module of the backend `name`, and imports it at its first use; `source` says who chose it.

    Raises ValueError if there is no such backend, and ImportError if it does not start or its module is incomplete.
    """
    if name in loaded:
        return loaded[name]
    if name not in _built_in() and name not in names():
        raise messages.unknown_backend(name, source, names())
    module = f"{__name__}.{name}" if name in _built_in() else _entry_points()[name].module
    try:
        backend: Any = importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and not _is_part(error.name):
            raise messages.missing_backend(name, source, error.name, requirement(name)) from error
        version = getattr(sys.modules.get(_framework(name)), "__version__", None)
        raise messages.broken_backend(name, source, error, requirement(name), version) from error
    missing = [attribute for attribute in REQUIRED if not hasattr(backend, attribute)]
    if missing:
        raise messages.incomplete_backend(name, missing)
    for attribute in OPTIONAL:
        if not hasattr(backend, attribute):
            default = getattr(defaults, attribute)
            setattr(backend, attribute, functools.partial(default, backend) if callable(default) else default)
    _names[backend] = name
    reach.note_tensors(backend.is_tensor)
    return loaded.setdefault(name, backend)


def _is_part(module: str | None) -> bool:
    """Whether a missing module belongs to a package that is installed, in another release."""
    package = (module or "").partition(".")[0]
    return package != module and importlib.util.find_spec(package) is not None


def owner(kind: type) -> str | None:
    """Returns the backend whose tensors are of the class `kind`, if its framework is imported already.

    It takes the class and not the value, because torch.compile can then use the result as a constant.
    """
    for name in names():
        if _framework(name) in sys.modules and issubclass(kind, load(name, "sys.modules").tensors):
            return name
    return None
