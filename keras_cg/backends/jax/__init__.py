"""The JAX backend, on `jax.custom_vjp`."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as namespace
import numpy
from jax.extend import linear_util
from jax.extend.core import DebugInfo, Literal, Primitive, get_opaque_trace_state

# Whether a jit, or what works like one, is building a program around a call. JAX (0.10) exports no other way to ask but
# to make an array and look at it, which takes fifty times as long; if the name is gone, this import raises.
from jax.extend.core import unsafe_am_i_under_a_jit_DO_NOT_USE as _is_staging  # type: ignore[attr-defined]
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import trace_to_jaxpr_dynamic

from keras_cg import errors
from keras_cg.backends import Function, PlainFunction, Pullback

__all__ = [
    "asarray",
    "attach",
    "cast",
    "children",
    "compiled",
    "converted",
    "devices",
    "double_precision",
    "dtype",
    "is_recording",
    "is_tensor",
    "jacobian",
    "jvp",
    "namespace",
    "recompute",
    "shape",
    "tensors",
    "to_numpy",
    "vjp",
]

tensors = (jax.Array, jax.core.Tracer)


def is_tensor(value: object) -> bool:
    if isinstance(value, jax.Array):
        return True
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return namespace.issubdtype(value.dtype, numpy.number) or value.dtype == bool
    return False


def asarray(value: Any) -> Any:
    # Arrays as well: while a program is built, this makes them a part of it.
    # JAX (0.10) would trace the conversion of a traced array to what it is. Not so a traced number of Python.
    is_array = isinstance(value, jax.Array) and not jax.typeof(value).weak_type
    return value if is_array else namespace.asarray(value)


def to_numpy(tensor: Any) -> numpy.ndarray:
    return numpy.asarray(tensor)


def shape(tensor: Any) -> tuple[int | None, ...]:
    return tuple(tensor.shape)


def dtype(tensor: Any) -> str:
    return _name(tensor.dtype)


_name = functools.cache(str)


def cast(value: Any, dtype: str) -> Any:
    return value.astype(dtype)


def children(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    if isinstance(value, Iterator):
        return None  # no container, but JAX (0.10) would warn of it
    # One level of a type registered with jax.tree_util; optree has opened the usual containers already.
    parts, spec = jax.tree_util.tree_flatten(value, is_leaf=lambda part: part is not value)
    if jax.tree_util.treedef_is_leaf(spec):
        return None
    return parts, lambda parts: jax.tree_util.tree_unflatten(spec, parts)


def converted(fun: Callable[..., Any]) -> Callable[..., Any]:
    return fun


def is_recording() -> bool:
    return bool(_state() != _NOTHING)


# What JAX is at work on; and what that is where nothing is differentiated, batched or traced.
_state: Callable[[], Any] = get_opaque_trace_state
with jax.core.eval_context():
    _NOTHING = _state()


def attach(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    if not any(map(_is_traced, tensors)):
        outputs, _ = fun(*tensors)
        if not any(map(_is_traced, outputs)):
            return outputs
    elif not _is_staging() and not jax.sharding.get_abstract_mesh().manual_axes:  # no jit around it, and no shard_map
        try:
            return _attach(functools.partial(_run, fun), tensors)
        except (jax.errors.UnexpectedTracerError, _CapturedError):
            # `fun` or its rule closes over a value that is being differentiated: by the same transform as an argument,
            # which is unexpected inside a custom_vjp, or by an outer one, which would go past the rule.
            pass
    return _attach_staged(fun, tensors)


class _CapturedError(Exception):
    """Eagerly, only something that a function closes over can make its outputs traced when its inputs are not."""


def _attach(
    call: Callable[..., tuple[Sequence[Any], Callable[[], _Residuals]]], args: Sequence[Any]
) -> tuple[Any, ...]:
    """The outputs of `call(*args) -> (outputs, residuals)`, whose gradient is what the rule in `residuals()` says."""

    @jax.custom_vjp
    def run(*args: Any) -> tuple[Any, ...]:
        return tuple(call(*args)[0])

    def forward(*args: Any) -> tuple[tuple[Any, ...], _Residuals]:
        outputs, residuals = call(*args)
        found = residuals()
        return _carry(found, outputs, args) if is_recording() else tuple(outputs), found

    run.defvjp(forward, _backward)
    if not _is_forward.value:
        return run(*args)

    @jax.custom_jvp
    def both_ways(*args: Any) -> tuple[Any, ...]:
        return run(*args)

    @both_ways.defjvp
    def derivative(args: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        outputs, residuals = call(*args)
        found = residuals()
        return jax.jvp(lambda *args: _carry(found, outputs, args), args, tangents)

    return both_ways(*args)


# Whether `jvp` is at work: a custom_vjp has no forward mode. JAX keeps what it traced there apart from what it traced
# elsewhere.
_is_forward = jax.make_user_context(False)  # type: ignore[no-untyped-call]


def _backward(residuals: _Residuals, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        # The cotangent of an integer output has the dtype float0, which holds no numbers. One that somebody gives to a
        # pullback may be a number of Python.
        arriving = [each for each in cotangents if getattr(each, "dtype", None) != jax.dtypes.float0]
        return tuple(residuals.pull([*map(asarray, arriving)]))
    except jax.errors.UnexpectedTracerError as error:
        raise errors.unserved_variables("jax", "(where only the rule reads it)") from error


def _carry(residuals: _Residuals, outputs: Sequence[Any], args: Sequence[Any]) -> tuple[Any, ...]:
    """`outputs` again, differentiated by the rule.

    JAX differentiates a custom_vjp's forward function plainly when it differentiates again, and its outputs must keep
    the rule there; in both modes, for `jax.hessian` takes the forward derivative of a reverse one. A primitive of its
    own does that, which leaves nothing in a compiled program: a custom_vjp inside a custom_jvp does it too, but for a
    small function JAX (0.10) takes as long to trace that as for all the rest.
    """
    start = len(residuals.values)
    given = (*residuals.values, *outputs, *args)
    return tuple(_carried.bind(*given, rule=residuals.rule, start=start, stop=start + len(outputs)))


def _outputs(*given: Any, rule: Any, start: int, stop: int) -> list[Any]:
    return [*given[start:stop]]


def _derivative(
    given: Sequence[Any], tangents: Sequence[Any], rule: Any, start: int, stop: int
) -> tuple[Sequence[Any], Sequence[Any]]:
    outputs = _carried.bind(*given, rule=rule, start=start, stop=stop)
    nothing = [ad.Zero(jax.typeof(each).to_tangent_aval()) for each in outputs]
    if all(isinstance(each, ad.Zero) for each in tangents[stop:]):
        return outputs, nothing
    args = given[stop:]
    moving = [
        ad.instantiate_zeros(tangent) if _is_floating(like) else numpy.zeros(like.shape, jax.dtypes.float0)  # type: ignore[no-untyped-call]
        for like, tangent in zip(map(jax.typeof, args), tangents[stop:], strict=True)
    ]
    moved = rule.push(given[:start], given[start:stop], moving)
    if moved is None:
        # No linear rule: JAX raises if this is asked for forwards.
        backwards = functools.partial(_backwards(rule, start, stop), *given[:stop])
        try:
            _, moved = jax.jvp(backwards, tuple(args), tuple(moving))
        except TypeError as error:
            if _is_forward.value:
                raise errors.not_linear() from error
            raise
    return outputs, [
        tangent if _is_floating(each) else zero for each, tangent, zero in zip(outputs, moved, nothing, strict=True)
    ]


def _backwards(rule: Any, start: int, stop: int) -> Callable[..., tuple[Any, ...]]:
    @jax.custom_vjp
    def backwards(*given: Any) -> tuple[Any, ...]:
        return given[start:stop]

    def forward(*given: Any) -> tuple[tuple[Any, ...], _Residuals]:
        residuals = _Residuals(given[:start], rule)
        return _carry(residuals, given[start:stop], given[stop:]), residuals

    backwards.defvjp(forward, lambda residuals, cotangents: (*[None] * stop, *_backward(residuals, cotangents)))
    return backwards


def _batched(
    axis: Any, given: Sequence[Any], places: Sequence[int | None], rule: Any, start: int, stop: int
) -> tuple[Sequence[Any], Sequence[int | None]]:
    if all(place is None for place in places):
        return _carried.bind(*given, rule=rule, start=start, stop=stop), [None] * (stop - start)
    # A derivative is batched if anything is, and so must the outputs be.
    moved = [
        batching.bdim_at_front(each, place, axis.size) if place is not None or start <= index < stop else each  # type: ignore[no-untyped-call]
        for index, (each, place) in enumerate(zip(given, places, strict=True))
    ]
    axes = [None if place is None else 0 for place in places]
    rule = _BatchedRule(rule, axis, axes[:start], axes[stop:])
    return _carried.bind(*moved, rule=rule, start=start, stop=stop), [0] * (stop - start)


class _BatchedRule:
    """A rule under vmap, along the first axis of the values and the arguments that have one for it."""

    def __init__(self, rule: Any, axis: Any, values: Sequence[int | None], args: Sequence[int | None]):
        self.rule = rule
        self.batch = functools.partial(
            jax.vmap, axis_name=axis.name, axis_size=axis.size, spmd_axis_name=axis.spmd_name
        )
        self.values = values
        self.args = args

    def __call__(self, values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        gradients: list[Any] = self.batch(self.rule, (self.values, 0))([*values], [*cotangents])
        return [
            namespace.sum(each, 0) if each is not None and axis is None else each
            for each, axis in zip(gradients, self.args, strict=True)
        ]

    def push(self, values: Sequence[Any], outputs: Sequence[Any], tangents: Sequence[Any]) -> Any:
        push = self.batch(self.rule.push, (self.values, 0, self.args))
        return push([*values], [*outputs], [*tangents])


_carried: Any = Primitive("keras_cg")
_carried.multiple_results = True
_carried.def_impl(_outputs)
_carried.def_abstract_eval(_outputs)
ad.primitive_jvps[_carried] = _derivative
batching.fancy_primitive_batchers[_carried] = _batched
mlir.register_lowering(_carried, lambda context, *given, **params: _outputs(*given, **params), cacheable=False)


def _run(fun: Function, *tensors: Any) -> tuple[tuple[Any, ...], Callable[[], _Residuals]]:
    # An array of NumPy's that is differentiated comes here as it was given.
    outputs, pullback = fun(*map(asarray, tensors))
    if any(map(_is_traced, outputs)) and not any(map(_is_traced, tensors)):
        raise _CapturedError
    held, rebuild = pullback.take_apart()
    for each in filter(_is_traced, held):
        namespace.expand_dims(each, 0)  # raises here if it would in the backward pass
    # Made again, it holds the arguments only if the rule wants them.
    rule = _flat(rebuild(held), outputs)

    def residuals() -> _Residuals:
        if is_recording() or _is_forward.value:
            return _Residuals.of(rule, outputs)
        # Eager, first order: the rule itself, which may look at values as Python does.
        return _Residuals((), lambda _, cotangents: rule(cotangents))

    return outputs, residuals


def _attach_staged(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The same where a program is being built, or where `fun` or its rule closes over tracers.

    They become arguments, for custom_vjp differentiates nothing else. So function and rule are traced here, once and
    for all: JAX may ask for the gradient when what they close over is gone.
    """
    traced = _trace(fun, tensors, None)
    if traced.rule is None:
        traced = _trace(fun, tensors, traced.captured)
    jaxpr, stop = traced.jaxpr, traced.outputs
    rule: Callable[[], _TracedRule] = traced.rule  # type: ignore[assignment]
    fixed = [None if _is_traced(each) else each for each in traced.consts]
    hoisted = [each for each in traced.consts if _is_traced(each)]
    start, served = len(hoisted), [_place(each, hoisted) for each in traced.variables]
    if traced.refusal is not None:
        for place in [_place(each, hoisted) for each in traced.captured]:
            hoisted[place] = _guarded(hoisted[place], str(traced.refusal))

    def call(*args: Any) -> tuple[Sequence[Any], Callable[[], _Residuals]]:
        values = iter(args[:start])
        consts = [next(values) if each is None else each for each in fixed]
        found = jax.core.eval_jaxpr(jaxpr, consts, *args[start:])
        return found[:stop], lambda: _Residuals(found[stop:], rule().after(start, served))

    return _attach(call, (*hoisted, *tensors))


