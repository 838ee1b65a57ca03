"""Tries whether a rule is linear in upstream: only then is its transpose the forward derivative."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from keras_cg.engine import precision
from keras_cg.engine.contract import Backend

# From tensors to tensors.
_Map = Callable[[Sequence[Any]], Sequence[Any]]


def sizes(dtypes: Sequence[str]) -> list[float]:
    """The huge and tiny sizes of upstream at which a rule is tried, for outputs of these dtypes."""
    reach = min([precision.of(dtype).reach for dtype in dtypes] or [0])
    return [2.0**power for power in (reach, reach // 2, -reach // 2, -reach)]


def conditions(backend: Backend, pull: _Map, cotangents: Sequence[Any]) -> list[Any]:
    """Returns boolean tensors that all hold if `pull` is linear, as far as trying can tell.

    `pull` maps floating tensors with the shapes and dtypes of `cotangents` to gradients. It is called with zero, with a
    difference of two directions, and with one direction times s, tiny or huge and of either sign. A linear map returns
    zero, the difference, and s times the gradient of the direction. Values that are not finite are skipped, because a
    linear rule overflows, too. Every s is a power of two, by which floating numbers are multiplied without rounding.
    The difference may be off by what large terms lose that cancel inside.
    """
    kinds = [backend.dtype(tensor) for tensor in cotangents]
    scales = sizes(kinds)
    directions = [(_uneven(backend, tensor, 1.0, 0.0), _uneven(backend, tensor, 0.3, 0.5)) for tensor in cotangents]

    def pulled(scale: float, further: float) -> Sequence[Any]:
        return pull([scale * one + further * two for one, two in directions])

    # NumPy warns of overflow, which a linear rule may have, too.
    with numpy.errstate(all="ignore"):
        first, second, both = pulled(1.0, 0.0), pulled(0.0, 1.0), pulled(1.0, -2.0)
        lost = _rounding(backend, pull, [one for one, _ in directions], first)
        further = _rounding(backend, pull, [two for _, two in directions], second)
        found = [
            _is_close(backend, came, a - 2.0 * b, kinds, rounding + other)
            for came, a, b, rounding, other in zip(both, first, second, lost, further, strict=True)
        ]
        for scale in (0.0, *(sign * scale for scale in scales for sign in (1, -1))):
            pulls = zip(pulled(scale, 0.0), first, strict=True)
            found += [_is_close(backend, came, scale * gradient, kinds) for came, gradient in pulls]
        return found


def multiplies(backend: Backend, pull: _Map, cotangents: Sequence[Any]) -> list[Any]:
    """Returns boolean tensors that all hold if `pull` maps a huge, negative multiple to that multiple.

    It is a smaller trial than `conditions`, for a map that is called at each backward pass.
    """
    kinds = [backend.dtype(tensor) for tensor in cotangents]
    scale, along = -sizes(kinds)[0], irregular(backend, cotangents)
    # NumPy warns of overflow. Dynamo (torch 2.13) traces no context of NumPy.
    with contextlib.nullcontext() if backend.is_compiling() else numpy.errstate(all="ignore"):
        pairs = zip(pull([scale * each for each in along]), pull(along), strict=True)
        return [_is_close(backend, came, scale * each, kinds) for came, each in pairs]


def transposes(
    backend: Backend, pull: _Map, push: _Map, cotangents: Sequence[Any], tangents: Sequence[Any]
) -> list[Any]:
    """Returns boolean tensors that all hold if `push` is the transpose of `pull`, as far as trying can tell.

    A framework transposes the derivative of a map. This can differ from the map: a rule may stop gradients, or call a
    function that has another rule.
    """
    kinds = [backend.dtype(tensor) for tensor in (*cotangents, *tangents)]
    # TensorFlow (2.21) adds no tensors of different dtypes.
    kind = "float64" if {"float64", "complex128"} & {*kinds} else "float32"
    # Two different directions: a map and its transpose have the same product along a single one.
    along = [_uneven(backend, tensor, 1.0, 0.5) for tensor in cotangents]
    across = [_uneven(backend, tensor, 0.3, 0.5) for tensor in tangents]
    pulled, pushed = pull(along), push(across)
    product, size = _inner(backend, pulled, across, kind)
    other, other_size = _inner(backend, along, pushed, kind)
    xp, allowed = backend.namespace, precision.of_linear(kinds)[0] * (size + other_size)
    difference = xp.abs(product - other)
    holds = (difference <= allowed) | xp.logical_not(xp.isfinite(difference))
    # Where the values are known, rounding is measured only if it decides.
    if _are_known(backend, [holds]) and _hold(backend, [holds]):
        return [holds]
    weights = *across, *along
    lost = *_rounding(backend, pull, along, pulled), *_rounding(backend, push, across, pushed)
    for rounding, weight in zip(lost, weights, strict=True):
        allowed = allowed + 64 * backend.cast(rounding, kind) * xp.sum(backend.cast(xp.abs(weight), kind))
    return [holds | (difference <= allowed)]


def _inner(backend: Backend, ones: Sequence[Any], others: Sequence[Any], kind: str) -> tuple[Any, Any]:
    """The inner product of some tensors with others in the dtype `kind`, and the sum of the terms' absolute values."""
    xp = backend.namespace
    products = [
        backend.cast(xp.real(xp.conj(a) * b), kind)
        if backend.dtype(a).startswith("complex")
        else backend.cast(a, kind) * backend.cast(b, kind)
        for a, b in zip(ones, others, strict=True)
    ]
    return sum([xp.sum(each) for each in products]), sum([xp.sum(xp.abs(each)) for each in products])


