"""The checker's verdicts: right rules pass, whatever they compute; what cannot be told is undecided, and says why."""

import re
from collections import namedtuple

import numpy as np
import pytest
from checker_cases import (
    EAGER,
    QUICK,
    WIDE,
    V,
    assert_finding,
    assert_passed,
    cast,
    derived,
    findings,
    first,
    found,
    upstream_for,
)

from keras_cg import custom_gradient, ops
from keras_cg.frontend import config
from keras_cg.testing import assert_gradients, check_gradients

cube = derived(lambda x: x**3, lambda x: 3 * x**2)
HALF = "a lower precision inside: the rule computes in half precision, and the function does not"
NOT_FINITE = "the rule returns NaN or infinity where the function is finite"
ONE_SIDE = "wrong at the edge of the domain: the function is finite on one side only..."


def of_sign(slope):
    """A rule of x with max(x, 0) as its function."""
    return custom_gradient(lambda x: (ops.where(x > 0, x, 0 * x), lambda u: ops.where(x > 0, slope * u, 0 * u)))


def signs(x):
    """The sign of x, which is -1 at 0 as well, with a derivative of 0."""
    return 2 * cast(x > 0, config.active.dtype(x)) - 1


size = custom_gradient(lambda x: (ops.abs(x), lambda upstream: upstream * signs(x)))


narrow = lambda x, dtype="float16": cast(cast(x, dtype), config.active.dtype(x))
returning = lambda output, rule=None: custom_gradient(lambda x: (output(x), rule or (lambda upstream: upstream)))
overflowing = lambda x: 2 * ops.exp(200 * x) / ops.exp(200 * x)


SINGLE = "right in double precision, wrong in float32: it overflows, or subtracts nearly equal numbers"
POSITIVE = np.array([0.7, 1.2, 2.1], np.float32)
# The function, its argument, the check, and what the first finding of that check says.
FINDINGS = {
    "a fault beside a kink": (of_sign(2), [-1.0, 0.0, 2.0], "first order", {"status": "failed", "where": "[2]"}),
    # x |x| / 2, whose gradient |x| is right, and has a kink.
    "a kink of the gradient": (
        custom_gradient(lambda x: (x * ops.abs(x) / 2, lambda upstream: upstream * size(x))),
        [0.0, 1.0],
        "second order",
        {"status": "undecided", "where": "[0]", "reason": "the gradient has no derivative there: it has a kink..."},
    ),
    "a jump": (
        custom_gradient(lambda x: (ops.floor(x), lambda upstream: 0 * upstream)),
        [0.5, 1.0],
        "first order",
        {"status": "undecided", "where": "[1]", "reason": "the function has no derivative there: it jumps, from ..."},
    ),
    "a slope at the edge of a domain": (
        derived(lambda x: ops.where(x < 0, ops.sqrt(x), x * x + x), lambda x: 2 * x + 1),
        [0.0, 1.0],
        "first order",
        {"status": "passed"},
    ),
    "another slope at the edge of a domain": (
        derived(
            lambda x: ops.where(x < 0, 0 * x / (0 * x), x * x + x),
            lambda x: ops.where(x <= 0, 3 * ops.ones_like(x), 2 * x + 1),
        ),
        [0.0, 1.0],
        "first order",
        {"status": "failed", "where": "[0]", "diagnosis": ONE_SIDE},
    ),
    "no number of the rule": (
        derived(lambda x: x * x, lambda x: 2 * x * float("nan")),
        V,
        "first order",
        {"status": "failed", "argument": "x", "where": "[0]", "reason": NOT_FINITE},
    ),
    "overflow in single precision": (
        derived(lambda x: 2 * x, overflowing),
        POSITIVE,
        "first order",
        {"status": "failed", "tolerance": 1e-2, "diagnosis": SINGLE},
    ),
    "a rule alone in half precision": (
        custom_gradient(lambda x: (x**3, lambda u: narrow(3 * x * x * u))),
        V.astype(float),
        "first order",
        {"status": "failed", "diagnosis": HALF},
    ),
    "upstream in half precision": (
        custom_gradient(lambda x: (x**3, lambda u: narrow(3 * x * x * u))),
        V.astype(float),
        "linearity",
        {"status": "failed", "reason": "the rule is not linear in upstream", "diagnosis": HALF},
    ),
    "overflow in half precision": (
        custom_gradient(lambda x: (x**3, lambda u: narrow(3 * x * x * u))),
        [0.7, 300.0],
        "first order",
        {"status": "failed", "where": "[1]", "reason": NOT_FINITE, "diagnosis": HALF},
    ),
    # What a function does at one place by itself does not make the checker less exact elsewhere.
    "a jump is no lower precision": (
        custom_gradient(lambda x: (x**2 + 1e-3 * ops.floor(x * 1.42859), lambda u: 2.002 * x * u)),
        V.astype(float),
        "first order",
        {"status": "failed", "tolerance": 1e-6, "diagnosis": "a factor of 1.001"},
    ),
    "no floating output": (
        lambda x: "text",
        V,
        "value",
        {"status": "failed", "reason": "the function returns no floating tensor"},
    ),
    "NaN": (
        returning(lambda x: x * np.nan),
        V,
        "value",
        {"status": "undecided", "reason": "the function itself returns NaN or infinity at this point"},
    ),
    "nothing after infinity": (
        returning(lambda x: x * np.inf),
        V,
        "linearity",
        {"status": "skipped", "reason": "the function has no valid value"},
    ),
    "no elements": (
        custom_gradient(lambda x: (x * x, lambda u: 3 * u * x)),
        np.zeros((0, 3)),
        "value",
        {"status": "undecided", "reason": "the output has no elements to compare"},
    ),
}


