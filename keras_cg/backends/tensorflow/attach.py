"""How outputs get the gradient that a rule says where a tape or an accumulator records: it is told of an operation."""

from __future__ import annotations

import functools
from collections.abc import Sequence
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

    An output that is differentiated all the same hangs on a variable or a tensor that `fun` captured.
    """
    needs_grad = recording.wanted(tensors)
    is_wanted = True in needs_grad
    inputs = recording.apart(tensors) if is_wanted else tensors
    closed_over = [*fun.captures(lambda value: is_part(value) and is_differentiated([value]))]
    with recording.VariableWatcher() as watcher, recording.watching(closed_over) as tape:
        outputs, pullback = fun(*inputs)
    results = parts(outputs)
    captured: Sequence[Any] = ()
    if is_differentiated(results):
        captured = _captured(pullback, results, watcher, closed_over, tape)
    elif not is_wanted:
        return outputs
    again = functools.partial(_again, fun, tensors, pullback)
    backward = Backward(pullback, again, tensors, needs_grad, outputs, captured)
    results = recording.copied(results)
    backward.record(results)
    return fill_all(outputs, results)


def _captured(
    pullback: Pullback, results: Sequence[Any], watcher: Any, closed_over: Sequence[Any], tape: Any
) -> Sequence[Any]:
    """The variables, or the tensor, that some results hang on besides the arguments."""
    # In the order of creation. Which was read first, TensorFlow (2.21) does not tell for eager operations, and a rule
    # must not get another order in a graph.
    variables = watcher.watched_variables()
    used: list[Any] = []
    if closed_over:
        with recording.stop_recording():
            slopes = tape.gradient(results, closed_over)
        used = [tensor for tensor, slope in zip(closed_over, slopes, strict=True) if slope is not None]
    pullback.capture([*(variable.name for variable in variables), *(graph.CLOSED_OVER for _ in used)])
    # Of several, nothing tells which is used first.
    if len(used) > 1 or bool(used) == bool(variables):
        pullback.capture([graph.CLOSED_OVER])
        raise messages.unserved_variables("tensorflow")
    return [*variables, *used]


def _again(fun: Function, tensors: Sequence[Any], pullback: Pullback) -> tuple[Pullback, list[Any]]:
    """The pullback of another run, on the arguments themselves, if the gradient is differentiated by them.

    In a graph no value can be looked at: then there are conditions under which it is the pullback of the first run.
    """
    if not is_differentiated(parts(tensors)):
        return pullback, []
    _, other = fun(*map(asarray, tensors))
    return other, pullback.check(other)
