"""One call of a decorated function: flatten and partition the arguments, attach the rule, build the output.

`call` does this for any arguments. `CustomGradient.__call__` leaves out the pytrees where all arguments are plain
tensors by position. A backend gets a `Call`, from tensors to tensors, whose every run gives a `Pullback`: the rule of
that run, from flat cotangents to flat, checked gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keras_cg import backends, errors, user_code
from keras_cg.bridge import keras_interop, keras_scope
from keras_cg.engine import comparing
from keras_cg.engine.contract import Backend
from keras_cg.engine.freezing import freeze
from keras_cg.engine.precision import is_differentiable
from keras_cg.engine.watching import Epochs, Watch
from keras_cg.frontend import arguments, config, conventions, pytree, signature, tracebacks
from keras_cg.frontend.arguments import Arguments
from keras_cg.frontend.conventions import ALONE, ANY, Convention
from keras_cg.frontend.gradients import Spec, check_variables, collect
from keras_cg.frontend.pytree import SINGLE, Tree


def call(decorated: Any, name: str, backend: Backend, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a decorated function with any arguments."""
    fun = decorated.__wrapped__
    kwargs = signature.in_order(fun, kwargs) if kwargs else kwargs
    keywords = tuple(kwargs)
    tree = pytree.flatten((*args, *kwargs.values()), backend.is_tensor, backend.children)
    if keras_interop.is_symbolic(tree.leaves):
        labels = arguments.labels(fun, len(args), keywords, tree)
        leaves = dict(zip(labels, tree.leaves, strict=True))
        return keras_interop.operation().apply(decorated, args, kwargs, leaves)

    def label(tree: Tree, place: int) -> str:
        return f"the argument {arguments.labels(fun, len(args), keywords, tree)[place]}"

    tensors = pytree.partition(backend, name, tree, label)
    function = Call(backend, name, fun, len(args), keywords, tree)
    if backend.is_recording():
        return function.finish(backend.attach(function, tensors))
    # Nothing is differentiated, so there is nothing to attach the rule to.
    args, kwargs = function.bind(tuple(tensors))
    return output_of(backend, name, fun, fun(*args, **kwargs))


def output_of(backend: Backend, name: str, fun: Callable[..., Any], pair: Any) -> Any:
    """Returns the output of `fun`, which returned `pair`, where nothing is differentiated."""
    output, _ = _checked_pair(name, fun, pair)
    tree = pytree.flatten(output, backend.is_tensor, backend.children)
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
        backend, is_first = self.backend, self.output is None
        if self.converted is None:
            # Once: another conversion would be other code, and so another rule.
            self.converted = backend.converted(self.user)
        fun = self.converted
        if self.state is None and keras_interop.keras() is not None:
            self.state = self.begin(is_first)
        run = None if self.state is None else self.state.begin()
        if run is None:
            # Without a context where possible: torch.compile (2.13) could not break its graph inside one.
            return (fun(*args, **kwargs) if is_first else under(backend, fun, args, kwargs)), (), None
        with run:
            result = under(backend, fun, args, kwargs)
        return result, run.changes(), run

    def begin(self, is_first: bool) -> Any:
        """Returns what Keras saves for the runs of this call."""
        if is_first and keras_scope.is_unscoped():
            return None
        return keras_scope.State(self.name, self.backend, is_first)

    def refuse_changes(self) -> None:
        """Lets no run change a variable of Keras: a backend traces even the first, and would leave a tracer there."""
        if keras_interop.keras() is not None and keras_scope.is_unscoped():
            self.state = keras_scope.State(self.name, self.backend, is_first=False)

    def flatten(self, output: Any) -> tuple[list[Any], Tree]:
        """Returns the tensors of an output, and its static part."""
        backend = self.backend
        tree = pytree.flatten(output, backend.is_tensor, backend.children)
        return pytree.partition(backend, self.name, tree, _output_label), tree

    def finish(self, results: Sequence[Any]) -> Any:
        """Builds the output from what the backend returns: its tensors, then the changed variables."""
        output = self.output
        if output is None:
            # torch found nothing to differentiate, and has called the user's function alone.
            return results[0]
        if self.state is not None:
            self.state.settle(tuple(results[len(output.places) :]))
        return results[0] if output is SINGLE else output.combine(results[: len(output.places)])

    def closed_over(self) -> list[Any]:
        """Returns what a quick look at the user's function shows: one level, and no search."""
        return comparing.near(self.user)

    def captures(self, is_wanted: Callable[[Any], bool]) -> Iterable[Any]:
        """Returns what the user's function can reach without its arguments, of the wanted kind."""
        return comparing.reached([self.user, *self.static.leaves], is_wanted)

    def names(self, values: Sequence[Any], described: Sequence[str]) -> list[str]:
        """Returns the user's name for each captured value; without one, what `described`."""
        return arguments.names_of(self.user, values, described)


