"""`install`: our decorator in place of `keras.ops.custom_gradient`, wherever Keras looks it up."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import keras

from keras_cg.decorator import custom_gradient
from keras_cg.keras import messages

__all__ = ["install", "installed", "uninstall"]

NAME = "custom_gradient"

# Where Keras (3.15) keeps its decorator. `keras.ops` is public; the others are private, but there is no public way to
# reach Keras's own layers, which read `keras.src.ops`, and what imported the function before, which asks the backend's
# module. `_places` raises if one of them is gone.
PLACES = ("keras.ops", "keras._tf_keras.keras.ops", "keras.src.ops", "keras.src.ops.core", "keras.src.backend.core")

_replaced: list[tuple[ModuleType, Any]] = []
# Who wants it installed: `install`, and every block of `installed`, in whichever thread.
_holders: list[object] = []
_lock = threading.Lock()
_INSTALL = object()


def install() -> None:
    """Puts `keras_cg.custom_gradient` in the place of `keras.ops.custom_gradient`, everywhere in this process.

    Keras's own quantised layers and libraries that use `keras.ops.custom_gradient` have our gradients from then on,
    without an edit, also if they imported the function before. What was decorated already stays as it is. Doing it
    twice is harmless.

    Raises:
        ImportError: This version of Keras keeps its decorator somewhere else.

    Example:
        >>> import keras, keras_cg
        >>> keras_cg.keras.install()
        >>> keras.ops.custom_gradient is keras_cg.custom_gradient
        True
        >>> keras_cg.keras.uninstall()
    """
    _hold(_INSTALL)


def uninstall() -> None:
    """Takes `install` back: Keras's own decorator is in its place again. Without `install`, nothing happens.

    A block of `installed` that is not over keeps ours until it is.

    Example:
        >>> import keras, keras_cg
        >>> keras_cg.keras.install()
        >>> keras_cg.keras.uninstall()
        >>> keras.ops.custom_gradient is keras_cg.custom_gradient
        False
    """
    _release(_INSTALL)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Installs for the length of a `with` block, in all threads; what `install` installed stays after it.

    Raises:
        ImportError: This version of Keras keeps its decorator somewhere else.

    Example:
        >>> import keras, keras_cg
        >>> with keras_cg.keras.installed():
        ...     keras.ops.custom_gradient is keras_cg.custom_gradient
        True
        >>> keras.ops.custom_gradient is keras_cg.custom_gradient
        False
    """
    block = object()
    _hold(block)
    try:
        yield
    finally:
        _release(block)


def _hold(holder: object) -> None:
    with _lock:
        if not _holders:
            for module in _places():
                _replaced.append((module, getattr(module, NAME)))
                setattr(module, NAME, custom_gradient)
        if holder not in _holders:
            _holders.append(holder)


def _release(holder: object) -> None:
    with _lock:
        if holder in _holders:
            _holders.remove(holder)
        while _replaced and not _holders:
            module, original = _replaced.pop()
            setattr(module, NAME, original)


def _places() -> list[ModuleType]:
    modules = []
    for place in PLACES:
        try:
            # The backend's module is an attribute only: it is called as the backend is.
            parent, _, name = place.rpartition(".")
            module = getattr(importlib.import_module(parent), name)
        except (ImportError, AttributeError):
            module = None
        if not callable(getattr(module, NAME, None)):
            raise messages.keras_has_moved(f"{place}.{NAME}", keras.__version__)
        modules.append(module)
    return modules