def _wide(backend: Backend, tensor: Any) -> Any:
    """Half precision as single precision: TensorFlow (2.21) lacks functions for it, and its sums overflow."""
    return backend.cast(tensor, "float32") if backend.dtype(tensor) in ("float16", "bfloat16") else tensor


def _uneven(backend: Backend, tensor: Any, step: float, start: float, least: float | None = None) -> Any:
    """Numbers of either sign near 1 in the shape of `tensor`, none smaller than `least`; the first is positive."""
    xp, kind = backend.namespace, backend.dtype(tensor)
    ones = xp.ones_like(_wide(backend, tensor))
    angle = start * ones
    # By sums along the axes, because in a graph of TensorFlow the sizes may be unknown until run time.
    for axis in range(len(backend.shape(tensor) or ())):
        angle = angle + step * (axis + 1) * xp.cumsum(ones, axis)
    values = xp.cos(angle)
    values = values * backend.cast(1 + least / xp.abs(values), backend.dtype(values)) if least else values
    return values + 0.5j * xp.sin(angle) if kind.startswith("complex") else backend.cast(values, kind)


def irregular(backend: Backend, tensors: Sequence[Any]) -> list[Any]:
    """Returns new tensors with the shapes and dtypes of `tensors`: always the same irregular numbers from 0.5 to 1.5.

    Their signs differ. None stays None.
    """
    return [None if tensor is None else _uneven(backend, tensor, 1.7, 0.4, 0.5) for tensor in tensors]


def _is_close(backend: Backend, came: Any, expected: Any, kinds: Sequence[str], lost: Any = None) -> Any:
    """Whether two gradients are equal up to their rounding and that of upstream, which has the dtypes `kinds`.

    `lost` is a rounding that was seen. Elements that are not finite are skipped.
    """
    xp, (tolerance, least) = backend.namespace, precision.of_linear([backend.dtype(came), *kinds])
    difference = xp.abs(_wide(backend, came) - _wide(backend, expected))
    allowed = tolerance * _largest(backend, expected) + (least if lost is None else least + 64 * lost)
    return xp.all(xp.logical_not(xp.isfinite(difference)) | (difference <= allowed))


def _rounding(backend: Backend, linear: _Map, tensors: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """Returns how far a map is from multiplying by some numbers exactly, for each of its `results` at `tensors`."""
    # No powers of two: a linear map rounds there, as it does for a sum. The sum may round more, by a factor of 64.
    runs = [(factor, linear([factor * tensor for tensor in tensors])) for factor in (1.3, -1.9)]
    return [
        sum([_largest(backend, scaled[place] - factor * result) for factor, scaled in runs])
        for place, result in enumerate(results)
    ]


def _largest(backend: Backend, tensor: Any) -> Any:
    """Returns the largest finite magnitude in a tensor, 0 if it is empty."""
    xp, size = backend.namespace, backend.namespace.abs(_wide(backend, tensor))
    size = xp.where(xp.isfinite(size), size, xp.zeros_like(size))
    return xp.sum(size) if 0 in (backend.shape(size) or ()) else xp.max(size)


def _are_known(backend: Backend, conditions: Sequence[Any]) -> bool:
    return not backend.is_compiling() and backend.is_known(conditions)


def _hold(backend: Backend, conditions: Sequence[Any]) -> bool:
    return all([bool(backend.to_numpy(condition).all()) for condition in conditions])


def check_or_nan(
    backend: Backend, tensors: Sequence[Any], conditions: Sequence[Any], error: Callable[[], Exception]
) -> Sequence[Any]:
    """Returns floating `tensors` if all boolean tensors `conditions` hold, and raises `error()` if one does not.

    In a program that is only traced no value is known. There the tensors, and by the product their derivatives, become
    NaN if a condition does not hold.
    """
    if not conditions:
        return tensors
    if _are_known(backend, conditions):
        if not _hold(backend, conditions):
            raise error()
        return tensors
    xp = backend.namespace
    factor = xp.where(functools.reduce(operator.and_, map(xp.all, conditions)), 1.0, float("nan"))
    return [tensor * backend.cast(factor, backend.dtype(tensor)) for tensor in tensors]
