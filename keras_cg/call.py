"""One call of a decorated function: bind and part the arguments, have the rule attached, combine the output."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from keras_cg import arguments, config, errors, leaves, presence, signature
from keras_cg.arguments import Arguments
from keras_cg.conventions import Convention
from keras_cg.engine import held, hiding
from keras_cg.engine.contract import Backend
from keras_cg.engine.held import Held
from keras_cg.engine.precision import is_differentiable
from keras_cg.gradients import Gradients, Like, check_variables
from keras_cg.leaves import Rest
from keras_cg.nest import Nest
from keras_cg.state import Repeated, State


def plain(backend: Backend, name: str, fun: Callable[..., Any], args: Sequence[Any]) -> Any:
    """A call that nobody differentiates, of tensors alone: there is nothing to attach the rule to."""
    return output_of(backend, name, fun(*map(backend.asarray, args)))


def output_of(backend: Backend, name: str, pair: Any) -> Any:
    """The output, of what the user's function returned where nobody differentiates."""
    output, _ = _pair(name, pair)
    if backend.is_tensor(output):
        return backend.asarray(output)
    tensors, rest = leaves.partition(backend, name, output, _output_label)
    return rest.combine(tensors)


def attached(
    decorated: Any, backend: Backend, name: str, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call whose output has the gradient that the rule says."""
    kwargs = signature.in_order(fun, kwargs) if kwargs else kwargs
    keywords = tuple(kwargs)
    laid = leaves.flatten(backend, (*args, *kwargs.values()))
    if presence.is_symbolic(laid.leaves):
        labels = arguments.labels(fun, len(args), keywords, laid)
        return _operation(decorated, args, kwargs, dict(zip(labels, laid.leaves, strict=True)))
    tensors, given = arguments.bind(backend, name, fun, len(args), keywords, laid)
    function = Attached(given)
    return function.finish(backend.attach(function, tensors))


class Flat:
    """A function as a backend sees it, from tensors to tensors: nests, keywords and static leaves are settled here."""

    def __init__(self, given: Arguments):
        self.given = given
        self.name = given.name
        # Without Keras there is none.
        self.state: State | Repeated | None = None if presence.keras() is None else State(given.name, given.backend)
        # The rest of the output of each run; the first one's is what the output is made of.
        self.outputs: list[Rest] = []

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        """What the user's function returns, and the values of the Keras variables that it changed."""
        backend, state = self.given.backend, self.state
        fun = backend.converted(self.given.fun)
        run = None if state is None else state.begin()
        # Without a context if it can be, in which torch.compile (2.13) could not break its graph.
        if run is None:
            return (under(backend, fun, args, kwargs) if self.outputs else fun(*args, **kwargs)), ()
        with run:
            result = under(backend, fun, args, kwargs)
        return result, run.changes()

    def part(self, output: Any) -> tuple[list[Any], Rest]:
        """The tensors of an output, and the rest of it."""
        tensors, rest = leaves.partition(self.given.backend, self.name, output, _output_label)
        self.outputs.append(rest)
        return tensors, rest

    def finish(self, results: Sequence[Any]) -> Any:
        """The output, of what the backend made of the tensors in it and of the changed variables behind them."""
        output = self.outputs[0]
        count = len(output.places)
        if self.state is not None:
            self.state.settle(tuple(results[count:]))
        return output.combine(results[:count])

    def held(self, is_wanted: Callable[[Any], bool]) -> Held:
        """The tensors that the user's function holds, in its closure and in static arguments; `build` makes it anew."""
        given = self.given
        taken = held.find(given.fun, given.rest.nest.leaves, is_wanted, given.backend.children, whole=self.kept_whole())

        def build(tensors: Sequence[Any]) -> Flat:
            fun, static = taken.build(tensors)
            rest = given.rest._replace(nest=given.rest.nest._replace(leaves=list(static)))
            other = copy.copy(self)
            other.given = given._replace(fun=fun, rest=rest)
            return other

        return taken._replace(build=build)

    def reached(self, passed: tuple[type, ...]) -> list[Any]:
        """The tensors that the function may reach besides its arguments, but through what is of the types `passed`."""
        given = self.given
        scope = getattr(given.fun, "__globals__", None)
        return hiding.reached([given.fun, *given.rest.nest.leaves], given.backend.is_tensor, scope, passed)

    def kept_whole(self) -> tuple[type, ...]:
        """The classes of what must stay the objects that they are wherever the function is made anew."""
        return ()


class Plain(Flat):
    """A function that gives its tensors alone, and will run again for its gradient."""

    def __init__(self, given: Arguments):
        super().__init__(given)
        # For its only run, if there will be no other.
        self.single = self.state
        self.state = self.repeated = Repeated(given.name, given.backend)

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        """One run: the tensors of the output, then those of the variables that it changed."""
        output, changed = self.run(*self.given.bind(tensors))
        return (*self.part(output)[0], *changed)

    def once(self, *tensors: Any) -> tuple[Any, ...]:
        """The only run."""
        self.state = self.single
        return self(*tensors)

    def traced(self, *tensors: Any) -> tuple[Any, ...]:
        """A run that a framework traces."""
        self.repeated.is_traced = True
        return self(*tensors)

    def late(self, *tensors: Any) -> tuple[Any, ...]:
        """A run whose derivative reads the variables of Keras later."""
        self.repeated.is_late = True
        return self(*tensors)

    def reads(self) -> list[Any]:
        """What the first run read of Keras, and left as it was."""
        return self.repeated.reads()

    def kept_whole(self) -> tuple[type, ...]:
        """Those of Keras, to which the function may assign: every run is to see the same ones."""
        return presence.holders()


class Attached(Flat):
    """A decorated function: it gives its tensors, and the rule for them."""

    def __call__(self, *tensors: Any) -> tuple[tuple[Any, ...], Pullback]:
        """One run: the tensors of the output, then those of the variables that it changed; and the rule."""
        args, kwargs = self.given.bind(tensors)
        return self.accept(tensors, args, kwargs, *self.run(args, kwargs))

    def accept(
        self, tensors: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any], pair: Any, changed: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], Pullback]:
        """The same of what the user's function has returned."""
        given, backend = self.given, self.given.backend
        output, rule = _pair(self.name, pair)
        results, rest = self.part(output)
        values = given.by_position(args, kwargs) if kwargs else args
        likes = [(backend.dtype(tensor), backend.shape(tensor)) for tensor in tensors]
        return (*results, *changed), Pullback(given, Convention(rule, given, values, len(values), rest), likes)

    def anew(self) -> Attached:
        """The same before its first run, for a call that a traced program makes again, under whichever backend then."""
        other = copy.copy(self)
        other.state = None if presence.keras() is None else State(self.name, self.given.backend)
        # The first one's, so that the next run is under the backend of the call.
        other.outputs = self.outputs[:1]
        return other

    def seen(self, rest: Rest | None = None) -> Attached:
        """The same after its first run, in which Keras kept nothing and whose output was `rest`, or is to come."""
        self.state = None if presence.keras() is None else State.unscoped(self.given.name, self.given.backend)
        self.outputs = [] if rest is None else [rest]
        return self


