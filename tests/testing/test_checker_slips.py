"""`keras_cg.testing` under attack: what slipped through, and what was right and was called wrong."""

import itertools
import re

import numpy as np
import pytest

import keras_cg
from keras_cg import config, custom_gradient, ops
from keras_cg.testing import arrays, assert_gradients, check_gradients

V = np.array([0.7, -1.2, 0.4])
NORMAL = np.random.default_rng(0).normal(size=6)

QUICK = {"order": 1, "modes": ("reverse",), "compiled": False}
EAGER = {"compiled": False}


def cast(x, dtype):
    return config.active.cast(x, dtype)


def derived(f, slope):
    return custom_gradient(lambda x: (f(x), lambda upstream: upstream * slope(x)))


def findings(report, *statuses):
    return [each for each in report.findings if each.status in statuses]


def first(report, check="first order"):
    return report.cell(report.backends[0], check)[0]


cube = derived(lambda x: x**3, lambda x: 3 * x**2)


# --- a lower precision inside ----------------------------------------------------------------------------------------


def root_mean_square(kind, factor=1.0):
    """x / sqrt(mean(x^2)), with its statistics in another dtype."""

    def f(x):
        dtype = config.active.dtype(x)
        narrow = cast(x, kind)
        scale = cast(1 / ops.sqrt(ops.mean(narrow * narrow) + 1e-6), dtype)
        count = x.shape[0]
        return x * scale, lambda u: factor * (scale * u - x * scale**3 * ops.sum(u * x) / count)

    return custom_gradient(f)


def narrow_tanh(kind, factor=1.0):
    def f(x):
        y = cast(ops.tanh(cast(x, kind)), config.active.dtype(x))
        return y, lambda u: factor * u * (1 - y * y)

    return custom_gradient(f)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("f", [root_mean_square, narrow_tanh])
def test_single_precision_inside(backend, f, dtype):
    """It is right to as many digits as the function has, and a fault that is larger is found."""
    kind = "float32"
    assert check_gradients(f(kind), V.astype(dtype), **(EAGER if dtype == "float64" else QUICK))
    finding = first(check_gradients(f(kind, 1.01), V.astype(dtype), **QUICK))
    assert (finding.status, finding.diagnosis) == ("failed", "a factor of 1.01")
    if dtype == "float64":
        assert finding.tolerance == 5e-4


def test_no_gradient_of_a_function_in_half_precision(backend):
    """Its values stand still over small steps, but that is rounding."""
    finding = first(check_gradients(narrow_tanh("float16", 0.0), V, **QUICK))
    assert (finding.status, finding.argument) == ("failed", "x")
    staircase = derived(lambda x: ops.floor(1000 * x) / 1000, lambda x: 0 * x)
    assert check_gradients(staircase, V + 1 / 3000, **QUICK)


@pytest.mark.parametrize("f", [root_mean_square, narrow_tanh])
def test_half_precision_inside(backend, f):
    report = check_gradients(f("float16"), V, **EAGER)
    assert report.status == "undecided", report
    finding = first(report)
    told = "the function computes inside in half precision, lower than that of its arguments: "
    assert finding.reason.startswith(told) and finding.diagnosis is None


@pytest.mark.parametrize(("factor", "said"), [(0.5, "a factor of 1/2"), (2.0, "a factor of 2")])
@pytest.mark.parametrize("f", [root_mean_square, narrow_tanh])
def test_a_fault_above_half_precision(backend, f, factor, said):
    finding = first(check_gradients(f("float16", factor), V, **QUICK))
    assert (finding.status, finding.diagnosis, finding.tolerance) == ("failed", said, 2e-2)


@pytest.mark.only("jax", "tensorflow", "torch")  # NumPy has no bfloat16
def test_bfloat16_inside(backend):
    def rounded_tanh(factor):
        def f(x):
            y = cast(cast(ops.tanh(x), "bfloat16"), config.active.dtype(x))
            return y, lambda u: factor * u * (1 - y * y)

        return custom_gradient(f)

    right, wrong = (check_gradients(rounded_tanh(factor), V, **QUICK) for factor in (1.0, 2.0))
    assert right.status == "undecided", right
    assert (first(wrong).status, first(wrong).diagnosis, first(wrong).tolerance) == ("failed", "a factor of 2", 1e-1)


