"""Differences from Keras: what its decorator gets right is right here; where it fails, ours is right or says why not.

The programs are those of parity/cases.py, which declares what comes of each with either decorator. A declaration that
no longer holds fails here, of Keras's too: the table cannot rot.
"""

import warnings

import numpy as np
import pytest
from conftest import NAMES

from parity import ERROR, NO_GRADIENT, OTHERWISE, REFUSED, RIGHT, WRONG, report
from parity.cases import CASES, MUST_RAISE, Case
from parity.harness import outcome


def pytest_generate_tests(metafunc):
    if "program" in metafunc.fixturenames:
        programs = [
            (backend, case) for backend in metafunc.config.stash[NAMES] for case in CASES if backend in case.keras
        ]
        metafunc.parametrize("program", programs, ids=[f"{backend}-{case.title}" for backend, case in programs])


def test_program(program):
    backend, case = program
    theirs, ours = (found[case.title] for found in report.run(backend))
    assert ours[0] == case.ours[backend], ours[1]
    assert theirs[0] == case.keras[backend], theirs[1]


def test_the_page_is_what_a_run_gives(request):
    page = report.render({backend: report.run(backend) for backend in report.BACKENDS})
    before = report.PAGE.read_text(encoding="utf-8")
    if request.config.getoption("write"):
        report.PAGE.write_text(page, encoding="utf-8")
    assert before == page, "keras_parity.md is out of date: `nox -s parity` writes it again; look at it and commit it"


def test_what_is_declared():
    for backend in report.BACKENDS:
        titles = [case.title for case in CASES if backend in case.keras]
        assert len(titles) == len(set(titles))
    for case in CASES:
        assert set(case.keras) == set(case.ours) <= set(report.BACKENDS)
        assert set(case.ours.values()) <= {RIGHT, REFUSED}
        assert (case.truth is not MUST_RAISE) or case.refusal is not None


# --- what tells outcomes apart -------------------------------------------------------------------------------------


def raising(error):
    def run(kit):
        raise error

    return run


def warned(kit):
    warnings.warn("No gradient computation or modification takes place.", stacklevel=1)
    return [np.ones(3)]


@pytest.mark.parametrize(
    ("run", "truth", "expected"),
    [
        (lambda kit: [np.ones(3), 2.0], [np.ones(3), 2.0], RIGHT),
        (lambda kit: [np.ones(3), 2.01], [np.ones(3), 2.0], WRONG),
        (lambda kit: [np.ones(3)], [np.ones(3), 2.0], WRONG),
        (lambda kit: [None], [0.0], WRONG),
        (lambda kit: [np.nan], [1.0], WRONG),
        (lambda kit: [1.0], [np.ones(3)], WRONG),
        (lambda kit: [1.0 + 1e-3j], [1.0], WRONG),
        (lambda kit: [np.ones(3)], MUST_RAISE, WRONG),
        (raising(ValueError("in so many words")), MUST_RAISE, REFUSED),
        (raising(ValueError("in so many words")), [1.0], REFUSED),
        (raising(ValueError("in others")), MUST_RAISE, ERROR),
        (warned, [np.ones(3)], NO_GRADIENT),
    ],
)
def test_outcomes(run, truth, expected):
    case = Case("", "", run, truth, "so many words", {}, {}, forward=False)
    assert outcome(case, None)[0] == expected


def test_a_question_is_about_behaviour():
    case = Case("", "is memory freed?", lambda kit: [0.0], [1.0], None, {}, {}, forward=True)
    assert outcome(case, None)[0] == OTHERWISE


def test_a_warning_of_no_gradient_where_nothing_is_differentiated():
    case = Case("", "", warned, [np.ones(3)], None, {}, {}, forward=True)
    assert outcome(case, None) == (RIGHT, "[1, 1, 1]")
