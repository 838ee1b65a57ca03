"""The TensorFlow backend: an operation that tapes are told of, and in graphs one whose gradient is overridden.

Both are what `tf.custom_gradient` makes of a rule. It is not called itself, since it looks at a rule's signature anew
in every call, which makes an eager gradient a quarter slower (TensorFlow 2.21). And in graphs it copies every output
once more, and hides who differentiates: a tape, which knows for what, or the graph, which does not.

`tensors` says what a tensor is, `composite` what it is made of, and `recording` who differentiates it. `attach` is for
eager mode and `graph` for graphs, both with the gradients of `backward`. `derivatives` asks TensorFlow's own engine.
`tracing` says what a decorated function is as an argument.
"""

from __future__ import annotations

from tensorflow.experimental import numpy as namespace

from keras_cg.backends.tensorflow.attach import attach
from keras_cg.backends.tensorflow.derivatives import (
    compiled,
    converted,
    devices,
    exported,
    jacobian,
    jvp,
    stop_gradient,
    vjp,
)
from keras_cg.backends.tensorflow.tensors import (
    agreement,
    asarray,
    cast,
    children,
    dtype,
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
    "converted",
    "devices",
    "dtype",
    "exported",
    "is_plain",
    "is_recording",
    "is_tensor",
    "jacobian",
    "jvp",
    "namespace",
    "shape",
    "stop_gradient",
    "tensors",
    "to_numpy",
    "vjp",
]
