"""`keras_cg.recipes`: values and gradients against closed forms, on every backend."""

import gc
import math
import pickle
import re
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import keras_cg
from keras_cg import config, custom_gradient, ops, recipes
from keras_cg.testing import assert_gradients

X = np.array([-0.7, 0.3, 2.6])
NOISE = np.array([1.9, 0.2, -0.5])


def rounded(x):
    return ops.floor(x + 0.5)


def clipped(x, upstream):
    return ops.where(ops.abs(upstream) < 1, upstream, ops.sign(upstream))


def shortened(x, upstream):
    total = ops.sum(upstream * upstream)
    return upstream / ops.sqrt(ops.maximum(total, 0 * total + 1))


def lsq(low, high, summed):
    """Equations 3 and 5 of the paper, the gradient of the step summed by `summed`."""

    def rule(x, step, *statics, upstream):
        ratio = x / step
        inside = (low < ratio) & (ratio < high)
        slope = ops.where(inside, rounded(ratio) - ratio, ops.where(ratio > 0, high + 0 * ratio, low + 0 * ratio))
        return ops.where(inside, upstream, 0 * upstream), summed(upstream * slope)

    return rule


def steepness(x, alpha):
    """The derivative of soft rounding."""
    off = x - ops.floor(x) - 0.5
    return alpha / 2 * (1 - ops.tanh(alpha * off) ** 2) / ops.tanh(alpha / 2)


def arctan(x, kind, upstream):
    return upstream / (1 + (math.pi * x) ** 2)


def triangle(x, kind, slope, upstream):
    return upstream * ops.where(ops.abs(x) < 1, slope * (1 - ops.abs(x)), 0 * x)


def fast_sigmoid(x, upstream):
    return upstream / (1 + 100 * ops.abs(x)) ** 2


def heron(z, a):
    return (z + a / z) / 2


@custom_gradient
def seven_exp(x):
    """Twice x, with another rule, of which all derivatives are the same."""
    e = ops.exp(x)
    return x * 2, lambda upstream: 7 * upstream * e


def mixed(x, w, mode):
    return ops.sum(w * ops.tanh(x) ** (3 if mode == "cubes" else 1))


def softmax(logits, noise, temperature):
    scaled = ops.exp((logits + noise) / temperature)
    return scaled / ops.sum(scaled, axis=-1, keepdims=True)


def coupled(x, params):
    """The residual block of two additive couplings."""
    w, b = params
    first = x[0] + w * ops.tanh(x[1])
    return first, x[1] + ops.tanh(first) * b


def uncoupled(y, params):
    w, b = params
    second = y[1] - ops.tanh(y[0]) * b
    return y[0] - w * ops.tanh(second), second


def seven_coupled(x, p):
    return x[0] + seven_exp(x[1]) * p, x[1] * p


def seven_uncoupled(y, p):
    return y[0] - 2 * (y[1] / p) * p, y[1] / p


def seven_chained(x, p, q, upstream):
    """The gradients of two of these blocks."""

    def pulled(second, factor, upstream):
        first, other = upstream
        back = first, 7 * first * ops.exp(second) * factor + other * factor
        return back, ops.sum(2 * first * second + other * second)

    upstream, gq = pulled(x[1] * p, q, upstream)
    upstream, gp = pulled(x[1], p, upstream)
    return upstream, gp, gq


def bisection(g, x0):
    """Between x0 and 4 more, of a function that grows: no derivative gets through."""
    low, high = x0, x0 + 4
    for _ in range(50):
        middle = (low + high) / 2
        is_low = g(middle) < 0
        low, high = ops.where(is_low, middle, low), ops.where(is_low, high, middle)
    return low


CHECKED = {
    "straight_through": (recipes.straight_through(rounded), [X], {"expected": lambda x: x}),
    "straight_through, annealed": (
        recipes.straight_through(lambda x, slope: rounded(x), lambda x, slope: ops.tanh(slope * x)),
        [X, np.array(1.5)],
        {"expected": lambda x, slope: ops.tanh(slope * x)},
    ),
    "reverse_gradient": (recipes.reverse_gradient, [X], {"expected": lambda x: -x}),
    "reverse_gradient, scaled": (recipes.reverse_gradient, [X, 0.3], {"expected": lambda x, scale: -0.3 * x}),
    "scale_gradient": (recipes.scale_gradient, [X, 0.3], {"expected": lambda x, scale: 0.3 * x}),
    "scale_gradient, by a tensor": (
        recipes.scale_gradient,
        [X, np.array(0.3)],
        {"expected": lambda x, scale, upstream: (scale * upstream, 0 * scale)},
    ),
    "clip_gradient, by value": (recipes.clip_gradient, [X], {"kwargs": {"value": 1.0}, "expected": clipped}),
    "clip_gradient, by norm": (recipes.clip_gradient, [X], {"kwargs": {"norm": 1}, "expected": shortened}),
    "quantize": (
        recipes.quantize,
        [X, 0.7, 3],
        {"expected": lambda x, step, bits, upstream: lsq(-4, 3, ops.sum)(x, step, upstream=upstream)[0]},
    ),
    "quantize, learned": (
        recipes.quantize,
        [X, np.array(0.4), 2, False],
        {"expected": lambda x, step, bits, signed, upstream: lsq(0, 3, ops.sum)(x, step, upstream=upstream)},
    ),
    "quantize, by channel": (
        recipes.quantize,
        [np.array([[0.3, 2.6], [-0.7, 0.1]]), np.array([[0.4], [0.57]]), 2],
        {
            "expected": lambda x, step, bits, upstream: lsq(-2, 1, lambda each: ops.sum(each, axis=1, keepdims=True))(
                x, step, upstream=upstream
            )
        },
    ),
    "surrogate_spike, fast_sigmoid": (recipes.surrogate_spike, [X], {"expected": fast_sigmoid}),
    "surrogate_spike, arctan": (recipes.surrogate_spike, [X, "arctan"], {"expected": arctan}),
    "surrogate_spike, triangle": (recipes.surrogate_spike, [X, "triangle", 0.5], {"expected": triangle}),
    "soft_round": (recipes.soft_round, [X, 3.0], {}),
    "gumbel_softmax": (recipes.gumbel_softmax, [X, NOISE, 0.7], {"expected": softmax}),
    "log1pexp": (recipes.log1pexp, [X], {}),
    "log_sum_exp": (recipes.log_sum_exp, [X], {}),
    "log_sum_exp, masked": (
        lambda x, where: recipes.log_sum_exp(x, 1, where=where),
        [np.array([[0.3, 2.6, 7.0], [-0.7, 9.0, 0.1]]), np.array([[True, True, False], [True, False, True]])],
        {},
    ),
    "safe_sqrt": (recipes.safe_sqrt, [X], {}),
    "safe_log": (recipes.safe_log, [X, 0.1], {}),
    "safe_norm": (recipes.safe_norm, [X], {}),
    "safe_norm, by axis": (recipes.safe_norm, [np.array([[0.3, 2.6], [-0.7, 0.1]]), 1], {}),
    "safe_norm, keeping dimensions": (recipes.safe_norm, [np.array([[0.3], [-0.7]]), (-2,), True], {}),
    "recompute": (recipes.recompute(mixed), [X, np.array([0.5, -1.0, 2.0]), "cubes"], {}),
    "recompute, with a rule": (
        recipes.recompute(lambda x: seven_exp(x)),
        [X],
        {"expected": lambda x, upstream: 7 * upstream * ops.exp(x)},
    ),
    "invertible": (
        recipes.invertible(coupled, uncoupled),
        [(X, X[::-1].copy()), (np.array([0.5, -1.0, 2.0]), np.array(0.3)), (np.array([1.5, 1.0, -2.0]), np.array(0.7))],
        {"expected": lambda x, p, q: coupled(coupled(x, p), q)},
    ),
    "custom_root": (
        recipes.custom_root(lambda x, a: x * x * x - a, bisection),
        [np.zeros(2), np.array([2.0, 3.0])],
        {"expected": lambda x0, a: ops.exp(ops.log(a) / 3) + 0 * x0},
    ),
    # Forward mode needs a rule that is known to be linear, and one that looks whether it converged is not.
    "fixed_point": (
        recipes.fixed_point(heron, steps=7),
        [np.ones(2), np.array([2.0, 3.0])],
        {"expected": lambda z0, a: ops.sqrt(a) + 0 * z0, "modes": ("reverse",)},
    ),
}


@pytest.mark.parametrize("case", CHECKED)
def test_checked(backend, case):
    f, args, options = CHECKED[case]
    # Compiling takes seconds, and of each recipe one case may be enough.
    is_first = case.partition(",")[0] not in [each.partition(",")[0] for each in CHECKED][: list(CHECKED).index(case)]
    assert_gradients(f, *args, **options, compiled=is_first or case in ("quantize, learned", "clip_gradient, by norm"))


def grid(backend, dtype, *arrays):
    """Arrays as tensors of a dtype."""
    return [config.active.cast(config.active.asarray(np.asarray(each, np.float32)), dtype) for each in arrays]


def found(tensor):
    return np.asarray(config.active.to_numpy(tensor), np.float64)


# --- batched -------------------------------------------------------------------------------------------------------


def over_batch(backend, f, array):
    """`f` of every row, by what the framework batches with."""
    rows = config.active.asarray(array)
    if backend == "jax":
        import jax

        return jax.vmap(f)(rows)
    if backend == "torch":
        import torch

        return torch.func.vmap(f)(rows)
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.vectorized_map(f, rows)
    return np.stack([f(row) for row in rows])


ROWS = np.array([[-0.7, 0.3, 2.6], [1.5, 0.0, -3.0]], np.float32)

