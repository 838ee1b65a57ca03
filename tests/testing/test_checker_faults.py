"""The checker finds planted faults, and its diagnosis names them.

Every expected number is a closed form of the upstream, which is the first thing that the checker draws.
"""

import inspect
import itertools
import json
import re

import numpy as np
import pytest
from checker_cases import (
    QUICK,
    WIDE,
    V,
    W,
    X,
    assert_finding,
    assert_passed,
    cast,
    derived,
    first,
    found,
    square,
    upstream_for,
)

from keras_cg import custom_gradient, ops
from keras_cg.frontend import config
from keras_cg.testing import arrays, check_gradients

Z = np.array([0.5 - 0.3j, -0.8 + 1.1j, 1.2 + 0.4j], np.complex64)
TABLE = X.astype(float)

frozen = custom_gradient(lambda x: (x, lambda upstream: 0))
doubled = custom_gradient(lambda x: (x, lambda upstream: 2 * upstream))


def transposed(x):
    return ops.swapaxes(x, 0, 1)


# A rule of x**2, what it is in NumPy, what is said of it, and whether it is linear in upstream.
CLIPS = "the rule clips or normalises upstream; if that is intended, declare it with `expected`"
NO_GRADIENT = "no gradient for {}: the rule returns zero or None instead of the derivative"
FORGOTTEN = "upstream forgotten: the rule returns the same gradient for every upstream"
TWICE_USED = "upstream used twice: the gradient grows with the square of upstream"
ADDED = "a term does not depend on upstream: the rule returns a nonzero gradient for an upstream of zero"
FAULTS = {
    "forgotten": (lambda x, u: 2 * x, lambda x, u: 2 * x, FORGOTTEN, False),
    "used twice": (lambda x, u: 2 * x * u * u, lambda x, u: 2 * x * u * u, TWICE_USED, False),
    "added": (lambda x, u: 2 * x * u + 1, lambda x, u: 2 * x * u + 1, ADDED, False),
    "clipped": (lambda x, u: 2 * x * ops.clip(u, -1, 1), lambda x, u: 2 * x * np.clip(u, -1, 1), CLIPS, False),
    "no gradient": (lambda x, u: None, lambda x, u: 0 * x, NO_GRADIENT.format("x"), True),
}
MISSING_MEAN = ": does the function take a mean that the rule leaves out?"
MEAN_TOO_MUCH = ": does the rule take a mean that the function does not?"
FACTORS = {
    2: "2",
    1.001: "1.001",
    -1: "-1: a wrong sign, or a gradient reversal that `expected` should declare",
    4: "4, which is the batch size" + MISSING_MEAN,
    0.25: "0.25, which is one over the batch size" + MEAN_TOO_MUCH,
    12: "12, which is the number of elements" + MISSING_MEAN,
    1 / 12: "0.0833333, which is one over the number of elements" + MEAN_TOO_MUCH,
}
for factor, said in FACTORS.items():
    times = lambda x, u, factor=factor: factor * 2 * x * u
    FAULTS[f"factor {factor:.6g}"] = times, times, f"a factor of {said}", True


@pytest.mark.filterwarnings("ignore:the rule of .* returned no gradient")
@pytest.mark.parametrize(("rule", "in_numpy", "said", "is_linear"), FAULTS.values(), ids=FAULTS)
def test_planted_faults_are_named(backend, rule, in_numpy, said, is_linear):
    report = check_gradients(square(rule), X, **QUICK)
    kinds = ["first order"] if is_linear else ["first order", "linearity"]
    assert report.status == "failed"
    assert found(report, "failed", "undecided") == {(check, "x"): said for check in kinds}
    x = arrays.wide(X)
    u = upstream_for(x**2)
    came, expected, finding = in_numpy(x, u), 2 * x * u, first(report)
    # More than one place where two numbers are equally wrong.
    off, place = abs(came - expected), tuple(json.loads(finding.where))
    assert off[place] > (1 - 1e-9) * off.max()
    assert float(finding.came) == pytest.approx(came[place], rel=1e-5)
    assert float(finding.expected) == pytest.approx(expected[place], rel=1e-5)
    assert finding.error == pytest.approx(off.max() / abs(expected).max(), rel=1e-4)
    assert (finding.tolerance, finding.reason) == (1e-6, None)


