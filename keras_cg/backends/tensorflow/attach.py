"""How outputs get the gradient that a rule says, where a tape or an accumulator records and in a graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

# What tapes record, and which variables are read, has no public name (TensorFlow 2.21). If one of these is gone, importing
# this file fails, and with it the backend.
from tensorflow.python.eager.record import VariableWatcher, record_operation

from keras_cg import errors
from keras_cg.backends.tensorflow.derivatives import vjp
from keras_cg.backends.tensorflow.tensors import (
    PLAIN,
    apart,
    asarray,
    backend,
    copied,
    dense,
    fill,
    fill_all,
    is_composite,
    is_differentiated,
    is_floating,
    is_recording,
    mapped,
    nan_unless,
    pack_tangents,
    parts,
    stop_recording,
    total,
)
from keras_cg.engine import linear
from keras_cg.engine.again import Run
from keras_cg.engine.contract import Pullback, Tensors
from keras_cg.engine.held import Held

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

_CLOSED_OVER = "(a tensor that is being differentiated)"

# What a variable is in a graph of TensorFlow 1 that is no resource.
_REFERENCES = ("VariableV2", "Variable")


def attach(fun: Any, tensors: Sequence[Any]) -> Tensors:
    if not is_recording():
        return fun(*tensors)[0]  # type: ignore[no-any-return]
    return _attach_recorded(fun, tensors) if tf.executing_eagerly() else _attach_in_graph(fun, tensors)


class _Backward:
    """The backward pass of one call. It does not hold the outputs, whose memory would live as long as the tape.

    Attributes:
        pullback: That of the run.
        tensors: The arguments of the call.
        wanted: Which of them somebody differentiates.
        variables: What the function captured, for the rule.
        values: The same as tensors.
        unknown: What it captured and nobody can tell whether it will be differentiated.
        shells: How to lay cotangents out like the outputs.
    """

    def __init__(
        self,
        pullback: Pullback,
        tensors: Sequence[Any],
        wanted: Sequence[bool],
        outputs: Sequence[Any],
        variables: Sequence[Any],
        unknown: Sequence[Any] = (),
    ):
        self.pullback, self.tensors, self.wanted, self.variables = pullback, tensors, wanted, variables
        self.values = [tf.convert_to_tensor(variable) for variable in variables]
        self.unknown = unknown
        self.shells = [output if is_composite(output) else is_floating(output) for output in outputs]
        self.is_being_recorded = True

    def inputs(self) -> list[Any]:
        """What there is a gradient for."""
        return [*parts(self.tensors), *self.values, *self.unknown]

    def record(self, results: list[Any]) -> None:
        """Makes every tape and accumulator take this for what led from the inputs to `results`."""
        record_operation("custom_gradient", results, self.inputs(), self.for_tape)
        self.is_being_recorded = False

    def for_tape(self, *cotangents: Any) -> list[Any]:
        """What a tape asks for, or an accumulator, which transposes what it gets."""
        gradients = self.gradients(self.differentiable(), cotangents, self.wanted)
        # Whoever asks while the operation is being recorded is an accumulator.
        return self._transposable(gradients, cotangents) if self.is_being_recorded else gradients

    def differentiable(self) -> Pullback:
        """The pullback whose gradients somebody may differentiate."""
        return self.pullback

    def gradients(self, pull: Pullback, cotangents: Sequence[Any], wanted: Sequence[bool] | None) -> list[Any]:
        """The gradients of the inputs by such a pullback."""
        arriving = map(dense, cotangents)
        gradients, others = pull([_upstream(shell, arriving) for shell in self.shells], self.variables, wanted)
        pairs = zip([*self.tensors, *self.values], [*gradients, *others], strict=True)
        # NaN is no wrong number, and not even computed where nobody asks for it.
        return [*(part for pair in pairs for part in _gradient_parts(*pair)), *_nan_like(self.unknown, cotangents)]

    def _transposable(self, gradients: list[Any], cotangents: Sequence[Any]) -> list[Any]:
        """The gradients by a rule that is linear in upstream: only then is its transpose the forward derivative."""

        def pull(cotangents: Sequence[Any]) -> list[Any]:
            pulled = self.gradients(self.pullback, cotangents, self.wanted)
            return [dense(gradient) for gradient in pulled if gradient is not None]

        # Of copies, so that nobody records what is only tried.
        conditions = linear.conditions(backend(), pull, copied([*cotangents]))
        gradients = [None if gradient is None else dense(gradient) for gradient in gradients]
        if not tf.executing_eagerly():
            unknown = total(cotangents) * nan_unless(conditions)
            return [None if gradient is None else gradient + tf.cast(unknown, gradient.dtype) for gradient in gradients]
        if not all([bool(condition) for condition in conditions]):
            raise errors.not_linear()
        return gradients


# --- where somebody records ---


class _Recorded(_Backward):
    """The same of a run that was cut from its inputs, so that no tape sees more of it than the rule.

    Attributes:
        fun: The function, of the inputs of that run.
        given: These.
        originals: What they are copies of.
    """

    fun: Any
    given: Sequence[Any]
    originals: Sequence[Any]

    def differentiable(self) -> Pullback:
        if not is_differentiated(parts(self.originals)):
            return self.pullback
        run = _Run(backend(), self.fun, self.given, self.pullback)
        return run.differentiated(_replay, _cut, self.originals, run.held)


class _Run(Run):
    """A run of which another one in a graph cannot be compared with it before the graph runs: see `_replay`."""

    __slots__ = ()

    def _is_same(self, other: Any, first: Any) -> bool:
        return not tf.executing_eagerly() or super()._is_same(other, first)


def _attach_recorded(fun: Any, tensors: Sequence[Any]) -> Tensors:
    wanted = [is_differentiated(parts([tensor])) for tensor in tensors]
    # What `fun` closes over is made an argument of it, for the rule alone leads there, too.
    held = fun.held(lambda value: isinstance(value, tf.Tensor) and is_differentiated([value])).movable()
    originals = [*tensors, *held.tensors]
    given = apart(originals) if held.tensors or any(wanted) else originals
    around, used = fun, []
    with VariableWatcher() as watcher:
        if held.tensors:
            around = _around(held, len(tensors))
            outputs, pullback, used = _run_watched(around, given, held.tensors)
        else:
            outputs, pullback = fun(*given)
    results = parts(outputs)
    # Cut from all else, the outputs can only hang on variables, and need not if it stops the gradient; or on what is in
    # no closure. In the order of creation: which variable was read first TensorFlow (2.21) does not tell for eager
    # operations, and a rule must not get another order in a graph.
    is_hanging = is_differentiated(results)
    variables = watcher.watched_variables() if is_hanging else ()
    if not (used or is_hanging or any(wanted)):
        return outputs  # type: ignore[no-any-return]
    pullback.capture([*(variable.name for variable in variables), *(_CLOSED_OVER for _ in used)])
    # Of several, nothing tells which is used first.
    if (is_hanging and not variables) or len(used) > 1 or (used and variables):
        pullback.capture([_CLOSED_OVER])
        raise errors.unserved_variables("tensorflow")
    backward = _Recorded(pullback, tensors, wanted, outputs, [*variables, *used])
    backward.fun, backward.given, backward.originals = around, given, originals
    results = copied(results)
    backward.record(results)
    return fill_all(outputs, results)


def _around(held: Held, count: int) -> Callable[..., Any]:
    """The function of its arguments and of what it closes over."""

    def around(*tensors: Any) -> Any:
        return held.build(tensors[count:])(*tensors[:count])

    return around


def _run_watched(
    fun: Callable[..., Any], given: Sequence[Any], held: Sequence[Any]
) -> tuple[Tensors, Pullback, list[Any]]:
    """The same as `fun(*given)`, and those of `held`, whose copies come last among `given`, that the outputs hang on."""
    cut = given[len(given) - len(held) :]
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(cut)
        outputs, pullback = fun(*given)
    with stop_recording():
        slopes = tape.gradient(parts(outputs), cut)
    return outputs, pullback, [tensor for tensor, slope in zip(held, slopes, strict=True) if slope is not None]


def _cut(tensor: Any) -> Any:
    """The same values, which nobody differentiates."""
    with stop_recording():
        return apart([asarray(tensor)])[0]


def _replay(again: Callable[..., Sequence[Any]], values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """`values` as what hangs on the inputs by another run, which waits until a tape asks; and on themselves."""
    inputs = [*map(asarray, inputs)]
    if pack_tangents(parts(inputs)).tangents or _is_vectorizing():
        # An accumulator asks at once, where no tape can be used; and whoever differentiates a vectorized loop from
        # outside sees the operations of TensorFlow alone.
        return [_if_same(*pair) for pair in zip(again(*inputs), values, strict=True)]
    # A variable hangs on itself, whatever runs.
    still = [value for value in values if not isinstance(value, tf.Variable)]
    moving, count = parts(inputs), len(parts(still))

    def run(*moved: Any) -> tuple[Tensors, Tensors]:
        pairs = zip(again(*fill_all(inputs, moved)), values, strict=True)
        found = [_if_same(*pair) for pair in pairs if not isinstance(pair[1], tf.Variable)]
        return tuple(parts(found)), ()

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def replayed(*given: Any) -> Any:
        def pull(*cotangents: Any) -> list[Any]:
            arrived = [dense(cotangent) for cotangent in cotangents]
            return [*arrived, *vjp(run, moving)[1](arrived)]

        return copied([*given[:count]]), pull

    filling = iter(replayed(*parts(still), *moving))
    return [value if isinstance(value, tf.Variable) else fill(value, filling) for value in values]


def _if_same(other: Any, first: Any) -> Any:
    """What another run gave; in a graph, where it could not be compared yet, NaN if it is not what the first one gave."""
    if tf.executing_eagerly() or is_composite(first) or isinstance(first, tf.Variable):
        return other
    unknown = nan_unless([linear.is_close(backend(), other, tf.stop_gradient(first))])
    return other + tf.cast(unknown, other.dtype)


# --- in a graph ---


def _attach_in_graph(fun: Any, tensors: Sequence[Any]) -> Tensors:
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
    if _is_vectorizing() and results:
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
        pullback.capture([_CLOSED_OVER])
        raise errors.unserved_variables("tensorflow")
    wanted = [is_differentiated(parts([tensor])) for tensor in tensors]
    # Nobody can tell which of the values that `fun` closes over will be differentiated later, but for constants.
    unknown = [source for source in read if source.op.type != "Const"]
    backward = _Backward(pullback, tensors, wanted, outputs, variables, unknown)
    with stop_recording():
        results = _wrap(graph, results, backward)
    backward.record(results)
    return fill_all(outputs, results)


def _wrap(graph: Any, results: list[Any], backward: _Backward) -> list[Any]:
    """`results`, from which `graph` reaches the inputs by `backward` alone: what `tf.custom_gradient` does, no more."""
    inputs = backward.inputs()
    if not results or not inputs:
        return results
    name, count = f"KerasCustomGradient-{next(_numbers)}", len(results)

    def gradient(operation: Any, *cotangents: Any) -> list[Any]:
        # Whoever comes this way does not say for which inputs.
        return [None] * count + backward.gradients(backward.pullback, cotangents[:count], None)

    tf.RegisterGradient(name)(gradient)
    with graph.gradient_override_map({"IdentityN": name}):
        return list(tf.identity_n([*results, *inputs])[:count])


def _sources(results: list[Any], given: list[Any], before: int) -> list[Any]:
    """What `results` hang on besides `given` that the graph of version `before` had, captured since then, or variables."""
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
        elif operation.type in _REFERENCES:
            _refuse_reference(operation)
        elif operation.type != "StopGradient":
            todo += [
                source
                for source in operation.inputs
                if is_floating(source) or source.dtype in (tf.resource, tf.variant)
            ]
    return sources


def _refuse_reference(operation: Any) -> None:
    """Raises if an operation is a trainable variable that `fun` made and nobody else can know of."""
    if any(variable.op is operation for variable in tf.compat.v1.trainable_variables()):
        raise errors.unserved_variables(
            "tensorflow", f"(where it is the variable {operation.name!r}, made inside with use_resource=False)"
        )


def _is_vectorizing() -> bool:
    """Whether the graph being built is the body of a vectorized loop, which is rebuilt without its custom gradients."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        # The scope that tf.vectorized_map opens around the body (2.21): nothing else tells that it is one.
        if "loop_body" in graph.get_name_scope().split("/"):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


