"""The engine by itself: a rule kept whole, is it linear, how exact is a dtype. No framework runs."""

import collections
import ctypes
import decimal
import functools
import gc
import hashlib
import random
import sys
import threading
import types
import weakref
import zlib

import numpy as np
import pytest

from keras_cg import backends, custom_gradient
from keras_cg.engine import defaults, linear, precision, rule
from keras_cg.engine.freezing import freeze
from keras_cg.engine.linear import check_or_nan
from keras_cg.recipes.checkpoint.sample import Sample

pytestmark = pytest.mark.once

X = np.array([1.0, 2.0, 3.0])


class T:
    """Stands in for a tensor."""

    def __init__(self, value=0.0):
        self.value = value


def is_tensor(value):
    return isinstance(value, T)


# --- freezing --------------------------------------------------------------------------------------------------------


def test_a_name_that_is_bound_again():
    k = 2.0
    frozen = freeze(lambda u: k * u)
    k = 5.0
    assert frozen(1.0) == 2.0


def test_a_name_of_a_helper_in_a_cell():
    k = 2.0

    def helper(u):
        return k * u

    frozen = freeze(lambda u: helper(u))
    k = 5.0
    assert frozen(1.0) == 2.0


def test_functions_that_call_each_other_share_what_they_share():
    k = 2.0

    def even(n):
        return k if n == 0 else odd(n - 1)

    def odd(n):
        return -k if n == 0 else even(n - 1)

    frozen = freeze(lambda u: u * even(4) + odd(3))
    k = 5.0
    assert frozen(1.0) == 4.0


def test_a_name_that_the_rule_assigns_stays_shared():
    count = 0

    def grad(u):
        nonlocal count
        count += 1
        return u

    frozen = freeze(grad)
    frozen(1.0)
    frozen(1.0)
    assert count == 2


def test_a_name_that_a_helper_assigns_stays_shared():
    total = 0.0

    def add(u):
        nonlocal total
        total += u

    def grad(u):
        add(u)
        return total

    frozen = freeze(grad)
    assert (frozen(1.0), frozen(2.0), total) == (1.0, 3.0, 3.0)


def test_a_name_that_is_bound_later():
    def make():
        grad = lambda u: later * u
        frozen = freeze(grad)
        later = 2.0
        return frozen, later

    with pytest.raises(NameError):
        make()[0](1.0)


def test_defaults_and_attributes_come_along():
    k = 2.0

    def grad(u, factor=3.0, *, other=5.0):
        return k * u * factor * other * grad.scale

    grad.scale = 7.0
    frozen = freeze(grad)
    k, grad.scale = 11.0, 7.0
    assert frozen(1.0) == 210.0
    assert (frozen.__name__, frozen.__defaults__, frozen.__kwdefaults__) == ("grad", (3.0,), {"other": 5.0})


class Keeps:
    def __init__(self, s):
        self.s = s

    def __call__(self, u):
        return self.s * u

    def method(self, u):
        return self.twice(u)

    def twice(self, u):
        return 2 * self.s * u


class Slotted:
    __slots__ = ("s",)

    def __init__(self, s):
        self.s = s

    def __call__(self, u):
        return self.s * u

    method = __call__


@pytest.mark.parametrize("kind", [Keeps, Slotted])
def test_the_object_that_is_called(kind):
    for make, expected in ((lambda kept: kept, 2.0), (lambda kept: kept.method, 4.0 if kind is Keeps else 2.0)):
        kept = kind(2.0)
        frozen = freeze(make(kept))
        kept.s = 5.0
        assert frozen(1.0) == expected


def test_an_object_that_counts_is_not_copied():
    class Counts:
        calls = 0

        def __call__(self, u):
            self.note()
            return u

        def note(self):
            self.calls += 1

    kept = Counts()
    freeze(kept)(1.0)
    assert kept.calls == 1


def test_a_decorated_function_as_a_rule():
    k = 2.0
    frozen = freeze(custom_gradient(lambda x: (x * k, lambda u: u)))
    k = 5.0
    assert float(frozen(np.array(1.0))) == 2.0


def test_a_name_that_the_rule_deletes_stays_shared():
    k = 2.0

    def grad(u):
        nonlocal k
        del k
        return u

    freeze(grad)(1.0)
    with pytest.raises(NameError):
        k  # noqa: B018


