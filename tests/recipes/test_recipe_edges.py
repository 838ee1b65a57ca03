"""Recipes at the edges of a dtype, eagerly and compiled, in orders 0 to 2, against closed forms in float64.

Every case is a function, and what it and its derivative are. All cases of a dtype make one program, of which the
framework itself takes the gradient: of the sum of the outputs, so that each case has a gradient of its own.
"""

import math

import numpy as np
import pytest
from recipe_functions import found, tensor

import keras_cg
from keras_cg import custom_gradient, ops, recipes
from keras_cg.engine import precision
from keras_cg.frontend import config

# The halves and how their numbers look in float32, and what the framework computes in otherwise.
DTYPES = ("float16", "bfloat16", "float32", "float64")


LARGEST = {"float16": 65504.0, "bfloat16": 2.0**127 * (2 - 2.0**-7), "float32": 2.0**127 * (2 - 2.0**-23)}


LARGEST["float64"] = np.finfo("float64").max


def points(dtype, is_flushed):
    """The numbers that every function of one number is tried at; what a framework may take for 0 as 0, if so wished."""
    smallest = precision.of(dtype).smallest
    tiny = 0.0 if is_flushed else smallest / 8
    signed = [0.0, tiny, smallest, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 9.0, LARGEST[dtype], math.inf]
    return np.array([*signed, *(-each for each in signed), math.nan])


def sigmoid(x):
    return np.where(x > 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x)))) + 0 * np.sign(x)


def of_sign(x, negative, zero, positive):
    """What depends on the sign alone; NaN of NaN."""
    return np.where(x > 0, positive, np.where(x < 0, negative, np.where(x == 0, zero, np.nan)))


def above(x, least, value, below=0.0):
    """A function's values from a number on, and something else below it; NaN of NaN."""
    return np.where(x >= least, value, np.where(x < least, below, np.nan))


def level(x):
    """Of a step of 1/2 with three bits: the levels from -4 to 3."""
    return 0.5 * np.clip(np.round(x / 0.5), -4, 3)


def inside(x):
    """NaN is not outside."""
    return np.where((x / 0.5 >= 3) | (x / 0.5 <= -4), 0.0, 1.0)


def off(x):
    """How far a number is from the next whole one; every large one is whole."""
    finite = np.where(np.isinf(x), 0, x)
    return finite - np.round(finite)


def soft_round(x, alpha):
    d = off(x)
    moved = np.sinh(alpha * d) / (2 * np.sinh(alpha / 2) * np.cosh(alpha * (0.5 - np.abs(d))))
    return np.where(np.isinf(x), x, np.round(x) + moved)


def soft_round_slope(x, alpha):
    return alpha / 2 / np.cosh(alpha * (0.5 - np.abs(off(x)))) ** 2 / np.tanh(alpha / 2)


def soft_round_bend(x, alpha):
    """The derivative of that jumps at whole numbers, and is 0 there by symmetry."""
    z = alpha * (0.5 - np.abs(off(x)))
    return np.sign(off(x)) * alpha**2 * np.tanh(z) / np.cosh(z) ** 2 / np.tanh(alpha / 2)


fast_sigmoid = lambda x, slope: 1 / (1 + slope * np.abs(x)) ** 2
fast_sigmoid_slope = lambda x, slope: -2 * slope * np.sign(x) / (1 + slope * np.abs(x)) ** 3
arctan = lambda x, slope: slope / 2 / (1 + (math.pi / 2 * slope * x) ** 2)


def arctan_slope(x, slope):
    steepness, near = math.pi / 2 * slope, np.where(np.abs(x) > 1e100, 0, x)
    return -slope * steepness * (steepness * near) / (1 + (steepness * near) ** 2) ** 2


triangle = lambda x, slope: slope * np.maximum(0, 1 - np.abs(x))
triangle_slope = lambda x, slope: np.where(np.isnan(x), 0.0, np.where(np.abs(x) >= 1, 0.0, -slope * np.sign(x)))