AS_FORWARD = "a transposed Jacobian: the rule multiplies upstream with the Jacobian itself, as forward mode would"
# The function, its arguments, and what is said of those that are wrong.
OF_SEVERAL = {
    "swapped": (
        lambda x, y: (x * y, lambda upstream: (upstream * x, upstream * y)),
        (V, V + 2),
        {"x": "the gradients of x and y are swapped", "y": "the gradients of y and x are swapped"},
    ),
    "none for one": (
        lambda x, y: (x * y, lambda upstream: (upstream * y, None)),
        (V, V + 2),
        {"y": NO_GRADIENT.format("y")},
    ),
    "transposed Jacobian": (
        lambda x, w: (x @ w, lambda upstream: (upstream @ w, transposed(x) @ upstream)),
        (X[:3], W),
        {"x": AS_FORWARD},
    ),
}


@pytest.mark.parametrize(("f", "args", "said"), OF_SEVERAL.values(), ids=OF_SEVERAL)
def test_faults_of_several_arguments(backend, f, args, said):
    report = check_gradients(custom_gradient(f), *args, **QUICK)
    assert found(report, "failed", "undecided") == {("first order", argument): text for argument, text in said.items()}
    assert {each.argument for each in report.cell(backend, "first order") if each.status == "passed"} == {
        *inspect.signature(f).parameters
    } - {*said}


@pytest.mark.parametrize(
    ("shape", "axes"), [((3,), "axis 0"), ((1, 3), "axis 0"), ((4, 1), "axis 1"), ((), "axes 0 and 1")], ids=str
)
def test_a_missing_sum_over_a_broadcast_axis(backend, shape, axes):
    @custom_gradient
    def scale(x, s):
        return x * s, lambda upstream: (upstream * s, upstream * x)

    report = check_gradients(scale, X, np.full(shape, 1.7, np.float32), **QUICK)
    finding = first(report)
    assert finding.status == "failed" and report.status == "failed"
    assert finding.diagnosis == f"s was broadcast, and a sum over {axes} is missing."
    assert re.fullmatch(
        r"GradientError: the rule of \S*scale returned a gradient of the wrong shape for s;"
        rf" got: \S*float32\[4, 3\]; expected: \S*float32{re.escape(str(list(shape)))};"
        r" remedy: keras_cg.ops.sum_to\(gradient, s\) sums it; nothing is broadcast or summed for you;"
        r" the rule is at test_checker_faults.py:.*",
        finding.reason,
    )
    for check in ("linearity", "memory"):
        assert first(report, check).status == "skipped"
        assert first(report, check).reason == "the function has no valid gradient"


def weighed(weights):
    def f(x):
        w = cast(config.active.asarray(np.asarray(weights, np.float64)), config.active.dtype(x))
        return x**2, lambda u: 2 * x * u * w

    return custom_gradient(f)


def changed(change):
    """The right gradient of a square, changed afterwards."""
    return square(lambda x, u: change(2 * x * u, x))


def of_upstream(change):
    return square(lambda x, u: 2 * x * change(u))


row, one = np.ones((4, 3)), np.ones((4, 3))
row[2] = 3
one[1, 2] = 0
few = np.ones((4, 3))
few[[0, 2, 3], [0, 1, 0]] = [1.5, 2, 3]
SIGN = "the sign of upstream is lost: the rule returns the same gradient for upstream and its negative"
DIAGNOSES = {
    "a column": (weighed(row.T[:3, :3]), TABLE[:3], "wrong only in index 2 along axis 1 of 3; by a factor of 3"),
    "three elements": (weighed(few), TABLE, "wrong in only 3 of 12 elements: [0, 0], [2, 1], [3, 0]"),
    "transposed": (
        changed(lambda g, x: transposed(g)),
        W.astype(float),
        "a transposed gradient: rows and columns are exchanged",
    ),
    "mean forgotten": (
        custom_gradient(lambda x: (ops.sum(x * x, axis=0) / 4, lambda upstream: 2 * upstream * x)),
        TABLE,
        "a factor of 4, which is the batch size" + MISSING_MEAN,
    ),
    "no conjugate": (
        custom_gradient(lambda z: (z * z, lambda upstream: upstream * 2 * z)),
        Z,
        "a missing conjugate: the gradient of a loss at x + iy is dL/dx + i dL/dy on every backend",
    ),
    "straight-through": (
        custom_gradient(lambda x: (ops.floor(x + 0.5), lambda upstream: upstream)),
        V,
        "the function does not change with x here, or only in steps (rounding, a comparison, a cast); if the"
        " gradient differs on purpose, such as that of a straight-through estimator, declare the right one:"
        " expected=lambda x: x",
    ),
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
    "the sign of upstream": (of_upstream(lambda u: ops.abs(u)), TABLE, SIGN),
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
    "an output": (
        custom_gradient(lambda x: ((x**2, x**3), lambda u: 2 * x * u[0])),
        WIDE,
        "output 1 is forgotten: the gradient ignores its upstream",
    ),
    "a part of a complex gradient": (
        custom_gradient(lambda z: (z * z, lambda u: ops.conj(z) * u + z * ops.conj(u))),
        WIDE * (1 + 0.5j),
        "the imaginary part of the gradient is missing",
    ),
}


