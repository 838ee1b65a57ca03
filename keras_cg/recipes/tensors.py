"""Helpers of the recipes: checks and conversions of numbers, tensors of the active backend, and pytrees of these."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy

from keras_cg.autodiff import vjp
from keras_cg.engine import precision
from keras_cg.errors import article, type_name
from keras_cg.frontend import config, pytree
from keras_cg.frontend.decorator import CustomGradient, custom_gradient
from keras_cg.frontend.pytree import compatible, describe
from keras_cg.recipes import messages

P = ParamSpec("P")
Output = TypeVar("Output")

# The return type of a function with a custom gradient: its output and its rule.
Pair = tuple[Any, Callable[..., Any]]


def named_like(fn: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns `functools.wraps(fn)`, without the name of a lambda: AutoGraph (2.21) would look for its source."""
    is_lambda = getattr(fn, "__name__", "") == "<lambda>"
    assigned = ("__module__", "__doc__") if is_lambda else functools.WRAPPER_ASSIGNMENTS
    return functools.wraps(fn, assigned, ())


def recipe(name: str) -> Callable[[Callable[P, tuple[Output, Callable[..., Any]]]], CustomGradient[P, Output]]:
    """Returns `custom_gradient` for the inner function of a recipe, which messages call by the recipe's name."""

    def decorate(function: Callable[P, tuple[Output, Callable[..., Any]]]) -> CustomGradient[P, Output]:
        own = function.__qualname__
        function.__qualname__ = name
        decorated = custom_gradient(function)
        # pickle finds the function by its own name.
        function.__qualname__ = own
        return decorated

    return decorate


def leaves(value: Any) -> list[Any]:
    """Returns all leaves of a pytree, tensors and others."""
    return pytree.flatten(value, config.active).leaves


def mapped(function: Callable[..., Any], *values: Any) -> Any:
    """Maps `function` over the tensors of a pytree, or of several with one structure; other leaves stay as they are."""
    is_tensor = config.active.is_tensor
    tree = pytree.flatten(values[0], config.active)
    places = [place for place, leaf in enumerate(tree.leaves) if is_tensor(leaf)]
    others = [leaves(value) for value in values[1:]]
    return tree.fill(places, [function(tree.leaves[place], *(each[place] for each in others)) for place in places])


def needed(needs_input_grad: Sequence[bool], *args: Any) -> list[list[bool]]:
    """Shares out what a rule is told: for each argument, whether the gradients of its tensors are asked for."""
    told = iter(needs_input_grad)
    return [[next(told) for leaf in leaves(arg) if config.active.is_tensor(leaf)] for arg in args]


def pulled(
    f: Callable[..., Any], x: Any, args: tuple[Any, ...], needs: Sequence[bool]
) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
    """Returns the output of f(x, *args), and its pullback: from upstream to the gradients of x and of `args`.

    It is `vjp` for the tensors alone, because that makes tensors of numbers: half precision would be promoted. A tensor
    of `args` of which `needs` does not tell that its gradient is asked for gets None.
    """
    tree = pytree.flatten(args, config.active)
    places = [place for place, leaf in enumerate(tree.leaves) if config.active.is_tensor(leaf)]
    chosen = [place for place, is_needed in zip(places, needs, strict=True) if is_needed]

    def of_tensors(x: Any, *values: Any) -> Any:
        return f(x, *tree.fill(chosen, values))

    output, pullback = vjp(of_tensors, x, *(tree.leaves[place] for place in chosen))

    def pull(upstream: Any) -> tuple[Any, Any]:
        gradient, *gradients = pullback(upstream)
        found = dict(zip(chosen, gradients, strict=True))
        return gradient, tree.fill(places, [found.get(place) for place in places])

    return output, pull


def described(value: Any) -> str:
    """Describes a value for a message."""
    backend = config.active
    return describe(backend.dtype(value), backend.shape(value)) if backend.is_tensor(value) else repr(value)


