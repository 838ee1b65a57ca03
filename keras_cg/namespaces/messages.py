"""The messages of `keras_cg.ops`."""

from __future__ import annotations

from collections.abc import Sequence

from keras_cg.errors import did_you_mean, report
from keras_cg.namespaces.standard import FUNCTIONS

PORTABLE = [name for name in FUNCTIONS if "." not in name]


def no_such_op(name: str, backend: str, names: Sequence[str]) -> AttributeError:
    """Reports a name that `keras_cg.ops` does not have on the active backend."""
    # A function of the standard comes first, because every backend has it: `concat`, not torch's `concatenate`.
    near = did_you_mean(name, PORTABLE) or did_you_mean(name, names)
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
