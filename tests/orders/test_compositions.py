"""Random compositions of rules that hold intermediates, to third order, forwards and backwards in either order.

Every function is a polynomial of its argument, and so is its rule: another one, so that plain differentiation cannot
pass. With z0 = x + t and z1, z2, ... for the outputs, one after the other, the derivative of zi by t is ri(zi-1) times
that of zi-1, where ri is the rule: that is how the expected numbers are made.
"""

import functools

import numpy as np
import pytest
from numpy.polynomial import Polynomial
from places import PLACES

import keras_cg
from keras_cg import custom_gradient, grad, jvp, ops
from keras_cg.frontend import config

COUNT = 40
POINTS = np.array([-0.9, 0.3, 1.1])


# Where a rule keeps its slope.
KEEPING = [
    *map(PLACES.get, ("cell", "list", "partial", "default", "object", "bound method", "slots", "property")),
    lambda kept: lambda *args, upstream=None: 7 * upstream * kept * kept,
]


def evaluated(coefficients, x):
    """A polynomial of one variable, by intermediates that the rule may hold."""
    total, power = x * 0 + coefficients[0], x
    for coefficient in coefficients[1:]:
        total = total + coefficient * power
        power = power * x
    return total


def step(values, slopes, place):
    """A decorated function of values, whose rule is 7 times the square of slopes."""

    @custom_gradient
    def f(x):
        slope = evaluated(slopes, x)
        return evaluated(values, x), place(slope)

    return f


def along(x, polynomials):
    """The composition at x + t, as a polynomial in t to the third order, whose derivatives are those of the rules."""
    z = Polynomial([x, 1.0])
    for values, slopes in polynomials:
        slope = 7 * Polynomial(slopes)(z) ** 2
        z = (slope * z.deriv()).integ(k=Polynomial(values)(z(0.0))).cutdeg(3)
    return z


def case(seed):
    """`(function, D)`, where D(k) is the derivative of order k at POINTS."""
    draw = np.random.default_rng(seed)
    steps, polynomials = [], []
    for _ in range(int(draw.integers(2, 4))):
        values, slopes = (draw.uniform(-limit, limit, 3).round(2).tolist() for limit in (0.7, 0.9))
        polynomials.append((values, slopes))
        steps.append(step(values, slopes, KEEPING[draw.integers(len(KEEPING))]))
    function = lambda x: functools.reduce(lambda value, each: each(value), steps, x)
    return function, lambda order: np.array([along(x, polynomials).deriv(order)(0.0) for x in POINTS])


def forwards(f):
    """The derivative along ones."""
    return lambda x: jvp(f, (x,), (ops.ones_like(x),))[1]


def by_parts(function):
    """A decorated function that calls a transform of torch.func: `x` once more, by a map over its numbers."""
    import torch

    @custom_gradient
    def f(x):
        ones = torch.func.vmap(lambda each: each * 0 + 1)(x)
        return x * ones, lambda upstream: upstream * ones

    return lambda x: f(function(x))


def in_a_batch(derivative):
    import torch

    return lambda x: torch.func.vmap(derivative)(x[None])[0]


# From the innermost to the outermost.
WAYS = {
    "first": (grad,),
    "forward": (forwards,),
    "second": (grad, grad),
    "forward of a gradient": (grad, forwards),
    "gradient of a forward": (forwards, grad),
    "third": (grad, grad, grad),
    "forward of the second": (grad, grad, forwards),
}


def wrong(backend, seed):
    """The ways that give another number than the closed form; an error of any kind leaves this."""
    function, expected = case(seed)
    if keras_cg.backend() == "torch":
        function = by_parts(function)
    found = []
    with backend.double_precision():
        x = backend.asarray(np.array(POINTS))
        for name, way in WAYS.items():
            derivative = functools.reduce(lambda f, each: each(f), way, function)
            # torch has other code under a transform.
            for each in (derivative, in_a_batch(derivative)) if keras_cg.backend() == "torch" else (derivative,):
                came = backend.to_numpy(each(x))
                if not np.allclose(came, expected(len(way)), rtol=1e-9, atol=1e-9):
                    found.append((name, came, expected(len(way))))
    return found


@pytest.mark.parametrize(
    "seed", [*range(3), *[pytest.param(seed, marks=pytest.mark.thorough) for seed in range(3, COUNT)]]
)
def test_compositions(backend, seed):
    """Right, and not refused."""
    assert not wrong(config.active, seed)