@pytest.mark.filterwarnings("ignore:(overflow|divide by zero|invalid value) encountered:RuntimeWarning")
@pytest.mark.parametrize(("f", "x", "check", "expected"), FINDINGS.values(), ids=FINDINGS)
def test_findings(backend, f, x, check, expected):
    options = {**QUICK, "order": 2} if check == "second order" else QUICK
    assert_finding(first(check_gradients(f, np.asarray(x), **options), check), **expected)


def test_a_kink(backend):
    x = np.array([-1.0, 0.0, 2.0], np.float32)
    report = check_gradients(of_sign(1), x, **QUICK)
    finding = first(report)
    assert report.status == "undecided" and not report
    assert finding.status == "undecided" and finding.where == "[1]"
    told = re.fullmatch(
        r"the function has no derivative there: it has a kink, with the slope (\S+) on the left and (\S+) on the"
        r" right\. The rule returns 0",
        finding.reason,
    )
    assert [float(each) for each in told.groups()] == pytest.approx([0, upstream_for(x)[1]], abs=5e-3)
    assert finding.diagnosis == "a kink at the test point: choose another one"
    assert_passed(check_gradients(of_sign(1), x + 0.5, **QUICK))


def test_other_values_every_time(backend):
    numbers = iter(range(1000))
    f = custom_gradient(lambda x: (x * (1 + next(numbers)), lambda upstream: upstream))
    finding = first(check_gradients(f, V, **QUICK), "value")
    assert finding.status == "undecided"
    told = re.fullmatch(
        r"the output changes when the function is called again: the output\[1\] is (\S+), then (\S+);"
        r" does it draw random numbers, or store something from an earlier call\?",
        finding.reason,
    )
    assert [float(each) for each in told.groups()] == pytest.approx([V[1], 2 * V[1]], rel=1e-5)


def narrow_tanh(kind, factor=1.0):
    def f(x):
        y = cast(ops.tanh(cast(x, kind)), config.active.dtype(x))
        return y, lambda u: factor * u * (1 - y * y)

    return custom_gradient(f)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_single_precision_inside(backend, dtype):
    """It is right to as many digits as the function has, and a fault that is larger is found."""
    assert check_gradients(narrow_tanh("float32"), V.astype(dtype), **(EAGER if dtype == "float64" else QUICK))
    finding = first(check_gradients(narrow_tanh("float32", 1.01), V.astype(dtype), **QUICK))
    assert (finding.status, finding.diagnosis) == ("failed", "a factor of 1.01")
    if dtype == "float64":
        assert finding.tolerance == 5e-4


