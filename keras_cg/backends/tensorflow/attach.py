"""Attaches a rule in eager mode: tapes and accumulators are told of an operation whose gradient the rule gives."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from types import CodeType, FunctionType, MethodType
from typing import Any

import tensorflow as tf

from keras_cg.backends.tensorflow import graph, recording
from keras_cg.backends.tensorflow.backward import Backward
from keras_cg.backends.tensorflow.composite import fill_all, is_floating, is_part, parts
from keras_cg.backends.tensorflow.recording import is_differentiated
from keras_cg.backends.tensorflow.tensors import asarray, is_recording
from keras_cg.engine import messages
from keras_cg.engine.contract import Function, Pullback, Tensors
from keras_cg.engine.rule import reached


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
    shown = [value for value in fun.closed_over() if _is_source(value)]
    outputs, pullback, variables, used = _run(fun, inputs, shown)
    results = parts(outputs)
    captured: Sequence[Any] = ()
    if is_differentiated(results):
        # A run has found all that it depends on if nothing else that is differentiated is within reach.
        hidden = _hidden(fun, shown)
        if hidden:
            *_, used = _run(fun, inputs, [*shown, *hidden])
        captured = _captured(fun, pullback, variables, used)
    elif inputs is tensors:
        return outputs
    backward = Backward(
        fun.name, pullback, functools.partial(_rerun, fun, tensors), tensors, needs_grad, outputs, captured
    )
    results = recording.copies(results)
    backward.record(results)
    return fill_all(outputs, results)


def _run(fun: Function, inputs: Sequence[Any], watched: Sequence[Any]) -> tuple[Tensors, Pullback, list[Any], list[Any] | None]:
    """Runs `fun`. Returns its outputs, its pullback, and the trainable variables that it read.

    If there is something to be watched, returns also what of it, and of the variables, the outputs depend on.
    """
    tape: Any = tf.GradientTape() if watched else nullcontext()
    with recording.VariableWatcher() as watcher, tape:
        if watched:
            tape.watch(watched)
        outputs, pullback = fun(*inputs)
    # In the order of creation. TensorFlow (2.21) does not tell for eager operations which was read first, and a rule
    # must not get another order in a graph.
    variables = [variable for variable in watcher.watched_variables() if is_floating(variable)]
    if not watched:
        return outputs, pullback, variables, None
    sources = [*watched, *variables]
    with recording.stop_recording():
        slopes = tape.gradient(parts(outputs), sources)
    used = [source for source, slope in zip(sources, slopes, strict=True) if slope is not None]
    return outputs, pullback, variables, used


def _captured(fun: Function, pullback: Pullback, variables: list[Any], used: list[Any] | None) -> Sequence[Any]:
    """Returns the variables, or the tensor, that the outputs depend on and that are no arguments."""
    known = {id(variable) for variable in variables}
    used = variables if used is None else used
    others = [source for source in used if id(source) not in known]
    captured = others or (used and variables)
    names = [source.name if isinstance(source, tf.Variable) else graph.CLOSED_OVER for source in captured]
    pullback.capture(names or [graph.CLOSED_OVER])
    # Of several tensors, nothing tells which is used first.
    if not captured or (others and (len(used) > 1 or not is_part(others[0]))):
        raise messages.unserved_variables("tensorflow", "several of them, or one that is out of reach.", fun)
    return captured


def _is_source(value: Any) -> bool:
    """Whether a value is differentiated, but for trainable variables, of which TensorFlow tells when they are read."""
    if isinstance(value, tf.Variable):
        # A variable of several replicas has no handle outside of them.
        is_known = value.trainable or isinstance(value, tf.distribute.DistributedValues)
        return not is_known and is_differentiated([value.handle])
    return isinstance(value, tf.Tensor) and is_differentiated([value])


def _hidden(fun: Function, shown: Sequence[Any]) -> list[Any]:
    """Searches what `fun` can reach, and the globals that it names, for other values that are differentiated."""

    def is_wanted(value: Any) -> bool:
        # A variable is not entered, because its handle is differentiated with it.
        return isinstance(value, tf.Variable) or _is_source(value)

    named = _named_globals(fun)
    found = {id(each): each for each in [*fun.captures(is_wanted), *reached(named, is_wanted)] if _is_source(each)}
    return [each for key, each in found.items() if key not in map(id, shown)]


def _named_globals(fun: Function) -> list[Any]:
    """Returns the globals that the code of `fun` names, and other code of the same module that it can call."""
    user: Any = fun.user
    while isinstance(user, functools.partial):
        user = user.func
    scope = getattr(user if hasattr(user, "__globals__") else type(user).__call__, "__globals__", {})
    waiting, known = [user, *fun.closed_over()], {}
    for value in waiting:
        values: dict[Any, Any] = {}
        if isinstance(value, (MethodType, staticmethod, classmethod, property)):
            waiting += [getattr(value, name, None) for name in ("__func__", "__self__", "fget")]
        elif isinstance(value, FunctionType) and value.__globals__ is scope:
            codes = [value.__code__]
            for code in codes:
                codes += [each for each in code.co_consts if isinstance(each, CodeType)]
                values.update({name: scope[name] for name in code.co_names if name in scope})
        else:
            # An object can call the methods of its classes.
            own = [kind for kind in type(value).__mro__ if kind.__module__ == scope.get("__name__")]
            values = {(kind, name): each for kind in own for name, each in vars(kind).items()}
        waiting += [each for name, each in values.items() if name not in known]
        known.update(values)
    return [*known.values()]


def _rerun(fun: Function, tensors: Sequence[Any]) -> Pullback | None:
    """Returns the pullback of another run, on the arguments themselves, if the gradient is differentiated by them."""
    return fun(*map(asarray, tensors))[1] if is_differentiated(parts(tensors)) else None
