"""The docstrings of the reference: each has its sections, its parameters, shapes, and names that exist."""

import functools
import importlib
import inspect
import re

import pytest
from test_public import MODULES

from keras_cg import ops
from keras_cg.frontend import decorator

pytestmark = pytest.mark.side_by_side  # it needs Keras, and is about no backend

# Functions that raise no errors of ours.
NO_ERRORS = ("available_backends", "keras.uninstall", "testing.agreement", *(f"ops.{name}" for name in ops.__all__))
# Functions without tensors.
NO_SHAPES = (
    *("available_backends", "backend", "set_backend", "use_backend", "testing.agreement"),
    *("keras.CustomGradientOperation", "keras.install", "keras.installed", "keras.uninstall"),
)
# Classes that only keras_cg creates: their docstrings describe attributes.
RESULTS = ("decorator.CustomGradient", "testing.Finding", "testing.Report", "GradientError")
SHAPE = re.compile(r"`(?:any|bool|float|inexact)\[(?:(?:\.\.\.|\*?\w+)(?:, \*?\w+)*)?\]`")


@functools.cache
def reference():
    """Each function and class of the reference, by its name without `keras_cg`."""
    found = {"decorator.CustomGradient": decorator.CustomGradient}
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            if not inspect.ismodule(getattr(module, name)):
                found[f"{module.__name__}.{name}".removeprefix("keras_cg.")] = getattr(module, name)
    return found


def is_error(value):
    return inspect.isclass(value) and issubclass(value, Exception)


def lacks(name, value):
    """The sections and the parameters that a docstring does not have."""
    text = inspect.getdoc(value)
    found = set(re.findall(r"^(Args|Attributes|Returns|Raises|See Also|Example):$", text, re.MULTILINE))
    wanted = {"See Also", "Example"}
    parameters = []
    if name in RESULTS:
        wanted.add("Attributes")
    elif not is_error(value):
        parameters = [each for each in inspect.signature(value).parameters if each != "kwargs" or name[:5] != "keras"]
        returns = inspect.signature(value).return_annotation
        wanted |= {"Args"} if parameters else set()
        wanted |= set() if inspect.isclass(value) or returns in (None, "None") else {"Returns"}
        wanted |= set() if name in NO_ERRORS else {"Raises"}
    described = re.findall(r"^    \*{0,2}(\w+): ", text, re.MULTILINE)
    return sorted(wanted - found) + [each for each in parameters if each not in described]


def test_every_docstring_has_its_sections_and_parameters():
    assert {name: lacks(name, value) for name, value in reference().items() if lacks(name, value)} == {}


def test_shapes_are_written_as_the_reference_explains():
    with_shapes = {name: each for name, each in reference().items() if name not in (*NO_SHAPES, *RESULTS)}
    assert [n for n, each in with_shapes.items() if not is_error(each) and not SHAPE.search(inspect.getdoc(each))] == []


def test_see_also_names_public_names():
    for name, value in reference().items():
        part = re.search(r"^See Also:\n((?: .*\n?)+)", inspect.getdoc(value), re.MULTILINE)[1]
        named = re.findall(r"`keras_cg\.([\w.]+)`", part)
        assert named and name not in named and {*named} <= {*reference()}, name


def test_every_recipe_has_a_source():
    recipes = {name: value for name, value in reference().items() if name.startswith("recipes.")}
    assert recipes
    assert [n for n, each in recipes.items() if not re.search(r"^Sources?: ", inspect.getdoc(each), re.MULTILINE)] == []
