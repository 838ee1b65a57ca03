"""`recipes.from_jvp`: gradients by the transpose of forward derivatives that are wrong on purpose."""

import functools
import inspect
import pickle

import numpy as np
import pytest
from recipe_functions import found, message, tensor

import keras_cg
from keras_cg import grad, ops, recipes
from keras_cg.frontend import config

X, W = np.array([0.3, 1.2], np.float32), np.array([2.0, 3.0], np.float32)


@recipes.from_jvp
def seven(x, w):
    """The derivative by x has the factor 7, and that by w the factor 5; it uses a value of the run."""
    s = ops.sin(x)
    return s * w, lambda dx, dw: 7 * ops.cos(x) * w * dx + 5 * s * dw


def test_every_order_of_both_arguments(backend):
    with config.active.double_precision():
        x, w = (tensor(each, "float64") for each in (X, W))
        sx, cx, w64 = np.sin(found(x)), np.cos(found(x)), found(w)
        for f, expected in (
            (seven, sx * w64),
            (grad(seven), 7 * cx * w64),
            (grad(seven, 1), 5 * sx),
            (grad(grad(seven)), -7 * sx * w64),
            (grad(grad(seven), 1), 7 * cx),
            (grad(grad(seven, 1)), 5 * cx),
            (grad(grad(grad(seven))), -7 * cx * w64),
        ):
            np.testing.assert_allclose(found(f(x, w)), expected, rtol=1e-9)
        both = np.diag(7 * cx * w64), np.diag(5 * sx)
        for came, expected in zip(keras_cg.jacobian(seven, (0, 1))(x, w), both, strict=True):
            np.testing.assert_allclose(found(came), expected, rtol=1e-9)
        for f, expected in ((seven, 7 * cx * w64 + 50 * sx), (grad(seven), -7 * sx * w64 + 70 * cx)):
            tangent = keras_cg.jvp(f, (x, w), (ops.ones_like(x), 10 * ops.ones_like(w)))[1]
            np.testing.assert_allclose(found(tangent), expected, rtol=1e-9)


def test_it_looks_like_the_function(backend):
    assert (seven.__name__, [*inspect.signature(seven).parameters]) == ("seven", ["x", "w"])
    assert pickle.loads(pickle.dumps(seven)) is seven


class Layer:
    factor = 7.0

    @recipes.from_jvp
    def act(self, x, n=2):
        return x**n, lambda of_self, dx, dn: [of_self is dn is None and self.factor * dx][0]


def test_a_method(backend):
    layer = Layer()
    np.testing.assert_allclose(found(grad(layer.act)(tensor(X))), [7, 7])
    np.testing.assert_allclose(found(grad(lambda x: layer.act(x, n=3))(tensor(X))), [7, 7])
    np.testing.assert_allclose(found(keras_cg.jvp(layer.act, (tensor(X), 3), (tensor(W), None))[1]), 7 * W)


def test_in_every_mode(frame):
    frame.check(seven, [X, W], [7 * np.cos(X) * W, 5 * np.sin(X)], rtol=1e-5)


@recipes.from_jvp
def mirror(x):
    """A linear function whose derivative calls the function itself, with the factor 7 in the place of 3."""
    return 3 * x, lambda dx: 7 * mirror(dx) / 3


@pytest.mark.only("jax", "numpy", "tensorflow")  # torch.compile refuses a rule inside of `vjp`
def test_a_derivative_that_calls_the_function_itself(frame):
    frame.check(mirror, [X], [np.full(2, 7.0)], rtol=1e-5)


def test_a_derivative_that_calls_the_function_itself_in_higher_orders(backend):
    x = tensor(X)
    square = lambda x: mirror(x) ** 2
    for f, expected in ((square, 42 * X), (grad(square), [98, 98]), (grad(grad(square)), [0, 0])):
        np.testing.assert_allclose(found(grad(f)(x)), expected, rtol=1e-5)
    np.testing.assert_allclose(found(keras_cg.jvp(mirror, (x,), (tensor(W),))[1]), 7 * W, rtol=1e-5)
    np.testing.assert_allclose(found(keras_cg.jvp(grad(square), (x,), (tensor(W),))[1]), 98 * W, rtol=1e-5)
    # Made again at each call; and two that call each other.
    again = lambda x: recipes.from_jvp(lambda x: (3 * x, lambda dx: 7 * again(dx) / 3))(x)
    first = recipes.from_jvp(lambda x: (3 * x, lambda dx: 7 * second(dx) / 3))
    second = recipes.from_jvp(lambda x: (3 * x, lambda dx: first(dx)))
    for f in (again, first):
        np.testing.assert_allclose(found(grad(f)(x)), [7, 7], rtol=1e-5)


