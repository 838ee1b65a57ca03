"""The NumPy backend, on the primitives of HIPS autograd."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import autograd.numpy as namespace
import numpy
from autograd.builtins import DictBox, SequenceBox
from autograd.builtins import tuple as boxed_tuple
from autograd.core import make_vjp
from autograd.extend import Box, defvjp_argnums, primitive, vspace

from keras_cg import errors
from keras_cg.backends import Function, Pullback

__all__ = ["asarray", "attach", "cast", "children", "dtype", "is_tensor", "namespace", "shape", "tensors", "vjp"]

tensors = (numpy.ndarray, Box)


def is_tensor(value: object) -> bool:
    if isinstance(value, Box):
        return not isinstance(value, (SequenceBox, DictBox))
    return isinstance(value, (numpy.ndarray, numpy.generic)) and value.dtype.kind in "biufc"


def asarray(value: Any) -> Any:
    return value if is_tensor(value) else numpy.asarray(value)


def shape(tensor: Any) -> tuple[int | None, ...]:
    return tuple(namespace.shape(tensor))


def dtype(tensor: Any) -> str:
    return str(namespace.result_type(tensor))


def cast(value: Any, dtype: str) -> Any:
    return value.astype(dtype)


def children(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    # autograd differentiates containers as one box, whose parts are boxes again.
    if isinstance(value, SequenceBox):
        return list(value), type(value._value)
    if isinstance(value, DictBox):
        keys = list(value)
        return [value[key] for key in keys], lambda parts: dict(zip(keys, parts, strict=True))
    return None


def attach(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    if not any(isinstance(tensor, Box) for tensor in tensors):
        outputs, pullback = fun(*tensors)
        _capture(outputs, pullback)
        return outputs
    ran: list[tuple[tuple[Any, ...], Pullback]] = []
    levels = {level for tensor in tensors for level in _levels(tensor)}

    @primitive  # type: ignore[untyped-decorator]
    def run(*tensors: Any) -> tuple[Any, ...]:
        outputs, pullback = fun(*map(asarray, tensors))
        _capture(outputs, pullback)
        ran.append((outputs, pullback))
        floating: tuple[Any, ...] = boxed_tuple([each for each in outputs if _is_floating(each)])
        return floating

    def vjps(argnums: Sequence[int], ans: Any, args: Sequence[Any], kwargs: Any) -> Callable[[Any], list[Any]]:
        # Boxed arguments: an outer level differentiates this gradient, so the rule must hang on them.
        again = any(isinstance(arg, Box) for arg in args)
        outer = max((arg._trace for arg in args if isinstance(arg, Box)), default=-1)
        level = min(each for each in levels if each > outer)

        def vjp(upstream: Any) -> list[Any]:
            outputs, pullback = fun(*map(asarray, args)) if again else ran[0]
            arriving = iter(upstream)
            cotangents = [_conjugate(next(arriving)) if _is_floating(each) else None for each in outputs]
            gradients, _ = pullback(cotangents)
            return [
                vspace(args[argnum]).zeros()
                if gradients[argnum] is None
                else _conjugate(_below(gradients[argnum], level))
                for argnum in argnums
            ]

        return vjp

    defvjp_argnums(run, vjps)
    floating = iter(run(*tensors))
    # autograd has no vector space of integers, so they go past it.
    return tuple(next(floating) if _is_floating(each) else each for each in ran[0][0])


def _levels(tensor: Any) -> Iterator[int]:
    """The levels of differentiation that have `tensor` in a box; autograd numbers them from the outside."""
    while isinstance(tensor, Box):
        yield tensor._trace
        tensor = tensor._value


def _below(gradient: Any, level: int) -> Any:
    """A gradient out of the levels that end here: a rule may close over a value that is in their boxes."""
    while isinstance(gradient, Box) and gradient._trace >= level:
        gradient = gradient._value
    return gradient


def _is_floating(tensor: Any) -> bool:
    return bool(numpy.issubdtype(namespace.result_type(tensor), numpy.inexact))


def _capture(outputs: Sequence[Any], pullback: Pullback) -> None:
    # Run on plain arrays, `fun` can only return a box if it closes over one.
    if any(isinstance(output, Box) for output in outputs):
        pullback.capture(["(a value that autograd differentiates)"])
        raise errors.unserved_variables("numpy")


def _conjugate(tensor: Any) -> Any:
    # autograd's gradient of a real loss at x + iy is dL/dx - i dL/dy.
    return namespace.conj(tensor) if namespace.iscomplexobj(tensor) else tensor


def vjp(
    fun: Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]], tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], Callable[[Sequence[Any]], tuple[Any, ...]], tuple[Any, ...]]:
    aux: list[tuple[Any, ...]] = []

    def run(tensors: Any) -> Any:
        outputs, others = fun(*tensors)
        # Out of this level of differentiation, which ends here; an outer one goes on.
        aux.append(tuple(each._value if getattr(each, "_trace", None) == tensors._trace else each for each in others))
        return boxed_tuple(outputs)

    with warnings.catch_warnings():
        # An argument that the output does not depend on gets zeros here, as on every backend.
        warnings.filterwarnings("ignore", "Output seems independent of input")
        back, outputs = make_vjp(run, tuple(tensors))

    def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
        gradients = back(boxed_tuple(tuple(_conjugate(each) for each in cotangents)))
        return tuple(_conjugate(each) for each in gradients)

    return tuple(outputs), pullback, aux[0]
