"""One call of a decorated function: flatten and partition the arguments, attach the rule, build the output.

`call` does this for any arguments. `CustomGradient.__call__` leaves out the pytrees where all arguments are plain
tensors by position. A backend gets a `Call`, from tensors to tensors, whose every run gives a `Run`: the
rule of that run, from flat cotangents to flat, checked gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

from keras_cg import errors, user_code
from keras_cg.bridge import keras_interop, keras_scope
from keras_cg.engine import references
from keras_cg.engine.contract import Backend
from keras_cg.engine.world import World, are_data, leads_outside
from keras_cg.frontend import arguments, config, messages, pytree, signature
from keras_cg.frontend.arguments import Arguments
from keras_cg.frontend.gradients import Spec, check_variables, collect, needs_input_grad
from keras_cg.frontend.run import Run
from keras_cg.frontend.tree import SINGLE, Tree


def call(decorated: Any, name: str, backend: Backend, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a decorated function with any arguments."""
    fun = decorated.__wrapped__
    if decorated.is_told and signature.NEEDS in kwargs:
        raise messages.told_by_the_decorator(name)
    kwargs = signature.in_order(fun, kwargs) if len(kwargs) > 1 else kwargs
    keywords, values = tuple(kwargs), (*args, *kwargs.values())
    found = pytree.split(backend, values)
    if found is not None:
        tree, tensors = found
    else:
        tree = pytree.flatten(values, backend)
        if keras_interop.is_symbolic(tree.leaves):
            labels = arguments.labels(fun, len(args), keywords, tree)
            leaves = dict(zip(labels, tree.leaves, strict=True))
            return keras_interop.operation().apply(decorated, args, kwargs, leaves)

        def label(tree: Tree, place: int) -> str:
            return f"the argument {arguments.labels(fun, len(args), keywords, tree)[place]}"

        tensors = pytree.partition(backend, name, tree, label)
    function = Call(backend, name, fun, len(args)).of(keywords, tree)
    if found is None:
        function.whole = {place: values[place] for place in tree.without_tensors()}
    function.engine = backend.is_recording()
    if decorated.is_told:
        # The same answer in every run, so that no rule differs by it.
        needed = backend.needs_grad(tensors) if function.engine else [False] * len(tensors)
        function.extras = {signature.NEEDS: needs_input_grad(function, needed)}
    if function.engine:
        return function.finish(backend.attach(function, tensors))
    # Nothing is differentiated, so there is nothing to attach the rule to.
    args, kwargs = function.bind(tuple(tensors))
    return output_of(backend, name, fun, fun(*args, **kwargs))


def output_of(backend: Backend, name: str, fun: Callable[..., Any], pair: Any) -> Any:
    """Returns the output of `fun`, which returned `pair`, where nothing is differentiated."""
    output, _ = _checked_pair(name, fun, pair)
    tree = pytree.flatten(output, backend)
    return tree.combine([*map(backend.constant, pytree.partition(backend, name, tree, _output_label))])


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
        if is_first and keras_scope.is_unscoped():
            return None
        return keras_scope.State(self.name, self.backend, is_first)

    def refuse_changes(self) -> None:
        """Lets no run change a variable of Keras: a backend traces even the first, and would leave a tracer there."""
        if keras_interop.keras() is not None and keras_scope.is_unscoped():
            self.state = keras_scope.State(self.name, self.backend, is_first=False, is_strict=True)

    def flatten(self, output: Any) -> tuple[list[Any], Tree]:
        """Returns the tensors of an output, and its static part."""
        backend = self.backend
        tree = pytree.flatten(output, backend)
        return pytree.partition(backend, self.name, tree, _output_label), tree

    def finish(self, results: Sequence[Any]) -> Any:
        """Builds the output from what the backend returns: its tensors, then the changed variables."""
        output: Any = self.output
        if self.state is not None:
            self.state.settle(tuple(results[len(output.places) :]))
        return results[0] if output is SINGLE else output.combine(results[: len(output.places)])

    def closed_over(self) -> list[Any]:
        """Returns what a quick look at the user's function shows: one level, and no search."""
        return references.near(self.user)

    def captures(self, is_wanted: Callable[[Any], bool]) -> Iterable[Any]:
        """Returns what the user's function can reach without its arguments, of the wanted kind."""
        return references.reached([self.user, *self.static.leaves], is_wanted)

    def names(self, values: Sequence[Any], described: Sequence[str]) -> list[str]:
        """Returns the user's name for each captured value; without one, what `described`."""
        return references.names_of(self.user, values, described, keras_interop.unwrap)


