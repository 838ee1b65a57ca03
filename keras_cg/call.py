"""One call of a decorated function: flatten and partition the arguments, have the rule attached, build the output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

from keras_cg import arguments, config, conventions, errors, keras_interop, keras_scope, pytree, signature
from keras_cg.arguments import Arguments
from keras_cg.conventions import Convention
from keras_cg.engine import rule as rules
from keras_cg.engine.contract import Backend
from keras_cg.engine.freezing import freeze
from keras_cg.engine.precision import is_differentiable
from keras_cg.gradients import Spec, check_variables, collect
from keras_cg.pytree import ROW, SINGLE, Tree


def call(decorated: Any, name: str, backend: Backend, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of a decorated function whose arguments are not all plain tensors by position."""
    fun = decorated.__wrapped__
    if not kwargs and not backend.is_recording() and all(map(backend.is_tensor, args)):
        # Nothing is differentiated, so there is nothing to attach the rule to.
        return output_of(backend, name, fun(*map(backend.asarray, args)))
    kwargs = signature.in_order(fun, kwargs) if kwargs else kwargs
    keywords = tuple(kwargs)
    tree = pytree.flatten((*args, *kwargs.values()), backend.is_tensor, backend.children)
    if keras_interop.is_symbolic(tree.leaves):
        labels = arguments.labels(fun, len(args), keywords, tree)
        return _operation(decorated, args, kwargs, dict(zip(labels, tree.leaves, strict=True)))

    def label(tree: Tree, place: int) -> str:
        return f"the argument {arguments.labels(fun, len(args), keywords, tree)[place]}"

    tensors = pytree.partition(backend, name, tree, label)
    function = Call(backend, name, fun, len(args), keywords, tree)
    return function.finish(backend.attach(function, tensors))


def output_of(backend: Backend, name: str, pair: Any) -> Any:
    """The output, of what the user's function returned where nothing is differentiated."""
    output, _ = _pair(name, pair)
    if backend.is_tensor(output):
        return backend.asarray(output)
    tree = pytree.flatten(output, backend.is_tensor, backend.children)
    return tree.combine(pytree.partition(backend, name, tree, _output_label))


class FlatFunction(Arguments):
    """A function as a backend sees it, from tensors to tensors: nests, keywords and static leaves are handled here."""

    is_ordinary = False

    def __init__(
        self,
        backend: Backend,
        name: str,
        user: Callable[..., Any],
        positionals: int,
        keywords: tuple[str, ...],
        static: Tree,
    ):
        super().__init__(backend, name, user, positionals, keywords, static)
        # What Keras keeps while the first run goes on, which every other run must see; None if it keeps nothing.
        self.state: Any = None
        self.converted: Callable[..., Any] | None = None
        # The static part of the first run's output.
        self.output: Tree | None = None

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        """What the user's function returns, and the values of the Keras variables that it changed."""
        backend, is_first = self.backend, self.output is None
        if self.converted is None:
            # Once: another conversion would be other code, and so another rule.
            self.converted = backend.converted(self.user)
        fun = self.converted
        if self.state is None and keras_interop.keras() is not None:
            self.state = self.begin(is_first)
        run = None if self.state is None else self.state.begin()
        # Without a context if it can be, in which torch.compile (2.13) could not break its graph.
        if run is None:
            return (fun(*args, **kwargs) if is_first else under(backend, fun, args, kwargs)), ()
        with run:
            result = under(backend, fun, args, kwargs)
        return result, run.changes()

    def begin(self, is_first: bool) -> Any:
        """What Keras keeps for the runs of this call."""
        if is_first:
            return None if keras_scope.is_unscoped() else keras_scope.State(self.name, self.backend)
        return keras_scope.State.unscoped(self.name, self.backend)

    def flatten(self, output: Any) -> tuple[list[Any], Tree]:
        """The tensors of an output, and the rest of it."""
        backend = self.backend
        tree = pytree.flatten(output, backend.is_tensor, backend.children)
        return pytree.partition(backend, self.name, tree, _output_label), tree

    def finish(self, results: Sequence[Any]) -> Any:
        """The output, of what the backend made of the tensors in it and of the changed variables behind them."""
        output: Any = self.output
        count = len(output.places)
        if self.state is not None:
            self.state.settle(tuple(results[count:]))
        return output.combine(results[:count])

    def captures(self, is_wanted: Callable[[Any], bool]) -> Iterable[Any]:
        """What the user's function can reach besides its arguments, of the wanted kind."""
        return rules.reached([self.user, *self.static.leaves], is_wanted)


