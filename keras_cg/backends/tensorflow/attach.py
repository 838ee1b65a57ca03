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
from keras_cg.backends.tensorflow.composite import PLAIN, Parts, is_floating, is_part, parts
from keras_cg.backends.tensorflow.recording import is_differentiated
from keras_cg.engine import messages
from keras_cg.engine.contract import Function, Tensors
from keras_cg.engine.references import reached

_SOURCES = (tf.Tensor, tf.Variable)


def attach(fun: Function, tensors: Sequence[Any]) -> Tensors:
    """Runs `fun` once, in eager mode, on copies of the arguments that are differentiated.

    An output that is differentiated nevertheless depends on a variable or a tensor that `fun` captured. Only then the
    search for what is not in a cell begins, and only what it finds asks for another run.
    """
    if not tf.executing_eagerly():
        return graph.with_override(fun, tensors)
    arguments = Parts(tensors)
    needs_grad = recording.needs_grad(arguments)
    copied = recording.copies(arguments.values) or [tf.constant(0.0)]
    inputs = arguments.filled(copied) if True in needs_grad else tensors
    shown = _shown(fun)
    outputs, variables, used = _run(fun.complete, inputs, shown)
    results = Parts(outputs)
    is_linked = is_differentiated(results.values)
    if is_linked:
        hidden = _hidden(fun, [*shown, *[variable.handle for variable in variables]])
        # What the run has built, such as the entry of a cache, is no source: it comes from one.
        built = {id(each) for each in hidden if recording.is_younger(each, copied[0])}
        if len(hidden) > len(built):
            *_, used = _run(lambda *inputs: fun.repeat(*inputs)[0], inputs, [*shown, *hidden])
            if not built.isdisjoint(map(id, used)):
                raise messages.unserved_variables("tensorflow", "a cache that the function fills with it.", fun)
    else:
        used = []
    if results.values and (shown or variables):
        used = [*used, *_unseen(fun, arguments, [*shown, *variables], used)]
    if not is_linked and not used and inputs is tensors:
        return outputs
    captured = _captured(fun, variables, used, tensors) if is_linked or used else ()
    backward = Backward(fun, arguments, needs_grad, results, captured)
    recorded = recording.copies(results.values)
    backward.record(recorded)
    return results.filled(recorded)


def _shown(fun: Function) -> list[Any]:
    """Returns the sources that a quick look shows: in cells, in the objects there, and in the globals of the code."""
    near = fun.closed_over()
    for value in near[:]:
        # What a layer keeps of its last call would else ask for another run, which might draw or assign again.
        if not isinstance(value, (*_SOURCES, type, ModuleType)):
            near += getattr(value, "__dict__", {}).values()
    scope, code = getattr(fun.user, "__globals__", {}), getattr(fun.user, "__code__", None)
    near += map(scope.get, code.co_names) if code is not None else ()
    found = []
    for value in near:
        if isinstance(value, _SOURCES) and is_source(value):
            found.append(value)
    return found


def _run(
    run: Callable[..., Tensors], inputs: Sequence[Any], watched: Sequence[Any]
) -> tuple[Tensors, list[Any], list[Any]]:
    """Does a run. Returns its outputs, the trainable variables that it read, and which sources it used.

    The sources are what is `watched` and the variables. If nothing is watched, all variables count as used.
    """
    tape: Any = tf.GradientTape() if watched else nullcontext()
    with recording.VariableWatcher() as watcher, tape:
        if watched:
            tape.watch(watched)
        outputs = run(*inputs)
    # In the order of creation. TensorFlow (2.21) does not tell for eager operations which was read first, and a rule
    # must not get another order in a graph.
    variables = [variable for variable in watcher.watched_variables() if is_floating(variable)]
    if not watched:
        return outputs, variables, variables
    sources = [*watched, *variables]
    with recording.stop_recording():
        slopes = tape.gradient(parts(outputs), sources)
    return outputs, variables, [one for one, slope in zip(sources, slopes, strict=True) if slope is not None]


def _captured(fun: Function, variables: list[Any], used: list[Any], tensors: Sequence[Any]) -> Sequence[Any]:
    """Returns the variables, or the tensor, that the outputs depend on and that are no arguments."""
    used = [*{id(source): source for source in used}.values()]
    # A variable that is not trainable is read as any other one where a tape watches it.
    trainable = {id(source) for each in variables if each.trainable for source in (each, each.handle)}
    others = [source for source in used if id(source) not in trainable]
    captured = others or (used and variables)
    names = [source.name if isinstance(source, tf.Variable) else graph.CLOSED_OVER for source in captured]
    error = messages.argument_also_captured(fun.name, captured, tensors)
    if error is not None and not fun.takes_variables():
        raise error
    fun.capture(names or [graph.CLOSED_OVER], captured)
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


def _unseen(fun: Function, arguments: Parts, sources: list[Any], used: list[Any]) -> list[Any]:
    """Returns the `sources` that the outputs depend on, though no derivative shows it.

    TensorFlow (2.21) records nothing of what `tf.numpy_function` reads in eager mode. A graph shows it, and tells it
    from what is stopped or only the rule reads. What cannot be traced is unknown, and counts as read.
    """
    known = {id(source) for source in used}
    # A variable is watched since it was read, unless the tape was told not to watch variables.
    keys = {
        id(each.handle if isinstance(each, tf.Variable) else each): each for each in sources if id(each) not in known
    }
    silent = {key: each for key, each in keys.items() if is_differentiated([getattr(each, "handle", each)])}
    if not silent:
        return []
    try:
        found = graph.dependencies(fun, arguments)
    except Exception:
        return [*silent.values()]
    return [silent[id(each)] for each in found if id(each) in silent]


def _hidden(fun: Function, shown: Sequence[Any]) -> list[Any]:
    """Searches for other values that are differentiated."""
    # Not for the tensors of a graph, which a `tf.function` holds and a tape knows since it was traced.
    found = outside(fun, lambda value: isinstance(value, (PLAIN[0], tf.Variable)))
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
