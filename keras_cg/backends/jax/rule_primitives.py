"""A rule as JAX uses it, and two primitives that keep it where JAX differentiates again or in forward mode.

JAX differentiates the forward pass of a `custom_vjp` plainly when it differentiates a second time, so the outputs that
this pass returns must keep the rule. `tie` returns the outputs unchanged; its derivative is the pushforward, a linear
map that is given by its transpose, which is the rule. In reverse mode JAX transposes the pushforward and so calls the
rule, linear or not. In forward mode JAX evaluates the pushforward, which needs the transpose of the rule, and only a
linear rule has one. Neither primitive leaves an operation in a compiled program.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as namespace
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters.batching import bdim_at_front

from keras_cg.backends.jax import linear
from keras_cg.backends.jax.names import unmapped_aval
from keras_cg.backends.jax.tensors import is_floating
from keras_cg.engine import messages

# From one cotangent for each floating output to one gradient for each argument, None where there is none. The second
# argument has the outputs, for a rule that takes them.
FlatRule = Callable[[Sequence[Any], Sequence[Any]], list[Any]]


@dataclasses.dataclass(frozen=True, eq=False)  # because JAX hashes the parameters of primitives
class Rule:
    """`rule(values, cotangents)` gives one gradient for each argument, or None where `has_gradient` is False.

    The values are what it uses of the forward pass. `program` is its jaxpr, if it was traced, and `places` are those of
    the gradients in it; without them, all floating outputs have the batch of a vmap. `name` is that of the function.
    The last values of a rule that `takes_output` are all outputs, as `tie` returns them: so the rule is also their
    derivative where the gradient is differentiated. `tie` and what it calls add them.
    """

    name: str
    fun: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    has_gradient: Sequence[bool]
    program: Any = None
    places: Sequence[int | None] | None = None
    takes_output: bool = False

    # A cache of JAX (0.10) holds callable parameters of primitives weakly; it would keep any other object alive.
    def __call__(self, values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        return self.fun(values, cotangents)

    def at(self, places: Sequence[int | None]) -> Rule:
        """Returns the rule for the arguments at `places`; a place that is None has no gradient."""

        def fun(values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            gradients = self.fun(values, cotangents)
            return [None if place is None else gradients[place] for place in places]

        has_gradient = [place is not None and self.has_gradient[place] for place in places]
        known = self.places and [None if place is None else self.places[place] for place in places]
        return Rule(self.name, fun, has_gradient, self.program, known, self.takes_output)

    def shared(self, count: int, values: Sequence[int | None], args: Sequence[int | None]) -> list[bool]:
        """Returns for each of `count` cotangents whether its output has a derivative without the batch of a vmap."""
        if self.places is None:
            return [False] * count
        is_batched = {at: axis is not None for at, axis in zip(self.places, args, strict=True) if at is not None}
        return linear.shared(self.program, count, [axis is not None for axis in values], is_batched)

    def batched(
        self, axis: Any, values: Sequence[int | None], args: Sequence[int | None], shared: Sequence[bool]
    ) -> Rule:
        """Returns the rule under vmap, where 0 marks the values and arguments that are batched along their axis 0.

        The cotangents of `shared` outputs have no batch. Their part of a gradient has none either, so no sum is taken.
        """
        names = {"axis_name": axis.name, "spmd_axis_name": axis.spmd_name}
        axes = [None if is_shared else 0 for is_shared in shared]
        batch = jax.vmap(self.fun, (values, axes if any(shared) else 0), axis_size=axis.size, **names)

        def summed(values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            pairs = zip(batch([*values], [*cotangents]), args, strict=True)
            return [namespace.sum(grad, 0) if grad is not None and place is None else grad for grad, place in pairs]

        def divided(values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            zeros = [*map(namespace.zeros_like, cotangents)]
            both = [*zip(cotangents, zeros, shared, strict=True)]
            gradients = summed(values, [zero if is_shared else each for each, zero, is_shared in both])
            others = batch([*values], [each if is_shared else zero for each, zero, is_shared in both])
            return [
                grad if grad is None or place is not None else grad + other[0]
                for grad, other, place in zip(gradients, others, args, strict=True)
            ]

        fun = divided if any(shared) else summed
        return Rule(self.name, fun, self.has_gradient, self.program, self.places, self.takes_output)

    def extras(self, outputs: Sequence[Any]) -> Sequence[Any]:
        """Returns those of the values that are outputs."""
        return outputs if self.takes_output else ()

    def split(self, operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Returns the operands of a primitive before those that belong to the arguments, and these."""
        stop = len(operands) - len(self.has_gradient)
        return operands[:stop], operands[stop:]


