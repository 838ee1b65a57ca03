"""All that is asked of Keras without importing it: its variables, its placeholders, its backend, its scopes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras_cg import backends, errors
from keras_cg.engine.contract import Backend


def keras() -> Any:
    """Keras if it is imported, else None. While it is being imported, it lacks some of its names."""
    return sys.modules.get("keras")


def choice() -> tuple[str, str] | None:
    """The name of the backend that Keras runs on and where that choice came from, if Keras is imported."""
    module: Any = getattr(keras(), "backend", None)
    if not hasattr(module, "backend"):
        return None
    name = module.backend()
    if os.environ.get("KERAS_BACKEND") == name:
        return name, "the environment variable KERAS_BACKEND"
    return name, "Keras's file keras.json, or its default"


def variables() -> Any:
    """The class of Keras's variables, for `isinstance`; () without Keras."""
    return getattr(sys.modules.get("keras"), "Variable", ())


def unwrap(leaf: Any) -> Any:
    """The value of a Keras variable; any other leaf as it is."""
    return leaf.value if isinstance(leaf, variables()) else leaf


def is_symbolic(leaves: Sequence[Any]) -> bool:
    """Whether there is a placeholder among them, as Keras's functional API passes around."""
    symbolic = getattr(sys.modules.get("keras"), "KerasTensor", None)
    return symbolic is not None and any(isinstance(leaf, symbolic) for leaf in leaves)


def stop_gradients(backend: Backend) -> None:
    """Lets `keras.ops.stop_gradient` stop those of the NumPy backend, on which Keras has none and stops nothing."""
    if backend.__name__ != "keras_cg.backends.numpy":
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
        return self.backend.to_numpy(value) if isinstance(value, self.backend.tensors) else value


class State:
    """What a function may change in Keras's variables, seeds and averages and counters; every run starts from the same.

    Inside a `keras.StatelessScope`, in which Keras trains on JAX, new values are put aside in the scope. What a
    function puts there while a framework traces it must come out as its outputs do: `changes` gives it after a run
    inside `with state:`, and `settle` takes it.
    """

    def __init__(self, function: str, backend: Backend):
        self.function = function
        self.scope = _active_scope(backend)
        self.half = _autocast_dtype()
        self.before = dict(self.scope.state_mapping) if self.scope is not None else {}
        self.runs = 0
        # Of the variables that changed, as the scope knows them.
        self.keys: list[int] = []

    def is_needed(self) -> bool:
        """Notes that a run begins; says whether it must be inside `with state:`, as all but a first outside a scope."""
        self.runs += 1
        return self.runs > 1 or self.scope is not None

    def __enter__(self) -> None:
        """Begins a run of the function, the first one or another."""
        self.open = contextlib.ExitStack()
        self.running = self.scope
        if self.runs > 1:
            # When it runs again, the scopes of the first run may be over.
            self.running = self.open.enter_context(keras().StatelessScope(initialize_variables=False))
            self.open.enter_context(keras().src.backend.AutocastScope(self.half))
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
        return tuple(map(keras().ops.stop_gradient, self.values.values()))

    def settle(self, values: tuple[Any, ...]) -> None:
        """Puts the new values into the scope."""
        if values:
            self.scope.state_mapping.update(zip(self.keys, values, strict=True))


def _active_scope(backend: Backend) -> Any:
    if not hasattr(keras(), "StatelessScope"):
        return None
    # There is no public way to ask (Keras 3.15); if it is gone, this raises.
    scope = keras().src.backend.get_stateless_scope()
    return scope if scope is not None and keras().backend.backend() == backends.name_of(backend) else None


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
