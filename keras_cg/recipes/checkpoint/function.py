"""A function that runs again for its gradient, as a framework sees it: from tensors to tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, ModuleType
from typing import Any

from keras_cg import keras_interop
from keras_cg.call import FlatFunction
from keras_cg.engine import rule
from keras_cg.recipes.checkpoint.keras_state import Repeated


class OutputFunction(FlatFunction):
    """A function that gives the tensors of its output alone. Every run sees the same state of Keras."""

    def begin(self, is_first: bool) -> Any:
        """What Keras keeps for all runs."""
        return self.repeated

    @property
    def repeated(self) -> Repeated:
        """The state of Keras, as the first run found it."""
        if self.state is None:
            self.state = Repeated(self.name, self.backend)
        return self.state  # type: ignore[no-any-return]

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        """One run: the tensors of the output, then those of the variables that it changed."""
        output, changed = self.run(*self.bind(tensors))
        results, tree = self.flatten(output)
        if self.output is None:
            self.output = tree
        return (*results, *changed)

    def once(self, *tensors: Any) -> tuple[Any, ...]:
        """The only run, where there will be no other."""
        self.state = FlatFunction.begin(self, True)
        output, changed = self.run(*self.bind(tensors))
        results, self.output = self.flatten(output)
        return (*results, *changed)

    def traced(self, *tensors: Any) -> tuple[Any, ...]:
        """A run that a framework traces; then there may be more results, behind those of the output."""
        self.repeated.is_traced = True
        return self(*tensors)

    def late(self, *tensors: Any) -> tuple[Any, ...]:
        """A run whose derivative reads the variables of Keras later."""
        self.repeated.is_late = True
        return self(*tensors)

    def reads(self) -> list[Any]:
        """What the first run read of Keras, and left as it was."""
        return self.repeated.reads()

    def captures(self, is_wanted: Callable[[Any], bool]) -> Iterable[Any]:
        """What the function can reach besides its arguments, the globals that it names included.

        Keras's variables and layers are not entered: Keras itself tells which of them a run reads.
        """
        holders = keras_interop.holders()
        roots = [self.user, *self.static.leaves, *_globals(self.user)]
        found = rule.reached(roots, lambda value: is_wanted(value) or isinstance(value, holders))
        return [value for value in found if not isinstance(value, holders)]


def _globals(fun: Any) -> list[Any]:
    """The values of the globals that a function names, but for modules and functions."""
    if not isinstance(fun, FunctionType):
        return []
    names: set[str] = set()
    waiting = [fun.__code__]
    while waiting:
        code = waiting.pop()
        names.update(code.co_names)
        waiting += [const for const in code.co_consts if isinstance(const, CodeType)]
    found = [fun.__globals__[name] for name in names if name in fun.__globals__]
    return [value for value in found if not isinstance(value, (ModuleType, FunctionType, type))]
