"""Attaches a rule in eager mode: tapes and accumulators are told of an operation whose gradient the rule gives."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

from keras_cg.backends.tensorflow import graph, recording
from keras_cg.backends.tensorflow.backward import Backward
from keras_cg.backends.tensorflow.composite import fill_all, is_part, parts
from keras_cg.backends.tensorflow.recording import is_differentiated
from keras_cg.backends.tensorflow.tensors import asarray, is_recording
from keras_cg.engine import messages
from keras_cg.engine.contract import Function, Pullback, Tensors


def attach(fun: Function, tensors: Sequence[Any]) -> Tensors:
    if not is_recording():
        return fun(*tensors)[0]
    return _attach(fun, tensors) if tf.executing_eagerly() else graph.attach(fun, tensors)


def _attach(fun: Function, tensors: Sequence[Any]) -> Tensors:
    """Runs `fun` once, in eager mode, on copies of the arguments that are differentiated.

    An output that is differentiated nevertheless depends on a variable or a tensor that `fun` captured.
    """
    needs_grad = recording.needs_grad(tensors)
    inputs = recording.copies(tensors) if True in needs_grad else tensors
    closed_over = [*fun.captures(lambda value: is_part(value) and is_differentiated([value]))]
    tape: Any = tf.GradientTape(persistent=True, watch_accessed_variables=False) if closed_over else nullcontext()
    with recording.VariableWatcher() as watcher, tape:
        if closed_over:
            tape.watch(closed_over)
        outputs, pullback = fun(*inputs)
    results = parts(outputs)
    captured: Sequence[Any] = ()
    if is_differentiated(results):
        captured = _captured(fun, pullback, results, watcher, closed_over, tape)
    elif inputs is tensors:
        return outputs
    rerun = functools.partial(_rerun, fun, tensors, pullback)
    backward = Backward(fun.name, pullback, rerun, tensors, needs_grad, outputs, captured)
    results = recording.copies(results)
    backward.record(results)
    return fill_all(outputs, results)


def _captured(
    fun: Function, pullback: Pullback, results: Sequence[Any], watcher: Any, closed_over: Sequence[Any], tape: Any
) -> Sequence[Any]:
    """Returns the variables, or the tensor, that the results depend on and that are no arguments."""
    # In the order of creation. TensorFlow (2.21) does not tell for eager operations which was read first, and a rule
    # must not get another order in a graph.
    variables = watcher.watched_variables()
    used: list[Any] = []
    if closed_over:
        with recording.stop_recording():
            slopes = tape.gradient(results, closed_over)
        used = [tensor for tensor, slope in zip(closed_over, slopes, strict=True) if slope is not None]
    pullback.capture([*(variable.name for variable in variables), *(graph.CLOSED_OVER for _ in used)])
    # Of several tensors, nothing tells which is used first.
    if len(used) > 1 or bool(used) == bool(variables):
        pullback.capture([graph.CLOSED_OVER])
        raise messages.unserved_variables("tensorflow", "several of them, in a closure.", fun)
    return [*variables, *used]


def _rerun(fun: Function, tensors: Sequence[Any], pullback: Pullback) -> tuple[Pullback, list[Any]]:
    """Returns the pullback of another run, on the arguments themselves, if the gradient is differentiated by them.

    In a graph no value is known. There the pullback is right under the conditions that are returned with it.
    """
    if not is_differentiated(parts(tensors)):
        return pullback, []
    _, other = fun(*map(asarray, tensors))
    return other, pullback.check(other)
