"""What the recipes share: numbers and tensors of the active backend, and nests of them."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy

from keras_cg import config, pytree
from keras_cg.autodiff import vjp
from keras_cg.engine import precision
from keras_cg.pytree import compatible, describe
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
    return pytree.flatten(value, config.active.is_tensor, config.active.children).leaves


def mapped(function: Callable[..., Any], *values: Any) -> Any:
    """A nest of what `function` makes of the tensors of one nest, or of several that are alike."""
    is_tensor = config.active.is_tensor
    tree = pytree.flatten(values[0], is_tensor, config.active.children)
    places = [place for place, leaf in enumerate(tree.leaves) if is_tensor(leaf)]
    others = [leaves(value) for value in values[1:]]
    return tree.fill(places, [function(tree.leaves[place], *(each[place] for each in others)) for place in places])


def pulled(f: Callable[..., Any], x: Any, args: tuple[Any, ...]) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
    """The output of f(x, *args), and its pullback: from upstream to the gradients of x, and of the tensors in `args`.

    Not `vjp` itself, for which a number is a tensor of the default dtype: half precision beside it would be none.
    """
    tree = pytree.flatten(args, config.active.is_tensor, config.active.children)
    places = [place for place, leaf in enumerate(tree.leaves) if config.active.is_tensor(leaf)]

    def moving(x: Any, *moved: Any) -> Any:
        return f(x, *tree.fill(places, moved))

    output, pullback = vjp(moving, x, *(tree.leaves[place] for place in places))

    def pull(upstream: Any) -> tuple[Any, Any]:
        gradient, *gradients = pullback(upstream)
        return gradient, tree.fill(places, gradients)

    return output, pull


def described(value: Any) -> str:
    """A value in a message."""
    backend = config.active
    return describe(backend.dtype(value), backend.shape(value)) if backend.is_tensor(value) else repr(value)


def is_floating(value: Any) -> bool:
    """Whether a value is a tensor that has a gradient."""
    return config.active.is_tensor(value) and precision.is_differentiable(config.active.dtype(value))


def is_real(value: Any) -> bool:
    """Whether a value is a tensor that has a gradient, and not complex."""
    return is_floating(value) and not config.active.dtype(value).startswith("complex")


def is_full(x: Any) -> bool:
    """Whether a tensor has any elements, as far as is known."""
    return 0 not in (config.active.shape(x) or ())


def real(recipe: str, argument: str, value: Any) -> Any:
    """A real floating tensor."""
    if isinstance(value, numbers.Real) and not config.active.is_tensor(value):
        return config.active.asarray(as_float(recipe, argument, value))
    if not is_real(value):
        raise messages.not_real(recipe, argument, described(value))
    return value


def plain(value: Any) -> Any:
    """A parameter that is a scalar of NumPy as Python's number: a number, though each backend holds it as a tensor."""
    return value.item() if isinstance(value, numpy.generic) else value


def check_start(recipe: str, argument: str, value: Any) -> None:
    """Whether something can start from a nest: real floating tensors, and at least one."""
    if not leaves(value):
        raise messages.nothing_to_solve(recipe, argument)
    for leaf in leaves(value):
        if not is_real(leaf):
            raise messages.not_real(recipe, argument, described(leaf))


def is_number(value: Any) -> bool:
    """Whether a value is a number of Python's own, and not NumPy's float64, which is a float and a tensor as well."""
    return isinstance(value, numbers.Real) and not isinstance(value, numpy.generic)


def as_float(recipe: str, argument: str, value: Any) -> float:
    """A number as a float, which integers and fractions may be too large for."""
    try:
        return float(value)
    except OverflowError:
        raise messages.too_large(recipe, argument) from None


def number(recipe: str, argument: str, value: Any) -> Any:
    """A number as a float, or a real floating tensor."""
    if is_number(value):
        return as_float(recipe, argument, value)
    if not is_real(value):
        raise messages.not_a_number(recipe, argument, value)
    return value