@custom_gradient
def sevenfold(x):
    """A rule that is wrong on purpose."""
    return 2 * x, lambda upstream: 7 * upstream * x


# The function; its value, its derivative and the second one, of a number and the name of a dtype.
ELEMENTWISE = {
    "straight_through": (
        recipes.straight_through(lambda x: ops.where(x > 0.4, 7 * ops.ones_like(x), 2 * ops.ones_like(x))),
        lambda x, dtype: np.where(x > 0.4, 7.0, 2.0),
        lambda x, dtype: np.ones_like(x),
        lambda x, dtype: np.zeros_like(x),
    ),
    "straight_through, annealed": (
        recipes.straight_through(
            lambda x: ops.where(x > 0.4, 7 * ops.ones_like(x), 2 * ops.ones_like(x)),
            lambda x: recipes.surrogate_spike(x, "triangle", 2.0),
        ),
        lambda x, dtype: np.where(x > 0.4, 7.0, 2.0),
        lambda x, dtype: triangle(x, 2.0),
        lambda x, dtype: triangle_slope(x, 2.0),
    ),
    "soft_round": (
        lambda x: recipes.soft_round(x, 3),
        lambda x, dtype: soft_round(x, 3),
        lambda x, dtype: soft_round_slope(x, 3),
        lambda x, dtype: soft_round_bend(x, 3),
    ),
    "log_sum_exp": (
        lambda x: recipes.log_sum_exp(x, axis=()),
        lambda x, dtype: x,
        lambda x, dtype: above(x, -np.finfo("float64").max, 1.0),
        lambda x, dtype: np.where(np.isnan(x), np.nan, 0.0),
    ),
    "log1pexp": (
        recipes.log1pexp,
        lambda x, dtype: np.logaddexp(0, x),
        lambda x, dtype: sigmoid(x),
        lambda x, dtype: sigmoid(x) * sigmoid(-x),
    ),
    "safe_sqrt": (
        recipes.safe_sqrt,
        lambda x, dtype: above(x, 0, np.sqrt(np.abs(x))),
        lambda x, dtype: of_sign(x, 0, 0, 0.5 / np.sqrt(np.abs(x))),
        lambda x, dtype: of_sign(x, 0, 0, -0.25 / np.sqrt(np.abs(x)) / np.abs(x)),
    ),
    "safe_log": (
        recipes.safe_log,
        lambda x, dtype: np.log(np.maximum(x, precision.of(dtype).smallest)),
        lambda x, dtype: above(x, precision.of(dtype).smallest, 1 / x),
        lambda x, dtype: above(x, precision.of(dtype).smallest, -1 / x / x),
    ),
    "safe_norm": (
        lambda x: recipes.safe_norm(x, axis=()),
        lambda x, dtype: np.abs(x),
        lambda x, dtype: np.sign(x),
        lambda x, dtype: 0 * np.sign(x),
    ),
    "fast_sigmoid": (
        lambda x: recipes.surrogate_spike(x, slope=3.0),
        lambda x, dtype: above(x, 0, 1.0),
        lambda x, dtype: fast_sigmoid(x, 3),
        lambda x, dtype: fast_sigmoid_slope(x, 3),
    ),
    "arctan": (
        lambda x: recipes.surrogate_spike(x, "arctan"),
        lambda x, dtype: above(x, 0, 1.0),
        lambda x, dtype: arctan(x, 2),
        lambda x, dtype: arctan_slope(x, 2),
    ),
    "triangle": (
        lambda x: recipes.surrogate_spike(x, "triangle"),
        lambda x, dtype: above(x, 0, 1.0),
        lambda x, dtype: triangle(x, 0.3),
        lambda x, dtype: triangle_slope(x, 0.3),
    ),
    "quantize": (
        lambda x: recipes.quantize(x, 0.5, 3),
        lambda x, dtype: level(x),
        lambda x, dtype: inside(x),
        lambda x, dtype: np.zeros_like(x),
    ),
    "recompute": (
        recipes.recompute(lambda x: sevenfold(x)),
        lambda x, dtype: 2 * x,
        lambda x, dtype: 7 * x,
        lambda x, dtype: np.full_like(x, 7),
    ),
}


