"""The rules of two runs: what they refer to, and what differs in them as data."""

import collections
import datetime
import enum
import functools
import hashlib
import queue
import random
import sys
import threading
import types
import weakref

import numpy as np
import pytest
from stand_ins import Keeps, Slotted, T, is_tensor

from keras_cg.engine import comparing, references
from keras_cg.engine.precision import is_repeated

pytestmark = pytest.mark.only("numpy")

X = np.array([1.0, 2.0, 3.0])


Pair = collections.namedtuple("Pair", "one two")
Mode = enum.Enum("Mode", "ONE").ONE


def put(kind, tensor):
    """A rule that keeps a tensor somewhere."""
    if kind == "slot":
        return Slotted(tensor)
    if kind == "attribute":
        return Keeps(tensor)
    if kind == "method":
        return Keeps(tensor).method
    if kind == "partial":
        return functools.partial(lambda kept, u: u, tensor)
    values = {
        "list": [tensor],
        "dict": {"a": tensor},
        "key": {tensor: 1},
        "set": {tensor},
        "namedtuple": Pair(1, tensor),
        "deque": collections.deque([tensor]),
        "slice": slice(tensor),
        "iterator": iter([tensor]),
        "class": type("Kept", (), {"kept": tensor}),
        "weak": (tensor, weakref.ref(tensor)),
        "builtin method": [tensor].append,
    }
    kept = values[kind]
    return lambda u: (u, kept)


PLACES = [
    *("slot", "attribute", "method", "partial", "list", "dict", "key", "set", "namedtuple", "deque", "slice"),
    *("iterator", "class", "weak", "builtin method"),
]


@pytest.mark.parametrize("kind", PLACES)
def test_a_tensor_is_reached_wherever_it_is(kind):
    tensor = T()
    assert [*references.reached([put(kind, tensor)], is_tensor)] == [tensor]


def test_globals_and_modules_are_not_entered(monkeypatch):
    monkeypatch.setitem(globals(), "kept_by_a_test", T())
    assert not [*references.reached([lambda u: kept_by_a_test, sys.modules[__name__]], is_tensor)]  # noqa: F821


def test_what_a_quick_look_shows():
    """Cells, defaults, arguments and the attributes of `self`, of functions in them, too; nothing inside of others.

    The functions are listed as well.
    """
    k, deep, kept = T(), [T()], Keeps(2.0)
    helper = lambda u: (u, k)
    assert references.near(lambda u, h=helper, *, d=deep: h) == [helper, deep, k]
    assert references.near(functools.partial(helper, k, b=deep)) == [helper, k, deep]
    assert references.near(kept.method) == [kept, 2.0, Keeps.method]
    assert references.near(kept) == [kept, 2.0]
    assert references.near(eval("lambda: 0")) == []


# --- comparing -------------------------------------------------------------------------------------------------------


agreement = lambda pairs: [abs(one.value - two.value) <= 1e-9 for one, two in pairs]
compare = lambda first, other: comparing.difference([("", first)], [("", other)], is_tensor, agreement)
hold = lambda **kept: lambda u: (u, kept)


# Where a tensor is no data, because C hides it, or nothing tells which one it is.
UNKNOWN_PLACES = ("key", "set", "iterator", "weak")


@pytest.mark.parametrize("kind", PLACES)
def test_equal_tensors_in_equal_places(kind):
    is_unknown = kind in UNKNOWN_PLACES
    assert compare(put(kind, T(1.0)), put(kind, T(1.0 + 1e-12))) == (None, is_unknown, [])
    found = compare(put(kind, T(1.0)), put(kind, T(2.0)))
    assert (found.name is not None) == (not is_unknown) or kind == "weak"


made = lambda **members: [type("Made", (), members) for _ in range(2)]
made_of = lambda members: [type("Made", (), each) for each in members]


