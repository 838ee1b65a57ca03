"""What the engine makes of the required names of a backend, against closed forms."""

import importlib.metadata

import numpy as np
import pytest
from toy.engine import Tensor

import keras_cg
from keras_cg import backends, custom_gradient, ops, recipes
from keras_cg.engine import defaults

pytestmark = pytest.mark.once

X = np.array([-1.3, 0.4, 0.8])
E = np.exp(X)


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    """The toy backend, active; as if a package had registered it."""
    point = importlib.metadata.EntryPoint("toy", "toy", backends.GROUP)
    monkeypatch.setattr(backends, "_entry_points", lambda: {"toy": point})
    monkeypatch.setattr(backends, "loaded", dict(backends.loaded))
    backends.names.cache_clear()
    with keras_cg.use_backend("toy"):
        yield backends.load("toy", "a test")
    backends.names.cache_clear()


runs = []


@custom_gradient
def wrong_exp(x):
    """Twice x, with another rule, of which all derivatives are the same."""
    runs.append("f")
    e = ops.exp(x)

    def grad(upstream):
        runs.append("rule")
        return 7 * upstream * e

    return x * 2, grad


def count(call):
    """How often the function and its rule ran."""
    runs.clear()
    call()
    return runs.count("f"), runs.count("rule")


def close(tensor, expected):
    assert tensor.value.shape == np.shape(expected)
    np.testing.assert_allclose(tensor.value, expected, rtol=1e-9)


def third(x):
    return keras_cg.grad(lambda x: keras_cg.grad(keras_cg.grad(wrong_exp))(x))(x)


def test_the_registered_backend_is_complete(toy):
    assert "toy" in keras_cg.available_backends()
    assert toy.converted(len) is len
    assert toy.compiled(len) is None
    assert toy.exported(len, []) is None
    assert toy.devices() == ("cpu",)
    with toy.double_precision():
        assert toy.dtype(toy.asarray(1.0)) == "float64"
    assert toy.gradient.func is defaults.gradient


def test_derivatives_beyond_the_conformance_suite():
    """Of nests, of several outputs, to the third order, and those of forward mode."""
    x, v, w = Tensor(X), Tensor(np.array([3.0, 5.0, -2.0])), Tensor(np.arange(6.0).reshape(3, 2))
    value, gradient = keras_cg.value_and_grad(wrong_exp)(x)
    close(value, 2 * X)
    close(gradient, 7 * E)
    output, pullback = keras_cg.vjp(lambda x, y: {"a": wrong_exp(x) * y, "b": y}, x, Tensor(X))
    close(output["a"], 2 * X * X)
    gx, gy = pullback({"a": Tensor(E), "b": Tensor(X)})
    close(gx, 7 * E * E * X)
    close(gy, 2 * X * E + X)
    close(pullback({"a": None, "b": None})[0], 0 * X)
    close(third(x), 7 * E)
    close(keras_cg.hessian(lambda x: wrong_exp(x) ** 2)(x), np.diag(28 * X * E + 98 * E * E))
    output, both = keras_cg.jvp(lambda x, y: (wrong_exp(x) * y, y * 3), (x, x), (v, Tensor(E)))
    close(output[0], 2 * X * X)
    close(both[0], 7 * E * v.value * X + 2 * X * E)
    close(both[1], 3 * E)
    close(keras_cg.grad(lambda x: keras_cg.jvp(wrong_exp, (x,), (v,))[1])(x), 7 * E * v.value)

    def f(x, w):
        return {"y": ops.matmul(ops.reshape(wrong_exp(x), (1, 3)), w), "s": ops.sum(x)}

    found = keras_cg.jacobian(f, (0, 1))(x, w)
    close(found["y"][0], (7 * E[:, None] * w.value).T[None])
    close(found["y"][1], np.einsum("i,jk->jik", 2 * X, np.eye(2))[None])
    close(found["s"][0], np.ones(3))
    close(found["s"][1], np.zeros((3, 2)))
    assert keras_cg.jacobian(lambda x: x[:0])(x).value.shape == (0, 3)
    assert keras_cg.jacobian(lambda x: x)(Tensor(np.float32(X))).value.dtype == np.float32


