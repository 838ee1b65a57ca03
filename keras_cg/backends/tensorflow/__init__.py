"""The TensorFlow backend: `tf.custom_gradient` for graphs, a recorded operation for tapes and accumulators."""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import tensorflow as tf

# What tapes and accumulators record has no public name (TensorFlow 2.21). If one of these is gone, importing this file
# fails, and with it the backend.
from tensorflow.python.eager.forwardprop_util import pack_tangents
from tensorflow.python.eager.record import (
    VariableWatcher,
    could_possibly_record,
    record_operation,
    should_record_backprop,
    stop_recording,
)

from keras_cg import closure, errors
from keras_cg.backends import Function, PlainFunction

__all__ = [
    "asarray",
    "attach",
    "cast",
    "children",
    "compiled",
    "converted",
    "devices",
    "double_precision",
    "dtype",
    "is_recording",
    "is_tensor",
    "jacobian",
    "jvp",
    "namespace",
    "recompute",
    "shape",
    "tensors",
    "to_numpy",
    "vjp",
]

namespace = tf.experimental.numpy
tensors = (tf.Tensor, tf.Variable, tf.__internal__.CompositeTensor)

# What is a tensor and nothing more: for most values the exact type tells at once what else takes several questions.
_PLAIN = (tf.__internal__.EagerTensor, tf.__internal__.SymbolicTensor)

# Which operation of its graph one is, in the order of creation. Public is only a list of all of them (2.21), and with
# it the time to trace would grow with the square of the number of calls.
_number = tf.Operation._id.fget

# For the names of gradients, which are registered for good, as those of `tf.custom_gradient` are.
_numbers = itertools.count()

# TensorFlow shows it as the reason of a LookupError, as bytes.
_DROPPED = " ".join(
    str(
        errors.rule_dropped(
            "what is outside of tf.vectorized_map (and of a jacobian with experimental_use_pfor=True)",
            "use tf.map_fn, call the function on the whole batch, or pass experimental_use_pfor=False",
        )
    ).split()
)


def is_tensor(value: object) -> bool:
    if type(value) in _PLAIN:
        return True
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return value.dtype.kind in "biufc"
    return bool(tf.is_tensor(value))


def asarray(value: Any) -> Any:
    if type(value) is _PLAIN[0] and tf.executing_eagerly():
        return value
    if isinstance(value, tf.__internal__.CompositeTensor) and not isinstance(value, tf.Variable):
        return value
    return tf.convert_to_tensor(value)


def to_numpy(tensor: Any) -> numpy.ndarray:
    dense = _dense(tensor)
    # By its method, for NumPy refuses a single bfloat16 (TensorFlow 2.21).
    return numpy.asarray(dense.numpy() if hasattr(dense, "numpy") else dense)


def shape(tensor: Any) -> tuple[int | None, ...] | None:
    if type(tensor) is _PLAIN[0]:
        return tuple(tensor.shape)
    if isinstance(tensor, tf.IndexedSlices):
        # Its own shape says nothing of what its values are.
        return (tensor.shape[0] if tensor.shape.rank else None, *tensor.values.shape[1:])
    return None if tensor.shape.rank is None else tuple(tensor.shape)


def dtype(tensor: Any) -> str:
    return str(tensor.dtype.name)


def cast(value: Any, dtype: str) -> Any:
    return tf.cast(value, dtype)