class _Traced(NamedTuple):
    """A function and its rule as one jaxpr, whose constants are what they close over.

    It gives the `outputs`, so many, and then what `rule()` uses of the forward run. Without `rule` it gives the
    outputs alone: the rule wants `variables`, which are not known yet. `captured` is what the outputs depend on
    besides the arguments, and `refusal` what a rule without `variables` says to its being differentiated.
    """

    jaxpr: Any
    consts: Sequence[Any]
    outputs: int
    rule: Callable[[], _TracedRule] | None
    captured: Sequence[Any]
    refusal: errors.CapturedVariableError | None
    variables: Sequence[Any]


def _trace(fun: Function, tensors: Sequence[Any], variables: Sequence[Any] | None) -> _Traced:
    # Not the pullback: what it holds of the trace must not outlive it.
    kept: list[Any] = []

    def whole(*tensors: Any) -> list[Any]:
        outputs, pullback = fun(*tensors)
        kept[:] = len(outputs), None, _refusal(pullback)
        if variables is None and pullback.takes_variables():
            return [*outputs]
        try:
            residuals = _Residuals.of(_flat(pullback, outputs, variables or ()), outputs)
        except Exception as error:
            # It is to be raised when the gradient is asked for.
            kept[1] = functools.partial(_raise, error)
            return [*outputs]
        rule = residuals.rule
        kept[1] = lambda: rule
        return [*outputs, *residuals.values]

    jaxpr, consts = _jaxpr(whole, tensors)
    count, rule, refusal = kept
    hoisted = [(each, variable) for each, variable in zip(consts, jaxpr.constvars, strict=True) if _is_traced(each)]
    read = _read(jaxpr, jaxpr.outvars[:count]) if hoisted else ()
    captured = [each for each, variable in hoisted if variable in read]
    return _Traced(jaxpr, consts, count, rule, captured, refusal, variables or ())