# What goes forward as it is: the rule, of upstream, and its derivative.
PASSING = {
    "reverse_gradient": (lambda x: recipes.reverse_gradient(x, 3), lambda u: -3 * u, lambda u: np.full_like(u, -3)),
    "scale_gradient, down": (
        lambda x: recipes.scale_gradient(x, 1e-8),
        lambda u: 1e-8 * u,
        lambda u: np.full_like(u, 1e-8),
    ),
    "scale_gradient, by a tensor": (
        lambda x: recipes.scale_gradient(x, config.active.asarray(np.float32(1e-6))),
        lambda u: float(np.float32(1e-6)) * u,
        lambda u: np.full_like(u, float(np.float32(1e-6))),
    ),
    "clip_gradient, by value": (
        lambda x: recipes.clip_gradient(x, value=1.25),
        lambda u: np.clip(u, -1.25, 1.25),
        lambda u: np.where(np.abs(u) > 1.25, 0.0, 1.0),
    ),
    "clip_gradient, by a small value": (
        lambda x: recipes.clip_gradient(x, value=1e-6),
        lambda u: np.clip(u, -1e-6, 1e-6),
        lambda u: np.where(np.abs(u) > 1e-6, 0.0, 1.0),
    ),
    "clip_gradient, by a huge value": (
        lambda x: recipes.clip_gradient(x, value=1e39),
        lambda u: np.clip(u, -1e39, 1e39),
        None,  # in float32 this limit is infinite
    ),
}


def vectors(dtype, is_flushed):
    """What norms are taken of: rows of one number, of two, of three, and of none."""
    least, largest = precision.of(dtype).smallest, LARGEST[dtype]
    tiny = 0.0 if is_flushed else least / 8
    two = [[0.0, -0.0], [3.0, -4.0], [tiny, 0.0], [3 * least, 4 * least], [largest, least], [1.0, math.nan]]
    return {
        1: np.array([[each] for each in (0.0, tiny, -least, 7.0, largest, math.inf, math.nan)]),
        2: np.array([*two, [-math.inf, 2.0], [tiny, -tiny]]),
        3: np.array([[largest / 2, -largest / 2, largest / 2], [0.0, 0.0, 1.0]]),
        0: np.zeros((2, 0)),
    }


def norm(x):
    return math.hypot(*x)


def direction(x):
    """x / |x|, 0 at 0; the limit at infinity."""
    if np.isinf(x).any():
        return np.where(np.isinf(x), np.sign(x), 0.0)
    size = np.max(np.abs(x), initial=0.0)
    return np.zeros_like(x) if size == 0 else x / size / norm(x / size)


def summed_curvature(x):
    """The sums of the rows of the Hessian of |x|."""
    if np.isinf(x).any() or not np.any(x):
        return np.where(np.isnan(x), x, 0.0)
    d, size = direction(x), np.max(np.abs(x))
    return (1 - d * np.sum(d)) / norm(x / size) / size


def shortened(u, limit):
    """Upstream no longer than a limit; NaN, if there is no length."""
    if not np.isfinite(u).all():
        return np.full_like(u, np.nan)
    return u if norm(u) <= limit else limit * direction(u)


NORMS = {"safe_norm": (lambda x: recipes.safe_norm(x, axis=1), norm, direction, summed_curvature)}


def pulled(f):
    """The rule of a recipe that is the identity, as a function of upstream."""
    return lambda u: keras_cg.vjp(f, ops.zeros_like(u))[1](u)[0]


def slope(f):
    """The gradient of the sum of what a function gives."""
    return keras_cg.grad(lambda x: ops.sum(f(x)))


