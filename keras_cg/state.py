"""What a function changes in Keras's variables while it runs: a seed generator's state, moving averages, counters."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from keras_cg import config, errors


class State:
    """The variables of Keras, as they are when a decorated function is called; every run of it starts from them.

    Inside a `keras.StatelessScope`, in which Keras trains on JAX, new values are put aside in the scope. What a
    function puts there while a framework traces it must come out as its outputs do: `changes` gives it after a run
    inside `with state:`, and `settle` takes it.
    """

    def __init__(self, function: str):
        self.function = function
        self.scope = _active_scope()
        self.half = _autocast_dtype()
        self.before = dict(self.scope.state_mapping) if self.scope is not None else {}
        self.is_first = True
        # Of the variables that changed, as the scope knows them.
        self.keys: list[int] = []

    def is_idle(self) -> bool:
        """Whether a run needs nothing of this: the first one, outside of a scope, or any without Keras."""
        idle = sys.modules.get("keras") is None or (self.is_first and self.scope is None)
        self.is_first = self.is_first and not idle
        return idle

    def __enter__(self) -> None:
        """Begins a run of the function, the first one or another."""
        keras: Any = sys.modules["keras"]
        self.open = contextlib.ExitStack()
        self.running = self.scope
        if not self.is_first:
            # When it runs again, the scopes of the first run may be over.
            self.running = self.open.enter_context(keras.StatelessScope(initialize_variables=False))
            self.open.enter_context(keras.src.backend.AutocastScope(self.half))
        self.is_first = False
        self.open.enter_context(_holding(self.running, self.before))

    def __exit__(self, *error: object) -> None:
        after = self.running.state_mapping
        self.values = {key: each for key, each in after.items() if self.before.get(key) is not each}
        self.open.close()

    def changes(self) -> tuple[Any, ...]:
        """The new values of the variables that the run changed inside a scope.

        Raises:
            RuntimeError: It was not the first run, and changed some for good the first time.
        """
        if not self.values:
            return ()
        if self.scope is None:
            raise errors.changes_variables(self.function)
        self.keys = list(self.values)
        keras: Any = sys.modules["keras"]
        return tuple(map(keras.ops.stop_gradient, self.values.values()))

    def settle(self, values: tuple[Any, ...]) -> None:
        """Puts the new values into the scope."""
        if values:
            self.scope.state_mapping.update(zip(self.keys, values, strict=True))


def _active_scope() -> Any:
    keras: Any = sys.modules.get("keras")
    if not hasattr(keras, "StatelessScope"):
        return None
    # There is no public way to ask (Keras 3.15); if it is gone, this raises.
    scope = keras.src.backend.get_stateless_scope()
    return scope if scope is not None and keras.backend.backend() == config.backend() else None


def _autocast_dtype() -> Any:
    """What Keras casts variables to when they are read, in a layer with mixed precision."""
    keras: Any = sys.modules.get("keras")
    if not hasattr(keras, "StatelessScope"):
        return None
    scope = keras.src.backend.get_autocast_scope()  # not public either
    return scope and scope.dtype


@contextlib.contextmanager
def _holding(scope: Any, values: dict[int, Any]) -> Iterator[None]:
    """A scope that holds `values`, and is afterwards what it was."""
    before = scope.state_mapping
    scope.state_mapping = dict(values)
    try:
        yield
    finally:
        scope.state_mapping = before