def _jaxpr(fun: Callable[..., Sequence[Any]], examples: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """What `fun` does with values such as these, and what it closes over."""
    # Not make_jaxpr, which is a jit around this: for a small function JAX (0.10) takes three times as long for that.
    wrapped = linear_util.wrap_init(fun, debug_info=_DESCRIPTION)
    jaxpr, _, consts = trace_to_jaxpr_dynamic(wrapped, [jax.typeof(each) for each in examples])
    return jaxpr, consts


# What JAX's own messages say of what is traced here; its arguments have no names.
_DESCRIPTION = DebugInfo("keras_cg.custom_gradient", "with a gradient of its own", None, None)


def _raise(error: Exception) -> _TracedRule:
    raise error


def _refusal(pullback: Pullback) -> errors.CapturedVariableError | None:
    try:
        pullback.capture(["(a value that JAX differentiates)"])
    except errors.CapturedVariableError as error:
        return error.with_traceback(None)
    return None


def _read(jaxpr: Any, outputs: Sequence[Any]) -> set[Any]:
    """The variables through which `outputs` can be differentiated."""
    read = set(filter(_is_variable, outputs))
    for equation in reversed(jaxpr.eqns):
        if equation.primitive.name != "stop_gradient" and not read.isdisjoint(equation.outvars):
            read.update(filter(_is_variable, equation.invars))
    return read


def _is_variable(each: Any) -> bool:
    return not isinstance(each, Literal) and _is_floating(each.aval)


def _place(value: Any, values: Sequence[Any]) -> int:
    return next(place for place, each in enumerate(values) if each is value)


def _guarded(value: Any, refusal: str) -> Any:
    """A value that `fun` reads and that is not among its arguments: nobody may differentiate it."""

    @jax.custom_vjp
    def guard(value: Any) -> Any:
        return value

    def forward(value: Any) -> tuple[Any, None]:
        raise errors.CapturedVariableError(refusal)

    guard.defvjp(forward, lambda _, cotangent: (cotangent,))
    return guard(value)


_Rule = Callable[[Sequence[Any]], list[Any]]


def _flat(pullback: Pullback, outputs: Sequence[Any], variables: Sequence[Any] = ()) -> _Rule:
    """The rule, in JAX's convention for complex numbers, from one cotangent for each floating output."""
    floating = [_is_floating(each) for each in outputs]

    def rule(cotangents: Sequence[Any]) -> list[Any]:
        arriving = map(_conjugate, cotangents)
        gradients, others = pullback([next(arriving) if real else None for real in floating], variables)
        return [None if each is None else _conjugate(each) for each in (*gradients, *others)]

    return rule


@jax.tree_util.register_pytree_node_class
class _Residuals:
    """What the backward pass needs: the values that the rule uses, and the rule as a function of them."""

    def __init__(self, values: Sequence[Any], rule: Any):
        self.values = values
        self.rule = rule

    @classmethod
    def of(cls, rule: _Rule, outputs: Sequence[Any]) -> _Residuals:
        """The rule as a jaxpr, whose constants are exactly what it uses of the forward run."""
        places: list[int | None] = []

        def present(*cotangents: Any) -> list[Any]:
            gradients = rule(cotangents)
            count = itertools.count()
            places[:] = [None if each is None else next(count) for each in gradients]
            return [each for each in gradients if each is not None]

        jaxpr, consts = _jaxpr(present, [*filter(_is_floating, outputs)])
        return cls(consts, _TracedRule(jaxpr, places))

    def pull(self, cotangents: Sequence[Any]) -> list[Any]:
        gradients: list[Any] = self.rule(self.values, cotangents)
        return gradients

    def tree_flatten(self) -> tuple[Sequence[Any], Any]:
        return self.values, self.rule

    @classmethod
    def tree_unflatten(cls, rule: Any, values: Sequence[Any]) -> _Residuals:
        return cls(values, rule)


class _TracedRule:
    """A rule as a jaxpr; and at which place that gives the gradient of each argument, None where it does not."""

    def __init__(self, jaxpr: Any, places: Sequence[int | None]):
        self.jaxpr = jaxpr
        self.places = places

    def after(self, count: int, others: Sequence[int]) -> _TracedRule:
        """The same for `count` arguments more, which come first; the last gradients are those of `others` of them."""
        own = len(self.places) - len(others)
        found = dict(zip(others, self.places[own:], strict=True))
        return _TracedRule(self.jaxpr, [*map(found.get, range(count)), *self.places[:own]])

    def __call__(self, values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        found = jax.core.eval_jaxpr(self.jaxpr, values, *cotangents)
        return [None if place is None else found[place] for place in self.places]

    def push(self, values: Sequence[Any], outputs: Sequence[Any], tangents: Sequence[Any]) -> list[Any] | None:
        """The tangents of the outputs, by the transpose of a linear rule; None for any other."""
        if not _is_linear(self.jaxpr):
            return None
        placed = dict(zip(self.places, tangents, strict=True))
        moving = [placed[place] for place in range(len(self.jaxpr.outvars))]
        pull = functools.partial(jax.core.eval_jaxpr, self.jaxpr, values)
        pushed = iter(jax.linear_transpose(pull, *filter(_is_floating, outputs))(moving))
        return [next(pushed) if _is_floating(each) else None for each in outputs]


# Linear in all operands together, and in one of them. An index or a condition is no operand.
_SUMS = frozenset(
    "add add_any broadcast_in_dim complex concatenate conj convert_element_type copy copy_p cumsum dynamic_slice"  # noqa: SIM905 - as a list it would fill a screen
    " dynamic_update_slice expand_dims fft gather imag neg pad real reduce_precision reduce_sum reshape rev scatter"
    " scatter-add select_n slice split squeeze sub transpose".split()
)
_PRODUCTS = frozenset(["mul", "dot_general", "conv_general_dilated"])


def _is_linear(jaxpr: Any) -> bool:
    """Whether every output is surely a linear map of the inputs; JAX's own transposition drops constants silently."""
    return all(kind in ("linear", "zero") for kind in _kinds(jaxpr, ["linear"] * len(jaxpr.invars)))


def _kinds(jaxpr: Any, inputs: Sequence[str]) -> list[str]:
    """What each output is: "linear" in the inputs that are, "zero", a "constant", or "unknown"."""
    kinds: dict[Any, str] = dict(zip(jaxpr.invars, inputs, strict=True))

    def kind(operand: Any) -> str:
        if isinstance(operand, Literal):
            return "constant" if operand.val else "zero"
        found = kinds.get(operand, "constant")
        # What has no elements has none that is not zero.
        return "zero" if found == "constant" and 0 in getattr(operand.aval, "shape", ()) else found

    for equation in jaxpr.eqns:
        operands = [kind(each) for each in equation.invars]
        if equation.primitive.name == "jit":
            found = _kinds(equation.params["jaxpr"].jaxpr, operands)
        else:
            found = [_kind(equation, operands)] * len(equation.outvars)
        kinds.update(zip(equation.outvars, found, strict=True))
    return [kind(each) for each in jaxpr.outvars]


def _kind(equation: Any, operands: list[str]) -> str:
    name = equation.primitive.name
    if name in _SUMS and set(operands) == {"zero"}:
        return "zero"
    if not {"linear", "unknown"}.intersection(operands):
        return "zero" if name in _PRODUCTS and "zero" in operands else "constant"
    if "unknown" in operands or not all(_is_floating(each.aval) for each in equation.outvars):
        return "unknown"
    numbers = [kind for kind, each in zip(operands, equation.invars, strict=True) if _is_floating(each.aval)]
    if name in _SUMS:
        return "unknown" if "constant" in numbers else "linear"
    if name in _PRODUCTS or (name == "div" and operands[0] == "linear"):
        return "linear" if numbers.count("linear") == 1 else "unknown"
    return "unknown"


def _is_traced(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)


def _is_floating(value: Any) -> bool:
    return _is_inexact(value.dtype)


@functools.cache
def _is_inexact(dtype: Any) -> bool:
    return bool(namespace.issubdtype(dtype, namespace.inexact))


def _conjugate(tensor: Any) -> Any:
    # JAX's gradient of a real loss at x + iy is dL/dx - i dL/dy.
    return namespace.conj(tensor) if tensor.dtype.kind == "c" else tensor


def vjp(
    fun: PlainFunction, tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], Callable[[Sequence[Any]], tuple[Any, ...]], tuple[Any, ...]]:
    outputs, back, aux = jax.vjp(fun, *tensors, has_aux=True)

    def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(_conjugate(each) for each in back(tuple(_conjugate(each) for each in cotangents)))

    return outputs, pullback, aux


def jvp(
    fun: PlainFunction, tensors: Sequence[Any], tangents: Sequence[Any]
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    try:
        with _is_forward(True):
            return jax.jvp(fun, tuple(tensors), tuple(tangents), has_aux=True)
    except TypeError as error:
        if "custom_vjp" in str(error):
            raise errors.no_forward_mode() from error
        raise


def jacobian(
    fun: PlainFunction, tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], tuple[tuple[Any, ...], ...], tuple[Any, ...]]:
    outputs, pull, aux = jax.vjp(fun, *tensors, has_aux=True)
    zeros = [namespace.zeros_like(each) for each in outputs]

    def rows(place: int, output: Any) -> tuple[Any, ...]:
        basis = namespace.eye(output.size, dtype=output.dtype).reshape((output.size, *output.shape))
        found = jax.vmap(lambda each: pull((*zeros[:place], each, *zeros[place + 1 :])))(basis)
        return tuple(each.reshape((*output.shape, *tensor.shape)) for each, tensor in zip(found, tensors, strict=True))

    return outputs, tuple(rows(place, output) for place, output in enumerate(outputs)), aux


def recompute(fun: Callable[..., tuple[Any, ...]], tensors: Sequence[Any]) -> tuple[Any, ...]:
    return jax.checkpoint(fun)(*tensors)  # type: ignore[no-any-return]


def compiled(fun: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]] | None:
    return jax.jit(fun)


def double_precision() -> contextlib.AbstractContextManager[Any]:
    return jax.enable_x64(True)  # type: ignore[no-any-return]


def devices() -> tuple[str, ...]:
    return tuple(map(str, jax.devices()))