def cases(dtype, order, is_flushed, is_slow):
    """`(label, function, array, its value, its gradient)`; `order` says of what."""
    x = points(dtype, is_flushed)
    for name, (f, *derivatives) in ELEMENTWISE.items():
        before, after = (derivative(x, dtype) for derivative in derivatives[order - 1 : order + 1])
        yield name, f if order == 1 else slope(f), x, before, after
    for name, (f, rule, steepness) in PASSING.items():
        if order == 1:
            yield name, lambda x, f=f, u=x: f(x) * tensor(u, dtype), np.ones_like(x), x, rule(x)
        elif steepness:
            yield name, pulled(f), x, rule(x), steepness(x)
    for rows in vectors(dtype, is_flushed).values():
        for name, (f, *derivatives) in NORMS.items():
            before, after = (np.array([each(row) for row in rows]) for each in derivatives[order - 1 : order + 1])
            yield f"{name}, {rows.shape[1]} together", f if order == 1 else slope(f), rows, before, after
        # torch.compile takes a second for each call.
        for row in () if order == 2 else rows[:1] if is_slow else rows:
            limit = 2.0 if np.size(row) == 1 else 1e-4 if np.isfinite(row).all() else math.inf
            f = lambda x, u=row, limit=limit: recipes.clip_gradient(x, norm=limit) * tensor(u, dtype)
            yield f"clip_gradient of {row} by {limit}", f, np.ones_like(row), row, shortened(row, limit)
    if order == 1:
        for limit in (1e39, math.inf):
            u = np.array([3.0, -4.0])
            f = lambda x, u=u, limit=limit: recipes.clip_gradient(x, norm=limit) * tensor(u, dtype)
            yield f"clip_gradient by a norm of {limit}", f, np.ones_like(u), u, u


def program(functions, dtype):
    """All functions as one, of an array each; what they give, end to end."""

    def run(*tensors):
        outputs = []
        for f, wide in zip(functions, tensors, strict=True):
            output = f(config.active.cast(wide, dtype))
            outputs.append(ops.reshape(config.active.cast(output, config.active.dtype(wide)), (-1,)))
        return ops.concatenate(outputs)

    return run


# Those that take numbers below the smallest normal one for 0, in some operations and in others not.
FLUSHING = ("jax", "tensorflow")


