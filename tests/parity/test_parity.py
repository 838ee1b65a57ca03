"""Differences from Keras: what its decorator gets right is right here; where it fails, ours is right or says why not.

The programs are those of parity/cases.py, and the page has what comes of each with either decorator: where a run gives
another page, Keras or ours has changed.
"""

from parity import report
from parity.cases import CASES


def test_the_page_is_what_a_run_gives(request):
    found = {backend: report.run(backend) for backend in report.BACKENDS}
    for case in CASES:
        for backend in case.backends:
            _, (outcome, came) = (each[case.title] for each in found[backend])
            assert outcome == case.due, (backend, case.title, came)
    page = report.render(found)
    before = report.PAGE.read_text(encoding="utf-8")
    if request.config.getoption("write"):
        report.PAGE.write_text(page, encoding="utf-8")
    assert before == page, "keras_parity.md is out of date: `nox -s parity` writes it again; look at it and commit it"