def test_a_derivative_that_calls_the_function_at_its_argument(backend):
    """What it calls there keeps its rule: the nth derivative of 7 exp dx is 7^n exp."""
    exp = recipes.from_jvp(lambda x: (ops.exp(x), lambda dx: 7 * exp(x) * dx))
    x, f = tensor(X), exp
    for order in (1, 2, 3):
        f = grad(f)
        np.testing.assert_allclose(found(f(x)), 7.0**order * np.exp(X), rtol=1e-4)
    np.testing.assert_allclose(found(keras_cg.jvp(grad(exp), (x,), (tensor(W),))[1]), 49 * np.exp(X) * W, rtol=1e-4)

    @recipes.from_jvp
    def power(x, n):
        if n == 0:
            return x * x, lambda dx, dn: 5 * x * dx
        return x, lambda dx, dn: 7 * grad(power)(x, n - 1) * dx

    for n in (0, 1, 2):
        np.testing.assert_allclose(found(grad(power)(x, n)), 5 * 7**n * X, rtol=1e-5)


@pytest.mark.only("torch")
def test_two_in_one_program_with_dynamic_shapes(torch):
    f = recipes.from_jvp(lambda x: (ops.sin(x), lambda dx: 7 * ops.cos(x) * dx))
    program = torch.compile(lambda x: f(f(x)), backend="aot_eager", fullgraph=True, dynamic=True)
    for row in (X, np.concatenate([X, W])):
        x = tensor(row).requires_grad_()
        program(x).sum().backward()
        np.testing.assert_allclose(found(x.grad), 49 * np.cos(np.sin(row)) * np.cos(row), rtol=1e-5)


def test_a_jvp_by_forward_mode(backend):
    """It calls `keras_cg.jvp`, also of a function that was made by `from_jvp`."""
    x = tensor(X)
    inner = recipes.from_jvp(lambda x: (ops.sin(x), lambda dx: 7 * keras_cg.jvp(ops.exp, (x,), (dx,))[1]))
    outer = recipes.from_jvp(lambda x: (ops.sin(x), lambda dx: 3 * keras_cg.jvp(inner, (x,), (dx,))[1]))
    for f in (inner, grad(inner)):
        np.testing.assert_allclose(found(grad(f)(x)), 7 * np.exp(X), rtol=1e-5)
    np.testing.assert_allclose(found(grad(outer)(x)), 21 * np.exp(X), rtol=1e-5)


def test_pytrees_and_arguments_of_every_kind(backend):
    """Static leaves and integers have the tangent None, also by keyword and at their default."""
    got = []

    @recipes.from_jvp
    def f(params, x, n=2, *more, scale, mode="sum", weight=None):
        def jvp(*tangents, **named):
            got.append((tangents, named))
            dp, dx, *_ = tangents
            slopes = {"y": 7 * dx * params["w"] * scale + 3 * x * dp["w"] + 5 * x * named["scale"], "n": None}
            return slopes["y"], [slopes, None]

        y = x * params["w"] * scale
        return (y, [{"y": y, "n": params["n"]}, mode]), jvp

    params, x, scale = {"w": tensor([2.0]), "n": tensor([1.0]) > 0, "k": 4}, tensor([3.0]), tensor([0.5])
    output, pullback = keras_cg.vjp(lambda p, x, s: f(p, x=x, mode="mean", scale=s), params, x, scale)
    assert output[1][1] == "mean"
    gp, gx, gs = pullback((tensor([1.0]), [{"y": tensor([10.0]), "n": None}, None]))
    assert gp["n"] is None and gp["k"] is None
    np.testing.assert_allclose([found(gp["w"]), found(gx), found(gs)], [[99], [77], [165]])
    (dp, dx, dn), named = got[0]
    assert dp["n"] is None and dp["k"] is None and dn is None and {*named} == {"scale"}
    assert config.active.shape(dx) == (1,)
    got.clear()
    keras_cg.grad(lambda x: f(params, x, 3, tensor([1.0]), "more", scale=2.0 * x)[0])(x)
    assert [*map(type, got[0][0][2:])] == [type(None), type(dx), type(None)]


def test_tangents_that_say_less(backend):
    """None and 0 for zeros, a list for a tuple, and another float dtype, which is cast."""

    @recipes.from_jvp
    def f(x):
        return (x, 2 * x, ops.sum(x)), lambda dx: [None, config.active.cast(7 * dx, "float64"), 0]

    with config.active.double_precision():
        x = tensor(X)
        _, pullback = keras_cg.vjp(f, x)
        (gradient,) = pullback((ops.ones_like(x), ops.ones_like(x), 1.0))
    assert config.active.dtype(gradient) == "float32"
    np.testing.assert_array_equal(found(gradient), [7, 7])


def test_complex_numbers(backend):
    """The gradient dL/dx + i dL/dy is the product with the conjugate."""
    f = recipes.from_jvp(lambda x: (x * x, lambda dx: (7 + 2j) * dx * x))
    x = config.active.cast(tensor([1.0, -2.0]), "complex64")
    (gradient,) = keras_cg.vjp(f, x)[1](ops.ones_like(x))
    assert config.active.dtype(gradient) == "complex64"
    np.testing.assert_allclose(config.active.to_numpy(gradient), (7 - 2j) * np.array([1, -2]))


