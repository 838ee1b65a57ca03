"""How the tests are shared out among processes: what costs much to make is made in one of them, and none waits long."""

from pathlib import Path
from types import SimpleNamespace

import conftest
import pytest

pytestmark = pytest.mark.once

CONFORMANCE = "tests/conformance/test_conformance.py"
TESTS = [
    "tests/test_backend_choice.py::test_first",
    "tests/test_backend_choice.py::test_second[a-b]",
    f"{CONFORMANCE}::test_rule[jax-jit(grad)-exp]",
    f"{CONFORMANCE}::test_rule[jax-jit(grad)-matmul]",
    f"{CONFORMANCE}::test_what_is_right_alone[jax-jit(grad)-all rules]",
    f"{CONFORMANCE}::test_rule[jax-grad-exp]",
    f"{CONFORMANCE}::test_the_report",
    "tests/with_keras/test_keras_install.py::test_outcomes[a]",
    "tests/with_keras/test_keras_install.py::test_the_page",
]


class Process:
    """What the scheduler knows of one."""

    shutting_down = False

    def __init__(self):
        self.gateway, self.sent = SimpleNamespace(id="gw"), []

    def send_runtest_some(self, indices):
        self.sent.append([TESTS[each] for each in indices])

    def shutdown(self):
        self.shutting_down = True


def config(dist):
    options = {"dist": dist, "tx": ["popen", "popen"]}
    return SimpleNamespace(
        option=SimpleNamespace(loadscopereorder=True), getoption=options.__getitem__, getvalue=options.__getitem__
    )


def test_a_process_has_all_of_a_group_and_then_test_by_test():
    scheduler = conftest.pytest_xdist_make_scheduler(config("loadscope"), None)
    first, second = processes = [Process(), Process()]
    for each in processes:
        scheduler.add_node(each)
    for each in processes:
        scheduler.add_node_collection(each, TESTS)
    scheduler.schedule()
    assert first.sent == [TESTS[2:5]]
    assert second.sent[0] == TESTS[7:]
    for index in (7, 8):
        scheduler.mark_test_complete(second, index)
    assert second.sent[1:] == [[TESTS[each]] for each in (0, 1, 5)]


def test_the_other_ways_of_xdist_are_its_own():
    assert conftest.pytest_xdist_make_scheduler(config("worksteal"), None) is None


def test_the_files_are_there():
    root = Path(__file__).parents[2]
    assert all((root / each).is_file() for each in (*conftest.SHARED, CONFORMANCE))
