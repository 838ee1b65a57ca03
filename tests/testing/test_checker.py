"""`keras_cg.testing`: planted faults that it must name, right rules that it must pass, and what it cannot tell.

Every expected number is a closed form of the upstream, which is the first thing that the checker draws.
"""

import dataclasses
import json
import re
import subprocess
import sys
import textwrap
from collections import namedtuple

import numpy as np
import pytest

import keras_cg
from keras_cg import config, custom_gradient, ops
from keras_cg.testing import Finding, Report, arrays, assert_gradients, check_gradients

X = np.array([[0.7, -1.2, 0.4], [1.1, 0.3, -0.8], [-0.5, 0.9, 1.4], [0.6, -0.2, 1.3]], np.float32)
Y = np.array([[1.3, 0.8, -0.6], [0.2, -1.1, 0.9], [0.5, 1.2, -0.7], [-1.4, 0.1, 0.3]], np.float32)
W = np.array([[0.5, -1.1, 0.2], [0.9, 0.4, -0.7], [-0.3, 0.8, 1.2]], np.float32)
V = np.array([0.7, -1.2, 0.4], np.float32)
Z = np.array([0.5 - 0.3j, -0.8 + 1.1j, 1.2 + 0.4j], np.complex64)

# A check that stops after the first order costs little.
QUICK = {"order": 1, "modes": ("reverse",), "compiled": False}

frozen = custom_gradient(lambda x: (x, lambda upstream: None))
doubled = custom_gradient(lambda x: (x, lambda upstream: 2 * upstream))


def transposed(x):
    return ops.swapaxes(x, 0, 1)


def upstream_for(output, seed=0):
    return arrays.random(np.random.default_rng(seed), arrays.wide(output))


def found(report, *statuses):
    """The diagnoses of what has one of these statuses, by check and argument."""
    return {(each.check, each.argument): each.diagnosis for each in report.findings if each.status in statuses}


def single(report, check):
    """The only finding of a check on the only backend."""
    (finding,) = report.cell(report.backends[0], check)
    return finding


def reason_of(finding):
    """The reason, without the line of a test that raised."""
    return re.sub(r"; at test_\w+\.py:\d+ in \w+: raise .*$", "", finding.reason or "") or None


def assert_passed(report, *skipped):
    assert report, report
    assert {each.check for each in report.findings if each.status == "skipped"} <= {*skipped}


# --- planted faults --------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Fault:
    """A function with a wrong rule, and what must be said of it.

    `wrong` and `right` give the gradients, one for each argument, for the arguments and an upstream, in NumPy; `said`
    has the diagnosis for each argument that is wrong. A rule that is not linear fails that check as well.
    """

    f: object
    args: tuple
    output: object
    wrong: object
    right: object
    said: dict
    linear: bool = True


FAULTS = {}


def fault(name, f, args, *, output, wrong, right, linear=True, **said):
    FAULTS[name] = Fault(custom_gradient(f), args, output, wrong, right, said, linear)


def square_fault(name, rule, wrong, said, **options):
    """A fault in the rule of x**2."""
    f = lambda x: (x**2, lambda upstream: rule(x, upstream))
    options = {"args": (X,), "right": lambda x, u: [2 * x * u], **options}
    fault(name, f, output=lambda x: x**2, wrong=lambda x, u: [wrong(x, u)], x=said, **options)


square_fault(
    "forgotten",
    lambda x, u: 2 * x,
    lambda x, u: 2 * x,
    "upstream forgotten: the rule returns the same gradient for every upstream",
    linear=False,
)
square_fault(
    "used twice",
    lambda x, u: 2 * x * u * u,
    lambda x, u: 2 * x * u * u,
    "upstream used twice: the gradient grows with the square of upstream",
    linear=False,
)
square_fault(
    "added",
    lambda x, u: 2 * x * u + 1,
    lambda x, u: 2 * x * u + 1,
    "a term does not depend on upstream: the rule returns a nonzero gradient for an upstream of zero",
    linear=False,
)
square_fault(
    "clipped",
    lambda x, u: 2 * x * ops.clip(u, -1, 1),
    lambda x, u: 2 * x * np.clip(u, -1, 1),
    "the rule clips or normalises upstream; if that is intended, declare it by `expected`",
    linear=False,
)
square_fault(
    "transposed gradient",
    lambda x, u: transposed(2 * x * u),
    lambda x, u: (2 * x * u).T,
    "a transposed gradient: rows and columns are exchanged",
    args=(W,),
)
square_fault(
    "no gradient",
    lambda x, u: None,
    lambda x, u: 0 * x,
    "no gradient for x: the rule returns zero or None instead of the derivative",
)

MISSING_MEAN = ": does the function take a mean that the rule leaves out?"
MEAN_TOO_MUCH = ": does the rule take a mean that the function does not?"
FACTORS = {
    2: "2",
    0.5: "1/2",
    -2: "-2",
    -0.5: "-1/2",
    1.25: "1.25",
    1.001: "1.001",
    -1: "-1: a wrong sign, or a gradient reversal that `expected` should declare",
    4: "4, which is the batch size" + MISSING_MEAN,
    0.25: "0.25, which is one over the batch size" + MEAN_TOO_MUCH,
    12: "12, which is the number of elements" + MISSING_MEAN,
    1 / 12: "0.0833333, which is one over the number of elements" + MEAN_TOO_MUCH,
}
for factor, said in FACTORS.items():
    scaled = lambda x, u, factor=factor: factor * 2 * x * u
    square_fault(f"factor {factor:.6g}", scaled, scaled, f"a factor of {said}")
square_fault(
    "factor 3 in a batch of 3",
    lambda x, u: 6 * x * u,
    lambda x, u: 6 * x * u,
    "a factor of 3, which is the batch size" + MISSING_MEAN,
    args=(X[:3],),
)