@pytest.mark.parametrize("part", [0.01, 0.1])
def test_what_is_added_in_half_precision(backend, part):
    def f(x):
        y = cast(ops.tanh(cast(x, "float16")), config.active.dtype(x))
        return y, lambda u: u * (1 - y * y) + part * x

    told = {each.diagnosis for each in findings(check_gradients(custom_gradient(f), V, **QUICK), "failed")}
    assert told == {"a term does not depend on upstream: the rule returns a nonzero gradient for an upstream of zero"}


def test_a_row_in_half_precision_that_is_wrong(backend):
    """A gradient that is zero close by as well depends on no earlier call."""

    def f(x):
        y = cast(ops.tanh(cast(x, "float16")), config.active.dtype(x))
        kept = cast(config.active.asarray(np.array([1.0, 0.0, 1.0])), config.active.dtype(x))
        return y, lambda u: u * (1 - y * y) * kept

    told = first(check_gradients(custom_gradient(f), V, **QUICK)).diagnosis
    assert told == "wrong in only 1 of 3 elements: [1]; only where x is negative"


def test_a_rule_that_overflows_in_half_precision(backend):
    f = custom_gradient(lambda x: (x**3, lambda u: cast(cast(3 * x * x * u, "float16"), config.active.dtype(x))))
    said = "a lower precision inside: the rule computes in half precision, and the function does not"
    told = first(check_gradients(f, V, **QUICK), "linearity")
    assert (told.status, told.reason, told.diagnosis) == ("failed", "the rule is not linear in upstream", said)
    told = first(check_gradients(f, np.array([0.7, 300.0]), **QUICK))
    reason = "the rule returns NaN or infinity where the function is finite"
    assert (told.status, told.where, told.reason, told.diagnosis) == ("failed", "[1]", reason, said)


def test_a_jump_of_the_function_is_no_lower_precision(backend):
    """What a function does at one place by itself does not make the checker less exact elsewhere."""
    f = custom_gradient(lambda x: (x**2 + 1e-3 * ops.floor(x * 1.42859), lambda u: 2.002 * x * u))
    finding = first(check_gradients(f, V, **QUICK))
    assert (finding.status, finding.tolerance, finding.diagnosis) == ("failed", 1e-6, "a factor of 1.001")


@pytest.mark.parametrize(
    "rule",
    [
        lambda x, u: cast(cast(3 * x * x * u, "float16"), config.active.dtype(x)),
        lambda x, u: 3 * cast(cast(x, "float16"), config.active.dtype(x)) ** 2 * u,
    ],
    ids=["gradient", "saved"],
)
def test_a_rule_in_half_precision_of_a_function_that_is_not(backend, rule):
    f = custom_gradient(lambda x: (x**3, lambda u: rule(x, u)))
    finding = first(check_gradients(f, V, **QUICK))
    assert finding.status == "failed"
    assert (
        finding.diagnosis == "a lower precision inside: the rule computes in half precision, and the function does not"
    )


def test_a_rule_that_only_rounds_is_not_detached(backend):
    narrow = lambda x: cast(cast(x, "float32"), config.active.dtype(x))
    f = custom_gradient(lambda x: (x**3, lambda u: narrow(3 * x * x * u)))
    assert check_gradients(f, V, **EAGER)


# --- where rounding hides the derivative ------------------------------------------------------------------------------

ROUNDING = {
    "cancellation": (derived(lambda x: (1e6 + x) ** 2 - 1e12, lambda x: 2 * (1e6 + x)), V),
    "saturated": (derived(lambda x: ops.tanh(x), lambda x: 1 - ops.tanh(x) ** 2), 30 * NORMAL),
    "fast sine": (derived(lambda x: ops.sin(1e6 * x), lambda x: 1e6 * ops.cos(1e6 * x)), V),
}


