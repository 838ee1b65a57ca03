"""How outputs get the gradient that a rule says where a tape or an accumulator records: it is told of an operation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_cg import errors
from keras_cg.backends.tensorflow import graph, recording
from keras_cg.backends.tensorflow.backward import Backward
from keras_cg.backends.tensorflow.composite import dense, fill, fill_all, is_composite, is_part, parts
from keras_cg.backends.tensorflow.recording import is_differentiated
from keras_cg.backends.tensorflow.tensors import asarray, is_recording, is_tensor, nan_unless, own
from keras_cg.engine import linear
from keras_cg.engine.again import Run
from keras_cg.engine.contract import Function, Pullback, Tensors
from keras_cg.engine.held import Held


def attach(fun: Function, tensors: Sequence[Any]) -> Tensors:
    if not is_recording():
        return fun(*tensors)[0]
    return _attach(fun, tensors) if tf.executing_eagerly() else graph.attach(fun, tensors)


def _attach(fun: Function, tensors: Sequence[Any]) -> Tensors:
    """The same in eager mode: runs `fun` on copies of all that is differentiated, so that only the rule leads there.

    That includes what `fun` closes over. Cut from these, the outputs can only hang on variables, and need not if it
    stops the gradient; or on something that was not found.
    """
    wanted = recording.wanted(tensors)
    # Of all tensors, for one that is not looked for would be searched for tensors, as any other object.
    held = fun.held(is_tensor).movable(lambda tensor: is_part(tensor) and is_differentiated([tensor]))
    originals = [*tensors, *held.tensors]
    given = recording.apart(originals) if held.tensors or any(wanted) else originals
    around = _around(fun, held, len(tensors))
    used: list[Any] = []
    with recording.VariableWatcher() as watcher:
        if held.tensors:
            outputs, pullback, used = _run_watched(around, given, held.tensors)
        else:
            outputs, pullback = fun(*given)
    return finish(around, given, originals, tensors, wanted, watcher, outputs, pullback, used)


def finish(
    around: Callable[..., Any],
    given: Sequence[Any],
    originals: Sequence[Any],
    tensors: Sequence[Any],
    wanted: Sequence[bool],
    watcher: Any,
    outputs: Tensors,
    pullback: Pullback,
    used: Sequence[Any],
) -> Tensors:
    """The outputs of `around(*given)`, told to all tapes and accumulators.

    Args:
        around: The function.
        given: What it ran on, which was cut from `originals`.
        originals: The arguments of the call, and what the function closes over.
        tensors: The arguments of the call.
        wanted: Which of these somebody differentiates.
        watcher: What watched the run.
        outputs: What came out.
        pullback: The rule of the run.
        used: What the function closes over and the outputs hang on.
    """
    results = parts(outputs)
    is_hanging = is_differentiated(results)
    if not (used or is_hanging or any(wanted)):
        return outputs
    # In the order of creation. Which was read first, TensorFlow (2.21) does not tell for eager operations, and a rule
    # must not get another order in a graph.
    variables = watcher.watched_variables() if is_hanging else ()
    pullback.capture([*(variable.name for variable in variables), *(graph.CLOSED_OVER for _ in used)])
    # Of several, nothing tells which is used first.
    if (is_hanging and not variables) or len(used) > 1 or (used and variables):
        pullback.capture([graph.CLOSED_OVER])
        raise errors.unserved_variables("tensorflow")
    recorded = functools.partial(differentiable, around, given, originals, pullback)
    backward = Backward(pullback, recorded, tensors, wanted, outputs, [*variables, *used])
    results = recording.copied(results)
    backward.record(results)
    return fill_all(outputs, results)


def _around(fun: Function, held: Held, count: int) -> Callable[..., Any]:
    """`fun` as a function of its arguments and of what it closes over."""

    def around(*tensors: Any) -> Any:
        return held.build(tensors[count:])(*tensors[:count])

    return around if held.tensors else fun


def _run_watched(
    fun: Callable[..., Any], given: Sequence[Any], held: Sequence[Any]
) -> tuple[Tensors, Pullback, list[Any]]:
    """The same as `fun(*given)`, and those of `held`, whose copies come last in `given`, that the outputs hang on."""
    cut = given[len(given) - len(held) :]
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(cut)
        outputs, pullback = fun(*given)
    with recording.stop_recording():
        slopes = tape.gradient(parts(outputs), cut)
    return outputs, pullback, [tensor for tensor, slope in zip(held, slopes, strict=True) if slope is not None]


# --- the gradient of a gradient ---


class _Run(Run):
    """A run of which another one in a graph cannot be compared with it before the graph runs: see `_if_same`."""

    __slots__ = ()

    def _is_same(self, other: Any, first: Any) -> bool:
        if not tf.executing_eagerly():
            return True
        # A composite tensor is the same if all that it is made of is.
        pairs = [tf.nest.flatten(tensor, expand_composites=True) for tensor in (other, first)]
        return len(pairs[0]) == len(pairs[1]) and all(map(super()._is_same, *pairs))


def differentiable(
    fun: Any, given: Sequence[Any], originals: Sequence[Any], pullback: Pullback, is_transposed: bool
) -> Pullback:
    """`pullback` of `fun(*given)` as something that hangs on `originals`, which `given` was cut from."""
    if not is_differentiated(parts(originals)):
        return pullback
    run = _Run(own, fun, given, pullback)
    # Gradients that are replayed hang on upstream, too, for which an accumulator asks at once.
    replay = _rerun if is_transposed and not run.is_whole else _replay
    return run.differentiated(replay, _cut, originals, run.held)


def _cut(tensor: Any) -> Any:
    """The same values, which nobody differentiates."""
    with recording.stop_recording():
        return recording.apart([asarray(tensor)])[0]


def _replay(again: Callable[..., Sequence[Any]], values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """`values` as what hangs on the inputs by another run, which waits until a tape asks; and on themselves."""
    inputs = [*map(asarray, inputs)]
    if not tf.executing_eagerly() or recording.has_tangent(parts(inputs)):
        # Nothing waits in a graph; and an accumulator asks at once, where no tape can be used.
        return _rerun(again, values, inputs)
    # A variable hangs on itself, whatever runs.
    still = [place for place, value in enumerate(values) if not isinstance(value, tf.Variable)]
    first, moving = parts([values[place] for place in still]), parts(inputs)

    def backward(*cotangents: Any) -> list[Any]:
        arrived = [*map(dense, cotangents)]
        # Other tensors, for a tape goes by their identity.
        moved = [*map(tf.identity, moving)]
        recording.refuse_if_deaf()
        with tf.GradientTape() as tape:
            tape.watch(moved)
            others = again(*fill_all(inputs, moved))
        return [*arrived, *tape.gradient(parts([others[place] for place in still]), moved, arrived)]

    results = recording.copied(first)
    recording.record_operation("replayed", results, [*first, *moving], backward)
    filling = iter(results)
    return [value if isinstance(value, tf.Variable) else fill(value, filling) for value in values]


def _rerun(again: Callable[..., Sequence[Any]], values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """The same by another run at once."""
    return [_if_same(*pair) for pair in zip(again(*map(asarray, inputs)), values, strict=True)]


def _if_same(other: Any, first: Any) -> Any:
    """What another run gave; in a graph, where it could not be compared yet, NaN if that is another value."""
    if tf.executing_eagerly() or is_composite(first) or isinstance(first, tf.Variable):
        return other
    factor = 1 + nan_unless([linear.is_close(own, other, tf.stop_gradient(first))])
    return other * tf.cast(factor, other.dtype)
