"""The part of the pytest plugin that every run of pytest loads; `keras_cg.pytest_plugin` documents the whole.

It imports `keras_cg.pytest_plugin` when a test uses the plugin.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

NAMES = pytest.StashKey[tuple[str, ...]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--cg-backends`."""
    parser.getgroup("keras_cg").addoption(
        "--cg-backends",
        default="",
        metavar="NAMES",
        help="the backends of the fixture cg_backend, with commas between; default: all installed",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker, and starts the backends of the option, because the run must fail if one does not start."""
    config.addinivalue_line("markers", "cg_backends(*names): run the test, which uses cg_backend, on these backends")
    if config.getoption("--cg-backends"):
        _names(config)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Shows the backends of the option."""
    return f"keras_cg backends: {', '.join(_names(config))}" if config.getoption("--cg-backends") else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test that uses `cg_backend` on the backends under test that its marker allows."""
    marker = metafunc.definition.get_closest_marker("cg_backends")
    is_used = "cg_backend" in metafunc.fixturenames
    if not (is_used or marker):
        return
    from keras_cg import pytest_plugin

    allowed = pytest_plugin.allowed(marker, metafunc.definition.nodeid)
    if is_used:
        selected = [name for name in _names(metafunc.config) if name in allowed]
        # Never without parameters, because pytest would skip the test; those of the marker are deselected below.
        metafunc.parametrize("cg_backend", selected or allowed, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests of backends that are not under test."""

    def is_wanted(item: pytest.Item) -> bool:
        name = _parameter(item)
        return name is None or name in _names(config)

    left_out = [item for item in items if not is_wanted(item)]
    if left_out:
        items[:] = [item for item in items if is_wanted(item)]
        config.hook.pytest_deselected(items=left_out)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuses a marker that restricts nothing, because the test would run on other backends than it says."""
    marker = item.get_closest_marker("cg_backends")
    if marker is not None:
        from keras_cg import pytest_plugin

        pytest_plugin.require_restriction(item, marker, _parameter(item))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Leaves the frames of keras_cg out of the traceback of a failure; `--full-trace` shows them."""
    if (
        call.excinfo is not None
        and "keras_cg.frontend.tracebacks" in sys.modules
        and not item.config.getoption("fulltrace")
    ):
        from keras_cg.frontend import tracebacks

        tracebacks.hide_frames(call.excinfo.value)


@pytest.fixture
def cg_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once on each backend; the value is the name of the active one."""
    from keras_cg import pytest_plugin

    with pytest_plugin.active(request):
        yield request.param


@pytest.fixture
def assert_gradients() -> Callable[..., Any]:
    """Returns `keras_cg.testing.assert_gradients`, which checks a custom gradient, and fails with the report."""
    from keras_cg import testing

    return testing.assert_gradients


def _names(config: pytest.Config) -> tuple[str, ...]:
    """Returns the backends under test."""
    if NAMES not in config.stash:
        from keras_cg import pytest_plugin

        config.stash[NAMES] = pytest_plugin.under_test(config.getoption("--cg-backends"))
    return config.stash[NAMES]


def _parameter(item: pytest.Item) -> str | None:
    """Returns the backend that a test runs on; None if it does not use the fixture."""
    call = getattr(item, "callspec", None)
    return call.params.get("cg_backend") if call else None