fault(
    "mean forgotten",
    lambda x: (ops.sum(x * x, axis=0) / 4, lambda upstream: 2 * upstream * x),
    (X,),
    output=lambda x: np.mean(x**2, 0),
    wrong=lambda x, u: [2 * u * x],
    right=lambda x, u: [2 * u * x / 4],
    x="a factor of 4, which is the batch size" + MISSING_MEAN,
)
fault(
    "swapped",
    lambda x, y: (x * y, lambda upstream: (upstream * x, upstream * y)),
    (V, V + 2),
    output=lambda x, y: x * y,
    wrong=lambda x, y, u: [u * x, u * y],
    right=lambda x, y, u: [u * y, u * x],
    x="the gradients of x and y are swapped",
    y="the gradients of y and x are swapped",
)
fault(
    "none for one",
    lambda x, y: (x * y, lambda upstream: (upstream * y, None)),
    (V, V + 2),
    output=lambda x, y: x * y,
    wrong=lambda x, y, u: [u * y, 0 * y],
    right=lambda x, y, u: [u * y, u * x],
    y="no gradient for y: the rule returns zero or None instead of the derivative",
)
fault(
    "zero for one",
    lambda x, y: (x * y, lambda upstream: (0, upstream * x)),
    (V, V + 2),
    output=lambda x, y: x * y,
    wrong=lambda x, y, u: [0 * x, u * x],
    right=lambda x, y, u: [u * y, u * x],
    x="no gradient for x: the rule returns zero or None instead of the derivative",
)
fault(
    "transposed Jacobian",
    lambda x, w: (x @ w, lambda upstream: (upstream @ w, transposed(x) @ upstream)),
    (X[:3], W),
    output=lambda x, w: x @ w,
    wrong=lambda x, w, u: [u @ w, x.T @ u],
    right=lambda x, w, u: [u @ w.T, x.T @ u],
    x="a transposed Jacobian: the rule multiplies upstream with the Jacobian itself, as forward mode would",
)
fault(
    "transposed Jacobian of a vector",
    lambda x: (ops.stack([x[1], x[2] * 3, x[0] * 2]), lambda u: ops.stack([u[1], u[2] * 3, u[0] * 2])),
    (V,),
    output=lambda x: np.stack([x[1], x[2] * 3, x[0] * 2]),
    wrong=lambda x, u: [np.stack([u[1], u[2] * 3, u[0] * 2])],
    right=lambda x, u: [np.stack([u[2] * 2, u[0], u[1] * 3])],
    x="a transposed Jacobian: the rule multiplies upstream with the Jacobian itself, as forward mode would",
)
CONJUGATE = "a missing conjugate: the gradient of a loss at x + iy is dL/dx + i dL/dy on every backend"
fault(
    "no conjugate",
    lambda z: (z * z, lambda upstream: upstream * 2 * z),
    (Z,),
    output=lambda z: z * z,
    wrong=lambda z, u: [u * 2 * z],
    right=lambda z, u: [u * np.conj(2 * z)],
    z=CONJUGATE,
)
fault(
    "conjugate of everything",
    lambda z: (z * z, lambda upstream: ops.conj(upstream) * 2 * z),
    (Z,),
    output=lambda z: z * z,
    wrong=lambda z, u: [np.conj(u) * 2 * z],
    right=lambda z, u: [u * np.conj(2 * z)],
    z=CONJUGATE,
)
fault(
    "straight-through",
    lambda x: (ops.floor(x + 0.5), lambda upstream: upstream),
    (V,),
    output=lambda x: np.floor(x + 0.5),
    wrong=lambda x, u: [u],
    right=lambda x, u: [0 * u],
    x="the function does not change with x here; if the gradient differs on purpose, such as that of a"
    " straight-through estimator, declare the right one by `expected`",
)


def parts(array):
    """Real numbers, the parts of a complex one after one another at the end."""
    return np.stack([array.real, array.imag], -1) if np.iscomplexobj(array) else array[..., None]


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_named(backend, name):
    planted = FAULTS[name]
    report = check_gradients(planted.f, *planted.args, **QUICK)
    kinds = ["first order"] if planted.linear else ["first order", "linearity"]
    assert report.status == "failed"
    assert found(report, "failed", "undecided") == {
        (check, argument): said for argument, said in planted.said.items() for check in kinds
    }
    points = [arrays.wide(each) for each in planted.args]
    u = upstream_for(planted.output(*points))
    gradients = zip(planted.wrong(*points, u), planted.right(*points, u), strict=True)
    for finding, (wrong, right) in zip(report.cell(backend, "first order"), gradients, strict=True):
        if finding.argument not in planted.said:
            assert finding.status == "passed" and finding.error < 1e-9 and finding.came is None
            continue
        came, expected = parts(wrong), parts(right)
        # More than one place where two numbers are equally wrong.
        off = abs(came - expected)
        places = {str(place[:-1].tolist()): tuple(place) for place in np.argwhere(off > (1 - 1e-9) * off.max())}
        place = places[finding.where]
        assert float(finding.came) == pytest.approx(came[place], rel=1e-5)
        assert float(finding.expected) == pytest.approx(expected[place], rel=1e-5, abs=1e-9)
        scale = abs(expected).max() or abs(came[place])
        assert finding.error == pytest.approx(abs(came - expected).max() / scale, rel=1e-4)
        assert finding.tolerance == 1e-6
        assert finding.reason is None


@pytest.mark.parametrize("name", FAULTS)
def test_right_rules_beside_them_pass(backend, name):
    """The same functions without a rule of their own, on the frameworks' plain differentiation."""
    planted = FAULTS[name]
    f = planted.f.__wrapped__
    assert_passed(check_gradients(lambda *args: f(*args)[0], *planted.args, **QUICK))


def test_not_linear_says_so(backend):
    finding = single(check_gradients(FAULTS["used twice"].f, X, **QUICK), "linearity")
    assert finding.reason == "the rule is not linear in upstream"
    assert "linearity: failed, at x" in str(finding) and "    got: " in str(finding)


@pytest.mark.parametrize(
    ("shape", "axes"), [((3,), "axis 0"), ((1, 3), "axis 0"), ((4, 1), "axis 1"), ((), "axes 0 and 1")], ids=str
)
def test_a_missing_sum_over_a_broadcast_axis(backend, shape, axes):
    @custom_gradient
    def scale(x, s):
        return x * s, lambda upstream: (upstream * s, upstream * x)

    report = check_gradients(scale, X, np.full(shape, 1.7, np.float32), **QUICK)
    finding = single(report, "first order")
    assert finding.status == "failed" and report.status == "failed"
    assert finding.diagnosis == f"s was broadcast, and a sum over {axes} is missing."
    assert re.fullmatch(
        r"GradientError: the rule of \S*scale returned a gradient of the wrong shape for s;"
        rf" got: \S*float32\[4, 3\]; expected: \S*float32{re.escape(str(list(shape)))};"
        r" remedy: sum over the broadcast axes or reshape; nothing is broadcast or summed for you",
        finding.reason,
    )
    for check in ("linearity", "memory"):
        assert single(report, check).status == "skipped"
        assert single(report, check).reason == "the function has no valid gradient"


