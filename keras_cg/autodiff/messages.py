"""The messages of `keras_cg.grad` and the other derivatives; `where` is the call as the user writes it: `jvp(f)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_cg.errors import article, count, report, type_name


def not_a_function(caller: str, value: object) -> TypeError:
    """The function to differentiate cannot be called."""
    came = article(type_name(value))
    return report(
        TypeError, f"{caller} differentiates a function, got {came}. Give the function itself, not what it returns."
    )


def not_differentiable(where: str, argument: str, came: str) -> TypeError:
    """An argument that `grad` differentiates has no gradient."""
    remedy = "Convert it to a floating dtype, or leave it out of `argnums`."
    return report(
        TypeError, f"{where}: {argument} is {came}, and only floating or complex tensors have a gradient. {remedy}"
    )


def nothing_to_differentiate(where: str) -> TypeError:
    """No argument holds a tensor that has a gradient."""
    happened = "there is no floating or complex tensor among the arguments to differentiate."
    return report(TypeError, f"{where}: {happened} Give at least one: integers, booleans and strings have no gradient.")


def bad_argnums(where: str, argnums: object, arguments: int) -> TypeError:
    """`argnums` does not name positional arguments of the call."""
    call = f"a call with {count(arguments, 'positional argument')}"
    remedy = "Give the index of a positional argument, or a tuple of different ones; keywords are not differentiated."
    return report(TypeError, f"{where}: argnums={argnums!r} does not fit {call}. {remedy}")


def not_a_scalar_output(where: str, came: str) -> TypeError:
    """`grad` can differentiate one real tensor."""
    remedy = "Return the loss alone, or (loss, aux) with has_aux=True."
    return report(TypeError, f"{where}: the function must return one real floating tensor, got {came}. {remedy}")


def no_aux(where: str, value: object) -> TypeError:
    """With `has_aux=True` the function returned no pair."""
    came = article(type_name(value))
    return report(TypeError, f"{where}: with has_aux=True the function must return a pair (output, aux), got {came}.")


def no_floating_output(where: str, came: str) -> TypeError:
    """Nothing in the output has a derivative."""
    cause = "Such an output comes from a forgotten `return`, or from a comparison or an index in place of its values."
    return report(
        TypeError, f"{where}: the function must return at least one floating or complex tensor, got {came}. {cause}"
    )


def complex_jacobian(where: str, what: str, came: str) -> TypeError:
    """A Jacobian of complex numbers is not one matrix."""
    return report(
        TypeError,
        f"{where}: {what} is {came}, and one complex matrix cannot hold the derivative of a complex function that is"
        " not holomorphic. Use keras_cg.vjp or keras_cg.jvp, or give real and imaginary parts as tensors of their own.",
    )


def not_arguments(where: str, name: str, value: object) -> TypeError:
    """`primals` or `tangents` is no sequence of arguments."""
    due = f"{name} must be a tuple with one part for each argument"
    remedy = "For one argument write jvp(f, (x,), (tangent,))."
    return report(TypeError, f"{where}: {due}, got {article(type_name(value))}. {remedy}")


def not_the_pytree(where: str, name: str, model: str, came: str, expected: str) -> ValueError:
    """Upstream or tangents have another structure than the output or the primals."""
    headline = f"{where}: {name} has another structure than {model}."
    cause = "keys or levels that differ, a list of numbers for an array, or a bare tensor instead of a tuple of one."
    remedy = "give the same pytree, with None for zeros and at every leaf that is no floating tensor."
    return report(ValueError, headline, got=came, expected=expected, cause=cause, remedy=remedy)


def not_alike(where: str, name: str, came: str, expected: str, model: str) -> ValueError:
    """One leaf of upstream or tangents does not fit its tensor."""
    headline = f"{where}: {name} does not fit {model}."
    cause = "a value that was to be broadcast, an integer tensor, or complex numbers for real ones."
    remedy = "give a floating tensor of exactly that shape; None stands for zeros. Nothing is broadcast."
    return report(ValueError, headline, got=came, expected=expected, cause=cause, remedy=remedy)


def list_of_numbers(where: str, argument: str, value: Sequence[Any], scalars: int) -> str:
    """Added to an error of the function itself, because a list of numbers may have been meant as one tensor."""
    what = f"{argument} is {article(type_name(value))}, which is a pytree of {count(scalars, 'scalar')} and no tensor"
    return f"{where}: {what}. For one tensor, pass an array."
