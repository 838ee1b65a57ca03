"""The user's function as a backend sees it, from tensors to tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keras_cg import errors
from keras_cg.bridge import keras_interop, keras_scope
from keras_cg.engine import references
from keras_cg.frontend import config, messages, pytree
from keras_cg.frontend.arguments import Arguments
from keras_cg.frontend.tree import SINGLE, Tree


class FlatFunction(Arguments):
    """A function as a backend sees it, from tensors to tensors: it handles pytrees, keywords and static leaves."""

    # What Keras saves during the first run, which every other run must see; None if it saves nothing.
    state: Any = None
    # The user's function as the backend converts it.
    converted: Callable[..., Any] | None = None
    # The static part of the first run's output.
    output: Tree | None = None

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], Any]:
        """Returns what the user's function returns, and the values of the Keras variables that it changed.

        Returns also the context of the run, or None if it needs none.
        """
        backend = self.backend
        if self.converted is None:
            # Once: another conversion would be other code, and so another rule.
            self.converted = self.user if backend.converted is None else backend.converted(self.user)
        fun = self.converted
        if self.state is None and keras_interop.keras() is not None:
            self.state = self.begin(self.output is None)
        run = None if self.state is None else self.state.begin()
        if run is None:
            # Without a context where possible: torch.compile (2.13) could not break its graph inside one.
            return config.under(backend, fun, args, kwargs), (), None
        with run:
            result = config.under(backend, fun, args, kwargs)
        return result, run.changes(), run

    def begin(self, is_first: bool) -> Any:
        """Returns what Keras saves for the runs of this call."""
        if is_first and keras_scope.is_unscoped:
            return None
        return keras_scope.State(self.name, self.backend, is_first)

    def refuse_changes(self) -> None:
        """Lets no run change a variable of Keras: a backend traces even the first, and would leave a tracer there.

        Not where a compiler traces Python code, which sees such a change.
        """
        if self.backend.is_compiling():
            return
        if keras_interop.keras() is not None and keras_scope.is_unscoped:
            self.state = keras_scope.State(self.name, self.backend, is_first=False, is_strict=True)

    def flatten(self, output: Any) -> tuple[Tree, list[Any]]:
        """Returns the static part of an output, and its tensors."""
        tree = pytree.flatten(output, self.backend)
        tensors = pytree.partition(self.backend, self.name, tree, output_label)
        for place, leaf in enumerate(tree.leaves):
            if isinstance(leaf, references.CONTAINERS) and any(map(self.backend.is_tensor, references.elements(leaf))):
                raise messages.tensors_in_container(self.name, output_label(tree, place), leaf)
        return tree, tensors

    def finish(self, results: Sequence[Any]) -> Any:
        """Builds the output from what the backend returns: its tensors, then the changed variables."""
        output: Any = self.output
        if self.state is not None:
            count = len(output.places)
            self.state.settle(tuple(results[count:]))
            results = results[:count]
        return results[0] if output is SINGLE else output.combine(results)

    def closed_over(self) -> list[Any]:
        """Returns what a quick look at the user's function shows: one level, and no search."""
        return references.near(self.user)

    def captures(self, is_wanted: Callable[[Any], bool]) -> Iterable[Any]:
        """Returns what the user's function can reach without its arguments, of the wanted kind."""
        return references.reached([self.user, *self.static.leaves], is_wanted)

    def names(self, values: Sequence[Any], described: Sequence[str]) -> list[str]:
        """Returns the user's name for each captured value; without one, what `described`."""
        return references.names_of(self.user, values, described, keras_interop.unwrap)


def output_label(tree: Tree, place: int) -> str:
    """Returns the name of a leaf of the output in messages."""
    return f"the output{tree.paths()[place]}"


def checked_pair(name: str, fun: Callable[..., Any], pair: Any) -> tuple[Any, Callable[..., Any]]:
    """Returns `(output, grad)`, if the function `fun` returned such a pair."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise errors.locate(messages.not_a_pair(name, pair), fun, what="function")
    output, rule = pair
    if not callable(rule):
        raise errors.locate(messages.rule_not_callable(name, rule), fun, what="function")
    return output, rule
