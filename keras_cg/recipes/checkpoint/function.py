"""A function that runs again for its gradient, as a framework sees it: from tensors to tensors."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

from keras_cg.bridge import keras_interop
from keras_cg.engine import comparing
from keras_cg.frontend import config
from keras_cg.frontend.call import FlatFunction
from keras_cg.recipes.checkpoint.keras_state import KerasState


class OutputFunction(FlatFunction):
    """A function that returns the tensors of its output, without a rule."""

    keras: KerasState | None = None

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        """Runs the function, and lets it change nothing in Keras."""
        if self.keras is None:
            self.keras, self.converted = KerasState(self.name), self.backend.converted(self.user)
        args, kwargs = self.bind(tensors)
        with self.keras.run():
            output = config.under(self.backend, self.converted, args, kwargs)  # type: ignore[arg-type]
        results, tree = self.flatten(output)
        self.output = self.output or tree
        return tuple(results)

    def once(self, *tensors: Any) -> tuple[Any, ...]:
        """Runs the function where there is no second run."""
        output, changed, _ = self.run(*self.bind(tensors))
        results, self.output = self.flatten(output)
        return (*results, *changed)

    def reads(self) -> list[Any]:
        """Returns the values of Keras's variables that the first run read."""
        return [] if self.keras is None else [value for _, value, _ in self.keras.values.values()]

    def assigned(self) -> list[Any]:
        """Returns the variables of Keras with another value than in the first run, without changes in place."""
        values = [] if self.keras is None else self.keras.values.values()
        return [variable for variable, _, before in values if variable._value is not before]

    def captures(self, is_wanted: Callable[[Any], bool]) -> Iterable[Any]:
        """Finds values that the function can reach without its arguments, the globals that it names included.

        It does not look into Keras's variables and layers, because a run tells which of them it reads.
        """
        fun, holders = self.user, keras_interop.holders()
        names = fun.__code__.co_names if isinstance(fun, types.FunctionType) else ()
        named = [fun.__globals__.get(name) for name in names]
        values = [each for each in named if not isinstance(each, (types.ModuleType, types.FunctionType, type))]
        roots = [fun, *self.static.leaves, *values]
        found = comparing.reached(roots, lambda value: is_wanted(value) or isinstance(value, holders))
        return [value for value in found if not isinstance(value, holders)]
