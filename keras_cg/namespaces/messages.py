"""The messages of `keras_cg.ops`."""

from __future__ import annotations

from collections.abc import Sequence

from keras_cg.errors import article, did_you_mean, report, type_name
from keras_cg.namespaces.standard import BEYOND, FUNCTIONS

PORTABLE = [name for name in (*FUNCTIONS, *BEYOND, "stop_gradient", "sum_to") if "." not in name]


def no_such_op(name: str, backend: str, names: Sequence[str], place: str | None = None) -> AttributeError:
    """Reports a name that `keras_cg.ops` does not have on the active backend, but perhaps `place` in its framework."""
    # A function of the standard comes first, because every backend has it: `concat`, not torch's `concatenate`.
    inside = [each for each in FUNCTIONS if each.rpartition(".")[2] == name]
    if place is not None and not inside:
        return report(
            AttributeError,
            f"keras_cg.ops has no {name!r}. The backend is {backend!r}, whose framework has it: {place}.",
            cause="a function that one framework has, and the array API standard does not.",
            remedy=f"call {place} where no other backend runs, or compose it of functions that keras_cg.ops has.",
        )
    near = f" Did you mean {inside[0]!r}?" if inside else did_you_mean(name, PORTABLE) or did_you_mean(name, names)
    headline = f"keras_cg.ops has no {name!r} while the backend is {backend!r}.{near}"
    cause = "a typo." if near else "a function that one framework has, and the array API standard does not."
    remedy = "use a function of the array API standard, which every backend has; dir(keras_cg.ops) lists all names."
    return report(AttributeError, headline, cause=cause, remedy=remedy)


def no_op_here(name: str, backend: str, what: str, remedy: str) -> NotImplementedError:
    """Reports a function of `keras_cg.ops` that the framework cannot compute, or not for these arguments."""
    headline = f"keras_cg.ops: `{name}` {what} on the backend {backend!r}."
    cause = "the framework has no such function, or its function has no gradient."
    return report(NotImplementedError, headline, function=name, cause=cause, remedy=remedy)


def no_axis(rank: int) -> ValueError:
    """Reports a cumulative function that lacks its axis, which only a tensor with a single axis may omit."""
    headline = f"keras_cg.ops: `cumulative_sum` and `cumulative_prod` need an axis for a tensor with {rank} dimensions."
    return report(ValueError, headline, remedy="pass axis=0, or reshape the tensor to one dimension.")


def not_a_tensor(function: str, argument: str, value: object) -> TypeError:
    """Reports an argument of `sum_to` that is no tensor, such as a shape."""
    headline = f"keras_cg.ops: {argument} of `{function}` is {article(type_name(value))}, and not a tensor or a number."
    return report(TypeError, headline, function=function, remedy="pass the tensor itself, and not its shape.")


def not_summed(came: str, expected: str) -> ValueError:
    """Reports that no sum over axes gives a gradient the shape of the argument."""
    headline = "keras_cg.ops: `sum_to` cannot sum the gradient to the shape of like."
    cause = "an argument that was not broadcast to that shape, or arguments in the wrong order."
    remedy = "pass the gradient first. Each axis of like, from the last on, has the same length or 1."
    return report(ValueError, headline, function="sum_to", got=came, expected=expected, cause=cause, remedy=remedy)
