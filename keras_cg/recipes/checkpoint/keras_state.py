"""What Keras keeps while a function runs that will run again: every run sees the same, and changes it once."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from keras_cg import backends
from keras_cg.engine.contract import Backend
from keras_cg.keras_interop import keras
from keras_cg.keras_scope import stateless_scope
from keras_cg.recipes.checkpoint import messages


class Repeated:
    """The same for a function that will run again, in another thread perhaps: then it changes nothing.

    Every run is inside a scope of its own. The first one tells which variables the function reads and changes; they
    are changed when it is over, and another one reads what they were. What else Keras keeps for a thread is as it was,
    too: in which layer's call this is, whether it trains, in which dtype it computes.

    Attributes:
        is_traced: Whether the new values must come out as the outputs do, because a framework traces the function;
            then `settle` changes the variables.
        is_late: Whether a variable may be read when the derivative is asked for: then it must be what it was.
    """

    def __init__(self, function: str, backend: Backend):
        self.function, self.backend = function, backend
        self.is_traced = self.is_late = False
        self.runs = 0
        self.surroundings: dict[str, Any] | None = None
        # Whether what is assigned to a variable is a constant from then on.
        self.cuts = False
        # By the identity of the variable, which is kept, so that no other gets it: itself, and its value before.
        self.before: dict[int, tuple[Any, Any]] = {}
        self.changed: list[Any] = []

    def begin(self) -> RepeatedRun | None:
        """What the run that begins must be inside of; None without Keras."""
        self.runs += 1
        if not hasattr(keras(), "StatelessScope"):
            return None
        if self.runs == 1:
            self.surroundings = _surroundings()
        elif any(variable.trainable for variable in self.changed):
            raise messages.assigns_trainable(self.function, [each.path for each in self.changed if each.trainable])
        return RepeatedRun(self, self.runs > 1)

    def reads(self) -> list[Any]:
        """The framework's own variables, or values, behind those that the first run read and did not change."""
        changed = {id(variable) for variable in self.changed}
        return [value for key, (_, value) in self.before.items() if key not in changed]

    def settle(self, values: Sequence[Any]) -> None:
        """Changes the variables."""
        if not values:
            return
        for variable, value in zip(self.changed, values, strict=True):
            if not self.is_traced:
                # On torch it is changed in place, and TensorFlow's variable is read when it is used.
                old = keras().ops.copy(keras().ops.stop_gradient(self.before[id(variable)][1]))
                self.before[id(variable)] = variable, old
            variable.assign(value)


class RepeatedRun:
    """A run of such a function."""

    def __init__(self, state: Repeated, is_again: bool):
        self.state, self.is_again = state, is_again

    def __enter__(self) -> None:
        self.open = contextlib.ExitStack()
        if self.is_again and self.state.surroundings is not None:
            self.open.enter_context(_surrounded(self.state.surroundings))
        self.pending = _pending()
        self.scope = self.open.enter_context(_recording(keras().StatelessScope)(self.state, self.is_again))

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.open.close()
        if kind is None and self.state.is_traced and stateless_scope() is None and self.pending < _pending():
            raise messages.builds_while_traced(self.state.function)
        if not self.is_again and self.state.surroundings is not None:
            self.state.surroundings = _completed(self.state.surroundings)

    def changes(self) -> tuple[Any, ...]:
        """The new values of the variables that the first run changed."""
        state, values = self.state, self.scope.state_mapping
        changes = tuple(keras().ops.stop_gradient(values[id(variable)]) for variable in state.changed)
        if state.is_traced and keras().backend.backend() == backends.name_of(state.backend):
            return changes
        # Not as outputs: of two outputs of one operation, Grappler (TensorFlow 2.21) forgets that the one that is
        # assigned here waits for what the other one read, which then reads the new value.
        if not self.is_again:
            state.settle(changes)
        return ()


@functools.cache
def _recording(base: Any) -> Any:
    class Recording(base):  # type: ignore[misc]  # Keras has no types
        """A scope that notes in a first run what is read and changed, and shows another one the same."""

        def __init__(self, state: Repeated, is_again: bool):
            super().__init__(initialize_variables=not (is_again or state.is_traced))
            self.state, self.is_again = state, is_again
            self.state_mapping = {key: value for key, (_, value) in state.before.items()}
            outer = stateless_scope()
            if not is_again:
                # As where there is no scope, but for JAX, which differentiates what was assigned.
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
            if self.state.surroundings is None:
                # Keras was not there in the first run, or not whole.
                raise messages.changes_variables(self.state.function)
            if not self.is_again and not any(variable is each for each in self.state.changed):
                self.state.changed.append(variable)
            super().add_update((variable, keras().ops.stop_gradient(value) if self.cuts else value))

        def add_loss(self, loss: Any) -> None:
            raise messages.adds_loss(self.state.function)

        def _has_changed(self, variable: Any) -> bool:
            """Whether the value of a floating variable is no longer that which it had before."""
            known = self.state.before.get(id(variable))
            return known is not None and known[1] is not self._outside(variable) and "float" in variable.dtype

        def _note(self, variable: Any) -> None:
            value = self.state_mapping[id(variable)] = self._outside(variable)
            if not self.is_again:
                self.state.before[id(variable)] = variable, value

        def _outside(self, variable: Any) -> Any:
            """What is read outside of this scope; there a variable that was made in it gets its value."""
            self.__exit__()
            try:
                with keras().src.backend.AutocastScope(None):
                    return variable.value
            finally:
                self.__enter__()

    return Recording


def _of_thread() -> dict[str, Any]:
    """What Keras keeps for this thread; not public, and if it is gone, this raises (Keras 3.15)."""
    return vars(keras().src.backend.common.global_state.GLOBAL_STATE_TRACKER)  # type: ignore[no-any-return]


def _pending() -> int:
    """How many variables were made in a scope, and have no value yet."""
    return len(_of_thread().get("uninitialized_variables") or ())


def _surroundings() -> dict[str, Any]:
    """The same as it is now: where layers are being called they write into what is copied."""
    kept = dict(_of_thread())
    # Another run has a scope of its own.
    kept["stateless_scope"] = None
    kept["current_call_ctx"] = copy.copy(kept.get("current_call_ctx"))
    return kept


def _completed(kept: dict[str, Any]) -> dict[str, Any]:
    """With what was made since, such as the seeds of whoever gives none."""
    made = {key: value for key, value in _of_thread().items() if kept.get(key) is None}
    return {**kept, **made, "stateless_scope": None}


@contextlib.contextmanager
def _surrounded(kept: dict[str, Any]) -> Iterator[None]:
    """With that in the place of what Keras keeps for this thread."""
    here = _of_thread()
    before = dict(here)
    here.clear()
    here.update(kept, current_call_ctx=copy.copy(kept["current_call_ctx"]))
    try:
        yield
    finally:
        here.clear()
        here.update(before)