def test_half_precision_inside(backend):
    """What is right is undecided, and a fault above it is found."""
    report = check_gradients(narrow_tanh("float16"), WIDE, **EAGER)
    told = "the function computes inside in half precision, lower than that of its arguments: ..."
    assert report.status == "undecided", report
    assert_finding(first(report), reason=told, diagnosis=None)
    finding = first(check_gradients(narrow_tanh("float16", 2.0), WIDE, **QUICK))
    assert_finding(finding, status="failed", diagnosis="a factor of 2", tolerance=2e-2)


def test_a_function_that_rounds_too_much(backend):
    cancelling = derived(lambda x: (1e6 + x) ** 2 - 1e12, lambda x: 2 * (1e6 + x))
    report = check_gradients(cancelling, V, **EAGER)
    assert report.status == "undecided" and not any(each.diagnosis for each in findings(report, "undecided")), report
    assert first(report).reason == (
        "the function rounds too much here: it has other values in double precision, so differences prove nothing"
    )


def test_one_argument_without_elements(backend):
    f = custom_gradient(lambda x, y: (x * x, lambda u: (2 * u * x, 0 * y)))
    report = check_gradients(f, WIDE, np.zeros((0, 3)), **EAGER)
    assert {(each.argument, each.reason) for each in findings(report, "undecided")} == {
        ("y", "it has no elements to compare")
    }
    with pytest.raises(AssertionError, match="has no elements to compare"):
        assert_gradients(f, WIDE, np.zeros((0, 3)), **QUICK)


RIGHT = {
    "another order of bytes": (cube, V.astype(">f8")),
    "beside a kink": (derived(lambda x: ops.abs(x), lambda x: ops.sign(x)), [1e-6, -1e-6, 1.0]),
    "staircase": (derived(lambda x: ops.floor(1000 * x) / 1000, lambda x: 0 * x), [0.12573, -0.1321, 0.64042]),
    "large and small": (derived(lambda x: x * x, lambda x: 2 * x), [1e-6, 1.0, 1e6]),
    "many kinks": (derived(lambda x: ops.abs(x), lambda x: ops.sign(x)), np.random.default_rng(0).normal(size=5000)),
}


@pytest.mark.parametrize(("f", "x"), RIGHT.values(), ids=RIGHT)
def test_no_false_alarm(backend, f, x):
    report = check_gradients(f, np.asarray(x), compiled=False)
    assert report, report


Pair = namedtuple("Pair", "left right")


def test_nests_and_names(backend):
    @custom_gradient
    def f(x, params, pair, *, scale):
        def rule(upstream):
            u = upstream["y"]
            return {
                "x": u * params["w"],
                "params": {"w": 3 * u * x, "b": u},
                "pair": Pair(u * pair.right, 2 * u * pair.left),
                "scale": None,
            }.values()

        return {"y": x * params["w"] + params["b"] + pair.left * pair.right + scale}, lambda upstream: tuple(
            rule(upstream)
        )

    report = check_gradients(f, V, {"w": V + 1, "b": V + 2}, Pair(V + 3, V + 4), kwargs={"scale": V + 5}, **QUICK)
    assert [each.argument for each in report.cell(backend, "first order")] == [
        *("x", "params['b']", "params['w']", "pair.left", "pair.right", "scale")
    ]
    assert found(report, "failed") == {
        ("first order", "params['w']"): "a factor of 3, which is the batch size"
        + ": does the function take a mean that the rule leaves out?",
        ("first order", "pair.right"): "a factor of 2",
        ("first order", "scale"): "no gradient for scale: the rule returns zero or None instead of the derivative",
    }
    assert f"first order: failed, at params['w']{report.cell(backend, 'first order')[2].where}" in str(report)


def test_tensors_of_the_framework(eager):
    f = custom_gradient(lambda x, y: (x * y, lambda upstream: (upstream * y, 2 * upstream * x)))
    report = check_gradients(f, eager.tensor(V), eager.tensor(V + 2), **QUICK)
    assert found(report, "failed") == {("first order", "y"): "a factor of 2"}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "complex64", "complex128"])
def test_dtypes(backend, dtype):
    if (backend, dtype) == ("numpy", "bfloat16"):
        return  # NumPy has none
    is_complex = dtype.startswith("complex")
    x = config.active.cast(config.active.asarray(V), dtype) if dtype == "bfloat16" else V.astype(dtype)
    x = (x * (1 + 0.5j)).astype(dtype) if is_complex else x
    conj = ops.conj if is_complex else lambda x: x
    for factor in (1, 1.25):
        f = custom_gradient(lambda x, factor=factor: (x * x, lambda u: factor * 2 * u * conj(x)))
        report = check_gradients(f, x, compiled=False)
        if factor == 1:
            assert_passed(report)
        else:
            assert_finding(first(report), diagnosis="a factor of 1.25", tolerance=1e-6)


