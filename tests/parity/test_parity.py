"""Differences from Keras: what its decorator gets right is right here; where it fails, ours is right or says why not.

The programs are those of parity/cases.py, which declares what comes of each with either decorator. A declaration that
no longer holds fails here, of Keras's too: the table cannot rot.
"""

from conftest import NAMES

from parity import REFUSED, RIGHT, report
from parity.cases import CASES, MUST_RAISE


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
