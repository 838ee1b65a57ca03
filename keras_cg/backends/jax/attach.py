"""Runs a function, eagerly or as a program, and attaches its rule by `jax.custom_jvp` or `jax.custom_vjp`.

A `custom_vjp` has no forward mode, so a `jax.custom_jvp` serves wherever JAX may differentiate forwards.
Its derivative is a linear map whose transpose is the rule (`rule_primitives`). In reverse mode JAX transposes that map
and so calls the rule.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import jax
from jax.core import Tracer
from jax.interpreters.partial_eval import dce_jaxpr
from jax.tree_util import Partial

from keras_cg import errors
from keras_cg.backends.jax import linear, refusing, rule_primitives
from keras_cg.backends.jax.closed import is_closed_call
from keras_cg.backends.jax.names import (
    is_at_one_level,
    is_differentiated,
    is_mapped,
    is_only_mapped,
    is_reversed,
    is_staging,
)
from keras_cg.backends.jax.rule_primitives import FlatRule, Rule
from keras_cg.backends.jax.tensors import asarray, conjugate, is_floating, is_recording
from keras_cg.engine import messages
from keras_cg.engine.contract import Function, Pullback, Tensors
from keras_cg.engine.functions import is_bound

# What the backward pass needs: the rule, and the values of the forward pass that it uses.
Residuals = tuple[Rule, Sequence[Any]]

# One run: the outputs, the values that the rule uses if it is traced already, and a function that gives the residuals,
# which only a derivative needs; it gets whether the gradient may be differentiated again, so that the rule is traced.
Run = Callable[..., tuple[Sequence[Any], Sequence[Any], Callable[[bool], Residuals]]]


def attach(fun: Function, tensors: Sequence[Any]) -> Tensors:
    """Runs `fun` by `_direct` if no program is being built and it closes over nothing traced, else by `_staged`.

    JAX takes one level away from the arguments of a `custom_jvp` before it runs the function. If a single level traces
    them, nothing traces them there. So whatever is traced there, in the outputs or in what the rule reads, was
    captured, at whichever level and wherever it stands; and JAX refuses a value of the level that is taken away. If the
    arguments belong to several levels, some are still traced there, and would hide what was captured. In a program
    nothing can hide: what is traced and is no argument is a constant of the program.
    """
    needs_grad = [not is_only_mapped(tensor) for tensor in tensors]
    # In a shard_map without a jit, too, Python cannot look at values.
    if is_staging() or jax.sharding.get_abstract_mesh().manual_axes:
        # Where JAX differentiates at once, it runs the function once, here and now. Else it runs it again later, and
        # does not know the rule yet: each output gets the batch of a later vmap, as that of one argument has it.
        is_early = any(map(is_differentiated, tensors)) or not (tensors[1:] or any(map(is_mapped, tensors)))
        if is_early and is_staging() and is_closed_call(fun):
            return _direct(fun, tensors, needs_grad)
        return _staged(fun, tensors, is_late=_is_late(fun))
    if not any([isinstance(value, Tracer) for value in fun.closed_over()]):
        if not any(needs_grad):
            # Nothing is differentiated, unless the function reads it elsewhere: then it shows in the outputs.
            outputs = fun.alone(*map(asarray, tensors))
            if all(map(is_only_mapped, outputs)):
                return outputs  # type: ignore[no-any-return]
        elif is_at_one_level(tensors):
            # This fails if the function or its rule reads a traced value that is no argument.
            with contextlib.suppress(jax.errors.UnexpectedTracerError):
                return _direct(fun, tensors, needs_grad)
    fun.refuse_changes()
    try:
        return _staged(fun, tensors)
    except jax.errors.ConcretizationTypeError:
        # Python looks at values, which a program does not have. Perhaps it uses only the shape of what it captures: a
        # run on arguments without a derivative shows that, where JAX would not notice a value of an outer level.
        try:
            outputs = fun.alone(*[asarray(jax.lax.stop_gradient(tensor)) for tensor in tensors])
            if not all([is_only_mapped(output) for output in outputs if is_floating(output)]):
                raise jax.errors.UnexpectedTracerError("a traced value is captured.")
            return _direct(fun, tensors, needs_grad)
        except jax.errors.UnexpectedTracerError as error:
            cause = "the function looks at values, as `if x > 0` does, so JAX cannot trace what it closes over."
            raise messages.unserved_variables("jax", cause, fun) from error


def _with_rule(
    name: str, run: Run, args: Sequence[Any], again: Run | None = None, known: Rule | None = None
) -> Tensors:
    """Returns the outputs of `run(*args)`, whose gradient is what the rule says; a derivative may run `again`.

    `name` is that of the function. `known` is the rule if it is traced already.
    """

    def with_residuals(is_recorded: bool, args: Sequence[Any]) -> tuple[Sequence[Any], Rule, Sequence[Any]]:
        try:
            outputs, _, residuals = (again or run)(*args)
        except ValueError as error:
            # JAX (0.10) has no class of its own for this error, which the name of the function would not be in.
            if "callbacks do not support JVP" in str(error):
                raise messages.callback_differentiated(name) from error
            raise
        return outputs, *residuals(is_recorded)

    def outputs_alone(*args: Any) -> Tensors:
        outputs, used, _ = run(*args)
        return rule_primitives.alone(name, outputs, used, args, known)

    def forward(*args: Any) -> tuple[Tensors, Partial]:
        # Only if the gradient is differentiated again, the rule is traced, and the outputs must keep it.
        is_recorded = is_recording()
        outputs, rule, values = with_residuals(is_recorded, args)
        tied = rule_primitives.tie(rule, values, outputs, args) if is_recorded else tuple(outputs)
        return tied, Partial(rule, [*values, *tied] if rule.takes_output else values)  # type: ignore[no-untyped-call]

    def derivative(args: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        outputs, rule, values = with_residuals(is_recording(), args)
        return rule_primitives.jvp(lambda *args: rule_primitives.tie(rule, values, outputs, args), args, tangents)

    outputs_alone.__signature__ = forward.__signature__ = _ANY  # type: ignore[attr-defined]
    if all([is_reversed(value) for value in args if isinstance(value, Tracer)]):
        reverse = jax.custom_vjp(outputs_alone)
        reverse.defvjp(forward, _backward)
        return reverse(*args)
    both = jax.custom_jvp(outputs_alone)
    both.defjvp(derivative, symbolic_zeros=True)
    return both(*args)


# JAX reads the signatures of the functions of a custom_vjp at every call, for messages. This one is at hand.
_ANY = inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])


def _backward(residuals: Partial, cotangents: Tensors) -> Tensors:
    # The cotangent of an integer output has the dtype float0, which holds no numbers. A cotangent that the user gives
    # to a pullback may be a number of Python.
    floating = [each for each in cotangents if getattr(each, "dtype", None) != jax.dtypes.float0]
    try:
        return tuple(residuals([*map(asarray, floating)]))
    except jax.errors.UnexpectedTracerError as error:
        cause = "only the rule reads it, and not the function."
        raise messages.unserved_variables("jax", cause, residuals.func) from error


_backward.__signature__ = inspect.signature(_backward)  # type: ignore[attr-defined]


def _direct(fun: Function, tensors: Sequence[Any], needs_grad: Sequence[bool]) -> Tensors:
    """Returns the outputs of a run on the tensors themselves, whose rule is traced only when JAX asks for it."""
    run = functools.partial(_run, fun, needs_grad)
    return _with_rule(fun.name, run, tensors) if any(needs_grad) else run(*tensors)[0]


def _run(
    fun: Function, needs_grad: Sequence[bool], *tensors: Any
) -> tuple[Tensors, Sequence[Any], Callable[[bool], Residuals]]:
    # An array of NumPy's that is differentiated arrives here unchanged.
    outputs, pullback = fun(*map(asarray, tensors))
    read = (*outputs, *pullback.closed_over())
    is_captured = not is_staging() and any([isinstance(value, Tracer) for value in read])
    if is_captured and not any([isinstance(tensor, Tracer) for tensor in tensors]):
        raise jax.errors.UnexpectedTracerError("the function reads a traced value that is not among its arguments.")
    rule = _flat(pullback, outputs, needs_grad)

    def residuals(is_recorded: bool) -> Residuals:
        if is_recorded:
            return _traced(fun, rule, outputs, pullback.takes_output)
        # The gradient will not be differentiated, so the rule runs as Python and may look at values.
        late = lambda outputs, cotangents: rule(cotangents, outputs)  # noqa: E731
        return Rule(fun.name, late, needs_grad, takes_output=pullback.takes_output), ()

    return outputs, (), residuals


def _flat(pullback: Pullback, outputs: Tensors, needs_grad: Sequence[bool], variables: Sequence[Any] = ()) -> FlatRule:
    """Returns the rule in JAX's convention for complex numbers; it takes one cotangent for each floating output."""
    floating = [is_floating(output) for output in outputs]
    if not any(floating):
        # Nothing can be differentiated, so no other framework calls the rule. JAX (0.8) asks for it nevertheless.
        return lambda cotangents, outputs: [None] * (len(needs_grad) + len(variables))

    def rule(cotangents: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        arriving = map(conjugate, cotangents)
        upstreams = [next(arriving) if real else None for real in floating]
        extras = outputs if pullback.takes_output else None
        gradients, others = pullback(upstreams, variables, needs_grad, None, extras)
        return [None if gradient is None else conjugate(gradient) for gradient in (*gradients, *others)]

    return rule


# The functions whose rules are being traced, from the outer to the inner one.
_being_traced: ContextVar[tuple[tuple[Any, ...], ...]] = ContextVar("being_traced", default=())


def _traced(fun: Function, rule: FlatRule, outputs: Sequence[Any], takes_output: bool) -> Residuals:
    """Traces the rule of a function."""
    token = _being_traced.set((*_being_traced.get(), _identity(fun)))
    try:
        return rule_primitives.traced(fun.name, rule, outputs, takes_output)
    finally:
        _being_traced.reset(token)


def _is_late(fun: Function) -> bool:
    """Whether the rule of a function waits until its gradient is differentiated.

    A rule may call the function itself, as that of a sigmoid does, or another one of its code: the next of a factory or
    of another object, as in J_n' = (J_(n-1) - J_(n+1)) / 2. Traced with the function, such a rule would be traced with
    that of the next one, and so without end. A late function captures nothing that is differentiated, so another one
    of the code that captures something is late at the second time only.
    """
    identity, being_traced = _identity(fun), _being_traced.get()
    count = [code for code, *_ in being_traced].count(identity[0])
    is_closed = count == 1 and not any([isinstance(value, Tracer) for value in fun.closed_over()])
    return count > 1 or identity in being_traced or is_closed


def _identity(fun: Function) -> tuple[Any, ...]:
    """Returns what two decorated functions have in common if they are the same one: code, object and closure."""
    function = getattr(fun.user, "__func__", fun.user)
    cells = [id(cell.cell_contents) for cell in getattr(function, "__closure__", None) or () if is_bound(cell)]
    return getattr(function, "__code__", function), id(getattr(fun.user, "__self__", None)), *cells


def _staged(fun: Function, tensors: Sequence[Any], is_late: bool = False) -> Tensors:
    """Returns the outputs where a program is being built, or where `fun` or its rule closes over traced values.

    Function and rule are traced to one program here and now, because JAX may ask for the gradient when what they close
    over is gone. The traced values that they close over become arguments: custom_vjp differentiates nothing else. Where
    the rule `is_late`, the function is traced alone, and runs again if a gradient is asked for.
    """
    program = _Program(fun, tensors, is_late)
    if program.is_waiting and not is_late:
        # The variables that the rule takes are known now. Tracing twice costs nothing when the program runs.
        program = _Program(fun, tensors, variables=program.captured())
    # The rule gives the gradients of the arguments, and then those of the variables.
    variables, start = program.variables or (), len(tensors)
    traced = [const for const in program.consts if isinstance(const, Tracer)]
    hoisted = {id(value): value for value in (*variables, *traced)}
    rule, error = program.rule, program.error
    captured = program.captured() if is_late or program.refusal is not None else []
    if captured:
        refusals = refusing.refusals(fun, tensors, captured, program.refusal)
        hoisted |= {id(value): refusing.guarded(value, each) for value, each in zip(captured, refusals, strict=True)}
        # Another run would not get what was captured.
        error = refusals[0] if is_late else error
    places = {key: place for place, key in enumerate(hoisted, start)}
    consts = [(places.get(id(const)), None if id(const) in places else const) for const in program.consts]
    with_gradient = start + len(variables)
    gradients = [place if place < with_gradient else None for place in range(start + len(hoisted))]
    # JAX keeps `run`, so it must not refer to `program`, which holds traced values.
    jaxpr, count, needs_grad = program.jaxpr, program.count, program.needs_grad

    evaluated: Callable[..., list[Any]] = functools.partial(jax.core.eval_jaxpr, jaxpr)
    if rule is not None and rule.takes_output:
        # The rule is the derivative of the outputs, so that of what computes them is never asked for.
        evaluated = linear.without_tangents(jaxpr, count)

    def run(*args: Any) -> tuple[Sequence[Any], Sequence[Any], Callable[[bool], Residuals]]:
        values = [const if place is None else args[place] for place, const in consts]
        results = evaluated(values, *args[:start])

        def residuals(is_recorded: bool) -> Residuals:
            if error is not None:
                raise refusing.copied(error)
            return rule.at(gradients), results[count:]

        return results[:count], results[count:], residuals

    def again(*args: Any) -> tuple[Sequence[Any], Sequence[Any], Callable[[bool], Residuals]]:
        outputs, used, residuals = _run(fun, needs_grad, *args[:start])

        def of_all(is_recorded: bool) -> Residuals:
            rule, values = residuals(is_recorded)
            # The run without a derivative, which has no rule, has the batch of a vmap in all floating outputs.
            return dataclasses.replace(rule.at(gradients), places=None), values

        return outputs, used, of_all

    args, rerun = (*tensors, *hoisted.values()), again if is_late and error is None else None
    return _with_rule(fun.name, run, args, rerun, None if rule is None else rule.at(gradients))


class _Program:
    """A function and its rule as one jaxpr, whose constants are what they close over.

    Args:
        fun: The function. It runs once.
        tensors: Its arguments.
        is_late: Whether the rule is not traced.
        variables: What a rule with `variables` gets; None if that is not known yet, then such a rule is not traced.

    Attributes:
        count: How many outputs the function has. After them, the jaxpr gives the values that the rule uses.
        rule: The traced rule.
        is_waiting: Whether the rule was not traced because it takes `variables`, which are not known yet.
        error: What the rule raised instead.
        refusal: What a rule without `variables` says where something captured is differentiated.
    """

    def __init__(
        self, fun: Function, tensors: Sequence[Any], is_late: bool = False, variables: Sequence[Any] | None = None
    ):
        self.variables, self.needs_grad = variables, [isinstance(tensor, Tracer) for tensor in tensors]
        self.is_late, self.is_waiting = is_late, False
        self.rule: Any = None
        self.error: Exception | None = None
        self.refusal: Exception | None = None
        self.types = [*map(jax.typeof, tensors)]
        self.jaxpr, self.consts = linear.program(functools.partial(self._run, fun), self.types)

    def _run(self, fun: Function, *tensors: Any) -> Sequence[Any]:
        # The pullback must not outlive the trace: JAX would report a leak of what it holds.
        outputs, pullback = fun(*tensors)
        self.count = len(outputs)
        try:
            pullback.capture([refusing.CAPTURED])
        except errors.CapturedVariableError as error:
            self.refusal = error.with_traceback(None)
        self.is_waiting = self.variables is None and pullback.takes_variables()
        if self.is_waiting or self.is_late:
            return outputs  # type: ignore[no-any-return]
        try:
            rule = _flat(pullback, outputs, self.needs_grad, self.variables or ())
            self.rule, values = _traced(fun, rule, outputs, pullback.takes_output)
        except RecursionError:
            # It is about the program, and would hide what calls itself without end.
            raise
        except Exception as error:
            # A rule that raises is an error where its gradient is asked for, and not before.
            self.error = refusing.without_frames(error)
            return outputs  # type: ignore[no-any-return]
        return [*outputs, *values]

    def captured(self) -> list[Any]:
        """Returns the traced constants that the outputs can be differentiated by, in the order of first use.

        JAX itself tells: it linearizes the program, and drops the tangents that no output needs.
        """
        hoisted = [const for const in self.consts if isinstance(const, Tracer) and is_floating(const)]
        if not hoisted:
            return []
        places = {id(const): place for place, const in enumerate(hoisted)}
        count = len(hoisted)

        def pushed(*values: Any) -> Sequence[Any]:
            primals, args, tangents = values[:count], values[count:-count], values[-count:]

            def outputs(*primals: Any) -> list[Any]:
                consts = [primals[places[id(const)]] if id(const) in places else const for const in self.consts]
                results = jax.core.eval_jaxpr(self.jaxpr, consts, *args)[: self.count]
                return [result for result in results if is_floating(jax.typeof(result))]

            return jax.linearize(outputs, *primals)[1](*tangents)  # type: ignore[no-any-return]

        types = [*map(jax.typeof, hoisted)]
        jaxpr, _ = linear.program(pushed, [*types, *self.types, *types])
        _, is_used = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
        return [const for const, is_read in zip(hoisted, is_used[-count:], strict=True) if is_read]