class Call(FlatFunction):
    """One call of a decorated function, as a backend sees it: each run returns tensors, and the rule for them.

    Attributes:
        engine: What `is_recording` of the backend said when the call began.
        is_traced: Set by the backend where a compiler traces Python code: then the rule is traced at once, in no world.
        look: Set by a backend: what it asks of the values that the first run will have at hand.
        existing: What `look` said.
        world: That of the first run, in which every other one starts; None if there is nothing to put back.
    """

    engine: Any = None
    is_traced = False
    has_run = False
    world: World | None = None
    look: Callable[[list[Any]], Sequence[Any]] | None = None
    existing: Sequence[Any] = ()

    def __call__(self, *tensors: Any) -> tuple[tuple[Any, ...], Run]:
        """Runs the function: returns the tensors of the output, then the variables that it changed; and the rule."""
        results, run = self.start(*tensors)
        return results, run.note()

    def start(self, *tensors: Any) -> tuple[tuple[Any, ...], Run]:
        """Runs the function: returns the tensors of the output, then the variables that it changed; and the run.

        The run is to be noted before anything else happens, if anything differentiates. Every run but the first begins
        in the world that this one found.
        """
        if self.output is not None or self.is_traced or self.state is not None or not keras_scope.is_unscoped():
            return self._start(tensors)
        # The first run, outside of every scope of Keras, and its backend is active.
        backend, user, nest, opened = self.backend, self.user, self.nest, None
        is_bare = nest is None and type(user) is FunctionType and not user.__closure__
        if not is_bare or user.__defaults__ or user.__kwdefaults__:
            opened = self._open()
        self.converted = fun = user if backend.converted is None else backend.converted(user)
        args, kwargs = (tensors, None) if nest is None else self.bind(tensors)
        pair = fun(*args, **kwargs) if kwargs else fun(*args)
        if type(pair) is tuple and len(pair) == 2 and type(pair[0]) in backend.plain and callable(pair[1]):
            results, rule = pair[:1], pair[1]
            self.output = tree = SINGLE
        else:
            results, rule, tree = self.accept(pair)
        run = Run(self, tensors, args, rule, tree, results, opened)
        if kwargs:
            run.kwargs = kwargs
        return results, run

    def _open(self) -> World | None:
        """Returns the world before a run, of which the backend may look at what is there; None if nothing is there."""
        static = () if self.nest is None else self.nest.leaves
        if not leads_outside(self.user) and are_data(static):
            return None
        opened = World(self.user, static)
        if self.look is not None and not self.has_run:
            self.existing = self.look(opened.values())
        return opened

    def _start(self, tensors: tuple[Any, ...]) -> tuple[tuple[Any, ...], Run]:
        """Runs the function with any arguments, or again."""
        if self.world is not None:
            again = copy.copy(self)
            again.world = None
            return self.world.again(again, *tensors)  # type: ignore[no-any-return]
        opened = None if self.is_traced else self._open()
        args, kwargs = self.bind(tensors)
        pair, changed, scope = self.run(args, kwargs)
        results, rule, tree = self.accept(pair)
        run = Run(self, tensors, args, rule, tree, results, opened)
        run.kwargs = kwargs
        # Only values in a scope of Keras are shown to the rule.
        run.scope = scope if scope is not None and scope.state.scope is not None else None
        return (*results, *changed), run

    def positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Returns the arguments as a rule gets them: by position."""
        return (*args, *signature.by_position(self.user, len(args), kwargs))

    def accept(self, pair: Any) -> tuple[tuple[Any, ...], Callable[..., Any], Tree]:
        """Returns the tensors of the output, the rule and the static part of the output, of what a run returned."""
        backend = self.backend
        results: Any
        if type(pair) is tuple and len(pair) == 2 and backend.is_plain(pair[0]) and callable(pair[1]):
            results, rule, tree = pair[:1], pair[1], SINGLE
        else:
            output, rule = _checked_pair(self.name, self.user, pair)
            results, tree = self.flatten(output)
        if self.output is None:
            self.output = tree
        return results, rule, tree

    def checked(
        self,
        rule: Callable[..., Any],
        specs: Sequence[Spec],
        result: Any,
        variables: Sequence[Any],
        needs_grad: Sequence[bool] | None,
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns the gradients in the result of a rule, and those of `variables`; an error says where the rule is."""
        others: tuple[Any, ...] = ()
        try:
            if variables:
                result, others = check_variables(self, result, variables)
            return collect(self, specs, result, needs_grad, rule), others
        except errors.GradientError as error:
            raise errors.locate(error, rule, self.user) from None


def function_name(fun: Callable[..., Any]) -> str:
    """Returns the name of a function in messages."""
    name = getattr(fun, "__qualname__", None) or getattr(fun, "__name__", None) or type(fun).__name__
    if user_code.is_traced_by_dynamo():
        return name  # no text to Dynamo of torch (2.13)
    # AutoGraph of TensorFlow (2.21) puts this before the name of a function inside one that it rewrote.
    return name.removeprefix("outer_factory.<locals>.inner_factory.<locals>.tf__")


def _output_label(tree: Tree, place: int) -> str:
    return f"the output{tree.paths()[place]}"


def _checked_pair(name: str, fun: Callable[..., Any], pair: Any) -> tuple[Any, Callable[..., Any]]:
    """Returns `(output, grad)`, if the function `fun` returned such a pair."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise errors.locate(messages.not_a_pair(name, pair), fun, what="function")
    output, rule = pair
    if not callable(rule):
        raise errors.locate(messages.rule_not_callable(name, rule), fun, what="function")
    return output, rule