# --- orders ----------------------------------------------------------------------------------------------------------

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
    assert single(report, "first order").status == "passed"
    finding = single(report, "second order")
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
    assert report.checks == (
        *("value", "first order", "second order", "third order", "fourth order"),
        *("linearity", "memory"),
    )


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
    finding = single(report, "forward mode")
    assert found(report, "failed") == {("forward mode", "x"): None}
    assert finding.where.startswith("number ") and finding.where.endswith(" of the output")
    assert float(finding.came) == pytest.approx(3 * float(finding.expected), rel=1e-5)


# --- rules wrong by 0.1 % --------------------------------------------------------------------------------------------

# For each function: it, its gradients, and the number of its arguments.
NEARLY = {
    "product": (lambda x, y: x * y, lambda x, y, u: [u * y, u * x], (V, V + 2)),
    "matmul": (lambda x, w: x @ w, lambda x, w, u: [u @ transposed(w), transposed(x) @ u], (X, W)),
    "exp": (lambda x: ops.exp(x), lambda x, u: [u * ops.exp(x)], (V,)),
    "sum of squares": (lambda x: ops.sum(x * x), lambda x, u: [2 * u * x], (X,)),
    "broadcast": (lambda x, s: x * s + s, lambda x, s, u: [u * s, ops.sum(u * (x + 1), axis=0)], (X, V)),
    "quotient of numbers": (lambda x, y: x / y, lambda x, y, u: [u / y, -u * x / y**2], (np.array(1.5), np.array(0.7))),
}


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float32") for name in NEARLY), ("product", "float64"), ("exp", "float64")]
)
def test_a_rule_wrong_by_a_thousandth(backend, name, dtype):
    function, gradients, args = NEARLY[name]
    args = [each.astype(dtype) for each in args]

    def with_factor(number, factor):
        def f(*args):
            def rule(upstream):
                found = gradients(*args, upstream)
                return [factor * each if index == number else each for index, each in enumerate(found)]

            return function(*args), rule

        return custom_gradient(f)

    assert_passed(check_gradients(with_factor(0, 1), *args, **QUICK))
    for number, factor in zip(range(len(args)), (1.001, 0.999), strict=False):
        said = f"a factor of {factor}"
        report = check_gradients(with_factor(number, factor), *args, **QUICK)
        assert list(found(report, "failed", "undecided").values()) == [said]
        assert report.cell(backend, "first order")[number].diagnosis == said


def test_a_thousandth_in_single_precision(backend):
    """A function that has no double precision is checked in its own, to three digits."""
    for factor in (1, 1.001):

        def f(x, factor=factor):
            active = config.active
            narrow, kept = active.cast(x, "float32"), active.dtype(x)
            return ops.exp(narrow), lambda upstream: active.cast(factor * upstream * ops.exp(narrow), kept)

        report = check_gradients(custom_gradient(f), V, **QUICK)
        finding = single(report, "first order")
        assert finding.tolerance == 5e-4
        assert (finding.status, finding.diagnosis) == (
            ("passed", None) if factor == 1 else ("failed", "a factor of 1.001")
        )


# --- right in double precision alone ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@pytest.mark.parametrize(
    "rule",
    [lambda x, u: 2 * u * ops.exp(200 * x) / ops.exp(200 * x), lambda x, u: 2 * u * ((1 + 1e7 * x) - 1e7 * x)],
    ids=["overflow", "cancellation"],
)
def test_wrong_in_single_precision_alone(backend, rule):
    f = custom_gradient(lambda x: (2 * x, lambda upstream: rule(x, upstream)))
    x = np.array([0.7, 1.2, 2.1], np.float32)
    said = "right in double precision, wrong in float32: it overflows, or subtracts nearly equal numbers"
    report = check_gradients(f, x, **QUICK)
    assert found(report, "failed", "undecided") == {("first order", "x"): said}
    assert single(report, "first order").tolerance == 1e-2
    assert_passed(check_gradients(f, x.astype(np.float64), **QUICK))


# --- rules that are meant to differ ----------------------------------------------------------------------------------


def test_clipping_declared(backend):
    clipped = custom_gradient(lambda x: (x * 1, lambda upstream: ops.clip(upstream, -0.5, 0.5)))
    report = check_gradients(
        clipped, V, expected=lambda x, upstream: ops.clip(upstream, -0.5, 0.5), order=1, compiled=False
    )
    assert_passed(report, "forward mode")
    assert single(report, "linearity").reason == "not linear in upstream, as declared"
    forward = single(report, "forward mode")
    assert forward.status == "skipped"
    assert forward.reason == "the rule is not linear in upstream, so it has no transpose"


def test_clipping_declared_otherwise(backend):
    clipped = custom_gradient(lambda x: (x * 1, lambda upstream: ops.clip(upstream, -0.5, 0.5)))
    report = check_gradients(clipped, V, expected=lambda x, upstream: ops.clip(upstream, -1, 1), **QUICK)
    assert report.status == "failed"
    assert {check for check, _ in found(report, "failed")} == {"first order", "linearity"}


def test_straight_through_declared(backend):
    rounded = custom_gradient(lambda x: (ops.floor(x + 0.5), lambda upstream: upstream))
    assert_passed(check_gradients(rounded, V, expected=lambda x: x, compiled=False))
    assert_passed(check_gradients(rounded, V, expected=lambda x, upstream: upstream, compiled=False))
    report = check_gradients(rounded, V, expected=lambda x: 2 * x, **QUICK)
    assert found(report, "failed", "undecided") == {("first order", "x"): "a factor of 1/2"}


def test_reversal(backend):
    reverse = custom_gradient(lambda x: (x * 1, lambda upstream: -upstream))
    for expected in (lambda x: -x, lambda x, upstream: -upstream, lambda upstream: -upstream):
        assert_passed(check_gradients(reverse, V, expected=expected, **QUICK))
    report = check_gradients(reverse, V, expected=lambda x: x, **QUICK)
    assert found(report, "failed") == {("first order", "x"): "a factor of -1: a wrong sign"}


# --- what cannot be decided ------------------------------------------------------------------------------------------


def test_a_kink(backend):
    relu = custom_gradient(
        lambda x: (ops.where(x > 0, x, 0 * x), lambda upstream: ops.where(x > 0, upstream, 0 * upstream))
    )
    x = np.array([-1.0, 0.0, 2.0], np.float32)
    report = check_gradients(relu, x, **QUICK)
    finding = single(report, "first order")
    assert report.status == "undecided" and not report
    assert finding.status == "undecided" and finding.where == "[1]"
    told = re.fullmatch(
        r"the function has no derivative there: it has a kink, with the slope (\S+) on the left and (\S+) on the"
        r" right\. The rule returns 0",
        finding.reason,
    )
    assert [float(each) for each in told.groups()] == pytest.approx([0, upstream_for(x)[1]], abs=5e-3)
    assert finding.diagnosis == "a kink at the test point: choose another one"
    assert_passed(check_gradients(relu, x + 0.5, **QUICK))