@pytest.mark.parametrize(
    "rule",
    [
        lambda upstream: 7 * ops.clip(upstream, -1e6, 1e6),
        lambda upstream: 7 * ops.clip(upstream, -1e-6, 1e-6),
        lambda upstream: 7 * ops.abs(upstream),
        lambda upstream: 7 * upstream + 1,
        lambda upstream: 7 * upstream / ops.sqrt(1 + ops.sum(upstream * upstream)),
    ],
    ids=["clip at a million", "clip at a millionth", "absolute", "constant", "normalise"],
)
def test_forward_mode_of_a_rule_that_is_not_linear(rule):
    f = custom_gradient(lambda x: (x * 2, rule))
    close(keras_cg.grad(lambda x: f(x)[0])(Tensor(X[1:])), rule(Tensor(np.array([1.0, 0]))).value)
    with pytest.raises(ValueError, match="linear in upstream"):
        keras_cg.jvp(f, (Tensor(X),), (Tensor(E),))


def test_recompute():
    x, w = Tensor(X), Tensor(np.array(2.0))

    def f(x, w):
        return recipes.recompute(lambda x, w: wrong_exp(x) * w**3)(x, w)

    gx, gw = keras_cg.grad(f, (0, 1))(x, w)
    close(gx, 56 * E)
    close(gw, 24 * np.sum(X))
    close(keras_cg.grad(lambda w: keras_cg.grad(f)(x, w))(w), np.sum(84 * E))
    close(keras_cg.grad(keras_cg.grad(lambda x: f(x, w)))(x), 56 * E)
    with pytest.raises(keras_cg.CapturedVariableError, match=r"recompute\(.*\) reads a value"):
        keras_cg.grad(lambda w: recipes.recompute(lambda x: x * w)(x))(w)
    plain = keras_cg.value_and_grad(recipes.recompute(lambda x, n: {"y": x**n, "n": n}["y"]))(x, 3)
    close(plain[0], X**3)
    close(plain[1], 3 * X**2)
    # Integers go along, and nobody asks for their gradient.
    places = Tensor(np.array([2, 0, 2]))
    f = recipes.recompute(lambda x, places: wrong_exp(x)[places.value])
    expected = 7 * E * np.array([1, 0, 2])
    close(keras_cg.grad(f)(Tensor(X), places), expected)
    close(keras_cg.grad(keras_cg.grad(f))(Tensor(X), places), expected)


def test_how_often_a_function_runs():
    x = Tensor(X)
    assert count(lambda: wrong_exp(x)) == (1, 0)
    # Everything is recorded always, so the backward pass runs it again.
    assert count(lambda: keras_cg.grad(wrong_exp)(x)) == (2, 1)
    assert count(lambda: keras_cg.grad(keras_cg.grad(wrong_exp))(x)) == (2, 1)
    assert count(lambda: third(x))[0] <= 4
    assert count(lambda: keras_cg.grad(recipes.recompute(wrong_exp))(x)) == (5, 1)


def test_a_second_run_that_is_another_one():
    factor = [2.0]

    @custom_gradient
    def annealed(x):
        y = x * factor[0]
        return y, lambda upstream: upstream * y

    def changed(x):
        y = annealed(x)
        factor[0] = 3.0
        return y

    for order in (keras_cg.grad(changed), keras_cg.grad(keras_cg.grad(changed))):
        factor[0] = 2.0
        with pytest.raises(RuntimeError, match="its rule is not that of the first run"):
            order(Tensor(X))


def test_captured_values():
    x, w = Tensor(X), Tensor(np.array(2.0))

    def served(x, w):
        def f(x):
            return x * w, lambda upstream, variables=(): (7 * upstream, [5 * ops.sum(upstream * x)])

        return custom_gradient(f)(x)

    gx, gw = keras_cg.grad(served, (0, 1))(x, w)
    close(gx, 7 * np.ones(3))
    close(gw, 5 * np.sum(X))
    with pytest.raises(keras_cg.CapturedVariableError):
        keras_cg.grad(lambda w: custom_gradient(lambda x: (x * w, lambda upstream: 7 * upstream))(x))(w)
    hidden = [w]
    with pytest.raises(keras_cg.CapturedVariableError):
        keras_cg.grad(lambda w: hidden.append(w) or custom_gradient(lambda x: (x * hidden[1], lambda u: 7 * u))(x))(w)


def test_what_only_the_rule_reads():
    def f(slope):
        return keras_cg.grad(custom_gradient(lambda x: (x * 2, lambda upstream: upstream * slope * x)))(Tensor(X))

    close(keras_cg.grad(f)(Tensor(np.array(2.0))), np.sum(X))
