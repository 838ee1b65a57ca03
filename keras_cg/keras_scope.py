"""What Keras keeps while a function runs, and shows it in every run: the values of variables, and its scopes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras_cg import backends, errors
from keras_cg.engine.contract import Backend
from keras_cg.keras_interop import choice, keras


class State:
    """What a function may change in Keras's variables, seeds and averages and counters; every run starts from the same.

    Inside a `keras.StatelessScope`, in which Keras trains on JAX, new values are put aside in the scope. What a
    function puts there while a framework traces it must come out as its outputs do: a run inside `with state.begin()`
    gives it as its `changes`, and `settle` takes it.
    """

    def __init__(self, function: str, backend: Backend):
        self.function = function
        self.scope = _active_scope(backend)
        self.half = _autocast_dtype()
        self.before = dict(self.scope.state_mapping) if self.scope is not None else {}
        self.runs = 0
        # Of the variables that changed, as the scope knows them.
        self.keys: list[int] = []

    @classmethod
    def unscoped(cls, function: str, backend: Backend) -> State:
        """That of a function whose first run is over, and was where `is_unscoped`; wherever this is asked."""
        state = cls(function, backend)
        state.scope, state.half, state.before, state.runs = None, None, {}, 1
        return state

    def begin(self) -> Run | None:
        """What the run that begins must be inside of; None if that is nothing, as for a first outside a scope."""
        self.runs += 1
        return Run(self, self.runs > 1) if self.runs > 1 or self.scope is not None else None

    def settle(self, values: Sequence[Any]) -> None:
        """Puts the new values into the scope."""
        if values:
            self.scope.state_mapping.update(zip(self.keys, values, strict=True))


class Run:
    """A run of a function inside a scope, the first one or another."""

    def __init__(self, state: State, is_again: bool):
        self.state, self.is_again = state, is_again

    def __enter__(self) -> None:
        self.open = contextlib.ExitStack()
        self.scope = self.state.scope
        if self.is_again:
            # When it runs again, the scopes of the first run may be over.
            self.scope = self.open.enter_context(keras().StatelessScope(initialize_variables=False))
            self.open.enter_context(keras().src.backend.AutocastScope(self.state.half))
        self.open.enter_context(_holding(self.scope, self.state.before))

    def __exit__(self, *error: object) -> None:
        before = self.state.before
        self.values = {key: each for key, each in self.scope.state_mapping.items() if before.get(key) is not each}
        self.open.close()

    def changes(self) -> tuple[Any, ...]:
        """The new values of the variables that the run changed.

        Raises:
            RuntimeError: It was not the first run, and changed some for good the first time.
        """
        if not self.values:
            return ()
        if self.state.scope is None:
            raise errors.changes_variables(self.state.function)
        self.state.keys = list(self.values)
        return tuple(map(keras().ops.stop_gradient, self.values.values()))


def is_unscoped() -> bool:
    """Whether Keras has no scope in this thread that a second run would have to see: neither values nor a dtype."""
    # Not public (Keras 3.15). In one frame, because every call of a function asks.
    module: Any = sys.modules.get("keras.src.backend.common.global_state")
    if module is None:
        # Keras is not there, or is being imported; or its module has moved, and then this raises.
        return not hasattr(keras(), "StatelessScope") or keras().src.backend.common.global_state is None
    # Not by `getattr`, which makes an error first where a thread has no such attribute, as most have not.
    scopes = module.GLOBAL_STATE_TRACKER.__dict__
    return scopes.get("stateless_scope") is None and scopes.get("autocast_scope") is None


def _active_scope(backend: Backend) -> Any:
    if not hasattr(keras(), "StatelessScope"):
        return None
    scope = stateless_scope()
    return scope if scope is not None and keras().backend.backend() == backends.name_of(backend) else None


def stateless_scope() -> Any:
    """The scope of Keras that is open in this thread, or None."""
    # There is no public way to ask (Keras 3.15); if it is gone, this raises.
    return keras().src.backend.get_stateless_scope()


def _autocast_dtype() -> Any:
    """What Keras casts variables to when they are read, in a layer with mixed precision."""
    if not hasattr(keras(), "StatelessScope"):
        return None
    scope = keras().src.backend.get_autocast_scope()  # not public either
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


def stop_gradients(backend: Backend) -> None:
    """Lets `keras.ops.stop_gradient` stop those of the NumPy backend, on which Keras has none and stops nothing."""
    if backends.name_of(backend) != "numpy":
        return
    running = choice()
    if running and running[0] == "numpy":
        # Not public (Keras 3.15); if it is gone, this raises.
        core = keras().src.backend.core
        if not isinstance(core.stop_gradient, _StopGradient):
            core.stop_gradient = _StopGradient(core.stop_gradient, backend)


class _StopGradient:
    """Keras's own on NumPy, which returns what it is given: what autograd differentiates leaves it as a plain array."""

    def __init__(self, original: Callable[[Any], Any], backend: Backend):
        self.original, self.backend = original, backend

    def __call__(self, variable: Any) -> Any:
        value = self.original(variable)
        return self.backend.stop_gradient(value) if isinstance(value, self.backend.tensors) else value