def test_a_kink_does_not_hide_a_fault(backend):
    wrong = custom_gradient(
        lambda x: (ops.where(x > 0, x, 0 * x), lambda upstream: ops.where(x > 0, 2 * upstream, 0 * upstream))
    )
    finding = single(check_gradients(wrong, np.array([-1.0, 0.0, 2.0], np.float32), **QUICK), "first order")
    assert (finding.status, finding.where) == ("failed", "[2]")


def test_a_kink_of_the_gradient(backend):
    # x |x| / 2, whose gradient |x| is right, and has a kink.
    size = custom_gradient(
        lambda x: (ops.abs(x), lambda upstream: upstream * (2 * config.active.cast(x > 0, config.active.dtype(x)) - 1))
    )
    f = custom_gradient(lambda x: (x * ops.abs(x) / 2, lambda upstream: upstream * size(x)))
    report = check_gradients(f, np.array([0.0, 1.0], np.float32), modes=("reverse",), compiled=False)
    assert single(report, "first order").status == "passed"
    finding = single(report, "second order")
    assert finding.status == "undecided" and finding.where == "[0]"
    assert finding.reason.startswith("the gradient has no derivative there: it has a kink, with the slope ")


def test_a_jump(backend):
    step = custom_gradient(lambda x: (ops.floor(x), lambda upstream: 0 * upstream))
    x = np.array([0.5, 1.0], np.float32)
    finding = single(check_gradients(step, x, **QUICK), "first order")
    assert finding.status == "undecided" and finding.where == "[1]"
    assert finding.reason.startswith("the function has no derivative there: it jumps, from ")
    assert finding.reason.endswith("The rule returns 0")


@pytest.mark.filterwarnings("ignore:(divide by zero|invalid value) encountered:RuntimeWarning")
def test_nothing_on_one_side(backend):
    root = custom_gradient(lambda x: (ops.sqrt(x), lambda upstream: 0 * upstream))
    finding = single(check_gradients(root, np.array([0.0, 1.0]), **QUICK), "first order")
    assert (finding.status, finding.where, finding.diagnosis) == (
        "failed",
        "[1]",
        "no gradient for x: the rule returns zero or None instead of the derivative",
    )
    finding = single(check_gradients(root, np.array([0.0]), **QUICK), "first order")
    assert finding.status == "undecided"
    assert finding.reason == (
        "the function has no derivative there: it is not finite on both sides. The rule returns 0"
    )


@pytest.mark.parametrize("number", [np.nan, np.inf], ids=str)
def test_no_finite_value(backend, number):
    f = custom_gradient(lambda x: (x * number, lambda upstream: upstream))
    report = check_gradients(f, V, **QUICK)
    finding = single(report, "value")
    assert finding.status == report.status == "undecided"
    assert finding.reason == "the function itself returns NaN or infinity at this point"
    for check in ("first order", "linearity", "memory"):
        assert single(report, check).status == "skipped"
        assert single(report, check).reason == "the function has no valid value"
    assert report.evidence == {backend: {}}


def test_other_values_every_time(backend):
    numbers = iter(range(1000))
    f = custom_gradient(lambda x: (x * (1 + next(numbers)), lambda upstream: upstream))
    finding = single(check_gradients(f, V, **QUICK), "value")
    assert finding.status == "undecided"
    told = re.fullmatch(
        r"the output changes when the function is called again: the output\[1\] is (\S+), then (\S+);"
        r" does it draw random numbers, or store something from an earlier call\?",
        finding.reason,
    )
    assert [float(each) for each in told.groups()] == pytest.approx([V[1], 2 * V[1]], rel=1e-5)


def test_no_floating_output(backend):
    finding = single(check_gradients(lambda x: "text", V, **QUICK), "value")
    assert (finding.status, finding.reason) == ("failed", "the function returns no floating tensor")


def test_a_function_that_raises(backend):
    def f(x):
        raise ZeroDivisionError("no such number.\nand so on")

    finding = single(check_gradients(custom_gradient(f), V, **QUICK), "value")
    assert (finding.status, reason_of(finding)) == ("failed", "ZeroDivisionError: no such number")


def test_an_exception_without_words(backend):
    def f(x):
        raise KeyError

    assert reason_of(single(check_gradients(f, V, **QUICK), "value")) == "KeyError: no message"


def test_a_rule_that_raises(backend):
    def rule(upstream):
        raise ZeroDivisionError("no such number")

    report = check_gradients(custom_gradient(lambda x: (x * 1, rule)), V, **QUICK)
    finding = single(report, "first order")
    line = rule.__code__.co_firstlineno + 1
    place = f'at test_checker.py:{line} in rule: raise ZeroDivisionError("no such number")'
    assert (finding.status, finding.reason) == ("failed", f"ZeroDivisionError: no such number; {place}")


def test_a_rule_of_no_convention(backend):
    @custom_gradient
    def f(x):
        return x * 1, lambda a, b, c: a

    finding = single(check_gradients(f, V, **QUICK), "first order")
    assert finding.status == "failed"
    assert finding.reason.startswith(
        "TypeError: test_a_rule_of_no_convention.<locals>.f: no calling convention fits the signature of its rule; got:"
    )


def test_no_pair(backend):
    finding = single(check_gradients(custom_gradient(plain), V, **QUICK), "value")
    assert finding.reason.startswith("TypeError: plain must return a pair (output, grad); got: ")
    assert finding.diagnosis == "`return output` without the rule, or several outputs that are not in a tuple."


@pytest.mark.only("tensorflow")
def test_what_tensorflow_raises_anew(backend):
    import tensorflow as tf

    @custom_gradient
    def inner(x):
        return 2 * x, lambda upstream: upstream[:2]

    @tf.function
    def rule(upstream):
        with tf.GradientTape() as tape:
            tape.watch(upstream)
            y = inner(upstream)
        return tape.gradient(y, upstream)

    finding = single(check_gradients(custom_gradient(lambda x: (x * 1, rule)), V, **QUICK), "first order")
    assert "inner returned a gradient of the wrong shape for x; got: float" in finding.reason
    assert "; expected: float" in finding.reason
    assert finding.diagnosis == "a gradient that was summed or cut, or gradients in the wrong order."