BATCHED = {
    "straight_through": lambda x: recipes.straight_through(rounded)(x) * 3,
    "reverse_gradient": lambda x: recipes.reverse_gradient(x, 2.0) * 3,
    "scale_gradient": lambda x: recipes.scale_gradient(x, 2.0) * 3,
    "clip_gradient, by value": lambda x: recipes.clip_gradient(x, value=0.5) * x,
    "clip_gradient, by norm": lambda x: recipes.clip_gradient(x, norm=0.5) * x,
    "quantize": lambda x: recipes.quantize(x, 0.5, 3) * 3,
    "surrogate_spike": lambda x: recipes.surrogate_spike(x) * 3,
    "straight_through, annealed": lambda x: recipes.straight_through(rounded, ops.tanh)(x) * 3,
    "soft_round": lambda x: recipes.soft_round(x, 3.0),
    "gumbel_softmax": lambda x: recipes.gumbel_softmax(x, 0.5 * x, 2.0) * x,
    "log_sum_exp": lambda x: recipes.log_sum_exp(x, where=x < 2),
    "invertible": lambda x: recipes.invertible(lambda x, p: 2 * x * p, lambda y, p: y / 2 / p)(x, 2.0, 0.5) ** 2,
    "custom_root": lambda x: recipes.custom_root(lambda z, a, two: z**two - a, lambda g, x0: (-g(x0)) ** 0.5)(
        ops.zeros_like(x), x * x + 1, 2
    ),
    "log1pexp": recipes.log1pexp,
    "safe_sqrt": recipes.safe_sqrt,
    "safe_log": lambda x: recipes.safe_log(x, 0.1),
    "safe_norm": recipes.safe_norm,
    "recompute": recipes.recompute(lambda x: seven_exp(x) * x),
    "fixed_point": lambda x: recipes.fixed_point(heron, steps=8)(ops.ones_like(x), x * x + 1),
}


@pytest.mark.parametrize("case", BATCHED)
def test_batched(backend, case):
    def loss(x):
        return ops.sum(BATCHED[case](x))

    gradient = keras_cg.grad(loss)
    expected = np.stack([found(gradient(config.active.asarray(row))) for row in ROWS])
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(found(over_batch(backend, gradient, ROWS)), expected, rtol=1e-5, atol=1e-6)


# --- dtypes --------------------------------------------------------------------------------------------------------

