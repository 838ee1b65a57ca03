"""Gives the rules of one transform to one process, and writes down what each did, for the page in docs."""

import json
import pathlib

import pytest

OUTCOMES = pytest.StashKey()


@pytest.fixture
def record_outcome(request, record_property):
    """Says what came: the outcome and, if it is not a pass, the reason."""

    def record(outcome, reason):
        record_property("conformance", [*request.node.callspec.params["case"], outcome, reason])

    return record


class Recorder:
    """Collects what the tests say, from every process that runs some."""

    def __init__(self):
        self.outcomes = []

    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            self.outcomes += [value for name, value in report.user_properties if name == "conformance"]


def pytest_configure(config):
    config.stash[OUTCOMES] = Recorder()
    config.pluginmanager.register(config.stash[OUTCOMES])


def pytest_sessionfinish(session):
    path = session.config.getoption("conformance_report")
    if path and not hasattr(session.config, "workerinput"):
        pathlib.Path(path).write_text(json.dumps(session.config.stash[OUTCOMES].outcomes))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """One process has all cells of a transform, which one program may serve."""
    from xdist.scheduler import LoadScopeScheduling

    class ByTransform(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return nodeid.partition("[")[2].rpartition("-")[0] or nodeid

    # Not --dist=loadgroup: with pytest 9.1, which keeps a test's name elsewhere, it (xdist 3.8) does nothing.
    return ByTransform(config, log)
