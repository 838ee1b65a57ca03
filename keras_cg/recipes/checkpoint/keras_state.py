"""The state of Keras around a function that runs again: every run sees the same state, and none may change it."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from typing import Any, NoReturn

from keras_cg.bridge.keras_interop import keras
from keras_cg.recipes.checkpoint import messages


class KerasState:
    """The state of Keras for the runs of a function, possibly in other threads.

    A later run reads the values that the first run read. It also has the state of its thread: the layer that is called,
    its training flag, and the dtype of its computation.
    """

    def __init__(self, function: str):
        self.function = function
        self.thread: dict[str, Any] | None = None
        # By the identity of the variable: the variable, because an identity may be used again, its value in the run,
        # and its value outside of all scopes.
        self.values: dict[int, tuple[Any, Any, Any]] = {}
        self.refusal: RuntimeError | None = None

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        """Returns the context of a run.

        Raises:
            RuntimeError: The run changes the state of Keras.
        """
        if not hasattr(keras(), "StatelessScope"):
            yield
            return
        # Not public (Keras 3.15); if it is gone, this raises.
        here = vars(keras().src.backend.common.global_state.GLOBAL_STATE_TRACKER)
        before, is_first = dict(here), self.thread is None
        if self.thread is None:
            self.thread = {**before, "current_call_ctx": copy.copy(before.get("current_call_ctx"))}
        else:
            here.clear()
            # A copy, because layers write into the context of a call.
            here.update(self.thread, current_call_ctx=copy.copy(self.thread["current_call_ctx"]))
        try:
            with _reading(keras().StatelessScope)(self):
                yield
        except Exception:
            if self.refusal is None:
                raise
            # Not the error that Keras makes of it, which has no attributes.
            raise self.refusal from None
        finally:
            if not is_first:
                here.clear()
                here.update(before)


@functools.cache
def _reading(base: Any) -> Any:
    class Reading(base):  # type: ignore[misc]  # Keras has no types
        """A scope that shows the values of the first run, and raises where Keras would write."""

        def __init__(self, state: KerasState):
            super().__init__(collect_losses=True, initialize_variables=False)
            self.state = state

        def get_current_value(self, variable: Any) -> Any:
            values, outer = self.state.values, self.original_scope
            if id(variable) not in values:
                value = None if outer is None else outer.get_current_value(variable)
                # Not public (Keras 3.15). `variable.value` would ask this scope again.
                value = variable._value if value is None else value
                if value is None and outer is None:
                    self._refuse(f"creates a Keras variable ({variable.path})")
                values[id(variable)] = variable, value, variable._value
            return values[id(variable)][1]

        def add_update(self, update: tuple[Any, Any]) -> None:
            self._refuse(f"assigns to a Keras variable ({update[0].path})")

        def add_loss(self, loss: Any) -> None:
            self._refuse("adds a loss to a layer")

        def _refuse(self, what: str) -> NoReturn:
            self.state.refusal = messages.changes_keras(self.state.function, what)
            raise self.state.refusal

    return Reading