def children(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    # Lists and dicts that are attributes of a module or a layer are wrapped, so that they are saved with it.
    if isinstance(value, list):
        return list(value), list
    if isinstance(value, dict):
        return list(value.values()), lambda parts: dict(zip(value, parts, strict=True))
    if hasattr(value, "__tf_flatten__") or hasattr(value, "__attrs_attrs__"):
        return tf.nest.flatten(value), lambda parts: tf.nest.pack_sequence_as(value, parts)
    return None


def converted(fun: Callable[..., Any]) -> Callable[..., Any]:
    if tf.executing_eagerly():
        return fun
    # As TensorFlow's own wrappers do, for which these are exported; AutoGraph itself passes over `CustomGradient`.
    context = tf.__internal__.autograph.control_status_ctx()
    return tf.__internal__.autograph.tf_convert(fun, context) if context.status.name == "ENABLED" else fun


def is_recording() -> bool:
    return not tf.executing_eagerly() or bool(could_possibly_record())


def attach(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    if not is_recording():
        return fun(*tensors)[0]
    eager = tf.executing_eagerly()
    graph = tf.compat.v1.get_default_graph()
    if eager:
        # A tape or an accumulator also records what happens in here. That is cut from the inputs, so that the rule
        # alone counts; in a graph only the rule leads to it, and is differentiated through it.
        is_asked = _is_differentiated(_parts(tensors))
        given = _apart(tensors) if is_asked else tensors
    else:
        # A rule may call this in the graph of a gradient, with tensors of the graph that is differentiated. When that
        # gradient is differentiated again, only tensors of its own graph are within reach.
        given = tensors = [_each(functools.partial(_inside, graph), each) for each in tensors]
    before = 0 if eager else graph.version
    with VariableWatcher() as watcher:
        outputs, pullback = fun(*given)
    # In the order of creation. Which was read first, TensorFlow (2.21) does not tell for eager operations, and a rule
    # must not get another order in a graph.
    variables = watcher.watched_variables()
    results = _parts(outputs)
    used: list[Any] = []
    if eager:
        # Cut from the inputs, the outputs can only hang on what `fun` captured, and need not if it stops the gradient.
        is_hanging = _is_differentiated(results)
        if not is_asked and not is_hanging:
            return outputs
        if is_hanging:
            outputs, pullback, used = _run_cut(fun, given, outputs, pullback)
            results = _parts(outputs)
            is_hanging = _is_differentiated(results)
        variables = variables if is_hanging else ()
        # Of several, nothing tells which is used first.
        captured, is_unserved = [], (is_hanging and not variables) or len(used) > 1 or bool(used and variables)
    else:
        results = [_inside(graph, each) for each in results]
        sources = _sources(results, _parts(tensors), before)
        if _is_vectorizing():
            # The rule serves whoever differentiates in the body. Afterwards it is gone, and this is what they meet,
            # even where plain differentiation would not get from the outputs to the inputs.
            with stop_recording():
                linked = tf.raw_ops.IdentityN(input=[*results, *_parts(tensors)])[: len(results)] if results else []
                results = [tf.raw_ops.PreventGradient(input=each, message=_DROPPED) for each in linked]
        variables = [each for each in variables if id(_inside(graph, each.handle)) in sources]
        read = _parts(list(sources.values()))
        captured, is_unserved = _not_constant(read), _is_differentiated(read)
    closed_over = "(a tensor that is being differentiated)"
    pullback.capture([*(each.name for each in variables), *(closed_over for _ in used)])
    if is_unserved:
        pullback.capture([closed_over])
        raise errors.unserved_variables("tensorflow")
    variables = [*variables, *used]

    values = [tf.convert_to_tensor(each) for each in variables]
    inputs = [*_parts(tensors), *values, *captured]
    # How to lay cotangents out like the outputs, without the values of these, which would live as long as the tape.
    shells = [each if _is_composite(each) else _is_floating(each) for each in outputs]
    is_being_recorded = True
    # Weakly, for a tape must not hold what nobody else needs.
    first: list[weakref.ref[Any]] = []

    def run_again() -> Any:
        again, pull = fun(*tensors)
        pairs = [(found, each()) for found, each in zip(_values(again), first, strict=False)]
        with stop_recording():
            if tf.executing_eagerly() and not all(_is_repeated(*pair) for pair in pairs if pair[1] is not None):
                raise errors.not_repeated()
        return pull

    def backward(*cotangents: Any) -> list[Any]:
        # When somebody differentiates this gradient, the rule must hang on the inputs, as what was cut does not.
        pull = run_again() if eager and could_possibly_record() else pullback

        def rule(*cotangents: Any) -> list[Any]:
            arriving = map(_dense, cotangents)
            gradients, others = pull([_upstream(shell, arriving) for shell in shells], variables)
            pairs = zip([*tensors, *values], [*gradients, *others], strict=True)
            # Nobody can tell in a graph which of the values that `fun` closes over will be differentiated later. NaN is
            # no wrong number, and not even computed where nobody asks for it.
            return [*(part for pair in pairs for part in _gradient_parts(*pair)), *_unknown(captured, cotangents)]

        # Whoever asks before the operation is recorded is an accumulator, which transposes what it gets.
        return _linear(rule, cotangents) if is_being_recorded else rule(*cotangents)

    with stop_recording():
        wrapped = _copied(results) if eager else _wrap(graph, results, inputs, backward)
    record_operation("custom_gradient", wrapped, inputs, backward)
    is_being_recorded = False
    filling = iter(wrapped)
    returned = tuple(_fill(each, filling) for each in outputs)
    if eager:
        first += map(weakref.ref, _values(returned))
    return returned


def _run_cut(
    fun: Function, given: Sequence[Any], outputs: tuple[Any, ...], pullback: Any
) -> tuple[tuple[Any, ...], Any, list[Any]]:
    """`outputs` and `pullback`, by another run of `fun` if it closes over tensors: then cut from those.

    Also given are those of the latter that the outputs hang on.
    """
    held, rebuild = closure.take_apart(fun, (), _is_differentiated_tensor, children)
    if not held:
        return outputs, pullback, []
    cut = _apart(held)
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        # Some cannot be replaced, and are used as they are.
        tape.watch([*held, *cut])
        outputs, pullback = rebuild(cut)[0](*given)
    with stop_recording():
        slopes = [tape.gradient(_parts(outputs), pair) for pair in zip(held, cut, strict=True)]
    used = [each for each, pair in zip(held, slopes, strict=True) if any(slope is not None for slope in pair)]
    return outputs, pullback, used


def _is_differentiated_tensor(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and _is_differentiated([value])


def _wrap(graph: Any, results: list[Any], inputs: list[Any], backward: Callable[..., list[Any]]) -> list[Any]:
    """`results`, from which `graph` reaches `inputs` by `backward` alone: what `tf.custom_gradient` does, no more."""
    if not results or not inputs:
        return results
    name, count = f"KerasCustomGradient-{next(_numbers)}", len(results)

    def gradient(operation: Any, *cotangents: Any) -> list[Any]:
        return [None] * count + backward(*cotangents[:count])

    tf.RegisterGradient(name)(gradient)
    with graph.gradient_override_map({"IdentityN": name}):
        return list(tf.identity_n([*results, *inputs])[:count])


def _is_composite(value: Any) -> bool:
    return isinstance(value, tf.__internal__.CompositeTensor) and not isinstance(value, tf.Variable)


def _is_floating(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def _parts(tensors: Sequence[Any]) -> list[Any]:
    """The tensors that have a gradient: those of `tensors`, and those that composite ones are made of."""
    return [part for part in _values(tensors) if _is_floating(part)]


def _fill(tensor: Any, parts: Iterator[Any]) -> Any:
    """`tensor` with the next ones of `parts` in their places."""
    if type(tensor) in _PLAIN:
        return next(parts) if _is_floating(tensor) else tensor
    flat = tf.nest.flatten(tensor, expand_composites=True)
    filled = [next(parts) if _is_floating(each) else each for each in flat]
    return tf.nest.pack_sequence_as(tensor, filled, expand_composites=True)


def _upstream(shell: Any, arriving: Iterator[Any]) -> Any:
    """What arrives at an output: nothing if it has no gradient."""
    if isinstance(shell, bool):
        return next(arriving) if shell else None
    return _fill(shell, arriving)


def _gradient_parts(tensor: Any, gradient: Any) -> list[Any]:
    """The gradients of the parts of `tensor`."""
    if type(gradient) in _PLAIN and type(tensor) in _PLAIN:
        return [gradient]
    if gradient is None:
        return [None] * len(_parts([tensor]))
    if isinstance(gradient, tf.IndexedSlices) and not _is_composite(tensor):
        # Copied, because a graph (2.21) does not find what it did not compute itself, as the indices that were given.
        size = None if gradient.dense_shape is None else tf.identity(gradient.dense_shape)
        return [tf.IndexedSlices(tf.identity(gradient.values), tf.identity(gradient.indices), size)]
    tf.nest.assert_same_structure(tensor, gradient, expand_composites=True)
    return _parts([gradient])


def _apart(tensors: Sequence[Any]) -> list[Any]:
    """`tensors` without their gradients, which no tape and no accumulator knows."""
    with stop_recording():
        copies = iter(_copied(_values(tensors)))
    return [_each(lambda _: next(copies), each) for each in tensors]


def _copied(tensors: list[Any]) -> list[Any]:
    """The same values as other tensors; all by one operation, as most of its time is not spent on values."""
    return list(tf.identity_n(tensors)) if tensors else []


def _each(function: Callable[[Any], Any], tensor: Any) -> Any:
    """`function` of `tensor`, or of every part of a composite one."""
    if type(tensor) in _PLAIN:
        return function(tensor)
    return tf.nest.map_structure(function, tensor, expand_composites=True)


def _each_floating(function: Callable[[Any], Any], tensor: Any) -> Any:
    """The same, but for the parts that say where others stand."""
    return _fill(tensor, map(function, _parts([tensor])))


def _dense(cotangent: Any) -> Any:
    """An upstream as a tensor: that of what was gathered comes as slices."""
    return tf.convert_to_tensor(cotangent) if isinstance(cotangent, tf.IndexedSlices) else cotangent


def _is_differentiated(tensors: list[Any]) -> bool:
    """Whether a tape records any of `tensors`, or an accumulator has a tangent for it."""
    return bool(should_record_backprop(tensors) or pack_tangents(tensors).tangents)


def _sources(results: list[Any], given: list[Any], before: int) -> dict[int, Any]:
    """What `results` hang on besides `given` that the graph of version `before` had, or captured since then."""
    sources: dict[int, Any] = {}
    known = {id(each) for each in given}
    todo = list(results)
    while todo:
        tensor = todo.pop()
        if id(tensor) in known:
            continue
        known.add(id(tensor))
        operation = tensor.op
        # Two nodes of every graph are no operations of it.
        if _number(operation) < before + 2 or operation.type in ("Placeholder", "Const"):
            sources[id(tensor)] = tensor
        elif operation.type != "StopGradient":
            todo += [each for each in operation.inputs if _is_floating(each) or each.dtype in (tf.resource, tf.variant)]
    return sources


def _not_constant(tensors: list[Any]) -> list[Any]:
    return [each for each in tensors if each.op.type != "Const"]


def _inside(graph: Any, tensor: Any) -> Any:
    """What stands for `tensor`, of an outer graph, in `graph`."""
    is_there = getattr(tensor, "graph", None) is graph or not hasattr(graph, "capture")
    return tensor if is_there else graph.capture(tensor)


def _linear(rule: Callable[..., list[Any]], cotangents: Sequence[Any]) -> list[Any]:
    """The gradients by a rule that is linear in upstream: only then is its transpose the forward derivative."""
    gradients = [None if each is None else _dense(each) for each in rule(*cotangents)]
    with stop_recording():
        steps = [_uneven(each) for each in cotangents]
        stepped = rule(*steps)
        after = rule(*(each - 2 * step for each, step in zip(cotangents, steps, strict=True)))
        same = tf.reduce_all(
            [
                _is_same(_dense(last), first - 2 * _dense(second))
                for last, first, second in zip(after, gradients, stepped, strict=True)
                if first is not None
            ]
        )
    if tf.executing_eagerly():
        if not same:
            raise errors.not_linear()
        return gradients
    # No value can be looked at, so that the answer cannot be an error; a derivative of NaN at least is no wrong number.
    unknown = _total(cotangents) * tf.where(same, 0.0, numpy.nan)
    return [None if each is None else each + tf.cast(unknown, each.dtype) for each in gradients]


def _unknown(tensors: list[Any], cotangents: Sequence[Any]) -> list[Any]:
    """NaN in the shapes of `tensors`, with derivatives of NaN but for what is multiplied by zero."""
    hanging = [tf.zeros_like(each) + tf.cast(_total(cotangents), each.dtype) for each in tensors]
    return [tf.math.multiply_no_nan(tf.cast(numpy.nan, each.dtype), each) + numpy.nan for each in hanging]


def _total(cotangents: Sequence[Any]) -> Any:
    """A number that hangs on all of `cotangents`."""
    return tf.add_n([tf.reduce_sum(tf.cast(tf.math.real(each), tf.float32)) for each in cotangents])


def _uneven(tensor: Any) -> Any:
    """Values of either sign and many sizes, in the shape of `tensor`."""
    values = 100 * tf.cos(tf.range(tf.size(tensor, tf.int64), dtype=tf.float64))
    return tf.reshape(tf.cast(values, tensor.dtype), tf.shape(tensor)) * (1 + 0.5j if tensor.dtype.is_complex else 1)


def _is_same(found: Any, expected: Any) -> Any:
    """Whether two gradients are equal up to rounding; what is not finite is taken to be."""
    size = tf.reduce_max(tf.where(tf.math.is_finite(tf.abs(expected)), tf.abs(expected), 0))
    tolerance = 0.1 if expected.dtype.size <= 2 else 1e-3
    return tf.logical_not(tf.reduce_any(tf.abs(found - expected) > tolerance * size))


def _values(tensors: Sequence[Any]) -> list[Any]:
    """`tensors`, composite ones as those that they are made of."""
    if all(type(each) in _PLAIN for each in tensors):
        return list(tensors)
    return list(tf.nest.flatten(list(tensors), expand_composites=True))


def _is_repeated(found: Any, expected: Any) -> bool:
    """Whether two eager tensors are equal, but for the rounding of sums in another order."""
    if found.shape != expected.shape:
        return False
    same = (found == expected) | ((found != found) & (expected != expected))
    if _is_floating(expected):
        magnitude = tf.abs(expected)
        size = tf.reduce_max(tf.where(tf.math.is_finite(magnitude), magnitude, 0))
        same |= tf.abs(found - expected) <= {2: 0.05, 4: 1e-5, 8: 1e-13}[size.dtype.size] * size
    return bool(tf.reduce_all(same))


def _is_vectorizing() -> bool:
    """Whether the graph being built is the body of a vectorized loop, which is rebuilt without its custom gradients."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        # The scope that tf.vectorized_map opens around the body (2.21): nothing else tells that it is one.
        if "loop_body" in graph.get_name_scope().split("/"):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def vjp(
    fun: PlainFunction, tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], Callable[[Sequence[Any]], tuple[Any, ...]], tuple[Any, ...]]:
    outputs, inputs, tape, aux = _recorded(fun, tensors)

    def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
        found = tape.gradient(outputs, inputs, list(cotangents), tf.UnconnectedGradients.ZERO)
        return tuple(
            gradient if _is_composite(each) else _dense(gradient) for each, gradient in zip(inputs, found, strict=True)
        )

    return outputs, pullback, aux


def _recorded(
    fun: PlainFunction, tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], list[Any], tf.GradientTape, tuple[Any, ...]]:
    """A run of `fun`, and the tape that recorded it from `inputs` on."""
    # A tape goes by the identity of tensors: one that is passed twice, or closed over as well, must not be taken for
    # the argument that is differentiated.
    inputs = [_each(tf.identity, each) for each in tensors]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(inputs)
        outputs, aux = fun(*inputs)
    return outputs, inputs, tape, aux


def jvp(
    fun: PlainFunction, tensors: Sequence[Any], tangents: Sequence[Any]
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    # The vjp of `cotangents -> gradients`, which is a linear map: the transpose of a transpose. A ForwardAccumulator
    # does that, too, but around a tf.function TensorFlow (2.21) does not ask whether the map is linear.
    outputs, pullback, aux = vjp(fun, tensors)

    def pull(*cotangents: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return pullback(cotangents), ()

    gradients, push, _ = vjp(pull, [_each_floating(tf.zeros_like, each) for each in outputs])
    push_elsewhere = vjp(pull, [_each_floating(_uneven, each) for each in outputs])[1]
    moved = push(tangents)
    with stop_recording():
        # That of a linear rule is the same wherever the rule is transposed, and the rule gives zero for zero.
        pairs = zip(_parts(push_elsewhere(tangents)), _parts(moved), strict=True)
        nothing = [tf.reduce_all((each == 0) | (each != each)) for each in _parts(gradients)]
        same = tf.reduce_all([*(_is_same(*pair) for pair in pairs), *nothing])
    if not tf.executing_eagerly():
        # No value can be looked at, so that the answer cannot be an error; NaN at least is no wrong number.
        unknown = tf.where(same, tf.zeros([], tf.float32), numpy.nan)
        moved = tuple(_each_floating(lambda part: part + tf.cast(unknown, part.dtype), each) for each in moved)
    elif not same:
        raise errors.not_linear()
    return outputs, moved, aux


def jacobian(
    fun: PlainFunction, tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], tuple[tuple[Any, ...], ...], tuple[Any, ...]]:
    outputs, inputs, tape, aux = _recorded(fun, tensors)

    def rows(output: Any) -> list[Any]:
        if output.shape.num_elements() == 0:  # TensorFlow (2.21) stumbles over it
            return [tf.zeros([*output.shape, *each.shape], each.dtype) for each in inputs]
        # Not vectorized: the rule would be dropped there.
        found = tape.jacobian(output, inputs, tf.UnconnectedGradients.ZERO, experimental_use_pfor=False)
        return list(found)

    return outputs, tuple(tuple(rows(output)) for output in outputs), aux


def recompute(fun: Callable[..., tuple[Any, ...]], tensors: Sequence[Any]) -> tuple[Any, ...]:
    # Not tf.recompute_grad, which has no second derivative (2.21), and none for the tensors that `fun` closes over.
    held, rebuild = closure.take_apart(fun, (), lambda value: isinstance(value, tf.Tensor), children)
    given = len(tensors)

    def run(*inputs: Any) -> Any:
        with stop_recording():
            outputs = list(rebuild(inputs[given:])[0](*inputs[:given]))

        def rule(*cotangents: Any, variables: Sequence[Any] = ()) -> Any:
            with tf.control_dependencies(cotangents):  # or else a graph would merge the second run with the first
                again = [tf.identity(each) for each in inputs]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([*_parts(again), *variables])
                found = rebuild(again[given:])[0](*again[:given])
            pairs = [(out, arrived) for out, arrived in zip(found, cotangents, strict=True) if _is_floating(out)]
            gradients = tape.gradient([out for out, _ in pairs], [*again, *variables], [each for _, each in pairs])
            gradients = [None if each is None else _dense(each) for each in gradients]
            return (gradients[: len(again)], gradients[len(again) :]) if variables else gradients

        return outputs, rule

    return tuple(tf.custom_gradient(run)(*tensors, *held))


def compiled(fun: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]] | None:
    return tf.function(fun)  # type: ignore[no-any-return]


def double_precision() -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext()


def devices() -> tuple[str, ...]:
    return tuple(device.name.removeprefix("/physical_device:") for device in tf.config.list_physical_devices())
