"""The checker on the conformance zoo: no false alarm, and no closed form wrong by a thousandth unnoticed.

The rules of the zoo are not the derivatives of their functions, so they are declared, by their closed forms.
"""

import importlib

import numpy as np
import pytest
from conformance import zoo

from keras_cg import config
from keras_cg.testing import check_gradients


@pytest.fixture
def seeds(request, backend):
    """How many, `--checker-seeds` may say; on NumPy they cost little."""
    return range(request.config.getoption("checker_seeds") or (2 if backend == "numpy" else 1))


@pytest.fixture(autouse=True)
def framework(monkeypatch, request):
    name = request.getfixturevalue("backend") if "backend" in request.fixturenames else "numpy"
    monkeypatch.setattr(zoo, "framework", importlib.import_module(f"conformance.transforms.{name}"))


def closed_form(rule, factor=1):
    """The closed form of a rule as a rule."""

    def expected(*args, upstream):
        active = config.active
        args, upstream = ([active.to_numpy(each) for each in group] for group in (args, upstream))
        wide = [np.asarray(each, complex if each.dtype.kind == "c" else float) for each in args]
        found = rule.gradient(*wide, upstream)
        return [active.asarray((factor * g).astype(arg.dtype)) for g, arg in zip(found, args, strict=True)]

    return expected


def check(rule, factor=1, **options):
    # A rule with a wrong rule inside has another second order than its closed form.
    options = {"order": 1 if rule.second else 2, **options}
    return check_gradients(rule.call, *rule.arrays, expected=closed_form(rule, factor), **options)


# Limits (docs/limits.md): a captured value keeps torch from compiling, and is no number in a graph of TensorFlow.
LIMITS = {
    ("captured value", "torch"): ("undecided", "it does not compile: "),
    ("captured value", "tensorflow"): ("failed", "the compiled gradient differs from the eager one"),
}


# Of a rule without elements there is nothing to compare.
RULES = [name for name, rule in zoo.ZOO.items() if any(np.size(each) for each in rule.output(*rule.arrays))]


def assert_passes(backend, name, seeds):
    rule = zoo.ZOO[name]
    for seed in seeds:
        report = check(rule, seed=seed, compiled=seed == 0)
        kept = [each for each in report.findings if each.status in ("failed", "undecided")]
        if seed == 0 and (name, backend) in LIMITS:
            status, reason = LIMITS[name, backend]
            assert {(each.check, each.status) for each in kept} == {("compiled", status)}, report
            assert all(each.reason.startswith(reason) for each in kept), report
        else:
            assert not kept and report, (seed, str(report))


# A dozen rules on every backend, and the rest where nothing is compiled.
@pytest.mark.parametrize("name", [name for name in RULES if name in zoo.DOZEN])
def test_right_rules_pass(backend, name, seeds):
    assert_passes(backend, name, seeds)


@pytest.mark.only("numpy")
@pytest.mark.parametrize("name", [name for name in RULES if name not in zoo.DOZEN])
def test_all_other_right_rules_pass(backend, name, seeds):
    assert_passes(backend, name, seeds)


@pytest.mark.only("numpy")
@pytest.mark.parametrize("name", RULES)
def test_closed_forms_wrong_by_a_thousandth_do_not(backend, name):
    rule = zoo.ZOO[name]
    report = check(rule, 1.001, order=1, modes=("reverse",), compiled=False)
    upstreams = [np.ones_like(each) for each in rule.output(*rule.arrays)]
    has_gradient = [bool(np.any(each)) for each in rule.gradient(*rule.arrays, upstreams)]
    failed = [each.status == "failed" for each in report.cell(backend, "first order")]
    assert failed == has_gradient
    assert bool(report) is not any(has_gradient)