KEEPING = {
    **BATCHED,
    # floor and exp of tf.experimental.numpy know no bfloat16 (TensorFlow 2.21).
    "recompute": recipes.recompute(lambda x: x * x),
    "straight_through": recipes.straight_through(lambda x: ops.where(x > 0, x * 2, x)),
    "straight_through, annealed": recipes.straight_through(lambda x: x * 2, lambda x: x * x),
    "quantize, learned": lambda x: recipes.quantize(x, ops.ones_like(x)[0] * 0.5, 3),
    "reverse_gradient, by a tensor": lambda x: recipes.reverse_gradient(x, np.float32(2.0)) * 3,
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes_are_kept(backend, dtype):
    if (backend, dtype) == ("numpy", "bfloat16"):
        return  # NumPy has none
    with config.active.double_precision():
        (x,) = grid(backend, dtype, X)
        (wide,) = grid(backend, "float64", found(x))
        for case, f in KEEPING.items():
            output, pullback = keras_cg.vjp(f, x)
            (gradient,) = pullback(ops.ones_like(output))
            assert (case, config.active.dtype(output)) == (case, dtype)
            assert (case, config.active.dtype(gradient)) == (case, dtype)
            expected, pullback = keras_cg.vjp(f, wide)
            (slope,) = pullback(ops.ones_like(expected))
            allowed = {"float16": 4e-3, "bfloat16": 3e-2}.get(dtype, 1e-5)
            np.testing.assert_allclose(found(output), found(expected), rtol=allowed, atol=allowed, err_msg=case)
            np.testing.assert_allclose(found(gradient), found(slope), rtol=allowed, atol=allowed, err_msg=case)


# --- the identity, with another gradient ---------------------------------------------------------------------------


@pytest.mark.parametrize("kwargs", [{"value": 1.0}, {"norm": 1.0}])
def test_clipping_a_nest(backend, kwargs):
    def f(x):
        output = recipes.clip_gradient(x, **kwargs)
        assert output["name"] == "static"
        assert config.active.dtype(output["n"]).startswith("int")
        return ops.sum(output["a"] * 3) + ops.sum(output["b"][0] * -4)

    a, b = (config.active.asarray(np.zeros(shape, np.float32)) for shape in ((), (1,)))
    n = config.active.asarray(np.array([1, 2]))
    _, pullback = keras_cg.vjp(lambda a, b: f({"a": a, "b": [b], "n": n, "name": "static"}), a, b)
    ga, gb = pullback(1.0)
    expected = (1, -1) if "value" in kwargs else (0.6, -0.8)
    np.testing.assert_allclose((found(ga), found(gb)[0]), expected, rtol=1e-6)


def test_clipping_by_norm_is_finite_where_nothing_arrives(backend):
    def f(x):
        return ops.sum(recipes.clip_gradient(x, norm=1.0) * x * 0)

    np.testing.assert_array_equal(found(keras_cg.hessian(f)(config.active.asarray(X))), np.zeros((3, 3)))
    # The norm of these overflows in float32, if it is taken plainly.
    x = config.active.asarray(np.zeros(2, np.float32))
    large = config.active.asarray(np.array([3e30, 4e30], np.float32))
    gradient = keras_cg.grad(lambda x: ops.sum(recipes.clip_gradient(x, norm=1.0) * large))(x)
    np.testing.assert_allclose(found(gradient), [0.6, 0.8], rtol=1e-6)


def test_a_schedule_may_be_traced_and_gets_no_gradient(backend):
    def loss(x, scale):
        nest = {"x": x, "twice": (2 * x,)}
        output = recipes.reverse_gradient(nest, scale)
        return ops.sum(output["x"] + output["twice"][0]) + ops.sum(recipes.scale_gradient(x, scale=scale))

    def gradients(x, scale):
        return keras_cg.grad(loss, (0, 1))(x, scale)

    x, scale = (config.active.asarray(np.array(each, np.float32)) for each in ([1.0, 2.0], 0.5))
    for f in filter(None, (gradients, config.active.compiled(gradients) if backend != "torch" else None)):
        gx, gs = f(x, scale)
        np.testing.assert_allclose(found(gx), [-1.0, -1.0])
        assert found(gs) == 0


def test_straight_through_other_arguments(backend):
    @recipes.straight_through
    def f(x, w, *, mode):
        return (rounded(x["a"] * w), x["b"] * w if mode == "on" else None)

    with pytest.raises(keras_cg.GradientError):
        f({"a": config.active.asarray(X), "b": config.active.asarray(X)}, 1.0, mode="off")

    @recipes.straight_through
    def g(x, w, *, mode):
        return {"a": rounded(x["a"] * w), "b": x["b"] * w if mode == "on" else None}

    def loss(a, w):
        output = g(w=w, x={"a": a, "b": 2 * a}, mode="on")
        return ops.sum(3 * output["a"] + 5 * output["b"])

    x, w = config.active.asarray(X), config.active.asarray(np.array(2.0, X.dtype))
    w = config.active.cast(w, config.active.dtype(x))
    ga, gw = keras_cg.grad(loss, (0, 1))(x, w)
    np.testing.assert_allclose(found(ga), [13, 13, 13])
    assert found(gw) == 0


def test_straight_through_a_compiled_function(backend):
    compiled = config.active.compiled(rounded) or rounded
    x = config.active.asarray(X)
    output, pullback = keras_cg.vjp(recipes.straight_through(compiled), x)
    np.testing.assert_allclose(found(output), [-1, 0, 3])
    np.testing.assert_allclose(found(pullback(x)[0]), X, rtol=1e-6)


# --- safe functions ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:underflow")
def test_log1pexp_of_large_numbers(backend):
    x = np.array([-1e30, -1000, -80, 0, 80, 1000, 1e30], np.float32)
    wide = np.clip(x.astype(float), -700, 700)
    sigmoid = 1 / (1 + np.exp(-wide))
    tensor = config.active.asarray(x)
    first = keras_cg.grad(recipes.log1pexp)
    second = keras_cg.grad(first)
    expected = np.where(x > 700, x, np.log1p(np.exp(wide)))
    np.testing.assert_allclose(found(recipes.log1pexp(tensor)), expected, rtol=1e-6, atol=1e-38)
    np.testing.assert_allclose(found(first(tensor)), sigmoid, rtol=1e-5, atol=1e-38)
    np.testing.assert_allclose(found(second(tensor)), sigmoid * (1 / (1 + np.exp(wide))), rtol=1e-5, atol=1e-38)
    assert found(keras_cg.grad(second)(config.active.asarray(np.float32(0.5)))) == pytest.approx(-0.0575568, rel=1e-5)


# autograd divides by squares on its way to derivatives that nobody asks for.
@pytest.mark.filterwarnings("ignore:(overflow|divide by zero|invalid value) encountered")
@pytest.mark.parametrize("size", [1e30, 1.0, 1e-30])
def test_safe_norm_of_any_size(backend, size):
    x = config.active.asarray(np.array([3, 4], np.float32) * np.float32(size))
    assert found(recipes.safe_norm(x)) == pytest.approx(5 * size, rel=1e-6)
    np.testing.assert_allclose(found(keras_cg.grad(recipes.safe_norm)(x)), [0.6, 0.8], rtol=1e-6)
    curvature = np.array([[0.128, -0.096], [-0.096, 0.072]]) / size
    np.testing.assert_allclose(found(keras_cg.hessian(recipes.safe_norm)(x)), curvature, rtol=1e-4)


@pytest.mark.parametrize(
    ("f", "at", "value"),
    [
        (recipes.safe_norm, [0.0, 0.0], 0.0),
        (recipes.safe_sqrt, [0.0, -0.0, -2.0], 0.0),
        (recipes.safe_log, [0.0, -1.0], math.log(2.0**-126)),
    ],
)
def test_nothing_comes_from_beyond_the_edge(backend, f, at, value):
    x = config.active.asarray(np.array(at, np.float32))
    np.testing.assert_allclose(found(f(x)), value, rtol=1e-6)
    np.testing.assert_array_equal(found(keras_cg.grad(f)(x)), 0)
    np.testing.assert_array_equal(found(keras_cg.hessian(f)(x)), 0)


def test_nan_stays_nan(backend):
    x = config.active.asarray(np.array([np.nan], np.float32))
    for f in (recipes.safe_norm, recipes.safe_sqrt, recipes.safe_log, recipes.log1pexp):
        assert np.isnan(found(f(x))).all()


def test_safe_norm_of_infinity_of_nothing_and_of_a_number(backend):
    assert found(recipes.safe_norm(config.active.asarray(np.array([-np.inf, 1], np.float32)))) == np.inf
    empty = config.active.asarray(np.zeros((2, 0), np.float32))
    assert found(recipes.safe_norm(empty)) == 0
    np.testing.assert_array_equal(found(recipes.safe_norm(empty, axis=1)), [0, 0])
    assert found(recipes.safe_norm(-3.0)) == 3
    assert found(recipes.log1pexp(0)) == pytest.approx(math.log(2))
    assert found(keras_cg.grad(recipes.safe_norm)(-3.0)) == -1


# --- jumps ---------------------------------------------------------------------------------------------------------


def test_quantize_rounds_half_to_even_and_clips(backend):
    x = config.active.asarray(np.array([-9, -2.5, -1.5, -0.5, 0.49999997, 0.5, 1.5, 2.5, 9], np.float32))
    assert found(recipes.quantize(x, 1.0, 3)).tolist() == [-4, -2, -2, 0, 0, 0, 2, 2, 3]
    assert found(recipes.quantize(x, 1.0, 2, signed=False)).tolist() == [0, 0, 0, 0, 0, 0, 2, 2, 3]


def test_quantize_scales_the_gradient_of_the_step(backend):
    x, step = (config.active.asarray(np.asarray(each, np.float32)) for each in (np.stack([X, X, X, X]), 4 * [[0.5]]))
    plain, scaled, lsq = (
        found(keras_cg.grad(lambda s: ops.sum(recipes.quantize(x, s, 3, gradient_scale=scale)))(step))
        for scale in (None, 0.25, "lsq")
    )
    np.testing.assert_allclose(scaled, plain / 4, rtol=1e-6)
    np.testing.assert_allclose(lsq, plain / math.sqrt(3 * 3), rtol=1e-6)


# autograd divides by squares on its way to derivatives that nobody asks for.
@pytest.mark.filterwarnings("ignore:(overflow|divide by zero|invalid value) encountered")
def test_a_spike_at_the_threshold(backend):
    x = config.active.asarray(np.array([-1e30, -1e-6, 0.0, 1e30], np.float32))
    for kind, height in (("fast_sigmoid", 1), ("arctan", 1), ("triangle", 0.3)):
        assert found(recipes.surrogate_spike(x, kind)).tolist() == [0, 0, 1, 1]
        slopes = found(keras_cg.grad(lambda x: recipes.surrogate_spike(x, kind))(x))
        np.testing.assert_allclose(slopes[[0, 2, 3]], [0, height, 0], rtol=1e-6, atol=1e-30)
        assert np.isfinite(found(keras_cg.grad(keras_cg.grad(lambda x: recipes.surrogate_spike(x, kind)))(x))).all()


# --- jumps that are smooth behind ----------------------------------------------------------------------------------


def test_straight_through_with_a_soft_function(backend):
    """The output is that of the one, and all gradients are those of the other, also of what it closes over."""
    x, slope, bias = (config.active.asarray(np.asarray(each, np.float32)) for each in (X, 2.0, 0.25))

    def loss(x, slope, bias):
        step = recipes.straight_through(
            lambda x, slope, *, name: {name: ops.where(x > 0, 7 * ops.ones_like(x), ops.zeros_like(x))},
            lambda x, slope, *, name: {name: 5 * x * slope + bias},
        )
        return step(x, slope, name="y")["y"]

    np.testing.assert_array_equal(found(loss(x, slope, bias)), [0, 7, 7])
    gx, gs, gb = keras_cg.grad(loss, (0, 1, 2))(x, slope, bias)
    np.testing.assert_allclose(found(gx), [10, 10, 10])
    np.testing.assert_allclose(found(gs), 5 * X.sum(), rtol=1e-6)
    assert found(gb) == 3
    if backend == "torch":
        bias.requires_grad_()
    with pytest.raises(keras_cg.CapturedVariableError, match="straight_through"):
        keras_cg.grad(lambda bias: recipes.straight_through(lambda x: x * bias, lambda x: x)(x))(bias)


def test_a_temperature_changes_without_compiling_again(backend):
    step = recipes.straight_through(lambda x, alpha: ops.round(x), recipes.soft_round)
    traces = []

    def counted(x, alpha):
        traces.append(1)
        return step(x, alpha)

    if backend == "torch":
        import torch

        def compiler(module, inputs):
            traces.append(1)
            return module.forward

        compiled = torch.compile(step, fullgraph=True, backend=compiler)
    else:
        compiled = config.active.compiled(counted) or step
    x, counts = config.active.asarray(np.array([0.1, 0.5, 1.4], np.float32)), []
    for alpha in (1.0, 4.0, 16.0):
        output, pullback = keras_cg.vjp(compiled, x, config.active.asarray(np.array(alpha, np.float32)))
        gx, nothing = pullback(ops.ones_like(output))
        np.testing.assert_array_equal(found(output), [0, 0, 1])
        off = np.array([-0.4, 0, -0.1])
        np.testing.assert_allclose(found(gx), alpha / 2 / np.cosh(alpha * off) ** 2 / np.tanh(alpha / 2), rtol=1e-4)
        assert found(nothing) == 0
        counts.append(len(traces))
    assert counts[0] == counts[2]
    assert counts[0] > 0 or backend == "numpy"


def test_soft_round_from_the_identity_to_rounding(backend):
    x = np.array([-1.5, -0.3, 0.001, 0.5, 0.7, 2.0], np.float32)
    off = x.astype(float) - np.round(x.astype(float))
    for alpha in (1e-6, 1e-3, 0.5, 5.0, 60.0):
        exact = np.sinh(alpha * off) / (2 * np.sinh(alpha / 2) * np.cosh(alpha * (0.5 - np.abs(off))))
        output = found(recipes.soft_round(config.active.asarray(x), alpha))
        np.testing.assert_allclose(output, np.round(x.astype(float)) + exact, rtol=1e-6, atol=1e-12)
    for alpha, expected in ((0.0, x), (math.inf, [-1.5, 0, 0, 0.5, 1, 2])):
        for given in (alpha, config.active.asarray(np.array(alpha, np.float32))):
            np.testing.assert_allclose(found(recipes.soft_round(config.active.asarray(x), given)), expected, rtol=1e-6)
    slopes = keras_cg.grad(recipes.soft_round)(config.active.asarray(x), math.inf)
    np.testing.assert_array_equal(found(slopes)[[1, 2, 4, 5]], 0)
    assert np.isnan(
        found(recipes.soft_round(config.active.asarray(x), config.active.asarray(np.array(-1.0, np.float32))))
    ).all()


def test_gumbel_noise(backend):
    uniform = config.active.asarray(np.array([0.0, 0.1, 0.5, 1 - 2.0**-24, 1.0, -0.1, 1.1, np.nan], np.float32))
    noise = found(recipes.gumbel_noise(uniform))
    least, most = -math.log(126 * math.log(2)), 24 * math.log(2)
    expected = [least, -math.log(-math.log(0.1)), -math.log(math.log(2)), most, most, np.nan, np.nan, np.nan]
    np.testing.assert_allclose(noise, expected, rtol=1e-5)
    np.testing.assert_array_equal(found(keras_cg.grad(lambda u: u + recipes.gumbel_noise(u))(uniform))[:5], 1)


@pytest.mark.only("numpy")
def test_gumbel_softmax_draws_as_often_as_it_should(backend):
    logits, count = np.array([0.0, 1.0, -1.0, -np.inf]), 20000
    noise = recipes.gumbel_noise(np.random.default_rng(0).random((count, 4)))
    drawn = recipes.gumbel_softmax(np.tile(logits, (count, 1)), noise, 0.1)
    assert np.unique(drawn).tolist() == [0, 1] and (drawn.sum(axis=1) == 1).all()
    expected = np.exp(logits) / np.exp(logits).sum()
    # Four standard deviations.
    assert (np.abs(drawn.mean(axis=0) - expected) <= 4 * np.sqrt(expected * (1 - expected) / count)).all()


def test_gumbel_softmax_of_what_cannot_be_drawn(backend):
    """A logit of minus infinity: it is never drawn, and nothing comes of it in any order."""
    logits = np.array([[0.5, -np.inf, 1.0], [-np.inf, -np.inf, -np.inf], [np.inf, 3.0, -np.inf]], np.float32)
    prices = config.active.asarray(np.array([1.0, 2.0, 4.0], np.float32))
    noise = config.active.asarray(np.zeros((3, 3), np.float32))
    high = 1 / (1 + math.exp(-0.25))
    for hard, first in ((True, [0, 0, 1]), (False, [1 - high, 0, high])):
        choose = lambda x, hard=hard: recipes.gumbel_softmax(x, noise, 2.0, hard=hard)
        x = config.active.asarray(logits)
        np.testing.assert_allclose(found(choose(x)), [first, [0, 0, 0], [1, 0, 0]], rtol=1e-6)
        gradient = found(keras_cg.grad(lambda x, choose=choose: choose(x) * prices)(x))
        slope = high * (1 - high) * 3 / 2
        np.testing.assert_allclose(gradient, [[-slope, 0, slope], [0, 0, 0], [0, 0, 0]], rtol=1e-5)
        second = keras_cg.grad(lambda x, choose=choose: keras_cg.grad(lambda x: choose(x) * prices)(x)[0, 2])(x)
        bend = slope * (1 - 2 * high) / 2
        np.testing.assert_allclose(found(second)[0], [-bend, 0, bend], rtol=1e-4)
        np.testing.assert_array_equal(found(second)[1:], 0)
    turned = recipes.gumbel_softmax(ops.permute_dims(config.active.asarray(logits), (1, 0)), noise, 2.0, axis=0)
    np.testing.assert_array_equal(found(turned).T, [[0, 0, 1], [0, 0, 0], [1, 0, 0]])
    broken = config.active.asarray(np.array([np.nan, 1.0, -np.inf], np.float32))
    assert np.isnan(found(recipes.gumbel_softmax(broken, ops.zeros_like(broken)))).all()


def test_the_temperature_of_gumbel_softmax_is_a_tensor(backend):
    x, noise = (config.active.asarray(np.asarray(each, np.float32)) for each in (X, NOISE))
    for temperature in (0.5, 2.0, -1.0):
        heat = config.active.asarray(np.array(temperature, np.float32))
        gx, gn, nothing = keras_cg.grad(lambda *args: recipes.gumbel_softmax(*args) * x, (0, 1, 2))(x, noise, heat)
        share = np.exp((X + NOISE) / temperature) / np.exp((X + NOISE) / temperature).sum()
        expected = share * (X - np.sum(share * X)) / temperature if temperature > 0 else np.full(3, np.nan)
        np.testing.assert_allclose(found(gn), expected, rtol=1e-4)
        one_hot = [0, 0, 1] if temperature > 0 else [np.nan] * 3
        np.testing.assert_allclose(found(gx), expected, rtol=1e-4)
        assert found(nothing) == 0
        np.testing.assert_array_equal(found(recipes.gumbel_softmax(x, noise, heat)), one_hot)


# --- invertible ----------------------------------------------------------------------------------------------------


def test_invertible_obeys_the_rules_inside(backend):
    """First order; the second one goes through the inverse, which has no such rule."""
    with config.active.double_precision():
        x, y, p, q, u, v = (config.active.asarray(np.asarray(each)) for each in (X, X[::-1].copy(), 0.5, 1.5, NOISE, X))
        chain = recipes.invertible(seven_coupled, seven_uncoupled)
        _, pullback = keras_cg.vjp(lambda x, y, p, q: chain((x, y), p, q), x, y, p, q)
        gx, gy, gp, gq = pullback((u, v))
        (ex, ey), ep, eq = seven_chained((x, y), p, q, (u, v))
        for came, expected in ((gx, ex), (gy, ey), (gp, ep), (gq, eq)):
            np.testing.assert_allclose(found(came), found(expected), rtol=1e-9)


def test_invertible_takes_nests(backend):
    def f(x, p):
        return {"a": x["a"] + p["w"] * x["b"], "b": x["b"], "n": x["n"]}

    def inverse(y, p):
        return {"a": y["a"] - p["w"] * y["b"], "b": y["b"], "n": y["n"]}

    chain = recipes.invertible(f, inverse)

    def loss(a, b, w):
        output = chain({"a": a, "b": b, "n": 3}, {"w": w, "name": "one"}, {"w": 2 * w, "name": "two"})
        assert output["n"] == 3
        return output["a"]

    a, b, w = (config.active.asarray(np.asarray(each, np.float32)) for each in (X, NOISE, 0.5))
    ga, gb, gw = keras_cg.grad(loss, (0, 1, 2))(a, b, w)
    np.testing.assert_allclose(found(ga), 1)
    np.testing.assert_allclose(found(gb), 1.5, rtol=1e-6)
    np.testing.assert_allclose(found(gw), 3 * NOISE.sum(), rtol=1e-6)


@pytest.mark.limit
def test_invertible_by_no_inverse_is_nan(backend):
    """A mistake; a function that is not one-to-one; one that loses all digits; and a number that is lost in one row."""
    many = np.full((200, 2), 1.0, np.float32)
    for f, inverse, x in (
        (lambda x, p: 2 * x * p, lambda y, p: y / p, X),
        (lambda x, p: x * x * p, lambda y, p: ops.sqrt(y / p), -X),
        (lambda x, p: p + 1e-9 * x, lambda y, p: (y - p) / 1e-9, X),
        (lambda x, p: 2 * x * p, lambda y, p: y / 2 / p + ops.asarray(np.float32([0, 0.01])), many),
    ):
        x, one = (config.active.asarray(np.asarray(each, np.float32)) for each in (x, 1.0))
        for gradient in keras_cg.grad(recipes.invertible(f, inverse), (0, 1))(x, one):
            assert np.isnan(found(gradient)).all()
    lax = recipes.invertible(lambda x, p: 2 * x * p, lambda y, p: 1.001 * y / 2 / p, tolerance=0.01)
    np.testing.assert_allclose(found(keras_cg.grad(lax)(x, one)), 2)
    assert np.isnan(found(keras_cg.grad(recipes.invertible(lax, lambda y, p: 1.001 * y / 2 / p))(x, one))).all()


@pytest.mark.only("torch", "tensorflow", "numpy")
def test_invertible_keeps_nothing_between(backend):
    """Of a chain its last two numbers, which are the result, and nothing on the way to them."""
    inside, outputs = [], []

    def f(x, p):
        inner = ops.exp(x[1])
        output = x[0] + p * ops.sin(inner)
        for kept, value in ((inside, inner), (outputs, output)):
            kept.append(weakref.ref(value._value if hasattr(value, "_value") else value))
        return x[1], output

    def inverse(y, p):
        return y[1] - p * ops.sin(ops.exp(y[0])), y[0]

    def alive(chain):
        inside.clear()
        outputs.clear()
        x, p = config.active.asarray(X), config.active.asarray(np.ones(3))
        output, pullback = keras_cg.vjp(chain, (x, x), p, p, p, p)
        gc.collect()
        count = sum(reference() is not None for reference in (*inside, *outputs[:2]))
        assert np.isfinite(found(pullback(output)[1])).all()
        return count

    assert alive(lambda x, *params: f(f(f(f(x, params[0]), params[1]), params[2]), params[3])) > 0  # the test can fail
    assert alive(recipes.invertible(f, inverse)) == 0


# --- custom_root ---------------------------------------------------------------------------------------------------


def test_custom_root_of_a_linear_system(backend):
    """A x = b in a nest, of which everything is known; found by what cannot be differentiated."""

    def f(x, params):
        z = ops.concat([x["first"], ops.reshape(x["rest"], (-1,))])
        rest = ops.matmul(params["A"], z) - params["b"]
        return {"first": rest[:1], "rest": ops.reshape(rest[1:], (1, 2))}

    matrix, b = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 0.0, 1.0]]), np.array([1.0, 2.0, 4.0])
    inverse = np.linalg.inv(matrix)
    x = inverse @ b

    def solver(g, x0):
        return {name: config.active.asarray(part) for name, part in (("first", x[:1]), ("rest", x[None, 1:]))}

    root, weights = recipes.custom_root(f, solver), np.array([1.0, 10.0, 100.0])

    def loss(a, b):
        x0 = {"first": ops.zeros_like(b[:1]), "rest": ops.zeros_like(b[None, 1:])}
        z = root(x0, {"A": a, "b": b})
        return ops.sum(z["first"] * weights[0]) + ops.sum(z["rest"] * config.active.asarray(weights[1:]))

    with config.active.double_precision():
        ga, gb = keras_cg.grad(loss, (0, 1))(config.active.asarray(matrix), config.active.asarray(b))
        w = inverse.T @ weights
        np.testing.assert_allclose(found(gb), w, rtol=1e-9)
        np.testing.assert_allclose(found(ga), -np.outer(w, x), rtol=1e-9)


