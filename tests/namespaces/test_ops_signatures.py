"""`keras_cg.ops` shows the standard's parameters: `help`, editors and the standard's own tests read them."""

import inspect

import pytest

from keras_cg import ops
from keras_cg.namespaces import standard


def problem(function, line):
    """What a function lacks of a signature of the standard, by which a call could fail; None if it lacks nothing."""
    try:
        shown = inspect.signature(function).parameters
    except ValueError:  # a function in C without a signature
        return None
    for place, parameter in enumerate(standard.parameters(line)):
        own = [*shown.values()][: place + 1][-1]
        by_name = shown.get(parameter.name)
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            is_there = len(shown) > place or own.kind is own.VAR_POSITIONAL
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            is_there = by_name is own
        else:
            is_there = by_name is not None and by_name.kind is not by_name.POSITIONAL_ONLY
        if not is_there:
            return f"{parameter} is missing"
    return None


LINES = standard.FUNCTIONS | standard.BEYOND


@pytest.mark.parametrize("name", LINES)
def test_the_parameters_of_the_standard(backend, name):
    module, _, function = name.rpartition(".")
    found = problem(getattr(getattr(ops, module) if module else ops, function), LINES[name])
    assert found is None, f"{name}: {found}"