def positive(recipe: str, argument: str, value: Any) -> float:
    """A positive number that is no tensor."""
    if not is_number(value) or not as_float(recipe, argument, value) > 0:
        raise messages.bad_parameter(recipe, argument, value, "a positive number")
    return float(value)


def finite(recipe: str, argument: str, value: Any, like: Any) -> float:
    """A positive number that is not infinite, and no tensor; nor that or 0 in the dtype in which is computed."""
    if not is_number(value) or not 0 < as_float(recipe, argument, value) < math.inf:
        raise messages.bad_parameter(recipe, argument, value, "a positive, finite number")
    dtype = config.active.dtype(wide(like))
    smallest = precision.of(dtype).smallest
    if not smallest <= value <= 1 / smallest:
        raise messages.bad_parameter(
            recipe, argument, value, f"between {smallest:.2g} and {1 / smallest:.2g} ({dtype})"
        )
    return float(value)


def cast(x: Any, dtype: str) -> Any:
    """A tensor in a dtype."""
    return x if config.active.dtype(x) == dtype else config.active.cast(x, dtype)


def as_like(x: Any, like: Any) -> Any:
    """`x` in the dtype of another tensor."""
    return cast(x, config.active.dtype(like))


def wide(x: Any) -> Any:
    """`x` in at least float32: half precision is too narrow, and TensorFlow (2.21) lacks much of it."""
    return config.active.cast(x, "float32") if config.active.dtype(x) in ("float16", "bfloat16") else x


def together(x: Any, parameter: Any) -> tuple[Any, Any]:
    """A tensor in at least float32, and a parameter to compute with it: a number, or a tensor of the same dtype."""
    x = wide(x)
    if is_number(parameter):
        is_double = config.active.dtype(x) in ("float64", "complex128")
        # Frameworks warn of a number that float32 does not hold, before they make it infinite.
        return x, parameter if is_double or abs(parameter) < 2.0**128 else math.copysign(math.inf, parameter)
    dtypes = {config.active.dtype(x), config.active.dtype(wide(parameter))}
    is_complex = any(dtype.startswith("complex") for dtype in dtypes)
    if dtypes & {"float64", "complex128"}:
        dtype = "complex128" if is_complex else "float64"
    else:
        dtype = "complex64" if is_complex else "float32"
    return cast(x, dtype), cast(parameter, dtype)


def times(x: Any, factor: Any) -> Any:
    """A tensor times a number, or a tensor that broadcasts to it: rounded once, at the end, to the dtype of `x`."""
    left, right = together(x, factor)
    return as_like(left * right, x)


def check_broadcasts(recipe: str, argument: str, parameter: Any, x: Any, name: str = "x") -> None:
    """Whether a parameter broadcasts to the tensor of that name, and the tensor not to the parameter."""
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
    """Whether a tensor has the shape of another one."""
    if not compatible(config.active.shape(value), config.active.shape(like)):
        raise messages.not_of_shape(recipe, argument, described(value), name, described(like))


def axes(recipe: str, argument: str, x: Any, axis: Any) -> tuple[int, ...]:
    """One axis of a tensor, several or None for all, as numbers from 0 on."""
    size = config.active.shape(x)
    if size is None:
        raise messages.unknown_rank(recipe, argument, described(x))
    rank = len(size)
    if axis is None:
        return tuple(range(rank))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    if not all(isinstance(each, int) and -rank <= each < rank for each in given):
        raise messages.bad_parameter(recipe, "axis", axis, f"an axis of a tensor with {rank}, or a tuple of such")
    return tuple(sorted({each % rank for each in given}))


def check_alike(name: str, inputs: list[Any], outputs: list[Any], of: str = "the first argument") -> None:
    """Whether upstream, of some outputs, can be the gradient of some inputs: those of what messages call `of`."""
    backend = config.active
    pairs = list(zip(inputs, outputs, strict=False))
    if len(inputs) != len(outputs) or any(
        not (is_floating(output) and compatible(backend.shape(output), backend.shape(each)))
        for each, output in pairs
        if is_floating(each)
    ):
        came, expected = (", ".join(map(described, each)) for each in (outputs, inputs))
        raise messages.not_alike_output(name, came, expected, of)