class Call(FlatFunction):
    """A decorated function: it gives its tensors, and the rule for them."""

    def __call__(self, *tensors: Any) -> tuple[tuple[Any, ...], Pullback]:
        """One run: the tensors of the output, then those of the variables that it changed; and the rule."""
        args, kwargs = self.bind(tensors)
        return self.accept(tensors, args, kwargs, *self.run(args, kwargs))

    def accept(
        self, tensors: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any], pair: Any, changed: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], Pullback]:
        """The same of what the user's function has returned."""
        backend, (output, rule) = self.backend, _pair(self.name, pair)
        if not backend.is_compiling():
            # Later the names that the rule reads may be bound to something else.
            rule = freeze(rule)
        results, tree = self.flatten(output)
        if self.output is None:
            self.output = tree
        specs = [(backend.dtype(tensor), backend.shape(tensor)) for tensor in tensors]
        return (*results, *changed), Pullback(self, rule, self.by_position(args, kwargs), tree, specs)


class PlainCall(Call):
    """The ordinary call of a decorated function: plain tensors by position.

    Most functions return one plain tensor, and a rule that takes its upstream: these need no pytree.
    """

    is_ordinary = True
    is_single = False
    keywords = ()
    state = converted = None
    output: Tree | None = None

    def __init__(self, backend: Backend, name: str, user: Callable[..., Any], count: int):
        self.backend, self.name, self.user, self.positionals = backend, name, user, count

    @property
    def static(self) -> Tree:  # type: ignore[override]  # made when it is needed
        """The static part of the arguments, which are tensors alone."""
        return Tree([None] * self.positionals, ROW, False, range(self.positionals))

    def captures(self, is_wanted: Callable[[Any], bool]) -> Iterable[Any]:
        """What the user's function can reach besides its arguments, of the wanted kind."""
        return rules.reached([self.user], is_wanted) if rules.refers(self.user) else ()

    def __call__(self, *tensors: Any) -> tuple[tuple[Any, ...], Pullback]:
        """One run, as that of a `Call`."""
        if self.output is not None:
            pair, changed = self.run(tensors, {})
            return self.accept(tensors, tensors, {}, pair, changed) if changed else self.returned(tensors, pair)
        self.converted = self.backend.converted(self.user)
        return self.returned(tensors, self.converted(*tensors))

    def returned(self, tensors: Sequence[Any], pair: Any) -> tuple[tuple[Any, ...], Pullback]:
        """The tensor of the output and the rule for it, of what the user's function returned in the first run."""
        rule = self.rule_of(pair)
        if rule is None:
            return self.accept(tensors, tuple(tensors), {}, pair, ())
        return pair[:1], self.pullback(tensors, rule if self.backend.is_compiling() else freeze(rule))

    def rule_of(self, pair: Any) -> Callable[..., Any] | None:
        """The rule, if the user's function returned one plain tensor, and a rule that takes its upstream."""
        is_usual = type(pair) is tuple and len(pair) == 2 and self.backend.is_plain(pair[0])
        if not is_usual or not signature.takes_one(pair[1]):
            return None
        if self.output is None:
            self.output, self.is_single = SINGLE, True
        return pair[1]  # type: ignore[no-any-return]

    def pullback(self, tensors: Sequence[Any], rule: Callable[..., Any]) -> PlainPullback:
        """The pullback of such a rule, of the run on some tensors."""
        return PlainPullback(self, rule, tensors)

    def gradients(
        self, tensors: Sequence[Any], rule: Callable[..., Any], upstream: Any, needs_grad: Sequence[bool] | None
    ) -> tuple[Any, ...]:
        """The gradients that such a rule gives, None where there is none, or none is needed."""
        backend = self.backend
        result = rule(upstream) if config.is_active(backend) else under(backend, rule, (upstream,), {})
        gradients = result if type(result) is tuple else (result,)
        if len(gradients) == len(tensors):
            for gradient, tensor in zip(gradients, tensors, strict=True):
                is_plain = type(gradient) is type(tensor)
                if not is_plain or gradient.dtype != tensor.dtype or gradient.shape != tensor.shape:
                    break
            else:
                return gradients
        return collect(self, PlainPullback(self, rule, tensors).specs, result, needs_grad)

    def finish(self, results: Sequence[Any]) -> Any:
        """The output, of what the backend made of the tensors in it."""
        return results[0] if self.output is SINGLE or self.output is None else super().finish(results)


