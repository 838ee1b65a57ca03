"""A function that runs again in the backward pass, on torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from keras_cg.backends import torch as this_backend
from keras_cg.backends.torch.tensors import is_captured, is_forward_open, transforms_active
from keras_cg.engine.contract import Tensors
from keras_cg.recipes.checkpoint import OutputFunction
from keras_cg.recipes.checkpoint.sample import Sample


def recompute(fun: OutputFunction, tensors: Sequence[Any]) -> Tensors:
    """Calls `torch.utils.checkpoint`, and compares the outputs of the two runs."""
    # torch.compile allows no side effects in a checkpoint, and its partitioner decides what to save. A program that is
    # captured has no values to compare. torch.func (2.13) has no hooks for saved tensors.
    if torch.compiler.is_dynamo_compiling() or is_captured() or transforms_active() or is_forward_open():
        return fun(*tensors)
    samples: list[Sample] = []

    def run(*inputs: Any) -> Tensors:
        outputs = fun(*inputs)
        # Without those on an accelerator, which the program would have to wait for.
        here = [output for output in outputs if output.is_cpu and not output.is_sparse]
        if samples:
            samples[0].compare(fun.name, here)
        else:
            samples.append(Sample(this_backend, here))
        return outputs

    # Without early_stop, because a run that stops early may leave a mask in the attributes of a cell of Keras.
    return checkpoint(run, *tensors, use_reentrant=False, early_stop=False)  # type: ignore[no-any-return]
