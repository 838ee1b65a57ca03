"""The corpus that the checker is measured with: right rules are right, faults are faults, and the page is made of it.

What `nox -s power` measures in an hour and more is tried here on a dozen rules and half a dozen faults.
"""

import json
import pathlib
import sys

import numpy as np
import pytest

from keras_cg import config
from keras_cg.testing import check_gradients

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks.checker import faults, measure, native, report, truth  # noqa: E402
from benchmarks.checker.rules import as_tuple, load  # noqa: E402

RULES = load()

# One of each group, and more of those that differ in kind.
DOZEN = (
    *("swish", "row softmax", "bilinear", "from polar", "scale and shift", "dense in a dict"),
    *("cross entropy of labels", "correlation", "tiny outputs", "rounded", "one number", "batch of two"),
)
HALF_A_DOZEN = (
    *("sign", "off by 1e-5", "frozen at the first call"),
    *("wrong for upstream above 1e8", "one element wrong", "half detached"),
)
# On NumPy all of them; elsewhere some, for each takes seconds.
FEW = (("swish", "off by 1e-5"), ("from polar", "frozen at the first call"), ("dense in a dict", "one element wrong"))


def closed_forms(rule):
    """How far a rule is from its closed forms on the active backend, in double precision."""
    active = config.active
    arrays = truth.wide(rule.arrays(0))
    with active.double_precision():
        outputs, gradient = rule.flat(*[active.asarray(each) for each in arrays])
        right = truth.right_output(rule, arrays)
        upstreams = truth.upstreams(np.random.default_rng(0), right)
        gradients = as_tuple(gradient(*[active.asarray(np.asarray(each)) for each in upstreams]))
        expected = truth.right_gradient(rule, arrays, upstreams)
        assert [each is None for each in gradients] == [each is None for each in expected]
        came = [None if each is None else active.to_numpy(each) for each in gradients]
        return max(
            truth.difference([active.to_numpy(each) for each in as_tuple(outputs)], right),
            truth.difference(came, expected),
        )


def test_right_rules_are_right(backend):
    """All of them on NumPy, a dozen elsewhere: `nox -s power` begins with all of them everywhere."""
    allowed = {"float64": 1e-9, "float32": 1e-6, "float16": 1e-2}
    for name in RULES if backend == "numpy" else DOZEN:
        assert closed_forms(RULES[name]) < allowed[RULES[name].inner], name


@pytest.mark.only("numpy")
@pytest.mark.parametrize("name", [each.name for each in RULES.values() if native.is_for_others(each)])
def test_closed_gradients_are_those_of_the_closed_outputs(backend, name):
    """By central differences, each number moved by a share of itself."""
    rule, draw = RULES[name], np.random.default_rng(3)
    arrays = truth.wide(rule.arrays(0))
    upstreams = truth.upstreams(draw, truth.right_output(rule, arrays))
    gradients = truth.right_gradient(rule, arrays, upstreams)
    for place, gradient in enumerate(gradients):
        if gradient is None or not gradient.size:
            continue
        direction = truth.sized(draw, arrays[place]) * np.abs(arrays[place])
        ends = []
        for sign in (1, -1):
            moved = [*arrays]
            moved[place] = arrays[place] + sign * 1e-6 * direction
            ends.append(truth.right_output(rule, moved))
        found = sum(
            np.sum(np.real(np.conj(u) * (one - other))) / 2e-6 for u, one, other in zip(upstreams, *ends, strict=True)
        )
        expected = np.real(np.conj(direction) * gradient)
        assert abs(found - expected.sum()) < 1e-4 * np.abs(expected).sum()


@pytest.mark.once
def test_there_are_enough_of_both():
    """At least 60 rules, and in each at least 25 kinds of faults that make a difference."""
    kinds = [each for each in faults.KINDS.values() if each.shows in ("gradient", "compiled", "forward mode")]
    planted = {}
    for name, rule in RULES.items():
        if not rule.is_rounded:
            arrays = rule.arrays(0)
            planted[name] = sum(bool(truth.counts(rule, kind, arrays)) for kind in kinds)
    assert [name for name, count in planted.items() if count < 25] == ["empty"]
    assert len(planted) > 60


@pytest.mark.only("numpy")
def test_what_makes_no_difference_does_not_count(backend):
    def counts(rule, kind):
        return truth.counts(RULES[rule], faults.KINDS[kind], RULES[rule].arrays(0))

    # A gradient that does not hang on the arguments may be frozen, and has no second order to be wrong.
    assert not counts("reversed gradient", "frozen at the first call")
    assert not counts("reversed gradient", "detached")
    assert counts("swish", "frozen at the first call") and counts("swish", "detached")
    # Nothing is negative there.
    assert not counts("logit", "wrong for negative inputs")
    assert counts("swish", "wrong for negative inputs")
    # A rule in half precision is not right to five digits itself.
    assert not counts("tanh in half precision", "off by 1e-5")
    # No number to be wrong, no place for a row.
    assert not counts("empty", "sign")
    assert counts("one number", "one row missing") is None
    # A rule that clips at 1 gives the same when upstream is clipped at 1 before.
    assert not counts("clipped upstream", "clipped at 1")


