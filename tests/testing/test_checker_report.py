"""What the checker reports: findings with places and reasons, programs that are compiled and exported, and usage."""

import json
import re
import textwrap

import numpy as np
import programs
import pytest
from checker_cases import QUICK, WIDE, V, X, assert_passed, derived, first, upstream_for

import keras_cg
from keras_cg import custom_gradient, ops
from keras_cg.frontend import config
from keras_cg.testing import Finding, Report, agreement, assert_gradients, check_gradients


def reason_of(finding):
    """The reason, without the line of a test that raised."""
    return re.sub(r"; at test_\w+\.py:\d+ in \w+: raise .*$", "", finding.reason or "") or None


@custom_gradient
def half(x):
    return x**2, lambda upstream: upstream * x


def plain(x):
    return x * 2


numbers = lambda report: [(each.came, each.expected, each.error) for each in report.findings]


def raise_(error):
    raise error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ZeroDivisionError("no such number.\nand so on"), "ZeroDivisionError: no such number"),
        (KeyError, "KeyError: no message"),
    ],
    ids=["words", "no words"],
)
def test_a_function_that_raises(backend, error, reason):
    finding = first(check_gradients(custom_gradient(lambda x: raise_(error)), V, **QUICK), "value")
    assert (finding.status, reason_of(finding)) == ("failed", reason)


def test_a_rule_that_raises_and_no_pair(backend):
    def rule(upstream):
        raise ZeroDivisionError("no such number")

    finding = first(check_gradients(custom_gradient(lambda x: (x * 1, rule)), V, **QUICK))
    line = rule.__code__.co_firstlineno + 1
    place = f'at test_checker_report.py:{line} in rule: raise ZeroDivisionError("no such number")'
    assert (finding.status, finding.reason) == ("failed", f"ZeroDivisionError: no such number; {place}")
    finding = first(check_gradients(custom_gradient(plain), V, **QUICK), "value")
    assert finding.reason.startswith("TypeError: plain must return a pair (output, grad); got: ")
    assert finding.diagnosis == "`return output` without the rule, or several outputs that are not in a tuple."


@pytest.mark.only("numpy")
def test_an_argument_that_is_changed_in_place(backend):
    def f(given):
        given *= 2
        return given * 1.0, lambda upstream: 2 * upstream

    finding = first(check_gradients(custom_gradient(f), V, **QUICK), "value")
    assert (finding.status, finding.argument) == ("failed", "given")
    assert finding.reason == "the function changes given in place; change a copy instead"


def test_what_does_not_compile_is_undecided(backend):
    factor = lambda x: 2 if bool(ops.sum(x) > 0) else 3
    f = custom_gradient(lambda x: (lambda k: (k * x, lambda upstream: k * upstream))(factor(x)))
    report = check_gradients(f, V, order=1, modes=("reverse",))
    for check, told in {"compiled": "it does not compile: ", "export": "it cannot be exported: "}.items():
        finding = first(report, check)
        assert finding.status == ("skipped" if backend == "numpy" else "undecided")
        assert backend == "numpy" or finding.reason.startswith(told)


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
    finding = first(report, "compiled")
    if backend == "numpy":
        assert finding.status == "skipped"
        return
    assert (finding.status, finding.reason) == ("failed", reason)
    finding = first(report, "export")
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
    finding = first(report, "export")
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
    finding = first(report, "export")
    assert (finding.status, finding.gradient, reason_of(finding)) == expected
    if name == "plain":
        u = upstream_for(V).tolist()
        place = int(finding.where[1:-1])
        assert finding.argument == "x"
        assert float(finding.came) == pytest.approx(u[place], rel=1e-5)
        assert float(finding.expected) == pytest.approx(7 * u[place], rel=1e-5)


def test_an_argument_that_is_not_freed(backend):
    kept = []

    def storing(x):
        kept.append(x)
        return x * 2, lambda upstream: 2 * upstream

    def in_a_cycle(x):
        cycle = [x]
        cycle.append(cycle)
        return x * 2, lambda upstream: 2 * upstream

    for f, reason in (
        (storing, "an argument is still alive after the call; does the function store its tensors?"),
        (in_a_cycle, "an argument is freed by the garbage collector only; is there a reference cycle?"),
    ):
        finding = first(check_gradients(custom_gradient(f), V, **QUICK), "memory")
        assert (finding.status, finding.reason) == ("failed", reason)