@pytest.mark.parametrize(("f", "x", "said"), DIAGNOSES.values(), ids=DIAGNOSES)
def test_diagnoses(backend, f, x, said):
    report = check_gradients(f, np.asarray(x), **QUICK)
    assert {each.diagnosis for each in report.findings if each.status in ("failed", "undecided")} == {said}


@pytest.mark.parametrize("limit", [1e-8, 1e12])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_upstream_of_any_size(backend, limit, dtype):
    """A rule that is twice as large on the far side of a limit."""

    far = lambda u: ops.abs(u) < limit if limit < 1 else ops.abs(u) > limit
    f = square(lambda x, u: 2 * x * u * ops.where(far(u), 2 * ops.ones_like(u), ops.ones_like(u)))
    report = check_gradients(f, V.astype(dtype), **QUICK)
    assert first(report, "linearity").status == "passed" and report.status == "failed", report
    assert report.cell(backend, "linearity")[-1].reason == "the rule is not linear in an upstream of tiny or huge size"


def test_upstream_that_is_detached(backend):
    f = of_upstream(lambda u: ops.stop_gradient(u))
    finding = first(check_gradients(f, WIDE, modes=("forward",), compiled=False), "forward mode")
    said = "upstream is detached by the rule (by NumPy, detach, stop_gradient), so there is no forward derivative"
    assert_finding(finding, status="failed", diagnosis=said)


DETACHED = (
    "a detached intermediate: the {} is right, but {}, as if the rule used a value that is detached from the"
    " arguments (by NumPy, detach, stop_gradient, or a custom gradient inside it)"
)
ZERO = "its derivative is zero"
TWICE = "its derivative is twice what it should be"
PART = "a part of its derivative is missing"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (lambda x, u: 3 * u * frozen(x * x), ZERO),
        (lambda x, u: 3 * u * doubled(x) ** 2, TWICE),
        (lambda x, u: 3 * u * frozen(x) * x, PART),
    ],
    ids=["zero", "twice", "part"],
)
def test_detached(backend, rule, said):
    cube = custom_gradient(lambda x: (x**3, lambda upstream: rule(x, upstream)))
    report = check_gradients(cube, V[:1], modes=("reverse",), compiled=False)
    assert found(report, "failed", "undecided") == {("second order", "x"): DETACHED.format("first order", said)}
    assert first(report).status == "passed"
    finding = first(report, "second order")
    x, factor = arrays.wide(V[:1]), {ZERO: 0, TWICE: 2, PART: 0.5}[said]
    generator = np.random.default_rng(0)
    u, c = arrays.random(generator, x), arrays.random(generator, x)
    right = (6 * x * u * c).item()
    assert finding.where == "[0]"
    assert float(finding.came) == pytest.approx(factor * right, rel=1e-5)
    assert float(finding.expected) == pytest.approx(right, rel=1e-5)


def test_higher_orders(backend):
    fifth = custom_gradient(lambda x: (x**5, lambda upstream: 5 * upstream * x**4))
    report = check_gradients(fifth, V[:1], order=4, modes=("reverse",), compiled=False)
    assert_passed(report)
    orders = ("first order", "second order", "third order", "fourth order")
    assert report.checks == ("value", *orders, "linearity", "memory")