def test_what_somebody_raises_who_caught_ours(backend):
    def f(x):
        try:
            custom_gradient(plain)(x)
        except TypeError:
            raise KeyError("no table") from None
        return x * 1, lambda upstream: upstream

    finding = single(check_gradients(custom_gradient(f), V, **QUICK), "value")
    assert (reason_of(finding), finding.diagnosis) == ("KeyError: 'no table'", None)


# --- compiled and memory ---------------------------------------------------------------------------------------------


def test_compiled(backend):
    f = custom_gradient(lambda x: (x**2, lambda upstream: 2 * upstream * x))
    report = check_gradients(f, V, order=1, modes=("reverse",))
    assert_passed(report, "compiled", "export")
    finding = single(report, "compiled")
    if backend == "numpy":
        assert (finding.status, finding.reason) == ("skipped", "numpy has no compiler")
        assert single(report, "export").reason == "numpy has nothing to export to"
    else:
        assert (finding.status, finding.argument) == ("passed", "x")


def test_what_does_not_compile_is_undecided(backend):
    def f(x):
        factor = 2 if bool(ops.sum(x) > 0) else 3
        return factor * x, lambda upstream: factor * upstream

    report = check_gradients(custom_gradient(f), V, order=1, modes=("reverse",))
    for check, told in {"compiled": "it does not compile: ", "export": "it cannot be exported: "}.items():
        finding = single(report, check)
        if backend == "numpy":
            assert finding.status == "skipped"
        else:
            assert finding.status == "undecided"
            assert finding.reason.startswith(told)


COMPILED = [
    (lambda x, n: ((1 + n) * x, lambda upstream: (1 + n) * upstream), "the compiled output differs from the eager one"),
    (lambda x, n: (x * 1, lambda upstream: (1 + n) * upstream), "the compiled gradient differs from the eager one"),
]


@pytest.mark.parametrize(("f", "reason"), COMPILED, ids=["output", "gradient"])
def test_another_program(backend, f, reason):
    def is_compiling(x):
        if backend == "jax":
            import jax

            try:
                float(ops.sum(x))
            except jax.errors.ConcretizationTypeError:
                return True
        if backend == "torch":
            import torch

            return torch.compiler.is_compiling()
        if backend == "tensorflow":
            import tensorflow as tf

            return not tf.executing_eagerly()
        return False

    report = check_gradients(custom_gradient(lambda x: f(x, int(is_compiling(x)))), V, order=1, modes=("reverse",))
    finding = single(report, "compiled")
    if backend == "numpy":
        assert finding.status == "skipped"
        return
    assert (finding.status, finding.reason) == ("failed", reason)
    finding = single(report, "export")
    if "output" in reason:
        assert (finding.status, finding.reason) == ("failed", "the exported output differs from the function's")
    elif backend == "torch":
        assert (finding.status, finding.gradient) == ("passed", "absent")
    else:
        assert finding.status == "failed"
        assert finding.reason == "the gradient of the exported program differs from the function's"


def seven(x):
    return x * 1, lambda upstream: 7 * upstream


# What becomes of a gradient, by the framework.
GRADIENTS = {"jax": "carried", "numpy": None, "tensorflow": "carried", "torch": "absent"}


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_export(backend, dtype):
    report = check_gradients(
        custom_gradient(seven), V.astype(dtype), order=1, modes=("reverse",), expected=lambda x: 7 * x
    )
    assert_passed(report, "compiled", "export")
    finding = single(report, "export")
    assert finding.gradient == GRADIENTS[backend]
    assert Report.from_dict(json.loads(json.dumps(report.to_dict()))) == report


def refusing(x):
    def rule(upstream):
        raise NotImplementedError("no gradient here")

    return x * 1, rule


def raising(x):
    raise ValueError("not today.")


def unserved(x):
    raise NotImplementedError("not in any release")


