"""The type of a decorated function that is an argument of a `tf.function`. Imports TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class Itself(tf.types.experimental.TraceType):  # type: ignore[misc]
    """The type that a decorated function alone has.

    Without it TensorFlow (2.21) would take the function's `__wrapped__`, and call it without its rule.
    """

    def __init__(self, function: Any):
        self.function = function

    def is_subtype_of(self, other: Any) -> bool:
        """Whether the other type is that of the same function."""
        return bool(self == other)

    def most_specific_common_supertype(self, others: Sequence[Any]) -> Itself | None:
        """Returns this type if all others are equal to it."""
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any) -> Any:
        """Returns the function, which the traced program calls."""
        return self.function

    def cast(self, value: Any, cast_context: Any) -> Any:
        """Returns the value: it is a method that was looked up again, and TensorFlow asserts that it is equal."""
        return value

    def __eq__(self, other: object) -> bool:
        # A bound method is a new object each time it is looked up.
        return isinstance(other, Itself) and bool(self.function.__wrapped__ == other.function.__wrapped__)

    def __hash__(self) -> int:
        return hash(self.function.__qualname__)

    def __repr__(self) -> str:
        return f"Itself({self.function!r})"
