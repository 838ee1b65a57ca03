"""Derivatives by JAX's own engine, its compiler, its exporter and its devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as namespace

from keras_cg.backends.jax.names import is_only_mapped
from keras_cg.backends.jax.tensors import conjugate
from keras_cg.engine import messages
from keras_cg.engine.contract import PlainFunction, Tensors


def vjp(fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, Callable[[Sequence[Any]], Tensors], Tensors]:
    outputs, back, aux = jax.vjp(fun, *tensors, has_aux=True)

    def pullback(cotangents: Sequence[Any]) -> Tensors:
        return tuple(map(conjugate, back(tuple(map(conjugate, cotangents)))))

    return outputs, pullback, aux


def jvp(fun: PlainFunction, tensors: Sequence[Any], tangents: Sequence[Any]) -> tuple[Tensors, Tensors, Tensors]:
    try:
        return jax.jvp(fun, tuple(tensors), tuple(tangents), has_aux=True)
    except TypeError as error:
        # JAX's message for a custom_vjp function of another library, which has no forward mode.
        if "custom_vjp" in str(error):
            raise messages.no_forward_mode(messages.name_of(fun)) from error
        raise


def jacobian(fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, tuple[Tensors, ...], Tensors]:
    outputs, pull, aux = jax.vjp(fun, *tensors, has_aux=True)
    zeros = [*map(namespace.zeros_like, outputs)]

    def rows(place: int, output: Any) -> Tensors:
        basis = namespace.eye(output.size, dtype=output.dtype).reshape((output.size, *output.shape))
        pulled = jax.vmap(lambda row: pull((*zeros[:place], row, *zeros[place + 1 :])))(basis)
        return tuple(part.reshape((*output.shape, *tensor.shape)) for part, tensor in zip(pulled, tensors, strict=True))

    return outputs, tuple(rows(place, output) for place, output in enumerate(outputs)), aux


def needs_grad(tensors: Sequence[Any]) -> list[bool]:
    # A program may be differentiated later.
    return [not is_only_mapped(tensor) for tensor in tensors]


def exported(fun: Callable[..., Tensors], tensors: Sequence[Any]) -> Callable[..., Tensors] | None:
    return jax.export.export(jax.jit(fun))(*tensors).call


def double_precision() -> contextlib.AbstractContextManager[Any]:
    return jax.enable_x64(True)  # type: ignore[no-any-return]


def devices() -> tuple[str, ...]:
    return tuple(map(str, jax.devices()))