SAME = {
    "float": (2.0, 2.0),
    "nan": (float("nan"), float("nan")),
    "complex": (1 + 2j, 1 + 2j),
    "array": (X, X * (1 + 1e-15)),
    "array with nan": (X * np.nan, X * np.nan),
    "dicts": ({"a": 1, "b": [2]}, {"a": 1, "b": [2]}),
    "classes made twice": made(k=2, f=lambda self: 1),
    "objects of them": [kind() for kind in made(k=2)],
    "objects": (types.SimpleNamespace(a=1), types.SimpleNamespace(a=1)),
    "objects in slots": (Slotted(1.0), Slotted(1.0)),
    "builtin methods": ([1].append, [1].append),
    "partials": (functools.partial(max, 1, key=abs), functools.partial(max, 1, key=abs)),
    "NumPy's NaN": (np.float32("nan"), np.float32("nan")),
    "dtypes": (np.dtype("f4"), np.dtype("f4")),
    "ranges": (range(3), range(3)),
    "frozen sets": (frozenset("ab"), frozenset("ba")),
    "sets": ({1, "a"}, {"a", 1}),
    "dates": (datetime.date(2020, 1, 2), datetime.date(2020, 1, 2)),
    "bytes": (bytearray(b"a"), bytearray(b"a")),
    "queues of two ends": (collections.deque([1, T(2.0)]), collections.deque([1, T(2.0)])),
    "factories": [collections.defaultdict(list, a=1) for _ in range(2)],
    "masked arrays": [np.ma.masked_array([2.0, other], mask=[0, 1]) for other in (5.0, 7.0)],
    "fields": [np.array([(2.0, np.nan)], [("a", "f8"), ("b", "f8")]) for _ in range(2)],
    "times": [np.array(["2020-01-01", "NaT"], "M8[D]") for _ in range(2)],
    "arrays of objects": [np.array([1, "a", None], object) for _ in range(2)],
    "generated code": [eval("lambda: k", {"k": 1}) for _ in range(2)],
}


@pytest.mark.parametrize(("one", "two"), SAME.values(), ids=SAME)
def test_what_is_the_same(one, two):
    assert compare(hold(k=one), hold(k=two)) == (None, False, [])


# A number, a text or a tensor that differs.
DIFFERENT = {
    "one object and two": ((lambda one: [one, one])([1]), [[1], [2]], "[1][0] was 1 and is 2"),
    "complex": (1 + 2j, 1 + 3j, "was (1+2j) and is (1+3j)"),
    "float": (2.0, np.nextafter(2.0, 3.0), "was 2.0 and is "),
    "nan": (2.0, float("nan"), "was 2.0 and is nan"),
    "flag": (True, False, "was True and is False"),
    "string": ("a", "b", "was 'a' and is 'b'"),
    "array": (X, X + 1, "is another float64[3]"),
    "dtype": (X, X.astype(np.float32), "was float64[3] and is float32[3]"),
    "shape": (X, X[:2], "was float64[3] and is float64[2]"),
    "in a longer list": ([1], [2, 3], "[0] was 1 and is 2"),
    "in a dict with other keys": ({"a": 1, "b": 2}, {"a": 3}, "['a'] was 1 and is 3"),
    "class made twice": ([type("Made", (), {"k": k}) for k in (2, 3)] + [".k was 2 and is 3"]),
    "slot": (Slotted(1.0), Slotted(2.0), ".s was 1.0 and is 2.0"),
    "attribute": (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2), ".a was 1 and is 2"),
    "bound to another": ([1].append, [2].append, "was 1 and is 2"),
    "partial": (functools.partial(max, 1), functools.partial(max, 2), "was 1 and is 2"),
    "globals of generated code": (*[eval("lambda: k", {"k": k}) for k in (1, 2)], "k was 1 and is 2"),
    "queue of two ends": (collections.deque([1]), collections.deque([2]), "[0] was 1 and is 2"),
    "factory": (
        *[collections.defaultdict(functools.partial(int, k)) for k in (1, 2)],
        ".default_factory[0] was 1 and is 2",
    ),
    "mask": (*[np.ma.masked_array([2.0, 5.0], mask=mask) for mask in ([0, 1], [1, 0])], ".mask is another bool[2]"),
    "field": (*[np.array([(k,)], [("a", "f8")]) for k in (1.0, 2.0)], "['a'] is another float64[1]"),
    "time": (*[np.array([day], "M8[D]") for day in ("2020-01-01", "NaT")], ".view is another int64[1]"),
    "array of objects": (*[np.array([1, k], object) for k in (2, 3)], "[1] was 2 and is 3"),
}


