"""What the suites of keras_cg do not ask: how mlx differs, and that nothing is silently wrong where it is.

Rules are wrong on purpose, so that plain differentiation can never pass for a rule; expected values are closed forms.
"""

import ast
import gc
import pathlib
import weakref

import keras_cg
import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from keras_cg import custom_gradient, ops

import keras_cg_mlx.backend

X = np.array([-1.3, 0.4, 0.8], np.float32)
W = np.array([2.0, 3.0, -1.0], np.float32)
E = np.exp(X)
x, w = mx.array(X), mx.array(W)
runs = []


@pytest.fixture(autouse=True)
def active():
    runs.clear()
    with keras_cg.use_backend("mlx"):
        yield


@custom_gradient
def wrong_exp(x):
    """Twice x, with another rule, of which all derivatives are the same."""
    runs.append("f")
    e = ops.exp(x)

    def grad(upstream):
        runs.append("rule")
        return 7 * upstream * e

    return x * 2, grad


def summed(f):
    return lambda *tensors: mx.sum(f(*tensors))


def close(tensor, expected):
    np.testing.assert_allclose(np.array(tensor), expected, rtol=1e-5)


# --- how often a function runs, and on what --------------------------------------------------------------------------


def test_how_often_a_function_runs():
    first = mx.grad(summed(wrong_exp))
    for call, expected in (
        (lambda: wrong_exp(x), ["f"]),
        # mlx does not tell whether the gradient will be differentiated, so each backward pass runs it again.
        (lambda: first(x), ["f", "f", "rule"]),
        (lambda: keras_cg.grad(wrong_exp)(x), ["f", "f", "rule"]),
        (lambda: mx.vmap(first)(mx.stack([x, x])), ["f", "f", "rule"]),
        (lambda: mx.compile(first)(x), ["f", "f", "rule"]),
    ):
        runs.clear()
        mx.eval(call())
        assert runs == expected


def test_a_pullback_runs_the_function_again():
    """The limit: mlx has none that outlives its call."""
    _, pullback = keras_cg.vjp(wrong_exp, x)
    close(pullback(w)[0], 7 * E * W)
    close(pullback(2 * w)[0], 14 * E * W)
    assert runs == ["f", *["f", "f", "rule"] * 2]


def test_a_pullback_of_something_that_has_changed():
    factor = [2.0]
    _, pullback = keras_cg.vjp(custom_gradient(lambda x: (x * factor[0], lambda upstream: 7 * upstream)), x)
    factor[0] = 3.0
    with pytest.raises(RuntimeError, match="ran again for its gradient, and gave another output"):
        pullback(w)


def test_random_numbers_are_drawn_once():
    @custom_gradient
    def noisy(x):
        noise = mx.random.uniform(shape=x.shape) * x
        return x * 2, lambda upstream: 7 * upstream * noise * noise

    mx.random.seed(3)
    found = mx.grad(summed(mx.grad(summed(noisy))))(x)
    after = mx.random.uniform()
    mx.random.seed(3)
    noise = np.array(mx.random.uniform(shape=x.shape))
    close(found, 14 * noise**2 * X)
    assert after.item() == mx.random.uniform().item()


# --- values that are looked at ---------------------------------------------------------------------------------------


def test_looking_at_a_value_keeps_its_derivative():
    """mlx tears an array off its graph where it is evaluated after an inner transform: then this is zero."""

    def outer(w):
        h = mx.exp(w)
        inner = mx.grad(lambda x: x * h)(mx.array(2.0))
        np.testing.assert_allclose(keras_cg_mlx.backend.to_numpy(inner), np.exp(0.5), rtol=1e-6)
        assert keras_cg_mlx.backend.is_known([inner, h])
        return inner * h

    close(mx.grad(outer)(mx.array(0.5)), 2 * np.exp(1.0))


def test_forward_mode_inside_reverse_mode():
    """That a rule is linear is found out by values, in the middle of what the outer gradient needs."""

    def outer(w):
        h = mx.exp(w)
        return mx.sum(mx.jvp(lambda x: wrong_exp(x * h) * h, [x], [mx.ones_like(x)])[1][0])

    # d/dw of 7 exp(x h) h h, where h = exp(w) is 1
    close(mx.grad(outer)(mx.array(0.0)), np.sum(7 * E * (X + 2)))


def test_values_of_what_is_only_traced():
    known = []

    def look(x):
        known.append(keras_cg_mlx.backend.is_known([x * 2]))
        return x

    mx.compile(look)(x)
    mx.vmap(look)(x)
    mx.grad(summed(look))(x)
    assert known == [False, False, True]