def is_floating(value: Any) -> bool:
    """Whether a value is a tensor that has a gradient."""
    return config.active.is_tensor(value) and precision.is_differentiable(config.active.dtype(value))


def is_real(value: Any) -> bool:
    """Whether a value is a tensor that has a gradient, and not complex."""
    return is_floating(value) and not config.active.dtype(value).startswith("complex")


def is_full(x: Any) -> bool:
    """Whether a tensor may have elements; an unknown size may be zero only at run time."""
    return 0 not in (config.active.shape(x) or ())


def real(recipe: str, argument: str, value: Any) -> Any:
    """Returns an argument as a real floating tensor.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(value, numbers.Real) and not config.active.is_tensor(value):
        return config.active.asarray(float(value))
    if not is_real(value):
        raise not_real(recipe, argument, value)
    return value


def not_real(recipe: str, argument: str, value: Any) -> TypeError:
    """Returns the error about an argument that is no real floating tensor; the repr of an object would be long."""
    if config.active.is_tensor(value) or type(value).__module__ == "builtins":
        return messages.not_real(recipe, argument, described(value))
    return messages.no_array(recipe, argument, article(type_name(value)))


def plain(value: Any) -> Any:
    """Returns a NumPy scalar as Python's number, because a backend may count it as a tensor."""
    return value.item() if isinstance(value, numpy.generic) else value


def check_start(recipe: str, argument: str, value: Any) -> None:
    """Checks the start of an iteration: a pytree of real floating tensors, at least one.

    Raises:
        TypeError: It has no tensor, or something else in it.
    """
    if not leaves(value):
        raise messages.nothing_to_solve(recipe, argument)
    for leaf in leaves(value):
        if not is_real(leaf):
            raise not_real(recipe, argument, leaf)


def is_number(value: Any) -> bool:
    """Whether a value is a number of Python, and not NumPy's float64, which is a `float` and a tensor as well."""
    return isinstance(value, numbers.Real) and not isinstance(value, numpy.generic)


def number(recipe: str, argument: str, value: Any) -> Any:
    """Returns a number as a float, or a real floating tensor as it is.

    Raises:
        TypeError: It is neither.
    """
    if is_number(value):
        return float(value)
    if not is_real(value):
        raise messages.not_a_number(recipe, argument, article(type_name(value)))
    return value


def positive(recipe: str, argument: str, value: Any) -> float:
    """Returns a positive number as a float; a tensor is refused.

    Raises:
        ValueError: It is none.
    """
    if not is_number(value) or not float(value) > 0:
        raise messages.bad_parameter(recipe, argument, value, "a positive number")
    return float(value)


def finite(recipe: str, argument: str, value: Any, like: Any) -> float:
    """Returns a positive, finite number as a float; a tensor is refused.

    Raises:
        ValueError: It is none, or would be 0 or infinite in the dtype in which the recipe computes.
    """
    if not is_number(value) or not 0 < float(value) < math.inf:
        raise messages.bad_parameter(recipe, argument, value, "a positive, finite number")
    dtype = config.active.dtype(wide(like))
    smallest = precision.of(dtype).smallest
    if not smallest <= value <= 1 / smallest:
        raise messages.bad_parameter(
            recipe, argument, value, f"between {smallest:.2g} and {1 / smallest:.2g} ({dtype})"
        )
    return float(value)


def flag(recipe: str, argument: str, value: Any) -> bool:
    """Returns a flag of Python or NumPy as a bool.

    Raises:
        ValueError: It is neither true nor false; a string such as "no" would count as true.
    """
    value = plain(value)
    if not isinstance(value, int) or value not in (0, 1):
        raise messages.bad_parameter(recipe, argument, value, "True or False")
    return bool(value)


def cast(x: Any, dtype: str) -> Any:
    """Returns a tensor in another dtype."""
    return x if config.active.dtype(x) == dtype else config.active.cast(x, dtype)


def as_like(x: Any, like: Any) -> Any:
    """Returns `x` in the dtype of `like`."""
    return cast(x, config.active.dtype(like))


