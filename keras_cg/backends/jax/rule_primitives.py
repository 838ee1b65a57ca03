"""A rule as JAX uses it, and two primitives that keep it where JAX differentiates again or in forward mode.

JAX differentiates the forward pass of a `custom_vjp` plainly when it differentiates a second time, so the outputs that
this pass returns must keep the rule. `tie` returns the outputs unchanged; its derivative is the pushforward, a linear
map that is given by its transpose, which is the rule. In reverse mode JAX transposes the pushforward and so calls the
rule, linear or not. In forward mode JAX evaluates the pushforward, which needs the transpose of the rule, and only a
linear rule has one. Neither primitive leaves an operation in a compiled program.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
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

# From one cotangent for each floating output to one gradient for each argument, None where there is none.
FlatRule = Callable[[Sequence[Any]], list[Any]]


@dataclasses.dataclass(frozen=True, eq=False)  # JAX hashes parameters of primitives
class Rule:
    """A rule and the arguments that it has gradients for.

    `call(values, cotangents)` gives one gradient for each argument, None where there is none. The values are what the
    rule uses of the forward pass. `has_gradient` is False for an argument that gets None. `program` is the jaxpr of
    the rule, if it was traced.
    """

    call: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    has_gradient: Sequence[bool]
    program: Any = None

    def at(self, places: Sequence[int | None]) -> Rule:
        """Returns the rule for the arguments at `places`; a place that is None has no gradient."""

        def call(values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            gradients = self.call(values, cotangents)
            return [None if place is None else gradients[place] for place in places]

        has_gradient = [place is not None and self.has_gradient[place] for place in places]
        return Rule(call, has_gradient, self.program)

    def batched(self, axis: Any, values: Sequence[int | None], args: Sequence[int | None]) -> Rule:
        """Returns the rule under vmap, where 0 marks the values and arguments that are batched along their axis 0."""
        names = {"axis_name": axis.name, "spmd_axis_name": axis.spmd_name}
        batch = jax.vmap(self.call, (values, 0), axis_size=axis.size, **names)

        def call(values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            pairs = zip(batch([*values], [*cotangents]), args, strict=True)
            return [namespace.sum(grad, 0) if grad is not None and place is None else grad for grad, place in pairs]

        return Rule(call, self.has_gradient, self.program)


def traced(rule: FlatRule, outputs: Sequence[Any]) -> tuple[Rule, Sequence[Any]]:
    """Returns a rule as a jaxpr, and its constants: they are exactly the values that it uses of the forward pass."""
    has_gradient: list[bool] = []

    def present(*cotangents: Any) -> list[Any]:
        gradients = rule(cotangents)
        has_gradient[:] = [gradient is not None for gradient in gradients]
        return [gradient for gradient in gradients if gradient is not None]

    def call(values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        gradients = iter(jax.core.eval_jaxpr(jaxpr, values, *cotangents))
        return [next(gradients) if is_present else None for is_present in has_gradient]

    jaxpr, consts = linear.program(present, [jax.typeof(output) for output in outputs if is_floating(output)])
    return Rule(call, has_gradient, jaxpr), consts


def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Returns `jax.jvp` of `fun` in the primals whose tangent is not a symbolic zero."""
    active = [place for place, tangent in enumerate(tangents) if not isinstance(tangent, (ad.Zero, SymbolicZero))]

    def of_active(*values: Any) -> Any:
        return fun(*(dict(enumerate(primals)) | dict(zip(active, values, strict=True))).values())

    return jax.jvp(of_active, [primals[place] for place in active], [tangents[place] for place in active])  # type: ignore[no-any-return]


def _at_front(
    axis: Any, operands: Sequence[Any], places: Sequence[int | None], batched: Sequence[int] = ()
) -> tuple[list[Any], list[int | None]]:
    """Moves the batched axis of each operand to the front; the operands at `batched` get one if they have none.

    Returns the operands, and 0 for each that had a batched axis, else None.
    """
    moved = [
        value if place is None and index not in batched else bdim_at_front(value, place, axis.size)  # type: ignore[no-untyped-call]
        for index, (value, place) in enumerate(zip(operands, places, strict=True))
    ]
    return moved, [None if place is None else 0 for place in places]


# --- the outputs, tied to their rule ---------------------------------------------------------------------------------
# The operands are the values that the rule uses, from `start` on the outputs, and from `stop` on the arguments.


def tie(rule: Rule, values: Sequence[Any], outputs: Sequence[Any], args: Sequence[Any]) -> tuple[Any, ...]:
    """Returns `outputs`, whose derivative with respect to `args` is what the rule around `values` says."""
    stop = len(values) + len(outputs)
    return tuple(_tie.bind(*values, *outputs, *args, rule=rule, start=len(values), stop=stop))


