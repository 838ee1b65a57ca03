"""Writes down what each rule did under each transform, for the page in docs."""

import json
import pathlib

import pytest

OUTCOMES = pytest.StashKey()


def pytest_configure(config):
    config.stash[OUTCOMES] = []


@pytest.fixture
def record_outcome(request):
    def record(outcome):
        request.config.stash[OUTCOMES].append([*request.node.callspec.params["case"], outcome])

    return record


def pytest_sessionfinish(session):
    path = session.config.getoption("conformance_report")
    if path:
        pathlib.Path(path).write_text(json.dumps(session.config.stash[OUTCOMES]))
