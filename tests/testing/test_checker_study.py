"""The corpus that the checker is measured with: right rules are right, faults are faults, and the page is made of it.

What `nox -s power` measures in an hour and more is tried here on the right rules, and on one fault of each kind.
"""

import json
import pathlib
import sys

import numpy as np
import pytest

from keras_cg.frontend import config

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks.checker import faults, measure, report, truth  # noqa: E402
from benchmarks.checker.rules import as_tuple, load  # noqa: E402

RULES = load()

# One of each group, and more of those that differ in kind.
DOZEN = (
    *("swish", "row softmax", "bilinear", "from polar", "scale and shift", "dense in a dict"),
    *("cross entropy of labels", "correlation", "tiny outputs", "rounded", "one number", "batch of two"),
)


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


# Of these the checker cannot tell, and says why: half precision inside, differences that do not converge, no elements.
UNDECIDED = ("root mean square with half statistics", "tanh in half precision", "sharp softmax", "empty")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("is_thorough", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_right_rules_pass(backend, is_thorough):
    """Where a framework compiles each of them, few."""
    quick, all_of_them = (DOZEN, RULES) if backend == "numpy" else (DOZEN[::3], DOZEN)
    for name in all_of_them if is_thorough else quick:
        found = measure.check(measure.Case(measure.OURS, name, None, 0))
        assert found["status"] == ("undecided" if name in UNDECIDED else "passed"), (name, found)


@pytest.mark.only("numpy")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "kind", [each for each in faults.KINDS.values() if each.shows != "compiled"], ids=lambda k: k.name
)
def test_a_fault_of_each_kind_is_found(backend, kind):
    """In the first rule where it makes a difference."""
    name = next(name for name, rule in RULES.items() if truth.counts(rule, kind, rule.arrays(0)))
    found = measure.check(measure.Case(measure.OURS, name, kind.name, 0))
    assert found["status"] in kind.found, (name, found)


def line(status, *said, checks=()):
    return {"status": status, "said": list(said), "checks": list(checks), "seconds": 0.5}


@pytest.mark.only("numpy")
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
    assert found["alarms"] == {"swish on `torch`": ["first order: failed", [1]]}
    assert found["undecided"] == {}
    assert found["missed"] == [["torch", "transposed", "gelu", "undecided"], ["torch", "sign", "rounded", "passed"]]
    assert found["unnamed"] == {"sign": {"a factor of 2": 1}}
    page = report.render(found)
    assert "| `check_gradients` on `torch` | 144 | 4 | 2 of 4 | 1 of 4 | 1 of 2 | 0.5 |" in page
    assert "| sign | 95 | 2 of 3 | 1 of 2 |" in page
    assert "| `gradcheck` on `torch` | 2 | 1 of 2 | 1 of 1 | 2 of 3 |" in page
    assert "- swish on `torch`, 1 (seeds 1): first order: failed" in page
    assert "- sign, passed, 1: rounded (torch)" in page
    assert "- sign, 1: a factor of 2 (1)" in page


@pytest.mark.only("numpy")
def test_the_page_is_what_the_figures_give():
    results = json.loads(report.FIGURES.read_text(encoding="utf-8"))
    assert report.PAGE.read_text(encoding="utf-8") == report.render(results), "run `nox -s power -- --report`"
    assert report.PICTURE.stat().st_size > 10_000
    assert list(results["planted"]) == list(faults.KINDS) and list(results["rules"]) == list(RULES), "measure again"
