"""The rule as JAX carries it on: the rule as a jaxpr, and two primitives that keep it where JAX differentiates again.

JAX differentiates the forward function of a custom_vjp plainly when it differentiates again, so what that function
returns must keep the rule. `_carried` gives the outputs as they are; its derivative is `_pushed`, the linear map whose
transpose is the rule. In reverse mode JAX transposes it and so calls the rule, linear or not. Forwards it is evaluated,
and needs the transpose of the rule, which only a linear one has. Neither leaves anything in a compiled program.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as namespace
import numpy
from jax.extend import linear_util
from jax.extend.core import Literal, Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters.batching import bdim_at_front
from jax.interpreters.partial_eval import trace_to_jaxpr_dynamic

from keras_cg import errors
from keras_cg.backends.jax.names import DebugInfo, unmapped_aval
from keras_cg.backends.jax.tensors import dtype, is_floating, is_traced
from keras_cg.engine import linear

# From one cotangent for each floating output to one gradient for each argument, None where there is none.
Rule = Callable[[Sequence[Any]], list[Any]]


def program(fun: Callable[..., Sequence[Any]], examples: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """What `fun` does with values such as these, as a jaxpr, and what it closes over."""
    # Not make_jaxpr, which is a jit around this: for a small function JAX (0.10) takes three times as long for that.
    wrapped = linear_util.wrap_init(fun, debug_info=_DESCRIPTION)
    jaxpr, _, consts = trace_to_jaxpr_dynamic(wrapped, [jax.typeof(example) for example in examples])
    return jaxpr, consts


def parted(jaxpr: Any, count: int) -> tuple[Sequence[Any], Sequence[Any]]:
    """The variables of a jaxpr that stand for what it closes over, and those of its `count` inputs."""
    # JAX (0.12) has the former among the latter, in front; earlier ones (0.10) have them apart.
    variables = [*jaxpr.constvars, *jaxpr.invars]
    start = len(variables) - count
    return variables[:start], variables[start:]


# What JAX's own messages say of what is traced here; its arguments have no names.
_DESCRIPTION = DebugInfo("keras_cg.custom_gradient", "with a gradient of its own", None, None)


def traced(rule: Rule, outputs: Sequence[Any]) -> tuple[TracedRule, Sequence[Any]]:
    """A rule as a jaxpr, and the constants in it: they are exactly what it uses of the forward run."""
    places: list[int | None] = []

    def present(*cotangents: Any) -> list[Any]:
        gradients = rule(cotangents)
        count = itertools.count()
        places[:] = [None if gradient is None else next(count) for gradient in gradients]
        return [gradient for gradient in gradients if gradient is not None]

    examples = [*filter(is_floating, outputs)]
    jaxpr, consts = program(present, examples)
    return TracedRule(jaxpr, len(examples), places), consts


class TracedRule:
    """A rule of `count` cotangents as a jaxpr; and at which place that gives the gradient of each argument, or None."""

    def __init__(self, jaxpr: Any, count: int, places: Sequence[int | None]):
        self.jaxpr, self.count, self.places = jaxpr, count, places

    def __call__(self, values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        gradients = jax.core.eval_jaxpr(self.jaxpr, values, *cotangents)
        return [None if place is None else gradients[place] for place in self.places]

    def at(self, indices: Sequence[int | None]) -> TracedRule:
        """The same rule for the arguments at `indices`; one that is None has no gradient."""
        return TracedRule(self.jaxpr, self.count, [None if index is None else self.places[index] for index in indices])

    @functools.cached_property
    def is_linear(self) -> bool:
        """Whether the jaxpr shows that it is a linear map of the cotangents."""
        kinds = _kinds(self.jaxpr, ["linear"] * self.count)
        return all(place is None or kinds[place] in ("linear", "zero") for place in self.places)


class _BatchedRule:
    """A rule under vmap, along the first axis of the values and the arguments that have one for it."""

    def __init__(self, rule: Any, axis: Any, values: Sequence[int | None], args: Sequence[int | None]):
        self.rule, self.axis, self.values, self.args = rule, axis, values, args

    def __call__(self, values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        names = {"axis_name": self.axis.name, "spmd_axis_name": self.axis.spmd_name}
        batch = jax.vmap(self.rule, (self.values, 0), axis_size=self.axis.size, **names)
        gradients: list[Any] = batch([*values], [*cotangents])
        return [
            namespace.sum(gradient, 0) if gradient is not None and place is None else gradient
            for gradient, place in zip(gradients, self.args, strict=True)
        ]

    def at(self, indices: Sequence[int]) -> _BatchedRule:
        return _BatchedRule(self.rule.at(indices), self.axis, self.values, [self.args[index] for index in indices])

    @property
    def is_linear(self) -> bool:
        return self.rule.is_linear  # type: ignore[no-any-return]


def carry(rule: Any, values: Sequence[Any], outputs: Sequence[Any], args: Sequence[Any]) -> tuple[Any, ...]:
    """`outputs` again, differentiated with respect to `args` by a traced rule around `values`."""
    stop = len(values) + len(outputs)
    return tuple(_carried.bind(*values, *outputs, *args, rule=rule, start=len(values), stop=stop))


def _outputs(*given: Any, rule: Any, start: int, stop: int) -> list[Any]:
    return [*given[start:stop]]


def _derivative(
    given: Sequence[Any], tangents: Sequence[Any], rule: Any, start: int, stop: int
) -> tuple[Sequence[Any], Sequence[Any]]:
    outputs = _carried.bind(*given, rule=rule, start=start, stop=stop)
    zeros = [ad.Zero(jax.typeof(output).to_tangent_aval()) for output in outputs]
    pairs = enumerate(zip(given[stop:], tangents[stop:], strict=True))
    moving = [index for index, (arg, tangent) in pairs if is_floating(arg) and not isinstance(tangent, ad.Zero)]
    if not moving:
        return outputs, zeros
    like = tuple(zero.aval for zero, output in zip(zeros, outputs, strict=True) if is_floating(output))
    along = [tangents[stop + index] for index in moving]
    pushed = iter(_pushed.bind(*given[:start], *along, rule=rule.at(moving), start=start, like=like))
    return outputs, [next(pushed) if is_floating(output) else zero for zero, output in zip(zeros, outputs, strict=True)]


def _batched(
    axis: Any, given: Sequence[Any], places: Sequence[int | None], rule: Any, start: int, stop: int
) -> tuple[Sequence[Any], Sequence[int | None]]:
    if all(place is None for place in places):
        return _carried.bind(*given, rule=rule, start=start, stop=stop), [None] * (stop - start)
    # A derivative is batched if anything is, and so must the outputs be.
    moved, axes = _at_front(axis, given, places, range(start, stop))
    rule = _BatchedRule(rule, axis, axes[:start], axes[stop:])
    return _carried.bind(*moved, rule=rule, start=start, stop=stop), [0] * (stop - start)


def _at_front(
    axis: Any, given: Sequence[Any], places: Sequence[int | None], batched: Sequence[int] = ()
) -> tuple[list[Any], list[int | None]]:
    """Values whose batched axis is the first one, and 0 for each that has one; those at `batched` get one."""
    moved = [
        value if place is None and index not in batched else bdim_at_front(value, place, axis.size)  # type: ignore[no-untyped-call]
        for index, (value, place) in enumerate(zip(given, places, strict=True))
    ]
    return moved, [None if place is None else 0 for place in places]


_carried: Any = Primitive("keras_cg_carried")
_carried.multiple_results = True
_carried.def_impl(_outputs)
_carried.def_abstract_eval(_outputs)
ad.primitive_jvps[_carried] = _derivative
batching.fancy_primitive_batchers[_carried] = _batched
# A lowering that JAX keeps would keep the rule, and with it what the rule holds.
mlir.register_lowering(_carried, lambda context, *given, **params: _outputs(*given, **params), cacheable=False)


def _push(*given: Any, rule: Any, start: int, like: Sequence[Any]) -> list[Any]:
    """The tangents of the outputs, which are `like` these, by the transpose of the rule.

    Of what is given, the first `start` are the values that the rule uses, the others the tangents of its arguments.
    """
    values, tangents = given[:start], [*given[start:]]
    pull = functools.partial(_pull, rule, values, tangents)
    if rule.is_linear:
        return [*jax.linear_transpose(pull, *like)(tangents)]
    # JAX may have no transpose of what it holds. A linear map is its own derivative, though, and JAX has that of any.
    return [*jax.vjp(pull, *_zeros(like))[1](tangents)]


def _pull(rule: Any, values: Sequence[Any], tangents: Sequence[Any], *cotangents: Any) -> list[Any]:
    """What the rule says, with zeros in the shape of a tangent where it says nothing."""
    return [
        namespace.zeros_like(tangent) if gradient is None else gradient
        for gradient, tangent in zip(rule(values, cotangents), tangents, strict=True)
    ]


def _zeros(like: Sequence[Any]) -> list[Any]:
    return [namespace.zeros(aval.shape, aval.dtype) for aval in like]


def _pushed_now(*given: Any, rule: Any, start: int, like: Sequence[Any]) -> list[Any]:
    _try(given, rule, start, like)
    return _push(*given, rule=rule, start=start, like=like)


def _try(given: Sequence[Any], rule: Any, start: int, like: Sequence[Any]) -> None:
    """Tries a rule that does not show whether it is linear.

    Raises:
        ValueError: It is not linear, or JAX's transpose of it is another one, or there are no values to try it with,
            since a program is built.
    """
    if rule.is_linear:
        return
    if any(map(is_traced, given)):
        raise errors.no_forward_mode()
    values, tangents, backend = given[:start], given[start:], sys.modules[dtype.__module__]

    def pull(cotangents: Sequence[Any]) -> list[Any]:
        return _pull(rule, values, tangents, *cotangents)

    def push(along: Sequence[Any]) -> list[Any]:
        return _push(*values, *along, rule=rule, start=start, like=like)

    conditions = linear.conditions(backend, pull, _zeros(like))
    conditions += linear.transposes(backend, pull, push, _zeros(like), tangents)
    if any(map(is_traced, conditions)):
        raise errors.no_forward_mode()
    if not all(map(bool, conditions)):
        raise errors.not_linear()


def _pushed_derivative(
    given: Sequence[Any], tangents: Sequence[Any], rule: Any, start: int, like: Sequence[Any]
) -> tuple[Sequence[Any], Sequence[Any]]:
    _try(given, rule, start, like)
    moving = [index for index, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]

    def push(*moved: Any) -> list[Any]:
        values = dict(enumerate(given)) | dict(zip(moving, moved, strict=True))
        return _push(*values.values(), rule=rule, start=start, like=like)

    return jax.jvp(push, [given[index] for index in moving], [tangents[index] for index in moving])


def _transposed(cotangents: Sequence[Any], *given: Any, rule: Any, start: int, like: Sequence[Any]) -> list[Any]:
    arriving = [*map(ad.instantiate_zeros, cotangents)]
    gradients = rule(given[:start], arriving)
    return [*[None] * start, *gradients]


def _pushed_batched(
    axis: Any, given: Sequence[Any], places: Sequence[int | None], rule: Any, start: int, like: Sequence[Any]
) -> tuple[Sequence[Any], Sequence[int | None]]:
    if all(place is None for place in places):
        return _pushed.bind(*given, rule=rule, start=start, like=like), [None] * len(like)
    moved, axes = _at_front(axis, given, places)
    rule = _BatchedRule(rule, axis, axes[:start], axes[start:])
    like = tuple(unmapped_aval(axis.size, 0, aval, axis.explicit_mesh_axis) for aval in like)
    return _pushed.bind(*moved, rule=rule, start=start, like=like), [0] * len(like)


_pushed: Any = Primitive("keras_cg_pushed")
_pushed.multiple_results = True
_pushed.def_impl(_pushed_now)
_pushed.def_abstract_eval(lambda *given, rule, start, like: like)
ad.primitive_jvps[_pushed] = _pushed_derivative
ad.primitive_transposes[_pushed] = _transposed
batching.fancy_primitive_batchers[_pushed] = _pushed_batched
mlir.register_lowering(_pushed, mlir.lower_fun(_pushed_now, multiple_results=True), cacheable=False)


# Linear in all operands together, and in one of them. An index or a condition is no operand.
_SUMS = frozenset(
    "add add_any broadcast_in_dim complex concatenate conj convert_element_type copy copy_p cumsum dynamic_slice"  # noqa: SIM905 - as a list it would fill a screen
    " dynamic_update_slice expand_dims fft gather imag neg pad real reduce_precision reduce_sum reshape rev scatter"
    " scatter-add select_n sharding_constraint slice split squeeze sub transpose".split()
)
_PRODUCTS = frozenset(["mul", "dot_general", "conv_general_dilated"])


def _kinds(jaxpr: Any, inputs: Sequence[str]) -> list[str]:
    """What each output is: surely "linear" in the inputs that are, "zero", a "constant", or "unknown".

    JAX's own transposition would drop constants that are added, so that this must be known before.
    """
    kinds: dict[Any, str] = dict(zip(parted(jaxpr, len(inputs))[1], inputs, strict=True))

    def kind_of(operand: Any) -> str:
        if isinstance(operand, Literal):
            return "constant" if numpy.any(operand.val) else "zero"
        kind = kinds.get(operand, "constant")
        # What has no elements has none that is not zero.
        return "zero" if kind == "constant" and 0 in getattr(operand.aval, "shape", ()) else kind

    for equation in jaxpr.eqns:
        operands = [*map(kind_of, equation.invars)]
        if equation.primitive.name == "jit":
            results = _kinds(equation.params["jaxpr"].jaxpr, operands)
        else:
            results = [_kind(equation, operands)] * len(equation.outvars)
        kinds.update(zip(equation.outvars, results, strict=True))
    return [*map(kind_of, jaxpr.outvars)]


def _kind(equation: Any, operands: list[str]) -> str:
    """What the results of one operation are."""
    name = equation.primitive.name
    if name in _SUMS and set(operands) == {"zero"}:
        return "zero"
    if not {"linear", "unknown"}.intersection(operands):
        return "zero" if name in _PRODUCTS and "zero" in operands else "constant"
    if equation.params.get("fill_value"):
        # What is gathered from outside of an array is a constant then, which is added to a linear map.
        return "unknown"
    if "unknown" in operands or not all(is_floating(result.aval) for result in equation.outvars):
        return "unknown"
    numbers = [kind for kind, operand in zip(operands, equation.invars, strict=True) if is_floating(operand.aval)]
    if name in _SUMS:
        return "unknown" if "constant" in numbers else "linear"
    if name in _PRODUCTS or (name == "div" and operands[0] == "linear"):
        return "linear" if numbers.count("linear") == 1 else "unknown"
    return "unknown"
