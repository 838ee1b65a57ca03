"""A function that runs again in the backward pass, for a framework without rematerialisation of its own."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from keras_cg.engine.contract import Tensors
from keras_cg.engine.linear import check_or_nan
from keras_cg.engine.precision import is_differentiable
from keras_cg.recipes.checkpoint import messages
from keras_cg.recipes.checkpoint.function import OutputFunction
from keras_cg.recipes.checkpoint.sample import Sample
from keras_cg.recipes.tensors import recipe


def recompute(fun: OutputFunction, tensors: Sequence[Any]) -> Tensors:
    """A custom gradient whose rule is the vjp of another run. Captured values that are differentiated are refused."""
    backend, otherwise = fun.backend, functools.partial(messages.recomputed_otherwise, fun.name)
    read = [*tensors, *fun.captures(backend.is_tensor)]
    # A traced tensor has no memory that could be changed.
    read = read if backend.is_known(read) else []

    def checksums() -> list[int]:
        # No copies, because they would need the memory that recomputation saves.
        return [hash(backend.to_numpy(tensor).tobytes()) for tensor in read]

    before = checksums()

    @recipe(fun.name)
    def run(*inputs: Any) -> Any:
        outputs = fun(*inputs)
        sample = Sample(backend, outputs)
        places = [place for place, tensor in enumerate(inputs) if is_differentiable(backend.dtype(tensor))]

        def grad(upstream: Any, variables: Any = ()) -> Any:
            used = [place for place, each in enumerate(upstream) if each is not None]

            def floating(*active: Any) -> tuple[Tensors, Tensors]:
                values = dict(enumerate(inputs)) | dict(zip(places, active, strict=True))
                results = fun(*values.values())
                conditions = sample.compare(fun.name, results)
                return tuple(check_or_nan(backend, [results[place] for place in used], conditions, otherwise)), ()

            # Although another run sees the old value: autograd may read the variable only after that run.
            for variable in fun.assigned():
                raise messages.changed_since(fun.name, f"a Keras variable ({variable.path})")
            for tensor, old, new in zip(read, before, checksums(), strict=True):
                if old != new:
                    kind = f"{backend.dtype(tensor)}{list(backend.to_numpy(tensor).shape)}"
                    raise messages.changed_since(fun.name, f"a tensor of {kind}")
            _, pullback, _ = backend.vjp(floating, [inputs[place] for place in places])
            gradients = dict(zip(places, pullback([upstream[place] for place in used]), strict=True))
            return tuple(map(gradients.get, range(len(inputs))))

        return outputs, grad

    return run(*tensors)  # type: ignore[no-any-return]