@pytest.mark.parametrize(("one", "two", "told"), DIFFERENT.values(), ids=DIFFERENT)
def test_what_is_another(one, two, told):
    found = compare(hold(k=one), hold(k=two)).name
    assert found is not None and found.startswith(("kept['k']", "k was")) and told in found, found


def test_defaults_of_functions():
    one, two = (lambda u, n=k: u * n for k in (2, 3))
    assert compare(hold(k=one), hold(k=two)).name == "default 0 was 2 and is 3"
    one, two = (lambda u, *, n=k: u * n for k in (2, 3))
    assert compare(hold(k=one), hold(k=two)).name == "n was 2 and is 3"


# What is no data, or has another structure: neither believed nor refused.
UNKNOWN = {
    "sets": ({1, "a"}, {"a", 2}),
    "sets of objects": ({Mode}, {Mode}),
    "locks": (threading.Lock(), threading.Lock()),
    "random numbers": (random.Random(1), random.Random(2)),
    "NumPy's random numbers": (np.random.default_rng(1), np.random.default_rng(2)),
    "hashes": (hashlib.sha256(b"a"), hashlib.sha256(b"b")),
    "queues": (queue.SimpleQueue(), queue.SimpleQueue()),
    "weak references": (weakref.ref(T), weakref.ref(Keeps)),
    "an array of objects": (np.array([[1, 2]], object), np.array([[1], [2]], object)),
    "length": ([1], [1, 2]),
    "keys": ({"a": 1}, {"b": 1}),
    "kinds": ([1], (1,)),
    "order of keys": ({"a": 1, "b": 1}, {"b": 1, "a": 1}),
    "special methods": made_of([{"__getitem__": eval(f"lambda self, i: {k}")} for k in (2, 3)]),
    "a cache that was filled": (types.SimpleNamespace(a=1), types.SimpleNamespace(a=1, b=2)),
    "tensor and number": (T(), 1.0),
    "None and number": (None, 1.0),
    "integer and float": (1, 1.0),
    "text of an object": (types.SimpleNamespace(a="dense_1"), types.SimpleNamespace(a="dense_2")),
    "code": (eval("lambda u: 7 * u"), eval("lambda u: 5 * u")),
    "classes of other names": (type("One", (), {}), type("Two", (), {})),
    "what a class of C holds": (type("Drawn", (random.Random,), {})(1), type("Drawn", (random.Random,), {})(1)),
}


