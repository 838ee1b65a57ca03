"""Attaches a rule in a graph, by an operation whose gradient is overridden."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_cg.backends.tensorflow.backward import Backward
from keras_cg.backends.tensorflow.composite import (
    HANDLES,
    Parts,
    element_dtype,
    is_floating,
    mapped,
    marked,
    read,
)
from keras_cg.backends.tensorflow.recording import VariableWatcher, is_differentiated, needs_grad, stop_recording
from keras_cg.engine import messages
from keras_cg.engine.contract import Function, Tensors

CLOSED_OVER = "(a tensor that is being differentiated)"

# The number of an operation in its graph. The public way is a list of all operations (2.21), with which the time to
# trace would grow with the square of the number of calls.
_number = tf.Operation._id.fget


def _found_by_trying() -> tuple[int, str]:
    """Returns the number of the first operation of a graph of version 0, and the scope of a vectorized loop's body."""
    scopes: list[str] = []

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def body(element: Any) -> Any:
        scopes.append(tf.compat.v1.get_default_graph().get_name_scope().rpartition("/")[2])
        return element

    with tf.Graph().as_default() as graph:
        numbers = [_number(tf.no_op()) - graph.version for _ in range(3)]
        tf.vectorized_map(body, tf.zeros([2]))
    if len(set(numbers)) != 1 or not all(scopes):
        raise ImportError(f"tensorflow {tf.__version__} counts operations, or marks a vectorized loop, in another way.")
    return numbers[0] + 1, scopes[0]


_FIRST, _VECTORIZED = _found_by_trying()

# TensorFlow shows this as the reason of a LookupError.
_DROPPED = " ".join(
    str(
        messages.rule_dropped(
            "what is outside of tf.vectorized_map (and of a jacobian with experimental_use_pfor=True)",
            "use tf.map_fn, call the function on the whole batch, or pass experimental_use_pfor=False",
        )
    ).split()
)


def with_override(fun: Function, tensors: Sequence[Any]) -> Tensors:
    """Attaches the rule in a graph, by an operation whose gradient is overridden."""
    graph = tf.compat.v1.get_default_graph()

    def inside(tensor: Any) -> Any:
        """Returns the tensor of this graph that stands for a tensor of an outer graph."""
        is_there = getattr(tensor, "graph", None) is graph or not hasattr(graph, "capture")
        return tensor if is_there else marked(graph.capture(tensor), tensor)

    # A rule may call this in the graph of a gradient, with tensors of the graph that is differentiated. When that
    # gradient is differentiated again, only tensors of its own graph are within reach.
    arguments = Parts([mapped(inside, tensor) for tensor in tensors])
    before = graph.version
    # Copies, because a function may also close over an argument, which would be the same tensor.
    inputs = [tf.identity(part) for part in arguments.values]
    with VariableWatcher() as watcher:
        outputs = fun.complete(*arguments.filled(inputs))
    found = Parts(outputs)
    results = [inside(result) for result in found.values]
    sources = _sources(fun, results, inputs, before)
    if results and _is_vectorizing():
        # Inside of the loop's body the rule serves. Vectorization drops it, so a gradient from outside of the loop must
        # meet this error, even where plain differentiation would not get from the outputs to the inputs.
        with stop_recording():
            linked = tf.raw_ops.IdentityN(input=[*results, *inputs])[: len(results)]
            results = [tf.raw_ops.PreventGradient(input=result, message=_DROPPED) for result in linked]
    known = {id(source) for source in sources}
    handles = {id(handle): variable for variable in watcher.watched_variables() for handle in [inside(variable.handle)]}
    variables = [variable for key, variable in handles.items() if key in known]
    fun.capture([variable.name for variable in variables], variables)
    others = [source for source in sources if id(source) not in handles and element_dtype(source) is not None]
    for outer, inner in graph.captures if others and hasattr(graph, "captures") else ():
        if id(inner) in known:
            # Once more, because TensorFlow (2.21) tells tapes nothing of what a function inside captures.
            graph.capture(outer)
    if is_differentiated(others):
        error = messages.argument_also_captured(fun.name, others, tensors)
        if error is not None:
            raise error
        fun.capture([CLOSED_OVER])
        raise messages.unserved_variables("tensorflow", "a closure over it, in a tf.function.", fun)
    # TensorFlow cannot tell which of the captured values will be differentiated later, except for constants.
    unknown = [read(source) for source in others if source.op.type != "Const"]
    backward = Backward(fun, arguments, needs_grad(arguments), found, variables, unknown)
    with stop_recording():
        results = _wrap(graph, results, backward)
    backward.record(results)
    return found.filled(results)


