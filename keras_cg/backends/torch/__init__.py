"""The torch backend, on `torch.autograd.Function`.

`tensors` says what a tensor is. `attach` attaches the rule in eager mode; `transforms` does it for torch.func and
forward mode, and `compiled` for torch.compile: torch has three engines, and no one form of Function serves in two of
them. `exported` is for programs that leave Python, which keep no rule. `derivatives` asks torch's own engines, and
`host` calls functions of NumPy.
"""

from __future__ import annotations

from keras_cg.backends.torch.derivatives import compiled, cut, devices, exported, gradient, jvp, vjp
from keras_cg.backends.torch.fast import attach
from keras_cg.backends.torch.functions import namespace
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
    "cut",
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
    "tensors",
    "to_numpy",
    "vjp",
]
