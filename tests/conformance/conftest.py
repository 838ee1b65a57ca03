"""Writes down what each rule did under each transform, for the page in docs."""

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