@pytest.mark.limit
def test_custom_root_to_the_third_order(backend):
    """The cube root: right to the third order, NaN in the fourth; by the whole matrix, and by a solver of one's own."""
    with config.active.double_precision():
        x0, a = (config.active.asarray(np.array(each)) for each in (1.0, 8.0))
        for linear_solve in (None, lambda matvec, b: b / matvec(ops.ones_like(b))):
            f = recipes.custom_root(lambda x, a: x * x * x - a, bisection, linear_solve=linear_solve)
            derivative = lambda a, f=f: f(x0, a)
            for expected in (2.0, 1 / 12, -2 / 9 * 8 ** (-5 / 3), 10 / 27 * 8 ** (-8 / 3), np.nan):
                np.testing.assert_allclose(found(derivative(a)), expected, rtol=1e-8)
                derivative = keras_cg.grad(derivative)
            assert found(keras_cg.grad(f)(x0, a)) == 0


def test_custom_root_by_scipy(backend):
    """x exp(x) = a, by a solver that knows nothing of the framework; the gradient is that of Lambert's function."""
    from scipy import special

    solver = recipes.from_numpy(lambda a: special.lambertw(a).real.astype(a.dtype), None)

    def f(a):
        root = recipes.custom_root(lambda x, a: x * ops.exp(x) - a, lambda g, x0: solver(-g(x0)))
        return root(ops.zeros_like(a), a)

    a = np.array([0.5, 2.0, 7.0], np.float32)
    w = special.lambertw(a.astype(float)).real
    output, pullback = keras_cg.vjp(f, config.active.asarray(a))
    np.testing.assert_allclose(found(output), w, rtol=1e-5)
    np.testing.assert_allclose(found(pullback(ops.ones_like(output))[0]), w / a / (1 + w), rtol=1e-5)