# --- cotangents and gradients ---


def _upstream(shell: Any, arriving: Iterator[Any]) -> Any:
    """What arrives at an output: nothing if it has no gradient."""
    if isinstance(shell, bool):
        return next(arriving) if shell else None
    return fill(shell, arriving)


def _gradient_parts(tensor: Any, gradient: Any) -> list[Any]:
    """The gradients of the parts of `tensor`."""
    if type(gradient) in PLAIN and type(tensor) in PLAIN:
        return [gradient]
    if gradient is None:
        return [None] * len(parts([tensor]))
    if isinstance(gradient, tf.IndexedSlices) and not is_composite(tensor):
        # Copied, because a graph (2.21) does not find what it did not compute itself, as the indices that were given.
        size = None if gradient.dense_shape is None else tf.identity(gradient.dense_shape)
        return [tf.IndexedSlices(tf.identity(gradient.values), tf.identity(gradient.indices), size)]
    tf.nest.assert_same_structure(tensor, gradient, expand_composites=True)
    return parts([gradient])


def _nan_like(tensors: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """NaN in the shapes of `tensors`, with derivatives of NaN but for what is multiplied by zero."""
    hanging = [tf.zeros_like(tensor) + tf.cast(total(cotangents), tensor.dtype) for tensor in tensors]
    return [tf.math.multiply_no_nan(tf.cast(float("nan"), each.dtype), each) + float("nan") for each in hanging]
