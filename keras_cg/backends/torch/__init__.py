"""The torch backend, on `torch.autograd.Function`.

`tensors` describes tensors and the state of torch. `attach` attaches the rule in eager mode, `saved` keeps what its
backward pass needs, and `capturing` finds what a function captured. `transforms` serves torch.func and forward mode,
`compiling` torch.compile: no Function works in two of these three engines. `exporting` is for programs that keep no
rule. `derivatives` calls torch's own engines.
"""

from __future__ import annotations

import torch as namespace

from keras_cg.backends.torch.attach import attach
from keras_cg.backends.torch.derivatives import (
    compiled,
    devices,
    exported,
    gradient,
    jvp,
    needs_grad,
    stop_gradient,
    vjp,
)
from keras_cg.backends.torch.tensors import (
    agreement,
    asarray,
    cast,
    children,
    constant,
    dtype,
    is_compiling,
    is_plain,
    is_recording,
    is_tensor,
    plain,
    shape,
    tensors,
    to_numpy,
)
