"""A function that runs again in the backward pass, on TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import tensorflow as tf

from keras_cg.backends.tensorflow.composite import dense, is_floating, is_part, parts
from keras_cg.backends.tensorflow.recording import VariableWatcher, copies, refuse_if_not_recording, stop_recording
from keras_cg.backends.tensorflow.tensors import nan_unless, own
from keras_cg.engine.contract import Tensors
from keras_cg.recipes.checkpoint import messages
from keras_cg.recipes.checkpoint.function import OutputFunction
from keras_cg.recipes.checkpoint.sample import Sample


def recompute(fun: OutputFunction, tensors: Sequence[Any]) -> Tensors:
    """Attaches a rule that runs the function again, and checks that it reads the same values."""
    # Not `generic`, because it would lose the variables that `fun` reads, and a graph would merge the second run with
    # the first. Not tf.recompute_grad (2.21), because it has no second derivative, nor one for captured tensors.
    closed_over, count = list(fun.captures(is_part)), len(tensors)

    def run(*inputs: Any) -> Any:
        captured = _captured(fun)
        before = [*map(_checksum, captured)]
        with VariableWatcher() as watcher:
            outputs = list(fun(*copies(inputs[:count])))
        late = [each for each in (*watcher.watched_variables(), *fun.reads()) if isinstance(each, tf.Variable)]
        read, before = [*captured, *late], [*before, *map(_checksum, late)]
        sample = Sample(own, parts(outputs))

        def rule(*cotangents: Any, variables: Sequence[Any] = ()) -> Any:
            # Else a graph may begin the second run before the cotangents are there, and save no memory.
            with tf.control_dependencies(cotangents):
                again = [tf.identity(tensor) for tensor in inputs[:count]]
                conditions = _compare(fun.name, read, before)
            refuse_if_not_recording(fun.name)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                # The function reads its captured tensors themselves, so the tape watches these.
                again += closed_over
                tape.watch([*parts(again), *variables])
                results = fun(*again[:count])
            conditions += sample.compare(fun.name, parts(results))
            pairs = [pair for pair in zip(results, cotangents, strict=True) if is_floating(pair[0])]
            gradients = tape.gradient(
                [result for result, _ in pairs], [*again, *variables], [cotangent for _, cotangent in pairs]
            )
            if conditions:
                # NaN has NaN as its derivatives, too.
                factor = 1 + nan_unless(conditions)
                gradients = [None if each is None else dense(each) * tf.cast(factor, each.dtype) for each in gradients]
            return (gradients[: len(again)], gradients[len(again) :]) if variables else gradients

        return outputs, rule

    return tuple(tf.custom_gradient(run)(*tensors, *closed_over))


def _captured(fun: OutputFunction) -> list[Any]:
    """Returns the variables and arrays of NumPy in closures, and of modules there the variables that are not trained.

    A tape tells which others a run reads. Without integers, because one may count the runs.
    """
    captured: list[Any] = []
    for each in fun.captures(lambda value: isinstance(value, (tf.Variable, tf.Module, numpy.ndarray))):
        captured += each.non_trainable_variables if isinstance(each, tf.Module) else [each]
    return [each for each in captured if tf.as_dtype(each.dtype).is_floating or tf.as_dtype(each.dtype).is_complex]


def _compare(name: str, read: Sequence[Any], before: Sequence[Any]) -> list[Any]:
    """Compares checksums; returns the conditions that must hold in a graph.

    Raises:
        RuntimeError: One differs, in eager mode.
    """
    conditions = [tf.equal(_checksum(each), old) for each, old in zip(read, before, strict=True)]
    if not tf.executing_eagerly():
        return conditions
    for each, condition in zip(read, conditions, strict=True):
        if not bool(condition):
            what = f"a variable ({each.name})" if isinstance(each, tf.Variable) else "a NumPy array"
            raise messages.changed_since(name, what)
    return []


# The integers of each size in bytes.
_BITS = {2: tf.int16, 4: tf.int32, 8: tf.int64}


def _checksum(variable: Any) -> Any:
    """Returns a checksum of the bits of a value; a saved value would need memory in each iteration of a loop."""
    with stop_recording():
        value = tf.convert_to_tensor(variable)
        if value.dtype.is_complex:
            value = tf.stack([tf.math.real(value), tf.math.imag(value)])
        bits = tf.bitcast(value, _BITS[value.dtype.size]) if value.dtype.size in _BITS else value
        numbers = tf.cast(tf.reshape(bits, [-1]), tf.int64)
        # Odd factors that differ, because equal ones would miss two elements that change places.
        return tf.reduce_sum(numbers * (2 * tf.range(tf.size(numbers, tf.int64), dtype=tf.int64) + 1))
