"""Functions of NumPy arrays on JAX: called at once, or by a primitive of the program that JAX traces.

The primitive is not `jax.pure_callback` itself, because that raises under a derivative: JAX runs a function on JVP
tracers first, and attaches the rule to the outputs afterwards.
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
from keras_cg.backends.jax.tensors import dtype, is_floating, is_known, shape
from keras_cg.recipes.callback.host import Host, Kind


def call(host: Host, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Calls a function of NumPy arrays at once, or adds a primitive to the program that JAX traces."""
    function = host.function()
    if not is_staging() and is_known(tensors):
        # Not by a program, because an exception would lose its type there.
        return tuple(map(namespace.asarray, function.run([*map(numpy.asarray, tensors)], host.arguments)))
    promised = function.results([Kind(shape(tensor), dtype(tensor)) for tensor in tensors], host.arguments)
    # JAX has no float64 without its switch, and does not check the dtype that a callback promises.
    kinds = tuple(Kind(kind.shape, str(jax.dtypes.canonicalize_dtype(kind.dtype))) for kind in promised)
    outputs = _host.bind(*tensors, function=function, count=host.arguments, kinds=kinds)
    if jax.sharding.get_abstract_mesh().manual_axes:
        outputs = _vary(outputs, tensors)
    return tuple(outputs)


def _vary(outputs: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    """Marks the outputs as varying between the devices of a shard_map, if the tensors vary.

    A callback (JAX 0.10) counts as equal on all devices, and one device's part would count as the whole. An
    operation with the tensors marks them, because the type of the marks differs between releases of JAX.
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


def _derivative(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Returns NaN as the derivative, because the rule replaces it: where it does not, a wrong number must not pass."""
    outputs = _host.bind(*primals, **params)
    sums = [namespace.sum(namespace.real(each)) for each in tangents if not isinstance(each, ad.Zero)]
    nan = math.nan * sum(each.astype(numpy.float32) for each in sums)
    return outputs, [
        namespace.broadcast_to(nan, output.shape).astype(output.dtype)
        if is_floating(output)
        else ad.Zero(jax.typeof(output).to_tangent_aval())
        for output in outputs
    ]


def _batched(inputs: Sequence[Any], places: Sequence[Any], **params: Any) -> tuple[Sequence[Any], Sequence[int]]:
    """Calls the function once for each element, because it need not know an additional axis."""
    batched = [index for index, place in enumerate(places) if place is not None]

    def one(parts: Sequence[Any]) -> list[Any]:
        values = dict(enumerate(inputs)) | dict(zip(batched, parts, strict=True))
        return _host.bind(*values.values(), **params)  # type: ignore[no-any-return]

    outputs = jax.lax.map(one, [namespace.moveaxis(inputs[index], places[index], 0) for index in batched])
    return outputs, [0] * len(outputs)


_host: Any = Primitive("keras_cg_host")
_host.multiple_results = True
_host.def_impl(_callback)
_host.def_abstract_eval(lambda *inputs, kinds, **_: [ShapedArray(*kind) for kind in kinds])
ad.primitive_jvps[_host] = _derivative
batching.primitive_batchers[_host] = _batched
# Without the cache of lowerings, because an entry would keep the function alive.
mlir.register_lowering(_host, mlir.lower_fun(_callback, multiple_results=True), cacheable=False)
