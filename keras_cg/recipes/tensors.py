"""What the recipes share: numbers and tensors of the active backend, and nests of them."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable
from typing import Any

from keras_cg import config, nest
from keras_cg.decorator import custom_gradient
from keras_cg.engine.precision import is_differentiable
from keras_cg.leaves import compatible, describe
from keras_cg.recipes import messages

# What a function with a custom gradient returns: its output and its rule.
Pair = tuple[Any, Callable[..., Any]]


def named_like(fn: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As `functools.wraps`; but of what is called a lambda, TensorFlow's AutoGraph (2.21) would look for the source."""
    is_lambda = getattr(fn, "__name__", "") == "<lambda>"
    kept = ("__module__", "__doc__") if is_lambda else functools.WRAPPER_ASSIGNMENTS
    return functools.wraps(fn, kept, ())


def leaves(value: Any) -> list[Any]:
    """The leaves of a nest, those that are no tensors included."""
    return nest.flatten(value, config.active.is_tensor, config.active.children).leaves


def mapped(function: Callable[..., Any], *values: Any) -> Any:
    """A nest of what `function` makes of the tensors of one nest, or of several that are alike."""
    is_tensor = config.active.is_tensor
    laid = nest.flatten(values[0], is_tensor, config.active.children)
    places = [place for place, leaf in enumerate(laid.leaves) if is_tensor(leaf)]
    others = [leaves(value) for value in values[1:]]
    return laid.fill(places, [function(laid.leaves[place], *(each[place] for each in others)) for place in places])


def described(value: Any) -> str:
    """A value in a message."""
    backend = config.active
    return describe(backend.dtype(value), backend.shape(value)) if backend.is_tensor(value) else repr(value)


def is_floating(value: Any) -> bool:
    """Whether a value is a tensor that has a gradient."""
    return config.active.is_tensor(value) and is_differentiable(config.active.dtype(value))


def is_real(value: Any) -> bool:
    """Whether a value is a tensor that has a gradient, and not complex."""
    return is_floating(value) and not config.active.dtype(value).startswith("complex")


def real(recipe: str, argument: str, value: Any) -> Any:
    """A real floating tensor."""
    if isinstance(value, numbers.Real) and not config.active.is_tensor(value):
        return config.active.asarray(float(value))
    if not is_real(value):
        raise messages.not_real(recipe, argument, described(value))
    return value


def number(recipe: str, argument: str, value: Any) -> Any:
    """A number as a float, or a real floating tensor."""
    if isinstance(value, numbers.Real) and not config.active.is_tensor(value):
        return float(value)
    if not is_real(value):
        raise messages.not_a_number(recipe, argument, value)
    return value


def positive(recipe: str, argument: str, value: Any) -> float:
    """A positive number that is no tensor."""
    if not isinstance(value, numbers.Real) or not float(value) > 0:
        raise messages.bad_parameter(recipe, argument, value, "a positive number")
    return float(value)


def cast(x: Any, dtype: str) -> Any:
    """A tensor in a dtype."""
    return x if config.active.dtype(x) == dtype else config.active.cast(x, dtype)


def as_like(x: Any, like: Any) -> Any:
    """`x` in the dtype of another tensor."""
    return cast(x, config.active.dtype(like))


def fit(number: Any, like: Any) -> Any:
    """A number, or a tensor in the dtype of another one."""
    return number if isinstance(number, float) else as_like(number, like)


def wide(x: Any) -> Any:
    """`x` in at least float32: half precision is too narrow, and TensorFlow (2.21) lacks much of it."""
    return x if config.active.dtype(x) in ("float32", "float64") else config.active.cast(x, "float32")


def check_alike(name: str, inputs: list[Any], outputs: list[Any]) -> None:
    """Whether upstream, of some outputs, can be the gradient of some inputs."""
    backend = config.active
    pairs = list(zip(inputs, outputs, strict=False))
    if len(inputs) != len(outputs) or any(
        not (is_floating(output) and compatible(backend.shape(output), backend.shape(each)))
        for each, output in pairs
        if is_floating(each)
    ):
        raise messages.not_alike_output(name, *(", ".join(map(described, each)) for each in (outputs, inputs)))


@custom_gradient
def constant(x: Any) -> Pair:
    """`x` without a gradient."""
    return x, lambda upstream: None
