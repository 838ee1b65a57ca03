"""The messages of `keras_cg.ops`."""

from __future__ import annotations

from collections.abc import Sequence

from keras_cg.errors import did_you_mean, report
from keras_cg.namespaces.standard import FUNCTIONS

PORTABLE = [name for name in FUNCTIONS if "." not in name]


def no_such_op(name: str, backend: str, names: Sequence[str]) -> AttributeError:
    """`keras_cg.ops` has no function of that name on the active backend."""
    # A function of the standard comes first, because every backend has it: `concat`, not torch's `concatenate`.
    near = did_you_mean(name, PORTABLE) or did_you_mean(name, names)
    headline = f"keras_cg.ops has no {name!r} while the backend is {backend!r}.{near}"
    cause = "a typo, or a function that one framework has and the array API standard does not."
    remedy = "use one of docs/ops.md: they are there on every backend."
    return report(AttributeError, headline, cause=cause, remedy=remedy)


def no_op_here(name: str, backend: str, what: str, remedy: str) -> NotImplementedError:
    """A function of `keras_cg.ops` that the framework has no means for, or not for these arguments."""
    headline = f"keras_cg.ops: `{name}` {what} on the backend {backend!r}."
    cause = "the framework has no means for it; docs/ops.md has what each backend refuses."
    return report(NotImplementedError, headline, function=name, cause=cause, remedy=remedy)


def no_axis() -> ValueError:
    """A cumulative function of `keras_cg.ops`, of a tensor with several axes or none."""
    return ValueError("the axis must be given, unless there is one alone.")