def test_what_a_solution_and_a_chain_close_over(backend):
    """What is differentiated must be an argument, and an error says so."""
    x = config.active.asarray(X)
    for of in (
        lambda w: recipes.custom_root(lambda x, a: x - w * a, lambda g, x0: ops.stop_gradient(x0 - g(x0)))(x, x),
        lambda w: recipes.invertible(lambda x, p: x * w, lambda y, p: y / w)(x, None),
    ):
        with pytest.raises(keras_cg.CapturedVariableError):
            keras_cg.grad(of)(config.active.asarray(np.asarray(2.0, X.dtype)))


# --- recompute -----------------------------------------------------------------------------------------------------


def test_recompute_takes_any_arguments(backend):
    runs = []

    def f(x, params, *, mode, k=2):
        runs.append(mode)
        return {"y": x * params["w"] ** k, "n": 5, "mode": mode, "i": ops.argmax(x)}

    def loss(x, w):
        output = recipes.recompute(f)(x, {"w": w, "name": "static"}, mode="on")
        assert (output["n"], output["mode"]) == (5, "on")
        assert int(output["i"]) == 2
        return ops.sum(output["y"])

    x, w = config.active.asarray(X), config.active.asarray(np.asarray(3.0, X.dtype))
    output, pullback = keras_cg.vjp(lambda x, w: recipes.recompute(f)(x, {"w": w}, mode="on")["y"], x, w)
    before = len(runs)
    pullback(ops.ones_like(output))
    assert before == 1 or backend == "jax"  # which traces
    assert len(runs) > before or backend == "jax"
    gx, gw = keras_cg.grad(loss, (0, 1))(x, w)
    np.testing.assert_allclose(found(gx), [9, 9, 9])
    np.testing.assert_allclose(found(gw), 6 * X.sum(), rtol=1e-6)


def test_recompute_trains_what_it_closes_over(backend):
    def loss(w, x):
        return ops.sum(recipes.recompute(lambda x: ops.tanh(x) * w**2)(x))

    x, w = config.active.asarray(X), config.active.asarray(np.asarray(3.0, X.dtype))
    np.testing.assert_allclose(found(keras_cg.grad(loss)(w, x)), 6 * np.tanh(X).sum(), rtol=1e-6)
    np.testing.assert_allclose(found(keras_cg.hessian(loss)(w, x)), 2 * np.tanh(X).sum(), rtol=1e-6)


@pytest.mark.only("torch")
def test_recompute_trains_parameters_and_draws_the_same(backend):
    import torch

    w = torch.nn.Parameter(torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64))
    seen = []

    def f(x):
        mask = (torch.rand_like(x) > 0.5).double() + 1
        seen.append(mask.clone())
        return x * w * mask

    x = torch.tensor(X, requires_grad=True)
    recipes.recompute(f)(x).sum().backward()
    assert len(seen) == 2
    np.testing.assert_allclose(seen[0], seen[1])
    np.testing.assert_allclose(w.grad, X * seen[0].numpy())


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("jit", [None, False, True])
def test_recompute_trains_variables(backend, jit):
    import tensorflow as tf

    w = tf.Variable([2.0, 3.0, 5.0])

    def gradients(x):
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(recipes.recompute(lambda x: seven_exp(x) * w**3)(x))
            gw = tape.gradient(y, w)
        return gw, outer.gradient(gw, w), outer.gradient(gw, x)

    if jit is not None:
        gradients = tf.function(gradients, jit_compile=jit)
    gw, gww, gwx = gradients(tf.constant(X, tf.float32))
    w0 = np.array([2.0, 3, 5])
    np.testing.assert_allclose(gw, 6 * X * w0**2, rtol=1e-5)
    np.testing.assert_allclose(gww, 12 * X * w0, rtol=1e-5)
    np.testing.assert_allclose(gwx, 21 * w0**2 * np.exp(X), rtol=1e-5)


@pytest.mark.only("torch", "tensorflow", "numpy")
def test_recompute_keeps_only_the_arguments(backend):
    """JAX's own `jax.checkpoint` is left to JAX."""
    kept = []

    def f(x):
        inner = ops.exp(x)
        kept.append(weakref.ref(inner._value if backend == "numpy" and hasattr(inner, "_value") else inner))
        return ops.sin(inner)

    def alive(f):
        kept.clear()
        output, pullback = keras_cg.vjp(f, config.active.asarray(X))
        gc.collect()
        state = kept[0]() is not None
        pullback(output)
        return state

    assert alive(f)  # the test can fail
    assert not alive(recipes.recompute(f))


@pytest.mark.only("numpy")
def test_recompute_finds_attributes(backend):
    class Holder:
        pass

    def loss(w, x):
        holder = Holder()
        holder.w = w
        return ops.sum(recipes.recompute(lambda x: seven_exp(x) * holder.w**3)(x))

    gw, gx = keras_cg.grad(loss, (0, 1))(np.asarray(2.0), X)
    np.testing.assert_allclose(gw, 24 * np.sum(X))
    np.testing.assert_allclose(gx, 56 * np.exp(X))


hidden = [None]


def by_a_global():
    return hidden[0]


@pytest.mark.only("numpy")
@pytest.mark.limit
def test_recompute_refuses_what_it_cannot_find(backend):
    class Holder:
        __slots__ = ("w",)

    def in_a_slot(w, x):
        holder = Holder()
        holder.w = w
        return ops.sum(recipes.recompute(lambda x: x * holder.w)(x))

    def loss(w, x):
        hidden[0] = w
        return ops.sum(recipes.recompute(lambda x: x * by_a_global())(x))

    assert keras_cg.grad(in_a_slot)(np.asarray(3.0), X) == np.sum(X)
    with pytest.raises(keras_cg.CapturedVariableError) as caught:
        keras_cg.grad(loss)(np.asarray(3.0), X)
    assert str(caught.value).splitlines() == [
        "recompute: the function reads a value that is being differentiated and is not among its arguments.",
        "    usual cause: a tensor in a global, or in what a function in a global reads.",
        "    what would happen: the backend 'numpy' does not find it, and it would silently get no gradient.",
        "    remedy: pass it as an argument, or stop its gradient inside the function.",
    ]


def changed_since(reads):
    """What a recomputed function says when `reads` is no longer what it read."""
    return re.escape(f"<lambda>) reads {reads} that was assigned or changed in place since it ran; its gradient needs")


@pytest.mark.only("torch")
@pytest.mark.parametrize("kind", ["trained", "frozen", "tensor", "module", "frozen module", "buffer", "hidden"])
def test_recompute_of_what_was_changed_in_place_on_torch(backend, kind):
    import torch

    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            if kind == "buffer":
                self.register_buffer("w", torch.full((3,), 3.0))
            else:
                self.w = torch.nn.Parameter(torch.full((3,), 3.0), requires_grad=kind != "frozen module")

    class Hidden:
        __slots__ = ("w",)

    holder = Hidden() if kind == "hidden" else Scale()
    if kind in ("tensor", "hidden", "frozen"):
        holder = holder if kind == "hidden" else SimpleNamespace()
        holder.w = torch.full((3,), 3.0) if kind == "tensor" else torch.nn.Parameter(torch.full((3,), 3.0))
        holder.w.requires_grad_(kind == "hidden")
    other = torch.nn.Parameter(torch.ones(3))
    x = torch.tensor(X, dtype=torch.float32, requires_grad=True)
    f = recipes.recompute(lambda x: x * holder.w * holder.w + 0 * other.detach())
    first, second = f(x), f(x)
    np.testing.assert_allclose(torch.autograd.grad(first.sum(), x)[0], [9, 9, 9])
    with torch.no_grad():
        holder.w.mul_(2)
    what = "Tensor" if kind in ("tensor", "buffer") else "Parameter"
    with pytest.raises(RuntimeError, match=changed_since(f"a {what} of float32[3]")):
        second.sum().backward()


@pytest.mark.only("torch")
@pytest.mark.limit
def test_recompute_after_a_step_of_an_optimizer(backend):
    """Of what the function does not read, though a module in its closure has it, a change is none."""
    import torch

    model = torch.nn.ModuleDict({"read": torch.nn.Linear(3, 1), "not read": torch.nn.Linear(3, 1)})
    x = torch.tensor(X, dtype=torch.float32)
    for name, optimized in (("not read", "not read"), ("read", "read")):
        output = recipes.recompute(lambda x: model["read"](x) ** 2)(x)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        torch.optim.Adam(model[optimized].parameters(), lr=0.1).step()
        if name == "read":
            with pytest.raises(RuntimeError, match=changed_since("a Parameter of float32[1, 3]")):
                output.backward()
        else:
            model.zero_grad()
            slope = 2 * output.item() ** 0.5 * np.sign(model["read"](x).item())
            output.backward()
            np.testing.assert_allclose(model["read"].weight.grad[0], slope * X, rtol=1e-5)


