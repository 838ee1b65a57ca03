"""Functions of NumPy arrays, registered under a key that a compiled program can contain."""

from __future__ import annotations

import os
import weakref
from typing import Any, NamedTuple

from keras_cg.recipes import messages


class Kind(NamedTuple):
    """The shape and dtype of an array that a program will compute.

    Attributes:
        shape: Its lengths, with None for one that is unknown until run time; None if the rank is unknown.
        dtype: The dtype's plain name: "float32".
    """

    shape: tuple[int | None, ...] | None
    dtype: str


# Weak references, because a program must not keep a function alive that the user has dropped.
_registered: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def register(function: Any) -> str:
    """Returns a key for a function, by which `Host.function` finds it as long as it exists."""
    # Random, because a program that is loaded in another process must not find another function there. A string,
    # because torch.compile (2.13) would make a number a variable of the program as soon as there are two.
    key = os.urandom(8).hex()
    _registered[key] = function
    return key


class Host(NamedTuple):
    """One call of a registered function.

    Attributes:
        key: The key of the function.
        arguments: The number of arguments among the tensors; the tensors behind them are upstreams.
    """

    key: str
    arguments: int

    def function(self) -> Any:
        """Returns the function.

        Raises:
            RuntimeError: It is not in this process, or no longer exists.
        """
        if self.key not in _registered:
            raise messages.function_is_gone()
        return _registered[self.key]
