"""The pytest plugin: your tests run on every backend, and check gradients there.

It works as soon as keras_cg and pytest are installed. pytest loads `_keras_cg.pytest_plugin` at its start, which
imports neither this file nor NumPy before a test uses one of these. No framework is imported before a test runs on it.

- `cg_backend`, a fixture: the test runs once on each backend, which is active; the value is its name.
- `assert_gradients`, a fixture: `keras_cg.testing.assert_gradients`, which fails with the checker's report.
- `--cg-backends=jax,torch`: the backends to test, with commas between; without it, all installed ones. If a backend of
  the option does not start, the run fails; if another installed one does not, its tests fail.
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

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import pytest

from keras_cg import backends
from keras_cg.engine.messages import unknown_backend
from keras_cg.errors import report
from keras_cg.frontend.config import use_backend

__all__ = ["active", "allowed", "require_restriction", "under_test"]


def under_test(option: str) -> tuple[str, ...]:
    """Returns the backends of `--cg-backends`, each once and loaded; without it, all installed ones.

    Raises:
        pytest.UsageError: A backend is unknown or does not start, or the option names none.
    """
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


def allowed(marker: pytest.Mark | None, test: str) -> tuple[str, ...]:
    """Returns the backends that a marker names; all, if there is no marker.

    Raises:
        pytest.Collector.CollectError: The marker names no backend, or an unknown one.
    """
    if marker is None:
        return backends.names()
    if not marker.args or marker.kwargs:
        raise pytest.Collector.CollectError(str(_marker_without_names(test)))
    for name in marker.args:
        if name not in backends.names():
            source = f"the marker cg_backends of {test}"
            raise pytest.Collector.CollectError(str(unknown_backend(name, source, backends.names())))
    return marker.args


def require_restriction(item: pytest.Item, marker: pytest.Mark, backend: str | None) -> None:
    """Fails a test if its marker restricts nothing."""
    if "cg_backend" not in getattr(item, "fixturenames", ()):
        _fail(_marker_without_fixture(item.nodeid))
    if backend is not None and backend not in marker.args:
        _fail(_marker_on_a_parameter(item.nodeid))


@contextlib.contextmanager
def active(request: pytest.FixtureRequest) -> Iterator[None]:
    """Activates the backend of the fixture `cg_backend`; fails the test if it does not start."""
    if not hasattr(request, "param"):
        _fail(_fixture_without_parameter(request.node.nodeid))
    # Outside of `except`, because pytest would show the exception a second time, as the context of this one.
    problem = _problem(request.param)
    if problem is not None:
        _fail(problem)
    with use_backend(request.param):
        yield


def _problem(name: str) -> ImportError | None:
    """Returns the error by which a backend does not start; None if it starts."""
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
    return f"--cg-backends={option} names no backend. The backends are: {', '.join(backends.names())}."


def _marker_without_names(test: str) -> TypeError:
    """The marker names no backend, or has keywords."""
    return TypeError(
        f"{test}: the marker cg_backends takes the names of backends, one argument each:"
        ' @pytest.mark.cg_backends("jax", "torch").'
    )


def _marker_without_fixture(test: str) -> TypeError:
    """The marker is on a test without the fixture."""
    headline = f"{test}: the marker cg_backends needs the fixture `cg_backend`, which this test does not use."
    consequence = "the test would run once, on whichever backend is active."
    remedy = "take `cg_backend` as an argument of the test, or mark only the tests that do."
    return report(TypeError, headline, consequence=consequence, remedy=remedy)


def _marker_on_a_parameter(test: str) -> TypeError:
    """The marker is on a parameter, or was added too late."""
    headline = f"{test}: the marker cg_backends does not name the backend that this test runs on."
    cause = "it stands on one parameter, pytest.param(..., marks=...), or was added after collection."
    return report(TypeError, headline, cause=cause, remedy="put it on a test, a class or a module.")


def _fixture_without_parameter(test: str) -> TypeError:
    """The fixture is used where pytest cannot run the test several times."""
    headline = f"{test}: the fixture `cg_backend` was asked for where a test cannot run once on each backend."
    cause = "request.getfixturevalue(), or a method of a unittest.TestCase."
    remedy = "take `cg_backend` as an argument of a test function or of a fixture that it uses."
    return report(TypeError, headline, cause=cause, remedy=remedy)
