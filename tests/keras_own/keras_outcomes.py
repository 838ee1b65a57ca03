"""A pytest plugin, `-p keras_outcomes`: what comes of each test, with our decorator in Keras's place or without.

Keras's own tests run under it, in a process of their own (test_keras_own.py).
"""

import gc
import json
import pathlib

import keras_cg
from keras_cg.frontend import decorator

MESSAGE = 4000


def pytest_addoption(parser):
    parser.addoption("--outcomes", required=True, help="the JSON file to write")
    parser.addoption("--installed", action="store_true", help="call keras_cg.keras.install() first")


def pytest_configure(config):
    if config.getoption("--installed"):
        keras_cg.keras.install()
    config.pluginmanager.register(Outcomes(pathlib.Path(config.getoption("--outcomes"))))


class Outcomes:
    """For each test `(outcome, calls of decorated functions, message)`."""

    def __init__(self, path):
        self.path, self.found, self.calls = path, {}, 0
        call = decorator.CustomGradient.__call__

        def counted(function, *args, **kwargs):
            self.calls += 1
            return call(function, *args, **kwargs)

        decorator.CustomGradient.__call__ = counted

    def pytest_collection_finish(self):
        # Keras collects garbage whenever it quantises a layer, half a second each among a framework's objects.
        gc.freeze()
        gc.set_threshold(100_000)  # as tests/conftest.py has it

    def pytest_runtest_logstart(self):
        self.calls = 0

    def pytest_runtest_logreport(self, report):
        before = self.found.get(report.nodeid)
        if before is None or before[0] == "passed":
            message = "" if report.passed else report.longreprtext[-MESSAGE:]
            self.found[report.nodeid] = (report.outcome, self.calls, message)

    def pytest_sessionfinish(self):
        self.path.write_text(json.dumps(self.found), encoding="utf-8")
