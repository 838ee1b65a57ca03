"""The state that Keras has while a function runs, which every run must see: values of variables, and its scopes."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from keras_cg import backends
from keras_cg.bridge import messages
from keras_cg.bridge.keras_interop import chosen, keras
from keras_cg.engine.contract import Backend


class State:
    """The values of Keras's variables (weights, seeds, averages, counters) from which every run of a function starts.

    Inside a `keras.StatelessScope`, in which Keras trains on JAX, new values are written into the scope. Where a
    framework traces the function, they must be outputs: a run inside `with state.begin()` returns them as its
    `changes`, and `settle` writes them into the scope again. If `is_first` is False, the first run had no scope;
    if it also `is_strict`, the first run has one in which it can change nothing.
    """

    def __init__(self, function: str, backend: Backend, is_first: bool = True, is_strict: bool = False):
        self.is_strict = is_strict
        self.function, self.runs = function, 0 if is_first else 1
        self.scope, self.half = _scopes(backend, is_first)
        self.before = dict(self.scope.state_mapping) if self.scope is not None else {}
        # Of the variables that changed, as the scope knows them.
        self.keys: list[int] = []
        self.thread = _copied(_of_thread())

    def begin(self) -> Run | None:
        """Returns the context that the next run needs; None if it needs none, as a first run outside of a scope."""
        self.runs += 1
        return Run(self) if self.runs > 1 or self.scope is not None else None

    def settle(self, values: Sequence[Any]) -> None:
        """Writes the new values into the scope."""
        if values:
            # They came as outputs of the function, which a second call would take for values to be differentiated.
            constants = map(keras().ops.stop_gradient, values)
            self.scope.state_mapping.update(zip(self.keys, constants, strict=True))


class Run:
    """A run of a function inside a scope, the first one or another."""

    # What Keras had of the thread in which another run began.
    thread: dict[str, Any] | None = None

    def __init__(self, state: State):
        self.state = state

    def __enter__(self) -> None:
        # Without context managers of Python and Keras, because each second derivative comes here.
        state, self.scope = self.state, self.state.scope
        if state.runs > 1:
            # The scopes of the first run may be over, and this may be another thread.
            self.scope, half = _strict(keras().StatelessScope)(), state.half
            thread = _copied(state.thread)
            self.scope.original_scope = thread.get("stateless_scope")
            thread["stateless_scope"] = self.scope
            thread["autocast_scope"] = None if half is None else keras().src.backend.AutocastScope(half)
            here = _of_thread()
            self.thread = dict(here)
            _exchange(here, thread)
        self.mapping, self.scope.state_mapping = self.scope.state_mapping, dict(state.before)

    def __exit__(self, *error: object) -> None:
        state, scope = self.state, self.scope
        self.values = {key: each for key, each in scope.state_mapping.items() if state.before.get(key) is not each}
        # What another run adds or creates is there already.
        refusal = scope.refusal if state.is_strict else None
        scope.state_mapping = self.mapping
        if self.thread is not None:
            _exchange(_of_thread(), self.thread)
        if refusal is not None:
            raise messages.changes_keras(state.function, refusal) from None

    @contextlib.contextmanager
    def for_rule(self) -> Iterator[None]:
        """Returns a decorator of the rule of this run: it reads the values in the scope of the call, and those written.

        Raises if the rule changes them. `settle` may not have written them yet: JAX traces a rule before.
        """
        scope = self.state.scope
        if stateless_scope() is scope and not self.values:
            yield
            return
        # The scope may be over, or another one open. Keras (3.15) empties the variables while it trains on JAX.
        values = {**scope.state_mapping, **self.values}
        with keras().StatelessScope(initialize_variables=False) as another:
            another.state_mapping = dict(values)
            yield
        if any([values.get(key) is not each for key, each in another.state_mapping.items()]):
            raise messages.rule_changes_variables(self.state.function)

    def changes(self) -> tuple[Any, ...]:
        """Returns the new values of the variables that the run changed; raises if the first run had no scope."""
        if self.values and self.state.scope is None:
            raise messages.changes_keras(self.state.function, "changes a variable of Keras")
        self.state.keys = list(self.values)
        return tuple(map(keras().ops.stop_gradient, self.values.values()))


@functools.cache
def _strict(base: Any) -> Any:
    class Strict(base):  # type: ignore[misc]  # Keras has no types
        """A scope that notes what would get lost in it: a loss, and the value of a variable that is created.

        Attributes:
            refusal: What the function does.
        """

        refusal: str | None = None

        def __init__(self) -> None:
            super().__init__(collect_losses=True, initialize_variables=False)

        def add_loss(self, loss: Any) -> None:
            self.refusal = "adds a loss to a layer of Keras"

        def get_current_value(self, variable: Any) -> Any:
            value = super().get_current_value(variable)
            # Inside of another scope it may be one that waits for its value. Not public (Keras 3.15).
            if value is None and self.original_scope is None and variable._value is None:
                self.refusal = f"creates a variable of Keras ({variable.path})"
            return value

    return Strict


# What Keras has of a thread: the layer that is called with its training flag, and the dtype of its computation. It is
# not public (Keras 3.15); if it is gone, this raises.


def _of_thread() -> dict[str, Any]:
    found: dict[str, Any] = vars(keras().src.backend.common.global_state.GLOBAL_STATE_TRACKER)
    return found


def _copied(thread: dict[str, Any]) -> dict[str, Any]:
    context = thread.get("current_call_ctx")
    # A copy of the context, too, because layers write into it.
    return thread.copy() if context is None else {**thread, "current_call_ctx": copy.copy(context)}


def _exchange(here: dict[str, Any], thread: dict[str, Any]) -> None:
    """Lets Keras see in this thread what `thread` has."""
    here.clear()
    here.update(thread)


class _Scopes(ModuleType):
    @property
    def is_unscoped(self) -> bool:
        """Whether Keras has no scope in this thread that a second run would have to see: neither values nor a dtype.

        It is an attribute because torch.compile (2.13) evaluates those of a module for real, and again at every call:
        to trace a look into `sys.modules` takes it as long as all the rest of a call.
        """
        # Not public (Keras 3.15). In one frame, because every call of a function asks.
        module: Any = sys.modules.get("keras.src.backend.common.global_state")
        if module is None:
            if "keras" not in sys.modules:
                return True
            # Keras is not imported, or is being imported; or its module has moved, and then this raises.
            return not hasattr(keras(), "StatelessScope") or keras().src.backend.common.global_state is None
        # Most threads have no such attribute, and `getattr` would build an error first: 0.5 us more.
        scopes = module.GLOBAL_STATE_TRACKER.__dict__
        return scopes.get("stateless_scope") is None and scopes.get("autocast_scope") is None


is_unscoped: bool
# The module itself, so that torch.compile reads the attribute in this file, too.
this: Any = sys.modules[__name__]
this.__class__ = _Scopes


def values() -> list[Any]:
    """Returns the values that an open scope of this thread has in the place of variables."""
    scope = None if this.is_unscoped else stateless_scope()
    return [] if scope is None else [*scope.state_mapping.values()]


def stateless_scope() -> Any:
    """Returns the scope of Keras that is open in this thread, or None."""
    # There is no public way to ask (Keras 3.15); if it is gone, this raises.
    return keras().src.backend.get_stateless_scope()


def _scopes(backend: Backend, is_first: bool) -> tuple[Any, Any]:
    """Returns, in a first run, the scope that is open if Keras runs on `backend`, and its dtype in mixed precision."""
    if not is_first or not hasattr(keras(), "StatelessScope"):
        return None, None
    # There is no public way to ask (Keras 3.15); if it is gone, this raises.
    scope, autocast = stateless_scope(), keras().src.backend.get_autocast_scope()
    is_own = scope is not None and keras().backend.backend() == backends.name_of(backend)
    return scope if is_own else None, autocast and autocast.dtype


def stop_gradients(backend: Backend) -> None:
    """Makes `keras.ops.stop_gradient` stop gradients of the NumPy backend, where Keras's own returns its argument."""
    if backends.name_of(backend) == "numpy" == chosen():
        # Not public (Keras 3.15); if it is gone, this raises.
        core = keras().src.backend.core
        if not isinstance(core.stop_gradient, _StopGradient):
            core.stop_gradient = _StopGradient(core.stop_gradient, backend)


class _StopGradient:
    """Keras's own function on NumPy, after which a tensor that autograd differentiates is a plain array."""

    def __init__(self, original: Callable[[Any], Any], backend: Backend):
        self.original, self.backend = original, backend

    def __call__(self, variable: Any) -> Any:
        value = self.original(variable)
        return self.backend.stop_gradient(value) if isinstance(value, self.backend.tensors) else value
