"""Who records: tapes, and accumulators, which are asked here and nowhere else.

TensorFlow (2.21) has no public names for it. If one of these is gone, importing this file fails, and with it the
backend.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.forwardprop_util import pack_tangents, push_forwardprop_state
from tensorflow.python.eager.record import (
    VariableWatcher,
    could_possibly_record,
    record_operation,
    should_record_backprop,
    stop_recording,
)

from keras_cg.backends.tensorflow.composite import components, mapped, parts
from keras_cg.engine import messages

__all__ = [
    "VariableWatcher",
    "apart",
    "copied",
    "could_possibly_record",
    "has_accumulators",
    "has_tangent",
    "is_differentiated",
    "is_transposing",
    "push_forwardprop_state",
    "record_operation",
    "refuse_if_deaf",
    "should_record_backprop",
    "stop_recording",
    "wanted",
    "watching",
]


def has_accumulators() -> bool:
    """Whether there are any, one that is transposing at the moment included."""
    return bool(pack_tangents([]).indices)


def has_tangent(tensors: list[Any]) -> bool:
    """Whether an accumulator has a tangent for any of `tensors`, other than one that is transposing at the moment."""
    return bool(pack_tangents(tensors).tangents)


def is_differentiated(tensors: list[Any]) -> bool:
    """The same, or a tape records one."""
    return bool(should_record_backprop(tensors)) or has_tangent(tensors)


def wanted(tensors: Sequence[Any]) -> list[bool]:
    """Which of `tensors` somebody differentiates; all, where that does not show."""
    if is_transposing():
        return [True] * len(tensors)
    return [is_differentiated(parts([tensor])) for tensor in tensors]


def copied(tensors: list[Any]) -> list[Any]:
    """The same values as tensors that no tape and no accumulator knows."""
    if not tensors:
        return []
    with stop_recording():
        # All by one operation, as most of its time is not spent on values.
        return list(tf.identity_n(tensors))


def apart(tensors: Sequence[Any]) -> list[Any]:
    """The same of tensors that may be composite."""
    copies = iter(copied(components(tensors)))
    return [mapped(lambda _: next(copies), tensor) for tensor in tensors]


@contextlib.contextmanager
def watching(tensors: Sequence[Any]) -> Iterator[Any]:
    """A tape that watches some tensors, if there are any."""
    if not tensors:
        yield None
        return
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(tensors)
        yield tape


def is_transposing() -> bool:
    """Whether this is called in what an accumulator transposes: there nobody else's tape records anything."""
    return has_accumulators() and _is_deaf()


def _is_deaf() -> bool:
    with stop_recording():
        probe = tf.zeros([])
    with tf.GradientTape() as tape:
        tape.watch(probe)
        return not should_record_backprop([tf.identity(probe)])


def refuse_if_deaf() -> None:
    """Raises where a tape records nothing: there, and where all were told to stop."""
    if is_transposing() or (not could_possibly_record() and _is_deaf()):
        raise messages.no_recording()
