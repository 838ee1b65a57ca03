"""A function that runs again in the backward pass, for a framework without rematerialisation of its own."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from keras_cg.engine import messages
from keras_cg.engine.contract import Tensors
from keras_cg.engine.linear import check_or_nan
from keras_cg.engine.precision import is_differentiable
from keras_cg.recipes.checkpoint import OutputFunction
from keras_cg.recipes.checkpoint.sample import Sample
from keras_cg.recipes.tensors import recipe


def recompute(fun: OutputFunction, tensors: Sequence[Any]) -> Tensors:
    """A custom gradient whose rule is the vjp of another run. Captured values that are differentiated are refused."""
    backend, otherwise = fun.backend, functools.partial(messages.recomputed_otherwise, fun.name)

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

            _, pullback, _ = backend.vjp(floating, [inputs[place] for place in places])
            gradients = dict(zip(places, pullback([upstream[place] for place in used]), strict=True))
            return tuple(map(gradients.get, range(len(inputs))))

        return outputs, grad

    return run(*tensors)  # type: ignore[no-any-return]