EVERY = {(dtype, order) for dtype in DTYPES for order in (1, 2)}
# What is tried of each mode: everything eagerly, and what differs of the compiled programs, which take long to make.
TRIED = {
    "jax-jit(grad)": {("float16", 1), ("float32", 1), ("float32", 2)},
    "numpy-eager": {(dtype, order) for dtype, order in EVERY if dtype != "bfloat16"},  # it has none
    "tensorflow-eager": EVERY,
    "tensorflow-function": {("float32", 1)},
    "tensorflow-jit_compile": {("float32", 1)},
    "torch-eager": EVERY,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_edges(frame, dtype, order):
    if (dtype, order) in TRIED.get(f"{frame.name}-{frame.mode}", ()):
        assert_right_at_the_edges(frame, dtype, order)


def assert_right_at_the_edges(frame, dtype, order):
    with config.active.double_precision():
        is_slow = frame.mode == "inductor"
        tables = [list(cases(dtype, order, is_flushed, is_slow)) for is_flushed in (False, frame.name in FLUSHING)]
        arrays = [np.asarray(x, "float64" if dtype == "float64" else "float32") for _, _, x, _, _ in tables[0]]
        output, gradients = frame.differentiate(program([f for _, f, _, _, _ in tables[0]], dtype), *arrays)
    wrong, start = [], 0
    for (name, _, x, *expected), (*_, before, after), gradient in zip(*tables, gradients, strict=True):
        size = np.size(before)
        gradient = np.zeros_like(x) if gradient is None else gradient
        for kind, came, *truths in (
            ("value", output[start : start + size], expected[0], before),
            ("gradient", gradient, expected[1], after),
        ):
            wrong += [
                f"{name} at {at}: {kind} {got}, not {want}" for at, got, want in differing(dtype, x, came, *truths)
            ]
        start += size
    assert not wrong, "\n".join(wrong)


def differing(dtype, x, came, expected, flushed):
    """Where a result is not what it should be in a dtype, or would be of numbers that are flushed."""
    came, expected, flushed = (np.ravel(each).astype("float64") for each in (came, expected, flushed))
    places = np.ravel(x) if np.size(x) == np.size(expected) else x.tolist()
    is_near = near(dtype, came, expected) | near(dtype, came, flushed)
    return [(at, got, want) for at, got, want, ok in zip(places, came, expected, is_near, strict=True) if not ok]


def near(dtype, came, expected):
    """Whether a result is an exact one, rounded once in half precision, and by few operations otherwise."""
    smallest, epsilon = precision.of(dtype).smallest, precision.of(dtype).epsilon
    rounded = np.where(np.abs(expected) > LARGEST[dtype] * (1 + epsilon / 4), np.sign(expected) * np.inf, expected)
    relative = epsilon if dtype.endswith("16") else 16 * epsilon
    is_close = np.isclose(came, rounded, rtol=relative, atol=smallest * epsilon, equal_nan=True)
    # Results below the smallest normal number may be 0.
    return is_close | ((np.abs(rounded) < smallest) & (came == 0))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_learned_step_at_the_edges(frame, dtype):
    """At infinity a level, of NaN NaN; half-way to the even one; the sum in float32, with its factor, rounded once."""
    x = np.array([-math.inf, -2.0, -0.75, 0.25, 0.3125, 1.5, 60000.0])
    weights = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 60000.0, 60000.0])

    def f(step, x):
        narrow = config.active.cast(x, dtype)
        output = recipes.quantize(narrow, config.active.cast(step, dtype), 3, gradient_scale=1e-4)
        return config.active.cast(output, "float32") * tensor(weights)

    output, (gs, gx) = frame.differentiate(f, np.float32(0.5), x.astype("float32"))
    levels, slopes = np.array([-4.0, -4, -2, 0, 1, 3, 3]), np.array([-4.0, -4, -0.5, -0.5, 0.375, 3, 3])
    np.testing.assert_array_equal(output, 0.5 * levels * weights)
    np.testing.assert_array_equal(gx, np.where((levels > -4) & (levels < 3), weights, 0))
    np.testing.assert_allclose(gs, 1e-4 * np.sum(slopes * weights), rtol=precision.of(dtype).epsilon)