def test_a_name_that_a_function_inside_assigns_stays_shared():
    count = 0

    def grad(u):
        def note():
            nonlocal count
            count += 1

        note()
        return u

    freeze(grad)(1.0)
    assert count == 1


class Notes:
    def note(self):
        self.calls = 1


class Deletes(Notes):
    def __call__(self, u):
        del self.calls


class AssignsInside(Notes):
    def __call__(self, u):
        def note():
            self.calls = 2

        note()


class CallsInside(Notes):
    def __call__(self, u):
        return [self.note() for _ in range(2)], (lambda: self.note())()


@pytest.mark.parametrize("kind", [Deletes, AssignsInside, CallsInside])
def test_an_object_whose_methods_assign_stays_shared(kind):
    kept = kind()
    assert freeze(kept) is kept


def test_objects_that_no_shallow_copy_serves():
    """Those whose state is in memory of C, that are told when they go, and classes."""

    class Listed(list):
        def __call__(self, u):
            return u * len(self)

    class Named(types.SimpleNamespace):
        def __call__(self, u):
            return u

    class Draws(random.Random):
        def __call__(self, u):
            return u

    class Freed:
        def __del__(self):
            gone.append(1)

        def __call__(self, u):
            return u

    gone, listed, freed = [], Listed([1]), Freed()
    for kept in (listed, freed, Named(a=1), Draws(1), listed.__len__, X.__mul__, float, Keeps):
        assert freeze(kept) is kept
    listed.append(2)
    assert freeze(listed)(1.0) == 2.0
    assert not gone


def test_partials():
    kept, k = Keeps(2.0), 3.0
    frozen = freeze(functools.partial(lambda times, u, extra: times(u) * k + extra, kept, extra=1.0))
    k = 5.0
    assert frozen(1.0) == 7.0


def test_a_decorated_function_in_a_cell():
    k = 2.0
    inner = custom_gradient(lambda x: (x * k, lambda u: u))
    frozen = freeze(lambda u: inner(u))
    k = 5.0
    assert float(frozen(np.array(1.0))) == 2.0


def test_functions_of_frameworks_are_not_copied():
    """autograd knows the derivative of its own by identity."""
    anp = pytest.importorskip("autograd.numpy")
    assert freeze(anp.sin) is anp.sin
    sin = anp.sin
    frozen = freeze(lambda u: sin(u))
    assert frozen.__closure__[0].cell_contents is anp.sin


def test_a_rule_without_cells_is_left_as_it_is():
    grad = eval("lambda u: u")
    assert freeze(grad) is grad


def test_what_a_frozen_rule_holds_is_freed():
    kept = T()
    frozen = freeze((lambda kept: lambda u: kept)(kept))
    dead = weakref.ref(kept)
    gc.disable()
    try:
        del kept, frozen
        assert dead() is None
    finally:
        gc.enable()


# --- searching -------------------------------------------------------------------------------------------------------


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
        "namespace": types.SimpleNamespace(a=[tensor]),
        "proxy": types.MappingProxyType({"a": tensor}),
        "array of objects": np.array([tensor, None], object),
        "exception": ValueError(tensor),
        "iterator": iter([tensor]),
        "class": type("Kept", (), {"kept": tensor}),
        "helper": lambda: tensor,
        "default": (lambda: lambda kept=tensor: kept)(),
        "weak": (tensor, weakref.ref(tensor)),
        "builtin method": [tensor].append,
    }
    kept = values[kind]
    return lambda u: (u, kept)