@pytest.mark.parametrize(("one", "two"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_left_to_the_gradient(one, two):
    assert compare(hold(k=one), hold(k=two)) == (None, True, [])


def test_a_name_that_the_rule_assigns_is_its_state():
    def rule():
        calls = 0

        def grad(u):
            nonlocal calls
            calls += 1
            return u

        return grad

    one, two = rule(), rule()
    one(1.0)
    assert compare(one, two) == (None, True, [])
    assert compare(one, one) == (None, False, [])


def test_what_both_share_is_not_entered():
    class Refuses(dict):
        def __iter__(self):
            raise AssertionError

    shared = Refuses(a=1)
    assert compare(hold(k=shared), hold(k=shared)).name is None


def test_names_in_a_difference():
    class Shaped(T):
        shape, dtype = (2, 3), "torch.float32"

    assert compare(hold(k=Shaped(1.0)), hold(k=Shaped(2.0))).name == "kept['k'] is another float32[2, 3]"
    assert compare(*[eval(f"lambda *, k={k}: k") for k in (1, 2)]).name == "k was 1 and is 2"
    methods = [Keeps(k).method for k in (1.0, 2.0)]
    assert compare(*methods).name == ".__self__.s was 1.0 and is 2.0"


def test_values_that_contain_themselves():
    def made(number):
        kept = [number]
        kept.append(kept)
        return lambda u: kept

    assert compare(made(1), made(1)).name is None
    assert compare(made(1), made(2)).name == "kept[0] was 1 and is 2"


def test_answers_that_are_to_come_are_conditions():
    later = np.array(True)
    steps = [[("", put("list", T()))] for _ in range(2)]
    assert comparing.difference(*steps, is_tensor, lambda pairs: [later]) == (None, False, [later])


# --- an outline in the place of the rule ------------------------------------------------------------------------------


def outlined(first, other, shared=(), inputs=()):
    """Compares with the outline of a rule; returns the difference, and whether the outline is no data."""
    steps, tensors, is_unknown = comparing.outline([("", first)], is_tensor, shared, inputs, {})
    return comparing.difference(steps, [("", other)], is_tensor, agreement, [*inputs, *tensors]), is_unknown


@pytest.mark.parametrize("name", [*SAME, *DIFFERENT, *UNKNOWN])
def test_an_outline_tells_what_the_rule_would(name):
    one, two, *_ = (SAME | DIFFERENT | UNKNOWN)[name]
    assert outlined(hold(k=one), hold(k=two))[0] == compare(hold(k=one), hold(k=two))
    assert outlined(hold(k=[T(1.0), T(2.0)]), hold(k=[T(1.0), T(3.0)]))[0].name is not None


def test_an_outline_tells_whether_something_is_no_data_and_holds_no_tensor():
    assert outlined(hold(k=[1]), hold(k=[1]))[1] is False
    assert outlined(hold(k={Mode}), hold(k={Mode}))[1] is True
    tensor = T()
    dead, kept = weakref.ref(tensor), hold(k=[tensor, {"a": Keeps(tensor)}])
    steps = comparing.outline([("", kept)], is_tensor, (), (), {})[0]
    del tensor, kept
    assert dead() is None and steps


def test_an_outline_lists_each_tensor_once_and_no_input():
    argument, tensor = T(1.0), T(2.0)
    rule = hold(k=[argument, tensor, tensor])
    assert comparing.outline([("", rule)], is_tensor, (), [argument], {})[1] == [tensor]
    assert outlined(rule, hold(k=[T(1.0), T(2.0), T(2.0)]), inputs=[argument])[0].name is None
    assert outlined(rule, hold(k=[T(5.0), T(2.0), T(2.0)]), inputs=[argument])[0].name is not None


def test_what_all_runs_share_stands_for_itself():
    shared = Keeps(T())
    steps, tensors, _ = comparing.outline([("", hold(k=shared))], is_tensor, [shared], (), {})
    assert tensors == []
    shared.s = T(5.0)
    assert comparing.difference(steps, [("", hold(k=shared))], is_tensor, agreement).name is None
    assert comparing.difference(steps, [("", hold(k=Keeps(T(7.0))))], is_tensor, agreement).name is not None


@pytest.mark.parametrize(
    ("other", "is_same"),
    [(X, True), (X * (1 + 1e-12), True), (X + 1e-3, False), (X[:2], False), (X.astype(np.float32), False)],
)
def test_arrays_but_for_rounding(other, is_same):
    assert is_repeated(other, X, 1e-9) is is_same
    assert is_repeated(np.array([np.inf, 1.0]), np.array([np.inf, 1.0]), 1e-9)
    assert not is_repeated(np.array([np.inf, 1.0]), np.array([1.0, np.inf]), 1e-9)