class Pullback:
    """The rule of one run of a function, as a backend sees it: flat and checked."""

    def __init__(
        self, call: Call, rule: Callable[..., Any], args: tuple[Any, ...], output: Tree, specs: Sequence[Spec]
    ):
        self.arguments, self.rule, self.output, self.specs = call, rule, output, specs
        self.convention = Convention(rule, call, args, output)

    def __call__(
        self, cotangents: Sequence[Any], variables: Sequence[Any] = (), needs_grad: Sequence[bool] | None = None
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The gradients of the tensor arguments and of `variables`, None where there is none, or none is needed."""
        backend, output = self.arguments.backend, self.output
        upstreams: list[Any] = [None] * len(output.leaves)
        # After those of the outputs come those of what the function changed in Keras's variables: see `State`.
        for place, cotangent in zip(output.places, cotangents, strict=False):
            if cotangent is not None and is_differentiable(backend.dtype(cotangent)):
                upstreams[place] = cotangent
        others: tuple[Any, ...] = ()
        try:
            result = under(backend, self.convention.call, (upstreams, variables), {})
            if variables:
                result, others = check_variables(self.arguments, result, variables)
            return collect(self.arguments, self.specs, result, needs_grad), others
        except (TypeError, errors.GradientError) as error:
            hint = self.convention.hint()
            if hint is not None:
                error.add_note(hint)
            raise

    def takes_variables(self) -> bool:
        """Whether the rule asks for what the function captured."""
        return conventions.takes_variables(self.rule)

    def capture(self, names: Sequence[str]) -> None:
        """Told what trainable values the function read besides its arguments.

        Raises:
            CapturedVariableError: There are some, and the rule takes no `variables`.
        """
        if names and not self.takes_variables():
            raise errors.captured_variable(self.arguments.name, names)

    def holds_anything(self) -> bool:
        """Whether the rule can hold a tensor of the run: it closes over something, or gets the arguments."""
        rule = self.rule
        is_bare = type(rule) is FunctionType and rule.__closure__ is None and rule.__defaults__ is None
        return not is_bare or bool(self.convention.values)

    def reached(self) -> list[Any]:
        """The tensors that the rule can reach."""
        return [*rules.reached([self.rule, *self.convention.values], self.arguments.backend.is_tensor)]

    def check(self, other: Any) -> list[Any]:
        """Compares with the pullback of another run.

        Returns:
            Boolean tensors that must all hold, where no value can be looked at yet.

        Raises:
            RuntimeError: It is another one.
        """
        backend = self.arguments.backend
        found, conditions = rules.difference(self.rule, other.rule, backend.is_tensor, backend.agreement)
        self._refuse(found)
        return conditions

    def outline(self, inputs: Sequence[Any]) -> tuple[list[Any], Any]:
        """The tensors of the rule, and what has to be equal in that of another run, for a rule that is not kept."""
        known: dict[int, Any] = {
            id(part): id(part) for part in [*rules.referents(self.arguments.user), *self.arguments.static.leaves]
        }
        known |= {id(tensor): ("argument", place) for place, tensor in enumerate(inputs)}
        return rules.outline(self.rule, self.arguments.backend.is_tensor, known)

    def check_outline(self, inputs: Sequence[Any], tensors: Sequence[Any], facts: Any) -> None:
        """Compares with the rule of the first run, of which there is only what `outline` gave.

        Raises:
            RuntimeError: It is another one.
        """
        own, own_facts = self.outline(inputs)
        is_alike = own_facts == facts and len(own) == len(tensors)
        if not is_alike or not all(self.arguments.backend.agreement(list(zip(tensors, own, strict=True)))):
            self._refuse("it reads other values")

    def _refuse(self, difference: str | None) -> None:
        if difference is not None:
            raise errors.not_repeated(self.arguments.name, self.arguments.user, difference)


class PlainPullback(Pullback):
    """The rule of an ordinary call: it takes the upstream of one tensor.

    What is not as usual is left to `Pullback`.
    """

    output = SINGLE

    arguments: PlainCall

    def __init__(self, call: PlainCall, rule: Callable[..., Any], tensors: Sequence[Any]):
        self.arguments, self.rule, self.tensors = call, rule, tensors

    @property
    def specs(self) -> Sequence[Spec]:  # type: ignore[override]  # made when they are needed
        """What the gradient of each argument must look like."""
        backend = self.arguments.backend
        return [(backend.dtype(tensor), backend.shape(tensor)) for tensor in self.tensors]

    @property
    def convention(self) -> Convention:  # type: ignore[override]  # likewise
        """How the rule is called."""
        return Convention(self.rule, self.arguments, tuple(self.tensors), SINGLE)

    def __call__(
        self, cotangents: Sequence[Any], variables: Sequence[Any] = (), needs_grad: Sequence[bool] | None = None
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The gradients of the arguments, None where there is none, or none is needed."""
        if variables or cotangents[0] is None:
            return super().__call__(cotangents, variables, needs_grad)
        return self.arguments.gradients(self.tensors, self.rule, cotangents[0], needs_grad), ()


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


def _output_label(tree: Tree, place: int) -> str:
    return f"the output{tree.paths()[place]}"


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
