"""The rule of one run, from flat cotangents to flat, checked gradients, and the comparison with that of another run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from keras_cg import errors, user_code
from keras_cg.engine import comparing, references
from keras_cg.engine.contract import Backend
from keras_cg.engine.functions import ATOMS, innermost, is_closed, keeps_state
from keras_cg.engine.precision import is_differentiable
from keras_cg.engine.world import World
from keras_cg.frontend import config, conventions, messages, tracebacks
from keras_cg.frontend.conventions import ALONE, ANY, Convention
from keras_cg.frontend.gradients import Spec
from keras_cg.frontend.tree import SINGLE, Tree


class Pullback:
    """The rule of one run of a function, flat and checked: `contract.Pullback` says what a backend does with it."""

    __slots__ = (
        *("_specs", "count", "function", "is_closed", "is_used_up", "output", "outputs", "residuals", "rule", "run"),
        *("style", "tensors", "values", "world"),
    )

    def __init__(
        self,
        function: Any,
        tensors: Sequence[Any],
        args: tuple[Any, ...],
        rule: Callable[..., Any],
        output: Tree,
        run: Any = None,
        style: int | None = None,
        outputs: Sequence[Any] = (),
        world: World | None = None,
    ):
        self.function, self.rule, self.output, self.count, self.run = function, rule, output, len(args), run
        self.is_used_up, self.world = False, world
        self.style = style if run is None and (style in (ALONE, ANY) or style == self.count) else None
        self.values = args if style != ALONE and (style is not None or conventions.gets_arguments(rule)) else ()
        backend = function.backend
        self.tensors = backend.types(tensors) if function.is_plain else ()
        if not self.tensors:
            self._specs = [(backend.dtype(tensor), backend.shape(tensor)) for tensor in tensors]
        self.residuals, self.is_closed = (), True
        if not function.is_traced:
            self.residuals = references.near(rule)
            is_plain = type(rule) is FunctionType and is_closed(rule)
            self.is_closed = is_plain and all([self._is_data(each) for each in self.residuals])
        # The data of a rule that reads nothing else tells whether another run has the same one.
        self.outputs = () if self.is_closed else outputs

    def _is_data(self, value: Any) -> bool:
        """Whether a part of the rule can be compared, and leads to nothing that a run could change."""
        if type(value) is FunctionType:
            return not value.__dict__ and is_closed(value)
        return isinstance(value, ATOMS) or self.function.backend.is_tensor(value)

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
        road = self._call if self.style is None or variables else self._quick
        return self.in_world(road, cotangents, variables, needs_grad, values)  # type: ignore[no-any-return]

    def _call(
        self,
        cotangents: Sequence[Any],
        variables: Sequence[Any],
        needs_grad: Sequence[bool] | None,
        values: tuple[Any, ...],
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        function = self.function
        convention = Convention(self.rule, function, values, self.count, self.output)
        try:
            upstreams = upstreams_of(function.backend, self.output, cotangents)
            call = convention.call if self.run is None else self.run.for_rule()(convention.call)
            needs_input_grad = needs_grad or [True] * len(function.static.places)
            result = config.under(function.backend, call, (upstreams, variables, needs_input_grad), {})
            return function.checked(self.rule, self.specs, result, variables, needs_grad)  # type: ignore[no-any-return]
        except (TypeError, errors.GradientError) as error:
            hint = convention.hint()
            if hint is not None:
                error.add_note(hint)
            tracebacks.hide_frames(error)
            raise

    def _quick(
        self,
        cotangents: Sequence[Any],
        variables: Sequence[Any],
        needs_grad: Sequence[bool] | None,
        values: tuple[Any, ...],
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Calls a rule whose code tells how; most return a plain gradient for each tensor, and nothing is converted."""
        function, rule, output = self.function, self.rule, self.output
        backend = function.backend
        upstream = cotangents[0] if output is SINGLE else output.unflatten(upstreams_of(backend, output, cotangents))
        args, kwargs = ((upstream,), {}) if self.style == ALONE else (values, {"upstream": upstream})
        result = config.under(backend, rule, args, kwargs)
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
                    return tuple(gradients), ()
        return function.checked(rule, self.specs, result, (), needs_grad)  # type: ignore[no-any-return]

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
                fun = next(filter(user_code.location, references.near(fun)), fun)
            raise errors.locate(messages.captured_variable(self.function.name, names, is_users), fun, what="function")

    def closed_over(self) -> list[Any]:
        """Returns what a quick look at the rule shows: its cells, defaults, partial arguments and `vars(self)`."""
        return [*self.residuals, *self.values]

    def reached(self) -> list[Any]:
        """Returns the tensors that the rule can reach, by a search that may take long."""
        return [*references.reached([self.rule, *self.values], self.function.backend.is_tensor)]

    def _steps(self) -> list[tuple[str, Any]]:
        """Returns what must be equal in another run: what the rule holds, what the run has set, and the outputs."""
        named = () if self.world is None else self.world.named
        return [("", self.rule), *named, *[(f"output[{place}]", each) for place, each in enumerate(self.outputs)]]

    def check(self, other: Any, probe: Any) -> list[Any]:
        """Raises if the rule of another run differs; returns conditions where no value can be looked at yet."""
        return other.in_world(self._compare, self._steps(), other, lambda: (probe(self), probe(other)))  # type: ignore[no-any-return]

    def in_world(self, fun: Callable[..., Any], *args: Any) -> Any:
        """Calls `fun` in the world of the run, in which its rule holds what it held then."""
        return fun(*args) if self.world is None else self.world.run(fun, *args)

    def outline(self, inputs: Sequence[Any], probe: Any) -> tuple[list[Any], Any]:
        """Returns the tensors of the rule, and what must be equal in the rule of another run, instead of the rule."""
        function = self.function
        shared = [*references.near(function.user), *function.static.leaves]
        names = getattr(innermost(function.user), "__globals__", {})
        steps, tensors, is_unknown = comparing.outline(
            self._steps(), function.backend.is_tensor, shared, inputs, names
        )
        # No hook and no checkpoint may make the gradients of the first rule again: they would be those of another run.
        gradients = probe(self) if is_unknown and not keeps_state(self.rule) else None
        if function.world is not None:
            function.world.forget()
        return tensors, (steps, gradients)

    def check_outline(self, inputs: Sequence[Any], tensors: Sequence[Any], facts: Any, probe: Any) -> None:
        """Raises if the rule of the first run, of which there is only the `outline`, differs."""
        steps, gradients = facts
        # Without a gradient of the first run, nothing can tell for another structure.
        both = lambda: ([None], []) if gradients is None else (gradients, probe(self))  # noqa: E731
        self.in_world(self._compare, steps, self, both, [*inputs, *tensors])

    def _compare(
        self,
        first: Sequence[tuple[str, Any]],
        other: Any,
        gradients: Callable[[], tuple[Sequence[Any], Sequence[Any]]],
        saved: Sequence[Any] = (),
    ) -> list[Any]:
        backend = self.function.backend
        found = comparing.difference(first, other._steps(), backend.is_tensor, backend.agreement, saved)
        name, conditions = found.name, [*found.conditions]
        if name is None and found.is_unknown:
            ones, others = gradients()
            other.is_used_up = True
            answers: list[Any] = [[each is None for each in ones] == [each is None for each in others]]
            if all(answers):
                pairs = [pair for pair in zip(ones, others, strict=True) if pair[0] is not None]
                answers = [*backend.agreement(pairs)] if pairs else []
            if any([answer is False or answer is None for answer in answers]):
                name = "it gives another gradient"
            conditions += [answer for answer in answers if answer is not True]
        if name is not None:
            raise messages.not_repeated(self.function.name, self.function.user, name)
        return conditions


def upstreams_of(backend: Backend, output: Tree, cotangents: Sequence[Any]) -> list[Any]:
    """Returns the upstream of each leaf of an output, None where it has none."""
    upstreams: list[Any] = [None] * len(output.leaves)
    # After the cotangents of the outputs come those of the variables of Keras that the function changed.
    for place, cotangent in zip(output.places, cotangents, strict=False):
        if cotangent is not None and is_differentiable(backend.dtype(cotangent)):
            upstreams[place] = cotangent
    return upstreams