# Rows, a mask, the logarithm of the sum, and the shares.
SUMS = [
    ([0.0, 0.0, 5.0], [1, 1, 0], math.log(2), [0.5, 0.5, 0]),
    ([60000.0, 60000.0, -60000.0], [1, 1, 1], 60000 + math.log(2), [0.5, 0.5, 0]),
    ([1.0, -math.inf, 3.0], [1, 1, 1], 3 + math.log1p(math.exp(-2)), [0.11920292, 0, 0.88079708]),
    ([-math.inf, -math.inf, -math.inf], [1, 1, 1], -math.inf, [0, 0, 0]),
    ([1.0, 2.0, 3.0], [0, 0, 0], -math.inf, [0, 0, 0]),
    ([math.nan, math.inf, 3.0], [0, 0, 1], 3.0, [0, 0, 1]),
    ([math.nan, math.inf, -math.inf], [0, 0, 0], -math.inf, [0, 0, 0]),
    ([math.inf, 3.0, math.nan], [1, 1, 0], math.inf, [1, 0, 0]),
    ([math.inf, math.inf, -math.inf], [1, 1, 1], math.inf, [0.5, 0.5, 0]),
    ([math.nan, 1.0, 2.0], [1, 1, 0], math.nan, [math.nan, math.nan, 0]),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_log_sum_exp_at_the_edges(frame, dtype):
    """What is masked or minus infinity gets exactly 0, whatever stands there, and whatever arrives."""
    x, mask, sums, shares = (np.array(column) for column in zip(*SUMS, strict=True))

    def f(x):
        total = recipes.log_sum_exp(config.active.cast(x, dtype), axis=1, where=config.active.asarray(mask == 1))
        return config.active.cast(total, "float32")

    output, (gradient,) = frame.differentiate(f, x.astype("float32"))
    epsilon = precision.of(dtype).epsilon
    np.testing.assert_allclose(output, sums, rtol=epsilon)
    np.testing.assert_allclose(gradient, shares, rtol=2 * epsilon)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_learned_step_in_second_order(backend):
    """The rule of the step has -x / s in it, where x is inside: its derivative is x / s^2, and 0 elsewhere."""
    x, weights = np.array([-math.inf, -0.75, 0.3, 1.5, math.inf]), np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    f = lambda step: ops.sum(recipes.quantize(tensor(x), step, 3) * tensor(weights))
    second = keras_cg.grad(keras_cg.grad(f))(tensor(0.5))
    np.testing.assert_allclose(found(second), (2 * -0.75 + 3 * 0.3) / 0.25, rtol=1e-6)


def test_the_scale_of_a_step_is_a_tensor(backend):
    x, step = tensor([[0.3, 0.7], [-0.9, 0.1]]), tensor([0.5, 0.25])

    def gradients(scale):
        return keras_cg.grad(lambda s, scale: ops.sum(recipes.quantize(x, s, 4, gradient_scale=scale)), (0, 1))(
            step, scale
        )

    plain = np.array([(1 - 0.6) + (-2 + 1.8), (3 - 2.8) + (0 - 0.4)])
    for scale in (3.0, [3.0], [3.0, -2.0]):
        gs, nothing = gradients(tensor(scale))
        np.testing.assert_allclose(found(gs), plain * scale, rtol=1e-5)
        np.testing.assert_array_equal(found(nothing), 0)


def test_a_limit_is_a_tensor(backend):
    """A schedule may reach 0 and infinity; a negative limit is none, and no compiled program can raise."""
    x = tensor([1.0, 2.0])

    def clipped(name, limit):
        f = lambda x, limit: recipes.clip_gradient(x, **{name: limit}) * tensor([3.0, -4.0])
        gx, nothing = keras_cg.grad(f, (0, 1))(x, tensor(limit))
        assert found(nothing) == 0
        return found(gx)

    for name in ("value", "norm"):
        np.testing.assert_array_equal(clipped(name, 0.0), [0, 0])
        np.testing.assert_array_equal(clipped(name, math.inf), [3, -4])
        assert np.isnan(clipped(name, -1.0)).all()
        assert np.isnan(clipped(name, math.nan)).all()


def test_complex_numbers_pass(backend):
    """Only those recipes that are the identity, or have its gradient."""
    z, upstream = np.array([1 + 2j, -3j], "complex64"), np.array([2 - 1j, 0.5 + 4j], "complex64")
    for f, factor in (
        (recipes.reverse_gradient, -1),
        (lambda z: recipes.scale_gradient(z, 0.25), 0.25),
        (lambda z: recipes.scale_gradient(z, tensor(0.25)), 0.25),
        (recipes.straight_through(lambda z: 3 * z), 1),
        (recipes.recompute(lambda z: recipes.scale_gradient(z, 7)), 7),
        (lambda z: recipes.invertible(lambda z, p: recipes.scale_gradient(z, 7), lambda z, p: z)(z, None), 7),
    ):
        _, pullback = keras_cg.vjp(f, config.active.asarray(z))
        (gradient,) = pullback(config.active.asarray(upstream))
        np.testing.assert_array_equal(config.active.to_numpy(gradient), factor * upstream)