@pytest.mark.only("torch")
def test_recompute_of_an_argument_that_was_changed_in_place(backend):
    """Torch's own error, for it saves the arguments; and an output may be changed."""
    import torch

    x = torch.tensor(X, requires_grad=True)
    z = x * 1
    output = recipes.recompute(lambda z: seven_exp(z) * z)(z)
    with torch.no_grad():
        z.mul_(10)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
    square, one = recipes.recompute(lambda x: (seven_exp(x), x * 2))(x)
    (square.sum() + one.mul_(3).sum()).backward()
    np.testing.assert_allclose(x.grad, 7 * np.exp(X) + 6)


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("where", ["closure", "module", "array"])
def test_recompute_of_a_variable_that_was_assigned(backend, where, trainable):
    import tensorflow as tf

    if where == "array":
        w = np.full(3, 3.0)
        reads, what = (lambda: w), "a NumPy array"
    else:
        w = tf.Variable(np.full(3, 3.0), trainable=trainable)
        module = tf.Module()
        module.w = w
        reads = (lambda: module.w) if where == "module" else (lambda: w)
        what = f"a variable ({w.name})"
    x = tf.constant(X)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        output = recipes.recompute(lambda x: x * reads() * reads())(x)
    np.testing.assert_allclose(tape.gradient(output, x), [9, 9, 9])
    if where == "array":
        w[1] = 4
    else:
        w.assign([3, 4, 3])
    with pytest.raises(RuntimeError, match=changed_since(what)):
        tape.gradient(output, x)


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
@pytest.mark.limit
def test_recompute_of_a_variable_that_was_assigned_between_two_graphs(backend, dtype, jit):
    """The forward pass is a program, and the backward pass another one: no number comes of it."""
    import tensorflow as tf

    w = tf.Variable(tf.cast([1.0, 3.0, 3.0], dtype))
    f = tf.function(lambda x: recipes.recompute(lambda x: x * w * w)(x), jit_compile=jit)
    x = tf.cast(X, dtype)
    for value, expected in (([1, 3, 3], [1, 9, 9]), ([3, 1, 3], [np.nan] * 3), ([1, 3, 2], [np.nan] * 3)):
        w.assign(tf.cast([1.0, 3.0, 3.0], dtype))
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = f(x)
        w.assign(tf.cast(value, dtype))
        np.testing.assert_allclose(np.real(tape.gradient(output, x)), expected)


@pytest.mark.only("numpy")
@pytest.mark.parametrize("where", ["closure", "global", "argument"])
def test_recompute_of_an_array_that_was_changed_in_place(backend, where, monkeypatch):
    w, x = np.full(3, 3.0), X.copy()
    monkeypatch.setitem(globals(), "in_a_global", w)
    functions = {
        "closure": lambda x: x * w * w,
        "global": lambda x: x * in_a_global * in_a_global,  # noqa: F821
        "argument": lambda x, w=w: x * w * w,
    }
    f = recipes.recompute(functions[where])
    _, pullback = keras_cg.vjp(lambda x: f(x, w) if where == "argument" else f(x), x)
    np.testing.assert_allclose(pullback(np.ones(3))[0], [9, 9, 9])
    w[1] = 4
    with pytest.raises(RuntimeError, match=changed_since("a tensor of float64[3]")):
        pullback(np.ones(3))


@pytest.mark.only("torch", "tensorflow", "numpy")
@pytest.mark.limit
def test_recompute_of_a_function_that_draws_others(eager, backend):
    draws = np.random.default_rng(0)

    def f(x):
        return seven_exp(x) * eager.tensor(draws.random((64, 3)))

    x = eager.tensor(np.tile(X, (64, 1)))
    _, pullback = keras_cg.vjp(recipes.recompute(f), x)
    with pytest.raises(RuntimeError) as caught:
        pullback(x)
    assert str(caught.value).splitlines() == [
        "recompute(test_recompute_of_a_function_that_draws_others.<locals>.f) ran again for its gradient, and gave"
        " another output than the first time.",
        "    usual cause: random numbers of another library, or something in an attribute or a global that was"
        " changed.",
        "    remedy: draw random numbers by keras.random, or outside; pass what changes as an argument.",
    ]


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
@pytest.mark.limit
def test_recompute_of_a_function_that_draws_from_a_state_of_tensorflow(eager, backend, mode):
    import tensorflow as tf

    generator = tf.random.Generator.from_seed(1)
    functions = {
        "RandomUniform": lambda x: x * tf.random.uniform((64, 3)),
        "RandomStandardNormal": lambda x: x * tf.random.normal((64, 3)),
        "TruncatedNormal": lambda x: x * tf.random.truncated_normal((64, 3)),
        "Multinomial": lambda x: x * tf.cast(tf.random.categorical(x, 3), x.dtype),
        "RngReadAndSkip": lambda x: x * generator.uniform((64, 3)),
        None: lambda x: x * tf.random.stateless_uniform((64, 3), [1, 2]),
    }

    def both(x, f):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = recipes.recompute(lambda x: seven_exp(f(x)))(x)
        return output, tape.gradient(output, x)

    x = tf.ones((64, 3))
    for name, f in functions.items():
        run = both if mode == "eager" else tf.function(both, jit_compile=mode == "jit")
        if name is None:
            output, gradient = run(x, f)
            np.testing.assert_allclose(gradient, 7 * np.exp(output / 2) * output / 2, rtol=1e-5)
            continue
        with pytest.raises(RuntimeError) as caught:
            run(x, f)
        for part in (
            ["gave another output than the first time."]
            if mode == "eager"
            else [
                f"draws random numbers ({name}), and would draw others when it runs for its gradient.",
                "usual cause: tf.random, tf.nn.dropout, or a tf.random.Generator inside keras_cg.recipes.recompute.",
                "remedy: draw them by keras.random, by tf.random.stateless_* from a seed, or outside.",
            ]
        ):
            assert part in str(caught.value)


def test_recompute_without_anybody_who_differentiates(backend):
    """It is the function itself, with any arguments."""
    output = recipes.recompute(lambda x, *, n: x * n)(config.active.asarray(X), n=2)
    np.testing.assert_allclose(found(output), 2 * X, rtol=1e-6)


# --- fixed_point ---------------------------------------------------------------------------------------------------

A = np.array([[0.2, 0.1], [-0.1, 0.15]])


def test_fixed_point_of_a_linear_map(backend):
    """z = A z + b, of which everything is known: z = (1 - A)^-1 b."""

    def f(z, params, n):
        return {"z": ops.matmul(params["A"], z["z"]) + params["b"] ** n}

    solve = recipes.fixed_point(f, steps=30)

    def loss(z0, a, b):
        return ops.sum(solve({"z": z0}, {"A": a, "b": b}, 2)["z"])

    with config.active.double_precision():
        z0, a, b = (config.active.asarray(np.array(each)) for each in ([5.0, -3.0], A, [1.0, 2.0]))
        gz, ga, gb = keras_cg.grad(loss, (0, 1, 2))(z0, a, b)
        inverse = np.linalg.inv(np.eye(2) - A)
        w = inverse.T @ np.ones(2)
        np.testing.assert_allclose(found(gz), 0)
        np.testing.assert_allclose(found(gb), w * np.array([2.0, 4.0]), rtol=1e-9)
        np.testing.assert_allclose(found(ga), np.outer(w, inverse @ np.array([1.0, 4.0])), rtol=1e-9)
        np.testing.assert_allclose(found(keras_cg.hessian(loss, 2)(z0, a, b)), np.diag(2 * w), rtol=1e-9, atol=1e-12)


@pytest.mark.limit
def test_fixed_point_that_does_not_converge_is_nan(backend):
    def half(z, a):
        return a * (z + 1)

    z0, a = (config.active.asarray(np.asarray(each, np.float32)) for each in ([0.0], [0.9]))
    assert np.isnan(found(recipes.fixed_point(half, steps=5)(z0, a))).all()
    np.testing.assert_allclose(found(recipes.fixed_point(half, steps=5, tolerance=0.2)(z0, a)), 3.68559, rtol=1e-5)
    # Where z0 is the solution, w still has to converge.
    solution = config.active.asarray(np.array([9.0], np.float32))
    solve = recipes.fixed_point(half, steps=5)
    np.testing.assert_allclose(found(solve(solution, a)), 9, rtol=1e-5)
    assert np.isnan(found(keras_cg.grad(solve, 1)(solution, a))).all()
    # A small upstream is not taken for nothing.
    assert np.isnan(found(keras_cg.grad(lambda a: 1e-9 * solve(solution, a))(a))).all()


def test_fixed_point_at_zero(backend):
    solve = recipes.fixed_point(lambda z, a: a * z, steps=30)
    z0, a = (config.active.asarray(np.asarray(each, np.float32)) for each in ([3.0], [0.5]))
    np.testing.assert_allclose(found(solve(z0, a)), 0, atol=1e-8)


# --- what is refused -----------------------------------------------------------------------------------------------


def message(call, kind):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


