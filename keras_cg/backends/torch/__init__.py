"""The torch backend, on `torch.autograd.Function`.

`tensors` says what a tensor is. `attach` chooses how the rule is attached: `recorded` does it by a Function in eager
mode, `transformed` by one that the transforms of torch.func understand, `compiled` by one that Dynamo traces, `traced`
by one that torch.jit.trace keeps: torch has four engines, and no one form of Function serves in two of them. `exported`
is for torch.export, which keeps none. `replayed` is the second run, for all of them. `derivatives` asks torch's own
engines, and `host` calls functions of NumPy.
"""

from __future__ import annotations

from keras_cg.backends.torch.attach import attach
from keras_cg.backends.torch.derivatives import compiled, cut, devices, exported, gradient, jvp, vjp
from keras_cg.backends.torch.functions import namespace
from keras_cg.backends.torch.host import host
from keras_cg.backends.torch.recomputed import recompute
from keras_cg.backends.torch.straight import straight
from keras_cg.backends.torch.tensors import (
    asarray,
    cast,
    children,
    dtype,
    is_recording,
    is_tensor,
    shape,
    tensors,
    to_numpy,
)

__all__ = [
    "asarray",
    "attach",
    "cast",
    "children",
    "compiled",
    "cut",
    "devices",
    "dtype",
    "exported",
    "gradient",
    "host",
    "is_recording",
    "is_tensor",
    "jvp",
    "namespace",
    "recompute",
    "shape",
    "straight",
    "tensors",
    "to_numpy",
    "vjp",
]