@custom_gradient
def softmax(x):
    e = ops.exp(x - ops.max(x))
    p = e / ops.sum(e)
    return p, lambda u: p * (u - ops.sum(u * p))


ROUNDING["softmax"] = (softmax, 30 * NORMAL)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ROUNDING)
def test_rounding_is_no_fault(backend, name, dtype):
    f, x = ROUNDING[name]
    report = check_gradients(f, x.astype(dtype), **EAGER)
    assert report.status in ("passed", "undecided"), report
    assert not any(each.diagnosis for each in findings(report, "undecided")), report
    if (name, dtype) == ("cancellation", "float32"):
        assert first(report).reason == (
            "the function rounds too much here: it has other values in double precision, so differences prove nothing"
        )


# --- what depends on earlier calls -----------------------------------------------------------------------------------

EARLIER = (
    "a gradient that depends on earlier calls: the rule uses a value that one of them stored (cache, global, attribute)"
)
AGAIN = "does it draw random numbers, or store something from an earlier call?"


def test_a_gradient_frozen_at_the_first_call(backend):
    cache = {}

    def f(x):
        kept = cache.setdefault("x", x)
        return x**3, lambda u: 3 * u * kept**2

    finding = first(check_gradients(custom_gradient(f), V, **QUICK))
    assert (finding.status, finding.diagnosis) == ("failed", EARLIER)
    assert finding.reason == "right at the test point, wrong at a point close by"


def test_a_rule_that_is_right_at_one_point_alone(backend):
    here = arrays.wide(V)
    f = custom_gradient(lambda x: (x**3, lambda u: 3 * u * x * config.active.asarray(here.astype(np.float64))))
    finding = first(check_gradients(f, V, **QUICK))
    assert (finding.status, finding.diagnosis) == ("failed", None)
    assert finding.reason == "right at the test point, wrong at a point close by"


def test_a_rule_that_counts_its_calls(backend):
    calls = itertools.count()
    f = custom_gradient(lambda x: (x**2, lambda u: 2 * x * u * (1 + next(calls) / 100)))
    finding = first(check_gradients(f, V, **QUICK))
    assert (finding.status, finding.diagnosis) == ("failed", EARLIER)
    told = re.fullmatch(
        r"the gradient changes when the rule is called again: x\[(\d)\] is (\S+), then (\S+); (.*)", finding.reason
    )
    place, came, then, asked = told.groups()
    u = arrays.random(np.random.default_rng(0), V)
    assert asked == AGAIN and place == str(np.argmax(abs(V * u)))
    assert float(then) > float(came) * 1.009 if float(came) > 0 else float(then) < float(came) * 1.009


def test_a_rule_that_is_another_one_later(backend):
    calls = itertools.count()
    f = custom_gradient(lambda x: (x**2, lambda u: 2 * x * u * (2 if next(calls) > 20 else 1)))
    report = check_gradients(f, V, **EAGER)
    told = [each for each in findings(report, "failed") if "after other calls" in (each.reason or "")]
    assert [each.diagnosis for each in told] == [EARLIER]


def test_a_function_that_is_another_one_later(backend):
    calls = itertools.count()
    report = check_gradients(lambda x: x**2 + (1 if next(calls) > 40 else 0), V, **QUICK)
    told = [each for each in report.findings if each.check == "value" and each.status == "undecided"]
    assert len(told) == 1 and told[0].reason.startswith(
        "the function gives other values after other calls: the output["
    )


# --- upstream --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1e-8, 1e8, 1e12])
@pytest.mark.parametrize("kind", ["doubled", "cut off"])
def test_upstream_of_any_size(backend, limit, kind):
    def rule(x, u):
        size = ops.abs(u)
        ones = ops.ones_like(u)
        if limit < 1:
            return 2 * x * u * ops.where(size < limit, 2 * ones if kind == "doubled" else 0 * ones, ones)
        large = limit / ops.maximum(size, limit * ones)
        return 2 * x * u * (large if kind == "cut off" else ops.where(size > limit, 2 * ones, ones))

    f = custom_gradient(lambda x: (x**2, lambda u: rule(x, u)))
    for dtype in ("float32", "float64"):
        report = check_gradients(f, V.astype(dtype), **QUICK)
        assert first(report, "linearity").status == "passed" and report.status == "failed", report
        told = report.cell(backend, "linearity")[-1]
        assert told.reason == "the rule is not linear in an upstream of tiny or huge size"


