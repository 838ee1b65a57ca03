"""The pytest plugin: your tests run on every backend, and check gradients there.

It is there as soon as keras_cg and pytest are installed, and imports no framework before a test needs it.

- `cg_backend`, a fixture: the test runs once on each backend, which is active; the value is its name.
- `assert_gradients`, a fixture: `keras_cg.testing.assert_gradients`, which fails with the checker's report.
- `--cg-backends=jax,torch`: the backends to test, with commas between; without it, all that are installed. One that was
  asked for and does not start fails the run; one that is only found here fails its tests.
- `@pytest.mark.cg_backends("jax", "torch")`: the test, the class or, as `pytestmark`, the module is about these
  backends; the closest marker counts. A test that none of the backends under test is left to is deselected.

A file of tests:

    import keras_cg
    import numpy as np

    @keras_cg.custom_gradient
    def square(x):
        return x * x, lambda upstream: 2 * x * upstream

    def test_square(cg_backend, assert_gradients):
        assert_gradients(square, np.array([1.0, -2.0, 3.0]))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

from keras_cg import backends
from keras_cg.config import use_backend
from keras_cg.errors import report, unknown_backend

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
    """Settles the backends under test, and registers the marker."""
    config.addinivalue_line("markers", "cg_backends(*names): run the test, which uses cg_backend, on these backends")
    requested = config.getoption("--cg-backends")
    config.stash[NAMES] = _started(requested.split(",")) if requested else backends.installed()


def pytest_report_header(config: pytest.Config) -> str:
    """Says which backends are under test."""
    names = config.stash[NAMES]
    return f"keras_cg backends: {', '.join(names)}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test that uses `cg_backend` on the backends under test that its marker allows."""
    marker = metafunc.definition.get_closest_marker("cg_backends")
    allowed = _allowed(marker, metafunc.definition.nodeid) if marker else backends.names()
    if "cg_backend" in metafunc.fixturenames:
        selected = [name for name in metafunc.config.stash[NAMES] if name in allowed]
        # Of no parameters at all, pytest would make a skipped test; those of the marker are deselected below.
        metafunc.parametrize("cg_backend", selected or allowed, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests of backends that are not under test."""

    def is_wanted(item: pytest.Item) -> bool:
        return _parameter(item) in (None, *config.stash[NAMES])

    left_out = [item for item in items if not is_wanted(item)]
    if left_out:
        items[:] = [item for item in items if is_wanted(item)]
        config.hook.pytest_deselected(items=left_out)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuses a marker that restricts nothing: the test would run, but not where its author thinks."""
    marker = item.get_closest_marker("cg_backends")
    if marker is None:
        return
    if "cg_backend" not in getattr(item, "fixturenames", ()):
        _fail(_marker_without_fixture(item.nodeid))
    if _parameter(item) not in (None, *marker.args):
        _fail(_marker_on_a_parameter(item.nodeid))


@pytest.fixture
def cg_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a backend, which is active: the test runs once on each."""
    if not hasattr(request, "param"):
        _fail(_fixture_without_parameter(request.node.nodeid))
    try:
        backends.load(request.param, "the fixture cg_backend")
    except ImportError as error:
        _fail(error)
    with use_backend(request.param):
        yield request.param


@pytest.fixture
def assert_gradients() -> Callable[..., Any]:
    """`keras_cg.testing.assert_gradients`: checks a custom gradient, and fails with the report."""
    from keras_cg import testing

    return testing.assert_gradients


def _started(requested: list[str]) -> tuple[str, ...]:
    """The backends of `--cg-backends`, each once and loaded."""
    names = tuple(dict.fromkeys(name.strip() for name in requested))
    for name in names:
        try:
            backends.load(name, "--cg-backends")
        except (ValueError, ImportError) as error:
            raise pytest.UsageError(str(error)) from error
    return names


def _allowed(marker: pytest.Mark, test: str) -> tuple[str, ...]:
    """The backends that a marker names."""
    if not marker.args or marker.kwargs:
        raise pytest.Collector.CollectError(str(_marker_without_names(test)))
    for name in marker.args:
        if name not in backends.names():
            source = f"the marker cg_backends of {test}"
            raise pytest.Collector.CollectError(str(unknown_backend(name, source, backends.names())))
    return marker.args


def _parameter(item: pytest.Item) -> str | None:
    """The backend that a test runs on; None if it does not use the fixture."""
    call = getattr(item, "callspec", None)
    return call.params.get("cg_backend") if call else None


def _fail(error: Exception) -> NoReturn:
    """Fails the test with the message alone: the traceback would show the plugin."""
    pytest.fail(str(error), pytrace=False)


# --- what it says --------------------------------------------------------------------------------


def _marker_without_names(test: str) -> TypeError:
    """The marker names no backend, or names them in another way."""
    return TypeError(
        f"{test}: the marker cg_backends takes the names of backends, one argument each:"
        ' @pytest.mark.cg_backends("jax", "torch").'
    )


def _marker_without_fixture(test: str) -> TypeError:
    """The marker is on a test that does not run on the backends."""
    headline = f"{test}: the marker cg_backends needs the fixture `cg_backend`, which this test does not use."
    consequence = "the test would run once, on whichever backend is active."
    remedy = "take `cg_backend` as an argument of the test, or mark only the tests that do."
    return report(TypeError, headline, consequence=consequence, remedy=remedy)


def _marker_on_a_parameter(test: str) -> TypeError:
    """The marker came too late to restrict anything."""
    headline = f"{test}: the marker cg_backends does not name the backend that this test runs on."
    cause = "it stands on one parameter, pytest.param(..., marks=...), or was added after collection."
    return report(TypeError, headline, cause=cause, remedy="put it on a test, a class or a module.")


def _fixture_without_parameter(test: str) -> TypeError:
    """The fixture was asked for where pytest cannot run the test several times."""
    headline = f"{test}: the fixture `cg_backend` was asked for where a test cannot run once on each backend."
    cause = "request.getfixturevalue(), or a method of a unittest.TestCase."
    remedy = "take `cg_backend` as an argument of a test function or of a fixture that it uses."
    return report(TypeError, headline, cause=cause, remedy=remedy)
