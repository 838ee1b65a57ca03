"""The pytest plugin, of which every run of pytest loads this file, and a run whose tests ask for it the rest.

The rest is `keras_cg.pytest_plugin`, whose docstring says what there is.
"""

from __future__ import annotations

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
    """Registers the marker; starts the backends that were asked for, so that one that does not start fails the run."""
    config.addinivalue_line("markers", "cg_backends(*names): run the test, which uses cg_backend, on these backends")
    if config.getoption("--cg-backends"):
        _names(config)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Says which backends were asked for."""
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
        # Of no parameters at all, pytest would make a skipped test; those of the marker are deselected below.
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
    """Refuses a marker that restricts nothing: the test would run, but not where its author thinks."""
    marker = item.get_closest_marker("cg_backends")
    if marker is not None:
        from keras_cg import pytest_plugin

        pytest_plugin.require_restriction(item, marker, _parameter(item))


@pytest.fixture
def cg_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a backend, which is active: the test runs once on each."""
    from keras_cg import pytest_plugin

    with pytest_plugin.active(request):
        yield request.param


@pytest.fixture
def assert_gradients() -> Callable[..., Any]:
    """`keras_cg.testing.assert_gradients`: checks a custom gradient, and fails with the report."""
    from keras_cg import testing

    return testing.assert_gradients


def _names(config: pytest.Config) -> tuple[str, ...]:
    """The backends under test."""
    if NAMES not in config.stash:
        from keras_cg import pytest_plugin

        config.stash[NAMES] = pytest_plugin.under_test(config.getoption("--cg-backends"))
    return config.stash[NAMES]


def _parameter(item: pytest.Item) -> str | None:
    """The backend that a test runs on; None if it does not use the fixture."""
    call = getattr(item, "callspec", None)
    return call.params.get("cg_backend") if call else None
