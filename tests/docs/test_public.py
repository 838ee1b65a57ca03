"""What other people's code relies on: the public names and their signatures are those that are recorded.

What differs on purpose is recorded by `KERAS_BACKEND=numpy python tests/docs/test_public.py`. CONTRIBUTING says what
may differ, and how it is told before, under "What stays as it is".
"""

import importlib
import inspect
import pathlib

import pytest

import keras_cg

MODULES = (
    *("keras_cg", "keras_cg.ops", "keras_cg.testing", "keras_cg.recipes", "keras_cg.keras", "keras_cg.keras.layers"),
)
RECORD = pathlib.Path(__file__).parent / "public.txt"

pytestmark = pytest.mark.side_by_side  # it needs Keras, and is about no backend


def public():
    """A line for each public name, and for each public method or attribute that a class of ours defines."""
    lines = []
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            if module is keras_cg or getattr(keras_cg, name, None) is not getattr(module, name):
                lines += described(f"{module.__name__}.{name}", getattr(module, name))
    return sorted(lines)


def described(name, value):
    if inspect.ismodule(value):
        return [name]
    if not inspect.isclass(value):
        return [f"{name}{signature(value)}"]
    bases = [base.__name__ for base in value.__bases__ if base is not object]
    lines = [f"class {name}({', '.join(bases)})"]
    kinds = [kind for kind in value.__mro__ if kind.__module__.startswith("keras_cg")]
    for each in sorted({each for kind in kinds for each in (*vars(kind), *getattr(kind, "__annotations__", ()))}):
        if each.startswith("_") and each != "__init__":
            continue
        part = inspect.getattr_static(value, each, None)
        if each == "__init__" and not inspect.isfunction(part):
            continue
        if inspect.isfunction(part) or isinstance(part, (classmethod, staticmethod)):
            lines.append(f"{name}.{each}{signature(getattr(value, each))}")
        else:
            lines.append(f"{name}.{each}")
    return lines


def signature(value):
    """The parameters of a function with their defaults, without annotations."""
    found = inspect.signature(value)
    parameters = [parameter.replace(annotation=parameter.empty) for parameter in found.parameters.values()]
    return str(found.replace(parameters=parameters, return_annotation=found.empty))


def test_the_public_names_are_those_that_are_recorded():
    recorded = RECORD.read_text().splitlines()
    found = public()
    assert {"gone": [*{*recorded} - {*found}], "new": [*{*found} - {*recorded}]} == {"gone": [], "new": []}
    assert recorded == found


def test_who_cites_it_names_the_version():
    text = (RECORD.parents[2] / "CITATION.cff").read_text()
    assert f"\nversion: {keras_cg.__version__}\n" in text


if __name__ == "__main__":
    RECORD.write_text("\n".join(public()) + "\n")