@pytest.mark.parametrize(("wrong", "lower"), [("third order", "second order"), ("fourth order", "third order")])
def test_a_fault_of_a_higher_order(backend, wrong, lower):
    # The derivative of x**4, and so on, right until the one that is cut off.
    last = custom_gradient(lambda x: (24 * x, lambda upstream: 24 * upstream))
    fourth = {
        "third order": lambda x: 12 * frozen(x * x),
        "fourth order": lambda x: custom_gradient(lambda x: (12 * x * x, lambda u: u * frozen(last(x))))(x),
    }[wrong]
    second = custom_gradient(lambda x: (4 * x**3, lambda upstream: upstream * fourth(x)))
    f = custom_gradient(lambda x: (x**4, lambda upstream: upstream * second(x)))
    report = check_gradients(f, V[:1], order=4, modes=("reverse",), compiled=False)
    failures = found(report, "failed", "undecided")
    assert next(iter(failures)) == (wrong, "x")
    assert failures[wrong, "x"] == DETACHED.format(lower, ZERO)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_term_that_only_the_second_derivative_shows(backend, share):
    # The rule lacks a part of a term below the tolerance of the first order, and equals its own finite differences.
    f = custom_gradient(lambda x: (1000 * x + 1e-4 * x * x, lambda upstream: upstream * (1000 + share * 2e-4 * x)))
    report = check_gradients(f, WIDE[:1], modes=("reverse",), compiled=False)
    finding = first(report, "second order")
    assert list(found(report, "failed", "undecided")) == [("second order", "x")]
    assert finding.reason == "it is the derivative of the rule, but not the second derivative of the function"
    assert float(finding.came) == pytest.approx(share * float(finding.expected), rel=1e-4)
    generator = np.random.default_rng(0)
    right = 2e-4 * abs(arrays.random(generator, WIDE[:1]) * arrays.random(generator, WIDE[:1])).item()
    assert 0.2 * right < abs(float(finding.expected)) < 1.5 * right  # along a direction of such numbers


def test_modes(backend):
    f = custom_gradient(lambda x: (x**2, lambda upstream: 2 * upstream * x))
    both = ("value", "first order", "linearity", "forward mode", "memory")
    for modes, wanted in {
        ("reverse", "forward"): both,
        ("reverse",): ("value", "first order", "linearity", "memory"),
        ("forward",): ("value", "linearity", "forward mode", "memory"),
    }.items():
        report = check_gradients(f, V, order=1, modes=modes, compiled=False)
        assert_passed(report)
        assert report.checks == wanted


def test_forward_mode_finds_a_fault(backend):
    f = custom_gradient(lambda x: (x**2, lambda upstream: 6 * upstream * x))
    report = check_gradients(f, V, modes=["forward"], compiled=False)
    finding = first(report, "forward mode")
    assert found(report, "failed") == {("forward mode", "x"): None}
    assert finding.where.startswith("number ") and finding.where.endswith(" of the output")
    assert float(finding.came) == pytest.approx(3 * float(finding.expected), rel=1e-5)


def test_a_higher_order_is_not_explained_by_a_lower_one_that_failed(backend):
    half = derived(lambda x: x * x, lambda x: x)
    report = check_gradients(half, V, expected=lambda x: x * x, compiled=False)
    assert first(report).diagnosis == "a factor of 1/2"
    assert (first(report, "second order").status, first(report, "second order").diagnosis) == ("failed", None)


EARLIER = (
    "a gradient that depends on earlier calls: the rule uses a value that one of them stored (cache, global, attribute)"
)
AGAIN = "does it draw random numbers, or store something from an earlier call?"


def test_a_gradient_frozen_at_the_first_call(backend):
    cache = {}
    f = custom_gradient(lambda x: (x**3, (lambda kept: lambda u: 3 * u * kept**2)(cache.setdefault("x", x))))
    reason = "right at the test point, wrong at a point close by"
    assert_finding(first(check_gradients(f, WIDE, **QUICK)), status="failed", diagnosis=EARLIER, reason=reason)


def needing(gradient_of_y):
    """x² y, whose gradient of y may depend on which gradients are asked for."""

    def f(x, y):
        def grad(upstream, needs_input_grad):
            return 2 * upstream * x * y if needs_input_grad[0] else None, gradient_of_y(
                upstream * x * x, needs_input_grad
            )

        return x * x * y, grad

    return custom_gradient(f)


