"""Functions that change in steps: without `expected`, each gets one advice, and no other diagnosis."""

import numpy as np
import pytest
from checker_cases import QUICK, W, X, assert_passed, cast, derived, findings, first

from keras_cg import custom_gradient, ops
from keras_cg.frontend import config
from keras_cg.testing import check_gradients


def through(f):
    """`f` with the gradient of the identity."""
    return custom_gradient(lambda x: (f(x), lambda upstream: upstream))


like = lambda f, rule: custom_gradient(lambda x: (f(x), lambda upstream: rule(x, upstream)))
whole = lambda x: cast(cast(x, "int32"), config.active.dtype(x))


def hot(x):
    """One where a row is largest."""
    return cast(x >= ops.max(x, axis=-1, keepdims=True), config.active.dtype(x))


as_float = lambda mask, x: cast(mask, config.active.dtype(x))
quantised = lambda levels, step: lambda x: ops.clip(ops.round(x / step), -levels, levels) * step
thirds = lambda w: ops.round(w * 3) / 3
turned = lambda x: ops.swapaxes(x, 0, 1)
highest = lambda x: ops.max(ops.abs(x), axis=-1, keepdims=True)
same = lambda x: x
surrogate = lambda x, upstream: upstream / (1 + ops.abs(x)) ** 2
inside = lambda x, upstream: upstream * as_float(ops.abs(x) <= 1, x)


# The rule, and the function or rule that the gradient is right for.
RULES = {
    "round": (through(lambda x: ops.round(x)), same),
    "floor": (through(lambda x: ops.floor(x)), same),
    "sign": (through(lambda x: ops.sign(x)), same),
    "greater": (through(lambda x: as_float(x > 0, x)), same),
    "where": (through(lambda x: ops.where(x > 0.1, ops.ones_like(x), -ops.ones_like(x))), same),
    "between": (through(lambda x: as_float((x > -0.5) & (x < 0.5), x)), same),
    "a cast": (through(whole), same),
    "thirds": (through(quantised(7, 0.3)), same),
    "2 bits": (through(quantised(2, 0.8)), same),
    "8 bits": (through(quantised(127, 1 / 127)), same),
    "8 bits, not clipped": (through(lambda x: ops.round(x * 128) / 128), same),
    "the detach trick": (through(lambda x: x + (ops.round(x) - x)), same),
    "argmax": (through(hot), same),
    "ranks": (through(lambda x: ops.sum(as_float(x[..., None] > x[..., None, :], x), axis=-1)), same),
    "powers of two": (through(lambda x: ops.sign(x) * 2 ** ops.round(ops.log2(ops.abs(x)))), same),
    "a spike": (like(lambda x: as_float(x > 0, x), surrogate), surrogate),
    "a clipped gradient": (like(lambda x: ops.sign(x), inside), inside),
    "a slope of ten": (like(lambda x: ops.round(3 * x), lambda x, upstream: 3 * upstream), lambda x: 3 * x),
    "a smooth step": (
        like(lambda x: ops.floor(x), lambda x, u: u * (1 + ops.cos(6 * x))),
        lambda x, upstream: upstream * (1 + ops.cos(6 * x)),
    ),
    "squares of steps": (like(lambda x: ops.round(x) ** 2, lambda x, u: 2 * x * u), lambda x: x**2),
    "a sine of steps": (
        like(lambda x: ops.sin(ops.round(x * 5) / 5), lambda x, u: u * ops.cos(x)),
        lambda x: ops.sin(x),
    ),
    "a sum": (like(lambda x: ops.sum(ops.round(x)), lambda x, u: u * ops.ones_like(x)), lambda x: ops.sum(x)),
    "a mean of signs": (
        like(lambda x: ops.mean(ops.sign(x), axis=0), lambda x, u: u * ops.ones_like(x) / x.shape[0]),
        lambda x: ops.mean(x, axis=0),
    ),
}
# Rules of several arguments or outputs, the arguments that have steps, and the right function.
SEVERAL = {
    "weights": (
        lambda x, w: (x @ thirds(w), lambda u: (u @ turned(thirds(w)), turned(x) @ u)),
        (X, W + 0.01),
        {"w"},
        lambda x, w, upstream: (upstream @ turned(thirds(w)), turned(x) @ upstream),
    ),
    "a learned step": (
        lambda x, s: (ops.round(x / s) * s, lambda u: (u, ops.sum(u * (ops.round(x / s) - x / s)))),
        (X, np.float32(0.37)),
        {"x", "s"},
        lambda x, s, upstream: (upstream, ops.sum(upstream * (ops.round(x / s) - x / s))),
    ),
    "a threshold that is learned": (
        lambda x, t: (as_float(x > t, x), lambda u: (surrogate(x - t, u), -ops.sum(surrogate(x - t, u)))),
        (X, np.float32(0.25)),
        {"x", "t"},
        lambda x, t, upstream: (surrogate(x - t, upstream), -ops.sum(surrogate(x - t, upstream))),
    ),
    "two outputs": (
        lambda x: ((ops.round(3 * x), x**2), lambda u: 3 * u[0] + 2 * x * u[1]),
        (X,),
        {"x"},
        lambda x: (3 * x, x**2),
    ),
}  # fmt: skip
# Quantisers whose scale depends on the data: they jump, and change smoothly, too.
SCALED = {
    "the largest": lambda x: ops.round(x / (ops.max(ops.abs(x)) / 7)) * (ops.max(ops.abs(x)) / 7),
    "the largest of a row": lambda x: ops.round(7 * x / highest(x)) / 7 * highest(x),
    "a binary weight": lambda x: ops.sign(x) * ops.mean(ops.abs(x)),
    "a ternary weight": lambda x: (
        ops.sign(x) * as_float(ops.abs(x) > 0.7 * ops.mean(ops.abs(x)), x) * ops.mean(ops.abs(x))
    ),
}
BECAUSE = (
    " (rounding, a comparison, a cast); if the gradient differs on purpose, such as that of a straight-through"
    " estimator, declare the right one: "
)
SAID = "the function does not change with {} here, or only in steps" + BECAUSE