# --- nothing to compare ----------------------------------------------------------------------------------------------


def test_an_argument_without_elements(backend):
    wrong = custom_gradient(lambda x: (x * x, lambda u: 3 * u * x))
    report = check_gradients(wrong, np.zeros((0, 3)), compiled=False)
    assert report.status == "undecided" and not report
    finding = first(report, "value")
    assert finding.reason == "the output has no elements to compare"


def test_one_argument_without_elements(backend):
    f = custom_gradient(lambda x, y: (x * x, lambda u: (2 * u * x, 0 * y)))
    report = check_gradients(f, V, np.zeros((0, 3)), **EAGER)
    assert {(each.argument, each.reason) for each in findings(report, "undecided")} == {
        ("y", "it has no elements to compare")
    }
    with pytest.raises(AssertionError, match="has no elements to compare"):
        assert_gradients(f, V, np.zeros((0, 3)), **QUICK)


# --- diagnoses -------------------------------------------------------------------------------------------------------

TABLE = np.array([[0.7, -1.2, 0.4], [1.1, 0.3, -0.8], [-0.5, 0.9, 1.4], [0.6, -0.2, 1.3]])


def weighed(weights):
    def f(x):
        w = cast(config.active.asarray(np.asarray(weights, np.float64)), config.active.dtype(x))
        return x**2, lambda u: 2 * x * u * w

    return custom_gradient(f)


def changed(change):
    """The right gradient of a square, changed afterwards."""
    return custom_gradient(lambda x: (x**2, lambda u: change(2 * x * u, x)))


def of_upstream(change):
    return custom_gradient(lambda x: (x**2, lambda u: 2 * x * change(u)))


row, one = np.ones((4, 3)), np.ones((4, 3))
row[2] = 3
one[1, 2] = 0
few = np.ones((4, 3))
few[[0, 2, 3], [0, 1, 0]] = [1.5, 2, 3]
DIAGNOSES = {
    "half, in a batch of 2": (changed(lambda g, x: g / 2), TABLE[:2], "a factor of 1/2"),
    "twice, in a batch of 2": (changed(lambda g, x: g * 2), TABLE[:2], "a factor of 2"),
    "a row": (weighed(row), TABLE, "wrong only in row 2 of 4; by a factor of 3"),
    "a column": (weighed(row.T[:3, :3]), TABLE[:3], "wrong only in index 2 along axis 1 of 3; by a factor of 3"),
    "an element": (weighed(one), TABLE, "wrong in only 1 of 12 elements: [1, 2]"),
    "three elements": (weighed(few), TABLE, "wrong in only 3 of 12 elements: [0, 0], [2, 1], [3, 0]"),
    "negative x": (
        changed(lambda g, x: ops.where(x < 0, 1.1 * g, g)),
        TABLE,
        "wrong in only 4 of 12 elements: [0, 1], [1, 2], [2, 0], ...; by a factor of 1.1; only where x is negative",
    ),
    "the edge": (
        changed(lambda g, x: ops.where(ops.abs(x) > 1.15, 0 * g, g)),
        TABLE,
        "wrong in only 3 of 12 elements: [0, 1], [2, 2], [3, 2]; only where x is largest or smallest, at the edge of"
        " the domain",
    ),
    "the middle": (
        changed(lambda g, x: ops.where(ops.abs(x) < 0.45, 0 * g, g)),
        TABLE,
        "wrong in only 3 of 12 elements: [0, 2], [1, 1], [3, 1]; only where x is close to zero, in the middle or at the"
        " edge of the domain",
    ),
    "rolled": (
        changed(lambda g, x: ops.roll(g, 1, axis=0)),
        TABLE,
        "the gradient is in another order: moved by one row along axis 0",
    ),
    "upstream rolled": (
        of_upstream(lambda u: ops.roll(u, 1, axis=0)),
        TABLE,
        "the gradient is right for an upstream that is in another order: moved by one row along axis 0",
    ),
    "reshaped": (
        changed(lambda g, x: ops.reshape(ops.swapaxes(g, 0, 1), (4, 3))),
        TABLE,
        "the elements of the gradient are in another order, as if it were transposed and reshaped",
    ),
    "averaged": (
        changed(lambda g, x: 0 * g + ops.mean(g, axis=0)),
        TABLE,
        "the gradient is the mean along axis 0 in every row",
    ),
    "the sign of upstream": (
        of_upstream(lambda u: ops.abs(u)),
        TABLE,
        "the sign of upstream is lost: the rule returns the same gradient for upstream and its negative",
    ),
    "the sign of one upstream": (
        of_upstream(lambda u: ops.abs(u)),
        TABLE[0, 1],
        "the sign of upstream is lost: the rule returns the same gradient for upstream and its negative",
    ),
    "negative upstream": (
        of_upstream(lambda u: ops.where(u > 0, u, 0 * u)),
        TABLE,
        "a negative upstream is treated differently: its gradient is not the negative of the gradient for upstream",
    ),
    "rounded to steps": (
        changed(lambda g, x: ops.round(g * 1000) / 1000),
        TABLE,
        "the gradient is rounded to steps of 0.001",
    ),
    "clipped at 1000": (
        of_upstream(lambda u: ops.clip(u, -1000, 1000)),
        TABLE,
        "the rule clips or normalises upstream; if that is intended, declare it by `expected`",
    ),
}


