"""Computes the curves of a plot on one backend: a function, its custom gradient, and the expected gradient."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy

import keras_cg
from keras_cg import errors
from keras_cg.command import messages
from keras_cg.command.targets import Target
from keras_cg.frontend import config, signature

__all__ = ["Curves", "curves"]

Array = numpy.ndarray

# The tolerance of the custom gradient, relative to itself and to the largest number, for each dtype.
TOLERANCES = {"float64": 1e-6, "float32": 1e-4, "float16": 1e-2}

# The tolerance where the function does not run in double precision, so differences are in its own dtype.
COARSE = 2e-2


@dataclasses.dataclass(frozen=True)
class Curves:
    """The curves over `x`, each with one number for each point.

    Attributes:
        x: The range.
        value: The values of the function.
        gradient: The custom gradient.
        expected: The derivative by central differences, or the gradient of `--expected`; NaN at kinks, and where the
            function is not finite.
        tolerance: The largest allowed difference between `gradient` and `expected`.
        label: The name of `x`.
        others: The other arguments, as text.
    """

    x: Array
    value: Array
    gradient: Array
    expected: Array
    tolerance: Array
    label: str = "x"
    others: str = ""

    def arrays(self) -> dict[str, Array]:
        """Returns the curves by name."""
        return {name: getattr(self, name) for name in ("x", "value", "gradient", "expected", "tolerance")}

    @property
    def differs(self) -> Array:
        """Whether the gradient differs from the expected one at each point; False where that is unknown."""
        with numpy.errstate(invalid="ignore"):
            near = numpy.abs(self.gradient - self.expected) <= self.tolerance
        differs: Array = ~near & numpy.isfinite(self.expected)
        return differs


def curves(target: Target) -> Curves:
    """Computes the curves of a function on the active backend.

    Raises:
        UsageError: Not exactly one argument is a range, or the function is not elementwise.
    """
    call = _Call(target)
    x = call.x
    value = call(x)
    if value.shape != x.shape:
        raise messages.not_elementwise(target.name, f"from the shape {x.shape} it makes {value.shape}")
    _require_elementwise(target.name, call, value)
    gradient = call.gradient(target.function, x.dtype)
    expected, precision = _expected(call, target)
    size = numpy.max(numpy.abs(expected), initial=0, where=numpy.isfinite(expected))
    tolerance = max(precision, TOLERANCES.get(str(x.dtype), 1e-2)) * (numpy.abs(expected) + size + 1e-300)
    x, value, gradient, expected, tolerance = (
        each.astype(numpy.float64) for each in (x, value, gradient, expected, tolerance)
    )
    return Curves(x, value, gradient, expected, tolerance, call.name, call.others())


class _Call:
    """A function of one array, with all other arguments fixed."""

    def __init__(self, target: Target, function: Callable[..., Any] | None = None):
        self.function = function or target.function
        self.backend = config.active
        self.values = [*target.args, *target.kwargs.values()]
        self.count, self.keywords = len(target.args), tuple(target.kwargs)
        found = signature.parameters(target.function)
        self.names = [found.label(place) if found else f"args[{place}]" for place in range(self.count)]
        self.names += self.keywords
        ranges = [place for place, each in enumerate(self.values) if _is_range(each)]
        if len(ranges) != 1:
            raise messages.no_range(target.name, [self.names[place] for place in ranges])
        self.place = ranges[0]
        self.x: Array = self.values[self.place]
        self.name = self.names[self.place]

    def others(self) -> str:
        """Formats the other arguments, for the title."""
        shown = {
            name: f"{each.dtype}{list(each.shape)}" if isinstance(each, Array) else repr(each)
            for name, each in zip(self.names, self.values, strict=True)
            if name != self.name
        }
        return ", ".join(f"{name} = {text if len(text) <= 40 else text[:39] + '…'}" for name, text in shown.items())

    def apply(self, function: Callable[..., Any], x: Any, dtype: Any) -> Any:
        """Calls `function` with the tensor `x` and with the other arrays cast to `dtype`."""
        values = [self.tensor(each, dtype) if isinstance(each, Array) else each for each in self.values]
        values[self.place] = x
        return function(*values[: self.count], **dict(zip(self.keywords, values[self.count :], strict=True)))

    def tensor(self, array: Array, dtype: Any) -> Any:
        """Converts an array to a tensor, of `dtype` if it is real and floating."""
        return self.backend.asarray(array.astype(dtype) if array.dtype.kind == "f" else array)

    def __call__(self, x: Array, function: Callable[..., Any] | None = None) -> Array:
        """Returns the output at `x`, computed in the dtype of `x`."""
        with self.precision(x.dtype):
            output = self.apply(function or self.function, self.tensor(x, x.dtype), x.dtype)
            if not self.backend.is_tensor(output):
                raise messages.not_elementwise(
                    self.function.__name__, f"its output is {errors.article(errors.type_name(output))}"
                )
            found: Array = self.backend.to_numpy(output)
        if found.dtype.kind != "f":
            raise messages.not_elementwise(self.function.__name__, f"its output is of {found.dtype}")
        return found

    def gradient(self, function: Callable[..., Any], dtype: Any) -> Array:
        """Returns the gradient from the rule of `function`, for an upstream gradient of ones."""
        with self.precision(dtype):
            output, pullback = keras_cg.vjp(lambda x: self.apply(function, x, dtype), self.tensor(self.x, dtype))
            values: Array = self.backend.to_numpy(*pullback(self.backend.namespace.ones_like(output)))
        return values

    def precision(self, dtype: Any) -> contextlib.AbstractContextManager[Any]:
        """Returns the context in which tensors of `dtype` can be created."""
        return self.backend.double_precision() if dtype == numpy.float64 else contextlib.nullcontext()


def _is_range(value: Any) -> bool:
    return (
        isinstance(value, Array)
        and value.ndim == 1
        and value.size > 2
        and value.dtype.kind == "f"
        and bool((numpy.diff(value) > 0).all())
    )


def _require_elementwise(name: str, call: _Call, value: Array) -> None:
    """Raises unless a change of every other point leaves the output at the remaining points unchanged."""
    moved = call.x + 0.3 * numpy.gradient(call.x)
    for first in (0, 1):
        x = call.x.copy()
        x[first::2] = moved[first::2]
        unchanged = slice(1 - first, None, 2)
        if not numpy.allclose(call(x)[unchanged], value[unchanged], 1e-3, 1e-6, equal_nan=True):
            raise messages.not_elementwise(name, f"numbers of {call.name} change the output at others")


def _expected(call: _Call, target: Target) -> tuple[Array, float]:
    """Returns the expected gradient and its precision."""
    if target.expected is not None:
        from keras_cg.testing import subject  # needs SciPy

        if subject.is_rule(target.expected):
            return call.gradient(subject.with_rule(target.function, target.expected), call.x.dtype), 0.0
    function = target.expected or target.function
    try:
        return _slope(call, function, numpy.dtype(numpy.float64)), 0.0
    except Exception:  # a function may accept one dtype only, and each framework raises its own error
        return _slope(call, function, call.x.dtype), COARSE


def _slope(call: _Call, function: Callable[..., Any], dtype: Any) -> Array:
    """Returns the derivative by central differences; NaN where the two sides differ."""
    x = call.x.astype(dtype)
    step = numpy.finfo(dtype).eps ** (1 / 3) * numpy.maximum(1, numpy.abs(x)).astype(dtype)
    after, before = x + step, x - step
    left, here, right = (call(each, function).astype(numpy.float64) for each in (before, x, after))
    after, before, x = (each.astype(numpy.float64) for each in (after, before, x))
    with numpy.errstate(all="ignore"):
        slope = (right - left) / (after - before)
        bend = numpy.abs((right - here) / (after - x) - (here - left) / (x - before))
        # Without the steepest points, because the slope at a jump is arbitrary.
        size = numpy.nanquantile(numpy.where(numpy.isfinite(slope), numpy.abs(slope), 0), 0.9)
        return numpy.where(bend > 0.1 * numpy.abs(slope) + 1e-2 * size, numpy.nan, slope)
