"""A function that runs again in the backward pass, on TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_cg.backends.tensorflow.attach import is_source, outside
from keras_cg.backends.tensorflow.composite import Parts, dense, is_floating, is_part, parts
from keras_cg.backends.tensorflow.recording import (
    VariableWatcher,
    copies,
    is_differentiated,
    refuse_if_not_recording,
)
from keras_cg.backends.tensorflow.tensors import nan_unless, this_backend
from keras_cg.bridge import keras_interop, keras_scope
from keras_cg.engine import messages
from keras_cg.engine.contract import Tensors
from keras_cg.recipes.checkpoint import OutputFunction
from keras_cg.recipes.checkpoint.sample import Sample


def recompute(fun: OutputFunction, tensors: Sequence[Any]) -> Tensors:
    """Attaches a rule that runs the function again, and compares the outputs of the two runs."""
    # Not `generic`, because it would lose the variables that `fun` reads, and a graph would merge the second run with
    # the first. Not tf.recompute_grad (2.21), because it has no second derivative, nor one for captured tensors.
    count = len(tensors)
    # Not into layers and variables of Keras: a run tells which it reads, and a scope has the values in their place.
    holders = keras_interop.holders()
    found = outside(fun, lambda value: is_part(value) or isinstance(value, (tf.Variable, *holders)))
    found += keras_scope.values()
    closed_over = [each for each in found if is_part(each) or is_source(each)]

    def run(*inputs: Any) -> Any:
        with VariableWatcher() as watcher:
            arguments = Parts(inputs[:count])
            outputs = list(fun(*arguments.filled(copies(arguments.values))))
        is_known = any(map(is_source, closed_over)) or watcher.watched_variables()
        if not is_known and is_differentiated(parts(outputs)):
            raise messages.unserved_variables("tensorflow", messages.NO_CLOSURE, fun)
        sample = Sample(this_backend, parts(outputs))

        def rule(*cotangents: Any, variables: Sequence[Any] = ()) -> Any:
            # Else a graph may begin the second run before the cotangents are there, and save no memory.
            with tf.control_dependencies(cotangents):
                again = [tf.identity(tensor) for tensor in inputs[:count]]
            refuse_if_not_recording(fun.name)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                # The function reads its captured tensors themselves, so the tape watches these.
                tape.watch([*parts(again), *closed_over, *variables])
                results = fun(*again)
            conditions = sample.compare(fun.name, parts(results))
            pairs = [pair for pair in zip(results, cotangents, strict=True) if is_floating(pair[0])]
            again += closed_over
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