@pytest.mark.parametrize("name", DIAGNOSES)
def test_diagnoses(backend, name):
    f, x, said = DIAGNOSES[name]
    report = check_gradients(f, np.asarray(x), **QUICK)
    assert {each.diagnosis for each in findings(report, "failed", "undecided")} == {said}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_numbers_are_no_steps(backend, dtype):
    f = derived(lambda x: 1e8 * x**2, lambda x: 4e8 * x)
    assert first(check_gradients(f, V.astype(dtype), **QUICK)).diagnosis == "a factor of 2"
    f = custom_gradient(lambda x: (1e8 * x**2, lambda u: 2e8 * x * u / ops.sqrt(ops.sum(u * u))))
    said = "the rule clips or normalises upstream; if that is intended, declare it by `expected`"
    assert first(check_gradients(f, V.astype(dtype), **QUICK)).diagnosis == said


def test_an_output_that_is_forgotten(backend):
    f = custom_gradient(lambda x: ((x**2, x**3), lambda u: 2 * x * u[0]))
    finding = first(check_gradients(f, V, **QUICK))
    assert finding.diagnosis == "output 1 is forgotten: the gradient ignores its upstream"


def test_a_part_of_a_complex_gradient(backend):
    f = custom_gradient(lambda z: (z * z, lambda u: ops.conj(z) * u + z * ops.conj(u)))
    finding = first(check_gradients(f, V * (1 + 0.5j), **QUICK))
    assert finding.diagnosis == "the imaginary part of the gradient is missing"


def test_a_detached_gradient_that_is_linear(backend):
    f = custom_gradient(lambda x: (x**2, lambda u: 2 * u * ops.stop_gradient(x)))
    finding = first(check_gradients(f, V, modes=("reverse",), compiled=False), "second order")
    assert finding.status == "failed"
    assert finding.diagnosis.startswith("a detached intermediate: the first order is right, but its derivative is zero")


