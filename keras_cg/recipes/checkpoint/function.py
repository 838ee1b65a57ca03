"""A function that runs again for its gradient, as a framework sees it: from tensors to tensors."""

from __future__ import annotations

from typing import Any

from keras_cg.frontend.call import FlatFunction


class OutputFunction(FlatFunction):
    """A function that returns the tensors of its output, without a rule."""

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        """Runs the function: returns the tensors of the output, then the variables of Keras that it changed."""
        output, changed, _ = self.run(*self.bind(tensors))
        results, tree = self.flatten(output)
        self.output = self.output or tree
        return (*results, *changed)
