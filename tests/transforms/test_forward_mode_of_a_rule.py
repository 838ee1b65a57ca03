"""Forward mode comes from the rule itself: the transpose of a linear one, on every backend; any other is refused."""

import numpy as np
import pytest

from keras_cg import custom_gradient, jvp, ops

X = np.array([-1.0, 2.0, 3.0], np.float32)
Y = np.array([0.5, -1.5, 2.5], np.float32)
ONES = np.ones(3, np.float32)

IN_EVERY_MODE = ("test_a_rule_that_is_not_linear_works_in_reverse",)


def clipping(limit):
    return lambda upstream: ops.clip(2 * upstream, -limit, limit)


NOT_LINEAR = {
    **{f"clip at {limit:g}": clipping(limit) for limit in (0.5, 1e6)},
    "affine": lambda upstream: upstream + 1,
    "relu": lambda upstream: ops.maximum(upstream, 0 * upstream),
    "norm": lambda upstream: upstream / (1 + ops.sum(upstream * upstream)),
}
NOT_LINEAR_TEXT = "linear in upstream"


def with_rule(rule):
    return custom_gradient(lambda x: (x * 2, rule))


def forward_modes(eager):
    """Every forward mode of the framework that serves a decorated function, as `mode(f, x, t)`."""
    modes = {"keras_cg": lambda f, x, t: jvp(f, (x,), (t,))[1]}
    if eager.name == "torch":
        import torch
        from torch.autograd import forward_ad

        def dual(f, x, t):
            with forward_ad.dual_level():
                return forward_ad.unpack_dual(f(forward_ad.make_dual(x, t))).tangent

        modes |= {"func": lambda f, x, t: torch.func.jvp(f, (x,), (t,))[1], "forward_ad": dual}
        modes["vmap"] = lambda f, x, t: torch.func.jvp(lambda x: torch.func.vmap(f)(x[None])[0], (x,), (t,))[1]
    if eager.name == "tensorflow":
        import tensorflow as tf

        def accumulated(f, x, t):
            with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
                y = f(x)
            return accumulator.jvp(y)

        modes["accumulator"] = accumulated
    return modes


@pytest.mark.parametrize("rule", NOT_LINEAR)
@pytest.mark.limit
def test_a_rule_that_is_not_linear(eager, rule):
    f, x = with_rule(NOT_LINEAR[rule]), eager.tensor(X)
    for size in (1.0, 100.0):
        for mode in forward_modes(eager).values():
            with pytest.raises(ValueError, match=NOT_LINEAR_TEXT):
                mode(f, x, eager.tensor(size * ONES))


def test_a_rule_that_is_not_linear_works_in_reverse(frame):
    f = with_rule(clipping(1.0))
    (gx,) = frame.gradients(lambda x: f(x) * 0.25 + f(x) * 100, X)
    np.testing.assert_allclose(gx, np.full(3, 1.5))


MATRIX = np.array([[1.0, 2.0, -3.0], [0.5, 1.0, 4.0], [2.0, -2.0, 1.0]], np.float32)
# A rule, and the matrix that it is.
LINEAR = {
    "zero": (lambda matrix: lambda upstream: 0 * upstream, np.zeros((3, 3))),
    "matrix": (lambda matrix: lambda upstream: ops.sum(matrix * upstream, axis=1), MATRIX),
    "tiny and huge": (
        lambda matrix: lambda upstream: upstream * ops.exp(60 * matrix[2] / 2),
        np.diag(np.exp(60 * MATRIX[2] / 2)),
    ),
    "where": (
        lambda matrix: lambda upstream: ops.where(matrix[0] > 0, 7 * upstream, 0 * upstream),
        np.diag([7.0, 7.0, 0.0]),
    ),
}


@pytest.mark.parametrize("rule", LINEAR)
def test_a_linear_rule(eager, rule):
    make, matrix = LINEAR[rule]
    f, x = with_rule(make(eager.tensor(MATRIX))), eager.tensor(X)
    for size in (1.0, 1e-4, 1e4):
        t = (size * Y).astype(np.float32)
        for mode in forward_modes(eager).values():
            found = eager.array(mode(f, x, eager.tensor(t)))
            np.testing.assert_allclose(found, matrix.T @ t, rtol=1e-4, atol=1e-6 * size)


def test_half_precision(eager):
    x, t = (eager.tensor(array.astype(np.float16)) for array in (X, Y))
    found = eager.array(jvp(with_rule(lambda upstream: 1e3 * upstream), (x,), (t,))[1])
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, 1e3 * Y, rtol=2e-3)
    for limit in (0.5, 1e4):
        with pytest.raises(ValueError, match=NOT_LINEAR_TEXT):
            jvp(with_rule(clipping(limit)), (x,), (t,))


@pytest.mark.parametrize("factor", [3 + 1j, 1e-30j])
def test_a_complex_rule(eager, factor):
    z = eager.tensor(np.array([1 + 2j, -1 + 0.5j], np.complex64))
    tangent = np.array([1j, 2 + 1j], np.complex64)
    f = with_rule(lambda upstream: upstream * eager.tensor(np.complex64(factor)))
    # Upstream is dL/dx + i dL/dy, so that a rule that multiplies by c is the derivative conj(c).
    np.testing.assert_allclose(
        eager.array(jvp(f, (z,), (eager.tensor(tangent),))[1]), np.conj(factor) * tangent, rtol=1e-4
    )
