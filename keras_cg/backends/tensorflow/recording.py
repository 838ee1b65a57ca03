"""Asks TensorFlow which tapes and accumulators record, and tells them of an operation.

TensorFlow (2.21) has no public names for it. If one of these is gone, importing this file fails, and with it the
backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.forwardprop_util import pack_tangents
from tensorflow.python.eager.forwardprop_util import push_forwardprop_state as push_forwardprop_state
from tensorflow.python.eager.record import VariableWatcher as VariableWatcher
from tensorflow.python.eager.record import could_possibly_record as could_possibly_record
from tensorflow.python.eager.record import record_operation_backprop_only as record_operation_backprop_only
from tensorflow.python.eager.record import record_operation_forwardprop_only as record_operation_forwardprop_only
from tensorflow.python.eager.record import should_record_backprop
from tensorflow.python.eager.record import stop_recording as stop_recording

from keras_cg.backends.tensorflow.composite import Parts, parts
from keras_cg.engine import messages

# A quick copy to the same device: it shares the memory, and is no operation, which would take ten times as long.
_copy_to_device = tf.__internal__.EagerTensor._copy_to_device


# Tensors are numbered as they are made.
_number = tf.__internal__.EagerTensor._id


def is_younger(value: Any, tensor: Any) -> bool:
    """Whether a value is a tensor that was made after `tensor`, in eager mode."""
    return not isinstance(value, tf.Variable) and bool(_number.__get__(value) > _number.__get__(tensor))


def is_differentiated(tensors: list[Any]) -> bool:
    """Whether a tape records one of the tensors, or an accumulator that is not transposing has its tangent."""
    return bool(should_record_backprop(tensors) or pack_tangents(tensors).tangents)


def needs_grad(arguments: Parts) -> list[bool]:
    """Returns which of the tensors are differentiated; all, where TensorFlow does not tell."""
    if pack_tangents([]).indices and is_transposing():
        return [True] * len(arguments.tensors)
    if not arguments.are_plain:
        return [is_differentiated(parts([tensor])) for tensor in arguments.tensors]
    pairs = zip(arguments.tensors, arguments.are_floating, strict=True)
    return [is_part and is_differentiated([tensor]) for tensor, is_part in pairs]


def copies(tensors: Sequence[Any]) -> list[Any]:
    """Returns copies of plain tensors, which no tape and no accumulator knows."""
    if tf.executing_eagerly():
        try:
            return [_copy_to_device(tensor, tensor.device) for tensor in tensors]
        except RuntimeError:
            pass  # A device of DTensor has no such copy.
    with stop_recording():
        return list(tf.identity_n(tensors)) if tensors else []


def is_transposing() -> bool:
    """Whether an accumulator transposes the code that runs: there TensorFlow lets no other tape record."""
    # The indices are there for an accumulator that is transposing, too.
    return bool(pack_tangents([]).indices) and _is_not_recording()


def _is_not_recording() -> bool:
    """Tries whether a tape records."""
    with stop_recording():
        probe = tf.zeros([])
    with tf.GradientTape() as tape:
        tape.watch(probe)
        return not should_record_backprop([tf.identity(probe)])


def refuse_if_not_recording(name: str) -> None:
    """Raises, with the name of a function, where an accumulator transposes, and where recording was stopped."""
    if is_transposing() or (not could_possibly_record() and _is_not_recording()):
        raise messages.tape_not_recording(name)
