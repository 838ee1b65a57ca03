"""The kind of a gradient: a boolean one is refused, one that is not asked for is ignored."""

import numpy as np
import pytest
from outcomes import right_or_refused
from ways import check

from keras_cg import GradientError, custom_gradient, ops

X = np.array([-1.0, 2.0, 3.0], np.float32)
Y = np.array([0.5, -1.5, 2.5], np.float32)
SEVEN, FIVE = np.full(3, 7.0), np.full(3, 5.0)

IN_EVERY_MODE = (
    "test_a_mask_times_upstream[mask last]",
    "test_masks_that_work[where]",
    "test_masks_that_work[remedy]",
    "test_a_boolean_gradient_under_compile",
    "test_a_gradient_at_a_static_argument_is_no_reading",
    "test_a_sloppy_gradient_that_is_not_asked_for",
    "test_a_sloppy_gradient_that_is_asked_for[shape]",
)


# --- a boolean gradient ---------------------------------------------------------------------------------------------


def assert_boolean_is_refused(run, argument="x"):
    with pytest.raises(GradientError) as caught:
        run()
    text = str(caught.value)
    for part in ("masked", f"for {argument}", "bool", "ops.where(mask, upstream, 0)"):
        assert part in text


@pytest.mark.limit
@pytest.mark.parametrize("order", ["mask last", "mask first"])
def test_a_mask_times_upstream(frame, order):
    """On TensorFlow the product is boolean, and has lost upstream."""

    @custom_gradient
    def masked(x):
        return x * 2, lambda upstream: upstream * (x > 0) if order == "mask last" else (x > 0) * upstream

    run = lambda: frame.gradients(lambda x: masked(x) * 2.5, X)
    if frame.name == "tensorflow":
        assert_boolean_is_refused(run)
    else:
        np.testing.assert_allclose(run()[0], 2.5 * (X > 0))


MASKS = {
    "where": lambda x, upstream: ops.where(x > 0, upstream, 0 * upstream),
    "cast": lambda x, upstream: upstream * ops.where(x > 0, ops.ones_like(x), ops.zeros_like(x)),
    "remedy": lambda x, upstream: ops.where(x > 0, upstream, 0),
}


@pytest.mark.parametrize("mask", MASKS)
def test_masks_that_work(frame, mask):
    masked = custom_gradient(lambda x: (x * 2, lambda upstream: MASKS[mask](x, upstream)))
    frame.check(lambda x: masked(x) * 2.5, [X], [2.5 * (X > 0)])


# What the rule returns for a nest with x in it, and for y; the argument of the message.
BOOLEANS = {
    "flat": (lambda x: x, lambda x: (x > 0,), X, "x"),
    "nest": (lambda x: {"a": x}, lambda p: ({"a": p["a"] > 0},), X, "x['a']"),
    "number": (lambda x: x, lambda x: True, np.float32(2.0), "x"),
}


@pytest.mark.parametrize("case", BOOLEANS)
def test_a_boolean_gradient(eager, case):
    nest, returned, array, argument = BOOLEANS[case]

    @custom_gradient
    def masked(x):
        return (x["a"] if case == "nest" else x) * 2, lambda upstream: returned(x)

    assert_boolean_is_refused(lambda: eager.gradients(lambda x: masked(nest(x)), array), argument)


@pytest.mark.limit
def test_a_boolean_gradient_under_compile(frame):
    # Dynamo wraps what is raised while it traces.
    with pytest.raises(Exception, match=r"ops\.where\(mask, upstream, 0\)"):
        frame.gradients(custom_gradient(lambda x: (x * 2, lambda upstream: x > 0)), X)


def test_a_gradient_at_a_static_argument_is_no_reading(frame):
    """Of `(None, 5, 7)` for `(p, n, y)`: None for p, 5 for the number n and 7 for y would be one; it is none.

    What is left is one for each tensor leaf: None for p[0], 5 for p[2], 7 for y.
    """

    f = custom_gradient(lambda p, n, y: (p[0] * y, lambda upstream: (None, upstream * 5, upstream * 7)))
    frame.check(lambda x, y: f([x, "mode", x], 3, y), [X, Y], [FIVE, SEVEN])


# --- a sloppy gradient for an argument that is not differentiated ---------------------------------------------------

SLOPPY = {
    "shape": lambda x, upstream: upstream,
    "boolean": lambda x, upstream: ops.sum(x) > 0,
    "both": lambda x, upstream: x > 0,
}


def quantiser(sloppy):
    """A function of x and a scale; its rule gives the scale something other than a gradient."""

    @custom_gradient
    def quantise(x, scale):
        return ops.floor(x / scale) * scale, lambda upstream: (7 * upstream, SLOPPY[sloppy](x, upstream))

    return quantise


@pytest.mark.parametrize("sloppy", SLOPPY)
def test_a_sloppy_gradient_that_is_not_asked_for(frame, sloppy):
    f, scale = quantiser(sloppy), frame.tensor(np.float32(0.5))
    run = lambda: frame.gradients(lambda x: f(x, scale), X)[0]
    # In a program JAX does not say who is differentiated.
    refused = (GradientError,) if frame.name == "jax" and frame.mode != "eager" else ()
    right_or_refused(run, SEVEN, *refused)


@pytest.mark.parametrize("sloppy", SLOPPY)
def test_a_sloppy_gradient_that_is_asked_for(frame, sloppy):
    # Dynamo wraps what is raised while it traces.
    text = "wrong shape for scale" if sloppy == "shape" else "for scale"
    with pytest.raises(Exception, match=text):
        frame.gradients(quantiser(sloppy), X, np.float32(0.5))


@pytest.mark.only("torch")
def test_a_sloppy_gradient_under_torch_func(eager, torch):
    f, x, scale = quantiser("shape"), eager.tensor(X), torch.tensor(0.5)
    check(eager, torch.func.grad(lambda x: f(x, scale).sum())(x), SEVEN)
    with pytest.raises(GradientError, match="wrong shape for scale"):
        torch.func.grad(lambda scale: f(x, scale).sum())(scale)