ANOTHER = "the gradient of the exported program differs from the function's"
# What a program is in the place of one that was exported, whether the function is decorated, and what is found.
PROGRAMS = {
    "carried": (custom_gradient(seven), True, ("passed", "carried", None)),
    "refused": (custom_gradient(refusing), True, ("passed", "refused", None)),
    "absent": (lambda x: config.active.stop_gradient(x) * 1, True, ("passed", "absent", None)),
    "plain": (lambda x: x * 1, True, ("failed", None, ANOTHER)),
    "in part": (lambda x: x * 1, False, ("passed", "in part", None)),
    "output": (lambda x: x * 2, True, ("failed", None, "the exported output differs from the function's")),
    "not exported": (raising, True, ("undecided", None, "it cannot be exported: ValueError: not today")),
    "never exported": (
        unserved,
        True,
        ("skipped", None, "it cannot be exported: NotImplementedError: not in any release"),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_becomes_of_an_export(backend, name, monkeypatch):
    program, is_decorated, expected = PROGRAMS[name]
    monkeypatch.setattr(config.active, "exported", lambda fun, tensors: lambda *tensors: (program(*tensors),))
    f = custom_gradient(seven) if is_decorated else lambda x: custom_gradient(seven)(x)
    report = check_gradients(f, V, order=1, modes=("reverse",), expected=lambda x: 7 * x)
    finding = single(report, "export")
    assert (finding.status, finding.gradient, reason_of(finding)) == expected
    if name == "plain":
        u = upstream_for(V).tolist()
        place = int(finding.where[1:-1])
        assert finding.argument == "x"
        assert float(finding.came) == pytest.approx(u[place], rel=1e-5)
        assert float(finding.expected) == pytest.approx(7 * u[place], rel=1e-5)


def test_an_argument_that_is_kept(backend):
    kept = []

    def f(x):
        kept.append(x)
        return x * 2, lambda upstream: 2 * upstream

    finding = single(check_gradients(custom_gradient(f), V, **QUICK), "memory")
    assert finding.status == "failed"
    assert finding.reason == "an argument is still alive after the call; does the function store its tensors?"


def test_a_reference_cycle(backend):
    def f(x):
        cycle = [x]
        cycle.append(cycle)
        return x * 2, lambda upstream: 2 * upstream

    finding = single(check_gradients(custom_gradient(f), V, **QUICK), "memory")
    assert finding.status == "failed"
    assert finding.reason == "an argument is freed by the garbage collector only; is there a reference cycle?"


# --- arguments of every kind -----------------------------------------------------------------------------------------

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

    report = check_gradients(
        f,
        V,
        {"w": V + 1, "b": V + 2},
        Pair(V + 3, V + 4),
        kwargs={"scale": V + 5},
        **QUICK,
    )
    assert [each.argument for each in report.cell(backend, "first order")] == [
        *("x", "params['b']", "params['w']", "pair.left", "pair.right", "scale")
    ]
    assert found(report, "failed") == {
        ("first order", "params['w']"): "a factor of 3, which is the batch size" + MISSING_MEAN,
        ("first order", "pair.right"): "a factor of 2",
        (
            "first order",
            "scale",
        ): "no gradient for scale: the rule returns zero or None instead of the derivative",
    }
    assert f"first order: failed, at params['w']{report.cell(backend, 'first order')[2].where}" in str(report)


def test_static_and_integer_arguments(backend):
    @custom_gradient
    def f(x, n, rows, kind="power", *, scale, mask):
        assert (n, kind, scale) == (3, "power", 2.0)
        assert config.active.dtype(rows).startswith("int") and config.active.dtype(mask) == "bool"
        return scale * x**n, lambda upstream: (upstream * scale * n * x ** (n - 1), None, None, None, None, None)

    report = check_gradients(f, V, 3, np.arange(3), kwargs={"scale": 2.0, "mask": V > 0}, order=2, compiled=False)
    assert_passed(report)
    assert {each.argument for each in report.findings} == {None, "x"}


@pytest.mark.parametrize("made", ["method", "callable object", "partial", "plain", "composite"])
def test_functions_of_every_kind(backend, made):
    import functools

    class Layer:
        scale = 2.0

        @custom_gradient
        def call(self, x):
            return self.scale * x * x, lambda upstream: 3 * self.scale * upstream * x

        def __call__(self, x):
            return self.call(x)

    f = {
        "method": Layer().call,
        "callable object": Layer(),
        "partial": functools.partial(lambda layer, x: layer.call(x), Layer()),
        "plain": lambda x: 2 * x * x,
        "composite": lambda x: ops.exp(Layer().call(x)) + x,
    }[made]
    report = check_gradients(f, V, **QUICK)
    said = {"plain": set(), "composite": {None}}.get(made, {"a factor of 1.5"})
    assert set(found(report, "failed", "undecided").values()) == said
    assert report.status == ("failed" if said else "passed")


def test_tensors_of_the_framework(eager):
    f = custom_gradient(lambda x, y: (x * y, lambda upstream: (upstream * y, 2 * upstream * x)))
    report = check_gradients(f, eager.tensor(V), eager.tensor(V + 2), **QUICK)
    assert found(report, "failed") == {("first order", "y"): "a factor of 2"}


@pytest.mark.parametrize("elements", [slice(None), slice(500, None)], ids=["all", "half"])
def test_a_large_argument(backend, elements):
    """Of 1000 elements 24 are looked at one by one, and all of them together."""
    x = np.linspace(0.5, 2, 1000, dtype=np.float32)
    factors = np.ones(1000)
    factors[elements] = 1.5
    f = custom_gradient(
        lambda x: (x**2, lambda u: 2 * u * x * config.active.cast(ops.asarray(factors), config.active.dtype(x)))
    )
    finding = single(check_gradients(f, x, **QUICK), "first order")
    assert finding.status == "failed" and finding.where.startswith("[")
    place = int(finding.where[1:-1])
    assert place in range(1000)[elements]
    expected = 2 * upstream_for(x)[place] * x[place]
    assert float(finding.expected) == pytest.approx(expected, rel=1e-5)
    assert float(finding.came) == pytest.approx(1.5 * expected, rel=1e-5)
    if elements == slice(None):
        assert finding.diagnosis == "a factor of 1.5"


def test_one_wrong_element_of_a_large_argument(backend):
    """Found along a random direction, if it is not among those looked at."""
    x = np.linspace(0.5, 2, 1000, dtype=np.float32)
    factors = np.ones(1000)
    factors[333] = 3.0
    f = custom_gradient(
        lambda x: (x**2, lambda u: 2 * u * x * config.active.cast(ops.asarray(factors), config.active.dtype(x)))
    )
    finding = single(check_gradients(f, x, **QUICK), "first order")
    assert finding.status == "failed"
    assert finding.where in ("along a random direction", "[333]")


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (1, 1), (2, 1, 3)], ids=str)
def test_shapes(backend, shape):
    x = np.linspace(0.5, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    for factor, status in ((1, "passed" if x.size else "undecided"), (5, "failed" if x.size else "undecided")):
        f = custom_gradient(lambda x, factor=factor: (x**2, lambda u: factor * 2 * u * x))
        report = check_gradients(f, x, compiled=False)
        assert report.status == status
        if status == "failed":
            assert single(report, "first order").diagnosis == "a factor of 5"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "complex64", "complex128"])
def test_dtypes(backend, dtype):
    x = V.astype(dtype) * (1 + 0.5j if dtype.startswith("complex") else 1)
    x = x.astype(dtype)
    conj = ops.conj if dtype.startswith("complex") else lambda x: x
    for factor in (1, 1.25):
        f = custom_gradient(lambda x, factor=factor: (x * x, lambda u: factor * 2 * u * conj(x)))
        report = check_gradients(f, x, compiled=False)
        finding = single(report, "first order")
        assert finding.tolerance == 1e-6
        if factor == 1:
            assert_passed(report)
        else:
            assert finding.diagnosis == "a factor of 1.25"


@pytest.mark.only("jax", "torch", "tensorflow")
def test_bfloat16(backend):
    active = config.active
    x = active.cast(active.asarray(V), "bfloat16")
    for factor in (1, 1.25):
        f = custom_gradient(lambda x, factor=factor: (x * x, lambda u: factor * 2 * u * x))
        report = check_gradients(f, x, compiled=False)
        if factor == 1:
            assert_passed(report)
        else:
            assert single(report, "first order").diagnosis == "a factor of 1.25"


# --- reports ---------------------------------------------------------------------------------------------------------


@custom_gradient
def half(x):
    return x**2, lambda upstream: upstream * x


def plain(x):
    return x * 2


def numbers(report):
    return [(each.came, each.expected, each.error) for each in report.findings]


def test_seed(backend):
    first, again, other = (check_gradients(half, X, seed=seed, compiled=False) for seed in (3, 3, 4))
    assert first == again and numbers(first) == numbers(again)
    assert numbers(first) != numbers(other) and [each.status for each in first.findings] == [
        each.status for each in other.findings
    ]


def test_findings_as_they_come(backend):
    told = []
    report = check_gradients(half, X, compiled=False, on_finding=told.append)
    assert tuple(told) == report.findings
    assert report.checks == ("value", "first order", "second order", "linearity", "forward mode", "memory")
    assert {each.backend for each in told} == {backend} == {*report.backends}


