"""The optional names of a backend: computed by its `attach` and `vjp`, or the answer if the framework has none."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy

from keras_cg.engine import linear, messages, precision
from keras_cg.engine.contract import Backend, Map, PlainFunction, Tensors
from keras_cg.engine.precision import is_differentiable, is_repeated


def gradient(backend: Backend, fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, Tensors, Tensors]:
    """Returns the vjp of ones."""
    outputs, pullback, aux = backend.vjp(fun, tensors)
    return outputs, pullback([backend.namespace.ones_like(output) for output in outputs]), aux


def jvp(
    backend: Backend, fun: PlainFunction, tensors: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Tensors, Tensors, Tensors]:
    """Computes the transpose of the vjp, for a framework without forward mode through a rule."""
    outputs, pullback, aux = backend.vjp(fun, tensors)
    push, conditions = transpose(backend, pullback, outputs, tensors)
    error = functools.partial(messages.not_linear, messages.name_of(fun))
    return outputs, tuple(linear.check_or_nan(backend, push(tangents), conditions, error)), aux


def transpose(backend: Backend, pullback: Map, outputs: Sequence[Any], tensors: Sequence[Any]) -> tuple[Map, list[Any]]:
    """Transposes a map from cotangents of `outputs` to gradients of `tensors`, all floating.

    Returns `(push, conditions)`: `push` is the vjp of the map, and the map is linear if all `conditions` hold.
    """

    def pull(*cotangents: Any) -> tuple[Tensors, Tensors]:
        return pullback(cotangents), ()

    conditions = linear.conditions(backend, pullback, outputs)
    _, push, _ = backend.vjp(pull, [backend.namespace.zeros_like(output) for output in outputs])
    conditions += linear.transposes(backend, pullback, push, outputs, tensors)
    return push, conditions


def jacobian(
    backend: Backend, fun: PlainFunction, tensors: Sequence[Any]
) -> tuple[Tensors, tuple[Tensors, ...], Tensors]:
    """Calls the pullback once for each element of the outputs."""
    xp = backend.namespace
    outputs, pullback, aux = backend.vjp(fun, tensors)
    zeros = [xp.zeros_like(output) for output in outputs]

    def rows(place: int, output: Any) -> Iterator[Any]:
        shape = tuple(backend.shape(output) or ())
        count = (backend.shape(xp.reshape(zeros[place], (-1,))) or (0,))[0] or 0
        # Each row is 1 at one element of the output and 0 elsewhere.
        basis = backend.cast(xp.eye(count), backend.dtype(output))
        units = [xp.reshape(basis[row], shape) for row in range(count)]
        pulled = [pullback([*zeros[:place], unit, *zeros[place + 1 :]]) for unit in units]
        for index, tensor in enumerate(tensors):
            size = (*shape, *(backend.shape(tensor) or ()))
            parts = [gradients[index] for gradients in pulled]
            yield xp.reshape(xp.stack(parts) if parts else xp.reshape(tensor, (-1,))[:0], size)

    return outputs, tuple(tuple(rows(place, output)) for place, output in enumerate(outputs)), aux


def is_plain(backend: Backend, *value: Any) -> bool:
    """Returns False: a quick look does not tell, and no compiler traces Python."""
    return False


is_compiling = is_plain

# No class of tensors is plain for certain; tensors may be kept; and a function is traced as it is.
plain: frozenset[type] = frozenset()
types = converted = None


def compiled(backend: Backend, *program: Any) -> Callable[..., Tensors] | None:
    """Returns None: there is no compiler, and no format to export to."""
    return None


exported = compiled


def double_precision(backend: Backend) -> contextlib.AbstractContextManager[Any]:
    """Returns an empty context: tensors may always have 64 bits."""
    return contextlib.nullcontext()


def devices(backend: Backend) -> tuple[str, ...]:
    """Returns the name of the processor."""
    return ("cpu",)


def needs_grad(backend: Backend, tensors: Sequence[Any]) -> list[bool]:
    """Returns True for each tensor, for a framework that does not tell."""
    return [True] * len(tensors)


def constant(backend: Backend, tensor: Any) -> Any:
    """Returns the tensor, for a framework in which a function cannot switch recording on."""
    return tensor


def stop_gradient(backend: Backend, tensor: Any) -> Any:
    """Copies the values through NumPy, for a framework that never traces."""
    return backend.asarray(numpy.array(backend.to_numpy(tensor)))


def is_known(backend: Backend, tensors: Sequence[Any]) -> bool:
    """Returns True, for a framework that never traces."""
    return True


def agreement(backend: Backend, pairs: Sequence[tuple[Any, Any]]) -> list[bool]:
    """Compares through NumPy."""
    return [
        backend.dtype(one) == backend.dtype(two)
        and is_repeated(backend.to_numpy(two), backend.to_numpy(one), precision.of(backend.dtype(one)).repeated)
        for one, two in pairs
    ]


def is_repeated_later(backend: Any, other: Any, first: Any, function: str = "the function") -> Any:
    """Returns `is_repeated` of two outputs of a function as a boolean tensor."""
    xp, kind = backend.namespace, backend.dtype(first)
    if backend.shape(other) != backend.shape(first):
        raise messages.recomputed_otherwise(function)
    if 0 in backend.shape(first) or not is_differentiable(kind):
        return xp.all(other == first)
    size = xp.abs(first)
    with numpy.errstate(all="ignore"):  # NumPy warns of infinities
        # Not `isfinite`, which TensorFlow (2.21) lacks for bfloat16 in a graph.
        size = xp.where(size - size == 0, size, xp.zeros_like(size))
        is_near = xp.abs(other - first) <= precision.of(kind).repeated * xp.max(size)
    return xp.all(is_near | (other == first) | ((other != other) & (first != first)))
