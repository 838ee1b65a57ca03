"""The torch backend, on `torch.autograd.Function`.

`tensors` says what a tensor is. `attach` attaches the rule in eager mode; `transforms` does it for torch.func and
forward mode, and `compiled` for torch.compile: torch has three engines, and no one form of Function serves in two of
them. `exported` is for programs that leave Python, which keep no rule. `derivatives` calls torch's own engines.
"""

from __future__ import annotations

import torch as namespace

from keras_cg.backends.torch.derivatives import compiled, devices, exported, gradient, jvp, stop_gradient, vjp
from keras_cg.backends.torch.fast import attach
from keras_cg.backends.torch.tensors import (
    agreement,
    asarray,
    cast,
    children,
    dtype,
    is_compiling,
    is_plain,
    is_recording,
    is_tensor,
    shape,
    tensors,
    to_numpy,
)

__all__ = [
    "agreement",
    "asarray",
    "attach",
    "cast",
    "children",
    "compiled",
    "devices",
    "dtype",
    "exported",
    "gradient",
    "is_compiling",
    "is_plain",
    "is_recording",
    "is_tensor",
    "jvp",
    "namespace",
    "shape",
    "stop_gradient",
    "tensors",
    "to_numpy",
    "vjp",
]
