"""The rules of two runs: which tensors they reach, and what differs in them."""

import collections
import functools
import hashlib
import random
import sys
import threading
import types
import weakref
import zlib

import numpy as np
import pytest
from stand_ins import Keeps, Notes, Slotted, T, is_tensor

from keras_cg.engine import rule

pytestmark = pytest.mark.once

X = np.array([1.0, 2.0, 3.0])


Pair = collections.namedtuple("Pair", "one two")


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
    assert [*rule.reached([put(kind, tensor)], is_tensor)] == [tensor]


def test_globals_and_modules_are_not_entered(monkeypatch):
    monkeypatch.setitem(globals(), "kept_by_a_test", T())
    assert not [*rule.reached([lambda u: kept_by_a_test, sys.modules[__name__]], is_tensor)]  # noqa: F821


def test_whether_a_function_refers_to_anything():
    k, with_attribute = 1, eval("lambda: 0")
    with_attribute.kept = 1
    for fun in (lambda: k, eval("lambda k=1: k"), eval("lambda *, k=1: k"), with_attribute, Keeps(1).method):
        assert rule.refers(fun)
    assert not rule.refers(eval("lambda: 0"))


def test_what_a_function_refers_to():
    k, kept = T(), Keeps(2.0)
    kept.method = types.MethodType(lambda self, u: k, kept)
    found = rule.referents(kept.method)
    assert kept in found and k in found
    assert rule.referents(lambda u, default=kept: k) == [k, kept]


# --- comparing -------------------------------------------------------------------------------------------------------


def agreement(pairs):
    return [abs(one.value - two.value) <= 1e-9 for one, two in pairs]


def differ(first, other):
    return rule.difference(first, other, is_tensor, agreement)[0]


@pytest.mark.parametrize("kind", PLACES)
def test_equal_tensors_in_equal_places(kind):
    assert differ(put(kind, T(1.0)), put(kind, T(1.0 + 1e-12))) is None
    assert differ(put(kind, T(1.0)), put(kind, T(2.0))) is not None


def test_sets():
    hold = lambda kept: lambda u: kept
    assert differ(hold({1, "a"}), hold({"a", 1})) is None
    assert differ(hold({1}), hold({1, 2})) is not None
    assert differ(hold({T(1.0)}), hold({T(1.0)})) is None
    assert differ(hold({T(1.0)}), hold({T(2.0)})) is not None


def hold(**kept):
    return lambda u: (u, kept)


SAME = {
    "float": (2.0, 2.0 + 1e-12),
    "nan": (float("nan"), float("nan")),
    "complex": (1 + 2j, 1 + 2j),
    "array": (X, X * (1 + 1e-15)),
    "array with nan": (X * np.nan, X * np.nan),
    "dicts": ({"a": 1, "b": [2]}, {"a": 1, "b": [2]}),
    "classes made twice": tuple(type("Made", (), {"k": 2, "f": lambda self: 1}) for _ in range(2)),
    "objects of them": tuple(type("Made", (), {"k": 2})() for _ in range(2)),
    "objects": (types.SimpleNamespace(a=1), types.SimpleNamespace(a=1)),
    "weak references": (lambda one: (weakref.ref(one), weakref.ref(one)))(T),
    "builtin methods": ([1].append, [1].append),
    "locks": (threading.Lock(), threading.Lock()),
    "random numbers": (random.Random(1), random.Random(1)),
    "NumPy's old random numbers": (np.random.RandomState(1), np.random.RandomState(1)),
    "sets of tuples": ({(k, str(k)) for k in range(9)}, {(k, str(k)) for k in reversed(range(9))}),
    "sets of shared objects": ({T, Pair, Keeps}, {Keeps, T, Pair}),
    "NumPy's NaN": (np.float32("nan"), np.float32("nan")),
}


@pytest.mark.parametrize("name", SAME)
def test_what_is_the_same(name):
    one, two = SAME[name]
    assert differ(hold(k=one), hold(k=two)) is None


def compressor(level):
    """An object of C whose class no module has by its name."""
    return zlib.compressobj(level)


def drawn(source):
    """An iterator or a generator of random numbers, from which one was taken."""
    next(source) if hasattr(source, "__next__") else source.random()
    return source