@pytest.mark.parametrize(
    ("gradient_of_y", "said"),
    [
        (lambda gradient, needs: gradient if needs[0] else 7 * gradient, "y["),
        (lambda gradient, needs: gradient if needs[0] else 0 * gradient, "y["),
        (lambda gradient, needs: gradient if needs[0] else gradient[5], "the rule raises "),
    ],
    ids=["another", "zero", "an error"],
)
def test_a_gradient_that_is_asked_for_alone(backend, gradient_of_y, said):
    finding = next(
        each for each in check_gradients(needing(gradient_of_y), V, V, **QUICK).findings if each.status == "failed"
    )
    assert (finding.check, finding.status, finding.argument) == ("first order", "failed", "y")
    assert finding.reason.startswith(f"the gradient differs where that of y alone is asked for: {said}"), finding.reason
    assert finding.diagnosis == (
        "a rule that skips work that is needed: look at what it does with `needs_input_grad`, or with `requires_grad`"
    )


def test_a_rule_that_skips_what_is_not_needed_passes(backend):
    f = needing(lambda gradient, needs: gradient if needs[1] else None)
    assert_passed(check_gradients(f, V, V, **QUICK))
    # More arguments than are tried one by one.
    many = custom_gradient(lambda nest: (sum(nest), lambda upstream, needs_input_grad: [upstream] * 18))
    assert_passed(check_gradients(many, [V] * 18, **QUICK))


def test_a_rule_that_counts_its_calls(backend):
    calls = itertools.count()
    f = custom_gradient(lambda x: (x**2, lambda u: 2 * x * u * (1 + next(calls) / 100)))
    finding = first(check_gradients(f, WIDE, **QUICK))
    assert (finding.status, finding.diagnosis) == ("failed", EARLIER)
    told = re.fullmatch(
        r"the gradient changes when the rule is called again: x\[(\d)\] is (\S+), then (\S+); (.*)", finding.reason
    )
    place, came, then, asked = told.groups()
    u = arrays.random(np.random.default_rng(0), WIDE)
    assert asked == AGAIN and place == str(np.argmax(abs(WIDE * u)))
    assert float(then) > float(came) * 1.009 if float(came) > 0 else float(then) < float(came) * 1.009


def test_a_function_that_is_another_one_later(backend):
    calls = itertools.count()
    report = check_gradients(lambda x: x**2 + (1 if next(calls) > 40 else 0), WIDE, **QUICK)
    told = [each for each in report.findings if each.check == "value" and each.status == "undecided"]
    assert len(told) == 1 and told[0].reason.startswith(
        "the function gives other values after other calls: the output["
    )


@pytest.mark.parametrize("elements", [slice(None), slice(500, None)], ids=["all", "half"])
def test_a_large_argument(backend, elements):
    """Of 1000 elements 24 are looked at one by one, and all of them together."""
    x = np.linspace(0.5, 2, 1000, dtype=np.float32)
    factors = np.ones(1000)
    factors[elements] = 1.5
    finding = first(check_gradients(weighed(factors), x, **QUICK))
    assert finding.status == "failed" and finding.where.startswith("[")
    place = int(finding.where[1:-1])
    assert place in range(1000)[elements]
    expected = 2 * upstream_for(x)[place] * x[place]
    assert float(finding.expected) == pytest.approx(expected, rel=1e-5)
    assert float(finding.came) == pytest.approx(1.5 * expected, rel=1e-5)
    if elements == slice(None):
        assert finding.diagnosis == "a factor of 1.5"


def test_one_wrong_element_of_a_large_argument(backend):
    """Found along a random direction if it is not looked at; a small number is not lost beside a large one."""
    factors = np.ones(1000)
    factors[333] = 3.0
    finding = first(check_gradients(weighed(factors), np.linspace(0.5, 2, 1000, dtype=np.float32), **QUICK))
    assert finding.status == "failed" and finding.where in ("along a random direction", "[333]")
    wrong = derived(lambda x: x * x, lambda x: 2 * x * ops.where(x < 1e-3, 3 * ops.ones_like(x), ops.ones_like(x)))
    finding = first(check_gradients(wrong, np.array([1e-6, 1.0, 1e6]), **QUICK))
    assert (finding.status, finding.where) == ("failed", "[0]")
    assert float(finding.came) == pytest.approx(3 * float(finding.expected), rel=1e-4)


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