class Pullback:
    """The rule of one run of a function, as a backend sees it: flat and checked."""

    def __init__(self, given: Arguments, convention: Convention, likes: Sequence[Like]):
        self.given, self.convention, self.likes = given, convention, likes

    def takes_variables(self) -> bool:
        """Whether the rule asks for what the function captured."""
        return self.convention.takes_variables()

    def capture(self, names: Sequence[str]) -> None:
        """Told what trainable values the function read besides its arguments.

        Raises:
            CapturedVariableError: There are some, and the rule takes no `variables`.
        """
        if names and not self.takes_variables():
            raise errors.captured_variable(self.given.name, names)

    def held(self) -> Held:
        """The tensors that the rule holds; `build` makes this pullback around others."""
        given, convention, likes = self.given, self.convention, self.likes
        values = convention.values if convention.gets_arguments() else ()
        taken = held.find(convention.rule, values, given.backend.is_tensor, given.backend.children, made_by=given.fun)
        # Neither `self`, nor the convention, nor `taken`, which hold the tensors.
        count, outputs, around = convention.count, convention.outputs, taken.build

        def build(tensors: Sequence[Any]) -> Pullback:
            rule, values = around(tensors)
            return Pullback(given, Convention(rule, given, values, count, outputs), likes)

        return taken._replace(build=build)

    def __call__(
        self, cotangents: Sequence[Any], variables: Sequence[Any] = (), wanted: Sequence[bool] | None = None
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The gradients of the tensor arguments and of `variables`, None where there is none, or nobody wants it."""
        backend, outputs = self.given.backend, self.convention.outputs
        upstreams: list[Any] = [None] * len(outputs.nest.leaves)
        # After those of the outputs come those of what the function changed in Keras's variables: see `State`.
        for place, cotangent in zip(outputs.places, cotangents, strict=False):
            if cotangent is not None and is_differentiable(backend.dtype(cotangent)):
                upstreams[place] = cotangent
        others: tuple[Any, ...] = ()
        try:
            result = under(backend, self.convention.call, (upstreams, variables), {})
            if variables:
                result, others = check_variables(self.given, result, variables)
            return Gradients(self.given, self.likes).collect(result, wanted), others
        except (TypeError, errors.GradientError) as error:
            hint = self.convention.hint()
            if hint is not None:
                error.add_note(hint)
            raise


def under(backend: Backend, fun: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls the user's code under the backend of its call, whichever is active by now, in whichever thread."""
    # Without a context if it can be: torch.compile (2.13) cannot trace one, and it takes time.
    if config.is_active(backend):
        return fun(*args, **kwargs)
    with config.running(backend):
        return fun(*args, **kwargs)


def function_name(fun: Callable[..., Any]) -> str:
    """What messages call a function."""
    return getattr(fun, "__qualname__", None) or getattr(fun, "__name__", None) or type(fun).__name__


def _output_label(laid: Nest, place: int) -> str:
    return f"the output{laid.paths()[place]}"


def _operation(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], labelled: dict[str, Any]) -> Any:
    """A call as an operation of Keras's functional API."""
    from keras_cg.keras import operation

    return operation.apply(function, args, kwargs, labelled)


def _pair(name: str, pair: Any) -> tuple[Any, Callable[..., Any]]:
    """`(output, grad)`, as the function must return it."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise errors.not_a_pair(name, pair)
    output, rule = pair
    if not callable(rule):
        raise errors.rule_not_callable(name, rule)
    return output, rule
