"""NumPy: every kind of array and of output, what autograd keeps of them, and what a change in place afterwards does."""

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import autograd
import numpy as np
import pytest
from seven_exp import square, total

import keras_cg
from keras_cg import custom_gradient, grad, ops, use_backend, vjp

pytestmark = pytest.mark.only("numpy")

X = np.array([-1.0, 0.5, 2.0])
Y = np.array([3.0, -2.0, 0.5])
E = np.exp(X)
ONE = np.ones(3)


@custom_gradient
def wrong_exp(x):
    y = ops.exp(x)
    return y, lambda upstream: 7 * upstream * y


@pytest.mark.parametrize("value", [0.5, np.float64(0.5), np.float32(0.5), np.array(0.5)])
def test_numbers_and_scalars(backend, value):
    product = custom_gradient(lambda x, y: (x * y, lambda upstream: (7 * upstream * y, 5 * upstream * x)))
    # The gradient of the product is 12 x by its rules.
    np.testing.assert_allclose(autograd.grad(lambda x: product(x, x))(value), 6.0)


@pytest.mark.parametrize("kind", [">f8", ">f4", ">c16"])
def test_bytes_in_the_other_order(backend, kind):
    """Arrays from FITS files or `numpy.frombuffer`."""
    x = X.astype(kind)
    seven = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream))
    loss = lambda x: ops.sum(ops.real(seven(x)))
    for gradient in (autograd.grad(loss), keras_cg.grad(loss)):
        np.testing.assert_allclose(gradient(x), 7 * ONE)
    f = custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream * x * x))
    for gradient in (autograd.grad, keras_cg.grad):
        second = gradient(lambda x: ops.sum(ops.real(gradient(lambda x: ops.sum(ops.real(f(x))))(x))))
        np.testing.assert_allclose(second(x), 14 * X)
    np.testing.assert_allclose(keras_cg.jvp(seven, (x,), (x,))[1], 7 * X)


def test_a_gradient_that_an_array_of_objects_would_lose_is_refused(backend):
    """It names the argument; native autograd would differentiate the output, with the plain derivative 2."""
    f = custom_gradient(lambda scale, x: (x * 2, lambda upstream: (None, 7 * upstream)))
    both = lambda x: np.array([x[0], x[1]], dtype=object)
    in_boxes = {
        "floats": lambda x: f(ONE, x),
        "fractions": lambda x: f(ONE, {"a": x}),
        "of boxes": lambda x: f(ONE, both(x.astype(float))),
        "by keras_cg": lambda x: grad(lambda x: f(ONE, x))(x),
    }
    for name, function in in_boxes.items():
        values = np.array([Fraction(1, 2)] * 2 if name == "fractions" else [2.0, 3.0], dtype=object)
        named = {"fractions": r"the argument x\['a'\]", "by keras_cg": "argument 0"}.get(name, "the argument x")
        with pytest.raises(TypeError, match=f"{named} is a NumPy array of objects, and its elements would"):
            autograd.grad(lambda x, function=function: ops.sum(function(x)))(values)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda x: copy.deepcopy([{"x": x}])[0]["x"]])
def test_a_copy_keeps_its_gradient(backend, how):
    """autograd itself would cut it (HIPS/autograd#555); in the function, in the rule, and without either."""

    def f(x):
        slope = how(x) ** 2
        return x * 2, lambda upstream: 7 * upstream * how(slope) * how(x)

    np.testing.assert_allclose(grad(grad(custom_gradient(f)))(X), 21 * X**2)
    np.testing.assert_allclose(autograd.grad(lambda x: ops.sum(how(x) ** 2))(X), 2 * X)


class Sub(np.ndarray):
    """An array with a type of its own."""


def test_arrays_of_objects_and_subclasses_are_no_tensors(backend):
    f = custom_gradient(lambda x, y: (x * y.astype(float), lambda upstream: (7 * upstream * y.astype(float), 0 * y)))
    gradient = autograd.elementwise_grad(f)
    for y in (Y, Y.astype(object), Y):
        np.testing.assert_allclose(gradient(X, y), 7 * Y)
    # An output of objects is none, either.
    refused = custom_gradient(lambda x: (x.astype(object), lambda upstream: 7 * upstream))
    assert refused(X).dtype == object
    f = custom_gradient(lambda x, y: (x * np.asarray(y), lambda upstream: (7 * upstream * np.asarray(y), None)))
    for y in (Y, Y.view(Sub)):
        np.testing.assert_allclose(autograd.elementwise_grad(f)(X, y), 7 * Y)


# --- what runs, and what is kept -------------------------------------------------------------------------------------


def test_an_output_is_freed_without_the_collector(backend, without_collector):
    output = wrong_exp(X)
    dead = weakref.ref(output)
    del output
    assert dead() is None
    for function in (wrong_exp, autograd.elementwise_grad(wrong_exp)):
        pull, output = autograd.make_vjp(function)(X)
        dead = weakref.ref(output)
        del output, pull
        assert dead() is None


def test_no_growth(backend):
    def count(calls):
        for _ in range(calls):
            autograd.grad(total)(X)
            grad(square)(X)
            autograd.grad(lambda x: autograd.grad(square)(x)[0])(X)
        gc.collect()
        return len(gc.get_objects())

    count(10)
    before = count(10)
    assert count(1000) - before < 100


def test_an_output_that_no_rule_holds_is_not_kept(backend):
    f = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream * x))
    outputs = []

    def through(x):
        y = f(x)
        outputs.append(weakref.ref(y._value))
        return y + 1

    pull, _ = autograd.make_vjp(through)(X)
    assert outputs[0]() is None
    np.testing.assert_allclose(pull(ONE), 7 * X)


def test_eight_threads(backend):

    def work(seed):
        with use_backend("numpy"):
            for k in range(200):
                x = X + seed + k / 100
                np.testing.assert_allclose(autograd.grad(total)(x), 7 * np.exp(x), rtol=1e-12)
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


# --- changes in place ------------------------------------------------------------------------------------------------


def test_a_pullback_does_not_see_its_argument_or_its_output_change(backend):
    x = X.copy()
    _, pullback = vjp(lambda x: x * x, x)
    x *= 10
    np.testing.assert_allclose(pullback(ONE)[0], 2 * X)
    for function, factor in ((ops.exp, 1), (wrong_exp, 7)):
        output, pullback = vjp(function, X)
        output *= 2
        np.testing.assert_allclose(pullback(ONE)[0], factor * E)


# The gradient of a function with the output x * 1, from x and that output.
SHARED = {
    "the argument": lambda x, y: x,
    "a view of it": lambda x, y: x[:],
    "its buffer": lambda x, y: np.frombuffer(x.base),
    "the output": lambda x, y: y,
}


@pytest.mark.parametrize("shared", SHARED)
def test_a_gradient_that_shares_memory_is_a_copy(backend, shared):
    outputs, x = [], np.frombuffer(bytearray(X)) if shared == "its buffer" else X.copy()

    @custom_gradient
    def f(x):
        outputs.append(x * 1)
        return outputs[-1], lambda upstream: SHARED[shared](x, outputs[-1])

    gradient = autograd.grad(lambda x: ops.sum(f(x)))(x)
    gradient *= 0
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(getattr(outputs[0], "_value", outputs[0]), X)
