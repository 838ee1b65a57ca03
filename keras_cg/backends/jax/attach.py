"""A function with its rule: run once, eagerly or as a program, and attached by `jax.custom_vjp`.

That has no forward mode. So a `jax.custom_jvp` stands around it wherever JAX may differentiate forwards. Its derivative
is a linear map whose transpose is the rule (`rule_primitives`): JAX transposes it in reverse mode, and so calls the
rule.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as namespace
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Literal
from jax.tree_util import Partial

from keras_cg import errors
from keras_cg.backends.jax import linear, rule_primitives
from keras_cg.backends.jax.names import is_reversed, is_staging, unbatched
from keras_cg.backends.jax.rule_primitives import Rule
from keras_cg.backends.jax.tensors import asarray, conjugate, is_floating, is_recording, is_traced
from keras_cg.engine import messages
from keras_cg.engine.contract import Function, Pullback

# What is kept for the backward pass: `rule(values, cotangents)`, and the values that it uses.
Residuals = tuple[Callable[..., list[Any]], Sequence[Any]]

# One run: the outputs, and what gives the residuals, which are of no use where nobody differentiates.
Call = Callable[..., tuple[Sequence[Any], Callable[[], Residuals]]]


def attach(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    # In a shard_map without a jit around it, too, nobody can look at values.
    if is_staging() or jax.sharding.get_abstract_mesh().manual_axes:
        if _calls_itself(fun):
            return _attach(functools.partial(_later, fun, [*map(is_traced, tensors)]), tensors)
        return _staged(fun, tensors)
    if next(iter(fun.captures(is_traced)), None) is None:
        try:
            return _eager(fun, tensors)
        except (jax.errors.UnexpectedTracerError, _HiddenError):
            # The function reads a traced value that `captures` does not find, such as a global.
            return _staged(fun, tensors)
    try:
        return _staged(fun, tensors)
    except jax.errors.ConcretizationTypeError:
        # Python looks at values, which a program does not have. Perhaps of what is captured only the shape is used.
        try:
            return _eager(fun, tensors)
        except (jax.errors.UnexpectedTracerError, _HiddenError) as error:
            raise messages.unserved_variables("jax", "(where Python looks at values)") from error


class _HiddenError(Exception):
    """A function keeps a traced value where it was not found: its outputs are traced, and its inputs are not."""


def _attach(call: Call, args: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of `call(*args)`, whose gradient is what the rule says."""

    def run(*args: Any) -> tuple[Any, ...]:
        return tuple(call(*args)[0])

    def forward(*args: Any) -> tuple[tuple[Any, ...], Partial]:
        outputs, residuals = call(*args)
        rule, values = residuals()
        kept = Partial(rule, values)  # type: ignore[no-untyped-call]
        # Only a gradient that somebody differentiates needs outputs that keep the rule.
        return rule_primitives.carry(rule, values, outputs, args) if is_recording() else tuple(outputs), kept

    def derivative(args: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        outputs, residuals = call(*args)
        rule, values = residuals()
        moving = [place for place, tangent in enumerate(tangents) if not isinstance(tangent, SymbolicZero)]

        def carry(*moved: Any) -> tuple[Any, ...]:
            around = dict(enumerate(args)) | dict(zip(moving, moved, strict=True))
            return rule_primitives.carry(rule, values, outputs, [*around.values()])

        return jax.jvp(carry, [args[place] for place in moving], [tangents[place] for place in moving])

    run.__signature__ = forward.__signature__ = _ANY  # type: ignore[attr-defined]
    backwards = jax.custom_vjp(run)
    backwards.defvjp(forward, _backward)
    if all(is_reversed(value) for value in map(unbatched, args) if is_traced(value)):
        return backwards(*args)
    # What is inside serves where nobody differentiates, and refuses to be transposed, which would be without the rule.
    both = jax.custom_jvp(backwards)
    both.defjvp(derivative, symbolic_zeros=True)
    return both(*args)


# JAX reads the signatures of what a custom_vjp is made of at every call, for messages. Made once, they are at hand.
_ANY = inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])


