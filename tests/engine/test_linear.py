"""Whether a map is linear, and another one its transpose, by trying."""

import numpy as np
import pytest

from keras_cg import backends
from keras_cg.engine import linear

pytestmark = pytest.mark.only("numpy")

X = np.array([1.0, 2.0, 3.0])


def is_linear(pull, *cotangents):
    numpy = backends.load("numpy", "a test")
    conditions = linear.conditions(numpy, lambda given: pull(*given), cotangents)
    return all(bool(condition) for condition in conditions)


def ones(dtype="float64", shape=(3,)):
    return np.ones(shape, dtype)


MATRIX = np.array([[0.3, -1.2, 0.5], [1.1, 0.2, -0.7], [2.0, 0.0, 1e-9]])

LINEAR = {
    "matrix": (lambda u: [MATRIX @ u], ones()),
    "gradients of other shapes": (lambda u: [u[:0], np.outer(u, u[::-1] * 0), u[1:]], ones()),
    "two cotangents": (lambda u, v: [3 * u - v[::-1], v[0] - u[0]], ones(), ones()),
    "empty": (lambda u: [3 * u + 1], ones(shape=(0, 3))),
    "overflow": (lambda u: [np.float32(1e30) * u], ones("float32")),
    "overflow of half precision": (lambda u: [np.float16(1e4) * u], ones("float16")),
    "underflow": (lambda u: [np.float32(1e-30) * u], ones("float32")),
    "difference of what underflows": (lambda u: [np.float32(1e-32) * u - np.float32(9e-33) * u], ones("float32")),
    "division by zero": (lambda u: [u / np.array([0.0, 1.0, 2.0])], ones()),
    "complex": (lambda z: [(2 - 3j) * z], ones("complex128")),
    "loses digits": (lambda u: [((u * 1e3 + u) - u * 1e3).astype("float32")], ones("float32")),
    "large terms cancel": (lambda u: [(1e8 * u + 1e-6 * u[::-1]) - 1e8 * u], ones()),
    "large terms cancel in a number": (lambda u: [(3e8 * u - 1e-5 * u) - 3e8 * u], ones(shape=())),
    "small beside large": (lambda u: [np.array([1e8, 1.0, 1e-8]) * u, 1e-8 * np.sum(u), 0 * u], ones()),
    "small beside large, float32": (lambda u: [np.float32(1e8) * u[:1], np.float32(1e-8) * u], ones("float32")),
    "quantised weights": (lambda u: [(MATRIX.astype("float16") @ u)], ones("float16")),
}


@pytest.mark.parametrize("name", LINEAR)
def test_what_is_linear(name):
    pull, *cotangents = LINEAR[name]
    assert is_linear(pull, *cotangents)


def largest_alone(u):
    """Odd, and homogeneous for every scale."""
    return [u * (abs(u) == np.max(abs(u)))]


def clip(limit):
    return lambda u: [np.clip(2 * u, -limit, limit)]


CURVED = {
    "constant": (lambda u: [7 * u + 1], ones()),
    "constant at zero": (lambda u: [np.where(u == 0, 1, u)], ones()),
    "small constant": (lambda u: [7 * u + 1e-3], ones("float32")),
    "absolute value of a number": (lambda u: [abs(u)], np.array(1.0)),
    "norm": (lambda u: [u / np.sqrt(1 + np.sum(u**2))], ones()),
    "dead zone": (lambda u: [np.where(abs(u) < 1e-9, 0, u)], ones()),
    "dead zone of half precision": (lambda u: [np.where(abs(u) < 0.01, 0, u)], ones("float16")),
    "largest alone": (largest_alone, ones()),
    "neighbour's sign": (lambda u: [abs(u) * np.sign(u[::-1])], ones(shape=(4,))),
    "product": (lambda u, v: [u * v], ones(), ones()),
    "complex gate": (lambda z: [np.where(np.real(z) > 0, z, 0)], ones("complex128")),
    "length of the imaginary part": (lambda z: [np.real(z) + abs(np.imag(z))], ones("complex128")),
    "infinite from a hundred on": (lambda u: [np.where(abs(u) > 100, np.nan, abs(u))], ones()),
    "a part in ten thousand": (lambda u: [u + 1e-4 * abs(u)], ones()),
    "a small one beside a large one": (lambda u: [1e8 * u, 1e-8 * abs(u)], ones()),
    "part of what cancels": (lambda u: [(1e8 * u + abs(u)) - 1e8 * u], ones()),
    "two per cent of a float32": (lambda u: [u + 0.02 * abs(u)], ones("float32")),
    **{f"clip at {limit:g}": (clip(limit), ones()) for limit in 10.0 ** np.arange(-9, 13)},
    "clip a small float32": (clip(1e-9), ones("float32", ())),
    "clip a large float32": (clip(1e11), ones("float32", ())),
    "clip a small float16": (clip(1e-2), ones("float16", ())),
    "clip a large float16": (clip(1e4), ones("float16", ())),
    "clip a large float16 beside a float64": (lambda u, v: [np.clip(u, -1e4, 1e4), v], ones("float16"), ones()),
}


