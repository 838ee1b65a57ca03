"""What the public names say of themselves: each has a docstring, and the examples in the docstrings run."""

import doctest
import importlib
import pkgutil

import pytest

import keras_cg

pytestmark = pytest.mark.only("numpy")

RECIPES = ["annealed", "callback", "checkpoint", "discrete", "implicit", "passing", "repeated", "reversible", "safe"]
EXAMPLES = [
    "autodiff",
    "frontend.config",
    "frontend.decorator",
    "errors",
    "ops",
    "testing.checker",
    "testing.report",
    *(f"recipes.{name}" for name in RECIPES),
]


def test_the_public_names_are_what_is_exported():
    # The modules of the package are no names of its own, and pytest adds names with @ where there is a plugin.
    files = {module.name for module in pkgutil.iter_modules(keras_cg.__path__)}
    public = {name for name in vars(keras_cg) if not name.startswith(("_", "@"))}
    assert public - (files - set(keras_cg.__all__)) == set(keras_cg.__all__)
    assert keras_cg.__all__ == sorted(keras_cg.__all__)
    without = {name for name in keras_cg.__all__ if not (getattr(keras_cg, name).__doc__ or "").strip()}
    assert without <= {"ops", "recipes"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_docstrings_run(clean_environment, name):
    tested = doctest.testmod(importlib.import_module(f"keras_cg.{name}"))
    assert tested.attempted and not tested.failed
