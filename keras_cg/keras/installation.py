"""`install`: `keras_cg.custom_gradient` in place of `keras.ops.custom_gradient`, in all modules of Keras."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import keras

from keras_cg.frontend.decorator import custom_gradient
from keras_cg.keras import messages

__all__ = ["install", "installed", "uninstall"]

NAME = "custom_gradient"

# The modules of Keras (3.15) that have its decorator. `keras.ops` is public. The others are private: there is no public
# way to reach Keras's own layers, which read `keras.src.ops`, and functions that were imported before, which ask
# the backend's module. `_places` raises if one of them is gone.
PLACES = ("keras.ops", "keras._tf_keras.keras.ops", "keras.src.ops", "keras.src.ops.core", "keras.src.backend.core")

_replaced: list[tuple[ModuleType, Any]] = []
# The requests: `install`, and every block of `installed`, in all threads.
_requests: list[object] = []
_lock = threading.Lock()
_INSTALL = object()


def install() -> None:
    """Replaces `keras.ops.custom_gradient` by `keras_cg.custom_gradient`, everywhere in this process.

    From then on, Keras's own quantised layers and libraries that use `keras.ops.custom_gradient` use the decorator of
    `keras_cg`, even if they imported the function before. Functions that are already decorated do not change. A second
    call changes nothing.

    Raises:
        ImportError: This version of Keras lacks one of the modules that have its decorator.

    See Also:
        `keras_cg.keras.installed`, for a block. `keras_cg.keras.uninstall`, which restores Keras's decorator.

    Example:
        >>> import keras, keras_cg
        >>> keras_cg.keras.install()
        >>> keras.ops.custom_gradient is keras_cg.custom_gradient
        True
        >>> keras_cg.keras.uninstall()
    """
    _request(_INSTALL)


def uninstall() -> None:
    """Restores Keras's own decorator after `install`. Without `install`, nothing happens.

    Inside a block of `installed`, it is restored when the block ends.

    See Also:
        `keras_cg.keras.install`

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
    """Replaces Keras's decorator for the length of a `with` block, in all threads.

    A call of `keras_cg.keras.install` lasts longer than the block.

    Returns:
        A context manager.

    Raises:
        ImportError: This version of Keras lacks one of the modules that have its decorator.

    See Also:
        `keras_cg.keras.install`, for the whole process.

    Example:
        >>> import keras, keras_cg
        >>> with keras_cg.keras.installed():
        ...     keras.ops.custom_gradient is keras_cg.custom_gradient
        True
        >>> keras.ops.custom_gradient is keras_cg.custom_gradient
        False
    """
    block = object()
    _request(block)
    try:
        yield
    finally:
        _release(block)


def _request(request: object) -> None:
    with _lock:
        if not _requests:
            for module in _places():
                _replaced.append((module, getattr(module, NAME)))
                setattr(module, NAME, custom_gradient)
        if request not in _requests:
            _requests.append(request)


def _release(request: object) -> None:
    with _lock:
        if request in _requests:
            _requests.remove(request)
        while _replaced and not _requests:
            module, original = _replaced.pop()
            setattr(module, NAME, original)


def _places() -> list[ModuleType]:
    modules = []
    for place in PLACES:
        try:
            # By getattr, because the backend's module is an attribute, and has another name on each backend.
            parent, _, name = place.rpartition(".")
            module = getattr(importlib.import_module(parent), name)
        except (ImportError, AttributeError):
            module = None
        if not callable(getattr(module, NAME, None)):
            raise messages.keras_has_moved(f"{place}.{NAME}", keras.__version__)
        modules.append(module)
    return modules
