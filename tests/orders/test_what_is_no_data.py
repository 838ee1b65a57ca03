"""A rule may hold any object: one that each run makes again is right in second order, and another one is refused."""

import array
import collections
import contextvars
import ctypes
import dataclasses
import decimal
import enum
import fractions
import functools
import io
import itertools
import logging
import operator
import pathlib
import random
import re
import threading
import types
import weakref

import numpy as np
import pytest

from keras_cg import custom_gradient, grad

REFUSED = "ran again for a derivative, and its rule is not that of the first run"


def function(u=1):
    return u


class Slots:
    __slots__ = ("__weakref__", "k")

    def __init__(self, k=1):
        self.k = k


class Private:
    def __init__(self, k):
        self.__k = k

    def get(self):
        return self.__k


class NoEquality:
    """It cannot be compared, has no truth and any attribute."""

    __hash__ = None

    def __eq__(self, other):
        raise TypeError

    __bool__ = __eq__


Point = collections.namedtuple("Point", "k")
Frozen = dataclasses.make_dataclass("Frozen", ["k"], frozen=True, slots=True)
Member = enum.Enum("Member", {"TWO": 2.0, "FIVE": 5.0})
KEPT = {k: Slots(k) for k in (2.0, 5.0)}


def contains_itself():
    kept = [1]
    kept.append(kept)
    return kept


MADE_AGAIN = {
    **{kind.__name__: kind for kind in (Slots, NoEquality, object, set, dict, threading.Lock, threading.Event)},
    **{kind.__name__: kind for kind in (threading.local, threading.Condition, itertools.count, collections.Counter)},
    **{kind.__name__: kind for kind in (weakref.WeakKeyDictionary, io.StringIO, contextvars.copy_context)},
    "thread": lambda: threading.Thread(target=function),
    "random numbers": lambda: random.Random(1),
    "random numbers of NumPy": lambda: np.random.RandomState(1),
    "generator": lambda: (k for k in (1, 2)),
    "iterator": lambda: iter([1, 2]),
    "cached function": lambda: functools.lru_cache(lambda k: k),
    "builtin method": lambda: [1].append,
    "itself": contains_itself,
    "not a number": lambda: float("nan"),
    "keys of every kind": lambda: {(1, 2): 3, Member.TWO: 4, None: 5, b"a": 6},
    "array of objects": lambda: np.array([[1], None], object),
    "record array": lambda: np.zeros(2, [("a", float), ("b", int)]),
    "class": lambda: type("Made", (), {"k": 1, "f": lambda self: 1})(),
    "enum": lambda: enum.Enum("Made", "A B").A,
    "exception": lambda: ValueError(1),
    "logger": lambda: logging.LoggerAdapter(logging.getLogger("a_test"), {"a": 1}),
    "file": lambda: pathlib.Path("a"),
    "alias": lambda: (list[int], int | str, ..., re.compile("a")),
    "finalizer": lambda: weakref.finalize(KEPT[2.0], function),
    "module": lambda: types.ModuleType("made"),
    "memory of C": lambda: (ctypes.c_double * 2)(1.0, 2.0),
}


@pytest.mark.parametrize("name", MADE_AGAIN)
def test_what_each_run_makes_again(eager, name):
    @custom_gradient
    def f(x):
        kept = MADE_AGAIN[name]()
        return x * 1, lambda upstream: 7 * upstream * x * isinstance(kept, object)

    assert float(eager.array(grad(grad(f))(eager.tensor(np.float32(2.0))))) == 7.0


# How a rule holds k, and how it reads it.
ANOTHER = {
    "set": (lambda k: {k}, lambda kept: next(iter(kept))),
    "key": (lambda k: {(k,): 1}, lambda kept: next(iter(kept))[0]),
    "slot": (Slots, lambda kept: kept.k),
    "private attribute": (Private, lambda kept: kept.get()),
    "frozen dataclass": (Frozen, lambda kept: kept.k),
    "namedtuple": (Point, lambda kept: kept.k),
    "member of an enum": (Member, lambda kept: kept.value),
    "text of an object": (lambda k: Slots(str(k)), lambda kept: float(kept.k)),
    "weak reference": (lambda k: weakref.ref(KEPT[k]), lambda kept: kept().k),
    "deque": (lambda k: collections.deque([k]), lambda kept: kept[0]),
    "chain of dicts": (lambda k: collections.ChainMap({"k": k}), lambda kept: kept["k"]),
    "proxy of a dict": (lambda k: types.MappingProxyType({"k": k}), lambda kept: kept["k"]),
    "values of a dict": (lambda k: {"k": k}.values(), lambda kept: next(iter(kept))),
    "repeat": (itertools.repeat, next),
    "method caller": (lambda k: operator.methodcaller("__mul__", k), lambda kept: kept(1.0)),
    "bound built-in": (lambda k: k.__add__, lambda kept: kept(0.0)),
    "globals of a function": (lambda k: eval("lambda: k", {"k": k}), lambda kept: kept()),
    "code of a function": (lambda k: eval(f"lambda: {k}"), lambda kept: kept()),
    "attribute of a class": (lambda k: type("Made", (), {"k": k}), lambda kept: kept.k),
    "property of a class": (lambda k: type("Made", (), {"k": property(lambda self: k)})(), lambda kept: kept.k),
    "decimal": (decimal.Decimal, float),
    "fraction": (fractions.Fraction, float),
    "range": (lambda k: range(int(k)), lambda kept: float(len(kept))),
    "kind of a number": (lambda k: 1 if k == 2.0 else 1.0, lambda kept: 2.0 if isinstance(kept, int) else 5.0),
    "slice": (lambda k: slice(k, None), lambda kept: kept.start),
    "exception": (ValueError, lambda kept: kept.args[0]),
    "array of objects": (lambda k: np.array([k, None], object), lambda kept: kept[0]),
    "array of C": (lambda k: array.array("d", [k]), lambda kept: kept[0]),
    "memory of C": (ctypes.c_double, lambda kept: kept.value),
    "pattern": (lambda k: re.compile(str(k)), lambda kept: float(kept.pattern)),
    "cell": (types.CellType, lambda kept: kept.cell_contents),
}


@pytest.mark.only("numpy", "tensorflow", "torch")
@pytest.mark.parametrize(("hold", "read"), ANOTHER.values(), ids=ANOTHER)
def test_what_is_another_in_another_run(eager, hold, read):
    """On JAX there is no other run."""
    runs = []

    @custom_gradient
    def f(x):
        kept = hold(5.0 if runs else 2.0)
        runs.append(x)
        return x * 1, lambda upstream: upstream * x * read(kept)

    with pytest.raises(RuntimeError, match=REFUSED):
        grad(grad(f))(eager.tensor(np.float32(2.0)))