normal = lambda seed: np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32)


@pytest.mark.parametrize(("f", "right"), RULES.values(), ids=RULES)
def test_the_one_advice(backend, f, right):
    report = check_gradients(f, normal(0), order=1, compiled=False)
    told = findings(report, "failed", "undecided")
    assert first(report).status == "failed", report
    line = "expected=lambda x: x" if right is same else "expected=lambda x: ... (without the steps), or lambda x, "
    assert all((each.diagnosis or "").startswith(SAID.format("x") + line) for each in told), report


@pytest.mark.parametrize(("f", "right"), RULES.values(), ids=RULES)
def test_what_the_advice_leads_to(backend, f, right):
    assert_passed(check_gradients(f, normal(0), expected=right, compiled=False), "forward mode")
    # A fault of 5 % is small beside half precision, and found: steps are no lower precision.
    wrong = custom_gradient(lambda x: (f(x), lambda upstream: 1.05 * gradient(f, x, upstream)))
    report = check_gradients(wrong, normal(0), expected=right, **QUICK)
    assert (first(report).status, first(report).diagnosis) == ("failed", "a factor of 1.05"), report


def gradient(f, x, upstream):
    return f.__wrapped__(x)[1](upstream)


@pytest.mark.parametrize("name", SCALED)
def test_a_scale_that_depends_on_the_data(backend, name):
    """An identity rule has the same gradient at every point, and is no cache."""
    f = through(SCALED[name])
    report = check_gradients(f, normal(0), **QUICK)
    assert first(report).diagnosis == "the function jumps with x" + BECAUSE + "expected=lambda x: x", report
    assert_passed(check_gradients(f, normal(0), expected=same, compiled=False))


@pytest.mark.parametrize("f", [lambda x: 1 / x, lambda x: ops.abs(x) ** 0.5, lambda x: ops.exp(3 * x)])
def test_a_smooth_function_with_a_constant_gradient(backend, f):
    """It neither jumps, nor is its gradient a cache."""
    assert first(check_gradients(through(f), normal(0), **QUICK)).diagnosis is None


@pytest.mark.parametrize(("f", "args", "stepped", "right"), SEVERAL.values(), ids=SEVERAL)
def test_several_arguments_or_outputs(backend, f, args, stepped, right):
    report = check_gradients(custom_gradient(f), *args, **QUICK)
    told = findings(report, "failed", "undecided")
    assert {each.argument for each in told} == stepped, report
    assert all(each.diagnosis.startswith(SAID.format(each.argument)) for each in told), report
    assert_passed(check_gradients(custom_gradient(f), *args, expected=right, compiled=False))


def half(x):
    return cast(cast(x, "float16"), config.active.dtype(x))


HALF = {
    "cast": (half, lambda x: 1.0),
    "tanh": (lambda x: half(ops.tanh(half(x))), lambda x: 1 - ops.tanh(x) ** 2),
    "sum": (lambda x: half(5 + half(x)), lambda x: 1.0),
    "scaled": (lambda x: 1.7 * half(ops.sin(x)), lambda x: 1.7 * ops.cos(x)),
    "exp": (lambda x: half(ops.exp(half(x))), lambda x: ops.exp(x)),
}


@pytest.mark.parametrize(("f", "slope"), HALF.values(), ids=HALF)
def test_rounding_to_a_dtype_is_no_staircase(backend, f, slope):
    report = check_gradients(derived(f, slope), normal(0), **QUICK)
    assert "declare" not in str(report) and "half precision" in str(report), report


@pytest.mark.parametrize("name", ["round", "floor", "sign", "thirds", "8 bits", "argmax"])
def test_the_derivative_of_a_staircase_is_zero(backend, name):
    f = lambda x: RULES[name][0](x)
    assert_passed(check_gradients(like(f, lambda x, upstream: 0 * upstream), normal(0), compiled=False))


def test_what_is_no_staircase(backend):
    """A constant gradient is no cache, and a function that jumps once is not rounded to a dtype.

    A maximum does not change with most elements, and its rule is wrong by a factor.
    """
    f = like(lambda x: 2 * x + ops.round(x), lambda x, upstream: upstream)
    for seed in (2, 3):
        said = str(check_gradients(f, normal(seed), **QUICK))
        assert "earlier calls" not in said and "precision" not in said, said
    largest = like(lambda x: ops.max(x, axis=-1), lambda x, upstream: 2 * upstream[..., None] * hot(x))
    report = check_gradients(largest, normal(3), **QUICK)
    assert first(report).diagnosis == "a factor of 2", report


def test_a_staircase_with_a_memory(backend):
    """What depends on earlier calls is still named."""
    calls = []
    f = custom_gradient(lambda x: (ops.round(x), lambda u: u * (1 + 0.01 * len(calls.append(0) or calls))))
    assert "depends on earlier calls" in first(check_gradients(f, normal(0), **QUICK)).diagnosis
