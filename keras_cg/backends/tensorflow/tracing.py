"""How TensorFlow takes a decorated function that is an argument of a `tf.function`. Imports TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class Itself(tf.types.experimental.TraceType):  # type: ignore[misc]
    """The type of a decorated function: no other has it.

    By itself TensorFlow (2.21) would go by `__wrapped__`, and call the function without its rule.
    """

    def __init__(self, function: Any):
        self.function = function

    def is_subtype_of(self, other: Any) -> bool:
        """Whether it is the same function."""
        return bool(self == other)

    def most_specific_common_supertype(self, others: Sequence[Any]) -> Itself | None:
        """This one, if all are the same."""
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any) -> Any:
        """The function, which the traced program calls."""
        return self.function

    def cast(self, value: Any, cast_context: Any) -> Any:
        """The function as it is given."""
        return value

    def flatten(self) -> list[Any]:
        """No tensors."""
        return []

    def to_tensors(self, value: Any) -> list[Any]:
        """No tensors."""
        return []

    def from_tensors(self, tensors: Any) -> Any:
        """The function."""
        return self.function

    def __eq__(self, other: object) -> bool:
        # A method is another object whenever it is looked up.
        return isinstance(other, Itself) and bool(self.function.__wrapped__ == other.function.__wrapped__)

    def __hash__(self) -> int:
        return hash(self.function.__qualname__)

    def __repr__(self) -> str:
        return f"Itself({self.function!r})"
