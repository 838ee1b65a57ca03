"""A rule with a parameter `needs_input_grad` is told which gradients are asked for, beside every convention."""

import functools

import numpy as np
import pytest

import keras_cg
from keras_cg import custom_gradient, ops

X, W = np.array([1.0, 2.0], np.float32), np.array([3.0, 5.0], np.float32)


def product(make):
    """x w, with the wrong factors 7 and 11, and what each call of the rule was told."""
    told = []

    def gradients(upstream, needs, x, w):
        told.append(needs)
        return 7 * upstream * w if needs[0] else None, 11 * upstream * x if needs[1] else None

    def f(x, w, k=1.0):
        return x * w, make(functools.partial(gradients, x=x, w=w))

    return custom_gradient(f), told


def one(gradients):
    return lambda upstream, needs_input_grad: gradients(upstream, needs_input_grad)


def keyword(gradients):
    return lambda upstream, *, needs_input_grad=None: gradients(upstream, needs_input_grad)


def one_by_one(gradients):
    return lambda *dys, needs_input_grad: gradients(dys[0], needs_input_grad)


def of_keras(gradients):
    return lambda *args, upstream=None, needs_input_grad=None: gradients(upstream, needs_input_grad)


def spelled(gradients):
    return lambda x, w, upstream, needs_input_grad: gradients(upstream, needs_input_grad)


def with_variables(gradients):
    return lambda upstream, variables=None, needs_input_grad=None: gradients(upstream, needs_input_grad)


RULES = [one, keyword, one_by_one, of_keras, spelled, with_variables]


@pytest.mark.parametrize("make", RULES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
def test_what_is_asked_for(eager, argnums, make):
    f, told = product(make)
    found = keras_cg.grad(lambda *args: ops.sum(f(*args)), argnums)(eager.tensor(X), eager.tensor(W))
    places = argnums if isinstance(argnums, tuple) else (argnums,)
    for place, gradient in zip(places, found if isinstance(argnums, tuple) else (found,), strict=True):
        np.testing.assert_allclose(eager.array(gradient), (7 * W, 11 * X)[place], rtol=1e-6)
    assert told == [(0 in places, 1 in places)]


def test_in_every_mode(frame):
    """A program that cannot tell asks for all; a compiled rule may write nothing down."""

    @custom_gradient
    def f(x, w):
        def grad(upstream, needs_input_grad):
            wanted = needs_input_grad == (True, True)
            return (7 * upstream * w, 11 * upstream * x) if wanted else (None, None)

        return x * w, grad

    _, gradients = frame.differentiate(f, X, W)
    np.testing.assert_allclose(gradients[0], 7 * W, rtol=1e-6)
    np.testing.assert_allclose(gradients[1], 11 * X, rtol=1e-6)


def test_the_second_order(eager):
    """Of 7 w for x, the derivative by w is 7: the rule is asked for it again."""
    f, told = product(one)
    first = keras_cg.grad(lambda x, w: ops.sum(f(x, w)))
    second = keras_cg.grad(lambda w: ops.sum(first(eager.tensor(X), w)))(eager.tensor(W))
    np.testing.assert_allclose(eager.array(second), [7.0, 7.0], rtol=1e-6)
    assert all(needs[0] for needs in told)


def test_integers_and_static_arguments(eager):
    """There is one answer for each tensor argument, in the order in which gradients are returned."""
    told = []

    def f(nest, k, n):
        def grad(upstream, needs_input_grad):
            told.append(needs_input_grad)
            return {"a": 7 * upstream, "b": None}, None

        return nest["a"] * k, grad

    n = eager.tensor(np.array([1, 2], np.int32))
    a, b = eager.tensor(X), eager.tensor(W)
    gradient = keras_cg.grad(lambda a: ops.sum(custom_gradient(f)({"a": a, "b": b}, 2.0, n)))(a)
    np.testing.assert_allclose(eager.array(gradient), [7.0, 7.0])
    assert told == [(True, False, False)]
