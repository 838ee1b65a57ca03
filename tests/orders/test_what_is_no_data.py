"""A rule may hold any object: one that each run makes again is right in second order, and another one is refused.

What is data is compared by its values, before any rule is called. What is no data is neither believed nor refused: then
both rules are called.
"""

import array
import collections
import contextvars
import ctypes
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import io
import itertools
import logging
import operator
import pathlib
import queue
import random
import re
import threading
import types
import weakref

import numpy as np
import pytest
from outcomes import right_or_refused

from keras_cg import custom_gradient, grad

REFUSED = "ran again for a derivative, and its rule is not that of the first run"


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
X = np.array([1.0, 2.0, 3.0])
KEPT = {k: Slots(k) for k in (2.0, 5.0)}


def contains_itself(k=1):
    kept = [k]
    kept.append(kept)
    return kept


def one_or_two(k):
    one = [1]
    return [one, one if k == 2.0 else [2]]


# Of numbers that differ by rounding alone, another one in each run.
ROUNDING = itertools.cycle([0.0, 1e-15])
UNKNOWN = {
    **{kind.__name__: kind for kind in (object, threading.Lock, threading.Event, queue.SimpleQueue)},
    **{kind.__name__: kind for kind in (threading.local, threading.Condition, itertools.count)},
    **{kind.__name__: kind for kind in (weakref.WeakKeyDictionary, io.StringIO, contextvars.copy_context)},
    "thread": lambda: threading.Thread(target=print),
    "random numbers": lambda: random.Random(1),
    "random numbers of NumPy": lambda: np.random.RandomState(1),
    "hash": lambda: hashlib.sha256(b"a"),
    "generator": lambda: (k for k in (1, 2)),
    "iterator": lambda: iter([1, 2]),
    "cached function": lambda: functools.lru_cache(lambda k: k),
    "keys of every kind": lambda: {(1, 2): 3, Member.TWO: 4, None: 5, b"a": 6},
    "set of objects": lambda: {Member.TWO},
    "exception": lambda: ValueError(1),
    "alias": lambda: (list[int], int | str, ..., re.compile("a")),
    "module": lambda: types.ModuleType("made"),
    "memory of C": lambda: (ctypes.c_double * 2)(1.0, 2.0),
    "what a class of C holds": lambda: type("Drawn", (random.Random,), {})(1),
    # A name that a library counts.
    "text of an object": lambda: types.SimpleNamespace(name=f"dense_{next(ROUNDING)}"),
}
DATA = {
    **{kind.__name__: kind for kind in (Slots, NoEquality, set, dict, collections.Counter)},
    "logger": lambda: logging.LoggerAdapter(logging.getLogger("a_test"), {"a": 1}),
    "enum": lambda: enum.Enum("Made", "A B").A,
    "file": lambda: pathlib.Path("a"),
    "finalizer": lambda: weakref.finalize(KEPT[2.0], print),
    "builtin method": lambda: [1].append,
    "itself": contains_itself,
    "not a number": lambda: float("nan"),
    "not a number of NumPy": lambda: np.float32("nan"),
    "array that is rounded otherwise": lambda: np.array([1.0, np.nan, 3.0]) * (1 + next(ROUNDING)),
    "array of objects": lambda: np.array([[1], None], object),
    "record array": lambda: np.array([(2.0, np.nan)], [("a", float), ("b", float)]),
    "masked array": lambda: np.ma.masked_array([2.0, 1e16 * next(ROUNDING)], mask=[0, 1]),
    "array of times": lambda: np.array(["2020-01-01", "NaT"], "M8[D]"),
    "dtype": lambda: np.dtype("f4"),
    "class": lambda: type("Made", (), {"k": 1, "f": lambda self: 1})(),
    "range": lambda: range(3),
    "frozen set": lambda: frozenset("ab"),
    "date": lambda: datetime.date(2020, 1, 2),
    "bytes": lambda: bytearray(b"a"),
    "deque": lambda: collections.deque([1, 2.0]),
    "dict with a factory": lambda: collections.defaultdict(list, a=1),
    "partial": lambda: functools.partial(max, 1, key=abs),
    "generated code": lambda: eval("lambda: k", {"k": 1}),
}


def function(make, read):
    """One whose rule holds what `make` gives for the number of the run."""
    runs = []

    @custom_gradient
    def f(x):
        runs.append(x)
        kept = make(len(runs))
        return x * 1, lambda upstream: upstream * x * read(kept)

    return f