def test_evidence(backend):
    report = check_gradients(lambda x, y: (x * y, x + y), V, V + 2, **QUICK)
    evidence = report.evidence[backend]
    assert list(evidence) == ["epsilon", "output", "gradient of x", "gradient of y"]
    np.testing.assert_allclose(evidence["epsilon"], [2.0**-52])
    x, y = arrays.wide(V), arrays.wide(V + 2)
    np.testing.assert_allclose(evidence["output"], [x * y, x + y])
    generator = np.random.default_rng(0)
    u, v = arrays.random(generator, x), arrays.random(generator, x)
    np.testing.assert_allclose(evidence["gradient of x"], [u * y + v])
    np.testing.assert_allclose(evidence["gradient of y"], [u * x + v])


def test_report_as_plain_data(backend):
    report = check_gradients(half, X, compiled=False)
    data = json.loads(json.dumps(report.to_dict()))
    assert (data["function"], data["status"]) == ("half", "failed")
    again = Report.from_dict(data)
    assert again == report and str(again) == str(report) and again.evidence == {}
    assert not again and again.status == "failed"
    assert again.cell(backend, "value") == (Finding(backend, "value", "passed"),)
    assert again.cell(backend, "nothing") == again.cell("nothing", "value") == ()


def test_a_report_word_by_word():
    point = np.array([1.0, 2.0, 1.5])
    with keras_cg.use_backend("numpy"):
        report = check_gradients(half, point, order=1)
    u = upstream_for(point)
    place = int(np.argmax(abs(u * point)))
    came = u[place] * point[place]
    forward = single(report, "forward mode")
    assert str(report) == textwrap.dedent(f"""\
        gradients of half: failed
          numpy: failed
            first order: failed, at x[{place}]
                got: {came:.6g}
                expected: {2 * came:.6g}
                error: 5.0e-01 of the largest number, allowed 1e-06
                diagnosis: a factor of 1/2
            forward mode: failed, at x
                {forward.where}
                got: {forward.came}
                expected: {forward.expected}
                error: 5.0e-01 of the largest number, allowed 1e-06""")


def test_status_of_a_report():
    def report(*statuses):
        return Report("f", tuple(Finding("numpy", "value", status) for status in statuses))

    for statuses, status in {
        ("passed", "failed", "undecided", "skipped"): "failed",
        ("passed", "undecided", "skipped"): "undecided",
        ("skipped", "passed"): "passed",
        ("skipped",): "skipped",
        (): "skipped",
    }.items():
        assert report(*statuses).status == status
        assert bool(report(*statuses)) is (status == "passed")


def test_assert_gradients(backend):
    with pytest.raises(AssertionError) as caught:
        assert_gradients(half, X, **QUICK)
    assert str(caught.value) == str(check_gradients(half, X, **QUICK))
    report = assert_gradients(plain, X, **QUICK)
    assert report == check_gradients(plain, X, **QUICK)
    assert str(report) == f"gradients of plain: passed\n  {backend}: passed"


def test_assert_gradients_is_not_content_with_undecided(backend):
    with pytest.raises(AssertionError, match="value: undecided, the function itself returns NaN or infinity"):
        assert_gradients(lambda x: x * np.nan, V, **QUICK)


# --- usage -----------------------------------------------------------------------------------------------------------


def message(error, f, *args, **options):
    with pytest.raises(error) as caught:
        check_gradients(f, *args, **options)
    return str(caught.value)


@pytest.mark.parametrize("args", [(), (2.0,), (np.arange(3),), ("text", None, np.array([True]))], ids=str)
def test_nothing_to_check(backend, args):
    text = message(ValueError, plain, *args)
    assert text == (
        "check_gradients(plain): none of the arguments is an array of floating or complex numbers."
        " Python's own numbers are static, as in a call of the function: write numpy.asarray(2.0) for 2.0."
    )


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("kind", ["RaggedTensor", "SparseTensor"])
def test_not_dense(backend, kind):
    import tensorflow as tf

    value = tf.ragged.constant([[1.0], [2.0, 3.0]]) if kind == "RaggedTensor" else tf.sparse.eye(3)
    text = message(TypeError, plain, {"w": value})
    assert text.startswith("check_gradients(plain): x['w'] is a tensorflow.python.")
    assert f".{kind}, which has no values for NumPy." in text
    assert text.endswith(
        "Pass a dense tensor, or check a function that builds the sparse or ragged one from a dense one."
    )


@pytest.mark.parametrize(
    ("option", "value", "choices"),
    [
        *(("order", value, "a number from 1 to 4") for value in (0, 5, "2", None, 1.5)),
        *(
            ("modes", value, 'a sequence of "reverse", "forward" or both')
            for value in ("reverse", (), ("backward",), ("reverse", "sideways"))
        ),
        *(("expected", value, "a function or a rule") for value in (3, np.ones(3))),
    ],
    ids=str,
)
def test_bad_options(option, value, choices):
    with keras_cg.use_backend("numpy"):
        text = message(ValueError, half, V, **{option: value})
    assert text == f"check_gradients(half): {option}={value!r} is not {choices}."


def test_wrong_expected(backend):
    text = message(ValueError, half, V, expected=lambda x: ops.sum(x))
    assert text.splitlines() == [
        "check_gradients(half): the outputs of `expected` and of the function have different shapes.",
        "    got: [()]",
        "    expected: [(3,)]",
        "    remedy: pass as `expected` a function with the same arguments and an output of the same shape, whose"
        " derivative the rule should be; or a rule, with a parameter called `upstream`.",
    ]


def test_not_callable():
    with keras_cg.use_backend("numpy"):
        assert "got an int" in message(TypeError, 3, V)


def test_unknown_backend():
    assert "unknown backend 'pytorch'" in message(ValueError, half, V, backends=("pytorch",))


def run(code):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# Stands in for an environment without some package.
ABSENT = """
    import importlib.abc, sys
    class Absent(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == {name!r}:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
    sys.meta_path.insert(0, Absent())
"""


def test_a_backend_that_is_not_installed():
    text = run(
        ABSENT.format(name="jax")
        + """
    import numpy
    from keras_cg.testing import check_gradients
    try:
        check_gradients(lambda x: x, numpy.ones(3), backends=("jax",))
    except ImportError as error:
        print(error)
    """
    )
    assert "the backend 'jax'" in text and "needs 'jax', which is not installed." in text
    assert 'remedy: pip install "keras-cg[jax]"' in text