def test_clipping_declared(backend):
    clipped = custom_gradient(lambda x: (x * 1, lambda upstream: ops.clip(upstream, -0.5, 0.5)))
    report = check_gradients(
        clipped, V, expected=lambda x, upstream: ops.clip(upstream, -0.5, 0.5), order=1, compiled=False
    )
    assert_passed(report, "forward mode")
    assert first(report, "linearity").reason == "not linear in upstream, as declared"
    forward = first(report, "forward mode")
    assert forward.status == "skipped"
    assert forward.reason == "the rule is not linear in upstream, so it has no transpose"


def test_straight_through_declared(backend):
    rounded = custom_gradient(lambda x: (ops.floor(x + 0.5), lambda upstream: upstream))
    assert_passed(check_gradients(rounded, V, expected=lambda x: x, compiled=False))
    assert_passed(check_gradients(rounded, V, expected=lambda x, upstream: upstream, compiled=False))
    report = check_gradients(rounded, V, expected=lambda x: 2 * x, **QUICK)
    assert found(report, "failed", "undecided") == {("first order", "x"): "a factor of 1/2"}


@pytest.mark.parametrize(
    ("expected", "status", "reason"),
    [
        (lambda x, y: x, "failed", "`expected` raised TypeError: "),
        (lambda x, upstream: ops.sum(upstream), "failed", "`expected` raised GradientError: "),
        (lambda x, upstream: upstream * float("nan"), "undecided", "`expected` returns NaN or infinity at this point"),
    ],
)
def test_what_is_wrong_with_expected_is_not_blamed_on_the_rule(backend, expected, status, reason):
    finding = first(
        check_gradients(derived(lambda x: x * x, lambda x: 2 * x), V, expected=expected, **QUICK), "first order"
    )
    assert finding.status == status and finding.reason.startswith(reason)


CLIPPING = {"expected": lambda x, upstream: ops.clip(upstream, -1, 1), **QUICK}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (
            lambda u: ops.where(ops.abs(u) < 1e-8, 0 * u, ops.clip(u, -1, 1)),
            {"reason": "the gradient differs from the declared one for an upstream of tiny or huge size"},
        ),
        (
            lambda u: ops.clip(ops.stop_gradient(u), -1, 1),
            {
                "check": "linearity",
                "argument": "x",
                "reason": "the derivative of the rule with respect to upstream is zero, but that of the declared rule"
                " is not",
                "diagnosis": "upstream is detached by the rule (by NumPy, detach, stop_gradient), so there is no"
                " forward derivative",
            },
        ),
    ],
    ids=["another for tiny upstreams", "detached"],
)
def test_a_declared_rule_that_is_not_linear(backend, rule, expected):
    assert check_gradients(custom_gradient(lambda x: (x * 1, lambda u: ops.clip(u, -1, 1))), WIDE, **CLIPPING)
    (finding,) = findings(check_gradients(custom_gradient(lambda x: (x * 1, rule)), WIDE, **CLIPPING), "failed")
    assert_finding(finding, **expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_value(backend, dtype):
    f = custom_gradient(lambda x: (1.001 * x**2, lambda u: 2 * x * u))
    right = custom_gradient(lambda x: (x**2, lambda u: 2 * x * u))
    declared = {"expected": lambda x: x**2, **QUICK}
    x = V.astype(dtype)
    assert check_gradients(f, x, **declared)  # the value is not checked
    assert check_gradients(right, x, value=lambda x: x**2, **declared)
    finding = first(check_gradients(f, x, value=lambda x: x**2, **declared), "value")
    assert (finding.status, finding.where, finding.tolerance) == ("failed", "[1]", 1e-6)
    assert finding.reason == "the output differs from that of `value`"
    assert float(finding.came) == pytest.approx(1.001 * x[1].astype(float) ** 2, rel=1e-5)
    assert float(finding.expected) == pytest.approx(x[1].astype(float) ** 2, rel=1e-5)