@pytest.mark.only("numpy")
def test_wrong_parameters(backend):
    x = X
    told = [
        (
            lambda: recipes.straight_through(3),
            TypeError,
            "straight_through expects a function, got an int. Give the function itself, not what it returns.",
        ),
        (
            lambda: recipes.recompute(x),
            TypeError,
            "recompute expects a function, got a numpy.ndarray. Give the function itself, not what it returns.",
        ),
        (
            lambda: recipes.fixed_point(None),
            TypeError,
            "fixed_point expects a function, got a NoneType. Give the function itself, not what it returns.",
        ),
        (lambda: recipes.straight_through(np.sign, 3), TypeError, "straight_through expects a function, got an int."),
        (lambda: recipes.invertible(np.sin, None), TypeError, "invertible expects a function, got a NoneType."),
        (lambda: recipes.custom_root(np.sin, 1.0), TypeError, "custom_root expects a function, got a float."),
        (
            lambda: recipes.custom_root(np.sin, np.sin, linear_solve="cg"),
            TypeError,
            "custom_root expects a function, got a str.",
        ),
        (lambda: recipes.custom_root(heron, np.sin)(1.0, x), TypeError, "custom_root(heron): x0 is 1.0, and"),
        (
            lambda: recipes.custom_root(heron, np.sin)((), x),
            TypeError,
            "custom_root(heron): there is no tensor in x0. Give a real floating tensor, or a nest of such.",
        ),
        (
            lambda: recipes.invertible(heron, heron)(x),
            TypeError,
            "invertible(heron) applies its function once for each argument after the first, and there is none. Give"
            " the parameters of each block, None for a block without any.",
        ),
        (
            lambda: recipes.invertible(heron, heron)(3, x),
            TypeError,
            "invertible(heron): there is no floating tensor in x. Give one, or a nest with one in it.",
        ),
        (
            lambda: recipes.invertible(heron, heron, tolerance=-1),
            ValueError,
            "invertible: tolerance=-1 is not a positive number.",
        ),
        (lambda: recipes.soft_round("1", 2), TypeError, "soft_round: x is '1', and"),
        (lambda: recipes.soft_round(x, "2"), TypeError, "soft_round: alpha must be a number"),
        (lambda: recipes.soft_round(x, -2), ValueError, "soft_round: alpha=-2 is not a number from 0 on."),
        (
            lambda: recipes.soft_round(x, np.ones(2)),
            ValueError,
            "soft_round: alpha is float64[2], which does not broadcast to x, float64[3]. Each of its axes, counted",
        ),
        (lambda: recipes.gumbel_noise(None), TypeError, "gumbel_noise: uniform is None, and"),
        (lambda: recipes.gumbel_softmax(x, None), TypeError, "gumbel_softmax: noise is None, and"),
        (
            lambda: recipes.gumbel_softmax(x, x[:1]),
            ValueError,
            "gumbel_softmax: noise is float64[1], and logits is float64[3]. Give one of the same shape: broadcast, it"
            " would be the same for what should differ.",
        ),
        (
            lambda: recipes.gumbel_softmax(x, x, 0),
            ValueError,
            "gumbel_softmax: temperature=0.0 is not a positive, finite number.",
        ),
        (
            lambda: recipes.gumbel_softmax(x, x, axis=1),
            ValueError,
            "gumbel_softmax: axis=1 is not an axis of a tensor with 1, or a tuple of such.",
        ),
        (
            lambda: recipes.gumbel_softmax(x, x, axis=None),
            ValueError,
            "gumbel_softmax: axis=None is not a whole number: categories lie along one axis.",
        ),
        (
            lambda: recipes.log_sum_exp(x, where=x),
            TypeError,
            "log_sum_exp: where is float64[3], and a mask is a boolean tensor of the active backend. Compare, as by"
            " x > 0.",
        ),
        (lambda: recipes.log_sum_exp(x, where=True), TypeError, "log_sum_exp: where is True, and a mask is"),
        (
            lambda: recipes.log_sum_exp(x, where=np.array([True, False])),
            ValueError,
            "log_sum_exp: where is bool[2], which does not broadcast to x, float64[3]. Each of its axes",
        ),
        (lambda: recipes.log_sum_exp(x, axis=(0, 1)), ValueError, "log_sum_exp: axis=(0, 1) is not an axis of"),
        (
            lambda: recipes.log1pexp(np.arange(3)),
            TypeError,
            "log1pexp: x is int64[3], and this recipe takes real floating tensors. Convert it to a floating dtype; of"
            " complex numbers, give real and imaginary parts by themselves.",
        ),
        (lambda: recipes.safe_sqrt(1j * x), TypeError, "safe_sqrt: x is complex128[3], and"),
        (lambda: recipes.safe_log("2"), TypeError, "safe_log: x is '2', and"),
        (lambda: recipes.safe_norm(None), TypeError, "safe_norm: x is None, and"),
        (lambda: recipes.surrogate_spike([1.0]), TypeError, "surrogate_spike: x is [1.0], and"),
        (lambda: recipes.quantize(None, 1.0), TypeError, "quantize: x is None, and"),
        (lambda: recipes.clip_gradient(1j * x, value=1), TypeError, "clip_gradient: x is complex128[3], and"),
        (
            lambda: recipes.fixed_point(heron)(1.0, x),
            TypeError,
            "fixed_point(heron): z0 is 1.0, and",
        ),
        (
            lambda: recipes.reverse_gradient(x, "2"),
            TypeError,
            "reverse_gradient: scale must be a number or a real floating tensor of the active backend, got a str.",
        ),
        (lambda: recipes.scale_gradient(x, None), TypeError, "scale_gradient: scale must be a number"),
        (lambda: recipes.clip_gradient(x, norm="1"), TypeError, "clip_gradient: norm must be a number"),
        (lambda: recipes.quantize(x, np.array(1)), TypeError, "quantize: step must be a number"),
        *(
            (
                call,
                TypeError,
                "clip_gradient takes exactly one of value=... (clips each element) and norm=... (clips the norm of"
                " all).",
            )
            for call in (lambda: recipes.clip_gradient(x), lambda: recipes.clip_gradient(x, value=1, norm=1))
        ),
        (
            lambda: recipes.clip_gradient(x, value=-1),
            ValueError,
            "clip_gradient: value=-1.0 is not a positive number.",
        ),
        (lambda: recipes.clip_gradient(x, norm=0), ValueError, "clip_gradient: norm=0.0 is not a positive number."),
        (lambda: recipes.safe_log(x, 0), ValueError, "safe_log: floor=0 is not a positive number."),
        (
            lambda: recipes.safe_norm(x, 1),
            ValueError,
            "safe_norm: axis=1 is not an axis of a tensor with 1, or a tuple of such.",
        ),
        (
            lambda: recipes.surrogate_spike(x, "arctangent"),
            ValueError,
            "surrogate_spike: there is no kind 'arctangent'. The kinds are: fast_sigmoid, arctan, triangle."
            " Did you mean 'arctan'?",
        ),
        (
            lambda: recipes.surrogate_spike(x, slope=-1),
            ValueError,
            "surrogate_spike: slope=-1 is not a positive, finite number.",
        ),
        (
            lambda: recipes.quantize(x, 0.0),
            ValueError,
            "quantize: step=0.0 is not a positive, finite number.",
        ),
        (
            lambda: recipes.quantize(x, 1.0, 1),
            ValueError,
            "quantize: bits=1 is not a whole number from 1 (if signed, from 2) to 24.",
        ),
        (
            lambda: recipes.quantize(x, 1.0, gradient_scale="paper"),
            ValueError,
            "quantize: gradient_scale='paper' is not None, \"lsq\", a number or a floating tensor.",
        ),
        (
            lambda: recipes.fixed_point(heron, steps=0),
            ValueError,
            "fixed_point: steps=0 is not a whole number from 1 on.",
        ),
        (
            lambda: recipes.fixed_point(heron, tolerance=0),
            ValueError,
            "fixed_point: tolerance=0 is not a positive number.",
        ),
    ]
    for call, kind, expected in told:
        assert message(call, kind).startswith(expected)


@pytest.mark.only("numpy")
def test_a_number_that_no_float_holds(backend):
    for huge in (10**400, -(10**5000)):
        for call, argument in (
            (lambda huge: recipes.scale_gradient(X, huge), "scale_gradient: scale"),
            (recipes.log1pexp, "log1pexp: x"),
            (lambda huge: recipes.clip_gradient(X, norm=huge), "clip_gradient: norm"),
            (lambda huge: recipes.safe_log(X, huge), "safe_log: floor"),
            (lambda huge: recipes.quantize(X, huge), "quantize: step"),
            (lambda huge: recipes.quantize(X, 0.5, gradient_scale=huge), "quantize: gradient_scale"),
            (lambda huge: recipes.surrogate_spike(X, slope=huge), "surrogate_spike: slope"),
            (lambda huge: recipes.fixed_point(heron, tolerance=huge), "fixed_point: tolerance"),
        ):
            assert message(lambda call=call, huge=huge: call(huge), ValueError) == (
                f"{argument} is a number that is too large for a float, which ends at about 1.8e308 in either"
                " direction. Give a smaller number, or math.inf if that is what you mean."
            )


def test_an_output_that_is_not_like_the_input(backend):
    x, line, summed = config.active.asarray(X), lambda x, a: x - a, lambda matvec, b: ops.sum(b)
    lines = message(lambda: recipes.straight_through(lambda x: x > 0)(x), keras_cg.GradientError).splitlines()
    assert re.sub(r"float\d\d", "float", lines[2]) == "    expected: float[3]"
    assert lines[0].startswith("straight_through(")
    assert lines[0].endswith(": the output is not like the first argument, so that upstream cannot be its gradient.")
    assert lines[1] == "    got: bool[3]"
    assert lines[3:] == [
        "    usual cause: a function that reduces or broadcasts, or one that returns a comparison or integers.",
        "    remedy: return the structure and the shapes of the first argument, in a floating dtype.",
    ]
    for call, part in (
        (lambda: recipes.straight_through(ops.sum)(x), "is not like the first argument"),
        (lambda: recipes.fixed_point(lambda z, a: ops.sum(z))(x, x), "is not like the first argument"),
        (lambda: recipes.straight_through(ops.sum, ops.tanh)(x), "): the output is not like the output of soft, so"),
        (
            lambda: recipes.custom_root(ops.sum, lambda g, x0: x0)(x),
            "): the output is not like the first",
        ),
        (
            lambda: recipes.custom_root(ops.tanh, lambda g, x0: ops.sum(x0))(x),
            "): the output is not like x0, so",
        ),
        (
            lambda: keras_cg.grad(recipes.custom_root(line, lambda g, x0: 0 * x0, linear_solve=summed), 1)(x, x),
            "the linear_solve of custom_root(",
        ),
        (
            lambda: keras_cg.grad(recipes.invertible(lambda x, p: x, lambda y, p: y[:1]))(x, None),
            ", of what its inverse gave: the output is not like what that got, so that upstream",
        ),
    ):
        assert part in message(call, keras_cg.GradientError)