def wide(x: Any) -> Any:
    """Returns `x` in at least float32, because half precision is inexact, and TensorFlow (2.21) lacks much of it."""
    return config.active.cast(x, "float32") if config.active.dtype(x) in ("float16", "bfloat16") else x


def together(x: Any, parameter: Any) -> tuple[Any, Any]:
    """Returns a tensor and a parameter in one dtype, at least float32; a number stays a number."""
    x = wide(x)
    if is_number(parameter):
        is_double = config.active.dtype(x) in ("float64", "complex128")
        # Infinite here, because frameworks warn when they make a number infinite that float32 cannot represent.
        return x, parameter if is_double or abs(parameter) < 2.0**128 else math.copysign(math.inf, parameter)
    dtypes = {config.active.dtype(x), config.active.dtype(wide(parameter))}
    is_complex = any(dtype.startswith("complex") for dtype in dtypes)
    if dtypes & {"float64", "complex128"}:
        dtype = "complex128" if is_complex else "float64"
    else:
        dtype = "complex64" if is_complex else "float32"
    return cast(x, dtype), cast(parameter, dtype)


def times(x: Any, factor: Any) -> Any:
    """Multiplies a tensor by a number or a tensor that broadcasts to it, and rounds once, to the dtype of `x`."""
    left, right = together(x, factor)
    return as_like(left * right, x)


def check_broadcasts(recipe: str, argument: str, parameter: Any, x: Any, name: str = "x") -> None:
    """Checks that a parameter broadcasts to the shape of a tensor, called `name` in messages.

    Raises:
        ValueError: It does not, or the product would have a larger shape, or the rank of one is unknown.
    """
    if is_number(parameter):
        return
    size, whole = config.active.shape(parameter), config.active.shape(x)
    if size is None:
        raise messages.unknown_rank(recipe, argument, described(parameter))
    if whole is None:
        if size:
            raise messages.unknown_rank(recipe, name, described(x))
        return
    pairs = zip(reversed(size), reversed(whole), strict=False)
    if len(size) > len(whole) or any(1 != length != other and None not in (length, other) for length, other in pairs):
        raise messages.not_broadcast(recipe, argument, described(parameter), name, described(x))


def check_shape(recipe: str, argument: str, value: Any, name: str, like: Any) -> None:
    """Checks that a tensor has the shape of `like`, called `name` in messages.

    Raises:
        ValueError: It has another one.
    """
    if not compatible(config.active.shape(value), config.active.shape(like)):
        raise messages.not_of_shape(recipe, argument, described(value), name, described(like))


def axes(recipe: str, argument: str, x: Any, axis: Any) -> tuple[int, ...]:
    """Returns one axis of a tensor, several, or None for all, as a tuple of numbers from 0 on.

    Raises:
        ValueError: There is no such axis, or the rank is unknown.
    """
    size = config.active.shape(x)
    if size is None:
        raise messages.unknown_rank(recipe, argument, described(x))
    rank = len(size)
    if axis is None:
        return tuple(range(rank))
    several = axis if isinstance(axis, (tuple, list)) else (axis,)
    if not all(isinstance(each, int) and -rank <= each < rank for each in several):
        raise messages.bad_parameter(recipe, "axis", axis, f"an axis of a tensor with {rank}, or a tuple of such")
    return tuple(sorted({each % rank for each in several}))


def check_alike(name: str, inputs: list[Any], outputs: list[Any], of: str = "the first argument") -> None:
    """Checks that upstream of `outputs` can be the gradient of `inputs`, called `of` in messages.

    Raises:
        GradientError: Their counts or shapes differ, or an output is not floating.
    """
    backend = config.active
    pairs = list(zip(inputs, outputs, strict=False))
    if len(inputs) != len(outputs) or any(
        not (is_floating(output) and compatible(backend.shape(output), backend.shape(each)))
        for each, output in pairs
        if is_floating(each)
    ):
        came, expected = (", ".join(map(described, each)) for each in (outputs, inputs))
        raise messages.not_alike_output(name, came, expected, of)