DIFFERENT = {
    "base": (type("Made", (Keeps,), {}), type("Made", (Notes,), {}), "is another Made"),
    "unknown to pickle and of no module": (compressor(1), compressor(9), "is another Compress"),
    "one object and two": ((lambda one: [one, one])([1]), [[1], [2]], "[1][0] was 1 and is 2"),
    "tensor and number": (T(), 1.0, "was T and is 1.0"),
    "complex": (1 + 2j, 1 + 3j, "was (1+2j) and is (1+3j)"),
    "globals": (eval("lambda: k", {"k": 1}), eval("lambda: k", {"k": 2}), "is another <lambda>"),
    "array of objects": (
        np.array([[1, 2]], object),
        np.array([[1], [2]], object),
        "was object[1, 2] and is object[2, 1]",
    ),
    "float": (2.0, 2.001, "was 2.0 and is 2.001"),
    "string": ("a", "b", "was 'a' and is 'b'"),
    "array": (X, X + 1, "is another float64[3]"),
    "dtype": (X, X.astype(np.float32), "was float64[3] and is float32[3]"),
    "shape": (X, X[:2], "was float64[3] and is float64[2]"),
    "length": ([1], [1, 2], "is another list"),
    "key": ({"a": 1}, {"b": 1}, "is another dict"),
    "kind": ([1], (1,), "was list and is tuple"),
    "class made twice": (type("Made", (), {"k": 2}), type("Made", (), {"k": 3}), ".k was 2 and is 3"),
    "slot": (Slotted(1.0), Slotted(2.0), ".s was 1.0 and is 2.0"),
    "attribute": (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2), ".a was 1 and is 2"),
    "builtin method": ([1].append, [1].pop, "was list.append and is list.pop"),
    "bound to another": ([1].append, [2].append, "was 1 and is 2"),
    "partial": (functools.partial(max, 1), functools.partial(max, 2), "was 1 and is 2"),
    # In memory of C, where the garbage collector sees nothing.
    "random numbers": (random.Random(1), random.Random(2), ".__reduce__()[2][1]"),
    "random numbers that were drawn": (drawn(np.random.RandomState(1)), np.random.RandomState(1), ".__reduce__()"),
    "view of memory": (memoryview(b"ab")[:1], memoryview(b"ab")[1:], "was <memory at"),
    "unknown to pickle": (hashlib.sha256(b"a"), hashlib.sha256(b"b"), "is another HASH"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_is_another(name):
    one, two, told = DIFFERENT[name]
    found = differ(hold(k=one), hold(k=two))
    assert found is not None and found.startswith("kept['k']") and told in found, found


def test_a_tensor_in_a_difference():
    class Shaped(T):
        shape, dtype = (2, 3), "torch.float32"

    assert differ(hold(k=Shaped(1.0)), hold(k=Shaped(2.0))) == "kept['k'] is another float32[2, 3]"


def test_names_in_a_difference():
    keyword = [eval(f"lambda *, k={k}: k") for k in (1, 2)]
    assert differ(*keyword) == "k was 1 and is 2"
    assert differ(hold(a={Pair(1, 2): 0}), hold(a={Pair(1, 3): 0})) == "key[1] was 2 and is 3"


def test_another_code():
    found = differ(lambda u: 7 * u, lambda u: 5 * u)
    assert found == "the rule itself is another test_another_code.<locals>.<lambda>"


def test_values_that_contain_themselves():
    def made(number):
        kept = [number]
        kept.append(kept)
        return lambda u: kept

    assert differ(made(1), made(1)) is None
    assert differ(made(1), made(2)) == "kept[0] was 1 and is 2"


def test_answers_that_are_to_come_are_conditions():
    later = np.array(True)
    found, conditions = rule.difference(put("list", T()), put("list", T()), is_tensor, lambda pairs: [later])
    assert found is None and conditions == [later]


def test_an_outline_tells_what_a_kept_rule_would():
    def of(number, tensor):
        kept = [number, tensor]
        return rule.outline(lambda u: kept, is_tensor, (), ())

    tensor = T()
    assert rule.outline(hold(k=[*TENSORS, TENSORS[0]]), is_tensor, (), ())[0] == [*TENSORS]
    tensors, facts = of(2.0, tensor)
    assert tensors == [tensor]
    assert facts == of(2.0, T())[1]
    assert facts != of(3.0, T())[1]


TENSORS = T(1.0), T(2.0)

OUTLINES = {
    "a tensor twice": ([*TENSORS, TENSORS[0]], [*TENSORS, TENSORS[1]]),
    "a number twice": ([1, 1, 2], [1, 2, 2]),
    "nests": ([[1], [2, 3]], [[1, 2], [3]]),
    "shared": ((lambda one: [one, one, [2]])([1]), (lambda one, two: [one, two, two])([1], [2])),
    "booleans": ([True], [1]),
}


@pytest.mark.parametrize("name", [*DIFFERENT, *OUTLINES])
def test_another_outline(name):
    one, two, *_ = OUTLINES.get(name) or DIFFERENT[name]
    facts = [rule.outline(hold(k=kept), is_tensor, (), ())[1] for kept in (one, two)]
    assert facts[0] != facts[1]


@pytest.mark.parametrize("name", SAME)
def test_an_equal_outline(name):
    facts = [rule.outline(hold(k=kept), is_tensor, (), ())[1] for kept in SAME[name]]
    assert facts[0] == facts[1]


def test_an_outline_holds_no_tensor():
    tensor = T()
    dead, facts = weakref.ref(tensor), rule.outline(hold(k=[tensor, {"a": Keeps(tensor)}]), is_tensor, (), ())[1]
    del tensor
    assert dead() is None and facts


def test_an_outline_does_not_enter_what_is_known():
    argument, shared = T(), Keeps(T())
    tensors, facts = rule.outline(hold(k=[argument, shared]), is_tensor, [shared], [argument])
    assert not tensors and "argument 0" in facts


def test_what_all_runs_share_is_itself_alone():
    """The other object often gets the identity of the first one, which is gone."""
    for _ in range(10):
        kept = [1]
        first = rule.outline(hold(k=kept), is_tensor, [kept], ())[1]
        assert first == rule.outline(hold(k=kept), is_tensor, [kept], ())[1]
        kept = None
        kept = [2]
        assert first != rule.outline(hold(k=kept), is_tensor, [kept], ())[1]


@pytest.mark.parametrize(
    ("other", "is_same"),
    [(X, True), (X * (1 + 1e-12), True), (X + 1e-3, False), (X[:2], False), (X.astype(np.float32), False)],
)
def test_arrays_but_for_rounding(other, is_same):
    assert rule.is_repeated(other, X, 1e-9) is is_same
    assert rule.is_repeated(np.array([np.inf, 1.0]), np.array([np.inf, 1.0]), 1e-9)
    assert not rule.is_repeated(np.array([np.inf, 1.0]), np.array([1.0, np.inf]), 1e-9)
