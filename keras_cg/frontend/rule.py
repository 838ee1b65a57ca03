"""The rule of one run of a function: it gives the gradients, and is compared with the rule of another run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from keras_cg import errors, user_code
from keras_cg.engine import comparing, references
from keras_cg.engine.contract import Backend
from keras_cg.engine.functions import innermost, keeps_state
from keras_cg.engine.precision import is_differentiable
from keras_cg.engine.world import World
from keras_cg.frontend import config, conventions, messages, signature, tracebacks
from keras_cg.frontend.arguments import NOTHING
from keras_cg.frontend.conventions import ALONE, EACH, Convention
from keras_cg.frontend.function import FlatFunction
from keras_cg.frontend.gradients import Spec, check_variables, collect
from keras_cg.frontend.tree import SINGLE, Tree


class Rule(FlatFunction):
    """The rule of one run, flat and checked: a backend asks it for the gradients in a backward pass.

    `pull` gives the gradients. `cotangents` has one tensor per output: zeros for an unused output, None for an output
    of integers. `variables` are the captured values. The result is `(gradients, variable_gradients)`, with None for no
    gradient. Where `needs_grad` is False, the gradient is not checked; without `needs_grad`, all are needed.
    `arguments` are the caller's own tensors, for a rule that is called with the function's arguments; without them it
    gets those of the run. For complex numbers, cotangents and gradients are dL/dx + i dL/dy, the convention of torch
    and TensorFlow. A rule that `takes_output` gets `outputs`: one tensor for each output, through which the gradient is
    differentiated again.

    A backend asks `check`, or `outline` and `check_outline`, before it believes another run; `capture` where the
    function read something that is differentiated and no argument; `near` or `reached` for what the rule holds.

    Attributes:
        rule: The rule.
        tree: The static part of the output of the run.
        tensors: The arguments of the run, or what has their dtypes and shapes.
        args: The arguments as the rule gets them.
        scope: The scope of Keras in which the rule runs, if it needs one.
        outputs: The tensors of the output, if another run must have the same ones.
        world: The world as the run left it; None if there is nothing to put back.
        first: That of the first run, in which every other one starts; False if there is none yet.
        residuals: What the rule holds, by a quick look.
        known: The facts of a rule that the run has defined and that holds data alone, which are then the residuals.
        style: How the rule is called, if its code alone tells; else None.
        count: How many arguments the function has by position, if it is not told by the call.
        takes_output: Whether the rule gets the function's output.
        specs: The dtypes and shapes of tensors that may not be kept.
        is_used_up: Whether a probe has called the rule.
    """

    rule: Callable[..., Any]
    tree: Tree
    tensors: Sequence[Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = NOTHING
    scope: Any = None
    outputs: Sequence[Any]
    world: World | None = None
    first: World | Literal[False] | None = False
    residuals: Sequence[Any]
    known: Any = None
    style: int | None = None
    count: int | None = None
    takes_output = is_used_up = False
    specs: list[Spec]

    def positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Returns the arguments as a rule gets them: by position."""
        return (*args, *signature.by_position(self.user, len(args), kwargs))

    def pull(
        self,
        cotangents: Sequence[Any],
        variables: Sequence[Any] = (),
        needs_grad: Sequence[bool] | None = None,
        arguments: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
    ) -> tuple[Sequence[Any], tuple[Any, ...]]:
        """Returns the gradients of the arguments and of `variables`, None where there is none, or none is needed.

        Most rules return a plain gradient for each tensor, and nothing is converted.
        """
        backend, tree, style = self.backend, self.tree, self.style
        values: Sequence[Any] = self.args
        if values and arguments is not None:
            values = arguments if self.nest is None else self.positional(*self.bind(tuple(arguments)))
        if style is None or variables:
            return self._by_signature(cotangents, variables, needs_grad, tuple(values), outputs)
        args = cotangents if tree is SINGLE else upstreams_of(backend, tree, cotangents)
        kwargs: dict[str, Any] = {}
        if style != EACH:
            upstream = cotangents[0] if tree is SINGLE else tree.unflatten(args)
            args, kwargs = ((upstream,), kwargs) if style == ALONE else (values, {"upstream": upstream})
        if self.world is not None or config.this.known is not backend:
            result = self.in_world(config.under, backend, self.rule, args, kwargs)
        else:
            result = self.rule(*args, **kwargs)
        gradients, tensors = result if type(result) is tuple else (result,), self.tensors
        if self.nest is not None and tensors:
            gradients = self.static.tensors_of(gradients)
        if len(gradients) == len(tensors):
            plain = backend.plain
            for gradient, tensor in zip(gradients, tensors):  # noqa: B905
                if type(gradient) not in plain and not backend.is_plain(gradient):
                    break
                if gradient.dtype != tensor.dtype or gradient.shape != tensor.shape:
                    break
            else:
                return gradients, ()
        return self._checked(result, (), needs_grad)

    def _by_signature(
        self,
        cotangents: Sequence[Any],
        variables: Sequence[Any],
        needs_grad: Sequence[bool] | None,
        values: tuple[Any, ...],
        outputs: Sequence[Any] | None,
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Calls a rule whose signature has to be read."""
        if self.takes_output and outputs is None:
            raise messages.no_output(self.name)
        count = self.positionals if self.count is None else self.count
        convention = Convention(self.rule, self, values, count, self.tree)
        try:
            upstreams = upstreams_of(self.backend, self.tree, cotangents)
            fun = convention.call if self.scope is None else self.scope.for_rule()(convention.call)
            needs_input_grad = needs_grad or [True] * len(self.static.places)
            args = (upstreams, variables, needs_input_grad, outputs)
            result = self.in_world(config.under, self.backend, fun, args, {})
            return self._checked(result, variables, needs_grad)
        except (TypeError, errors.GradientError) as error:
            hint = convention.hint()
            if hint is not None:
                error.add_note(hint)
            tracebacks.hide_frames(error)
            raise

    def _checked(
        self, result: Any, variables: Sequence[Any], needs_grad: Sequence[bool] | None
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns the gradients in the result of the rule, and of `variables`; an error says where the rule is."""
        others: tuple[Any, ...] = ()
        try:
            if variables:
                result, others = check_variables(self, result, variables)
            return collect(self, self.shapes(), result, needs_grad, self.rule), others
        except errors.GradientError as error:
            raise errors.locate(error, self.rule, self.user) from None

    def shapes(self) -> list[Spec]:
        """Returns the dtype and the shape that the gradient of each tensor must have."""
        backend = self.backend
        known = [(backend.dtype(tensor), backend.shape(tensor)) for tensor in self.tensors]
        return known if self.is_plain else self.specs

    def location(self) -> str | None:
        """Returns the file and line of the rule, if they are known."""
        return user_code.location(self.rule, self.user)

    def takes_variables(self) -> bool:
        """Whether the rule takes the captured variables."""
        return conventions.takes_variables(self.rule)

    def capture(self, names: Sequence[str], values: Sequence[Any] = ()) -> None:
        """Raises CapturedVariableError if the function read what is no argument, and the rule takes no `variables`.

        `names` describe what it read; in the place of a description of one of `values` stands the user's name.
        """
        if names and not self.takes_variables():
            fun, is_users = self.user, self.location() is not None
            names = self.names(values, names) if values else names
            if not is_users:  # a recipe, which has the user's function in a cell
                fun = next(filter(user_code.location, references.near(fun)), fun)
            raise errors.locate(messages.captured_variable(self.name, names, is_users), fun, what="function")

    def near(self) -> list[Any]:
        """Returns what a quick look at the rule shows: its cells, defaults, partial arguments and `vars(self)`."""
        return [*self.residuals, *self.args]

    def reached(self) -> list[Any]:
        """Returns the tensors that the rule can reach, by a search that may take long."""
        return [*references.reached([self.rule, *self.args], self.backend.is_tensor)]

    def _steps(self) -> list[tuple[str, Any]]:
        """Returns what must be equal in another run: what the rule holds, what the run has set, and the outputs."""
        named = () if self.world is None else self.world.named
        return [("", self.rule), *named, *[(f"output[{place}]", each) for place, each in enumerate(self.outputs)]]

    def check(self, other: Any, probe: Any) -> list[Any]:
        """Raises RuntimeError if the rule of another run differs.

        Call it before the gradient that is recorded, where the framework may record: if what the rules hold is no data,
        both are called by `probe`. Returns the boolean tensors of `agreement` that must all hold.
        """
        first, second = self._steps(), other._steps()
        if self.known is not None and self.known is other.known:
            # Closures of one code over data, in cells and in the defaults of their parameters.
            names = self.known.code.co_freevars
            count = len(names)
            if all(map(operator.is_, self.residuals[count:], other.residuals[count:])):
                first[:1] = zip(names, self.residuals, strict=False)
                second[:1] = zip(names, other.residuals, strict=False)
        both = lambda: (probe(self), probe(other))  # noqa: E731
        return self._compare(first, second, other, both)

    def in_world(self, fun: Callable[..., Any], *args: Any) -> Any:
        """Calls `fun` in the world of the run, in which its rule holds what it held then."""
        return fun(*args) if self.world is None else self.world.run(fun, *args)

    def outline(self, inputs: Sequence[Any], probe: Any) -> tuple[list[Any], Any]:
        """Returns the tensors of the rule, and what must be equal in the rule of another run, instead of the rule."""
        is_tensor = self.backend.is_tensor
        shared = [*references.near(self.user), *self.static.leaves]
        names = getattr(innermost(self.user), "__globals__", {})
        steps, tensors, is_unknown = comparing.outline(self._steps(), is_tensor, shared, inputs, names)
        # No hook and no checkpoint may make the gradients of the first rule again: they would be those of another run.
        gradients = probe(self) if is_unknown and not keeps_state(self.rule) else None
        if self.first:
            self.first.forget()
        return tensors, (steps, gradients)

    def check_outline(self, inputs: Sequence[Any], tensors: Sequence[Any], facts: Any, probe: Any) -> None:
        """Raises if the rule of the first run, of which there is only the `outline`, differs."""
        steps, gradients = facts
        # Without a gradient of the first run, nothing can tell for another structure.
        both = lambda: ([None], []) if gradients is None else (gradients, probe(self))  # noqa: E731
        self.in_world(self._compare, steps, self._steps(), self, both, [*inputs, *tensors])

    def _compare(
        self,
        first: Sequence[tuple[str, Any]],
        second: Sequence[tuple[str, Any]],
        other: Any,
        gradients: Callable[[], tuple[Sequence[Any], Sequence[Any]]],
        saved: Sequence[Any] = (),
    ) -> list[Any]:
        backend = self.backend
        found = comparing.difference(first, second, backend.is_tensor, backend.agreement, saved)
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
            raise messages.not_repeated(self.name, self.user, name)
        return conditions


def upstreams_of(backend: Backend, output: Tree, cotangents: Sequence[Any]) -> list[Any]:
    """Returns the upstream of each leaf of an output, None where it has none."""
    upstreams: list[Any] = [None] * len(output.leaves)
    # After the cotangents of the outputs come those of the variables of Keras that the function changed.
    for place, cotangent in zip(output.places, cotangents, strict=False):
        if cotangent is not None and is_differentiable(backend.dtype(cotangent)):
            upstreams[place] = cotangent
    return upstreams
