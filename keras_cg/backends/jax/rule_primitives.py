"""The rule as JAX carries it on: the rule as a jaxpr, and two primitives that keep it where JAX differentiates again.

JAX differentiates plainly what it differentiates again, so what a derivative returns as outputs must keep the rule.
`_carried` gives the outputs as they are; its derivative is `_pushed`, the linear map whose transpose is the rule. In
reverse mode JAX transposes it and so calls the rule, linear or not. Forwards it is evaluated, which needs the transpose
of the rule, and only a linear one has that. Neither leaves anything in a compiled program.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as namespace
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters.batching import bdim_at_front

from keras_cg.backends.jax import linear
from keras_cg.backends.jax.names import unmapped_aval
from keras_cg.backends.jax.tensors import is_floating

# From one cotangent for each floating output to one gradient for each argument, None where there is none.
Rule = Callable[[Sequence[Any]], list[Any]]


def traced(rule: Rule, outputs: Sequence[Any]) -> tuple[TracedRule, Sequence[Any]]:
    """A rule as a jaxpr, and the constants in it: they are exactly what it uses of the forward run."""
    places: list[int | None] = []

    def present(*cotangents: Any) -> list[Any]:
        gradients = rule(cotangents)
        count = itertools.count()
        places[:] = [None if gradient is None else next(count) for gradient in gradients]
        return [gradient for gradient in gradients if gradient is not None]

    examples = [jax.typeof(output) for output in outputs if is_floating(output)]
    jaxpr, consts = linear.program(present, examples)
    return TracedRule(jaxpr, len(examples), places), consts


class TracedRule:
    """A rule of `count` cotangents as a jaxpr; and at which place that gives the gradient of each argument, or None."""

    def __init__(self, program: Any, count: int, places: Sequence[int | None]):
        self.program, self.count, self.places = program, count, places

    def __call__(self, values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        gradients = jax.core.eval_jaxpr(self.program, values, *cotangents)
        return [None if place is None else gradients[place] for place in self.places]

    def gives(self, index: int) -> bool:
        """Whether there is a gradient for an argument, as far as is known."""
        return self.places[index] is not None

    def at(self, indices: Sequence[int | None]) -> TracedRule:
        """The same rule for the arguments at `indices`; one that is None has no gradient."""
        return TracedRule(
            self.program, self.count, [None if index is None else self.places[index] for index in indices]
        )


class UntracedRule:
    """A rule as it is; and at which places it is asked for gradients, if not at all of them."""

    program = None

    def __init__(self, rule: Rule, places: Sequence[int] | None = None):
        self.rule, self.places = rule, places

    def __call__(self, values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        gradients = self.rule(cotangents)
        return gradients if self.places is None else [gradients[place] for place in self.places]

    def gives(self, index: int) -> bool:
        return True

    def at(self, indices: Sequence[int]) -> UntracedRule:
        """The same rule for the arguments at `indices`."""
        return UntracedRule(self.rule, indices if self.places is None else [self.places[index] for index in indices])


class _BatchedRule:
    """A rule under vmap, along the first axis of the values and the arguments that have one for it."""

    def __init__(self, rule: Any, axis: Any, values: Sequence[int | None], args: Sequence[int | None]):
        self.rule, self.axis, self.values, self.args = rule, axis, values, args
        self.program = rule.program

    def __call__(self, values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        names = {"axis_name": self.axis.name, "spmd_axis_name": self.axis.spmd_name}
        batch = jax.vmap(self.rule, (self.values, 0), axis_size=self.axis.size, **names)
        gradients: list[Any] = batch([*values], [*cotangents])
        return [
            namespace.sum(gradient, 0) if gradient is not None and place is None else gradient
            for gradient, place in zip(gradients, self.args, strict=True)
        ]

    def gives(self, index: int) -> bool:
        return self.rule.gives(index)  # type: ignore[no-any-return]

    def at(self, indices: Sequence[int]) -> _BatchedRule:
        return _BatchedRule(self.rule.at(indices), self.axis, self.values, [self.args[index] for index in indices])


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
    # An argument may be a number of Python. What the rule says nothing of does not move the outputs.
    moving = [
        place
        for place, (arg, tangent) in pairs
        if is_floating(jax.typeof(arg)) and not isinstance(tangent, ad.Zero) and rule.gives(place)
    ]
    if not moving:
        return outputs, zeros
    like = tuple(zero.aval for zero, output in zip(zeros, outputs, strict=True) if is_floating(output))
    along = [tangents[stop + index] for index in moving]
    params = {"rule": rule.at(moving), "start": start, "like": like, "program": rule.program}
    pushed = iter(_pushed.bind(*given[:start], *along, **params))
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


_carried: Any = Primitive("keras_cg_output")
_carried.multiple_results = True
_carried.def_impl(_outputs)
_carried.def_abstract_eval(_outputs)
ad.primitive_jvps[_carried] = _derivative
batching.fancy_primitive_batchers[_carried] = _batched
# A lowering that JAX keeps would keep the rule, and with it what the rule holds.
mlir.register_lowering(_carried, lambda context, *given, **params: _outputs(*given, **params), cacheable=False)


def _push(*given: Any, rule: Any, start: int, like: Sequence[Any], program: Any) -> list[Any]:
    """The tangents of the outputs, which are `like` these, by the transpose of the rule.

    Of what is given, the first `start` are the values that the rule uses, the others the tangents of its arguments.
    `program` is for JAX alone, which looks for programs among the parameters, to know on which devices they run.
    """
    values, tangents = given[:start], given[start:]

    def pull(*cotangents: Any) -> list[Any]:
        """What the rule says, with zeros in the shape of a tangent where it says nothing."""
        return [
            namespace.zeros_like(tangent) if gradient is None else gradient
            for gradient, tangent in zip(rule(values, cotangents), tangents, strict=True)
        ]

    return linear.transposed(pull, like, tangents)


def _pushed_derivative(
    given: Sequence[Any], tangents: Sequence[Any], rule: Any, start: int, like: Sequence[Any], program: Any
) -> tuple[Sequence[Any], Sequence[Any]]:
    moving = [index for index, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]

    def push(*moved: Any) -> list[Any]:
        values = dict(enumerate(given)) | dict(zip(moving, moved, strict=True))
        return _push(*values.values(), rule=rule, start=start, like=like, program=program)

    return jax.jvp(push, [given[index] for index in moving], [tangents[index] for index in moving])


def _transposed(
    cotangents: Sequence[Any], *given: Any, rule: Any, start: int, like: Sequence[Any], program: Any
) -> list[Any]:
    arriving = [*map(ad.instantiate_zeros, cotangents)]
    gradients = rule(given[:start], arriving)
    return [*[None] * start, *gradients]


def _pushed_batched(
    axis: Any,
    given: Sequence[Any],
    places: Sequence[int | None],
    rule: Any,
    start: int,
    like: Sequence[Any],
    program: Any,
) -> tuple[Sequence[Any], Sequence[int | None]]:
    if all(place is None for place in places):
        return _pushed.bind(*given, rule=rule, start=start, like=like, program=program), [None] * len(like)
    moved, axes = _at_front(axis, given, places)
    rule = _BatchedRule(rule, axis, axes[:start], axes[start:])
    like = tuple(unmapped_aval(axis.size, 0, aval, axis.explicit_mesh_axis) for aval in like)
    return _pushed.bind(*moved, rule=rule, start=start, like=like, program=program), [0] * len(like)


_pushed: Any = Primitive("keras_cg_jvp")
_pushed.multiple_results = True
_pushed.def_impl(_push)
_pushed.def_abstract_eval(lambda *given, rule, start, like, program: like)
ad.primitive_jvps[_pushed] = _pushed_derivative
ad.primitive_transposes[_pushed] = _transposed
batching.fancy_primitive_batchers[_pushed] = _pushed_batched
mlir.register_lowering(_pushed, mlir.lower_fun(_push, multiple_results=True), cacheable=False)
