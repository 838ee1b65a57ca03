"""Reads and checks the gradients that a rule returned."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras_cg import errors, user_code
from keras_cg.engine.precision import is_differentiable
from keras_cg.frontend import messages, signature
from keras_cg.frontend.arguments import Arguments
from keras_cg.frontend.pytree import compatible, describe

# What the gradient of a tensor must look like: its dtype and its shape.
Spec = tuple[str, tuple[int | None, ...] | None]


class _Served(NamedTuple):
    """The gradients of the arguments, in the result of a rule that also has gradients of captured values."""

    result: Any


# The functions that were told to have no gradient, by name and place: a function may be defined again at each call.
_told: set[tuple[str, str]] = set()


def collect(
    arguments: Arguments, specs: Sequence[Spec], result: Any, needs_grad: Sequence[bool] | None, rule: Any = None
) -> tuple[Any, ...]:
    """Returns one checked gradient for each tensor argument; those that are not needed are None, without a check.

    Raises GradientError if the result does not fit. Warns once for each function if there is no gradient at all.
    """

    def label() -> str:
        return arguments.labels()[arguments.static.places[index]]

    checked: list[Any] = []
    is_served = isinstance(result, _Served)
    gradients = _for_each(arguments, specs, result.result if is_served else result)
    is_asked = not is_served and (needs_grad is None or any(needs_grad))
    if gradients and is_asked and all([gradient is None for gradient in gradients]):
        _warn(arguments, rule or arguments.user)
    if needs_grad is not None and any([gradient is None for gradient in gradients]):
        whole = result.result if is_served else result
        misread = _misread(arguments, whole, gradients, needs_grad, rule or arguments.user)
        if misread is not None:
            index = misread
            raise messages.misread_needs(arguments.name, label())
    for index, (gradient, spec) in enumerate(zip(gradients, specs, strict=True)):
        is_needed = needs_grad is None or needs_grad[index]
        checked.append(check(arguments, gradient, spec, label) if is_needed else None)
    return tuple(checked)


def needs_input_grad(arguments: Arguments, needs_grad: Sequence[bool]) -> tuple[bool, ...]:
    """Returns what a rule or a function gets as `needs_input_grad`: a boolean for each tensor argument.

    Raises TypeError where they differ, and belong to a dict that the user wrote down in another order.
    """
    if len({*needs_grad}) > 1 and not arguments.static.is_in_order(arguments.static.places):
        raise messages.unsorted_needs(arguments.name)
    return tuple(needs_grad)


def _misread(
    arguments: Arguments, result: Any, gradients: Sequence[Any], needs_grad: Sequence[bool], rule: Any
) -> int | None:
    """Returns the place of a gradient that a rule left out, as if static arguments had a boolean, too; else None."""
    places, is_flat = arguments.static.places, isinstance(result, (tuple, list))
    if not is_flat or len(result) != len(arguments.static.leaves) or [*places] == [*range(len(places))]:
        return None
    parameters = signature.parameters(rule)
    if signature.NEEDS not in arguments.extras and (parameters is None or signature.NEEDS not in parameters.names()):
        return None
    for index, (place, gradient) in enumerate(zip(places, gradients, strict=True)):
        if gradient is None and needs_grad[index] and place < len(needs_grad) and not needs_grad[place]:
            return index
    return None


def _for_each(arguments: Arguments, specs: Sequence[Spec], result: Any) -> Sequence[Any]:
    """Returns what a rule returned for each tensor argument, in order."""
    gradients: Sequence[Any] = arguments.static.tensors_of(
        tuple(result) if type(result) in (tuple, list) else (result,)
    )
    if gradients and all(map(arguments.backend.is_tensor, gradients)):
        return gradients
    # Here, because it imports optree: see `containers`.
    from keras_cg.frontend import readings

    return readings.Reader(arguments, specs).pick(result)


def _warn(arguments: Arguments, rule: Any) -> None:
    """Warns of a rule without a gradient, but not of one of this package, nor while torch.compile traces."""
    where = None if user_code.is_traced_by_dynamo() else user_code.location(rule, arguments.user)
    if where is not None and (arguments.name, where) not in _told:
        _told.add((arguments.name, where))
        warnings.warn(errors.locate(messages.no_gradient(arguments.name), rule, arguments.user), stacklevel=2)


def check(arguments: Arguments, gradient: Any, spec: Spec, label: Callable[[], str]) -> Any:
    """Returns a gradient as a tensor that fits `spec`, or None if it is nothing; raises GradientError otherwise."""
    backend, name, (dtype, shape) = arguments.backend, arguments.name, spec
    if gradient is None or not is_differentiable(dtype):
        return None
    number = None
    if not backend.is_tensor(gradient):
        if not isinstance(gradient, (int, float, complex)):
            came = errors.article(errors.type_name(gradient))
            raise messages.not_a_gradient(name, came, describe(dtype, shape), label())
        if gradient == 0 and not isinstance(gradient, bool):
            return None
        # Which dtype a number gets differs from framework to framework.
        number = type(gradient).__name__
    gradient = backend.asarray(gradient)
    came, size = backend.dtype(gradient), backend.shape(gradient)
    if came == dtype and size == shape:
        return gradient
    shown, expected = describe(number or came, size), describe(dtype, shape)
    if came == "bool":
        raise messages.boolean_gradient(name, shown, expected, label())
    if came.startswith("complex") and not dtype.startswith("complex"):
        raise messages.wrong_kind(name, shown, expected, label())
    if not compatible(size, shape):
        raise messages.wrong_shape(name, shown, expected, label(), _broadcast_axes(size, shape))
    return gradient if came == dtype else backend.cast(gradient, dtype)


def check_variables(arguments: Arguments, result: Any, variables: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Splits the result of a rule with `variables` into the gradients of the arguments, and the checked others."""
    backend, due = arguments.backend, errors.count(len(variables), "gradient")
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise messages.wrong_variable_count(arguments.name, errors.article(errors.type_name(result)), due)
    gradients, others = result
    if not isinstance(others, (tuple, list)) or len(others) != len(variables):
        came = f"{len(others)} of them" if isinstance(others, (tuple, list)) else errors.type_name(others)
        raise messages.wrong_variable_count(arguments.name, came, due)
    specs = [(backend.dtype(variable), backend.shape(variable)) for variable in variables]
    labels = [functools.partial("variables[{}]".format, index) for index in range(len(variables))]
    return _Served(gradients), tuple(map(functools.partial(check, arguments), others, specs, labels))


def _broadcast_axes(came: tuple[int | None, ...] | None, expected: tuple[int | None, ...] | None) -> list[int]:
    """Returns the axes along which a tensor of the expected shape may have been broadcast to the shape that came."""
    if came is None or expected is None or len(came) < len(expected):
        return []
    added = len(came) - len(expected)
    aligned = (*[1] * added, *expected)
    if any(small not in (1, size) for size, small in zip(came, aligned, strict=True)):
        return []
    return [axis for axis, size in enumerate(came) if axis < added or (aligned[axis] == 1 and size != 1)]