@pytest.mark.parametrize("name", CURVED)
def test_what_is_not_linear(name):
    pull, *cotangents = CURVED[name]
    assert not is_linear(pull, *cotangents)


def test_what_is_tried():
    """Zero; the direction at scales of either sign; the further direction by itself and taken away; both rounded."""
    numpy = backends.load("numpy", "a test")
    tried = []
    linear.conditions(numpy, lambda given: [tried.append(given[0]) or given[0]], [np.ones(3)])
    one, two = tried[0], tried[1]
    assert one[0] > 0 and min(one) < 0 < max(one) and min(abs(one)) > 0.1 and abs(np.dot(one, two)) < 0.99 * 3
    assert not np.allclose(one / two, (one / two)[0])
    np.testing.assert_allclose(tried[2], one - 2 * two)
    rounded = [(1.3 * one, -1.9 * one, 1.3 * two, -1.9 * two)[place] for place in range(4)]
    np.testing.assert_allclose(tried[3:7], rounded)
    scales = [float(given[0] / one[0]) for given in tried[7:]]
    assert scales == [0.0, *(sign * 2.0**power for power in (80, 40, -40, -80) for sign in (1, -1))]


def is_transpose(pull, push, cotangent, tangent):
    numpy = backends.load("numpy", "a test")
    with np.errstate(all="ignore"):
        return [bool(each) for each in linear.transposes(numpy, pull, push, [cotangent], [tangent])]


def test_a_transpose():
    forth, back = lambda given: [MATRIX @ given[0]], lambda given: [MATRIX.T @ given[0]]
    assert is_transpose(forth, back, X, X) == [True]
    assert is_transpose(forth, forth, X, X) == [False]
    assert is_transpose(lambda given: [7 * given[0]], lambda given: [5 * given[0]], X, X) == [False]
    # Both overflow.
    large = lambda given: [np.float32(1e30) * given[0] * np.float32(1e30)]
    assert is_transpose(large, large, ones("float32"), ones("float32")) == [True]
    # Terms that cancel: the inner products are 0 and 1e-7, the sums of absolute values 1,000.
    along, across = (linear._uneven(backends.load("numpy", "a test"), np.ones(1000), step, 0.5) for step in (1.0, 0.3))
    weights = np.where(np.arange(1000) % 2, 1, -1) / (along * across)
    push = lambda given: [weights * given[0] + 1e-7 * along / np.sum(along**2)]
    assert is_transpose(lambda given: [weights * given[0]], push, np.ones(1000), np.ones(1000)) == [True]
    # Of complex numbers with the real part of the inner product, as gradients are here.
    turned, real = (lambda given: [1j * given[0]]), lambda given: [given[0].imag]
    assert is_transpose(turned, lambda given: [-1j * given[0]], ones("complex64"), ones("complex64")) == [True]
    assert is_transpose(turned, turned, ones("complex64"), ones("complex64")) == [False]
    assert is_transpose(lambda given: [1j * given[0]], real, X, ones("complex128")) == [True]
