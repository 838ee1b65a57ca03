"""The pytest plugin: your tests run on every backend, and check gradients there.

It works as soon as keras_cg and pytest are installed. pytest loads it at its start, and it imports neither keras_cg nor
NumPy before a test uses one of these. No framework is imported before a test runs on it.

- `cg_backend`, a fixture: the test runs once on each backend, which is active; the value is its name.
- `assert_gradients`, a fixture: `keras_cg.testing.assert_gradients`, which fails with the checker's report.
- `--cg-backends=jax,torch`: the backends to test, with commas between; without it, all installed ones. If a backend of
  the option does not start, the run fails; if another installed one does not, its tests fail.
- `--cg-strict=MODULES`: the run fails, and names the function, if a decorated function or method of these modules or
  packages, with commas between, was given to `assert_gradients` by no test. Of a package, the modules count that the
  tests import. It is for a run of all tests.
- `@pytest.mark.cg_backends("jax", "torch")`: restricts the test, the class or, as `pytestmark`, the module to these
  backends; the closest marker counts. A test is deselected if no backend under test is among its backends.

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

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

NAMES = pytest.StashKey[tuple[str, ...]]()
# The functions that `--cg-strict` asks for, and those that were checked, by their names.
STRICT = pytest.StashKey[tuple[set[str], set[str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--cg-backends` and `--cg-strict`."""
    group = parser.getgroup("keras_cg")
    group.addoption(
        "--cg-backends",
        default="",
        metavar="NAMES",
        help="the backends of the fixture cg_backend, with commas between; default: all installed",
    )
    group.addoption(
        "--cg-strict",
        default="",
        metavar="MODULES",
        help="fail if no test gave a decorated function of these modules or packages to assert_gradients",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker, and starts the backends of the option, because the run must fail if one does not start."""
    config.addinivalue_line("markers", "cg_backends(*names): run the test, which uses cg_backend, on these backends")
    config.stash[STRICT] = (set(), set())
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
    allowed = _allowed(marker, metafunc.definition.nodeid)
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
    if marker is None:
        return
    if "cg_backend" not in getattr(item, "fixturenames", ()):
        _fail(_marker_without_fixture(item.nodeid))
    if _parameter(item) not in (None, *marker.args):
        _fail(_marker_on_a_parameter(item.nodeid))


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


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the run with `--cg-strict` if a function was checked by no test."""
    config = session.config
    if not config.getoption("--cg-strict") or config.getoption("collectonly"):
        return
    names, checked = config.stash[STRICT]
    if not names:  # else the processes of pytest-xdist have found them
        names |= _decorated(config.getoption("--cg-strict"))
    if hasattr(config, "workeroutput"):
        config.workeroutput["keras_cg"] = [*names], [*checked]
    elif names - checked and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collects what a process of pytest-xdist found and checked."""
    # Nothing comes from a process that died, or without the option.
    found, checked = getattr(node, "workeroutput", {}).get("keras_cg", ((), ()))
    node.config.stash[STRICT][0].update(found)
    node.config.stash[STRICT][1].update(checked)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Names the functions that no test checked."""
    names, checked = config.stash[STRICT]
    if names - checked:
        terminalreporter.section("keras_cg: no test gave these to assert_gradients (--cg-strict)", red=True)
        for name in sorted(names - checked):
            terminalreporter.write_line(name)


@pytest.fixture
def cg_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once on each backend; the value is the name of the active one."""
    from keras_cg.frontend.config import use_backend

    if not hasattr(request, "param"):
        _fail(_fixture_without_parameter(request.node.nodeid))
    # Outside of `except`, because pytest would show the exception a second time, as the context of this one.
    problem = _problem(request.param)
    if problem is not None:
        _fail(problem)
    with use_backend(request.param):
        yield request.param


@pytest.fixture
def assert_gradients(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Returns `keras_cg.testing.assert_gradients`, which checks a custom gradient, and fails with the report."""
    from keras_cg import testing

    @functools.wraps(testing.assert_gradients)
    def noted(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        request.config.stash[STRICT][1].add(_name_of(f))
        return testing.assert_gradients(f, *args, **kwargs)

    return noted if request.config.getoption("--cg-strict") else testing.assert_gradients


def _decorated(option: str) -> set[str]:
    """Returns the names of the decorated functions and methods of the modules that `--cg-strict` names."""
    from keras_cg.command import targets

    found = set()
    for place in filter(None, map(str.strip, option.split(","))):
        try:
            importlib.import_module(place)
        except Exception as error:  # the user's module may raise anything
            found.add(f"{place}: it cannot be imported: {error}")
        for name, module in [*sys.modules.items()]:
            if name == place or name.startswith(f"{place}."):
                found |= {_name_of(getattr(module, each)) for each in targets.decorated_functions(module)}
                found |= {f"{name}.{each}" for each in targets.decorated_methods(module)}
    return found


def _name_of(f: Callable[..., Any]) -> str:
    return f"{f.__module__}.{getattr(f, '__qualname__', '')}"


def _names(config: pytest.Config) -> tuple[str, ...]:
    """Returns the backends under test."""
    if NAMES not in config.stash:
        config.stash[NAMES] = _under_test(config.getoption("--cg-backends"))
    return config.stash[NAMES]


def _parameter(item: pytest.Item) -> str | None:
    """Returns the backend that a test runs on; None if it does not use the fixture."""
    call = getattr(item, "callspec", None)
    return call.params.get("cg_backend") if call else None


def _under_test(option: str) -> tuple[str, ...]:
    """Returns the backends of `--cg-backends`, each once and loaded; without it, all installed ones.

    Raises:
        pytest.UsageError: A backend is unknown or does not start, or the option names none.
    """
    from keras_cg import backends

    if not option:
        return backends.installed()
    names = tuple(dict.fromkeys(name.strip() for name in option.split(",") if name.strip()))
    if not names:
        raise pytest.UsageError(_option_without_names(option))
    for name in names:
        try:
            backends.load(name, "--cg-backends")
        except (ValueError, ImportError) as error:
            raise pytest.UsageError(str(error)) from error
    return names


def _allowed(marker: pytest.Mark | None, test: str) -> tuple[str, ...]:
    """Returns the backends that a marker names; all, if there is no marker.

    Raises:
        pytest.Collector.CollectError: The marker names no backend, or an unknown one.
    """
    from keras_cg import backends
    from keras_cg.engine.messages import unknown_backend

    if marker is None:
        return backends.names()
    if not marker.args or marker.kwargs:
        raise pytest.Collector.CollectError(str(_marker_without_names(test)))
    for name in marker.args:
        if name not in backends.names():
            source = f"the marker cg_backends of {test}"
            raise pytest.Collector.CollectError(str(unknown_backend(name, source, backends.names())))
    return marker.args


def _problem(name: str) -> ImportError | None:
    """Returns the error by which a backend does not start; None if it starts."""
    from keras_cg import backends

    try:
        backends.load(name, "the fixture cg_backend")
    except ImportError as error:
        return error
    return None


def _fail(error: Exception) -> NoReturn:
    """Fails the test with the message alone, because the traceback would show the plugin."""
    pytest.fail(str(error), pytrace=False)


# --- messages -----------------------------------------------------------------------------------


def _option_without_names(option: str) -> str:
    """The option names no backend."""
    from keras_cg import backends

    return f"--cg-backends={option} names no backend. The backends are: {', '.join(backends.names())}."


def _marker_without_names(test: str) -> TypeError:
    """The marker names no backend, or has keywords."""
    return TypeError(
        f"{test}: the marker cg_backends takes the names of backends, one argument each:"
        ' @pytest.mark.cg_backends("jax", "torch").'
    )


def _marker_without_fixture(test: str) -> TypeError:
    """The marker is on a test without the fixture."""
    from keras_cg.errors import report

    headline = f"{test}: the marker cg_backends needs the fixture `cg_backend`, which this test does not use."
    consequence = "the test would run once, on whichever backend is active."
    remedy = "take `cg_backend` as an argument of the test, or mark only the tests that do."
    return report(TypeError, headline, consequence=consequence, remedy=remedy)


def _marker_on_a_parameter(test: str) -> TypeError:
    """The marker is on a parameter, or was added too late."""
    from keras_cg.errors import report

    headline = f"{test}: the marker cg_backends does not name the backend that this test runs on."
    cause = "it stands on one parameter, pytest.param(..., marks=...), or was added after collection."
    return report(TypeError, headline, cause=cause, remedy="put it on a test, a class or a module.")


def _fixture_without_parameter(test: str) -> TypeError:
    """The fixture is used where pytest cannot run the test several times."""
    from keras_cg.errors import report

    headline = f"{test}: the fixture `cg_backend` was asked for where a test cannot run once on each backend."
    cause = "request.getfixturevalue(), or a method of a unittest.TestCase."
    remedy = "take `cg_backend` as an argument of a test function or of a fixture that it uses."
    return report(TypeError, headline, cause=cause, remedy=remedy)