def test_without_scipy():
    text = run(
        ABSENT.format(name="scipy")
        + """
    import keras_cg
    try:
        import keras_cg.testing
    except ImportError as error:
        print(error)
    """
    )
    assert text.splitlines() == [
        "keras_cg.testing needs SciPy 1.15 or later, for finite differences.",
        '    remedy: pip install "keras-cg[testing]".',
    ]


LAZY = """
    import sys
    {extra}
    import keras_cg.testing
    print(",".join(name for name in ("jax", "torch", "tensorflow", "keras", "autograd") if name in sys.modules))
"""


def test_importing_loads_no_framework():
    assert run(LAZY.format(extra="")) == ""


def test_the_test_above_can_fail():
    assert run(LAZY.format(extra="import autograd")) == "autograd"


# --- found by hostile readers ----------------------------------------------------------------------------------------


def derived(f, slope):
    return custom_gradient(lambda x: (f(x), lambda upstream: upstream * slope(x)))


RIGHT = {
    "steep sine": (derived(lambda x: ops.sin(1000 * x), lambda x: 1000 * ops.cos(1000 * x)), [0.13, -0.13, 0.64]),
    "steep step": (
        derived(lambda x: ops.tanh(1000 * x), lambda x: 1000 * (1 - ops.tanh(1000 * x) ** 2)),
        [1e-4, -1e-4, 6e-4],
    ),
    "logarithm near zero": (derived(lambda x: ops.log(x), lambda x: 1 / x), [1e-12, 1e-4, 1.0]),
    "root near zero": (derived(lambda x: ops.sqrt(x), lambda x: 0.5 / ops.sqrt(x)), [1e-8, 1.0]),
    "beside a kink": (derived(lambda x: ops.abs(x), lambda x: ops.sign(x)), [1e-6, -1e-6, 1.0]),
    "staircase": (derived(lambda x: ops.floor(1000 * x) / 1000, lambda x: 0 * x), [0.12573, -0.1321, 0.64042]),
    "large and small": (derived(lambda x: x * x, lambda x: 2 * x), [1e-6, 1.0, 1e6]),
    "many kinks": (derived(lambda x: ops.abs(x), lambda x: ops.sign(x)), np.random.default_rng(0).normal(size=5000)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_no_false_alarm(backend, name):
    f, x = RIGHT[name]
    report = check_gradients(f, np.asarray(x), compiled=False)
    assert report, report


def test_a_kink_is_noticed_where_the_rule_gives_the_mean_of_both_sides(backend):
    report = check_gradients(derived(lambda x: ops.abs(x), lambda x: ops.sign(x)), np.array([0.0, 1.0]), **QUICK)
    finding = single(report, "first order")
    assert (finding.status, finding.where) == ("undecided", "[0]")
    assert "it has a kink, with the slope" in finding.reason


def test_a_small_number_is_not_lost_beside_a_large_one(backend):
    wrong = derived(lambda x: x * x, lambda x: 2 * x * ops.where(x < 1e-3, 3 * ops.ones_like(x), ops.ones_like(x)))
    finding = single(check_gradients(wrong, np.array([1e-6, 1.0, 1e6]), **QUICK), "first order")
    assert (finding.status, finding.where) == ("failed", "[0]")
    assert float(finding.came) == pytest.approx(3 * float(finding.expected), rel=1e-4)


@pytest.mark.only("numpy")
def test_an_argument_that_is_changed_in_place(backend):
    def f(given):
        given *= 2
        return given * 1.0, lambda upstream: 2 * upstream

    finding = single(check_gradients(custom_gradient(f), V, **QUICK), "value")
    assert (finding.status, finding.argument) == ("failed", "given")
    assert finding.reason == "the function changes given in place; change a copy instead"


def test_a_rule_that_gives_no_number(backend):
    report = check_gradients(derived(lambda x: x * x, lambda x: 2 * x * float("nan")), V, **QUICK)
    finding = single(report, "first order")
    assert (finding.status, finding.argument, finding.where) == ("failed", "x", "[0]")
    assert finding.reason == "the rule returns NaN or infinity where the function is finite"
    assert single(report, "linearity").status == "skipped"


square = derived(lambda x: x * x, lambda x: 2 * x)


def test_a_rule_that_clips_far_away(backend):
    clips = custom_gradient(lambda x: (x * x, lambda upstream: 2 * x * ops.clip(upstream, -1000, 1000)))
    assert single(check_gradients(clips, V, **QUICK), "linearity").status == "failed"


@pytest.mark.parametrize(
    ("expected", "status", "reason"),
    [
        (lambda x, y: x, "failed", "`expected` raised TypeError: "),
        (lambda x, upstream: ops.sum(upstream), "failed", "`expected` raised GradientError: "),
        (lambda x, upstream: upstream * float("nan"), "undecided", "`expected` returns NaN or infinity at this point"),
    ],
)
def test_what_is_wrong_with_expected_is_not_blamed_on_the_rule(backend, expected, status, reason):
    finding = single(check_gradients(square, V, expected=expected, **QUICK), "first order")
    assert finding.status == status and finding.reason.startswith(reason)


def test_a_higher_order_is_not_explained_by_a_lower_one_that_failed(backend):
    half = derived(lambda x: x * x, lambda x: x)
    report = check_gradients(half, V, expected=lambda x: x * x, compiled=False)
    assert single(report, "first order").diagnosis == "a factor of 1/2"
    assert (single(report, "second order").status, single(report, "second order").diagnosis) == ("failed", None)


def test_the_order_of_bytes_does_not_matter(backend):
    assert check_gradients(square, V.astype(">f8"), **QUICK)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"backends": "jax"}, "backends='jax' is not a sequence of names of backends."),
        ({"backends": []}, "backends=[] is not a sequence of names of backends."),
        ({"seed": -1}, "seed=-1 is not a number from 0 on."),
    ],
)
def test_options_that_were_taken_before(option, words):
    with pytest.raises(ValueError, match="check_gradients") as caught:
        check_gradients(square, V, **option)
    assert str(caught.value).endswith(words)


@pytest.mark.parametrize("limit", [0.5, 1e3, 1e6, 1e8])
def test_a_clip_of_any_size_is_not_linear(backend, limit):
    f = custom_gradient(lambda x: (2 * x, lambda upstream: ops.clip(2 * upstream, -limit, limit)))
    report = check_gradients(f, np.array([0.5, 1.0], np.float32), backends=[backend])
    assert "linearity" in [finding.check for finding in report.findings if finding.status == "failed"]
    assert "linear" in str(report)