def _outputs(*operands: Any, rule: Rule, start: int, stop: int) -> list[Any]:
    return [*operands[start:stop]]


def _tie_jvp(
    operands: Sequence[Any], tangents: Sequence[Any], rule: Rule, start: int, stop: int
) -> tuple[Sequence[Any], Sequence[Any]]:
    outputs = _tie.bind(*operands, rule=rule, start=start, stop=stop)
    zeros = [ad.Zero(jax.typeof(output).to_tangent_aval()) for output in outputs]
    active = [
        place
        for place, (arg, tangent) in enumerate(zip(operands[stop:], tangents[stop:], strict=True))
        # An argument may be a number of Python, which has no dtype.
        if rule.has_gradient[place] and not isinstance(tangent, ad.Zero) and is_floating(jax.typeof(arg))
    ]
    if not active:
        return outputs, zeros
    specs = tuple(zero.aval for zero, output in zip(zeros, outputs, strict=True) if is_floating(output))
    along = [tangents[stop + place] for place in active]
    params = {"rule": rule.at(active), "start": start, "specs": specs, "program": rule.program}
    pushed = iter(_pushforward.bind(*operands[:start], *along, **params))
    return outputs, [next(pushed) if is_floating(output) else zero for zero, output in zip(zeros, outputs, strict=True)]


def _tie_batched(
    axis: Any, operands: Sequence[Any], places: Sequence[int | None], rule: Rule, start: int, stop: int
) -> tuple[Sequence[Any], Sequence[int | None]]:
    if all(place is None for place in places):
        return _tie.bind(*operands, rule=rule, start=start, stop=stop), [None] * (stop - start)
    # The derivative is batched if anything is, so the outputs must be, too.
    moved, axes = _at_front(axis, operands, places, range(start, stop))
    rule = rule.batched(axis, axes[:start], axes[stop:])
    return _tie.bind(*moved, rule=rule, start=start, stop=stop), [0] * (stop - start)


_tie: Any = Primitive("keras_cg_output")
_tie.multiple_results = True
_tie.def_impl(_outputs)
_tie.def_abstract_eval(_outputs)
ad.primitive_jvps[_tie] = _tie_jvp
batching.fancy_primitive_batchers[_tie] = _tie_batched
# A cached lowering would keep the rule alive, and with it what the rule refers to.
mlir.register_lowering(_tie, lambda context, *operands, **params: _outputs(*operands, **params), cacheable=False)

# --- the pushforward -------------------------------------------------------------------------------------------------
# The operands are the values that the rule uses, and from `start` on the tangents of its arguments. `specs` are the
# types of the outputs' tangents. `program` is for JAX, which looks for jaxprs among the parameters of a primitive to
# find out on which devices they run.


def _push(*operands: Any, rule: Rule, start: int, specs: Sequence[Any], program: Any) -> list[Any]:
    """Returns the tangents of the outputs, by the transpose of the rule."""
    values, tangents = operands[:start], operands[start:]

    def pull(*cotangents: Any) -> list[Any]:
        pairs = zip(rule.call(values, cotangents), tangents, strict=True)
        return [namespace.zeros_like(tangent) if gradient is None else gradient for gradient, tangent in pairs]

    return linear.transposed(pull, specs, tangents)


def _transpose(cotangents: Sequence[Any], *operands: Any, rule: Rule, start: int, **params: Any) -> list[Any]:
    return [*[None] * start, *rule.call(operands[:start], [*map(ad.instantiate_zeros, cotangents)])]


def _push_batched(
    axis: Any, operands: Sequence[Any], places: Sequence[int | None], rule: Rule, start: int, specs: Any, program: Any
) -> tuple[Sequence[Any], Sequence[int | None]]:
    if all(place is None for place in places):
        params = {"rule": rule, "start": start, "specs": specs, "program": program}
        return _pushforward.bind(*operands, **params), [None] * len(specs)
    moved, axes = _at_front(axis, operands, places)
    rule = rule.batched(axis, axes[:start], axes[start:])
    specs = tuple(unmapped_aval(axis.size, 0, spec, axis.explicit_mesh_axis) for spec in specs)
    return _pushforward.bind(*moved, rule=rule, start=start, specs=specs, program=program), [0] * len(specs)


_pushforward: Any = Primitive("keras_cg_jvp")
_pushforward.multiple_results = True
_pushforward.def_impl(_push)
_pushforward.def_abstract_eval(lambda *operands, specs, **params: specs)
ad.primitive_jvps[_pushforward] = lambda operands, tangents, **params: jvp(
    functools.partial(_push, **params), operands, tangents
)
ad.primitive_transposes[_pushforward] = _transpose
batching.fancy_primitive_batchers[_pushforward] = _push_batched
mlir.register_lowering(_pushforward, mlir.lower_fun(_push, multiple_results=True), cacheable=False)
