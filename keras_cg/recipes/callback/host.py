"""A function of NumPy arrays, called where a framework computes: by a key, which a compiled program can hold."""

from __future__ import annotations

import functools
import importlib
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy

from keras_cg import backends, config
from keras_cg.recipes import messages

# The frameworks that compile or batch. Others are called by way of NumPy, at once.
_FRAMEWORKS = ("jax", "tensorflow", "torch")


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


def call(host: Host, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The results of a function of NumPy arrays, also where the framework compiles or batches; without a gradient."""
    found: tuple[Any, ...] = _call_on(backends.name_of(config.active))(host, tensors)
    return found


@functools.cache
def _call_on(backend: str) -> Callable[..., tuple[Any, ...]]:
    if backend not in _FRAMEWORKS:
        return _at_once
    return importlib.import_module(f"keras_cg.recipes.callback.{backend}").call  # type: ignore[no-any-return]


def _at_once(host: Host, tensors: Sequence[Any]) -> tuple[Any, ...]:
    backend = config.active
    arrays = host.function().run([backend.to_numpy(tensor) for tensor in tensors], host.given)
    return tuple(map(backend.asarray, arrays))
