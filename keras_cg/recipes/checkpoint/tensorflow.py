"""A function that runs again in the backward pass, on TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    closed_over = list(fun.captures(is_part))
    count = len(tensors)

    def run(*inputs: Any) -> Any:
        captured, before = _Captured(fun), len(_operations())
        with VariableWatcher() as watcher:
            outputs = list(fun(*copies(inputs[:count])))
        captured.note(fun, watcher.watched_variables())
        # No sample in a graph, which has no values yet.
        drawn = [operation.type for operation in _operations()[before:] if operation.type.startswith(_DRAWING)]
        sample = Sample(own, parts(outputs)) if tf.executing_eagerly() else None

        def rule(*cotangents: Any, variables: Sequence[Any] = ()) -> Any:
            if drawn:
                raise messages.draws_others(fun.name, drawn[0])
            # Else a graph may begin the second run before the cotangents are there, and save no memory.
            with tf.control_dependencies(cotangents):
                again = [tf.identity(tensor) for tensor in inputs[:count]]
                unknown = captured.check()
            refuse_if_not_recording(fun.name)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                # The function reads its captured tensors themselves, so the tape watches these.
                again += closed_over
                tape.watch([*parts(again), *variables])
                results = fun(*again[:count])
            if sample is not None:
                sample.compare(fun.name, parts(results))
            pairs = [pair for pair in zip(results, cotangents, strict=True) if is_floating(pair[0])]
            gradients = tape.gradient(
                [result for result, _ in pairs], [*again, *variables], [cotangent for _, cotangent in pairs]
            )
            gradients = [_poisoned(gradient, unknown) for gradient in gradients]
            return (gradients[: len(again)], gradients[len(again) :]) if variables else gradients

        return outputs, rule

    return tuple(tf.custom_gradient(run)(*tensors, *closed_over))


# The types of operations that draw from a state begin so: those of `tf.random`, and of a `tf.random.Generator` (2.21).
_DRAWING = ("Random", "Parameterized", "TruncatedNormal", "Multinomial", "Stateful", "RngReadAndSkip")
# A call of another graph, and XLA's cluster, have a type that begins like these.
_CALLS = ("StatefulPartitionedCall",)


def _operations() -> Sequence[Any]:
    """Returns the operations of the graph that is being built."""
    if tf.executing_eagerly():
        return ()
    return [each for each in tf.compat.v1.get_default_graph().get_operations() if each.type not in _CALLS]


def _poisoned(gradient: Any, unknown: Any) -> Any:
    """Returns a gradient that is NaN if `unknown` is, and has NaN as its derivatives."""
    if gradient is None or unknown is None:
        return gradient if gradient is None else dense(gradient)
    return dense(gradient) * tf.cast(1 + unknown, gradient.dtype)


class _Captured:
    """Checksums of the variables that a function reads, which must not change before its second run.

    They are the trained variables that it reads, those in closures and in modules there, those of Keras, and NumPy's
    arrays in closures. Values are not saved, because a loop would save one for each iteration.
    """

    def __init__(self, fun: OutputFunction):
        self.name = fun.name
        self.captures = _inside(fun.captures(_is_wanted))
        # By identity. Without integers, because one may count the runs.
        self.numbers: dict[int, tuple[Any, Any]] = {}
        self._add([each for each in self.captures if not tf.as_dtype(each.dtype).is_integer])

    def note(self, fun: OutputFunction, watched: Sequence[Any]) -> None:
        """Adds the variables that are known only after the first run."""
        self._add([*watched, *fun.reads(), *self.captures])

    def _add(self, read: Sequence[Any]) -> None:
        for each in read:
            if id(each) not in self.numbers and isinstance(each, (tf.Variable, numpy.ndarray)):
                self.numbers[id(each)] = each, _number(each)

    def check(self) -> Any:
        """Compares the checksums; in a graph returns NaN if one differs, else 0, and in eager mode None.

        Raises:
            RuntimeError: One differs, in eager mode.
        """
        conditions = [(each, tf.reduce_all(_number(each) == number)) for each, number in self.numbers.values()]
        if not conditions:
            return None
        if not tf.executing_eagerly():
            return nan_unless([condition for _, condition in conditions])
        for each, condition in conditions:
            if not bool(condition):
                what = f"a variable ({each.name})" if isinstance(each, tf.Variable) else "a NumPy array"
                raise messages.changed_since(self.name, what)
        return None


def _is_wanted(value: object) -> bool:
    return isinstance(value, (tf.Variable, tf.Module, numpy.ndarray))


def _inside(captures: Iterable[Any]) -> list[Any]:
    """Replaces each module by its variables that are not trained: the tape tells which of the others are read."""
    inside: list[Any] = []
    for each in captures:
        inside += each.non_trainable_variables if isinstance(each, tf.Module) else [each]
    return [each for each in inside if tf.as_dtype(each.dtype) not in (tf.string, tf.resource, tf.variant)]


# The integers of each size in bytes.
_BITS = {2: tf.int16, 4: tf.int32, 8: tf.int64}


def _number(variable: Any) -> Any:
    """Returns a checksum in a graph, and in eager mode the bits, which need no copy."""
    with stop_recording():
        value = tf.convert_to_tensor(variable)
        if value.dtype.is_complex:
            value = tf.stack([tf.math.real(value), tf.math.imag(value)])
        bits = tf.bitcast(value, _BITS[value.dtype.size]) if value.dtype.size in _BITS else value
        if tf.executing_eagerly():
            return bits
        numbers = tf.cast(tf.reshape(bits, [-1]), tf.int64)
        # Odd factors that differ, because equal ones would miss two elements that change places.
        return tf.reduce_sum(numbers * (2 * tf.range(tf.size(numbers, tf.int64), dtype=tf.int64) + 1))
