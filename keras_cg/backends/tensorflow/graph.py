"""How outputs in a graph get the gradient that a rule says: by an operation whose gradient is overridden."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_cg.backends.tensorflow.backward import Backward, is_constant
from keras_cg.backends.tensorflow.composite import fill_all, is_floating, mapped, parts
from keras_cg.backends.tensorflow.recording import VariableWatcher, is_differentiated, stop_recording, wanted
from keras_cg.engine import messages
from keras_cg.engine.contract import Function, Tensors

CLOSED_OVER = "(a tensor that is being differentiated)"

# Which operation of its graph one is, in the order of creation. Public is only a list of all of them (2.21), and with
# it the time to trace would grow with the square of the number of calls.
_number = tf.Operation._id.fget

# For the names of gradients, which are registered for good, as those of `tf.custom_gradient` are.
_numbers = itertools.count()

# TensorFlow shows it as the reason of a LookupError, as bytes.
_DROPPED = " ".join(
    str(
        messages.rule_dropped(
            "what is outside of tf.vectorized_map (and of a jacobian with experimental_use_pfor=True)",
            "use tf.map_fn, call the function on the whole batch, or pass experimental_use_pfor=False",
        )
    ).split()
)


def attach(fun: Function, tensors: Sequence[Any]) -> Tensors:
    """As the backend's `attach`."""
    graph = tf.compat.v1.get_default_graph()

    def inside(tensor: Any) -> Any:
        """What stands for a tensor of an outer graph in this one."""
        is_there = getattr(tensor, "graph", None) is graph or not hasattr(graph, "capture")
        return tensor if is_there else graph.capture(tensor)

    # A rule may call this in the graph of a gradient, with tensors of the graph that is differentiated. When that
    # gradient is differentiated again, only tensors of its own graph are within reach.
    tensors = [mapped(inside, tensor) for tensor in tensors]
    before = graph.version
    with VariableWatcher() as watcher:
        outputs, pullback = fun(*tensors)
    given, results = parts(tensors), [inside(result) for result in parts(outputs)]
    sources = _sources(results, given, before)
    if results and _is_vectorizing():
        # The rule serves whoever differentiates in the body. Afterwards it is gone, and this is what they meet, even
        # where plain differentiation would not get from the outputs to the inputs.
        with stop_recording():
            linked = tf.raw_ops.IdentityN(input=[*results, *given])[: len(results)]
            results = [tf.raw_ops.PreventGradient(input=result, message=_DROPPED) for result in linked]
    known = {id(source) for source in sources}
    variables = [variable for variable in watcher.watched_variables() if id(inside(variable.handle)) in known]
    pullback.capture([variable.name for variable in variables])
    read = parts(sources)
    if is_differentiated(read):
        pullback.capture([CLOSED_OVER])
        raise messages.unserved_variables("tensorflow")
    # Nobody can tell which of the values that `fun` closes over will be differentiated later, but for constants.
    unknown = [source for source in read if not is_constant(source)]
    backward = Backward(pullback, lambda: (pullback, []), tensors, wanted(tensors), outputs, variables, unknown)
    with stop_recording():
        results = _wrap(graph, results, backward)
    backward.record(results)
    return fill_all(outputs, results)


def _wrap(graph: Any, results: list[Any], backward: Backward) -> list[Any]:
    """`results`, from which `graph` reaches the inputs by `backward` alone, as `tf.custom_gradient` does it."""
    inputs = backward.inputs()
    if not results or not inputs:
        return results
    name, count = f"KerasCustomGradient-{next(_numbers)}", len(results)

    def gradient(operation: Any, *cotangents: Any) -> list[Any]:
        return [None] * count + backward.for_graph(*cotangents[:count])

    tf.RegisterGradient(name)(gradient)
    with graph.gradient_override_map({"IdentityN": name}):
        linked = tf.identity_n([*results, *inputs])[:count]
    return linked if count == 1 else _apart(graph, f"{name}-each", results, linked)


def _apart(graph: Any, name: str, results: list[Any], linked: list[Any]) -> list[Any]:
    """The values of `results`, each with the gradient of the one of `linked` that stands in its place.

    No value comes from `linked`. If it did, all results would seem to hang on whatever one of them hangs on, since one
    operation has them all, and a training step could go wrong: an assignment waits for the readers of the variable,
    but Grappler's dependency optimizer (TensorFlow 2.21) lets it wait only for what seems to hang on these, and then
    takes the operation apart, so that nothing waits for a reader any more, which then may read the new value. As it
    is, nobody uses an output of the operation, and Grappler's pruner, which comes first, drops it.
    """

    def gradient(operation: Any, cotangent: Any, unused: Any) -> list[Any]:
        return [None, cotangent]

    tf.RegisterGradient(name)(gradient)
    with graph.gradient_override_map({"IdentityN": name}):
        return [tf.identity_n(pair)[0] for pair in zip(results, linked, strict=True)]


def _sources(results: list[Any], given: list[Any], before: int) -> list[Any]:
    """What `results` hang on but `given`: what the graph of version `before` had, or captured since, and variables."""
    sources = []
    known = {id(tensor) for tensor in given}
    todo = list(results)
    while todo:
        tensor = todo.pop()
        if id(tensor) in known:
            continue
        known.add(id(tensor))
        operation = tensor.op
        # Two nodes of every graph are no operations of it.
        if _number(operation) < before + 2 or operation.type in ("Placeholder", "Const", "VarHandleOp"):
            sources.append(tensor)
        elif operation.type in ("VariableV2", "Variable"):
            _refuse_reference(operation)
        elif operation.type != "StopGradient":
            todo += [each for each in operation.inputs if is_floating(each) or each.dtype in (tf.resource, tf.variant)]
    return sources


def _refuse_reference(operation: Any) -> None:
    """Raises if an operation is a trainable variable that is no resource, as those of TensorFlow 1 were."""
    if any(variable.op is operation for variable in tf.compat.v1.trainable_variables()):
        where = f"(where it is the variable {operation.name!r}, made inside with use_resource=False)"
        raise messages.unserved_variables("tensorflow", where)


def _is_vectorizing() -> bool:
    """Whether the graph being built is the body of a vectorized loop, which is rebuilt without its custom gradients."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        # The scope that tf.vectorized_map opens around the body (2.21): nothing else tells that it is one.
        if "loop_body" in graph.get_name_scope().split("/"):
            return True
        # An attribute that TensorFlow (2.21) does not document, of every graph that captures from the one around it.
        graph = graph.outer_graph if hasattr(graph, "capture") else None
    return False