@pytest.mark.limit
@pytest.mark.only("tensorflow")
def test_a_root_has_no_second_order_under_xla(backend):
    import tensorflow as tf

    def compiled(linear_solve):
        root = recipes.custom_root(lambda x, a: x * x - a, lambda g, x0: tf.sqrt(-g(x0)), linear_solve=linear_solve)
        return tf.function(keras_cg.grad(keras_cg.grad(lambda a: root(tf.zeros_like(a), a))), jit_compile=True)

    np.testing.assert_allclose(compiled(lambda matvec, b: b / matvec(tf.ones_like(b)))(tf.constant(4.0)), -1 / 32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="requires a fixed tensor list size"):
        compiled(None)(tf.constant(4.0))


@pytest.mark.only("tensorflow")
def test_a_root_of_unknown_size(backend):
    """The Jacobian as a matrix needs a size; a linear solver does not, nor do the other new recipes."""
    import tensorflow as tf

    def run(f, *shapes):
        specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
        return tf.function(lambda x: keras_cg.grad(f)(x), input_signature=specs)(tf.constant([4.0, 9.0])).numpy()

    def root(linear_solve):
        f = recipes.custom_root(lambda x, a: x * x - a, lambda g, x0: tf.sqrt(-g(x0)), linear_solve=linear_solve)
        return lambda a: f(tf.zeros_like(a), a)

    np.testing.assert_allclose(run(root(lambda matvec, b: b / matvec(tf.ones_like(b))), [None]), [1 / 4, 1 / 6])
    with pytest.raises(ValueError) as caught:
        run(root(None), [None])
    assert (
        "how many numbers x0 has is unknown until run time, and the Jacobian as a matrix needs it. Set its shape, as by"
        " tf.ensure_shape(x, [3]), or give linear_solve." in str(caught.value)
    )
    share = 1 / (1 + np.exp(-5))
    np.testing.assert_allclose(run(recipes.log_sum_exp, None), [1 - share, share], rtol=1e-5)
    chain = recipes.invertible(lambda x, p: x * 7, lambda y, p: y / 7)
    np.testing.assert_allclose(run(lambda x: chain(x, None), None), 7)
    with pytest.raises(ValueError, match="how many axes logits"):
        run(lambda x: recipes.gumbel_softmax(x, x), None)


@pytest.mark.only("tensorflow")
@pytest.mark.limit
def test_the_scale_of_lsq_needs_a_known_size(backend):
    import tensorflow as tf

    def gradient(x):
        return keras_cg.grad(lambda s: recipes.quantize(x, s, gradient_scale="lsq"))(tf.constant(0.5))

    with pytest.raises(ValueError, match="quantize: gradient_scale='lsq' needs the number of elements of x, which is"):
        tf.function(gradient, input_signature=[tf.TensorSpec([None], tf.float32)])(tf.constant([1.0]))


@pytest.mark.parametrize("nested", [False, True], ids=["batch", "nest"])
def test_fixed_point_does_not_hide_a_small_one_behind_a_large_one(eager, backend, nested):
    """z = a z + b, of which the large one is there at once, and the small one after many steps."""
    a, b, truth = (0.0, 0.97), (1e5, 1.0), (1e5, 1 / 0.03)

    def arranged(pair):
        tensors = tuple(eager.tensor(np.array([each], np.float64 if backend != "jax" else np.float32)) for each in pair)
        return tensors if nested else ops.stack(tensors)

    def step(z, a, b):
        return tuple(map(lambda z, a, b: a * z + b, z, a, b)) if nested else a * z + b

    def solved(steps):
        found = recipes.fixed_point(step, steps=steps)(arranged((0.0, 0.0)), arranged(a), arranged(b))
        return np.ravel([eager.array(each) for each in found])

    assert np.isnan(solved(30)).all()
    np.testing.assert_allclose(solved(600), truth, rtol=1e-3)


def test_clipping_by_a_norm_that_is_no_scalar(eager, backend):
    with pytest.raises(ValueError, match=r"clip_gradient: norm='float32\[2\]' is not a number or a scalar tensor"):
        recipes.clip_gradient(eager.tensor([1.0, 2.0]), norm=eager.tensor([1.0, 2.0]))
    keras_cg.grad(lambda x: recipes.clip_gradient(x, norm=eager.tensor(1.0)))(eager.tensor([1.0, 2.0]))


@pytest.mark.only("tensorflow")
def test_recompute_finds_tensors_in_attributes_and_globals_on_tensorflow(eager, backend):
    import tensorflow as tf

    class Holder:
        w = eager.tensor([5.0])

    x, holder, names = eager.tensor([3.0]), Holder(), {"w": eager.tensor([5.0])}
    for function, w in ((lambda x: x * holder.w, holder.w), (eval("lambda x: x * w", names), names["w"])):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            output = recipes.recompute(function)(x)
        assert [eager.array(each).tolist() for each in tape.gradient(output, [x, w])] == [[5.0], [3.0]]


@pytest.mark.only("jax")
@pytest.mark.limit
def test_what_recompute_does_not_see_on_jax(backend):
    """As with `jax.checkpoint`, which it is there: an array of NumPy is read again, an array of JAX is not."""
    import jax

    for recomputed in (recipes.recompute, jax.checkpoint):
        numpy_array = np.full(3, 3.0, np.float32)
        kept = [jax.numpy.asarray(numpy_array)]
        x = jax.numpy.ones(3)
        _, pullback = keras_cg.vjp(recomputed(lambda x, w=numpy_array: x * w * w), x)
        _, pullback_of_kept = keras_cg.vjp(recomputed(lambda x, kept=kept: x * kept[0] * kept[0]), x)
        numpy_array[...] = 4
        kept[0] = 4 * kept[0]
        assert pullback(x)[0].tolist() == [16.0] * 3
        assert pullback_of_kept(x)[0].tolist() == [9.0] * 3


@pytest.mark.only("torch")
@pytest.mark.limit
def test_recompute_changes_buffers_of_torch_twice(backend):
    """A limit, as of torch.utils.checkpoint: the second run counts as well."""
    import torch

    norm = torch.nn.BatchNorm1d(3)
    output = recipes.recompute(norm)(torch.tensor(np.stack([X, 2 * X]), dtype=torch.float32, requires_grad=True))
    assert int(norm.num_batches_tracked) == 1
    output.sum().backward()
    assert int(norm.num_batches_tracked) == 2


@pytest.mark.only("torch")
@pytest.mark.parametrize("name", [name for name in recipes.__all__ if name not in ("gumbel_noise", "from_numpy")])
def test_messages_name_the_recipe_that_was_called(backend, name):
    """Here for an array of another framework, which the recipe's inner function refuses."""
    x = np.ones(2)
    recipe = getattr(recipes, name)
    calls = {
        "clip_gradient": lambda: recipe(x, value=1.0),
        "custom_root": lambda: recipe(np.cos, lambda g, x0: x0)(x),
        "fixed_point": lambda: recipe(np.cos)(x),
        "gumbel_softmax": lambda: recipe(x, x),
        "invertible": lambda: recipe(np.add, np.subtract)(x, 1.0),
        "quantize": lambda: recipe(x, 1.0),
        "recompute": lambda: recipe(np.cos)(x),
        "scale_gradient": lambda: recipe(x, 1.0),
        "soft_round": lambda: recipe(x, 1.0),
        "straight_through": lambda: recipe(np.cos)(x),
    }
    with pytest.raises(TypeError, match="but the active backend is 'torch'") as caught:
        calls.get(name, lambda: recipe(x))()
    expected = {"straight_through": "cos"}.get(name, name)
    assert re.match(rf"{expected}(\(\w+\))?: the argument \w+ is", str(caught.value)), str(caught.value)


def test_a_recipe_is_found_by_pickle(backend):
    for f in (recipes.log1pexp, recipes.annealed._soft_round):
        assert pickle.loads(pickle.dumps(f)) is f


def test_flags_are_true_or_false(backend):
    """A string such as "no" would count as true."""
    x = config.active.asarray(np.array([3.0, 4.0], np.float32))
    calls = {
        "quantize: signed": lambda flag: recipes.quantize(x, 1.0, signed=flag),
        "gumbel_softmax: hard": lambda flag: recipes.gumbel_softmax(x, 0 * x, hard=flag),
        "safe_norm: keepdims": lambda flag: recipes.safe_norm(x, keepdims=flag),
        "log_sum_exp: keepdims": lambda flag: recipes.log_sum_exp(x, keepdims=flag),
    }
    for told, call in calls.items():
        for flag in ("no", None, 2, [True]):
            with pytest.raises(ValueError, match=re.escape(f"{told}={flag!r} is not True or False.")):
                call(flag)
        for flag in (np.bool_(True), 1):
            np.testing.assert_array_equal(
                config.active.to_numpy(call(flag)), config.active.to_numpy(call(True)), strict=True
            )


def test_straight_through_needs_an_argument(backend):
    with pytest.raises(TypeError, match=r"straight_through\(.*\) was called without arguments. Give it a tensor"):
        recipes.straight_through(lambda: 1.0)()
