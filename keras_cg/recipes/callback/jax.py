"""Functions of NumPy arrays: called at once, or by the program that is being built.

There they are a primitive, and not `jax.pure_callback` itself, which raises where it is differentiated: JAX runs a
function on values that an outer derivative moves, and then gives the outputs their rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as namespace
import numpy
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from keras_cg.backends.jax.names import ShapedArray, is_staging
from keras_cg.backends.jax.tensors import dtype, is_floating, is_traced, shape
from keras_cg.recipes.callback.host import Host, Kind


def call(host: Host, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The results of a function of NumPy arrays: at once, or by a primitive of the program that is built."""
    function = host.function()
    if not is_staging() and not any(map(is_traced, tensors)):
        # Called by a program, an exception would lose its type.
        return tuple(map(namespace.asarray, function.run([*map(numpy.asarray, tensors)], host.given)))
    promised = function.results([Kind(shape(tensor), dtype(tensor)) for tensor in tensors], host.given)
    # JAX has no float64 unless it is told to, and then takes what a program promises at its word.
    kinds = tuple(Kind(kind.shape, str(jax.dtypes.canonicalize_dtype(kind.dtype))) for kind in promised)
    outputs = _host.bind(*tensors, function=function, count=host.given, kinds=kinds)
    if jax.sharding.get_abstract_mesh().manual_axes:
        outputs = _differing(outputs, tensors)
    return tuple(outputs)


def _differing(outputs: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    """The outputs, of which JAX knows that they differ between the devices of a shard_map, if the tensors do.

    A callback does not say so (JAX 0.10), and would pass for equal on all of them: one device's part would be the
    whole. What every operation of JAX says of its results is the same in all releases, the type that it stands in not.
    """
    nothing = sum(namespace.sum(namespace.ravel(tensor)[:0].astype(bool)) for tensor in tensors)
    return [namespace.where(nothing == 0, output, output) for output in outputs]


def _callback(*tensors: Any, function: Any, count: int, kinds: Sequence[Kind]) -> list[Any]:
    def run(*arrays: Any) -> list[numpy.ndarray]:
        results = function.run([*map(numpy.asarray, arrays)], count)
        return [array.astype(kind.dtype) for array, kind in zip(results, kinds, strict=True)]

    return [*jax.pure_callback(run, [*map(_description, kinds)], *tensors)]


def _description(kind: Kind) -> Any:
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype)  # type: ignore[no-untyped-call]


def _derivative(given: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Nobody uses it, for the rule is another one; whoever did would get NaN, and not zero."""
    outputs = _host.bind(*given, **params)
    moves = [namespace.sum(namespace.real(each)) for each in tangents if not isinstance(each, ad.Zero)]
    move = math.nan * sum(each.astype(numpy.float32) for each in moves)
    return outputs, [
        namespace.broadcast_to(move, output.shape).astype(output.dtype)
        if is_floating(output)
        else ad.Zero(jax.typeof(output).to_tangent_aval())
        for output in outputs
    ]


def _batched(given: Sequence[Any], places: Sequence[Any], **params: Any) -> tuple[Sequence[Any], Sequence[int]]:
    """One element after another: nobody knows what the function does along axes that it does not expect."""
    moving = [index for index, place in enumerate(places) if place is not None]

    def one(parts: Sequence[Any]) -> list[Any]:
        values = dict(enumerate(given)) | dict(zip(moving, parts, strict=True))
        return _host.bind(*values.values(), **params)  # type: ignore[no-any-return]

    outputs = jax.lax.map(one, [namespace.moveaxis(given[index], places[index], 0) for index in moving])
    return outputs, [0] * len(outputs)


_host: Any = Primitive("keras_cg_host")
_host.multiple_results = True
_host.def_impl(_callback)
_host.def_abstract_eval(lambda *given, kinds, **_: [ShapedArray(*kind) for kind in kinds])
ad.primitive_jvps[_host] = _derivative
batching.primitive_batchers[_host] = _batched
# A lowering that JAX keeps would keep the function.
mlir.register_lowering(_host, mlir.lower_fun(_callback, multiple_results=True), cacheable=False)
