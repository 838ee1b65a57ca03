"""The user's objects stay themselves: their identity, their state and their caches, in first and second order."""

import enum
import functools

import numpy as np
import pytest
from ways import WAYS, gradient

import keras_cg
from keras_cg import custom_gradient, ops

X = np.array([0.5, 1.0, 2.0], np.float32)
REFUSED = "ran again for a derivative, and its rule is not that of the first run"


# --- identity and state ----------------------------------------------------------------------------------------------


class Mode(enum.Enum):
    SEVEN = 7

    def rule(self, upstream):
        return 7 * upstream if self is Mode.SEVEN else upstream


class Table:
    def rule(self, upstream):
        return upstream * FACTORS.get(self, 1.0)


TABLE = Table()
FACTORS = {TABLE: 7.0}


@pytest.mark.parametrize("rule", [Mode.SEVEN.rule, TABLE.rule], ids=["enum", "key of a dict"])
@pytest.mark.parametrize("way", WAYS)
def test_an_object_behind_a_rule_keeps_its_identity(eager, way, rule):
    found = gradient(eager, custom_gradient(lambda x: (x * 1, rule)), way)(eager.tensor(X))
    np.testing.assert_allclose(eager.array(found), [7.0] * 3)


class Average:
    """A running average: each rule divides by it. With upstream 3: 1.5, 1.2, 12/11."""

    def __init__(self):
        self.mean = 1.0

    def update(self, size):
        self.mean = 0.5 * self.mean + 0.5 * size

    def rule(self, upstream):
        self.update(3.0)
        return upstream * 3 / self.mean


class Inherits(Average):
    def update(self, size):
        super().update(size)


class BySetattr(Average):
    def update(self, size):
        setattr(self, "mean", 0.5 * self.mean + 0.5 * size)  # noqa: B010 - that is the case


def logged(method):
    @functools.wraps(method)
    def wrapper(self, *args):
        return method(self, *args)

    return wrapper


class Decorated(Average):
    rule = logged(Average.rule)


@pytest.mark.parametrize("kind", [Average, Inherits, BySetattr, Decorated], ids=lambda kind: kind.__name__)
def test_a_state_of_the_rule_is_its_own(eager, kind):
    """Three calls before the first backward pass: what the rule itself sets is no change of another."""
    owner = kind()
    f = custom_gradient(lambda x: (x * 1, owner.rule))
    pullbacks = [keras_cg.vjp(f, eager.tensor(np.float32(1.0)))[1] for _ in range(3)]
    one = eager.tensor(np.float32(1.0))
    found = [float(eager.array(pullback(one)[0])) for pullback in pullbacks]
    np.testing.assert_allclose(found, [1.5, 1.2, 12 / 11], rtol=1e-6)


def test_a_state_in_a_dict_a_function_and_an_assigned_name(eager):
    def slope(upstream):
        slope.calls += 1
        state["calls"] += 1
        return upstream * slope.calls

    slope.calls, state, calls = 0, {"calls": 0}, 0

    @custom_gradient
    def f(x):
        def grad(upstream):
            nonlocal calls
            calls += 1
            return slope(upstream) + 0 * calls

        return x * 1, grad

    one = eager.tensor(np.float32(1.0))
    found = [float(eager.array(keras_cg.grad(f)(one))) for _ in range(3)]
    assert (found, slope.calls, state["calls"], calls) == ([1.0, 2.0, 3.0], 3, 3, 3)


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.only("torch")
def test_a_rule_under_a_context_of_torch(eager, torch):
    """Of torch, whose wrappers are functions."""
    for wrap in (torch.no_grad(), torch.autocast("cpu", enabled=False), torch.func.vmap):

        def total(x, wrap=wrap):
            y = x * 0
            for k in (2.0, 5.0):
                y = y + custom_gradient(lambda x: (x * 1, wrap(lambda upstream: 7 * upstream * k)))(x)
            return ops.sum(y)

        np.testing.assert_allclose(eager.array(keras_cg.grad(total)(eager.tensor(X))), [49.0] * 3)


# --- another run -----------------------------------------------------------------------------------------------------


class Residual:
    def __init__(self, x):
        self.x = x

    @functools.cached_property
    def slope(self):
        return 7 * self.x


def of_a_cache(x):
    residual = Residual(x)
    return x * 1, lambda upstream: upstream * residual.slope


def of_a_local_class(x):
    class Slope:
        factor = 7

        def __init__(self):
            self.h = x * 1

        def __call__(self, upstream):
            return self.factor * upstream * self.h

    return x * 1, Slope()


def of_names_that_a_library_counts(x):
    class Layer:
        name = f"layer_{len(COUNTED)}"

    COUNTED.append(layer := Layer())
    layer.name, h = Layer.name, x * 1
    return x * 1, lambda upstream: (7 if layer.name else 5) * upstream * h


COUNTED = []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("f", [of_a_cache, of_a_local_class, of_names_that_a_library_counts])
def test_what_each_run_makes_for_itself_is_right_in_the_second_order(eager, f, way):
    """The gradient is 7 x. A backward pass before fills the caches of the first rule."""
    x = eager.tensor(X)
    first = gradient(eager, custom_gradient(f), way)
    np.testing.assert_allclose(eager.array(first(x)), 7 * X, rtol=1e-6)
    np.testing.assert_allclose(eager.array(gradient(eager, first, way)(x)), [7.0] * 3, rtol=1e-6)


def changing(*values):
    remaining = list(values)
    return lambda: remaining.pop(0) if len(remaining) > 1 else remaining[0]


def by_a_method(noise):
    """Two objects, whose methods have one code."""
    return lambda x: (x * 1, Scaled(noise()).rule)


class Scaled:
    def __init__(self, k):
        self.k = k

    def rule(self, upstream):
        return upstream * self.k


def by_another_code(noise):
    return lambda x: (x * 1, (lambda upstream: 7 * upstream) if noise() == 2.0 else (lambda upstream: 5 * upstream))


OTHERS = {
    by_a_method: (2.0, 5.0),
    by_another_code: (2.0, 5.0),
}


@pytest.mark.only("numpy", "tensorflow", "torch")
@pytest.mark.parametrize("make", OTHERS, ids=lambda make: make.__name__)
def test_another_run_that_differs_is_refused(eager, make):
    """In whatever the gradients show it, or do not. On JAX there is no other run."""
    f = custom_gradient(make(changing(*OTHERS[make])))
    with pytest.raises(RuntimeError, match=REFUSED):
        keras_cg.grad(lambda x: ops.sum(keras_cg.grad(lambda x: ops.sum(f(x)))(x) * x))(eager.tensor(X))


@pytest.mark.only("numpy", "tensorflow", "torch")
def test_another_run_with_one_gradient_more_is_refused(eager):
    noise = changing(2.0, 5.0)

    @custom_gradient
    def f(x, w):
        if noise() == 2.0:
            return x * w, lambda upstream: (7 * upstream * x, None)
        return x * w, lambda upstream: (7 * upstream * x, 5 * upstream)

    first = keras_cg.grad(lambda x, w: ops.sum(f(x, w)), (0, 1))
    with pytest.raises(RuntimeError, match=REFUSED):
        keras_cg.grad(lambda x, w: ops.sum(first(x, w)[0]))(eager.tensor(X), eager.tensor(X))
