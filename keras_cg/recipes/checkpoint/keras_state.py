"""The state of Keras around a function that runs again: every run sees the same state, and changes it once."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from keras_cg import backends
from keras_cg.bridge.keras_interop import keras
from keras_cg.bridge.keras_scope import stateless_scope
from keras_cg.engine.contract import Backend
from keras_cg.recipes.checkpoint import messages


class Repeated:
    """The state of Keras for a function that will run again, possibly in another thread.

    Every run is inside a scope of its own. The first one records which variables the function reads and changes, and
    they are changed when it ends. A later run reads the values from before, and changes nothing. It also sees the
    thread's state of the first run: the layer that is called, its training flag, and the dtype of its computation.

    Attributes:
        is_traced: Whether the new values must be outputs, because a framework traces the function; then `settle`
            changes the variables.
        is_late: Whether the derivative may read a variable later: then its value must not have changed.
    """

    def __init__(self, function: str, backend: Backend):
        self.function, self.backend = function, backend
        self.is_traced = self.is_late = False
        self.runs = 0
        self.thread_state: dict[str, Any] | None = None
        # Whether an assigned value has no gradient.
        self.cuts = False
        # By the identity of the variable: the variable, because an identity may be used again, and its value before.
        self.before: dict[int, tuple[Any, Any]] = {}
        self.changed: list[Any] = []

    def begin(self) -> RepeatedRun | None:
        """Returns the context of the run that begins; None without Keras."""
        self.runs += 1
        if not hasattr(keras(), "StatelessScope"):
            return None
        if self.runs == 1:
            self.thread_state = _copy_of_thread_state()
        elif any(variable.trainable for variable in self.changed):
            raise messages.assigns_trainable(self.function, [each.path for each in self.changed if each.trainable])
        return RepeatedRun(self, self.runs > 1)

    def reads(self) -> list[Any]:
        """Returns the framework's variables, or values, that the first run read and did not change."""
        changed = {id(variable) for variable in self.changed}
        return [value for key, (_, value) in self.before.items() if key not in changed]

    def settle(self, values: Sequence[Any]) -> None:
        """Assigns the new values to the variables."""
        if not values:
            return
        for variable, value in zip(self.changed, values, strict=True):
            if not self.is_traced:
                # A copy, because torch assigns in place, and TensorFlow reads a variable when it is used.
                old = keras().ops.copy(keras().ops.stop_gradient(self.before[id(variable)][1]))
                self.before[id(variable)] = variable, old
            variable.assign(value)


class RepeatedRun:
    """One run of a function, as a context."""

    def __init__(self, state: Repeated, is_again: bool):
        self.state, self.is_again = state, is_again

    def __enter__(self) -> None:
        self.open = contextlib.ExitStack()
        if self.is_again and self.state.thread_state is not None:
            self.open.enter_context(_thread_state(self.state.thread_state))
        self.pending = _pending()
        self.scope = self.open.enter_context(_recording(keras().StatelessScope)(self.state, self.is_again))

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.open.close()
        if kind is None and self.state.is_traced and stateless_scope() is None and self.pending < _pending():
            raise messages.builds_while_traced(self.state.function)
        if not self.is_again and self.state.thread_state is not None:
            self.state.thread_state = _completed(self.state.thread_state)

    def changes(self) -> tuple[Any, ...]:
        """The new values of the variables that the first run changed."""
        state, values = self.state, self.scope.state_mapping
        changes = tuple(keras().ops.stop_gradient(values[id(variable)]) for variable in state.changed)
        if state.is_traced and keras().backend.backend() == backends.name_of(state.backend):
            return changes
        # Not as outputs: Grappler (TensorFlow 2.21) drops the order between two outputs of one operation, so the other
        # output could read the value that is assigned here.
        if not self.is_again:
            state.settle(changes)
        return ()


@functools.cache
def _recording(base: Any) -> Any:
    class Recording(base):  # type: ignore[misc]  # Keras has no types
        """A scope that records what the first run reads and changes, and shows the same values to a later one."""

        def __init__(self, state: Repeated, is_again: bool):
            super().__init__(initialize_variables=not (is_again or state.is_traced))
            self.state, self.is_again = state, is_again
            self.state_mapping = {key: value for key, (_, value) in state.before.items()}
            outer = stateless_scope()
            if not is_again:
                # Without a scope an assignment cuts the gradient; inside one of JAX it does not.
                state.cuts = not state.is_traced and (outer is None or getattr(outer, "cuts", False))
            self.cuts = state.cuts
            self.collect_losses = not is_again and (outer is None or outer.collect_losses)

        def get_current_value(self, variable: Any) -> Any:
            if id(variable) not in self.state_mapping:
                self._note(variable)
            value = self.state_mapping[id(variable)]
            if self.is_again and self.state.is_late and self._has_changed(variable):
                raise messages.changed_since(self.state.function, f"a Keras variable ({variable.path})")
            return value

        def add_update(self, update: tuple[Any, Any]) -> None:
            variable, value = update
            self.get_current_value(variable)
            if self.state.thread_state is None:
                # Keras was not imported in the first run, or only in part.
                raise messages.changes_variables(self.state.function)
            if not self.is_again and not any(variable is each for each in self.state.changed):
                self.state.changed.append(variable)
            super().add_update((variable, keras().ops.stop_gradient(value) if self.cuts else value))

        def add_loss(self, loss: Any) -> None:
            raise messages.adds_loss(self.state.function)

        def _has_changed(self, variable: Any) -> bool:
            """Whether the value of a floating variable is another than before."""
            before = self.state.before.get(id(variable))
            return before is not None and before[1] is not self._outside(variable) and "float" in variable.dtype

        def _note(self, variable: Any) -> None:
            value = self.state_mapping[id(variable)] = self._outside(variable)
            if not self.is_again:
                self.state.before[id(variable)] = variable, value

        def _outside(self, variable: Any) -> Any:
            """Returns the value outside of this scope, where a variable that was created in it gets its value."""
            self.__exit__()
            try:
                with keras().src.backend.AutocastScope(None):
                    return variable.value
            finally:
                self.__enter__()

    return Recording


def _of_thread() -> dict[str, Any]:
    """Returns Keras's state of this thread, a private name (Keras 3.15); raises if it is gone."""
    return vars(keras().src.backend.common.global_state.GLOBAL_STATE_TRACKER)  # type: ignore[no-any-return]


def _pending() -> int:
    """Counts the variables that were created in a scope, and have no value yet."""
    return len(_of_thread().get("uninitialized_variables") or ())


def _copy_of_thread_state() -> dict[str, Any]:
    """Copies Keras's state of this thread, and the context of the current call, because layers write into it."""
    state = dict(_of_thread())
    # A later run has a scope of its own.
    state["stateless_scope"] = None
    state["current_call_ctx"] = copy.copy(state.get("current_call_ctx"))
    return state


def _completed(state: dict[str, Any]) -> dict[str, Any]:
    """Adds the entries that Keras has created since, such as its global seed generator."""
    new = {key: value for key, value in _of_thread().items() if state.get(key) is None}
    return {**state, **new, "stateless_scope": None}


@contextlib.contextmanager
def _thread_state(state: dict[str, Any]) -> Iterator[None]:
    """Replaces Keras's state of this thread for the length of a `with` block."""
    here = _of_thread()
    before = dict(here)
    here.clear()
    here.update(state, current_call_ctx=copy.copy(state["current_call_ctx"]))
    try:
        yield
    finally:
        here.clear()
        here.update(before)