@pytest.mark.parametrize("rule", [lambda s: (s, s), lambda s: (2 * s, 2 * s)], ids=["one tensor", "two"])
def test_a_gradient_of_two_arguments_is_freed(backend, rule):
    f = custom_gradient(lambda x, y: (ops.exp(x + y), lambda u: rule(u * ops.exp(x + y))))
    told = first(check_gradients(f, WIDE, WIDE + 2, **QUICK), "memory")
    assert told.status == "passed", told


def test_seed(backend):
    first, again, other = (check_gradients(half, X, seed=seed, compiled=False) for seed in (3, 3, 4))
    assert first == again and numbers(first) == numbers(again) != numbers(other)
    assert [each.status for each in first.findings] == [each.status for each in other.findings]


def test_findings_as_they_come(backend):
    told = []
    report = check_gradients(half, X, compiled=False, on_finding=told.append)
    assert tuple(told) == report.findings
    assert report.checks == ("value", "first order", "second order", "linearity", "forward mode", "memory")
    assert {each.backend for each in told} == {backend} == {*report.backends}


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
    forward = first(report, "forward mode")
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
    report = lambda *statuses: Report("f", tuple(Finding("numpy", "value", status) for status in statuses))
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


@pytest.mark.side_by_side
def test_agreement(backends):
    report = check_gradients(custom_gradient(lambda x: (x**2, lambda u: 2 * u * x)), V, backends=backends, **QUICK)
    assert report, report
    assert report.backends == tuple(backends)
    rows = [each for each in report.findings if each.check == "agreement"]
    assert [each.backend for each in rows] == (list(backends) if len(backends) > 1 else [])
    assert list(report.evidence) == list(backends)


def evidence(output, gradient, epsilon=2.0**-52):
    return {"epsilon": [np.asarray(epsilon)], "output": [np.asarray(output)], "gradient of x": [np.asarray(gradient)]}


def test_agreement_of_given_numbers():
    right, near = evidence([1.0, 2.0], [3.0, 4.0]), evidence([1.0, 2.0], [3.0, 4.0 + 1e-7])
    assert agreement({}) == agreement({"jax": right}) == agreement({"jax": right, "torch": {}}) == []
    assert [each.status for each in agreement({"jax": right, "torch": near})] == ["passed", "passed"]
    wrong = evidence([1.0, 2.0], [3.0, 4.1])
    findings = agreement({"torch": wrong, "jax": right, "numpy": near, "tensorflow": {}})
    assert [(each.backend, each.status) for each in findings] == [
        ("torch", "failed"),
        ("jax", "passed"),
        ("numpy", "passed"),
    ]
    assert findings[0].reason == "the gradient of x differs from that of other backends"
    assert (findings[0].where, findings[0].came, findings[0].expected) == ("[1]", "4.1", "4")
    assert findings[0].tolerance == 2e-6 and findings[0].error == pytest.approx(0.1 / 4)
    # The coarser of two precisions decides.
    coarse = evidence([1.0, 2.0], [3.0, 4.001], 2.0**-23)
    assert [each.status for each in agreement({"jax": right, "torch": coarse})] == ["passed", "passed"]
    other = evidence([1.0, 2.0, 3.0], [3.0, 4.0])
    shapes = agreement({"jax": right, "numpy": near, "torch": other})
    assert shapes[2].status == "failed" and shapes[2].reason == "the shape of the output differs between backends"


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
def test_not_dense(tf, kind):
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
        *(("backends", value, "a sequence of names of backends") for value in ("jax", [])),
        ("seed", -1, "a number from 0 on"),
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


def test_without_scipy():
    text = programs.run("""
        import sys
        sys.modules["scipy"] = None
        try:
            import keras_cg.testing
        except ImportError as error:
            print(error)
    """)
    assert text.splitlines() == [
        "keras_cg.testing needs SciPy 1.15 or later, for finite differences.",
        '    remedy: pip install "keras-cg[testing]".',
    ]


def test_a_value_that_is_none(backend):
    cube = derived(lambda x: x**3, lambda x: 3 * x**2)
    finding = first(
        check_gradients(cube, WIDE, value=lambda x: raise_(ZeroDivisionError("no such number")), **QUICK), "value"
    )
    assert finding.status == "failed"
    assert finding.reason.startswith("`value` raised ZeroDivisionError: no such number; at test_checker_report.py:")
    assert message(ValueError, cube, WIDE, value=lambda x: ops.sum(x)).splitlines()[1:3] == [
        "    got: [()]",
        "    expected: [(3,)]",
    ]
    assert "value=3 is not a function" in message(ValueError, cube, WIDE, value=3)