def test_a_rule_that_is_not_linear_in_a_program():
    """No value can be looked at there: NaN comes, as in a graph of TensorFlow."""
    clipped = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * ops.clip(upstream * x, -0.5, 0.5)))
    with pytest.raises(ValueError, match=r"linear in upstream, and .*<lambda> has one"):
        mx.jvp(clipped, [x], [w])
    along = lambda f: mx.compile(lambda x, v: mx.jvp(f, [x], [v])[1][0])
    assert np.isnan(along(clipped)(x, w)).all()
    close(along(wrong_exp)(x, w), 7 * E * W)


def test_another_run_that_is_another_one():
    factor = [2.0]

    def changed(x):
        y = custom_gradient(lambda x: (x * 1, (lambda s: lambda upstream: upstream * s * x)(factor[0])))(x)
        factor[0] += 1.0
        return mx.sum(y)

    for wrap in (lambda f: f, mx.compile, mx.vmap):
        with pytest.raises(RuntimeError, match=r"s was \d\.0 and is \d\.0"):
            wrap(mx.grad(changed))(x)


# --- what is captured ------------------------------------------------------------------------------------------------


def test_a_captured_value_that_only_the_rule_reads():
    def f(x, slope):
        return custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream * slope * x))(x)

    close(mx.grad(lambda s: mx.sum(f(x, s)) + mx.sum(mx.grad(summed(f))(x, s)))(w), 7 * X)
    close(mx.jvp(lambda s: f(x, s), [w], [w])[1][0], 0 * X)


@pytest.mark.parametrize("transform", [lambda f: mx.grad(summed(f)), lambda f: lambda w: mx.jvp(f, [w], [w])[1]])
def test_a_captured_value_without_a_place_for_its_gradient(transform):
    f = lambda w: custom_gradient(lambda x: (x * w, lambda upstream: 7 * upstream))(x)
    with pytest.raises(keras_cg.CapturedVariableError, match="a value that is being differentiated"):
        transform(f)(w)


@pytest.mark.parametrize("transform", [lambda f: mx.grad(summed(f)), lambda f: lambda w: mx.jvp(f, [w], [w])[1]])
def test_a_captured_value_for_a_rule_with_variables(transform):
    """A limit: it is refused. mlx itself would give zero."""
    rule = lambda upstream, variables=(): (upstream, [upstream]) if variables else upstream
    f = lambda w: custom_gradient(lambda x: (x * w, rule))(x)
    with pytest.raises(keras_cg.CapturedVariableError, match="cannot give it to the rule as one of `variables`"):
        transform(f)(w)


