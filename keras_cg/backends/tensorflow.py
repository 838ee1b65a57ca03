"""The TensorFlow backend, on `tf.custom_gradient`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import tensorflow as tf

# Which tapes record, and what, has no public name (TensorFlow 2.21). If this is gone, importing this file fails, and
# with it the backend.
from tensorflow.python.eager import forwardprop_util, record

from keras_cg import errors
from keras_cg.backends import Function

__all__ = ["asarray", "attach", "cast", "children", "dtype", "is_tensor", "namespace", "shape", "tensors", "vjp"]

namespace = tf.experimental.numpy
tensors = (tf.Tensor, tf.Variable, tf.__internal__.CompositeTensor)


def is_tensor(value: object) -> bool:
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return value.dtype.kind in "biufc"
    return bool(tf.is_tensor(value))


def asarray(value: Any) -> Any:
    if isinstance(value, tf.__internal__.CompositeTensor) and not isinstance(value, tf.Variable):
        return value
    return tf.convert_to_tensor(value)


def shape(tensor: Any) -> tuple[int | None, ...] | None:
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


def attach(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    eager = tf.executing_eagerly()
    if eager and not record.could_possibly_record():
        return fun(*tensors)[0]
    if not eager and _is_vectorizing():
        raise errors.rule_dropped(
            "tf.vectorized_map (and a jacobian with experimental_use_pfor=True)",
            "use tf.map_fn, call the function on the whole batch, or pass experimental_use_pfor=False",
        )
    count = len(tensors)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(*given: Any) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        # Eagerly, a tape or an accumulator also records what happens in here. Forward mode would take it for the
        # derivative; cut from the inputs, it cannot. In a graph the same would make forward derivatives zero.
        inputs = [_cut(each) for each in given[:count]] if eager else given[:count]
        graph = tf.compat.v1.get_default_graph()
        before = 0 if eager else len(graph.get_operations())
        with record.VariableWatcher() as watcher:
            outputs, pullback = fun(*inputs)
        # Cut from the inputs, the outputs can only hang on what `fun` captured, and need not if it stops the gradient.
        variables = watcher.watched_variables() if not eager or _is_differentiated(outputs) else ()
        pullback.capture([variable.name for variable in variables])
        cut = eager or not _is_recorded(given)
        if not variables and (_is_differentiated(outputs) if cut else _reads_recorded(graph, before, given)):
            pullback.capture(["(a tensor that is being differentiated)"])
            raise errors.unserved_variables("tensorflow")
        if eager:
            # From here on the rule alone says how they hang on anything, in forward mode, too.
            outputs = tuple(_cut(each) for each in outputs)
        served = {variable.ref() for variable in variables}

        def backward(*cotangents: Any, variables: Sequence[Any] = ()) -> Any:
            # Eagerly, when somebody differentiates this gradient, the rule must hang on the inputs; in a graph it does.
            again = eager and record.could_possibly_record()
            pull = fun(*given[:count])[1] if again else pullback
            # TensorFlow (2.21) gives the variables in an order that differs from run to run.
            ordered = [each for each in watcher.watched_variables() if each.ref() in served]
            gradients, others = pull([_dense(each) for each in cotangents], ordered)
            padded = [*gradients, *[None] * (len(given) - count)]
            if not variables:
                return padded
            by_variable = {each.ref(): gradient for each, gradient in zip(ordered, others, strict=True)}
            return padded, [by_variable.get(each.ref()) for each in variables]

        return outputs, backward

    # In a graph, TensorFlow cannot wrap a function without any tensor.
    return tuple(run(*tensors) if tensors else run(tf.zeros(())))


def _cut(tensor: Any) -> Any:
    """`tensor`, or every part of a composite one, without its gradient."""
    return tf.nest.map_structure(tf.stop_gradient, tensor, expand_composites=True)


def _dense(cotangent: Any) -> Any:
    """An upstream as a tensor: that of what was gathered comes as slices."""
    return tf.convert_to_tensor(cotangent) if isinstance(cotangent, tf.IndexedSlices) else cotangent


def _is_differentiated(tensors: Any) -> bool:
    """Whether a tape records any of `tensors`, or an accumulator has a tangent for it."""
    flat = tf.nest.flatten(tensors, expand_composites=True)
    return _is_recorded(flat) or bool(forwardprop_util.pack_tangents(flat).tangents)


def _is_recorded(tensors: Any) -> bool:
    return bool(record.should_record_backprop(tf.nest.flatten(tensors, expand_composites=True)))


def _reads_recorded(graph: Any, before: int, given: Any) -> bool:
    """Whether operations of a graph from number `before` on read a tensor besides `given` that a tape records."""
    made = graph.get_operations()[before:]
    known = {id(each) for each in tf.nest.flatten(given, expand_composites=True)}
    known.update(id(output) for operation in made for output in operation.outputs)
    read = [each for operation in made for each in operation.inputs if id(each) not in known]
    return bool(read) and _is_recorded([each for each in read if each.dtype.is_floating or each.dtype.is_complex])


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
    fun: Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]], tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], Callable[[Sequence[Any]], tuple[Any, ...]], tuple[Any, ...]]:
    # A tape goes by the identity of tensors: one that is passed twice, or closed over as well, must not be taken for
    # the argument that is differentiated.
    inputs = [tf.nest.map_structure(tf.identity, each, expand_composites=True) for each in tensors]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs, aux = fun(*inputs)

    def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(tape.gradient(outputs, inputs, list(cotangents), tf.UnconnectedGradients.ZERO))

    return outputs, pullback, aux
