"""Functions of NumPy arrays: called at once, or by the program that is being built."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as namespace
import numpy

from keras_cg.backends.jax.names import is_staging
from keras_cg.backends.jax.tensors import dtype, is_floating, is_traced, shape
from keras_cg.engine.host import Host, Kind


def host(call: Host, tensors: Sequence[Any]) -> tuple[Any, ...]:
    function, count = call.function(), call.given
    if not is_staging() and not any(map(is_traced, tensors)):
        # Called by a program, an exception would lose its type.
        return tuple(map(namespace.asarray, function.run([*map(numpy.asarray, tensors)], count)))
    promised = function.results([Kind(shape(tensor), dtype(tensor)) for tensor in tensors], count)
    # JAX has no float64 unless it is told to, and then takes what a program promises at its word.
    kinds: list[Any] = [
        jax.ShapeDtypeStruct(kind.shape, jax.dtypes.canonicalize_dtype(kind.dtype))  # type: ignore[no-untyped-call]
        for kind in promised
    ]

    def run(*arrays: Any) -> tuple[numpy.ndarray, ...]:
        results = function.run([*map(numpy.asarray, arrays)], count)
        return tuple(array.astype(kind.dtype) for array, kind in zip(results, kinds, strict=True))

    # JAX runs a function on values that an outer derivative moves, and then gives the outputs their rule.
    # `pure_callback` would raise there, so it has a derivative, which nobody uses; whoever did would get NaN, not zero.
    @jax.custom_jvp
    def called(*tensors: Any) -> tuple[Any, ...]:
        # One element of a batch after the other: nobody knows what the function does along axes it does not expect.
        return tuple(jax.pure_callback(run, tuple(kinds), *tensors, vmap_method="sequential"))

    @called.defjvp
    def derivative(tensors: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        outputs = called(*tensors)
        moves = [tangent for tangent in tangents if tangent.dtype != jax.dtypes.float0]
        move = math.nan * sum(namespace.sum(namespace.real(each)).astype(numpy.float32) for each in moves)
        return outputs, tuple(_along(output, move) for output in outputs)

    return called(*tensors)


def _along(output: Any, move: Any) -> Any:
    """A tangent of an output; an integer has none that holds numbers."""
    if not is_floating(output):
        return numpy.zeros(output.shape, jax.dtypes.float0)
    return namespace.broadcast_to(move, output.shape).astype(output.dtype)
