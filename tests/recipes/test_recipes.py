"""Every recipe has the output and the gradients of its formula: eagerly, compiled, batched, and in every dtype."""

import math
import pickle

import numpy as np
import pytest
from recipe_functions import NOISE, X, found, heron, rounded, seven_exp, tensor

import keras_cg
from keras_cg import ops, recipes
from keras_cg.frontend import config
from keras_cg.testing import assert_gradients


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


arctan = lambda x, kind, upstream: upstream / (1 + (math.pi * x) ** 2)
triangle = lambda x, kind, slope, upstream: upstream * ops.where(ops.abs(x) < 1, slope * (1 - ops.abs(x)), 0 * x)
fast_sigmoid = lambda x, upstream: upstream / (1 + 100 * ops.abs(x)) ** 2
mixed = lambda x, w, mode: ops.sum(w * ops.tanh(x) ** (3 if mode == "cubes" else 1))


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


def seven_times(x, w, n):
    """sin(x) w, with other factors in its derivatives; the static n has the tangent None."""
    return ops.sin(x) * w, lambda dx, dw, dn: 7 * ops.cos(x) * w * dx + 5 * ops.sin(x) * dw


class Sines:
    """`seven_times` as a class of the form of `torch.autograd.Function`."""

    @staticmethod
    def forward(ctx, x, w, n):
        s = ops.sin(x)
        ctx.save_for_backward(x, w, s)
        return s * w

    @staticmethod
    def backward(ctx, upstream):
        x, w, s = ctx.saved_tensors
        return 7 * upstream * ops.cos(x) * w, 5 * upstream * s, None


