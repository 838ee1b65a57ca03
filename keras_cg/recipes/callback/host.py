"""Functions of NumPy arrays, registered under a key that a compiled program can contain."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy

from keras_cg.recipes import messages


class Kind(NamedTuple):
    """The shape and dtype of an array that a program will compute.

    Attributes:
        shape: Its lengths, with None for one that is unknown until run time; None if the rank is unknown.
        dtype: The dtype's plain name: "float32".
    """

    shape: tuple[int | None, ...] | None
    dtype: str


class HostFunction(Protocol):
    """A function of NumPy arrays that tells the kinds of its results before it runs."""

    name: str

    def results(self, kinds: Sequence[Kind], count: int) -> list[Kind]:
        """Returns the kinds of the results for arrays of these kinds: `count` arguments, then upstreams."""

    def run(self, arrays: Sequence[numpy.ndarray], count: int) -> list[numpy.ndarray]:
        """Runs the function.

        Raises:
            ValueError: A result has another kind than promised.
        """


# Weak references, because a program must not keep a function alive that the user has dropped.
_registered: weakref.WeakValueDictionary[str, HostFunction] = weakref.WeakValueDictionary()


def register(function: HostFunction) -> str:
    """Returns a key for a function, which `Host.function` looks up as long as the function exists."""
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

    def function(self) -> HostFunction:
        """Returns the function.

        Raises:
            RuntimeError: It is not in this process, or no longer exists.
        """
        if self.key not in _registered:
            raise messages.function_is_gone()
        return _registered[self.key]
