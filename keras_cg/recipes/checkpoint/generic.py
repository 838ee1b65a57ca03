"""A function that runs again in the backward pass, for a framework without rematerialisation of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keras_cg.engine.contract import Backend, Tensors
from keras_cg.engine.linear import check_or_nan
from keras_cg.engine.precision import is_differentiable
from keras_cg.recipes.checkpoint import messages
from keras_cg.recipes.checkpoint.function import OutputFunction
from keras_cg.recipes.checkpoint.sample import Sample


def recompute(fun: OutputFunction, tensors: Sequence[Any]) -> Tensors:
    """A custom gradient whose rule is the vjp of another run. Captured values that are differentiated are refused."""
    backend = fun.backend
    unchanged = _Unchanged(backend, fun.name, [*tensors, *fun.captures(backend.is_tensor)])
    return backend.attach(_Recompute(fun, unchanged), tensors)


class _Unchanged:
    """Checksums of tensors that must not be changed in place before the second run has read them."""

    def __init__(self, backend: Backend, name: str, tensors: Sequence[Any]):
        # A traced tensor has no memory that could be changed.
        self.backend, self.name, self.tensors = backend, name, tensors if backend.is_known(tensors) else ()
        # Checksums, because copies would need the memory that recomputation saves.
        self.numbers = [hash(backend.to_numpy(tensor).tobytes()) for tensor in self.tensors]

    def check(self) -> None:
        """Compares the checksums.

        Raises:
            RuntimeError: A tensor was changed.
        """
        for tensor, number in zip(self.tensors, self.numbers, strict=True):
            values = self.backend.to_numpy(tensor)
            if hash(values.tobytes()) != number:
                raise messages.changed_since(self.name, f"a tensor of {self.backend.dtype(tensor)}{list(values.shape)}")


class _Recompute:
    """A function whose rule runs it again."""

    is_ordinary = is_plain = False

    def __init__(self, fun: OutputFunction, unchanged: _Unchanged):
        self.backend, self.name, self.user = fun.backend, fun.name, fun.user
        self.fun, self.unchanged = fun.late, unchanged

    def __call__(self, *tensors: Any) -> tuple[Tensors, _Recomputed]:
        outputs = self.fun(*tensors)
        return outputs, _Recomputed(self, tensors, Sample(self.backend, outputs))

    def closed_over(self) -> list[Any]:
        """Returns nothing, because captures are refused."""
        return []

    def captures(self, is_wanted: Callable[[Any], bool]) -> Iterable[Any]:
        """Returns nothing, because captures are refused."""
        return ()

    def refuse_changes(self) -> None:
        """Does nothing, because the first run is no other than the later ones."""

    def names(self, values: Sequence[Any], described: Sequence[str]) -> list[str]:
        """Returns what `described`, because captures are refused."""
        return [*described]


class _Recomputed:
    """The pullback of a function that saves its inputs, and a sample of its outputs."""

    def __init__(self, function: _Recompute, inputs: Sequence[Any], sample: Sample):
        self.function, self.backend, self.inputs, self.sample = function, function.backend, inputs, sample

    def __call__(
        self, cotangents: Sequence[Any], variables: Any = (), needs_grad: Any = None, arguments: Any = None
    ) -> tuple[Tensors, Tensors]:
        self.function.unchanged.check()
        places = [place for place, tensor in enumerate(self.inputs) if is_differentiable(self.backend.dtype(tensor))]
        used = [place for place, cotangent in enumerate(cotangents) if cotangent is not None]

        def floating(*active: Any) -> tuple[Tensors, Tensors]:
            values = dict(enumerate(self.inputs)) | dict(zip(places, active, strict=True))
            outputs = self.function.fun(*values.values())
            conditions = self.sample.compare(self.function.name, outputs)
            error = functools.partial(messages.recomputed_otherwise, self.function.name)
            return tuple(check_or_nan(self.backend, [outputs[place] for place in used], conditions, error)), ()

        active, upstreams = [self.inputs[place] for place in places], [cotangents[place] for place in used]
        _, pullback, _ = self.backend.vjp(floating, active)
        gradients = dict(zip(places, pullback(upstreams), strict=True))
        return tuple(map(gradients.get, range(len(self.inputs)))), ()

    def location(self) -> None:
        return None

    is_used_up = False

    def takes_variables(self) -> bool:
        return False

    takes_arguments = takes_variables

    def capture(self, names: Sequence[str], values: Sequence[Any] = ()) -> None:
        if names:
            raise messages.lost_to_recompute(self.function.name, self.backend.tensors[0].__module__.partition(".")[0])

    def closed_over(self) -> list[Any]:
        return list(self.inputs)

    reached = closed_over

    def check(self, other: Any, probe: Any) -> list[Any]:
        return self.sample.compare(self.function.name, other.function.fun(*other.inputs))

    def outline(self, inputs: Sequence[Any], probe: Any) -> tuple[list[Any], Any]:
        return [], ()

    def check_outline(self, inputs: Sequence[Any], tensors: Sequence[Any], facts: Any, probe: Any) -> None:
        """Compares nothing, because the second run compares its outputs with those of the first one."""
