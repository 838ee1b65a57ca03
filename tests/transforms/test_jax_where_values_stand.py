"""JAX: a captured value of any level, wherever it stands, beside arguments of every other level: a table.

f = w x y, whose rule gives 7 times the derivative by x and y, and 5 times the one by w, if it takes `variables`. w
belongs to an outer level, x to one inside of it, and y to one inside of that. What y starts at is a constant, or
depends on x or w.
"""

import contextlib
import contextvars
import dataclasses
import functools
import types
from itertools import chain
from typing import Any

import pytest

from keras_cg import CapturedVariableError, custom_gradient

pytestmark = pytest.mark.only("jax")


class Keeper:
    __slots__ = ("__dict__", "slot")

    def read(self):
        return self.w


def holding(**members):
    keeper = Keeper()
    for name, value in members.items():
        setattr(keeper, name, value)
    return keeper


HERE = types.SimpleNamespace()
VARIABLE = contextvars.ContextVar("w")


def in_a_global(w):
    HERE.w = w
    return lambda: HERE.w


def in_a_context_variable(w):
    VARIABLE.set(w)
    return VARIABLE.get


def in_a_module(w):
    """As equinox makes one: JAX itself can flatten it."""
    import jax

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Module:
        w: Any

    module = Module(w)
    return lambda: module.w


# How the function reads w.
HOLDERS = {
    "cell": lambda w: lambda: w,
    "default": lambda w: lambda w=w: w,
    "partial": lambda w: functools.partial(lambda w: w, w),
    "list": lambda w: (lambda kept: lambda: kept[0])([w]),
    "dict": lambda w: (lambda kept: lambda: kept["w"])({"w": w}),
    "nest": lambda w: (lambda kept: lambda: kept[0]["w"][1])([{"w": (None, w)}]),
    "attribute": lambda w: (lambda keeper: lambda: keeper.w)(holding(w=w)),
    "slot": lambda w: (lambda keeper: lambda: keeper.slot)(holding(slot=w)),
    "method": lambda w: holding(w=w).read,
    "object in an object": lambda w: (lambda keeper: lambda: keeper.inner.w)(holding(inner=holding(w=w))),
    "class": lambda w: (lambda kind: lambda: kind.w)(type("Kind", (), {"w": w})),
    "module": in_a_module,
    "global": in_a_global,
    "context variable": in_a_context_variable,
}


def in_a_penalty(j, g, x):
    """The value beside a gradient penalty, which counts nothing."""
    value, slope = j.value_and_grad(g)(x)
    return value + 0 * slope


# Calls a function of one number at a level of its own.
LEVELS = {
    "grad": in_a_penalty,
    "vjp": lambda j, g, x: j.vjp(g, x)[0],
    "jvp": lambda j, g, x: j.jvp(g, (x,), (1.0,))[0],
    "linearize": lambda j, g, x: j.linearize(g, x)[0],
    "vmap": lambda j, g, x: j.vmap(g)(j.numpy.stack([x]))[0],
    "jit": lambda j, g, x: j.jit(g)(x),
    "scan": lambda j, g, x: j.lax.scan(lambda carry, x: (carry, g(x)), 0.0, j.numpy.stack([x]))[1][0],
    "checkpoint": lambda j, g, x: j.checkpoint(g)(x),
}
W, X, Y = 2.0, 1.5, 3.0

# What y starts at, and the derivative of the whole by w: 5 x y, and 7 w x for each w in y.
STARTS = {
    "a constant": (lambda w, x: Y, 5 * X * Y),
    "of x": (lambda w, x: 2 * x, 5 * X * 2 * X),
    "of w": (lambda w, x: 2 * w, 5 * X * 2 * W + 7 * W * X * 2),
}
DIFFERENTIATE = {
    "grad": lambda j, loss: j.grad(loss)(W),
    "jit of grad": lambda j, loss: j.jit(j.grad(loss))(W),
    "jvp": lambda j, loss: j.jvp(loss, (W,), (1.0,))[1],
}

PAIRS = [("grad", "vmap"), ("vmap", "grad"), ("vjp", "jvp"), ("linearize", "checkpoint")]


def made(read, takes_variables):
    def f(x, y):
        w = read()

        def alone(upstream):
            return 7 * upstream * w * y, 7 * upstream * w * x

        def with_variables(upstream, variables=()):
            return (alone(upstream), [5 * upstream * x * y]) if variables else alone(upstream)

        return w * x * y, with_variables if takes_variables else alone

    return custom_gradient(f)


def faults(jax, loss, expected, row, modes=("grad", "jvp")):
    """A list of the row, if `loss(w, takes_variables)` has a wrong derivative with `variables`, or one without."""
    found = []
    for how in modes:
        differentiate = DIFFERENTIATE[how]
        came = float(differentiate(jax, lambda w: loss(w, True)))
        found += [(row, how, came, expected)] if abs(came - expected) > 1e-4 else []
        with contextlib.suppress(CapturedVariableError):
            found.append((row, how, differentiate(jax, lambda w: loss(w, False)), "refused"))
    return found


def nested(jax, holder, levels, start, **modes):
    """A loss of w whose last two levels are those of x and y; a level before them has a number that nothing reads."""
    begin, expected = STARTS[start]
    *around, outer, inner = [LEVELS[level] for level in levels]

    def loss(w, takes_variables):
        f = made(HOLDERS[holder](w), takes_variables)
        run = lambda _: outer(jax, lambda x: inner(jax, lambda y: f(x, y), begin(w, x)), X)
        for level in around:
            run = lambda _, level=level, run=run: level(jax, run, X)
        return run(None)

    return faults(jax, loss, expected, (holder, levels, start), **modes)


@pytest.mark.parametrize("outer", LEVELS)
def test_every_pair_of_levels(jax, outer):
    """A quick look at the function does not show what is in a list."""
    assert not [*chain(*[nested(jax, "list", (outer, inner), start) for inner in LEVELS for start in STARTS])]


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_around_a_pair(jax, level):
    assert not [*chain(*[nested(jax, "list", (level, *pair), "of w") for pair in PAIRS])]


@pytest.mark.parametrize("holder", HOLDERS)
def test_every_place(jax, holder):
    assert not [*chain(*[nested(jax, holder, pair, "of w", modes=DIFFERENTIATE) for pair in PAIRS])]


@pytest.mark.parametrize("level", LEVELS)
def test_one_level_inside(jax, level):
    """x belongs to the inner level, and y, which is 2 w, to the outer one alone."""

    def row(holder):
        def loss(w, takes_variables):
            f = made(HOLDERS[holder](w), takes_variables)
            return LEVELS[level](jax, lambda x: f(x, 2 * w), X)

        return faults(jax, loss, STARTS["of w"][1], (holder, level))

    assert not [*chain(*map(row, HOLDERS))]