@pytest.mark.filterwarnings("ignore:(divide by zero|invalid value) encountered:RuntimeWarning")
@pytest.mark.parametrize(
    ("slope", "status"),
    [(lambda x: 2 * x + 1, "passed"), (lambda x: 2 * x + 0 * x / x + 1, "failed")],
    ids=["right", "NaN"],
)
def test_the_edge_of_a_domain(backend, slope, status):
    """A function that is NaN below zero has a slope at zero on one side."""
    f = derived(lambda x: ops.where(x < 0, ops.sqrt(x), x * x + x), slope)
    finding = first(check_gradients(f, np.array([0.0, 1.0]), **QUICK))
    assert finding.status == status
    if status == "failed":
        assert (finding.where, finding.reason) == (
            "[0]",
            "the rule returns NaN or infinity where the function is finite",
        )
        assert finding.diagnosis.startswith("wrong at the edge of the domain: the function is finite on one side only")


def test_another_slope_at_the_edge_of_a_domain(backend):
    slope = lambda x: ops.where(x <= 0, 3 * ops.ones_like(x), 2 * x + 1)
    f = derived(lambda x: ops.where(x < 0, 0 * x / (0 * x), x * x + x), slope)
    finding = first(check_gradients(f, np.array([0.0, 1.0]), **QUICK))
    u = arrays.random(np.random.default_rng(0), np.zeros(2))[0]
    assert (finding.status, finding.where) == ("failed", "[0]")
    assert float(finding.came) == pytest.approx(3 * u, rel=1e-5)
    assert float(finding.expected) == pytest.approx(u, rel=1e-5)
    assert finding.diagnosis.startswith("wrong at the edge of the domain: the function is finite on one side only")


def test_upstream_that_is_detached(backend):
    f = of_upstream(lambda u: ops.stop_gradient(u))
    finding = first(check_gradients(f, V, modes=("forward",), compiled=False), "forward mode")
    assert finding.status == "failed"
    said = "upstream is detached by the rule (by NumPy, detach, stop_gradient), so there is no forward derivative"
    assert finding.diagnosis == said


def test_a_declared_rule_for_an_upstream_of_any_size(backend):
    right = lambda u: ops.clip(u, -1, 1)
    wrong = lambda u: ops.where(ops.abs(u) < 1e-8, 0 * u, right(u))
    declared = {"expected": lambda x, upstream: right(upstream), **QUICK}
    assert check_gradients(custom_gradient(lambda x: (x * 1, right)), V, **declared)
    report = check_gradients(custom_gradient(lambda x: (x * 1, wrong)), V, **declared)
    (finding,) = findings(report, "failed")
    assert finding.reason == "the gradient differs from the declared one for an upstream of tiny or huge size"


def test_a_declared_rule_that_is_not_linear_and_detached(backend):
    """It gives what was declared, and its derivative by upstream is zero."""
    declared = {"expected": lambda x, upstream: ops.clip(upstream, -1, 1), **QUICK}
    assert check_gradients(custom_gradient(lambda x: (x * 1, lambda u: ops.clip(u, -1, 1))), V, **declared)
    detached = custom_gradient(lambda x: (x * 1, lambda u: ops.clip(ops.stop_gradient(u), -1, 1)))
    (finding,) = findings(check_gradients(detached, V, **declared), "failed")
    assert (finding.check, finding.argument) == ("linearity", "x")
    assert finding.reason == "the derivative of the rule by upstream is zero, but that of the declared rule is not"
    assert finding.diagnosis == (
        "upstream is detached by the rule (by NumPy, detach, stop_gradient), so there is no forward derivative"
    )


def test_the_derivative_by_upstream_of_other_declared_rules(backend):
    """Where there is none by either rule, or nobody knows that of the declared one, nothing is missing."""
    rules = [ops.sign, lambda u: ops.stop_gradient(ops.clip(u, -1, 1)), lambda u: ops.clip(u, -1, 1)]
    numbers = lambda u: config.active.asarray(np.clip(config.active.to_numpy(u), -1, 1))
    for rule, expected in zip(rules, (rules[0], rules[1], numbers), strict=True):
        f = custom_gradient(lambda x, rule=rule: (x * 1, rule))
        report = check_gradients(f, V, expected=lambda x, upstream, expected=expected: expected(upstream), **QUICK)
        assert report, report


