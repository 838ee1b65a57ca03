"""Functions of NumPy arrays, by an operator that torch.compile and torch.func take as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from keras_cg.backends.torch.tensors import dtype, to_numpy, transforms_active
from keras_cg.recipes.callback.host import Host, Kind


def call(host: Host, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The results of a function of NumPy arrays, by an operator of torch."""
    # Inside of a transform torch (2.13) would ask its operator for a derivative at once, which it has not.
    given = [tensor.detach() for tensor in tensors] if transforms_active() else list(tensors)
    return tuple(_run(given, host.key, host.given))


# torch's operators take tensors, numbers and strings, so the function is there by its key. It has no gradient: autograd
# raises where somebody differentiates it past the rule.
@torch.library.custom_op("keras_cg::host", mutates_args=())
def _run(tensors: Sequence[torch.Tensor], key: str, count: int) -> list[torch.Tensor]:
    arrays = Host(key, count).function().run([*map(to_numpy, tensors)], count)
    return [torch.from_numpy(array).to(tensors[0].device) for array in arrays]


def _empty(tensors: Sequence[torch.Tensor], key: str, count: int) -> list[torch.Tensor]:
    """Tensors like the results, without their values."""
    promised = Host(key, count).function().results([Kind(tensor.shape, dtype(tensor)) for tensor in tensors], count)
    return [_like(tensors[0], kind) for kind in promised]


def _like(tensor: torch.Tensor, kind: Kind) -> torch.Tensor:
    """A tensor of that kind on the device of another one."""
    shape: Any = kind.shape
    return tensor.new_empty(shape, dtype=getattr(torch, kind.dtype))


def _over_batch(
    info: Any, in_dims: Any, tensors: Sequence[torch.Tensor], key: str, count: int
) -> tuple[list[torch.Tensor], list[int]]:
    """One element after the other: nobody knows what the function does along axes that it does not expect."""
    if not info.batch_size:
        # Of no element nothing is known but what is promised.
        shapes = [
            tensor.shape if axis is None else (*tensor.shape[:axis], *tensor.shape[axis + 1 :])
            for tensor, axis in zip(tensors, in_dims[0], strict=True)
        ]
        one = _empty([tensor.new_empty(size) for tensor, size in zip(tensors, shapes, strict=True)], key, count)
        return [each.new_empty((0, *each.shape)) for each in one], [0] * len(one)
    rows = []
    for place in range(info.batch_size):
        row = [
            tensor if axis is None else tensor.select(axis, place)
            for tensor, axis in zip(tensors, in_dims[0], strict=True)
        ]
        rows.append(_run(row, key, count))
    results = [torch.stack(parts) for parts in zip(*rows, strict=True)]
    return results, [0] * len(results)


_run.register_fake(_empty)
_run.register_vmap(_over_batch)