def _backward(residuals: Partial, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
    # The cotangent of an integer output has the dtype float0, which holds no numbers. One that somebody gives to a
    # pullback may be a number of Python.
    arriving = [
        asarray(cotangent) for cotangent in cotangents if getattr(cotangent, "dtype", None) != jax.dtypes.float0
    ]
    try:
        return tuple(residuals(arriving))
    except jax.errors.UnexpectedTracerError as error:
        raise messages.unserved_variables("jax", "(where only the rule reads it)") from error


_backward.__signature__ = inspect.signature(_backward)  # type: ignore[attr-defined]


def _eager(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of a run on values that JAX differentiates or batches, and that Python may look at."""
    wanted = [*map(is_traced, tensors)]
    if any(wanted):
        return _attach(functools.partial(_run, fun, wanted), tensors)
    outputs, _ = fun(*tensors)
    if any(map(is_traced, outputs)):
        raise _HiddenError
    return outputs


def _run(fun: Function, wanted: Sequence[bool], *tensors: Any) -> tuple[tuple[Any, ...], Callable[[], Residuals]]:
    # An array of NumPy's that is differentiated comes here as it was given.
    outputs, pullback = fun(*map(asarray, tensors))
    if any(map(is_traced, outputs)) and not any(map(is_traced, tensors)):
        raise _HiddenError
    for tensor in filter(is_traced, pullback.reached()):
        # A value of a transform that is over, or of one that is not at work here, raises in any operation. Better now,
        # when the function can still be traced, than in the backward pass.
        namespace.expand_dims(tensor, 0)
    rule = _flat(pullback, outputs, wanted)

    def residuals() -> Residuals:
        if is_recording():
            return rule_primitives.traced(rule, outputs)
        # The gradient will not be differentiated. So the rule itself is kept, which may look at values as Python does.
        return rule_primitives.UntracedRule(rule), ()

    return outputs, residuals


def _flat(pullback: Pullback, outputs: Sequence[Any], wanted: Sequence[bool], variables: Sequence[Any] = ()) -> Rule:
    """The rule, in JAX's convention for complex numbers, from one cotangent for each floating output."""
    floating = [is_floating(output) for output in outputs]

    def rule(cotangents: Sequence[Any]) -> list[Any]:
        arriving = map(conjugate, cotangents)
        gradients, others = pullback([next(arriving) if real else None for real in floating], variables, wanted)
        return [None if gradient is None else conjugate(gradient) for gradient in (*gradients, *others)]

    return rule


class _Traced(threading.local):
    """The code of the functions whose rules a thread traces now, the innermost last."""

    def __init__(self) -> None:
        self.functions: list[Any] = []


_traced = _Traced()


@contextlib.contextmanager
def _tracing(fun: Function) -> Iterator[None]:
    _traced.functions.append(_code(fun))
    try:
        yield
    finally:
        _traced.functions.pop()


def _calls_itself(fun: Function) -> bool:
    """Whether a function is called by its own rule, which is being traced."""
    return _code(fun) in _traced.functions


def _code(fun: Function) -> Any:
    """What a function has in common with a copy of it that a frozen rule calls."""
    return getattr(fun.user, "__code__", fun.user)


def _later(fun: Function, wanted: Sequence[bool], *tensors: Any) -> tuple[tuple[Any, ...], Callable[[], Residuals]]:
    """A run of a function that its own rule calls, as that of a sigmoid does.

    Traced with the function, its rule would be traced with itself without end. So it is traced where somebody
    differentiates the gradient, for which the function runs again.
    """
    outputs, pullback = fun(*tensors)

    def residuals() -> Residuals:
        with _tracing(fun):
            return rule_primitives.traced(_flat(pullback, outputs, wanted), outputs)

    return outputs, residuals


def _staged(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The same where a program is being built, or where `fun` or its rule closes over traced values.

    These become arguments, for custom_vjp differentiates nothing else. So function and rule are traced here, once and
    for all: JAX may ask for the gradient when what they close over is gone.
    """
    traced = _Program(fun, tensors, None)
    if traced.needs_variables:
        # Which variables the rule gets is known now. Tracing twice costs nothing when the program runs.
        traced = _Program(fun, tensors, traced.captured())
    hoisted = [const for const in traced.consts if is_traced(const)]
    fixed = [None if is_traced(const) else const for const in traced.consts]
    # Not the program itself, which holds what is traced: JAX keeps `call`.
    jaxpr, rule, error = traced.jaxpr, traced.rule, traced.error
    count, start = traced.count, len(hoisted)
    # The rule gives the gradients of the arguments, and then those of the variables, which are among what is hoisted.
    served = {_place(value, hoisted): len(tensors) + index for index, value in enumerate(traced.variables or ())}
    gradients = [*map(served.get, range(start)), *range(len(tensors))]
    if traced.refusal is not None:
        for value in traced.captured():
            hoisted[_place(value, hoisted)] = _guarded(value, str(traced.refusal))

    def call(*args: Any) -> tuple[Sequence[Any], Callable[[], Residuals]]:
        values = iter(args[:start])
        consts = [next(values) if const is None else const for const in fixed]
        results = jax.core.eval_jaxpr(jaxpr, consts, *args[start:])

        def residuals() -> Residuals:
            if error is not None:
                raise error
            return rule.at(gradients), results[count:]

        return results[:count], residuals

    return _attach(call, (*hoisted, *tensors))


class _Program:
    """A function and its rule as one jaxpr, whose constants are what they close over.

    Args:
        fun: The function. It runs once.
        tensors: Its arguments.
        variables: What the rule gets as such; None if that is not known yet.

    Attributes:
        count: How many outputs it has. After them, the jaxpr gives the values that the rule uses.
        rule: The rule, a traced one.
        error: What it raised instead.
        needs_variables: Whether the rule takes variables that are not known: then it is not traced.
        refusal: What a rule without `variables` says where something captured is differentiated.
    """

    def __init__(self, fun: Function, tensors: Sequence[Any], variables: Sequence[Any] | None):
        self.variables = variables
        self.wanted = [*map(is_traced, tensors)]
        self.count = 0
        self.rule: Any = None
        self.error: Exception | None = None
        self.needs_variables = False
        self.refusal: errors.CapturedVariableError | None = None
        self.jaxpr, self.consts = linear.program(functools.partial(self._run, fun), [*map(jax.typeof, tensors)])

    def _run(self, fun: Function, *tensors: Any) -> list[Any]:
        # Nothing that belongs to the trace outlives it, so the pullback is not kept: JAX would find a leak.
        outputs, pullback = fun(*tensors)
        self.count, self.refusal = len(outputs), _refusal(pullback)
        self.needs_variables = self.variables is None and pullback.takes_variables()
        if self.needs_variables:
            return [*outputs]
        try:
            rule = _flat(pullback, outputs, self.wanted, self.variables or ())
            with _tracing(fun):
                self.rule, values = rule_primitives.traced(rule, outputs)
        except Exception as error:
            # A rule that cannot be called is an error where its gradient is asked for, and not before.
            self.error = error
            return [*outputs]
        return [*outputs, *values]

    def captured(self) -> list[Any]:
        """What the outputs can be differentiated by and is traced, besides the arguments; in the order of first use."""
        variables, _ = linear.parted(self.jaxpr, len(self.wanted))
        hoisted = [pair for pair in zip(self.consts, variables, strict=True) if is_traced(pair[0])]
        if not hoisted:
            return []
        read = set(filter(_is_variable, self.jaxpr.outvars[: self.count]))
        for equation in reversed(self.jaxpr.eqns):
            if equation.primitive.name != "stop_gradient" and not read.isdisjoint(equation.outvars):
                read.update(filter(_is_variable, equation.invars))
        return [const for const, variable in hoisted if variable in read]


def _is_variable(operand: Any) -> bool:
    return not isinstance(operand, Literal) and is_floating(operand.aval)


def _refusal(pullback: Pullback) -> errors.CapturedVariableError | None:
    try:
        pullback.capture(["(a value that JAX differentiates)"])
    except errors.CapturedVariableError as error:
        return error.with_traceback(None)
    return None


def _place(value: Any, values: Sequence[Any]) -> int:
    return next(place for place, other in enumerate(values) if other is value)


def _guarded(value: Any, refusal: str) -> Any:
    """A value that `fun` reads and that is not among its arguments: nobody may differentiate it."""

    @jax.custom_vjp
    def guard(value: Any) -> Any:
        return value

    def forward(value: Any) -> tuple[Any, None]:
        raise errors.CapturedVariableError(refusal)

    guard.defvjp(forward, lambda _, cotangent: (cotangent,))
    return guard(value)
