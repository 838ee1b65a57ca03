"""The JAX backend, on `jax.custom_vjp`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as namespace
import numpy

from keras_cg import errors
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
    if not any(isinstance(tensor, jax.core.Tracer) for tensor in tensors):
        outputs, _ = fun(*tensors)
        if not any(isinstance(output, jax.core.Tracer) for output in outputs):
            return outputs

    @jax.custom_vjp
    def run(*tensors: Any) -> tuple[Any, ...]:
        return fun(*tensors)[0]

    def forward(*tensors: Any) -> tuple[tuple[Any, ...], _Residuals]:
        outputs, pullback = fun(*tensors)
        residuals = _Residuals.of(pullback, outputs, tensors)
        # JAX differentiates this function plainly when it differentiates again. The output must keep its rule there;
        # where nobody does, the compiler finds that both runs are the same.
        if any(isinstance(tensor, jax.core.Tracer) for tensor in tensors):
            outputs = run(*tensors)
        return outputs, residuals

    def backward(residuals: _Residuals, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        gradients = residuals.pull([_arriving(each) for each in cotangents])
        return tuple(None if each is None else _conjugate(each) for each in gradients)

    run.defvjp(forward, backward)
    try:
        return run(*tensors)
    except jax.errors.UnexpectedTracerError as error:
        # A closed-over value that an enclosing grad differentiates is unexpected inside a custom_vjp.
        raise errors.unserved_variables("jax") from error


@jax.tree_util.register_pytree_node_class
class _Residuals:
    """What the backward pass needs: the values that the rule uses, and the rule as a function of them."""

    def __init__(self, values: Sequence[Any], rule: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]):
        self.values = values
        self.rule = rule

    @classmethod
    def of(cls, pullback: Pullback, outputs: Sequence[Any], tensors: Sequence[Any]) -> _Residuals:
        if not any(isinstance(value, jax.core.Tracer) for value in (*outputs, *tensors)):
            # Eager, first order: the rule itself, which may look at values as Python does.
            return cls((), lambda _, cotangents: pullback(cotangents)[0])
        # Traced: the rule as a jaxpr, whose constants are exactly what it uses of the forward run.
        floating = [namespace.issubdtype(each.dtype, namespace.inexact) for each in outputs]
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
