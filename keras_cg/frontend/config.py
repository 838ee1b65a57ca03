"""Which backend is active, and why."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from keras_cg import backends
from keras_cg.bridge import keras_interop
from keras_cg.engine import messages as engine_messages
from keras_cg.engine.contract import Backend
from keras_cg.frontend import messages

__all__ = ["available_backends", "backend", "set_backend", "use_backend"]

# The second is read where a traceback is shortened.
_VARIABLES = ("KERAS_CG_BACKEND", "KERAS_CG_TRACEBACK")

# The name, and where that choice came from.
_in_context: ContextVar[tuple[str, str] | None] = ContextVar("keras_cg_backend", default=None)
_in_process: str | None = None

# The environment as the system has it: `os.environ` takes 1.8 us to say that a variable is not set, as it raises and
# catches an error first, and every call asks. The names are not public; without them, `os.environ` is asked.
_environment: Any = getattr(os.environ, "_data", os.environ)
_KEY: Any = "KERAS_CG_BACKEND" if _environment is os.environ else os.environ.encodekey("KERAS_CG_BACKEND")


def warn_of_unknown_variables() -> None:
    """Warns of environment variables that do not exist, at the line that imports the package whose module calls this.

    Python leaves the frames of its import out of the level.
    """
    for name in os.environ:
        if name.startswith("KERAS_CG_") and name not in _VARIABLES:
            warnings.warn(messages.unknown_variable(name, _VARIABLES), stacklevel=3)


def resolve() -> tuple[str, str]:
    """Returns the name of the active backend and where that choice came from."""
    if chosen := _in_context.get():
        return chosen
    if _in_process:
        return _in_process, "keras_cg.set_backend()"
    if name := os.environ.get("KERAS_CG_BACKEND"):
        return name, "the environment variable KERAS_CG_BACKEND"
    if choice := keras_interop.choice():
        return choice[0], "keras.backend.backend()"
    if name := os.environ.get("KERAS_BACKEND"):
        return name, "the environment variable KERAS_BACKEND"
    return "numpy", "the default"


def backend() -> str:
    """Returns the name of the active backend.

    It is the first of: the innermost `use_backend`, `set_backend`, the environment variable `KERAS_CG_BACKEND`, Keras's
    own choice (if Keras is imported, else the variable `KERAS_BACKEND`), and `"numpy"`. It is read whenever a decorated
    function is called, not when it is decorated.

    Returns:
        The name, such as `"jax"`.

    Raises:
        ValueError: The choice names no backend.

    See Also:
        `keras_cg.set_backend` and `keras_cg.use_backend`, which choose it.

    Example:
        >>> import keras_cg
        >>> with keras_cg.use_backend("numpy"):
        ...     keras_cg.backend()
        'numpy'
    """
    return _known(*resolve())


def set_backend(name: str | None) -> None:
    """Chooses the backend for the whole process.

    Args:
        name: A backend's name, or None to return to the environment's choice.

    Raises:
        ValueError: No backend has that name.

    See Also:
        `keras_cg.use_backend`, for a block. `keras_cg.available_backends`, for the names.

    Example:
        >>> import keras_cg
        >>> keras_cg.set_backend("numpy")
        >>> keras_cg.backend()
        'numpy'
        >>> keras_cg.set_backend(None)
    """
    global _in_process
    _in_process = None if name is None else _known(name, "keras_cg.set_backend()")


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Chooses the backend inside a `with` block, for this thread and this asyncio task alone.

    Args:
        name: A backend's name.

    Returns:
        A context manager, which also works as a decorator.

    Raises:
        ValueError: No backend has that name.

    See Also:
        `keras_cg.set_backend`, for the whole process.

    Example:
        >>> import keras_cg
        >>> with keras_cg.use_backend("numpy"):
        ...     keras_cg.backend()
        'numpy'
    """
    source = "keras_cg.use_backend()"
    token = _in_context.set((_known(name, source), source))
    try:
        yield
    finally:
        _in_context.reset(token)


def available_backends() -> tuple[str, ...]:
    """Returns the names of the backends whose framework is installed, and imports none of them.

    Returns:
        A tuple of names. The built-in backends come first, then those that other packages register, each group in
        alphabetical order.

    See Also:
        `keras_cg.backend`, the active one.

    Example:
        >>> import keras_cg
        >>> "numpy" in keras_cg.available_backends()
        True
    """
    return backends.installed()


def under(backend: Backend, fun: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls the user's code under the backend of its call, whichever is active by then, in whichever thread."""
    if this.known is backend:
        return fun(*args, **kwargs)
    token = _in_context.set((backends.name_of(backend), "the call of a decorated function that is running"))
    try:
        return fun(*args, **kwargs)
    finally:
        _in_context.reset(token)


def _known(name: str, source: str) -> str:
    if name not in backends.names():
        raise engine_messages.unknown_backend(name, source, backends.names())
    return name


# The backends by what the environment has for their names.
_by_variable: dict[Any, Backend] = {}


class _Config(ModuleType):
    @property
    def known(self) -> Any:
        """The module of the active backend, or None where it was not imported yet.

        It is an attribute because `torch.compile` can trace neither a context variable nor an import. It evaluates a
        module's attributes for real, and again at every call. A `__getattr__` of the module would be slower.
        """
        chosen = _in_context.get()
        if chosen is None and _in_process is None and (variable := _environment.get(_KEY)):
            return _by_variable.get(variable)
        return backends.loaded.get(chosen[0] if chosen is not None else _in_process or keras_interop.chosen())

    @property
    def active(self) -> Any:
        """The module of the active backend, imported at its first use."""
        chosen = _in_context.get()
        if chosen is None and _in_process is None and (variable := _environment.get(_KEY)):
            if (found := _by_variable.get(variable)) is None:
                found = _by_variable[variable] = backends.load(*resolve())
            return found
        found = backends.loaded.get(chosen[0] if chosen is not None else _in_process or keras_interop.chosen())
        return backends.load(*resolve()) if found is None else found


active: Any
# The module itself, so that torch.compile reads `active` as an attribute in this file, too.
this: Any = sys.modules[__name__]
this.__class__ = _Config
