"""Rules as people write them: frozen at their run, and compared with those of another run. Right, or refused."""

import abc
import collections
import dataclasses
import fractions
import functools
import itertools
import random

import numpy as np
import pytest

import keras_cg
from keras_cg import custom_gradient

X = np.array([0.5, -1.0, 2.0])


def backward(eager, output, x):
    """The gradient of the sum of an output that torch has computed."""
    output.sum().backward()
    return eager.array(x.grad)


CHANGES = {
    "an array": (lambda k: np.array([1.0, k]), lambda kept: kept[1]),
    "a number twice": (lambda k: [1.0, k, 2.0], lambda kept: kept[1]),
    "random numbers": (lambda k: random.Random(k), lambda kept: kept.random()),
    "a method": (lambda k: [1.0, 2.0].pop if k == 1.0 else [1.0, 2.0].__len__, lambda kept: kept()),
}


@pytest.mark.only("torch")
@pytest.mark.parametrize("change", [None, *CHANGES])
def test_a_rule_that_is_not_kept_and_changes(eager, change):
    """Hooks for saved tensors: the function runs again for its gradient."""
    import torch

    make, read = CHANGES.get(change, CHANGES["an array"])
    numbers = [1.0]

    @custom_gradient
    def f(x):
        kept = make(numbers[0])
        return x * 1, lambda upstream: 7 * upstream * read(kept)

    x = torch.tensor(X, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        output = f(x)
    if change is None:
        np.testing.assert_allclose(backward(eager, output, x), np.full(3, 7.0))
        return
    numbers[0] = 2.0
    with pytest.raises(RuntimeError, match="is not that of the first run"):
        backward(eager, output, x)


# --- frozen ----------------------------------------------------------------------------------------------------------


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


def own_method_in_an_attribute(k):
    rule = Scales(k)
    rule.again = rule.rule
    return rule.again


def deep(k):
    times = lambda upstream: 7 * upstream * k
    for _ in range(200):
        times = (lambda inner: lambda upstream: inner(upstream))(times)
    return times


# Rules of the number that `k()` gives now and the loop changes afterwards. The gradient is 7 k.
LOOPED = {
    "cell": lambda k: lambda u: 7 * u * k(),
    "default": lambda k: lambda u, h=lambda u: u * k(): 7 * h(u),
    "partial": lambda k: functools.partial(lambda h, u: 7 * h(u), lambda u: u * k()),
    "keyword of a partial": lambda k: functools.partial(lambda u, h: 7 * h(u), h=lambda u: u * k()),
    "partial of an object": lambda k: functools.partial(set_scale(SHARED, k())),
    "function in an attribute": lambda k: Scales(lambda u: u * k()),
    "method of it": lambda k: Scales(lambda u: u * k()).rule,
    "class of the run": lambda k: type("Rule", (), {"__call__": lambda self, u: 7 * u * k()})(),
    "attribute": lambda k: set_scale(SHARED, k()),
    "attribute of a base": lambda k: set_scale(HEIR, k()),
    "method": lambda k: set_scale(SHARED, k()).rule,
    "method in a cell": lambda k: method_in_a_cell(k()),
    "own method in an attribute": lambda k: own_method_in_an_attribute(k()),
    "immutable": lambda k: Immutable(k()),
    "guarded": lambda k: Guarded(k()),
    "decorated": lambda k: (lambda inner: lambda u: 7 * inner(u))(custom_gradient(lambda u: (u * k(), lambda v: v))),
    "function on an instance": lambda k: set_scale(Scales(), lambda u: 7 * u * k()).scale,
    "two hundred functions": lambda k: deep(k()),
}


@pytest.mark.parametrize("name", LOOPED)
def test_a_rule_of_a_loop(eager, name):
    """Each call has the rule of its run: the gradient is 7 (2 + 3)."""
    make = LOOPED[name]

    def loss(x):
        total = x * 0
        for k in (2.0, 3.0):
            # The rule itself closes over k, which the loop binds again.
            total = total + custom_gradient(lambda x: (x * 1, make(lambda: k)))(x)
        return total

    found = keras_cg.grad(loss)(eager.tensor(X))
    np.testing.assert_allclose(eager.array(found), np.full(3, 35.0), rtol=1e-6)


# --- compared --------------------------------------------------------------------------------------------------------


def with_property(x, k):
    class Kept:
        @property
        def value(self):
            return x * k

    kept = Kept()
    return lambda u: 7 * u * x * kept.value


def with_generator(x, k):
    draw = random.Random(k)
    return lambda u: 7 * u * x * x * draw.choice([1.0])


def with_class_constant(x, k):
    return (lambda kind: lambda u: 7 * u * x * x * kind.k)(type("Kept", (), {"k": k}))


def with_recursion(x, k):
    def power(u, n):
        return 7 * u * k if n == 0 else power(u, n - 1) * x

    return lambda u: power(u, 2)


def with_bases(x, k):
    first, other = (type("Base", (), {"value": lambda self: 1.0}), type("Other", (), {"value": lambda self: 1.0}))
    return (lambda kept: lambda u: 7 * u * x * x * kept.value())(type("Kept", (first if k == 1.0 else other,), {})())


def with_base_constant(x, k):
    return (lambda kept: lambda u: 7 * u * x * x * kept.k)(type("Kept", (type("Base", (), {"k": k}),), {}))


def with_member(member):
    return lambda x, k: (lambda kept: lambda u: 7 * u * x * x * kept.k())(type("Kept", (), {"k": member(k)}))


class Drawn(random.Random):
    """Pickle saves the state of the base, and no attribute."""


def with_attribute(make):
    def rule(x, k):
        kept = make()
        kept.k = k
        return lambda u: 7 * u * x * x * kept.k

    return rule


def with_shape(x, k):
    kept = np.empty((1, 2) if k == 1.0 else (2, 1), object)
    kept[...] = 7.0
    return lambda u: kept[0, 0] * u * x * x


# Rules of x and of a number, which is 1 in the first run. The gradient is 7 x².
COMPARED = {
    "property": with_property,
    "random numbers": with_generator,
    "class": with_class_constant,
    "recursion": with_recursion,
    "bases": with_bases,
    "number of a base": with_base_constant,
    "partial in a class": with_member(lambda k: functools.partial(lambda k: k, k)),
    "class in a class": with_member(lambda k: type("Inner", (), {"__new__": lambda kind: k})),
    "abstract class": with_attribute(lambda: type("Kept", (abc.ABC,), {})()),
    "subclass of random": with_attribute(lambda: Drawn(1)),
    "subclass of a number": with_attribute(lambda: type("Number", (float,), {})(1.0)),
    "subclass of a list": with_attribute(lambda: type("Listed", (list,), {})([1.0])),
    "shape": with_shape,
    "partial of a partial": lambda x, k: functools.partial(functools.partial(lambda a, b, u: 7 * u * a * b, x), x * k),
    "iterator": lambda x, k: (lambda it: lambda u: 7 * u * x * x * (next(it) > 0))(itertools.count(round(k))),
    "fraction": lambda x, k: (lambda kept: lambda u: 7 * u * x * x * float(kept))(fractions.Fraction(k)),
    "default": lambda x, k: lambda u, k=k: 7 * u * x * x * k,
    "default dict": lambda x, k: (lambda kept: lambda u: 7 * u * x * kept["a"] * kept["b"])(
        collections.defaultdict(lambda: k, a=x)
    ),
    "deque": lambda x, k: (lambda kept: lambda u: 7 * u * kept[0]["a"][1][0] * x)(
        collections.deque([{"a": (k, [x * k])}])
    ),
    "cached": lambda x, k: (lambda kept: lambda u: 7 * u * x * x * kept())(functools.lru_cache(lambda: k)),
}


def order(eager, name, orders, turns):
    """The derivative of some order, where the runs of the function take their numbers from `turns`."""
    f = custom_gradient(lambda x: (x * 1, COMPARED[name](x, next(turns))))
    for _ in range(orders):
        f = keras_cg.grad(f)
    return eager.array(f(eager.tensor(X)))


@pytest.mark.parametrize("name", COMPARED)
def test_rules_that_are_equal(eager, name):
    for orders, expected in ((1, 7 * X**2), (2, 14 * X), (3, np.full(3, 14.0))):
        np.testing.assert_allclose(order(eager, name, orders, itertools.repeat(1.0)), expected, rtol=1e-6)


@pytest.mark.parametrize("name", COMPARED)
def test_rules_that_are_not_equal(eager, name):
    if eager.name == "jax":
        # One program has both derivatives, of one run.
        np.testing.assert_allclose(order(eager, name, 1, itertools.count(1.0)), 7 * X**2, rtol=1e-6)
        return
    with pytest.raises(RuntimeError, match="is not that of the first run"):
        order(eager, name, 2, itertools.count(1.0))