def second_derivative(eager, make, read=lambda kept: 7.0):
    """That of such a function; and how often its rule was called."""
    calls = []
    f = function(make, lambda kept: calls.append(kept) or read(kept))
    return float(eager.array(grad(grad(f))(eager.tensor(np.float32(2.0))))), len(calls)


@pytest.mark.parametrize("name", [*DATA, *UNKNOWN])
def test_what_each_run_makes_again(eager, name):
    found, calls = second_derivative(eager, lambda run: (DATA | UNKNOWN)[name]())
    assert found == 7.0
    if eager.name != "jax":  # where there is no other run
        assert (calls == second_derivative(eager, lambda run: 7.0)[1]) == (name in DATA)


# Two values of another structure, neither believed nor refused where the rule gives the same.
OTHERWISE = {
    "length": ([1], [1, 2]),
    "keys": ({"a": 1}, {"b": 1}),
    "order of keys": ({"a": 1, "b": 1}, {"b": 1, "a": 1}),
    "kind": ([1], (1,)),
    "filled cache": (types.SimpleNamespace(a=1), types.SimpleNamespace(a=1, b=2)),
    "special methods": [type("Made", (), {"__getitem__": eval(f"lambda self, i: {k}")}) for k in (2, 3)],
    "names of classes": (type("One", (), {}), type("Two", (), {})),
    "shapes of objects": (np.array([[1, 2]], object), np.array([[1], [2]], object)),
    "array and number": (np.ones(()), 1.0),
    "None and number": (None, 1.0),
    "integer and float": (1, 1.0),
    "sets": ({1, "a"}, {"a", 2}),
    "code": (eval("lambda: 2"), eval("lambda: 5")),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_another_structure_that_makes_no_difference(eager, name):
    assert second_derivative(eager, lambda run: OTHERWISE[name][min(run, 2) - 1])[0] == 7.0


# How a rule holds k, which is 2 and then 5, and how it reads it; and what is said of it where it is data.
ANOTHER = {
    "set": (lambda k: {k}, lambda kept: next(iter(kept))),
    "key": (lambda k: {(k,): 1}, lambda kept: next(iter(kept))[0]),
    "private attribute": (Private, lambda kept: kept.get(), "kept._Private__k was 2.0 and is 5.0"),
    "frozen dataclass": (Frozen, lambda kept: kept.k, "kept.k was 2.0 and is 5.0"),
    "namedtuple": (Point, lambda kept: kept.k, "kept[0] was 2.0 and is 5.0"),
    "member of an enum": (Member, lambda kept: kept.value),
    "text of an object": (lambda k: Slots(str(k)), lambda kept: float(kept.k)),
    "weak reference": (lambda k: weakref.ref(KEPT[k]), lambda kept: kept().k),
    "chain of dicts": (lambda k: collections.ChainMap({"k": k}), lambda kept: kept["k"]),
    "proxy of a dict": (lambda k: types.MappingProxyType({"k": k}), lambda kept: kept["k"]),
    "values of a dict": (lambda k: {"k": k}.values(), lambda kept: next(iter(kept))),
    "repeat": (itertools.repeat, next),
    "method caller": (lambda k: operator.methodcaller("__mul__", k), lambda kept: kept(1.0)),
    "code of a function": (lambda k: eval(f"lambda: {k}"), lambda kept: kept()),
    "property of a class": (lambda k: type("Made", (), {"k": property(lambda self: k)})(), lambda kept: kept.k),
    "decimal": (decimal.Decimal, float),
    "fraction": (fractions.Fraction, float),
    "range": (lambda k: range(int(k)), lambda kept: float(len(kept))),
    "kind of a number": (lambda k: 1 if k == 2.0 else 1.0, lambda kept: 2.0 if isinstance(kept, int) else 5.0),
    "exception": (ValueError, lambda kept: kept.args[0]),
    "array of C": (lambda k: array.array("d", [k]), lambda kept: kept[0]),
    "memory of C": (ctypes.c_double, lambda kept: kept.value),
    "pattern": (lambda k: re.compile(str(k)), lambda kept: float(kept.pattern)),
    "cell": (types.CellType, lambda kept: kept.cell_contents),
}
# What is told of data, which is refused though the rule gives the same.
TOLD = {
    "float": (lambda k: k, "kept was 2.0 and is 5.0"),
    "last digit": (lambda k: float(np.nextafter(2.0, k)), "kept was 2.0 and is 2.0000"),
    "not a number": (lambda k: k if k == 2.0 else float("nan"), "kept was 2.0 and is nan"),
    "complex": (lambda k: complex(1, k), "kept was (1+2j) and is (1+5j)"),
    "flag": (lambda k: k == 2.0, "kept was True and is False"),
    "text": (lambda k: "a" if k == 2.0 else "b", "kept was 'a' and is 'b'"),
    "array": (lambda k: X + k, "kept is another float64[3]"),
    "dtype": (lambda k: X if k == 2.0 else X.astype(np.float32), "kept was float64[3] and is float32[3]"),
    "shape": (lambda k: X[: int(k)], "kept was float64[2] and is float64[3]"),
    "one object and two": (one_or_two, "kept[1][0] was 1 and is 2"),
    "itself": (contains_itself, "kept[0] was 2.0 and is 5.0"),
    "in a longer list": (lambda k: [k] * int(k), "kept[0] was 2.0 and is 5.0"),
    "in a dict with other keys": (lambda k: {"a": k, k: 1}, "kept['a'] was 2.0 and is 5.0"),
    "slot": (Slots, "kept.k was 2.0 and is 5.0"),
    "attribute": (lambda k: types.SimpleNamespace(a=k), "kept.a was 2.0 and is 5.0"),
    "attribute of a class": (lambda k: type("Made", (), {"k": k}), "kept.k was 2.0 and is 5.0"),
    "bound method": (lambda k: Private(k).get, "kept.__self__._Private__k was 2.0 and is 5.0"),
    "bound built-in": (lambda k: k.__add__, "kept.__self__ was 2.0 and is 5.0"),
    "partial": (lambda k: functools.partial(max, k), "kept[0] was 2.0 and is 5.0"),
    "globals of a function": (lambda k: eval("lambda: k", {"k": k}), "k was 2.0 and is 5.0"),
    "default": (lambda k: lambda n=k: n, "default 0 was 2.0 and is 5.0"),
    "keyword default": (lambda k: lambda *, n=k: n, "n was 2.0 and is 5.0"),
    "slice": (lambda k: slice(k, None), "kept.start was 2.0 and is 5.0"),
    "deque": (lambda k: collections.deque([k]), "kept[0] was 2.0 and is 5.0"),
    "factory": (
        lambda k: collections.defaultdict(functools.partial(int, k)),
        "kept.default_factory[0] was 2.0 and is 5.0",
    ),
    "mask": (lambda k: np.ma.masked_array([2.0, 5.0], mask=[k == 2.0, k == 5.0]), "kept.mask is another bool[2]"),
    "field": (lambda k: np.array([(k,)], [("a", "f8")]), "kept['a'] is another float64[1]"),
    "time": (lambda k: np.array([int(k)], "M8[D]"), "kept.view is another int64[1]"),
    "array of objects": (lambda k: np.array([k, None], object), "kept[0] was 2.0 and is 5.0"),
}


def another(name):
    """The function of a name in these tables, and what is said of it."""
    hold, read, told = (*ANOTHER[name], "")[:3] if name in ANOTHER else (TOLD[name][0], lambda kept: 7.0, TOLD[name][1])
    return (lambda run: hold(2.0 if run == 1 else 5.0)), read, told


@pytest.mark.only("numpy", "tensorflow", "torch")
@pytest.mark.parametrize("name", [*ANOTHER, *TOLD])
def test_what_is_another_in_another_run(eager, name):
    """On JAX there is no other run."""
    *made, told = another(name)
    with pytest.raises(RuntimeError, match=REFUSED) as caught:
        second_derivative(eager, *made)
    assert told in str(caught.value)


# --- torch: hooks, under which the rule is not kept ------------------------------------------------------------------


def gradient_under_hooks(torch, make, read=lambda kept: 7.0):
    """The function runs again for it; what its rule held is known by an outline."""
    x = torch.tensor(2.0, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = function(make, read)(x)
    return torch.autograd.grad(y, x)[0].item()


@pytest.mark.only("torch")
@pytest.mark.parametrize("name", [*DATA, *UNKNOWN])
def test_what_each_run_makes_again_under_hooks(torch, name):
    refused = (RuntimeError,) if name == "module" else ()  # a module stands for itself
    run = lambda: gradient_under_hooks(torch, lambda run: (DATA | UNKNOWN)[name]())
    right_or_refused(run, 14.0, *refused, match=REFUSED)


@pytest.mark.only("torch")
@pytest.mark.parametrize("name", [*ANOTHER, *TOLD])
def test_what_is_another_under_hooks(torch, name):
    *made, told = another(name)
    with pytest.raises(RuntimeError, match=REFUSED) as caught:
        gradient_under_hooks(torch, *made)
    assert told in str(caught.value)
