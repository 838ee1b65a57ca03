"""Wherever a rule keeps what the function computed, its derivatives are there, of any order and by any means.

With e = exp(x), each rule of places.py gives 7 u e² for 2 x. So its derivative is 14 e², and a refusal is told.
"""

import numpy as np
import pytest
from outcomes import right_or_refused
from places import PLACES
from ways import PAIRS, WAYS, gradient

import keras_cg
from keras_cg import custom_gradient, grad, ops

X = np.array([-1.3, 0.4, 0.8], np.float32)
E = np.exp(X)


# A tensor has another identity in each run, and a number of NumPy another type than the box that autograd traces.
REFUSED = {"key by identity": ("torch", "tensorflow", "numpy"), "built-in method": ("numpy",)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES)
def test_the_first_and_the_second_order(eager, place, way):
    runs = []

    @custom_gradient
    def f(x):
        runs.append(x)
        return x * 2, PLACES[place](ops.exp(x))

    x, once = eager.tensor(X), gradient(eager, f, way)
    is_recorded = eager.name == "torch" and way != "keras_cg"
    refused = (RuntimeError,) if eager.name in REFUSED.get(place, ()) else ()
    text = "its rule is not that of the first run"
    if right_or_refused(lambda: eager.array(once(x)), 7 * E**2, *(refused if is_recorded else ()), match=text):
        # On torch these record, and a function whose backward pass is recorded runs again: once to compare the two
        # rules, and once more where only their gradients can tell, which uses the second rule up.
        assert 1 + is_recorded <= len(runs) <= 1 + 2 * is_recorded
    is_right = right_or_refused(lambda: eager.array(gradient(eager, once, way)(x)), 14 * E**2, *refused, match=text)
    assert is_right or place in REFUSED


# --- what the rule alone reads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["cell", "list", "dict", "partial", "attribute", "object", "bound method", "global"])
@pytest.mark.parametrize(("outer", "inner"), PAIRS.values(), ids=PAIRS)
def test_what_the_rule_alone_reads(eager, place, outer, inner):
    """The slope s of a surrogate that is itself learned: of 7 s², the derivative is 14 s."""
    x = eager.tensor(X)
    slope = lambda s: gradient(eager, custom_gradient(lambda v: (ops.floor(v), PLACES[place](s))), inner)(x)
    run = lambda: eager.array(gradient(eager, slope, outer)(eager.tensor(E)))
    # On JAX and in TensorFlow's graphs what is in no closure may be refused.
    is_found = place == "cell" or eager.name == "torch"
    right_or_refused(run, 14 * E, *(() if is_found else (TypeError, ValueError, NotImplementedError)))