class _Probe(tf.__internal__.FuncGraph):  # type: ignore[misc]
    """A graph that shows what a function depends on. It is never differentiated."""


def dependencies(fun: Function, arguments: Parts) -> list[Any]:
    """Traces `fun`, and returns what its outputs depend on, except its arguments: tensors, and handles of variables."""
    graph = _Probe("dependencies")
    with graph.as_default(), stop_recording():
        place = lambda each: marked(tf.compat.v1.placeholder(each.dtype, each.shape), each)  # noqa: E731
        inputs = Parts([mapped(place, tensor) for tensor in arguments.tensors])
        before = graph.version
        outputs, _ = fun(*inputs.tensors)
        results = [graph.capture(result) for result in Parts(outputs).values]
        known = {id(source) for source in _sources(fun, results, inputs.values, before)}
    return [outer for outer, inner in graph.captures if id(inner) in known]


def _wrap(graph: Any, results: list[Any], backward: Backward) -> list[Any]:
    """Returns `results`, from which the graph differentiates by `backward` alone, like `tf.custom_gradient`."""
    inputs = backward.inputs
    if not results or not inputs:
        return results
    count = len(results)
    if isinstance(graph, _Probe):
        return list(tf.identity_n([*results, *inputs])[:count])
    # Registered until the process ends, like those of `tf.custom_gradient`. A saved program has the name, too, and must
    # not find the rule of another function where it is loaded.
    name = f"KerasCustomGradient-{uuid.uuid4().hex}"

    def gradient(operation: Any, *cotangents: Any) -> list[Any]:
        return [None] * count + backward.for_graph(*cotangents[:count])

    # TensorFlow (2.21) traces it again for a SavedModel. AutoGraph would rewrite our frames, and warn of some of them;
    # see `autograph_info__` in decorator.py.
    gradient.autograph_info__ = None  # type: ignore[attr-defined]
    tf.RegisterGradient(name)(gradient)
    with graph.gradient_override_map({"IdentityN": name}):
        linked = tf.identity_n([*results, *inputs])[:count]
    return linked if count == 1 else _separate(graph, f"{name}-each", results, linked)


def _separate(graph: Any, name: str, results: list[Any], linked: list[Any]) -> list[Any]:
    """Returns the values of `results`, each with the gradient of its counterpart in `linked`.

    No value comes from `linked`, which is one operation. Its outputs would seem to depend on each other, and Grappler
    (TensorFlow 2.21) relies on that: an assignment must wait for the readers of its variable, and Grappler keeps only
    one of the waits that seem equal. Then it splits the operation, and a reader without a wait may read the new value.
    Here no output of the operation is used, so Grappler prunes it before that.
    """

    def gradient(operation: Any, cotangent: Any, unused: Any) -> list[Any]:
        return [None, cotangent]

    tf.RegisterGradient(name)(gradient)
    with graph.gradient_override_map({"IdentityN": name}):
        return [tf.identity_n(pair)[0] for pair in zip(results, linked, strict=True)]


def _sources(fun: Function, results: list[Any], inputs: list[Any], before: int) -> list[Any]:
    """Returns what `results` depend on, except `inputs`: variables, and tensors that are older than version `before`.

    A tensor that the graph has captured since is a source, too.
    """
    sources = []
    known = {id(tensor) for tensor in inputs}
    todo = list(results)
    while todo:
        tensor = todo.pop()
        if id(tensor) in known:
            continue
        known.add(id(tensor))
        operation = tensor.op
        if _number(operation) < before + _FIRST or operation.type in ("Placeholder", "Const", "VarHandleOp"):
            sources.append(tensor)
        elif operation.type in ("VariableV2", "Variable"):
            cause = f"the variable {operation.name!r}, created inside with use_resource=False."
            raise messages.unserved_variables("tensorflow", cause, fun)
        elif operation.type != "StopGradient":
            todo += [each for each in operation.inputs if is_floating(each) or each.dtype in HANDLES]
    return sources


def _is_vectorizing() -> bool:
    """Whether the graph being built is the body of a vectorized loop, which TensorFlow rebuilds without its rules."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        # Nothing but this scope, which tf.vectorized_map opens (2.21), tells that the body is one.
        if _VECTORIZED in graph.get_name_scope().split("/"):
            return True
        # Not documented (2.21); every graph that captures from an outer one has it.
        graph = graph.outer_graph if hasattr(graph, "capture") else None
    return False
