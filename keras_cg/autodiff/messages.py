"""The messages of `keras_cg.grad` and the other derivatives; {0} is the call as the user writes it: `jvp(f)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_cg.errors import article, count, message, report, type_name

not_a_function = message(
    TypeError, "{0} differentiates a function, got {1}. Give the function itself, not what it returns."
)
not_differentiable = message(
    TypeError,
    "{0}: {1} is {2}, and only floating or complex tensors have a gradient. Convert it to a floating dtype, or leave it"
    " out of `argnums`.",
)
nothing_to_differentiate = message(
    TypeError,
    "{0}: there is no floating or complex tensor among the arguments to differentiate. Give at least one: integers,"
    " booleans and strings have no gradient.",
)


def bad_argnums(where: str, argnums: object, arguments: int) -> TypeError:
    """`argnums` does not name positional arguments of the call."""
    call = f"a call with {count(arguments, 'positional argument')}"
    remedy = "Give the index of a positional argument, or a tuple of different ones; keywords are not differentiated."
    return report(TypeError, f"{where}: argnums={argnums!r} does not fit {call}. {remedy}")


not_a_scalar_output = message(
    TypeError,
    "{0}: the function must return one real floating tensor, got {1}. Return the loss alone, or (loss, aux) with"
    " has_aux=True.",
)
no_aux = message(TypeError, "{0}: with has_aux=True the function must return a pair (output, aux), got {1}.")
no_floating_output = message(
    TypeError,
    "{0}: the function must return at least one floating or complex tensor, got {1}. Such an output comes from a"
    " forgotten `return`, or from a comparison or an index in place of its values.",
)
# Because a Jacobian of complex numbers is not one matrix.
complex_jacobian = message(
    TypeError,
    "{0}: {1} is {2}, and one complex matrix cannot hold the derivative of a complex function that is not holomorphic."
    " Use keras_cg.vjp or keras_cg.jvp, or give real and imaginary parts as tensors of their own.",
)
not_arguments = message(
    TypeError,
    "{0}: {1} must be a tuple with one part for each argument, got {2}. For one argument write"
    " jvp(f, (x,), (tangent,)).",
)
not_the_pytree = message(
    ValueError,
    "{0}: {1} has another structure than {2}.",
    got="{3}",
    expected="{4}",
    cause="keys or levels that differ, a list of numbers for an array, or a bare tensor instead of a tuple of one.",
    remedy="give the same pytree, with None for zeros and at every leaf that is no floating tensor.",
)
not_alike = message(
    ValueError,
    "{0}: {1} does not fit {2}.",
    got="{3}",
    expected="{4}",
    cause="a value that was to be broadcast, an integer tensor, or complex numbers for real ones.",
    remedy="give a floating tensor of exactly that shape; None stands for zeros. Nothing is broadcast.",
)


def list_of_numbers(where: str, argument: str, value: Sequence[Any], scalars: int) -> str:
    """Added to an error of the function itself, because a list of numbers may have been meant as one tensor."""
    what = f"{argument} is {article(type_name(value))}, which is a pytree of {count(scalars, 'scalar')} and no tensor"
    return f"{where}: {what}. For one tensor, pass an array."