def test_two_dtypes(backend):
    """float64 in, float32 out, and the other way round."""
    cast = config.active.cast
    with config.active.double_precision():
        for start, end in (("float64", "float32"), ("float32", "float64")):
            f = recipes.from_jvp(lambda x, end=end: (cast(x, end), lambda dx, _: cast(7 * dx, end)))
            gradient = grad(f)(tensor(X, start))
            assert config.active.dtype(gradient) == start
            np.testing.assert_array_equal(found(gradient), [7, 7])


def test_an_empty_tensor_and_a_scalar(backend):
    f = recipes.from_jvp(lambda x: (ops.sum(x * x), lambda dx: 7 * ops.sum(x * dx)))
    assert found(grad(f)(tensor(np.zeros((0, 2))))).shape == (0, 2)
    assert found(grad(f)(3.0)) == 21


# What is not linear, or has another transpose than itself.
CROOKED = {
    "a constant": lambda x, dx: 2 * x,
    "a constant beside": lambda x, dx: 2 * x * dx + 1,
    "a product": lambda x, dx: 2 * dx * dx,
    "a size": lambda x, dx: ops.abs(dx),
    "a clip": lambda x, dx: ops.clip(2 * x * dx, -1e6, 1e6),
    "two slopes": lambda x, dx: ops.where(dx > 0, dx, 2 * dx),
    "a threshold": lambda x, dx: ops.where(ops.abs(dx) < 1e-6, 0 * dx, dx),
    "a stopped tangent": lambda x, dx: 2 * x * ops.stop_gradient(dx),
    "another rule": lambda x, dx: recipes.scale_gradient(dx, 3.0),
}


@pytest.mark.parametrize("case", CROOKED)
def test_a_map_that_is_not_linear_is_refused(backend, case):
    f = recipes.from_jvp(lambda x: (x * x, lambda dx: CROOKED[case](x, dx)))
    assert message(lambda: grad(f)(tensor(X)), ValueError).splitlines()[0] == (
        "from_jvp(test_a_map_that_is_not_linear_is_refused.<locals>.<lambda>): its jvp is not linear in the tangents."
    )


@pytest.mark.limit
@pytest.mark.only("jax", "torch", "tensorflow")
def test_a_map_that_is_not_linear_gives_nan_in_a_program(backend):
    f = recipes.from_jvp(lambda x: (x * x, lambda dx: ops.clip(2 * x * dx, -1e6, 1e6)))
    if backend == "torch":
        import torch

        x = tensor(X).requires_grad_()
        torch.compile(f, backend="aot_eager", fullgraph=True)(x).sum().backward()
        gradient = x.grad
    else:
        (gradient,) = config.active.compiled(lambda x: (grad(f)(x),))(tensor(X))
    assert np.isnan(found(gradient)).all()


def test_a_linear_map_that_overflows_or_loses_digits_is_not_refused(backend):
    huge = tensor([1e30, 1e-30])
    f = recipes.from_jvp(lambda x: (x, lambda dx: 7 * huge * dx + (dx + 1e4 * dx - 1e4 * dx)))
    x = tensor(X)
    np.testing.assert_allclose(found(grad(f)(x))[0], 7e30, rtol=1e-6)
    average = recipes.from_jvp(lambda x: (ops.mean(x), lambda dx: ops.mean(dx) + 1e3 * ops.mean(dx - ops.mean(dx))))
    np.testing.assert_allclose(found(grad(average)(tensor(np.ones((40, 50))))), 1 / 2000, rtol=1e-2)


def test_what_a_function_or_its_jvp_returns_by_mistake(backend):
    x = tensor(X)
    for value, came in ((x, None), ((x, x), None), ((x, None, None), "a tuple of 3: ("), (None, "a NoneType")):
        told = message(lambda value=value: recipes.from_jvp(lambda x: value)(x), TypeError).splitlines()
        assert told[0].endswith("the function must return a pair (output, jvp) whose second part is a function.")
        assert told[1].startswith(f"    got: {came or ''}")
    shown = "float32[2]"
    for moved, got, expected in (
        (lambda dx: dx[:1], "float32[1]", shown),
        (lambda dx: ops.sum(dx), "float32[]", shown),
        (lambda dx: dx > 0, "bool[2]", shown),
        (lambda dx: config.active.cast(dx, "complex64"), "complex64[2]", shown),
        (lambda dx: 3.0, "3.0", shown),
        (lambda dx: (dx, dx), "(*, *)", "*"),
    ):
        f = recipes.from_jvp(functools.partial(lambda moved, x: (x, moved), moved))
        assert message(lambda f=f: grad(lambda x: ops.sum(f(x)))(x), keras_cg.GradientError).splitlines()[1:3] == [
            f"    got: {got}",
            f"    expected: {expected}",
        ]
    with pytest.raises(KeyError, match="of the user's"):
        grad(recipes.from_jvp(lambda x: (x, lambda dx: {}["of the user's"])))(x)
    with pytest.raises(keras_cg.CapturedVariableError, match="from_jvp"):
        grad(lambda w: recipes.from_jvp(lambda x: (x * w, lambda dx: dx * w))(x))(tensor(2.0))
