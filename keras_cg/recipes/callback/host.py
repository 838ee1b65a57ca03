"""A function of NumPy arrays, called where a framework computes: by a key, which a compiled program can hold."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy

from keras_cg.recipes import messages


class Kind(NamedTuple):
    """What is known of an array before it is there.

    Attributes:
        shape: Its lengths, with None for one that is unknown until run time; None if even their count is.
        dtype: The dtype's plain name: "float32".
    """

    shape: tuple[int | None, ...] | None
    dtype: str


class Owned(Protocol):
    """A function of NumPy arrays, with what it promises of its results."""

    name: str

    def results(self, kinds: Sequence[Kind], count: int) -> list[Kind]:
        """What it gives of arrays of these kinds, of which `count` are arguments and the others upstreams."""

    def run(self, arrays: Sequence[numpy.ndarray], count: int) -> list[numpy.ndarray]:
        """Runs, and raises if the results are not what it promised."""


# Weakly, so that a function may go.
_known: weakref.WeakValueDictionary[str, Owned] = weakref.WeakValueDictionary()


def register(function: Owned) -> str:
    """The key under which a function is found again, as long as somebody holds it."""
    # At random, so that a program which is loaded in another process does not find another function there.
    # No number, of which torch.compile (2.13) would make a variable of the program as soon as there are two.
    key = os.urandom(8).hex()
    _known[key] = function
    return key


class Host(NamedTuple):
    """One call of such a function: what `host` of a backend gets.

    Attributes:
        key: Which function.
        given: How many of the tensors are arguments; those behind them are upstreams.
    """

    key: str
    given: int

    def function(self) -> Owned:
        """The function itself.

        Raises:
            RuntimeError: It is not in this process, or not any more.
        """
        if self.key not in _known:
            raise messages.function_is_gone()
        return _known[self.key]
