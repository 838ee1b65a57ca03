"""The JAX backend, on `jax.custom_vjp`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as namespace
import numpy
from jax.custom_derivatives import SymbolicZero

from keras_cg.backends import Function, Pullback

__all__ = ["asarray", "attach", "cast", "children", "dtype", "is_tensor", "namespace", "shape", "tensors", "vjp"]

tensors = (jax.Array, jax.core.Tracer)


def is_tensor(value: object) -> bool:
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return namespace.issubdtype(value.dtype, numpy.number) or value.dtype == bool
    return isinstance(value, jax.Array)


def asarray(value: Any) -> Any:
    return namespace.asarray(value)


def shape(tensor: Any) -> tuple[int | None, ...]:
    return tuple(tensor.shape)


def dtype(tensor: Any) -> str:
    return str(tensor.dtype)


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


def attach(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    if not any(map(_is_traced, tensors)):
        outputs, _ = fun(*tensors)
        if not any(map(_is_traced, outputs)):
            return outputs
    elif not _is_staging():
        try:
            return _attach(fun, tensors)
        except (jax.errors.UnexpectedTracerError, _CapturedError):
            # `fun` closes over a value that is being differentiated: by the same transform as an argument, which is
            # unexpected inside a custom_vjp, or by an outer one, which would go past the rule.
            pass
    return _attach_with_captured(fun, tensors)


class _CapturedError(Exception):
    """Eagerly, only something that a function closes over can make its outputs traced when its inputs are not."""


def _is_staging() -> bool:
    """Whether a jit, or what works like one, is building a program around this call."""
    return _is_traced(namespace.zeros(()))


def _attach(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    @jax.custom_vjp
    def run(*tensors: Any) -> tuple[Any, ...]:
        return fun(*tensors)[0]

    def forward(*tensors: Any) -> tuple[tuple[Any, ...], _Residuals]:
        outputs, pullback = fun(*tensors)
        if any(map(_is_traced, outputs)) and not any(map(_is_traced, tensors)):
            raise _CapturedError
        residuals = _Residuals.of(pullback, outputs, tensors)
        # JAX differentiates this function plainly when it differentiates again. The output must keep its rule there;
        # where nobody does, the compiler finds that both runs are the same.
        if any(map(_is_traced, tensors)):
            outputs = run(*tensors)
        return outputs, residuals

    def backward(residuals: _Residuals, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        gradients = residuals.pull([_arriving(each) for each in cotangents])
        return tuple(None if each is None else _conjugate(each) for each in gradients)

    run.defvjp(forward, backward)
    return run(*tensors)


def _attach_with_captured(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The same where `fun` may close over tracers: they become arguments, for custom_vjp differentiates nothing else.

    Function and rule are traced here, once and for all, since a custom_vjp may be traced again when what they close
    over is gone. The backward pass computes what the rule uses anew; compiled, that is found to be the same.
    """
    pullbacks: list[Pullback] = []

    def outputs_of(*tensors: Any) -> tuple[Any, ...]:
        outputs, pullback = fun(*tensors)
        pullbacks.append(pullback)
        return outputs

    forward_jaxpr = jax.make_jaxpr(outputs_of)(*tensors)
    captured = [
        each
        for each, variable in zip(forward_jaxpr.consts, forward_jaxpr.jaxpr.constvars, strict=True)
        if _is_traced(each) and _is_floating(each) and not _is_stopped(forward_jaxpr.jaxpr, variable)
    ]
    if not any(map(_is_traced, forward_jaxpr.consts)):
        return _attach(fun, tensors)
    pullback = pullbacks[0]
    variables = captured if pullback.takes_variables() else []
    absent: list[bool] = []

    def gradients_of(tensors: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        arriving = iter(cotangents)
        given = [_conjugate(next(arriving)) if _is_floating(each) else None for each in forward_jaxpr.out_avals]
        gradients, others = fun(*tensors)[1](given, variables)
        absent[:] = [each is None for each in (*gradients, *others)]
        return [_conjugate(each) for each in (*gradients, *others) if each is not None]

    arriving = [each for each in forward_jaxpr.out_avals if _is_floating(each)]
    backward_jaxpr = jax.make_jaxpr(gradients_of)(tuple(tensors), arriving)
    hoisted = {id(each): each for each in (*forward_jaxpr.consts, *backward_jaxpr.consts) if _is_traced(each)}

    def evaluate(closed: Any, values: dict[int, Any], *arguments: Any) -> list[Any]:
        consts = [values.get(id(each), each) for each in closed.consts]
        return jax.core.eval_jaxpr(closed.jaxpr, consts, *arguments)

    @jax.custom_vjp
    def run(values: dict[int, Any], tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(evaluate(forward_jaxpr, values, *tensors))

    def forward(values: dict[int, Any], tensors: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        if not variables and any(values[id(each)].perturbed for each in captured):
            pullback.capture(["(a value that JAX differentiates)"])
        given = {key: each.value for key, each in values.items()}, tuple(each.value for each in tensors)
        return run(*given), given

    def backward(residuals: Any, cotangents: tuple[Any, ...]) -> tuple[dict[int, Any], tuple[Any, ...]]:
        values, tensors = residuals
        arriving = [
            namespace.zeros(each.shape, each.dtype) if isinstance(each, SymbolicZero) else each
            for each, kind in zip(cotangents, forward_jaxpr.out_avals, strict=True)
            if _is_floating(kind)
        ]
        found = iter(evaluate(backward_jaxpr, values, *tensors, *arriving))
        gradients = [None if missing else next(found) for missing in absent]
        others = {id(each): other for each, other in zip(variables, gradients[len(tensors) :], strict=True)}
        return {key: others.get(key) for key in values}, tuple(gradients[: len(tensors)])

    run.defvjp(forward, backward, symbolic_zeros=True)
    return run(hoisted, tuple(tensors))


@jax.tree_util.register_pytree_node_class
class _Residuals:
    """What the backward pass needs: the values that the rule uses, and the rule as a function of them."""

    def __init__(self, values: Sequence[Any], rule: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]):
        self.values = values
        self.rule = rule

    @classmethod
    def of(cls, pullback: Pullback, outputs: Sequence[Any], tensors: Sequence[Any]) -> _Residuals:
        if not any(map(_is_traced, (*outputs, *tensors))):
            # Eager, first order: the rule itself, which may look at values as Python does.
            return cls((), lambda _, cotangents: pullback(cotangents)[0])
        # Traced: the rule as a jaxpr, whose constants are exactly what it uses of the forward run.
        floating = [_is_floating(each) for each in outputs]
        absent: list[bool] = []

        def traced(*cotangents: Any) -> list[Any]:
            given = iter(cotangents)
            gradients, _ = pullback([next(given) if real else None for real in floating])
            absent[:] = [each is None for each in gradients]
            return [each for each in gradients if each is not None]

        closed = jax.make_jaxpr(traced)(*[each for each, real in zip(outputs, floating, strict=True) if real])

        def rule(values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            found = iter(jax.core.eval_jaxpr(closed.jaxpr, values, *[each for each in cotangents if each is not None]))
            return [None if missing else next(found) for missing in absent]

        return cls(closed.consts, rule)

    def pull(self, cotangents: Sequence[Any]) -> Sequence[Any]:
        return self.rule(self.values, cotangents)

    def tree_flatten(self) -> tuple[Sequence[Any], Any]:
        return self.values, self.rule

    @classmethod
    def tree_unflatten(cls, rule: Any, values: Sequence[Any]) -> _Residuals:
        return cls(values, rule)


def _is_stopped(jaxpr: Any, variable: Any) -> bool:
    """Whether nothing but `stop_gradient` reads a variable."""
    readers = [each.primitive.name for each in jaxpr.eqns if any(read is variable for read in each.invars)]
    return set(readers) == {"stop_gradient"} and not any(each is variable for each in jaxpr.outvars)


def _is_traced(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)


def _is_floating(value: Any) -> bool:
    return bool(namespace.issubdtype(value.dtype, namespace.inexact))


def _arriving(cotangent: Any) -> Any:
    # The cotangent of an integer output has the dtype float0, which holds no numbers.
    return None if cotangent.dtype == jax.dtypes.float0 else _conjugate(cotangent)


def _conjugate(tensor: Any) -> Any:
    # JAX's gradient of a real loss at x + iy is dL/dx - i dL/dy.
    return namespace.conj(tensor) if namespace.iscomplexobj(tensor) else tensor


def vjp(
    fun: Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]], tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], Callable[[Sequence[Any]], tuple[Any, ...]], tuple[Any, ...]]:
    outputs, back, aux = jax.vjp(fun, *tensors, has_aux=True)

    def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(_conjugate(each) for each in back(tuple(_conjugate(each) for each in cotangents)))

    return outputs, pullback, aux
