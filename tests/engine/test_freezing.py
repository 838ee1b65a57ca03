"""A rule as it was at its run: what `freeze` copies, and what stays shared."""

import dataclasses
import functools
import gc
import random
import types
import weakref

import numpy as np
import pytest
from stand_ins import Keeps, Notes, T

from keras_cg.engine.freezing import freeze

pytestmark = pytest.mark.once

X = np.array([1.0, 2.0, 3.0])


class Scales:
    """A rule with a number, or a function of it, in an attribute."""

    def __init__(self, scale=None):
        self.scale = scale

    def __call__(self, upstream):
        return 7 * (self.scale(upstream) if callable(self.scale) else upstream * self.scale)

    def rule(self, upstream):
        return self(upstream)


class Inherits(Scales):
    def __call__(self, upstream):
        return super().__call__(upstream)


@dataclasses.dataclass(frozen=True, slots=True)
class Immutable:
    scale: float

    def __call__(self, upstream):
        return 7 * upstream * self.scale


class Guarded:
    """No attribute can be set, nor looked up by another name."""

    def __init__(self, scale):
        self.__dict__["scale"] = scale

    def __setattr__(self, name, value):
        raise TypeError

    def __call__(self, upstream):
        return 7 * upstream * self.scale


SHARED, HEIR = Scales(), Inherits()


def set_scale(rule, k):
    rule.scale = k
    return rule


def method_in_a_cell(k):
    method = set_scale(SHARED, k).rule
    return lambda upstream: method(upstream)


# Rules of the number that `k()` gives now and the loop changes afterwards. The gradient is 7 k.
LOOPED = {
    "cell": lambda k: lambda u: 7 * u * k(),
    "default": lambda k: lambda u, h=lambda u: u * k(): 7 * h(u),
    "keyword default": lambda k: lambda u, *, h=lambda u: u * k(): 7 * h(u),
    "partial": lambda k: functools.partial(lambda h, u: 7 * h(u), lambda u: u * k()),
    "partial of an object": lambda k: functools.partial(set_scale(SHARED, k())),
    "function in an attribute": lambda k: Scales(lambda u: u * k()),
    "class of the run": lambda k: type("Rule", (), {"__call__": lambda self, u: 7 * u * k()})(),
    "attribute": lambda k: set_scale(SHARED, k()),
    "attribute of a base": lambda k: set_scale(HEIR, k()),
    "method in a cell": lambda k: method_in_a_cell(k()),
    "immutable": lambda k: Immutable(k()),
    "guarded": lambda k: Guarded(k()),
}


@pytest.mark.parametrize("name", LOOPED)
def test_a_rule_of_a_loop(name):
    """Each has the number of its own turn, and not that of the next one."""
    make = LOOPED[name]
    k = 2.0
    frozen = freeze(make(lambda: k))
    k = 3.0
    make(lambda: k)
    assert float(frozen(1.0)) == 14.0


def test_a_name_that_is_bound_again():
    """A cell with a number, which is copied in another way than one with a function."""
    k = 2.0
    frozen = freeze(lambda u: k * u)
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


def assigned():
    calls = 0

    def grad(u):
        nonlocal calls
        calls += 1
        return u

    return grad, lambda: calls


def assigned_by_a_helper():
    calls = 0

    def note():
        nonlocal calls
        calls += 1

    return lambda u: (note(), u), lambda: calls


@pytest.mark.parametrize("make", [assigned, assigned_by_a_helper])
def test_a_name_that_is_assigned_stays_shared(make):
    grad, calls = make()
    frozen = freeze(grad)
    frozen(1.0)
    frozen(1.0)
    assert calls() == 2


def test_defaults_and_attributes_come_along():
    k = 2.0

    def grad(u, factor=3.0, *, other=5.0):
        return k * u * factor * other * grad.scale

    grad.scale = 7.0
    frozen = freeze(grad)
    k, grad.scale = 11.0, 7.0
    assert frozen(1.0) == 210.0
    assert (frozen.__name__, frozen.__defaults__, frozen.__kwdefaults__) == ("grad", (3.0,), {"other": 5.0})


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


class CallsInside(Notes):
    def __call__(self, u):
        return [self.note() for _ in range(2)], (lambda: self.note())()


def test_an_object_whose_methods_assign_stays_shared():
    kept = CallsInside()
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