@pytest.mark.parametrize("way", WAYS)
def test_what_the_rule_alone_reads_by_vjp_and_jacobian(eager, way):
    x, upstream = eager.tensor(X), eager.tensor(2 * X)

    def pulled(f):
        return keras_cg.vjp(f, x)[1](upstream)[0] if way == "keras_cg" else eager.native.vjp(f, x, way)[1](upstream)

    firsts = {
        "vjp": (lambda f: keras_cg.vjp(f, x)[1](upstream)[0], 2 * X),
        "vjp by that way": (pulled, 2 * X),
        "jacobian": (lambda f: ops.sum(keras_cg.jacobian(f)(x), axis=0), 1),
        "value_and_grad": (lambda f: keras_cg.value_and_grad(f)(x)[1], 1),
    }
    for name, (first, factor) in firsts.items():
        found = gradient(
            eager, lambda s, first=first: first(custom_gradient(lambda v: (ops.floor(v), PLACES["cell"](s)))), way
        )
        np.testing.assert_allclose(eager.array(found(eager.tensor(E))), 14 * E * factor, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("way", WAYS)
def test_a_slope_that_is_also_the_argument(eager, way):
    """Of s (7 s²), of which both parts are s."""

    slope = lambda s: grad(custom_gradient(lambda v: (ops.floor(v), lambda upstream: upstream * s * v)))(s * 1)
    np.testing.assert_allclose(eager.array(gradient(eager, slope, way)(eager.tensor(X))), 2 * X, rtol=1e-5)


@pytest.mark.only("torch")
def test_a_pullback_outlives_the_slope_of_torch(eager, torch):
    slope = torch.nn.Parameter(eager.tensor(E))
    _, pullback = keras_cg.vjp(custom_gradient(lambda v: (torch.floor(v), lambda dy: dy * slope)), eager.tensor(X))
    for upstream in (eager.tensor(X), eager.tensor(2 * X)):
        (found,) = torch.autograd.grad(pullback(upstream)[0].sum(), slope)
        np.testing.assert_allclose(eager.array(found), eager.array(upstream), rtol=1e-5)


# --- what is captured ------------------------------------------------------------------------------------------------


class Serves:
    """The rule 7 u h, and 5 times the sum of u h for a captured value."""

    __slots__ = ("h",)

    def __init__(self, h):
        self.h = h

    def __call__(self, upstream, variables=None):
        return (7 * upstream * self.h, [5 * ops.sum(upstream * self.h)]) if variables else 7 * upstream * self.h


def in_a_cell(h):
    def rule(upstream, variables=None):
        return (7 * upstream * h, [5 * ops.sum(upstream * h)]) if variables else 7 * upstream * h

    return rule


def captured(rule):
    """A function of w and x, which captures w: its gradients are 5 sum(e w) and 7 e w."""
    return lambda w, x: ops.sum(custom_gradient(lambda x: (x * w, rule(ops.exp(x) * w)))(x))


def only_read(w, x):
    """The output does not hang on w; the gradient does."""

    @custom_gradient
    def f(x):
        h = ops.exp(x) * w
        return x * 1, lambda upstream: 7 * upstream * h

    return ops.sum(f(x))


def slope_in_slots(s):
    return custom_gradient(lambda x: (x * 2, Serves(ops.exp(x) * s)))


# With d(f, n) for the gradient of the sum of f by its argument n, at w = 2 and X; the captured w, and what is expected.
CAPTURED = {
    **{
        f"{name}, {order}": (take, f, expected)
        for name, f in (("slots", captured(Serves)), ("cell", captured(in_a_cell)))
        for order, take, expected in [
            ("w", lambda d, f, w, x: d(f)(w, x), 2 * 5 * E.sum()),
            ("x", lambda d, f, w, x: d(f, 1)(w, x), 2 * 7 * E),
            ("w w", lambda d, f, w, x: d(d(f))(w, x), 5 * E.sum()),
            ("w x", lambda d, f, w, x: d(lambda x: d(f)(w, x))(x), 2 * 5 * E),
            ("x w", lambda d, f, w, x: d(lambda w: d(f, 1)(w, x))(w), 7 * E.sum()),
            ("x x", lambda d, f, w, x: d(lambda x: d(f, 1)(w, x))(x), 2 * 7 * E),
        ]
    },
    "read, x w": (lambda d, f, w, x: d(lambda w: d(f, 1)(w, x))(w), only_read, 7 * E.sum()),
    "read, x x": (lambda d, f, w, x: d(lambda x: d(f, 1)(w, x))(x), only_read, 2 * 7 * E),
    "read, x x w": (lambda d, f, w, x: d(lambda w: d(lambda x: d(f, 1)(w, x))(x))(w), only_read, 7 * E.sum()),
    "third": (lambda d, f, w, x: d(d(d(f(w))))(x), slope_in_slots, 14 * E),
    "slope": (lambda d, f, w, x: d(lambda w: d(f(w))(x))(w), slope_in_slots, 7 * E.sum()),
    "slope of the second": (lambda d, f, w, x: d(lambda w: d(d(f(w)))(x))(w), slope_in_slots, 7 * E.sum()),
    "mixed": (
        lambda d, f, w, x: d(lambda w: d(lambda x: d(f(w))(x) * x)(x))(w),
        slope_in_slots,
        (7 * E * X + 7 * E).sum(),
    ),
}


def by_keras_cg(f, argnums=0):
    return grad(lambda *args: ops.sum(f(*args)), argnums)


def by_torch(f, argnums=0):
    import torch

    return torch.func.grad(lambda *args: f(*args).sum(), argnums)


@pytest.mark.together
@pytest.mark.parametrize("name", CAPTURED)
def test_with_a_captured_value(eager, name):
    take, f, expected = CAPTURED[name]
    if eager.name == "numpy" and name.startswith(("slots, ", "cell, ")):
        return  # which refuses captured values
    w, x = eager.tensor(np.float32(2.0)), eager.tensor(X)
    for derivative in (by_keras_cg, by_torch) if eager.name == "torch" else (by_keras_cg,):
        np.testing.assert_allclose(eager.array(take(derivative, f, w, x)), expected, rtol=1e-4)


# --- torch -----------------------------------------------------------------------------------------------------------


@pytest.mark.only("torch")
def test_a_list_under_vmap(eager, torch):
    """The rule reduces what it keeps: a batch taken for one example would give another number, of the right shape."""

    @custom_gradient
    def f(x):
        rule = (lambda kept: lambda upstream: 7 * upstream * kept[0].sum())([torch.exp(x)])
        return x * 2, rule

    batch = torch.stack([torch.tensor(X), torch.tensor(2 * X)])
    came = torch.func.grad(lambda batch: torch.func.vmap(f)(batch).sum())(batch)
    np.testing.assert_allclose(came, 7 * np.exp([X, 2 * X]).sum(1, keepdims=True) * np.ones((2, 3)), rtol=1e-5)
