"""The NumPy backend, on the primitives of HIPS autograd."""

from __future__ import annotations

from autograd import numpy as namespace

from keras_cg.backends.numpy.attach import attach
from keras_cg.backends.numpy.derivatives import vjp
from keras_cg.backends.numpy.tensors import (
    asarray,
    cast,
    children,
    dtype,
    is_plain,
    is_recording,
    is_tensor,
    needs_grad,
    shape,
    tensors,
    to_numpy,
)
