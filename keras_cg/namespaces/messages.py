"""The messages of `keras_cg.ops`."""

from __future__ import annotations

from collections.abc import Sequence

from keras_cg.errors import did_you_mean, message, report
from keras_cg.namespaces.table import FUNCTIONS

# Functions of networks that are recipes.
RECIPES = {"softplus": "log1pexp", "logsumexp": "log_sum_exp"}
PORTABLE = [name for name in (*FUNCTIONS, "stop_gradient", "sum_to") if "." not in name]


def no_such_op(name: str, backend: str, names: Sequence[str], place: str | None = None) -> AttributeError:
    """Reports a name that `keras_cg.ops` does not have on the active backend, but perhaps `place` in its framework."""
    if name in RECIPES:
        headline = f"keras_cg.ops has no {name!r}, which is a recipe: keras_cg.recipes.{RECIPES[name]}."
        return AttributeError(headline)
    # A function of every backend comes first: `linalg.solve`, not torch's.
    inside = [each for each in FUNCTIONS if each.rpartition(".")[2] == name]
    if place is not None and not inside:
        return report(
            AttributeError,
            f"keras_cg.ops has no {name!r}. The backend is {backend!r}, whose framework has it: {place}.",
            cause="a function that keras_cg.ops does not have on every backend.",
            remedy=f"call {place} where no other backend runs, or compose it of functions that keras_cg.ops has.",
        )
    near = f" Did you mean {inside[0]!r}?" if inside else did_you_mean(name, PORTABLE) or did_you_mean(name, names)
    headline = f"keras_cg.ops has no {name!r} while the backend is {backend!r}.{near}"
    cause = "a typo." if near else "a function that keras_cg.ops does not have on every backend."
    remedy = "use a function of every backend, which docs/ops.md lists; dir(keras_cg.ops) lists all names."
    return report(AttributeError, headline, cause=cause, remedy=remedy)


def no_axis(rank: int) -> ValueError:
    """Reports a cumulative sum that lacks its axis, which only a tensor with a single axis may omit."""
    headline = f"keras_cg.ops: `cumulative_sum` needs an axis for a tensor with {rank} dimensions."
    return report(ValueError, headline, remedy="pass axis=0, or reshape the tensor to one dimension.")


not_a_tensor = message(
    TypeError,
    "keras_cg.ops: {1} of `{0}` is {2}, and not a tensor or a number.",
    remedy="pass the tensor itself, and not its shape.",
)
not_summed = message(
    ValueError,
    "keras_cg.ops: `sum_to` cannot sum the gradient to the shape of like.",
    got="{1}",
    expected="{2}",
    cause="an argument that was not broadcast to that shape, or arguments in the wrong order.",
    remedy="pass the gradient first. Each axis of like, from the last on, has the same length or 1.",
)