CHECKED = {
    "straight_through": (recipes.straight_through(rounded), [X], {"expected": lambda x: x}),
    "straight_through, annealed": (
        recipes.straight_through(lambda x, slope: rounded(x), lambda x, slope: ops.tanh(slope * x)),
        [X, np.array(1.5)],
        {"expected": lambda x, slope: ops.tanh(slope * x)},
    ),
    "reverse_gradient": (recipes.reverse_gradient, [X], {"expected": lambda x: -x}),
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
    "recompute": (recipes.recompute(mixed), [X, np.array([0.5, -1.0, 2.0]), "cubes"], {}),
    "recompute, with a rule": (
        recipes.recompute(lambda x: seven_exp(x)),
        [X],
        {"expected": lambda x, upstream: 7 * upstream * ops.exp(x)},
    ),
    "invertible": (
        recipes.invertible(coupled, uncoupled),
        [(X, X[::-1].copy()), (np.array([0.5, -1.0, 2.0]), np.array(0.3))],
        {"expected": coupled},
    ),
    "from_jvp": (
        recipes.from_jvp(seven_times),
        [X, np.array([0.5, -1.0, 2.0]), 2],
        {"expected": lambda x, w, n, upstream: (7 * upstream * ops.cos(x) * w, 5 * upstream * ops.sin(x))},
    ),
    "from_autograd_function": (
        recipes.from_autograd_function(Sines),
        [X, np.array([0.5, -1.0, 2.0]), 2],
        {"expected": lambda x, w, n, upstream: (7 * upstream * ops.cos(x) * w, 5 * upstream * ops.sin(x))},
    ),
    "custom_root": (
        recipes.custom_root(lambda x, a: x * x * x - a, lambda g, x0: ops.exp(ops.log(x0 * x0 * x0 - g(x0)) / 3)),
        [np.zeros(2), np.array([2.0, 3.0])],
        {"expected": lambda x0, a: ops.exp(ops.log(a) / 3) + 0 * x0},
    ),
    # Forward mode needs a rule that is known to be linear, and one that looks whether it converged is not.
    "fixed_point": (
        recipes.fixed_point(heron, steps=6),
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
    "from_jvp": lambda x: recipes.from_jvp(lambda x: (x * x, lambda dx: 7 * x * dx))(x) * x,
    "from_autograd_function": lambda x: recipes.from_autograd_function(Sines)(x, x, 2),
    "log1pexp": recipes.log1pexp,
    "safe_sqrt": recipes.safe_sqrt,
    "safe_log": lambda x: recipes.safe_log(x, 0.1),
    "safe_norm": recipes.safe_norm,
    "recompute": recipes.recompute(lambda x: seven_exp(x) * x),
    "fixed_point": lambda x: recipes.fixed_point(heron, steps=8)(ops.ones_like(x), x * x + 1),
}


@pytest.mark.parametrize("case", BATCHED)
def test_batched(backend, case):
    gradient = keras_cg.grad(lambda x: ops.sum(BATCHED[case](x)))
    expected = np.stack([found(gradient(config.active.asarray(row))) for row in ROWS])
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(found(over_batch(backend, gradient, ROWS)), expected, rtol=1e-5, atol=1e-6)


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
        x = tensor(X, dtype)
        wide = tensor(found(x), "float64")
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


@pytest.mark.parametrize("kwargs", [{"value": 1.0}, {"norm": 1.0}])
def test_clipping_a_nest(backend, kwargs):
    def f(x):
        output = recipes.clip_gradient(x, **kwargs)
        assert output["name"] == "static"
        assert config.active.dtype(output["n"]).startswith("int")
        return ops.sum(output["a"] * 3) + ops.sum(output["b"][0] * -4)

    a, b = (tensor(np.zeros(shape)) for shape in ((), (1,)))
    n = config.active.asarray(np.array([1, 2]))
    _, pullback = keras_cg.vjp(lambda a, b: f({"a": a, "b": [b], "n": n, "name": "static"}), a, b)
    ga, gb = pullback(1.0)
    expected = (1, -1) if "value" in kwargs else (0.6, -0.8)
    np.testing.assert_allclose((found(ga), found(gb)[0]), expected, rtol=1e-6)


def test_clipping_a_nest_of_two_precisions(backend):
    """The norm of all is taken in the wider one: 4e200 is no number of float32."""
    with config.active.double_precision():
        args, upstreams = ([tensor(a), tensor(b, "float64")] for a, b in (([0.0], [0.0]), ([3.0], [4e200])))
        _, pullback = keras_cg.vjp(lambda a, b: recipes.clip_gradient((a, b), norm=1.0), *args)
        np.testing.assert_allclose([found(each) for each in pullback(tuple(upstreams))], [[0], [1]], rtol=1e-6)


def test_clipping_by_norm_is_finite_where_nothing_arrives(backend):
    f = lambda x: ops.sum(recipes.clip_gradient(x, norm=1.0) * x * 0)
    np.testing.assert_array_equal(found(keras_cg.hessian(f)(tensor(X))), np.zeros((3, 3)))


def test_a_schedule_may_be_traced_and_gets_no_gradient(backend):
    def loss(x, scale):
        nest = {"x": x, "twice": (2 * x,)}
        output = recipes.reverse_gradient(nest, scale)
        return ops.sum(output["x"] + output["twice"][0]) + ops.sum(recipes.scale_gradient(x, scale=scale))

    gradients = lambda x, scale: keras_cg.grad(loss, (0, 1))(x, scale)
    x, scale = map(tensor, ([1.0, 2.0], 0.5))
    for f in filter(None, (gradients, config.active.compiled(gradients) if backend != "torch" else None)):
        gx, gs = f(x, scale)
        np.testing.assert_allclose(found(gx), [-1.0, -1.0])
        assert found(gs) == 0


def test_quantize_rounds_half_to_even_and_clips(backend):
    x = tensor([-9, -2.5, -1.5, -0.5, 0.49999997, 0.5, 1.5, 2.5, 9])
    assert found(recipes.quantize(x, 1.0, 3)).tolist() == [-4, -2, -2, 0, 0, 0, 2, 2, 3]
    assert found(recipes.quantize(x, 1.0, 2, signed=False)).tolist() == [0, 0, 0, 0, 0, 0, 2, 2, 3]


def test_quantize_scales_the_gradient_of_the_step(backend):
    x, step = map(tensor, (np.stack([X, X, X, X]), 4 * [[0.5]]))
    plain, scaled, lsq = (
        found(keras_cg.grad(lambda s: ops.sum(recipes.quantize(x, s, 3, gradient_scale=scale)))(step))
        for scale in (None, 0.25, "lsq")
    )
    np.testing.assert_allclose(scaled, plain / 4, rtol=1e-6)
    np.testing.assert_allclose(lsq, plain / math.sqrt(3 * 3), rtol=1e-6)


def test_straight_through_with_a_soft_function(backend):
    """The output is that of the one, and all gradients are those of the other, also of what it closes over."""
    x, slope, bias = map(tensor, (X, 2.0, 0.25))

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


def test_soft_round_from_the_identity_to_rounding(backend):
    x = np.array([-1.5, -0.3, 0.001, 0.5, 0.7, 2.0], np.float32)
    off = x.astype(float) - np.round(x.astype(float))
    for alpha in (1e-6, 1e-3, 0.5, 5.0, 60.0):
        exact = np.sinh(alpha * off) / (2 * np.sinh(alpha / 2) * np.cosh(alpha * (0.5 - np.abs(off))))
        output = found(recipes.soft_round(tensor(x), alpha))
        np.testing.assert_allclose(output, np.round(x.astype(float)) + exact, rtol=1e-6, atol=1e-12)
    for alpha, expected in ((0.0, x), (math.inf, [-1.5, 0, 0, 0.5, 1, 2])):
        for given in (alpha, tensor(alpha)):
            np.testing.assert_allclose(found(recipes.soft_round(tensor(x), given)), expected, rtol=1e-6)
    slopes = keras_cg.grad(recipes.soft_round)(tensor(x), math.inf)
    np.testing.assert_array_equal(found(slopes)[[1, 2, 4, 5]], 0)
    assert np.isnan(found(recipes.soft_round(tensor(x), tensor(-1.0)))).all()


def test_gumbel_noise(backend):
    uniform = tensor([0.0, 0.1, 0.5, 1 - 2.0**-24, 1.0, -0.1, 1.1, np.nan])
    noise = found(recipes.gumbel_noise(uniform))
    least, most = -math.log(126 * math.log(2)), 24 * math.log(2)
    expected = [least, -math.log(-math.log(0.1)), -math.log(math.log(2)), most, most, np.nan, np.nan, np.nan]
    np.testing.assert_allclose(noise, expected, rtol=1e-5)
    np.testing.assert_array_equal(found(keras_cg.grad(lambda u: u + recipes.gumbel_noise(u))(uniform))[:5], 1)


def test_gumbel_softmax_of_what_cannot_be_drawn(backend):
    """A logit of minus infinity: it is never drawn, and nothing comes of it in any order."""
    logits = np.array([[0.5, -np.inf, 1.0], [-np.inf, -np.inf, -np.inf], [np.inf, 3.0, -np.inf]], np.float32)
    prices = tensor([1.0, 2.0, 4.0])
    noise = tensor(np.zeros((3, 3)))
    high = 1 / (1 + math.exp(-0.25))
    for hard, first in ((True, [0, 0, 1]), (False, [1 - high, 0, high])):
        choose = lambda x, hard=hard: recipes.gumbel_softmax(x, noise, 2.0, hard=hard)
        x = tensor(logits)
        np.testing.assert_allclose(found(choose(x)), [first, [0, 0, 0], [1, 0, 0]], rtol=1e-6)
        gradient = found(keras_cg.grad(lambda x, choose=choose: choose(x) * prices)(x))
        slope = high * (1 - high) * 3 / 2
        np.testing.assert_allclose(gradient, [[-slope, 0, slope], [0, 0, 0], [0, 0, 0]], rtol=1e-5)
        second = keras_cg.grad(lambda x, choose=choose: keras_cg.grad(lambda x: choose(x) * prices)(x)[0, 2])(x)
        bend = slope * (1 - 2 * high) / 2
        np.testing.assert_allclose(found(second)[0], [-bend, 0, bend], rtol=1e-4)
        np.testing.assert_array_equal(found(second)[1:], 0)
    turned = recipes.gumbel_softmax(ops.permute_dims(tensor(logits), (1, 0)), noise, 2.0, axis=0)
    np.testing.assert_array_equal(found(turned).T, [[0, 0, 1], [0, 0, 0], [1, 0, 0]])
    several = tensor([np.inf, 1.0, np.inf])
    choose = lambda x: recipes.gumbel_softmax(x, noise[0], 2.0)
    np.testing.assert_array_equal(found(choose(several)), [1, 0, 0])
    np.testing.assert_allclose(found(keras_cg.grad(lambda x: choose(x) * prices)(several)), [-0.375, 0, 0.375])
    broken = tensor([np.nan, 1.0, -np.inf])
    assert np.isnan(found(recipes.gumbel_softmax(broken, ops.zeros_like(broken)))).all()


def test_the_temperature_of_gumbel_softmax_is_a_tensor(backend):
    x, noise = map(tensor, (X, NOISE))
    for temperature in (0.5, 2.0, -1.0):
        heat = tensor(temperature)
        gx, gn, nothing = keras_cg.grad(lambda *args: recipes.gumbel_softmax(*args) * x, (0, 1, 2))(x, noise, heat)
        share = np.exp((X + NOISE) / temperature) / np.exp((X + NOISE) / temperature).sum()
        expected = share * (X - np.sum(share * X)) / temperature if temperature > 0 else np.full(3, np.nan)
        np.testing.assert_allclose(found(gn), expected, rtol=1e-4)
        one_hot = [0, 0, 1] if temperature > 0 else [np.nan] * 3
        np.testing.assert_allclose(found(gx), expected, rtol=1e-4)
        assert found(nothing) == 0
        np.testing.assert_array_equal(found(recipes.gumbel_softmax(x, noise, heat)), one_hot)


def test_a_recipe_is_found_by_pickle(backend):
    for f in (recipes.log1pexp, recipes.annealed._soft_round):
        assert pickle.loads(pickle.dumps(f)) is f
