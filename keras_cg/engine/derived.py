"""What a backend need not define: made of its `attach` and `vjp`, or the answer where there is no such thing."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy

from keras_cg import errors
from keras_cg.engine import linear
from keras_cg.engine.again import Sample, is_repeated_later
from keras_cg.engine.contract import Backend, OutputFunction, PlainFunction, Pullback, Tensors
from keras_cg.engine.held import Held
from keras_cg.engine.host import Host
from keras_cg.engine.precision import is_differentiable
from keras_cg.engine.settled import settled


def pulled(
    backend: Backend, fun: PlainFunction, tensors: Sequence[Any], cotangents: Sequence[Any]
) -> tuple[Tensors, Tensors, Tensors]:
    """The vjp, and its pullback at once."""
    outputs, pullback, aux = backend.vjp(fun, tensors)
    return outputs, pullback(cotangents), aux


def vjp_of_runs(
    backend: Backend, fun: PlainFunction, tensors: Sequence[Any]
) -> tuple[Tensors, Callable[[Sequence[Any]], Tensors], Tensors]:
    """`vjp`, made of the backend's own `pulled`: each pullback runs `fun` again, and compares.

    The pullback raises RuntimeError where that run gave something else than the first.
    """
    outputs, aux = fun(*tensors)

    def pullback(cotangents: Sequence[Any]) -> Tensors:
        others, gradients, _ = backend.pulled(fun, tensors, cotangents)
        return tuple(
            settled(
                backend,
                gradients,
                [is_repeated_later(backend, *pair) for pair in zip(others, outputs, strict=True)],
                functools.partial(errors.recomputed_otherwise, "the function"),
            )
        )

    return outputs, pullback, aux


def gradient(backend: Backend, fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, Tensors, Tensors]:
    """The vjp of ones."""
    outputs, pullback, aux = backend.vjp(fun, tensors)
    return outputs, pullback([backend.namespace.ones_like(output) for output in outputs]), aux


def jvp(
    backend: Backend, fun: PlainFunction, tensors: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Tensors, Tensors, Tensors]:
    """The transpose of the vjp, which serves where a framework has forward rules for its own functions only."""
    outputs, push, aux, conditions = transposed(backend, fun, tensors)
    return outputs, tuple(settled(backend, push(tangents), conditions, errors.not_linear)), aux


def transposed(
    backend: Backend, fun: PlainFunction, tensors: Sequence[Any]
) -> tuple[Tensors, Callable[[Sequence[Any]], Tensors], Tensors, list[Any]]:
    """`(outputs, push, aux, conditions)`: `push` is the vjp of `cotangents -> gradients`, if that is a linear map.

    It is, as far as trying can tell, if all `conditions` hold.
    """
    outputs, pullback, aux = backend.vjp(fun, tensors)
    push, conditions = transpose(backend, pullback, outputs, tensors)
    return outputs, push, aux, conditions


def transpose(
    backend: Backend, pullback: Callable[[Sequence[Any]], Tensors], outputs: Sequence[Any], tensors: Sequence[Any]
) -> tuple[Callable[[Sequence[Any]], Tensors], list[Any]]:
    """`(push, conditions)` of a map from cotangents of `outputs` to gradients of `tensors`, all floating."""

    def pull(*cotangents: Any) -> tuple[Tensors, Tensors]:
        return pullback(cotangents), ()

    conditions = linear.conditions(backend, pullback, outputs)
    _, push, _ = backend.vjp(pull, [backend.namespace.zeros_like(output) for output in outputs])
    conditions += linear.transposes(backend, pullback, push, outputs, tensors)
    return push, conditions


def jacobian(
    backend: Backend, fun: PlainFunction, tensors: Sequence[Any]
) -> tuple[Tensors, tuple[Tensors, ...], Tensors]:
    """One vjp for each element of the outputs: as many pullbacks as there are rows."""
    xp = backend.namespace
    outputs, pullback, aux = backend.vjp(fun, tensors)
    zeros = [xp.zeros_like(output) for output in outputs]

    def rows(place: int, output: Any) -> Iterator[Any]:
        shape = tuple(backend.shape(output) or ())
        basis = _basis(backend, output)
        pulled = [pullback([*zeros[:place], row, *zeros[place + 1 :]]) for row in basis]
        for index, tensor in enumerate(tensors):
            size = (*shape, *(backend.shape(tensor) or ()))
            parts = [gradients[index] for gradients in pulled]
            yield xp.reshape(xp.stack(parts) if parts else xp.reshape(tensor, (-1,))[:0], size)

    return outputs, tuple(tuple(rows(place, output)) for place, output in enumerate(outputs)), aux


def _basis(backend: Backend, output: Any) -> list[Any]:
    """The tensors like `output` that are 1 at one element and 0 elsewhere."""
    xp = backend.namespace
    flat = xp.reshape(xp.ones_like(output), (-1,))
    count = (backend.shape(flat) or (0,))[0] or 0
    unit = xp.eye(count)
    return [xp.reshape(backend.cast(unit[row], backend.dtype(output)), backend.shape(output)) for row in range(count)]


def recompute(backend: Backend, fun: OutputFunction, tensors: Sequence[Any]) -> Tensors:
    """A custom gradient whose rule is the vjp of another run; what `fun` closes over is made an argument of it."""
    captured = fun.held(backend.is_tensor)
    taken = captured.movable()
    count = len(tensors)

    def around(*values: Any) -> Tensors:
        return taken.build(values[count:]).late(*values[:count])  # type: ignore[no-any-return]

    unchanged = _Unchanged(backend, fun.name, [*tensors, *captured.tensors])
    return backend.attach(_Recompute(backend, fun.name, around, unchanged), (*tensors, *taken.tensors))


class _Unchanged:
    """Some tensors whose values nobody must change in place until another run has read them."""

    def __init__(self, backend: Backend, name: str, tensors: Sequence[Any]):
        # Nobody changes what is traced.
        self.backend, self.name, self.tensors = backend, name, tensors if backend.is_known(tensors) else ()
        # No copies, which would take as much memory again: a number that other values have only by chance.
        self.numbers = [hash(backend.to_numpy(tensor).tobytes()) for tensor in self.tensors]

    def check(self) -> None:
        """Compares.

        Raises:
            RuntimeError: Somebody did.
        """
        for tensor, number in zip(self.tensors, self.numbers, strict=True):
            values = self.backend.to_numpy(tensor)
            if hash(values.tobytes()) != number:
                raise errors.changed_since(self.name, f"a tensor of {self.backend.dtype(tensor)}{list(values.shape)}")


class _Recompute:
    """A function whose rule runs it again. It holds nothing that could be moved: that is among its arguments."""

    def __init__(self, backend: Backend, name: str, fun: Callable[..., Tensors], unchanged: _Unchanged):
        self.backend, self.name, self.fun, self.unchanged = backend, name, fun, unchanged

    def __call__(self, *tensors: Any) -> tuple[Tensors, Pullback]:
        outputs = self.fun(*tensors)
        return outputs, _Recomputed(self, tensors, Sample(self.backend, outputs))

    def held(self, is_wanted: Callable[[Any], bool]) -> Held:
        return Held([], lambda tensors: self)

    def reached(self, passed: tuple[type, ...]) -> list[Any]:
        return []

    def anew(self) -> _Recompute:
        """It keeps nothing of a run."""
        return self


class _Recomputed:
    """The pullback of a function that keeps its inputs alone, and a sample of its outputs."""

    def __init__(self, function: _Recompute, inputs: Sequence[Any], sample: Sample):
        self.function, self.backend, self.inputs, self.sample = function, function.backend, inputs, sample

    def __call__(
        self, cotangents: Sequence[Any], variables: Sequence[Any] = (), wanted: Sequence[bool] | None = None
    ) -> tuple[Tensors, Tensors]:
        self.function.unchanged.check()
        places = [place for place, tensor in enumerate(self.inputs) if is_differentiable(self.backend.dtype(tensor))]
        arrived = [place for place, cotangent in enumerate(cotangents) if cotangent is not None]

        def floating(*moving: Any) -> tuple[Tensors, Tensors]:
            values = dict(enumerate(self.inputs)) | dict(zip(places, moving, strict=True))
            outputs = self.function.fun(*values.values())
            conditions = self.sample.compare(self.function.name, outputs)
            error = functools.partial(errors.recomputed_otherwise, self.function.name)
            return tuple(settled(self.backend, [outputs[place] for place in arrived], conditions, error)), ()

        moving, upstreams = [self.inputs[place] for place in places], [cotangents[place] for place in arrived]
        _, pulled, _ = self.backend.pulled(floating, moving, upstreams)
        gradients = dict(zip(places, pulled, strict=True))
        return tuple(map(gradients.get, range(len(self.inputs)))), ()

    def takes_variables(self) -> bool:
        return False

    def capture(self, names: Sequence[str]) -> None:
        if names:
            raise errors.lost_to_recompute(self.backend.tensors[0].__module__.partition(".")[0])

    def held(self) -> Held:
        return Held(list(self.inputs), lambda tensors: _Recomputed(self.function, tensors, self.sample))


def straight(backend: Backend, sites: Any, args: tuple[Any, ...]) -> Any:
    """There is no shorter way."""
    return NotImplemented


def converted(backend: Backend, fun: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it is."""
    return fun


def compiled(backend: Backend, fun: Callable[..., Tensors]) -> Callable[..., Tensors] | None:
    """There is no compiler."""
    return None


def exported(backend: Backend, fun: Callable[..., Tensors], tensors: Sequence[Any]) -> Callable[..., Tensors] | None:
    """There is nothing to export to."""
    return None


def double_precision(backend: Backend) -> contextlib.AbstractContextManager[Any]:
    """Tensors may have 64 bits anyway."""
    return contextlib.nullcontext()


def devices(backend: Backend) -> tuple[str, ...]:
    """The processor alone."""
    return ("cpu",)


def cut(backend: Backend, tensor: Any) -> Any:
    """By way of NumPy, for a framework that is never compiled; a copy, since an argument itself is one that moves."""
    return backend.asarray(numpy.array(backend.to_numpy(tensor)))


def is_known(backend: Backend, tensors: Sequence[Any]) -> bool:
    """Always, in a framework that is never compiled."""
    return True


def host(backend: Backend, call: Host, tensors: Sequence[Any]) -> Tensors:
    """By way of NumPy, for a framework that is never compiled."""
    arrays = call.function().run([backend.to_numpy(tensor) for tensor in tensors], call.given)
    return tuple(map(backend.asarray, arrays))
