"""The TensorFlow backend: tapes are told of an operation, and graphs get one whose gradient is overridden.

`tf.custom_gradient` does both, but is not called. It reads a rule's signature at every call, which makes an eager
gradient a quarter slower (TensorFlow 2.21). In graphs it copies every output once more, and hides whether a tape asks
for the gradient, which knows the inputs that are differentiated, or the graph, which does not.

`tensors` says which values are tensors, `composite` flattens them, and `recording` asks which tapes and accumulators
record. `attach` serves eager mode and `graph` serves graphs, both with the gradients of `backward`. `derivatives` calls
TensorFlow's own tapes, compiler and exporter.
"""

from __future__ import annotations

from tensorflow import function as compiled
from tensorflow import stop_gradient
from tensorflow.experimental import numpy as namespace

from keras_cg.backends.tensorflow.attach import attach
from keras_cg.backends.tensorflow.derivatives import converted, devices, exported, jacobian, jvp, needs_grad, vjp
from keras_cg.backends.tensorflow.tensors import (
    agreement,
    asarray,
    cast,
    children,
    dtype,
    is_known,
    is_plain,
    is_recording,
    is_tensor,
    plain,
    shape,
    tensors,
    to_numpy,
)
