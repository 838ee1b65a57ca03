"""Functions of NumPy arrays on torch: an operator that torch.compile and torch.func do not look into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from keras_cg.backends.torch.tensors import dtype, to_numpy, transforms_active
from keras_cg.recipes.callback.host import Host, Kind


def call(host: Host, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Calls a function of NumPy arrays by an operator of torch."""
    # Detached, because inside a transform torch (2.13) asks an operator for its derivative at once, and it has none.
    inputs = [tensor.detach() for tensor in tensors] if transforms_active() else list(tensors)
    return tuple(_run(inputs, host.key, host.arguments))


# By its key, because torch's operators take tensors, numbers and strings alone. The operator has no gradient: autograd
# raises if it is differentiated past the rule.
@torch.library.custom_op("keras_cg::host", mutates_args=())
def _run(tensors: Sequence[torch.Tensor], key: str, count: int) -> list[torch.Tensor]:
    arrays = Host(key, count).function().run([*map(to_numpy, tensors)], count)
    return [torch.from_numpy(array).to(tensors[0].device) for array in arrays]


def _empty(tensors: Sequence[torch.Tensor], key: str, count: int) -> list[torch.Tensor]:
    """Returns empty tensors of the kinds of the results."""
    promised = Host(key, count).function().results([Kind(tensor.shape, dtype(tensor)) for tensor in tensors], count)
    return [_like(tensors[0], kind) for kind in promised]


def _like(tensor: torch.Tensor, kind: Kind) -> torch.Tensor:
    """Returns an empty tensor of a kind on the device of another tensor."""
    shape: Any = kind.shape
    return tensor.new_empty(shape, dtype=getattr(torch, kind.dtype))


def _over_batch(
    info: Any, in_dims: Any, tensors: Sequence[torch.Tensor], key: str, count: int
) -> tuple[list[torch.Tensor], list[int]]:
    """Calls the function once for each element, because it need not know an additional axis."""
    if not info.batch_size:
        # Without an element there is no call: the results have the promised kinds.
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