@pytest.mark.only("numpy")
def test_right_rules_do_not_count_as_faults(backend):
    for rule in RULES.values():
        if not rule.is_rounded:
            with np.errstate(all="ignore"):
                assert truth.in_gradient(rule, rule.flat, truth.wide(rule.arrays(0))) < truth.LEAST[rule.inner], (
                    rule.name
                )


def status(rule, kind=None, **options):
    flat = rule.flat if kind is None else faults.KINDS[kind].plant(rule.flat)
    given = {"compiled": False, "expected": rule.expected, **options}
    return check_gradients(rule.decorated(flat), *rule.pack(*rule.arrays(0)), **given).status


def test_a_sample_of_faults_is_found(backend):
    pairs = [(name, kind) for name in DOZEN[::2] for kind in HALF_A_DOZEN] if backend == "numpy" else FEW
    planted = [
        (name, kind) for name, kind in pairs if truth.counts(RULES[name], faults.KINDS[kind], RULES[name].arrays(0))
    ]
    assert len(planted) > 0.8 * len(pairs)
    orders = {kind.name: 2 if kind.shows == "second order" else 1 for kind in faults.KINDS.values()}
    passed = [(name, kind) for name, kind in planted if status(RULES[name], kind, order=orders[kind]) != "failed"]
    assert not passed


def test_the_right_rules_beside_them_pass(backend):
    names = DOZEN if backend == "numpy" else sorted({name for name, _ in FEW})
    assert {name: status(RULES[name]) for name in names} == dict.fromkeys(names, "passed")


def line(status, *said, checks=()):
    return {"status": status, "said": list(said), "checks": list(checks), "seconds": 0.5}


@pytest.mark.once
def test_figures(monkeypatch):
    monkeypatch.setattr(report, "planted", lambda: {"sign": 95, "transposed": 49})
    monkeypatch.setattr(report.metadata, "version", lambda name: "1.0+cpu")  # here torch need not be installed
    ours, other = measure.OURS, "gradcheck"
    lines = {
        ("torch", ours, "swish", "sign", 0): line("failed", "a factor of -1: a wrong sign"),
        ("torch", ours, "bell", "sign", 0): line("failed", "a factor of 2"),
        ("torch", ours, "rounded", "sign", 0): line("passed"),
        ("torch", ours, "gelu", "transposed", 0): line("undecided"),
        ("torch", other, "swish", "sign", 0): line("failed"),
        ("torch", other, "bell", "sign", 0): line("passed"),
        ("torch", ours, "swish", None, 0): line("passed"),
        ("torch", ours, "swish", None, 1): line("failed", checks=["first order: failed"]),
        ("torch", ours, "fast wave", None, 0): line("undecided"),
        ("torch", other, "swish", None, 0): line("failed"),
    }
    found = report.figures(lines)
    assert found["versions"] == {"keras-cg": "1.0", "numpy": "1.0", "torch": "1.0"}
    # Measured, found, undecided, and named of those found.
    assert found["kinds"][f"torch: {ours}"] == {"sign": [3, 2, 0, 1], "transposed": [1, 0, 1, 0]}
    assert found["beside"][f"torch: {ours}"]["sign"] == [2, 2, 0, 1]  # without the declared rule
    assert found["beside"][f"torch: {other}"] == {"sign": [2, 1, 0, 0]}
    assert found["right"][f"torch: {ours}"] == {
        "ordinary": {"cases": 2, "failed": 1, "undecided": 0},
        "rounded": {"cases": 1, "failed": 0, "undecided": 1},
    }
    assert found["alarms"] == [
        [f"torch: {ours}", "swish", 1, "first order: failed"],
        [f"torch: {other}", "swish", 0, ""],
    ]
    assert found["missed"] == [["torch", "transposed", "gelu", "undecided"], ["torch", "sign", "rounded", "passed"]]
    assert found["unnamed"] == {"sign": {"a factor of 2": 1}}
    page = report.render(found)
    assert "| `check_gradients` on `torch` | 144 | 4 | 2 of 4 | 1 of 4 | 1 of 2 | 0.5 |" in page
    assert "| sign | 95 | 2 of 3 | 1 of 2 |" in page
    assert "| `gradcheck` on `torch` | 2 | 1 of 2 | 1 of 1 | 2 of 3 |" in page
    assert "- swish on `torch`, 1 (seeds 1): first order: failed" in page
    assert "- sign, passed, 1: rounded (torch)" in page
    assert "- sign, 1: a factor of 2 (1)" in page


@pytest.mark.once
def test_the_page_is_what_the_figures_give():
    results = json.loads(report.FIGURES.read_text(encoding="utf-8"))
    assert report.PAGE.read_text(encoding="utf-8") == report.render(results), "run `nox -s power -- --report`"
    assert report.PICTURE.stat().st_size > 10_000
    assert list(results["planted"]) == list(faults.KINDS) and list(results["rules"]) == list(RULES), "measure anew"