PLACES = [
    *("slot", "attribute", "method", "partial", "list", "dict", "key", "set", "namedtuple", "deque", "slice"),
    *("namespace", "proxy", "array of objects", "exception", "iterator", "class", "helper", "default", "weak"),
    "builtin method",
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
    "strings": ("a", "".join(["a"])),
    "dicts": ({"a": 1, "b": [2]}, {"a": 1, "b": [2]}),
    "classes made anew": tuple(type("Made", (), {"k": 2, "f": lambda self: 1}) for _ in range(2)),
    "objects of them": tuple(type("Made", (), {"k": 2})() for _ in range(2)),
    "objects": (types.SimpleNamespace(a=1), types.SimpleNamespace(a=1)),
    "weak references": (lambda one: (weakref.ref(one), weakref.ref(one)))(T),
    "builtin methods": ([1].append, [1].append),
    "bare objects": (object(), object()),
    "attributes in another order": (types.SimpleNamespace(a=1, b=2), types.SimpleNamespace(b=2, a=1)),
    "objects without attributes": tuple(type("Made", (), {})() for _ in range(2)),
    "locks": (threading.Lock(), threading.Lock()),
    "reentrant locks": (threading.RLock(), threading.RLock()),
    "random numbers": (random.Random(1), random.Random(1)),
    "NumPy's random numbers": (np.random.default_rng(1), np.random.default_rng(1)),
    "NumPy's old random numbers": (np.random.RandomState(1), np.random.RandomState(1)),
    "decimals": (decimal.Decimal(2), decimal.Decimal(2)),
    "sets of tuples": ({(k, str(k)) for k in range(9)}, {(k, str(k)) for k in reversed(range(9))}),
    "sets of shared objects": ({T, Pair, Keeps}, {Keeps, T, Pair}),
    "iterators": (iter([1, 2]), iter([1, 2])),
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
    "long string": ("a" * 50, "b" * 50, f"was '{'a' * 36}... and is '{'b' * 36}..."),
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
    "integer": (2, 3, "was 2 and is 3"),
    "kind of number": (2, 2.0, "was 2 and is 2.0"),
    "boolean": (True, False, "was True and is False"),
    "string": ("a", "b", "was 'a' and is 'b'"),
    "array": (X, X + 1, "is another float64[3]"),
    "dtype": (X, X.astype(np.float32), "was float64[3] and is float32[3]"),
    "shape": (X, X[:2], "was float64[3] and is float64[2]"),
    "length": ([1], [1, 2], "is another list"),
    "key": ({"a": 1}, {"b": 1}, "is another dict"),
    "kind": ([1], (1,), "was list and is tuple"),
    "class made anew": (type("Made", (), {"k": 2}), type("Made", (), {"k": 3}), ".k was 2 and is 3"),
    "slot": (Slotted(1.0), Slotted(2.0), ".s was 1.0 and is 2.0"),
    "attribute": (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2), ".a was 1 and is 2"),
    "builtin method": ([1].append, [1].pop, "was list.append and is list.pop"),
    "bound to another": ([1].append, [2].append, "was 1 and is 2"),
    "partial": (functools.partial(max, 1), functools.partial(max, 2), "was 1 and is 2"),
    "module": (types, functools, "is another module"),
    # In memory of C, where the garbage collector sees nothing.
    "random numbers": (random.Random(1), random.Random(2), ".__reduce__()[2][1]"),
    "NumPy's random numbers": (np.random.default_rng(1), np.random.default_rng(2), ".__reduce__()"),
    "random numbers that were drawn": (drawn(np.random.RandomState(1)), np.random.RandomState(1), ".__reduce__()"),
    "decimal": (decimal.Decimal(2), decimal.Decimal(3), "was '2' and is '3'"),
    "iterator": (drawn(iter([1, 2])), iter([1, 2]), ".__reduce__()"),
    "view of memory": (memoryview(b"ab")[:1], memoryview(b"ab")[1:], "was <memory at"),
    "C number": (ctypes.c_double(2.0), ctypes.c_double(3.0), ".__reduce__()"),
    "unknown to pickle": (hashlib.sha256(b"a"), hashlib.sha256(b"b"), "is another HASH"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_is_another(name):
    one, two, told = DIFFERENT[name]
    found = differ(hold(k=one), hold(k=two))
    assert found is not None and found.startswith("kept['k']") and told in found, found


def test_one_object_is_not_entered():
    one, entered = [1], []
    assert rule.difference(hold(k=one), hold(k=one), lambda value: entered.append(value), agreement)[0] is None
    assert all(each is not one for each in entered)


def test_a_tensor_in_a_difference():
    class Shaped(T):
        shape, dtype = (2, 3), "torch.float32"

    assert differ(hold(k=Shaped(1.0)), hold(k=Shaped(2.0))) == "kept['k'] is another float32[2, 3]"


def test_names_in_a_difference():
    keyword = [eval(f"lambda *, k={k}: k") for k in (1, 2)]
    assert differ(*keyword) == "k was 1 and is 2"
    assert differ(hold(a={Pair(1, 2): 0}), hold(a={Pair(1, 3): 0})) == "key[1] was 2 and is 3"


def test_a_class_that_was_asked_for_annotations():
    one, two = (type("Made", (), {"k": 2}) for _ in range(2))
    assert one.__annotations__ == {}
    assert differ(hold(k=one), hold(k=two)) is None


class Base:
    __slots__ = ("s",)


class Shadows(Base):
    __slots__ = ("s",)

    def __call__(self, u):
        return self.s * u


def test_a_slot_of_a_class_and_its_base():
    kept = Shadows()
    kept.s = 2.0
    frozen = freeze(kept)
    kept.s = 5.0
    assert frozen(1.0) == 2.0
    assert differ(kept, frozen) == ".s was 5.0 and is 2.0"


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
    "arrays": (X, X + 1),
    "builtin methods": ([1].append, [1].pop),
    "shared": ((lambda one: [one, one, [2]])([1]), (lambda one, two: [one, two, two])([1], [2])),
    "decimals": (decimal.Decimal(2), decimal.Decimal(3)),
    "random numbers": (random.Random(1), random.Random(2)),
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


def test_an_outline_of_equal_numbers():
    two = 2.0
    assert (
        rule.outline(hold(k=[two, two]), is_tensor, (), ())[1]
        == rule.outline(hold(k=[2.0, 4.0 / two]), is_tensor, (), ())[1]
    )


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


# --- linear -----------------------------------------------------------------------------------------------------------


def is_linear(pull, *cotangents):
    numpy = backends.load("numpy", "a test")
    conditions = linear.conditions(numpy, lambda given: pull(*given), cotangents)
    return all(bool(condition) for condition in conditions)


def ones(dtype="float64", shape=(3,)):
    return np.ones(shape, dtype)


MATRIX = np.array([[0.3, -1.2, 0.5], [1.1, 0.2, -0.7], [2.0, 0.0, 1e-9]])

LINEAR = {
    "scale": (lambda u: [7 * u], ones()),
    "matrix": (lambda u: [MATRIX @ u], ones()),
    "zero": (lambda u: [0 * u], ones()),
    "sum": (lambda u: [np.sum(u)], ones()),
    "gradients of other shapes": (lambda u: [u[:0], np.outer(u, u[::-1] * 0), u[1:]], ones()),
    "two cotangents": (lambda u, v: [3 * u - v[::-1], v[0] - u[0]], ones(), ones()),
    "number": (lambda u: [3 * u], np.array(1.0)),
    "empty": (lambda u: [3 * u + 1], ones(shape=(0, 3))),
    "overflow": (lambda u: [np.float32(1e30) * u], ones("float32")),
    "overflow of half precision": (lambda u: [np.float16(1e4) * u], ones("float16")),
    "underflow": (lambda u: [np.float32(1e-30) * u], ones("float32")),
    "difference of what underflows": (lambda u: [np.float32(1e-32) * u - np.float32(9e-33) * u], ones("float32")),
    "division by zero": (lambda u: [u / np.array([0.0, 1.0, 2.0])], ones()),
    "complex": (lambda z: [(2 - 3j) * z], ones("complex128")),
    "complex to real": (lambda z: [np.real(z), np.conj(z)], ones("complex64")),
    "loses digits": (lambda u: [((u * 1e3 + u) - u * 1e3).astype("float32")], ones("float32")),
    "quantised weights": (lambda u: [(MATRIX.astype("float16") @ u)], ones("float16")),
}


@pytest.mark.parametrize("name", LINEAR)
def test_what_is_linear(name):
    pull, *cotangents = LINEAR[name]
    assert is_linear(pull, *cotangents)


def largest_alone(u):
    """Odd, and homogeneous for every scale."""
    return [u * (abs(u) == np.max(abs(u)))]


def clip(limit):
    return lambda u: [np.clip(2 * u, -limit, limit)]


CURVED = {
    "constant": (lambda u: [7 * u + 1], ones()),
    "constant at zero": (lambda u: [np.where(u == 0, 1, u)], ones()),
    "small constant": (lambda u: [7 * u + 1e-3], ones("float32")),
    "absolute value": (lambda u: [abs(u)], ones()),
    "absolute value of a number": (lambda u: [abs(u)], np.array(1.0)),
    "positive part": (lambda u: [np.maximum(u, 0)], ones()),
    "positive part of a number": (lambda u: [np.maximum(u, 0)], np.array(1.0)),
    "negative part of a number": (lambda u: [np.minimum(u, 0)], np.array(1.0)),
    "square": (lambda u: [u * u], ones()),
    "cube": (lambda u: [u**3], ones()),
    "norm": (lambda u: [u / np.sqrt(1 + np.sum(u**2))], ones()),
    "unit": (lambda u: [u / (np.sqrt(np.sum(u**2)) + 1e-300)], ones()),
    "tanh": (lambda u: [1e4 * np.tanh(u / 1e4)], ones()),
    "dead zone": (lambda u: [np.where(abs(u) < 1e-9, 0, u)], ones()),
    "dead zone of half precision": (lambda u: [np.where(abs(u) < 0.01, 0, u)], ones("float16")),
    "largest alone": (largest_alone, ones()),
    "neighbour's sign": (lambda u: [abs(u) * np.sign(u[::-1])], ones(shape=(4,))),
    "product": (lambda u, v: [u * v], ones(), ones()),
    "second gradient": (lambda u: [7 * u, abs(u)], ones()),
    "complex gate": (lambda z: [np.where(np.real(z) > 0, z, 0)], ones("complex128")),
    "length of the imaginary part": (lambda z: [np.real(z) + abs(np.imag(z))], ones("complex128")),
    "complex length": (lambda z: [abs(z)], ones("complex64")),
    "infinite from a hundred on": (lambda u: [np.where(abs(u) > 100, np.nan, abs(u))], ones()),
    "steps": (lambda u: [np.round(u)], ones()),
    "a part in ten thousand": (lambda u: [u + 1e-4 * abs(u)], ones()),
    "two per cent of a float32": (lambda u: [u + 0.02 * abs(u)], ones("float32")),
    "5% of curvature": (lambda u: [u + 0.05 * abs(u)], ones()),
    "third element only": (lambda u: [np.stack([u[0], u[1], abs(u[2])])], ones()),
    "matrix": (lambda u: [u * np.sign(u[:, :1])], ones(shape=(2, 3))),
    "antisymmetric part": (lambda u: [u + abs(u - u.T)], ones(shape=(3, 3))),
    **{f"clip at {limit:g}": (clip(limit), ones()) for limit in 10.0 ** np.arange(-9, 13)},
    "clip a small float32": (clip(1e-9), ones("float32", ())),
    "clip a large float32": (clip(1e11), ones("float32", ())),
    "clip a small float16": (clip(1e-2), ones("float16", ())),
    "clip a large float16": (clip(1e4), ones("float16", ())),
    "clip a large float16 beside a float64": (lambda u, v: [np.clip(u, -1e4, 1e4), v], ones("float16"), ones()),
}


@pytest.mark.parametrize("name", CURVED)
def test_what_is_not_linear(name):
    pull, *cotangents = CURVED[name]
    assert not is_linear(pull, *cotangents)


def test_what_is_tried():
    """Zero; the direction at scales of either sign; the further direction by itself and taken away."""
    numpy = backends.load("numpy", "a test")
    tried = []
    linear.conditions(numpy, lambda given: [tried.append(given[0]) or given[0]], [np.ones(3)])
    one, two = tried[0], tried[1]
    assert one[0] > 0 and min(one) < 0 < max(one) and min(abs(one)) > 0.1 and abs(np.dot(one, two)) < 0.99 * 3
    assert not np.allclose(one / two, (one / two)[0])
    np.testing.assert_allclose(tried[2], one - 2 * two)
    scales = [float(given[0] / one[0]) for given in tried[3:]]
    assert scales == [0.0, *(sign * 2.0**power for power in (80, 40, -40, -80) for sign in (1, -1))]


def is_transpose(pull, push, cotangent, tangent):
    numpy = backends.load("numpy", "a test")
    with np.errstate(all="ignore"):
        return [bool(each) for each in linear.transposes(numpy, pull, push, [cotangent], [tangent])]


def test_a_transpose():
    forth, back = lambda given: [MATRIX @ given[0]], lambda given: [MATRIX.T @ given[0]]
    assert is_transpose(forth, back, X, X) == [True]
    assert is_transpose(forth, forth, X, X) == [False]
    assert is_transpose(lambda given: [7 * given[0]], lambda given: [5 * given[0]], X, X) == [False]
    # Both overflow.
    large = lambda given: [np.float32(1e30) * given[0] * np.float32(1e30)]
    assert is_transpose(large, large, ones("float32"), ones("float32")) == [True]
    # Terms that cancel: the inner products are 0 and 1e-7, the sums of absolute values 1,000.
    along, across = (linear._uneven(backends.load("numpy", "a test"), np.ones(1000), step, 0.5) for step in (1.0, 0.3))
    weights = np.where(np.arange(1000) % 2, 1, -1) / (along * across)
    push = lambda given: [weights * given[0] + 1e-7 * along / np.sum(along**2)]
    assert is_transpose(lambda given: [weights * given[0]], push, np.ones(1000), np.ones(1000)) == [True]
    assert is_transpose(lambda given: [1j * given[0]], forth, ones("complex64"), X) == []


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_table_is_that_of_the_dtypes(dtype):
    info, known = np.finfo(dtype), precision.of(dtype)
    assert known.epsilon == float(info.eps)
    assert known.smallest == float(info.tiny)
    assert 2.0**known.reach < float(info.max) ** 0.98 and 2.0**-known.reach >= float(info.tiny)
    assert known.epsilon < known.repeated < known.linear <= 0.1


def test_the_precision_of_other_dtypes():
    assert [*map(precision.is_differentiable, ("float16", "bfloat16", "float8_e4m3fn", "complex64"))] == [True] * 4
    assert not any(map(precision.is_differentiable, ("int32", "bool", "uint8")))
    assert precision.of("complex64") == precision.of("float32")
    assert precision.of("complex128") == precision.of("float64") == precision.of("int32")
    half = precision.of("bfloat16")
    assert (half.epsilon, half.smallest) == (2.0**-7, 2.0**-126)
    assert (half.reach, half.repeated, half.linear) == (40, 0.05, 0.1)


# --- what is only traced ----------------------------------------------------------------------------------------------


@pytest.fixture
def traced(monkeypatch):
    """The NumPy backend, as if no value could be looked at."""
    backend = backends.load("numpy", "a test")
    monkeypatch.setattr(backend, "is_known", lambda tensors: False)
    return backend


def test_what_holds_only_if_conditions_do():
    backend = backends.load("numpy", "a test")
    assert check_or_nan(backend, [X], [], ZeroDivisionError)[0] is X
    assert check_or_nan(backend, [X], [np.bool_(True)], ZeroDivisionError)[0] is X
    with pytest.raises(ZeroDivisionError):
        check_or_nan(backend, [X], [np.bool_(True), np.array([True, False])], ZeroDivisionError)


def test_what_holds_only_if_conditions_do_in_a_program(traced):
    half = X.astype(np.float16)
    assert check_or_nan(traced, [X], [], ZeroDivisionError)[0] is X
    for conditions, expected in (
        ([np.array([True, True])], X),
        ([np.bool_(True), np.array([True, False])], X * np.nan),
    ):
        found = check_or_nan(traced, [X, half], conditions, ZeroDivisionError)
        np.testing.assert_array_equal(found[0], expected)
        assert found[1].dtype == np.float16 and np.isnan(found[1]).all() == np.isnan(expected).all()


# --- defaults ---------------------------------------------------------------------------------------------------------


def test_what_stops_gradients_is_a_copy():
    x = X.copy()
    copy = defaults.stop_gradient(backends.load("numpy", "a test"), x)
    x[0] = 100.0
    np.testing.assert_array_equal(copy, X)


def test_tensors_of_two_dtypes_never_agree():
    """bfloat16 has no NumPy array of its own."""
    backend = types.SimpleNamespace(dtype=lambda tensor: tensor[0], to_numpy=lambda tensor: tensor[1])
    one, two = ("bfloat16", X), ("float32", X)
    assert defaults.agreement(backend, [(one, one), (one, two)]) == [True, False]


def test_arrays_but_for_rounding_in_a_program():
    repeated = functools.partial(defaults.is_repeated_later, backends.load("numpy", "a test"))
    odd = np.array([np.nan, np.inf, 1.0])
    assert repeated(odd, odd) and repeated(X * (1 + 1e-15), X) and repeated(np.arange(3), np.arange(3))
    assert repeated(X[:0], X[:0])
    for other in (X + 1e-3, np.array([np.nan, 2.0, 3.0]), np.array([np.inf, 2.0, 3.0])):
        assert not repeated(other, X)
    with pytest.raises(RuntimeError, match="ran again for its gradient"):
        repeated(X[:2], X)


def test_a_sample_in_a_program(traced):
    long = np.arange(1000.0)
    sample = Sample(traced, [long, X])
    (same, close), (other, _) = sample.compare("f", [long, X]), sample.compare("f", [long + 1, X])
    assert same.all() and close.all() and not other.all()
