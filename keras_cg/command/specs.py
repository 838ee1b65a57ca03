"""Evaluates the arguments of `--arg` and of `example_args`: Python expressions with `np` and `rng`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy

from keras_cg.command import messages

__all__ = ["evaluate", "named", "old"]

# The specs of keras_cg 0.3 that were evaluated, each with the expression that replaces it.
old: dict[str, str] = {}

_OLD = (
    (r"normal:\(?([^:()]*)\)?", "rng.normal(size=[{}])"),
    (r"uniform:([^:]*):\(?([^:()]*)\)?", "rng.uniform({}, size=[{}])"),
    (r"linspace:([^:]*)", "np.linspace({})"),
    (r"([^:'\"]*)(?=:)", "np.asarray({})"),
)


def named(texts: Sequence[str]) -> dict[str, str]:
    """Returns the values of `--arg` as expressions by name.

    Raises:
        UsageError: A value is not of the form `name=expression`, or a name occurs twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, expression = text.partition("=")
        if not equals or not name.isidentifier():
            raise messages.bad_argument(text)
        if name in found:
            raise messages.repeated_argument(name)
        found[name] = expression.strip()
    return found


def evaluate(name: str, text: str, seed: int) -> Any:
    """Evaluates the expression of the argument `name`; one seed gives the same numbers in every process.

    Raises:
        UsageError: The expression raises.
    """
    # Each argument has its own generator, so its numbers do not depend on the other arguments.
    names = {"np": numpy, "rng": numpy.random.default_rng([seed, *name.encode()])}
    try:
        return eval(_current(name, text), names)
    except Exception as error:
        raise messages.bad_spec(name, text, error) from None


def _current(name: str, text: str) -> str:
    """Returns the expression for a spec of keras_cg 0.3, such as `normal:4,3:float64`; any other text as it is."""
    expression = f"np.load({text[1:]!r})" if text.startswith("@") else None
    for pattern, call in _OLD:
        found = re.fullmatch(pattern + r"(?::(?P<dtype>float16|float32|float64))?", text)
        if found:
            *parts, dtype = found.groups()
            expression = f"{call.format(*parts)}.astype({dtype or 'float32'!r})"
            break
    if expression is None:
        return text
    old[f"{name}={text}"] = f"{name}={expression}"
    return expression