def test_the_weight_of_a_module():
    class Scale(mlx.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = mx.array(W)

        @custom_gradient
        def inside(self, x):
            return x * self.w, lambda upstream: 7 * upstream

        @custom_gradient
        def passed(self, x, w):
            return x * w, lambda upstream: (7 * upstream, 5 * upstream * x)

    layer = Scale()
    close(mx.grad(summed(layer.inside))(x), 7 * np.ones(3))
    found = mlx.nn.value_and_grad(layer, lambda x: mx.sum(layer.passed(x, layer.w)))(x)[1]
    close(found["w"], 5 * X)
    with pytest.raises(keras_cg.CapturedVariableError):
        mlx.nn.value_and_grad(layer, lambda x: mx.sum(layer.inside(x)))(x)


# --- what mlx does otherwise -----------------------------------------------------------------------------------------


def test_outputs_that_are_one_array_or_have_no_gradient():
    """mlx itself gives the cotangent of the wrong one, or of one of two."""
    _, pullback = keras_cg.vjp(lambda x: (ops.stop_gradient(x), x * 3, x), x)
    close(pullback((w, w, w))[0], 4 * W)
    _, pullback = keras_cg.vjp(lambda x: [x, x], x)
    close(pullback([w, 2 * w])[0], 3 * W)


def test_a_rule_that_uses_up_what_its_run_made():
    """Only the gradients can tell whether two iterators agree, and asking takes their values."""

    def f(x):
        left = iter([7.0])
        return x * 2, lambda upstream: next(left) * upstream

    close(mx.grad(summed(custom_gradient(f)))(x), 7 + 0 * X)


@pytest.mark.filterwarnings("ignore:the rule of .* returned no gradient")
def test_no_gradient_and_outputs_of_integers():
    f = custom_gradient(lambda x, n: ((x * 2, ops.argmax(x)), lambda upstream, _: (None, None)))
    close(mx.grad(lambda x: mx.sum(f(x, mx.array(3))[0]))(x), 0 * X)
    assert f(x, 3)[1].item() == 2
    only = custom_gradient(lambda x: (ops.argmax(x), lambda upstream: None))
    assert only(x).item() == 2


@pytest.mark.parametrize("axes", [(0, None), (1, 0), (None, 1)])
def test_batches_along_other_axes(axes):
    product = custom_gradient(lambda x, y: (x * y, lambda upstream: (7 * upstream * y, 5 * upstream * x)))
    a, b = mx.arange(1.0, 10.0).reshape(3, 3), mx.arange(2.0, 11.0).reshape(3, 3) * 0.5
    given = [array if axis is not None else array[0] for array, axis in zip((a, b), axes, strict=True)]
    f = mx.vmap(product, in_axes=axes)
    plain = mx.vmap(lambda x, y: x * y, in_axes=axes)
    close(f(*given), np.array(plain(*given)))
    found = mx.grad(summed(f), argnums=(0, 1))(*given)
    right = mx.grad(summed(plain), argnums=(0, 1))(*given)
    for each, other, factor in zip(found, right, (7, 5), strict=True):
        close(each, factor * np.array(other))
    tangent = mx.jvp(f, given, given)[1][0]
    close(tangent, 12 * np.array(plain(*given)))


def test_double_precision():
    exact = np.array([0.3, -1.2, 4.0])
    array = keras_cg_mlx.backend.asarray(exact)
    for name in ("exp", "sin", "cos"):
        found = getattr(ops, name)(array)
        assert found.dtype == mx.float64
        np.testing.assert_allclose(np.array(found), getattr(np, name)(exact), rtol=1e-14)
    np.testing.assert_allclose(np.array(ops.logaddexp(array, array)), exact + np.log(2), rtol=1e-14)
    np.testing.assert_allclose(np.array(mx.grad(summed(wrong_exp))(array)), 7 * np.exp(exact), rtol=1e-14)
    with pytest.raises(TypeError, match="complex128, which mlx has not"):
        keras_cg_mlx.backend.asarray(exact * 1j)


def test_dtypes():
    for name in ("float16", "bfloat16", "float32", "complex64"):
        array = keras_cg_mlx.backend.cast(x, name)
        f = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream))
        _, (gradient,) = mx.vjp(f, [array], [mx.ones_like(array)])
        assert keras_cg_mlx.backend.dtype(gradient) == name
        assert keras_cg_mlx.backend.to_numpy(gradient).tolist() == [7, 7, 7]
    assert keras_cg_mlx.backend.dtype(keras_cg_mlx.backend.asarray(X > 0)) == "bool"
    assert ops.zeros(3, dtype="int8").dtype == mx.int8


def test_an_array_of_another_framework():
    with pytest.raises(TypeError, match=r"x is a numpy\.ndarray, but the active backend is 'mlx'"):
        wrong_exp(X)


def test_recompute_in_a_program():
    f = keras_cg.recipes.recompute(lambda x: wrong_exp(x) * x)
    expected = 7 * E * X + 2 * X
    close(mx.grad(summed(f))(x), expected)
    close(mx.compile(mx.grad(summed(f)))(x), expected)
    close(mx.vmap(mx.grad(f))(x), expected)


def test_recompute_of_what_is_captured():
    f = lambda w: keras_cg.recipes.recompute(lambda x: x * w)(x)
    with pytest.raises(keras_cg.CapturedVariableError, match="the backend 'mlx'"):
        mx.grad(summed(f))(w)


def test_the_example_of_the_page():
    page = (pathlib.Path(__file__).parents[1] / "README.md").read_text("utf-8")
    exec(page.partition("```python\n")[2].partition("```")[0], {})


def test_nothing_is_kept():
    class Token:
        pass

    def run():
        token = Token()

        @custom_gradient
        def f(x):
            y = x * 2

            def grad(upstream):
                assert token
                return 7 * upstream * y

            return y, grad

        mx.eval(mx.grad(summed(mx.grad(summed(f))))(x), f(x))
        return weakref.ref(token)

    gc.disable()
    try:
        assert run()() is None
    finally:
        gc.enable()


def test_the_size_of_the_backend():
    """Less than 250 lines of code; those that explain them do not count."""
    source = pathlib.Path(keras_cg_mlx.backend.__file__).read_text("utf-8")
    code = [line for line in source.splitlines() if line.strip() and not line.strip().startswith("#")]
    strings = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Expr)]
    explained = sum(each.end_lineno - each.lineno + 1 for each in strings if isinstance(each.value, ast.Constant))
    assert explained < len(code) < 250 + explained
