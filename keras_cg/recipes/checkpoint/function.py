"""A function that runs again for its gradient, as a framework sees it: from tensors to tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, ModuleType
from typing import Any

from keras_cg.bridge import keras_interop
from keras_cg.engine import comparing
from keras_cg.frontend.call import FlatFunction
from keras_cg.recipes.checkpoint.keras_state import Repeated


class OutputFunction(FlatFunction):
    """A function that returns the tensors of its output, without a rule. Every run sees the same state of Keras."""

    def begin(self, is_first: bool) -> Any:
        """Returns the state of Keras for all runs."""
        return self.repeated

    @property
    def repeated(self) -> Repeated:
        """The state of Keras at the first run."""
        if self.state is None:
            self.state = Repeated(self.name, self.backend)
        return self.state  # type: ignore[no-any-return]

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        """Returns the tensors of the output, then the new values of the variables that the run changed."""
        output, changed, _ = self.run(*self.bind(tensors))
        results, tree = self.flatten(output)
        if self.output is None:
            self.output = tree
        return (*results, *changed)

    def once(self, *tensors: Any) -> tuple[Any, ...]:
        """Runs the function where there is no second run."""
        self.state = FlatFunction.begin(self, True)
        output, changed, _ = self.run(*self.bind(tensors))
        results, self.output = self.flatten(output)
        return (*results, *changed)

    def traced(self, *tensors: Any) -> tuple[Any, ...]:
        """Runs the function while a framework traces it; values of variables may follow the output."""
        self.repeated.is_traced = True
        return self(*tensors)

    def late(self, *tensors: Any) -> tuple[Any, ...]:
        """Runs the function where its derivative reads the variables of Keras later."""
        self.repeated.is_late = True
        return self(*tensors)

    def reads(self) -> list[Any]:
        """Returns the values of the Keras variables that the first run read and did not change."""
        return self.repeated.reads()

    def captures(self, is_wanted: Callable[[Any], bool]) -> Iterable[Any]:
        """Finds values that the function can reach without its arguments, the globals that it names included.

        It does not look into Keras's variables and layers, because Keras itself tells which of them a run reads.
        """
        holders = keras_interop.holders()
        roots = [self.user, *self.static.leaves, *_globals(self.user)]
        values = comparing.reached(roots, lambda value: is_wanted(value) or isinstance(value, holders))
        return [value for value in values if not isinstance(value, holders)]


def _globals(fun: Any) -> list[Any]:
    """Returns the values of the globals that a function names, without modules, functions and classes."""
    if not isinstance(fun, FunctionType):
        return []
    names: set[str] = set()
    waiting = [fun.__code__]
    while waiting:
        code = waiting.pop()
        names.update(code.co_names)
        waiting += [const for const in code.co_consts if isinstance(const, CodeType)]
    values = [fun.__globals__[name] for name in names if name in fun.__globals__]
    return [value for value in values if not isinstance(value, (ModuleType, FunctionType, type))]
