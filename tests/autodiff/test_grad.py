"""`keras_cg.grad` and `value_and_grad` give the gradient of any function, as `jax.grad` does, on every backend."""

import numpy as np
import pytest
from wrong_rules import X, captures, close, cube, seven

import keras_cg
from keras_cg import custom_gradient, grad, hessian, jacobian, jvp, ops, value_and_grad, vjp

Z = np.array([1 + 2j, -1 + 0.5j], np.complex64)


@pytest.fixture
def tensor(eager):
    return eager.tensor


def test_gradient(tensor):
    """Of the output, which is summed if it is no scalar; of a number of Python, too."""
    value, found = value_and_grad(lambda x: x * x)(tensor(X))
    close(value, X * X)
    close(found, 2 * X)
    close(grad(lambda x: ops.sum(seven(x)))(tensor(X)), np.full(3, 7.0))
    assert float(grad(lambda x, *, k: k * x * x)(3.0, k=2)) == 12.0


def test_argnums(backend):
    f = lambda x, y: x * y * y
    assert float(grad(f, argnums=1)(2.0, 3.0)) == float(grad(f, argnums=-1)(2.0, 3.0)) == 12.0
    assert tuple(map(float, grad(f, argnums=(0, 1))(2.0, 3.0))) == (9.0, 12.0)
    assert tuple(map(float, grad(f, argnums=(1, 0))(2.0, 3.0))) == (12.0, 9.0)
    assert tuple(map(float, grad(f, argnums=(1,))(2.0, 3.0))) == (12.0,)


def test_one_tensor_passed_twice(tensor):
    x = tensor(X)
    square = lambda x, y: x * y * y
    close(grad(square)(x, x), X**2)
    for first, second in (grad(square, argnums=(0, 1))(x, x), grad(lambda p: square(*p))([x, x])):
        close(first, X**2)
        close(second, 2 * X**2)
    close(grad(lambda y: x * y)(x), X)
    close(grad(lambda y, k: k * y)(x, k=x), X)


def test_aux(tensor):
    f = lambda x: (ops.sum(x * x), {"doubled": x * 2, "name": "static", "n": 3})
    (value, with_value), gradient = value_and_grad(f, has_aux=True)(tensor(X))
    assert float(value) == 14.0
    for found, aux in ((gradient, with_value), grad(f, has_aux=True)(tensor(X))):
        np.testing.assert_allclose(np.asarray(aux["doubled"]), 2 * X)
        assert aux["name"] == "static" and aux["n"] == 3
        close(found, 2 * X)


def test_what_comes_out_is_plain(tensor):
    """Not a box, a tracer or a tensor that drags a graph along: NumPy reads it."""
    x, v = tensor(X), tensor(2 * X)
    (value, gradient), (output, pullback) = value_and_grad(lambda x: ops.sum(seven(x)))(x), vjp(seven, x)
    for found, expected in (
        (value, 12.0),
        (gradient, np.full(3, 7.0)),
        (output, 2 * X),
        (pullback(v)[0], 14 * X),
        *zip(jvp(seven, (x,), (v,)), (2 * X, 14 * X), strict=True),
        (jacobian(seven)(x), 7 * np.eye(3)),
        (hessian(cube)(x), np.diag(10 * X)),
    ):
        np.testing.assert_allclose(np.asarray(found), expected)


# --- nested: orders of `cube` are in test_nested_derivatives.py ------------------------------------------------------


def test_the_output_of_an_inner_level_is_differentiated(backend):
    def inner(x, y):
        (value, aux), found = value_and_grad(lambda x: (x * x * y, x * y), has_aux=True)(x)
        return value + 10 * aux + 100 * found

    # x x y + 10 x y + 200 x y
    assert float(grad(inner)(3.0, 2.0)) == 2 * 3 * 2 + 20 + 400
    assert float(grad(inner, 1)(3.0, 2.0)) == 9 + 30 + 600


def test_no_confusion_of_levels(tensor):
    s = tensor(np.float32(2.0))
    # The inner derivative of a a b b b at b = a is 3 a^4; the outer one 12 a^3.
    assert float(grad(lambda a: grad(lambda b: a * a * b * b * b)(a))(s)) == 12 * 8
    assert float(grad(custom_gradient(lambda y: (y * s, lambda upstream: 7 * upstream)))(s)) == 7.0
    if keras_cg.backend() != "numpy":
        assert float(grad(lambda y: grad(captures(y))(5.0) + captures(y)(5.0))(2.0)) == 3.0