def traced(name: str, rule: FlatRule, outputs: Sequence[Any], takes_output: bool = False) -> tuple[Rule, Sequence[Any]]:
    """Returns a rule as a jaxpr, and its constants: they are exactly the values that it uses of the forward pass.

    The outputs that a rule takes are the first inputs of the jaxpr.
    """
    has_gradient: list[bool] = []
    count = len(outputs) if takes_output else 0

    def present(*inputs: Any) -> list[Any]:
        gradients = rule(inputs[count:], inputs[:count])
        has_gradient[:] = [gradient is not None for gradient in gradients]
        return [gradient for gradient in gradients if gradient is not None]

    def fun(values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        stop = len(values) - count
        gradients = iter(jax.core.eval_jaxpr(jaxpr, values[:stop], *values[stop:], *cotangents))
        return [next(gradients) if is_present else None for is_present in has_gradient]

    types = [*map(jax.typeof, outputs)]
    jaxpr, consts = linear.program(present, [*types[:count], *[each for each in types if is_floating(each)]])
    places = itertools.count()
    # The batch of an output that the rule takes decides about the batches of the others.
    known = None if takes_output else [next(places) if has else None for has in has_gradient]
    return Rule(name, fun, has_gradient, jaxpr, known, takes_output), consts


def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Returns `jax.jvp` of `fun` in the primals whose tangent is not a symbolic zero."""
    active = [place for place, tangent in enumerate(tangents) if not isinstance(tangent, (ad.Zero, SymbolicZero))]

    def of_active(*values: Any) -> Any:
        return fun(*(dict(enumerate(primals)) | dict(zip(active, values, strict=True))).values())

    return jax.jvp(of_active, [primals[place] for place in active], [tangents[place] for place in active])


def _batched(
    primitive: Any, axis: Any, operands: Sequence[Any], axes: Sequence[int | None], *, rule: Rule, **params: Any
) -> tuple[Sequence[Any], Sequence[int | None]]:
    """Batches a primitive along the first axis of its operands, or of those that have a batched axis.

    The first operands of `tie` are its outputs. One that has a derivative is batched if that is.
    """
    if all(place is None for place in axes):
        results = primitive.bind(*operands, rule=rule, **params)
        return results, [None] * len(results)
    count = params.get("count", 0)
    before, of_args = rule.split([None if place is None else 0 for place in axes])
    floating = [is_floating(jax.typeof(value)) for value in operands[:count]]
    shared = rule.shared(sum(floating) if count else len(params["specs"]), before[count:], of_args)
    if not axis.size:
        shared = [False] * len(shared)
    if count:
        # An output that has the batch itself is not shared.
        own = [place is not None for place, is_real in zip(axes, floating, strict=False) if is_real]
        shared = [is_shared and not has for is_shared, has in zip(shared, own, strict=True)]
    told = iter(shared)
    needed = [place is not None for place in axes]
    needed[:count] = [
        not next(told) if is_real else is_needed for is_real, is_needed in zip(floating, needed, strict=False)
    ]
    operands = [
        bdim_at_front(value, place, axis.size) if is_needed else value  # type: ignore[no-untyped-call]
        for value, place, is_needed in zip(operands, axes, needed, strict=True)
    ]
    extras = rule.extras([0 if is_needed else None for is_needed in needed[:count]])
    rule = rule.batched(axis, [*before[count:], *extras], of_args, shared)
    if "specs" in params:
        params["specs"] = tuple(
            spec if is_shared else unmapped_aval(axis.size, 0, spec, axis.explicit_mesh_axis)
            for spec, is_shared in zip(params["specs"], shared, strict=True)
        )
    results = primitive.bind(*operands, rule=rule, **params)
    has_batch = needed[:count] if count else [not is_shared for is_shared in shared]
    return results, [0 if has else None for has in has_batch]


# --- the outputs, tied to their rule ---------------------------------------------------------------------------------
# The operands are `count` outputs, the values that the rule uses, and the arguments.


def tie(rule: Rule, values: Sequence[Any], outputs: Sequence[Any], args: Sequence[Any]) -> tuple[Any, ...]:
    """Returns `outputs`, whose derivative with respect to `args` is what the rule around `values` says."""
    return tuple(_tie.bind(*outputs, *values, *args, rule=rule, count=len(outputs))) if outputs else ()


def alone(
    name: str, outputs: Sequence[Any], used: Sequence[Any], args: Sequence[Any], rule: Rule | None
) -> tuple[Any, ...]:
    """Returns `outputs` of the function `name` without a derivative, batched as `tie` batches them.

    In a program JAX takes the axes of the outputs from the run without a derivative, and believes that the run for a
    derivative has the same ones. It cannot transpose them, which would drop the rule.
    """
    if rule is not None:
        return tie(rule, used, outputs, args)
    return tie(Rule(name, lambda values, cotangents: [], []), [*used, *args], outputs, ())


def _outputs(*operands: Any, rule: Rule, count: int) -> list[Any]:
    return [*operands[:count]]


def _tie_jvp(
    operands: Sequence[Any], tangents: Sequence[Any], rule: Rule, count: int
) -> tuple[Sequence[Any], Sequence[Any]]:
    outputs = _tie.bind(*operands, rule=rule, count=count)
    zeros = [ad.Zero(jax.typeof(output).to_tangent_aval()) for output in outputs]
    (before, args), (_, along) = rule.split(operands), rule.split(tangents)
    active = [
        place
        for place, (arg, tangent) in enumerate(zip(args, along, strict=True))
        # An argument may be a number of Python, which has no dtype.
        if rule.has_gradient[place] and not isinstance(tangent, ad.Zero) and is_floating(jax.typeof(arg))
    ]
    if not active:
        return outputs, zeros
    specs = tuple(zero.aval for zero, output in zip(zeros, outputs, strict=True) if is_floating(output))
    # With jax_custom_vjp3, JAX (0.10) refuses to compile a primitive that holds a program with a custom_vjp.
    program = None if getattr(rule.program, "is_high", False) else rule.program
    params = {"rule": rule.at(active), "specs": specs, "program": program}
    values = [*before[count:], *rule.extras(outputs)]
    pushed = iter(_pushforward.bind(*values, *[along[place] for place in active], **params))
    return outputs, [next(pushed) if is_floating(output) else zero for zero, output in zip(zeros, outputs, strict=True)]


def _tie_transpose(cotangents: Sequence[Any], *operands: Any, rule: Rule, count: int) -> list[Any]:
    if not linear.is_plain(rule):
        raise messages.rule_dropped("jax.linear_transpose", "use jax.vjp", rule.name)
    return [*cotangents, *[None] * (len(operands) - count)]


_tie: Any = Primitive(linear.OUTPUT)
_tie.multiple_results = True
_tie.def_impl(_outputs)
_tie.def_abstract_eval(_outputs)
ad.primitive_jvps[_tie] = _tie_jvp
ad.primitive_transposes[_tie] = _tie_transpose
batching.fancy_primitive_batchers[_tie] = partial(_batched, _tie)
# A cached lowering would keep the rule alive, and with it what the rule refers to.
mlir.register_lowering(_tie, lambda context, *operands, **params: _outputs(*operands, **params), cacheable=False)

# --- the pushforward -------------------------------------------------------------------------------------------------
# The operands are the values that the rule uses, and the tangents of its arguments. `specs` are the types of the
# outputs' tangents. `program` is for JAX, which looks for jaxprs among the parameters of a primitive to find out on
# which devices they run.


def _push(*operands: Any, rule: Rule, specs: Sequence[Any], program: Any) -> list[Any]:
    """Returns the tangents of the outputs, by the transpose of the rule."""
    values, tangents = rule.split(operands)

    def pull(*cotangents: Any) -> list[Any]:
        pairs = zip(rule(values, cotangents), tangents, strict=True)
        return [namespace.zeros_like(tangent) if gradient is None else gradient for gradient, tangent in pairs]

    return linear.transposed(rule.name, pull, specs, tangents)


def _transpose(cotangents: Sequence[Any], *operands: Any, rule: Rule, **params: Any) -> list[Any]:
    values, _ = rule.split(operands)
    return [*[None] * len(values), *rule(values, [*map(ad.instantiate_zeros, cotangents)])]


_pushforward: Any = Primitive("keras_cg_jvp")
_pushforward.multiple_results = True
_pushforward.def_impl(_push)
_pushforward.def_abstract_eval(lambda *operands, specs, **params: specs)
ad.primitive_jvps[_pushforward] = lambda operands, along, **params: jvp(partial(_push, **params), operands, along)
ad.primitive_transposes[_pushforward] = _transpose
batching.fancy_primitive_batchers[_pushforward] = partial(_batched, _pushforward)
mlir.register_lowering(_pushforward, mlir.lower_fun(_push, multiple_results=True), cacheable=False)
