"""Attaches a rule in eager mode: tapes and accumulators are told of an operation whose gradient the rule gives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import tensorflow as tf

from keras_cg.backends.tensorflow import graph, recording
from keras_cg.backends.tensorflow.backward import Backward
from keras_cg.backends.tensorflow.composite import fill_all, is_floating, is_part, parts
from keras_cg.backends.tensorflow.recording import is_differentiated
from keras_cg.backends.tensorflow.tensors import asarray, is_recording
from keras_cg.engine import messages
from keras_cg.engine.comparing import reached
from keras_cg.engine.contract import Function, Pullback, Tensors

_SOURCES = (tf.Tensor, tf.Variable)


def attach(fun: Function, tensors: Sequence[Any]) -> Tensors:
    if not is_recording():
        return fun.start(*tensors)[0]
    return _with_tapes(fun, tensors) if tf.executing_eagerly() else graph.with_override(fun, tensors)


def _with_tapes(fun: Function, tensors: Sequence[Any]) -> Tensors:
    """Runs `fun` once, in eager mode, on copies of the arguments that are differentiated.

    An output that is differentiated nevertheless depends on a variable or a tensor that `fun` captured. Only then the
    search for what is not in a cell begins, and only what it finds asks for another run.
    """
    needs_grad = recording.needs_grad(tensors)
    inputs = recording.copies(tensors) if True in needs_grad else tensors
    near = fun.closed_over()
    shown = [value for value in near if is_source(value)]
    # What a layer keeps of its last call would else ask for another run, which might draw or assign again.
    owners = [value for value in near if not isinstance(value, (*_SOURCES, type, ModuleType))]
    shown += [value for owner in owners for value in getattr(owner, "__dict__", {}).values() if is_source(value)]
    outputs, pullback, variables, used = _run(fun, inputs, shown)
    results = parts(outputs)
    captured: Sequence[Any] = ()
    if is_differentiated(results):
        hidden = _hidden(fun, shown)
        if hidden:
            *_, used = _run(fun, inputs, [*shown, *hidden])
        captured = _captured(fun, pullback, variables, used, tensors)
    elif inputs is tensors:
        return outputs
    rerun = functools.partial(_rerun, fun, tensors)
    backward = Backward(fun.name, pullback, rerun, tensors, needs_grad, outputs, captured)
    results = recording.copies(results)
    backward.record(results)
    return fill_all(outputs, results)


def _run(
    fun: Function, inputs: Sequence[Any], watched: Sequence[Any]
) -> tuple[Tensors, Pullback, list[Any], list[Any]]:
    """Runs `fun`. Returns its outputs, its pullback, the trainable variables that it read, and which sources it used.

    The sources are what is `watched` and the variables. If nothing is watched, all variables count as used.
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
        return outputs, pullback, variables, variables
    sources = [*watched, *variables]
    with recording.stop_recording():
        slopes = tape.gradient(parts(outputs), sources)
    return outputs, pullback, variables, [one for one, slope in zip(sources, slopes, strict=True) if slope is not None]


def _captured(
    fun: Function, pullback: Pullback, variables: list[Any], used: list[Any], tensors: Sequence[Any]
) -> Sequence[Any]:
    """Returns the variables, or the tensor, that the outputs depend on and that are no arguments."""
    used = [*{id(source): source for source in used}.values()]
    # A variable that is not trainable is read as any other one where a tape watches it.
    trainable = {id(variable) for variable in variables if variable.trainable}
    others = [source for source in used if id(source) not in trainable]
    captured = others or (used and variables)
    names = [source.name if isinstance(source, tf.Variable) else graph.CLOSED_OVER for source in captured]
    error = messages.argument_also_captured(fun.name, captured, tensors)
    if error is not None and not pullback.takes_variables():
        raise error
    pullback.capture(names or [graph.CLOSED_OVER], captured)
    # Of several tensors, nothing tells which is used first.
    if not captured or (others and (len(used) > 1 or not (is_part(others[0]) or isinstance(others[0], tf.Variable)))):
        raise messages.unserved_variables("tensorflow", "several of them, or one that is out of reach.", fun)
    return captured


def is_source(value: Any) -> bool:
    """Whether a value is differentiated, but for trainable variables, of which TensorFlow tells when they are read."""
    if isinstance(value, tf.Variable):
        # A variable of several replicas has no handle outside of them.
        is_known = value.trainable or isinstance(value, tf.distribute.DistributedValues)
        return not is_known and is_differentiated([value.handle])
    return isinstance(value, tf.Tensor) and is_differentiated([value])


def _hidden(fun: Function, shown: Sequence[Any]) -> list[Any]:
    """Searches for other values that are differentiated."""
    found = outside(fun, lambda value: isinstance(value, _SOURCES))
    return [each for each in found if id(each) not in map(id, shown) and is_source(each)]


def outside(fun: Any, is_wanted: Callable[[Any], bool]) -> list[Any]:
    """Returns the wanted values that `fun` can reach without its arguments, and from the globals that it names."""
    found = [*fun.captures(is_wanted), *reached(_named_globals(fun), is_wanted)]
    return [*{id(each): each for each in found}.values()]


def _named_globals(fun: Any) -> list[Any]:
    """Returns the globals that the code of `fun` names, and the code of the same module that it can call."""
    user: Any = fun.user
    while isinstance(user, functools.partial):
        user = user.func
    scope = getattr(user if hasattr(user, "__globals__") else type(user).__call__, "__globals__", {})
    waiting, known = [user, *fun.closed_over()], {}
    for value in waiting:
        if isinstance(value, (MethodType, staticmethod)):
            waiting += [value.__func__, getattr(value, "__self__", None)]
        codes = [value.__code__] if isinstance(value, FunctionType) and value.__globals__ is scope else []
        for code in codes:
            codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        named: dict[Any, Any] = {name: scope[name] for code in codes for name in code.co_names if name in scope}
        if type(value).__module__ == scope.get("__name__"):
            named = {(type(value), name): each for name, each in vars(type(value)).items()}
        waiting += [each for name, each in named.items() if name not in known]
        known.update(named)
    return [*known.values()]


def _rerun(fun: Function, tensors: Sequence[Any]) -> Pullback | None:
    """Returns the pullback of another run, on the arguments themselves, if the gradient is differentiated by them."""
    return fun(*map(asarray, tensors))[1] if is_differentiated(parts(tensors)) else None
