"""The docstrings of the reference: each has its sections, its parameters, shapes, and names that exist."""

import importlib
import inspect
import re

import pytest
from test_public import MODULES

import keras_cg

pytestmark = pytest.mark.side_by_side  # it needs Keras, and is about no backend

# Functions that raise no errors of ours.
NO_ERRORS = ("available_backends", "keras.uninstall", "ops.stop_gradient", "testing.agreement")
# Functions without tensors.
NO_SHAPES = (
    *("available_backends", "backend", "set_backend", "use_backend", "testing.agreement"),
    *("keras.CustomGradientOperation", "keras.install", "keras.installed", "keras.uninstall"),
)
# Classes that only keras_cg creates: their docstrings describe attributes.
RESULTS = ("decorator.CustomGradient", "testing.Finding", "testing.Report", "GradientError")
SHAPE = re.compile(r"`(?:any|bool|float|inexact)\[(?:(?:\.\.\.|\*?\w+)(?:, \*?\w+)*)?\]`")


def public():
    """Each function and class of the reference, by its name without `keras_cg`."""
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            value = getattr(importlib.import_module(module), name)
            if not inspect.ismodule(value):
                yield f"{module}.{name}".removeprefix("keras_cg."), value
    yield "ops.stop_gradient", keras_cg.ops.stop_gradient
    yield "decorator.CustomGradient", importlib.import_module("keras_cg.decorator").CustomGradient


REFERENCE = dict(public())


def lacks(name, value):
    """The sections and the parameters that a docstring does not have."""
    text = inspect.getdoc(value)
    found = set(re.findall(r"^(Args|Attributes|Returns|Raises|See Also|Example):$", text, re.MULTILINE))
    wanted = {"See Also", "Example"}
    parameters = []
    if name in RESULTS:
        wanted.add("Attributes")
    elif not (inspect.isclass(value) and issubclass(value, Exception)):
        parameters = [each for each in inspect.signature(value).parameters if each != "kwargs" or name[:5] != "keras"]
        returns = inspect.signature(value).return_annotation
        wanted |= {"Args"} if parameters else set()
        wanted |= set() if inspect.isclass(value) or returns in (None, "None") else {"Returns"}
        wanted |= set() if name in NO_ERRORS else {"Raises"}
    described = re.findall(r"^    \*{0,2}(\w+): ", text, re.MULTILINE)
    return sorted(wanted - found) + [each for each in parameters if each not in described]


@pytest.mark.parametrize("name", REFERENCE)
def test_every_docstring_has_its_sections_and_parameters(name):
    assert lacks(name, REFERENCE[name]) == []


@pytest.mark.parametrize("name", [name for name in REFERENCE if name not in (*NO_SHAPES, *RESULTS)])
def test_shapes_are_written_as_the_reference_explains(name):
    if not isinstance(REFERENCE[name], type) or not issubclass(REFERENCE[name], Exception):
        assert SHAPE.search(inspect.getdoc(REFERENCE[name]))


@pytest.mark.parametrize("name", REFERENCE)
def test_see_also_names_public_names(name):
    part = re.search(r"^See Also:\n((?: .*\n?)+)", inspect.getdoc(REFERENCE[name]), re.MULTILINE)[1]
    named = re.findall(r"`keras_cg\.([\w.]+)`", part)
    assert named and name not in named
    assert [each for each in named if each not in REFERENCE] == []


@pytest.mark.parametrize("name", [name for name in REFERENCE if name.startswith("recipes.")])
def test_every_recipe_has_a_source(name):
    assert re.search(r"^Sources?: ", inspect.getdoc(REFERENCE[name]), re.MULTILINE)


def test_a_docstring_without_its_parts_is_found():
    def bare(x, y) -> int:
        """Returns a number.

        Args:
            x: A number.
        """

    assert lacks("bare", bare) == ["Example", "Raises", "Returns", "See Also", "y"]