class Call(FlatFunction):
    """A decorated function as a backend sees it: each run returns tensors, and the rule for them."""

    # For the rule of the last run: what has to be watched, how it is called if its code alone tells, and what it holds
    # if it is a plain closure.
    watch: Watch | None = None
    style: int | None = None
    residuals: list[Any] | None = None

    def __call__(self, *tensors: Any) -> tuple[tuple[Any, ...], Pullback]:
        """Runs the function: returns the tensors of the output, then the variables that it changed; and the rule."""
        if self.is_ordinary and self.output is None and self.state is None:
            # The first run of an ordinary call is outside of every scope of Keras.
            self.converted = self.backend.converted(self.user)
            results, rule, tree = self.accept(self.converted(*tensors))
            return results, Pullback(self, tensors, tensors, rule, tree)
        args, kwargs = self.bind(tensors)
        pair, changed, run = self.run(args, kwargs)
        args = self.positional(args, kwargs)
        results, rule, tree = self.accept(pair)
        # Only values in a scope of Keras are shown to the rule.
        run = run if run is not None and run.state.scope is not None else None
        return (*results, *changed), Pullback(self, tensors, args, rule, tree, run)

    def positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Returns the arguments as a rule gets them: by position."""
        return (*args, *signature.by_position(self.user, len(args), kwargs)) if kwargs else args

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
        if not backend.is_compiling():
            # A copy, because the names that the rule reads may be bound to something else later.
            rule, self.watch, self.residuals = freeze(rule, self.user)
            self.style = conventions.style(rule)
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


class Pullback:
    """The rule of one run of a function, flat and checked: `contract.Pullback` says what a backend does with it."""

    __slots__ = (
        *("_specs", "count", "function", "is_used_up", "output", "residuals", "rule", "run", "style", "tensors"),
        *("values", "watch"),
    )

    def __init__(
        self,
        function: Call,
        tensors: Sequence[Any],
        args: tuple[Any, ...],
        rule: Callable[..., Any],
        output: Tree,
        run: Any = None,
    ):
        self.function, self.rule, self.output, self.count, self.run = function, rule, output, len(args), run
        self.is_used_up = False
        style, self.watch, self.residuals = function.style, function.watch, function.residuals
        function.watch = function.residuals = None  # because a backend may drop the rule, and not the function
        self.style = style if run is None and (style in (ALONE, ANY) or style == self.count) else None
        self.values = args if style != ALONE and (style is not None or conventions.gets_arguments(rule)) else ()
        # Plain tensors are saved as they are; of all others only what is checked: JAX finds a leak in a saved tracer.
        self.tensors = tensors if function.is_plain else ()
        if not self.tensors:
            backend = function.backend
            self._specs = [(backend.dtype(tensor), backend.shape(tensor)) for tensor in tensors]

    @property
    def specs(self) -> list[Spec]:
        """The dtype and the shape that the gradient of each tensor must have."""
        backend = self.function.backend
        if not self.tensors:
            return self._specs
        return [(backend.dtype(tensor), backend.shape(tensor)) for tensor in self.tensors]

    def __call__(
        self,
        cotangents: Sequence[Any],
        variables: Sequence[Any] = (),
        needs_grad: Sequence[bool] | None = None,
        arguments: Sequence[Any] | None = None,
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns the gradients of the arguments and of `variables`, None where there is none, or none is needed."""
        function, values = self.function, self.values
        if values and arguments is not None:
            values = tuple(arguments) if function.is_ordinary else function.positional(*function.bind(tuple(arguments)))
        watch = self.watch
        if watch is None:
            return self._call(cotangents, variables, needs_grad, values)
        name = watch.changed()
        if name is not None:
            raise errors.bound_again(function.name, name, self.location())
        with watch.running():
            return self._call(cotangents, variables, needs_grad, values)

    def _call(
        self,
        cotangents: Sequence[Any],
        variables: Sequence[Any],
        needs_grad: Sequence[bool] | None,
        values: tuple[Any, ...],
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        function = self.function
        if self.style is not None and not variables:
            return self._quick(cotangents, needs_grad, values), ()
        convention = Convention(self.rule, function, values, self.count, self.output)
        try:
            upstreams = upstreams_of(function.backend, self.output, cotangents)
            call = convention.call if self.run is None else self.run.for_rule()(convention.call)
            needs_input_grad = needs_grad or [True] * len(function.static.places)
            result = under(function.backend, call, (upstreams, variables, needs_input_grad), {})
            return function.checked(self.rule, self.specs, result, variables, needs_grad)
        except (TypeError, errors.GradientError) as error:
            hint = convention.hint()
            if hint is not None:
                error.add_note(hint)
            tracebacks.hide_frames(error)
            raise

    def _quick(
        self, cotangents: Sequence[Any], needs_grad: Sequence[bool] | None, values: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Calls a rule whose code tells how; most return a plain gradient for each tensor, and nothing is converted."""
        function, rule, output = self.function, self.rule, self.output
        backend = function.backend
        upstream = cotangents[0] if output is SINGLE else output.unflatten(upstreams_of(backend, output, cotangents))
        if not config.is_active(backend):
            args, kwargs = ((upstream,), {}) if self.style == ALONE else (values, {"upstream": upstream})
            result = under(backend, rule, args, kwargs)
        else:
            result = rule(upstream) if self.style == ALONE else rule(*values, upstream=upstream)
        if self.tensors:
            gradients: Any = result if type(result) is tuple else (result,)
            if not function.is_ordinary:
                gradients = function.static.tensors_of(gradients)
            if len(gradients) == len(self.tensors):
                for gradient, tensor in zip(gradients, self.tensors, strict=True):
                    is_plain = backend.is_plain(gradient)
                    if not is_plain or gradient.dtype != tensor.dtype or gradient.shape != tensor.shape:
                        break
                else:
                    return tuple(gradients)
        return function.checked(rule, self.specs, result, (), needs_grad)[0]

    def location(self) -> str | None:
        """Returns the file and line of the rule, if they are known."""
        return user_code.location(self.rule, self.function.user)

    def takes_arguments(self) -> bool:
        """Whether the rule is called with the function's arguments."""
        return bool(self.values)

    def takes_variables(self) -> bool:
        """Whether the rule takes the captured variables."""
        return conventions.takes_variables(self.rule)

    def capture(self, names: Sequence[str], values: Sequence[Any] = ()) -> None:
        """Raises if the function read trainable values that are no arguments, and the rule takes no `variables`."""
        if names and not self.takes_variables():
            fun, is_users = self.function.user, self.location() is not None
            names = self.function.names(values, names) if values else names
            if not is_users:  # a recipe, which has the user's function in a cell
                fun = next(filter(user_code.location, comparing.near(fun)), fun)
            raise errors.locate(errors.captured_variable(self.function.name, names, is_users), fun, what="function")

    def closed_over(self) -> list[Any]:
        """Returns what a quick look at the rule shows: its cells, defaults, partial arguments and `vars(self)`."""
        return [*(comparing.near(self.rule) if self.residuals is None else self.residuals), *self.values]

    def reached(self) -> list[Any]:
        """Returns the tensors that the rule can reach, by a search that may take long."""
        return [*comparing.reached([self.rule, *self.values], self.function.backend.is_tensor)]

    def _steps(self, epochs: Epochs) -> list[tuple[str, Any]]:
        """Returns what the rule holds and reads, but for the names that only a rule has bound since `epochs`."""
        return [("", self.rule), *(() if self.watch is None else self.watch.values(epochs))]

    def _epochs(self) -> Epochs:
        return {} if self.watch is None else self.watch.epochs()

    def check(self, other: Any, probe: Any) -> list[Any]:
        """Raises if the rule of another run differs; returns conditions where no value can be looked at yet."""
        return self._compare(self._steps(other._epochs()), self._epochs(), other, lambda: (probe(self), probe(other)))

    def outline(self, inputs: Sequence[Any], probe: Any) -> tuple[list[Any], Any]:
        """Returns the tensors of the rule, and what must be equal in the rule of another run, instead of the rule."""
        shared = [*comparing.near(self.function.user), *self.function.static.leaves]
        is_tensor = self.function.backend.is_tensor
        steps, tensors, is_unknown = comparing.outline(self._steps({}), is_tensor, shared, inputs)
        # No hook and no checkpoint may make the gradients of the first rule again: they would be those of another run.
        return tensors, (steps, self._epochs(), probe(self) if is_unknown else None)

    def check_outline(self, inputs: Sequence[Any], tensors: Sequence[Any], facts: Any, probe: Any) -> None:
        """Raises if the rule of the first run, of which there is only the `outline`, differs."""
        steps, epochs, gradients = facts
        own = self._epochs()
        steps = [(name, value) for name, value in steps if not name or epochs.get(name) != own.get(name)]
        # Without a gradient of the first run, nothing can tell for another structure.
        both = lambda: ([None], []) if gradients is None else (gradients, probe(self))  # noqa: E731
        self._compare(steps, epochs, self, both, [*inputs, *tensors])

    def _compare(
        self,
        first: Sequence[tuple[str, Any]],
        epochs: Epochs,
        other: Any,
        gradients: Callable[[], tuple[Sequence[Any], Sequence[Any]]],
        saved: Sequence[Any] = (),
    ) -> list[Any]:
        backend = self.function.backend
        found = comparing.difference(first, other._steps(epochs), backend.is_tensor, backend.agreement, saved)
        name, conditions = found.name, [*found.conditions]
        if name is None and found.is_unknown:
            ones, others = gradients()
            other.is_used_up = True
            answers: list[Any] = [[each is None for each in ones] == [each is None for each in others]]
            if all(answers):
                pairs = [pair for pair in zip(ones, others, strict=True) if pair[0] is not None]
                answers = [*backend.agreement(pairs)] if pairs else []
            if any([answer is False for answer in answers]):
                name = "it gives another gradient"
            conditions += [answer for answer in answers if answer is not True]
        if name is not None:
            raise errors.not_repeated(self.function.name, self.function.user, name)
        return conditions


def under(backend: Backend, fun: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls the user's code under the backend of its call, whichever is active by now, in whichever thread."""
    # Without a context where possible: torch.compile (2.13) cannot trace one, and it takes time.
    if config.is_active(backend):
        return fun(*args, **kwargs)
    with config.use_backend(backends.name_of(backend)):
        return fun(*args, **kwargs)


def upstreams_of(backend: Backend, output: Tree, cotangents: Sequence[Any]) -> list[Any]:
    """Returns the upstream of each leaf of an output, None where it has none."""
    upstreams: list[Any] = [None] * len(output.leaves)
    # After the cotangents of the outputs come those of the variables of Keras that the function changed.
    for place, cotangent in zip(output.places, cotangents, strict=False):
        if cotangent is not None and is_differentiable(backend.dtype(cotangent)):
            upstreams[place] = cotangent
    return upstreams


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
        raise errors.locate(errors.not_a_pair(name, pair), fun, what="function")
    output, rule = pair
    if not callable(rule):
        raise errors.locate(errors.rule_not_callable(name, rule), fun, what="function")
    return output, rule