def test_the_gradient_before_is_mixed_in(backend):
    kept = {}

    def f(x):
        def rule(u):
            found = 2 * x * u
            before, kept["found"] = kept.get("found", found), found
            return (found + before) / 2

        return x**2, rule

    if backend != "jax":  # which does not let a traced value into another call
        assert first(check_gradients(custom_gradient(f), V, **QUICK), "linearity").diagnosis == EARLIER


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [lambda s: (s, s), lambda s: (2 * s, 2 * s)], ids=["one tensor", "two"])
def test_a_gradient_of_two_arguments_is_freed(backend, rule):
    f = custom_gradient(lambda x, y: (ops.exp(x + y), lambda u: rule(u * ops.exp(x + y))))
    told = first(check_gradients(f, V, V + 2, **QUICK), "memory")
    assert told.status == "passed", told


# --- nests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("container", ["dict", "list"])
def test_a_nest_is_compiled(backend, container):
    @custom_gradient
    def f(given):
        x, y = given.values() if container == "dict" else given
        rule = lambda u: (u * y, u * x)
        return x * y, lambda u: dict(zip(("x", "y"), rule(u), strict=True)) if container == "dict" else list(rule(u))

    given = {"x": V, "y": V + 2} if container == "dict" else [V, V + 2]
    report = check_gradients(f, given, order=1, modes=("reverse",))
    assert report, report
    assert first(report, "compiled").status == ("skipped" if backend == "numpy" else "passed")


# --- value -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_value(backend, dtype):
    f = custom_gradient(lambda x: (1.001 * x**2, lambda u: 2 * x * u))
    right = custom_gradient(lambda x: (x**2, lambda u: 2 * x * u))
    declared = {"expected": lambda x: x**2, **QUICK}
    x = V.astype(dtype)
    assert check_gradients(f, x, **declared)  # nobody asks for the value
    assert check_gradients(right, x, value=lambda x: x**2, **declared)
    finding = first(check_gradients(f, x, value=lambda x: x**2, **declared), "value")
    assert (finding.status, finding.where, finding.tolerance) == ("failed", "[1]", 1e-6)
    assert finding.reason == "the output differs from that of `value`"
    assert float(finding.came) == pytest.approx(1.001 * x[1].astype(float) ** 2, rel=1e-5)
    assert float(finding.expected) == pytest.approx(x[1].astype(float) ** 2, rel=1e-5)


def test_a_value_that_is_none(backend):
    def raising(x):
        raise ZeroDivisionError("no such number")

    finding = first(check_gradients(cube, V, value=raising, **QUICK), "value")
    assert finding.status == "failed"
    assert finding.reason.startswith("`value` raised ZeroDivisionError: no such number; at test_checker_slips.py:")
    with pytest.raises(ValueError, match="check_gradients") as caught:
        check_gradients(cube, V, value=lambda x: ops.sum(x))
    assert str(caught.value).splitlines()[1:3] == ["    got: [()]", "    expected: [(3,)]"]
    with pytest.raises(ValueError, match="value=3 is not a function"):
        check_gradients(cube, V, value=3)


# --- fast ------------------------------------------------------------------------------------------------------------


def test_fast(backend):
    """It looks along random directions, and closer where they are wrong."""
    calls = {True: 0, False: 0}
    for fast in calls:

        def f(x, fast=fast):
            calls[fast] += 1
            return x**3, lambda u: 3 * u * x**2

        assert check_gradients(custom_gradient(f), TABLE, fast=fast, compiled=False)
    assert calls[True] < calls[False] / 2
    report = check_gradients(changed(lambda g, x: g / 2), TABLE, fast=True)
    assert (first(report).where[0], first(report).diagnosis) == ("[", "a factor of 1/2")
    assert {"compiled", "export"}.isdisjoint(report.checks)
    assert first(check_gradients(weighed(one), TABLE, fast=True)).diagnosis == "wrong in only 1 of 12 elements: [1, 2]"


def test_fast_is_no_other_verdict(backend):
    assert keras_cg.backend() == backend
    for f, x in ROUNDING.values():
        assert check_gradients(f, x, fast=True).status in ("passed", "undecided")
