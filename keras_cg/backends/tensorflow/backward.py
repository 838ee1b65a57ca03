"""The backward pass of one call, for tapes, accumulators and graphs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from keras_cg import errors
from keras_cg.backends.tensorflow.composite import (
    PLAIN,
    Parts,
    dense,
    fill,
    is_composite,
    is_floating,
    map_elements,
    parts,
)
from keras_cg.backends.tensorflow.derivatives import vjp
from keras_cg.backends.tensorflow.recording import (
    copies,
    is_differentiated,
    push_forwardprop_state,
    record_operation_backprop_only,
    record_operation_forwardprop_only,
    stop_recording,
)
from keras_cg.backends.tensorflow.tensors import asarray, nan_unless, shape, this_backend
from keras_cg.engine import linear, messages
from keras_cg.engine.contract import Function, Pullback
from keras_cg.engine.linear import check_or_nan


class Backward:
    """The map from the cotangents of a call's outputs to the gradients of its inputs.

    It does not refer to the outputs, whose memory would live as long as the tape, unless the rule takes them.

    Args:
        fun: The function.
        arguments: The arguments of the call.
        needs_grad: Which of them are differentiated.
        results: The outputs of the run.
        variables: What the function captured, for the rule.
        unknown: Captured tensors for which TensorFlow cannot tell whether they will be differentiated.
    """

    def __init__(
        self,
        fun: Function,
        arguments: Parts,
        needs_grad: Sequence[bool],
        results: Parts,
        variables: Sequence[Any],
        unknown: Sequence[Any] = (),
    ):
        self.fun, self.arguments, self.needs_grad = fun, arguments, needs_grad
        self.variables, self.values, self.unknown = variables, [*map(tf.convert_to_tensor, variables)], unknown
        # The tensors that get a gradient.
        self.inputs = [*arguments.values, *self.values, *unknown]
        # For a rule that takes the output: until `record` the outputs of the run, and then those that tapes know.
        self.results: Parts | None = results if fun.takes_output else None
        self.outputs: Sequence[Any] | None = None
        # What an upstream is made of: of a composite tensor's parts, of one tensor (True), or there is none (False).
        self.shells: Sequence[Any] = results.are_floating
        if not results.are_plain:
            self.shells = [output if is_composite(output) else is_floating(output) for output in results.tensors]
        self.is_direct = results.are_plain and False not in results.are_floating
        self.is_eager = tf.executing_eagerly()

    def record(self, results: list[Any]) -> None:
        """Tells all tapes and accumulators that this is the backward pass from `results` to the inputs."""
        if self.results is not None:
            self.outputs = self.results.filled(results)
            self.results = None
        # Tapes first: an accumulator calls the rule at once, and a tape around it must know the outputs that it takes.
        record_operation_backprop_only("custom_gradient", results, self.inputs, self.for_tape)
        record_operation_forwardprop_only("custom_gradient", results, self.inputs, self.for_accumulator, None)

    def for_tape(self, *cotangents: Any) -> list[Any]:
        """Returns the gradients for a tape: those of another run, if they will be differentiated themselves."""
        if self.is_eager and is_differentiated(self.arguments.values):
            return self._of_another_run(cotangents)
        return self._gradients(self.fun, cotangents, self.needs_grad)

    def for_accumulator(self, *cotangents: Any) -> list[Any]:
        """Returns the gradients for an accumulator, which transposes them."""
        return self._transposable(self.for_tape(*cotangents), cotangents)

    def _of_another_run(self, cotangents: Sequence[Any]) -> list[Any]:
        inputs = [*map(asarray, self.arguments.tensors)]
        _, pullback = self.fun(*inputs)
        # In a graph no value is known: there the gradients are right under conditions.
        conditions = self.fun.check(pullback, partial(self._probe, cotangents))
        if pullback.is_used_up:
            _, pullback = self.fun(*inputs)
        gradients = self._gradients(pullback, cotangents, self.needs_grad)
        if conditions:
            present = [dense(each) for each in gradients if each is not None]
            error = partial(messages.recomputed_otherwise, self.fun.name)
            checked = iter(check_or_nan(this_backend, present, conditions, error))
            gradients = [each if each is None else next(checked) for each in gradients]
        return gradients

    def for_graph(self, *cotangents: Any) -> list[Any]:
        """Returns the gradients for a graph, which does not tell which inputs are differentiated.

        A rule that is wrong for a constant alone still serves, because constants are hardly ever differentiated.
        """
        try:
            return self._gradients(self.fun, cotangents, None)
        except errors.GradientError:
            needs_grad = [not is_constant(tensor) for tensor in self.arguments.tensors]
            if all(needs_grad) or not any(needs_grad):
                raise
        gradients = self._gradients(self.fun, cotangents, needs_grad)
        return [
            _nan_like(tensor, cotangents) if gradient is None and is_constant(tensor) else gradient
            for tensor, gradient in zip(self.inputs, gradients, strict=True)
        ]

    def _probe(self, cotangents: Sequence[Any], pullback: Pullback) -> list[Any]:
        """Returns the gradients of a pullback along upstreams that are always the same."""
        arriving = linear.irregular(this_backend, [*map(dense, cotangents)])
        upstreams = self._upstreams(arriving)
        gradients, others = pullback.pull(upstreams, self.variables, self.needs_grad, None, self.outputs)
        return [*gradients, *others]

    def _upstreams(self, cotangents: Sequence[Any]) -> list[Any]:
        """Returns an upstream for each output, of which some have no cotangent, and some several."""
        arriving = iter(cotangents)
        return [
            fill(shell, arriving) if not isinstance(shell, bool) else next(arriving) if shell else None
            for shell in self.shells
        ]

    def _gradients(self, pullback: Pullback, cotangents: Sequence[Any], needs_grad: Sequence[bool] | None) -> list[Any]:
        arriving = [*map(dense, cotangents)]
        upstreams = arriving if self.is_direct else self._upstreams(arriving)
        gradients, others = pullback.pull(upstreams, self.variables, needs_grad, None, self.outputs)
        found: list[Any] = []
        for tensor, gradient in zip([*self.arguments.tensors, *self.values], [*gradients, *others], strict=True):
            found += _gradient_parts(tensor, gradient)
        if not tf.executing_eagerly():
            text = partial(messages.wrong_shape_at_run_time, self.fun.name, where=pullback.location())
            inputs = enumerate(zip(found, self.inputs, strict=False))
            found = [_ensure_shape(gradient, tensor, text(place)) for place, (gradient, tensor) in inputs]
        # NaN is no wrong number, and not even computed where it is not asked for.
        nan_like = partial(_nan_like, cotangents=cotangents)
        return found + [map_elements(nan_like, tensor) for tensor in self.unknown]

    def _transposable(self, gradients: list[Any], cotangents: Sequence[Any]) -> list[Any]:
        """Returns the gradients of a rule that is linear in upstream: its transpose is the forward derivative."""

        def pull(cotangents: Sequence[Any]) -> list[Any]:
            pulled = self._gradients(self.fun, cotangents, self.needs_grad)
            return [dense(gradient) for gradient in pulled if gradient is not None]

        # Of copies, so that no tape records the trials.
        inputs = copies([*map(dense, cotangents)])
        conditions = linear.conditions(this_backend, pull, inputs)
        with push_forwardprop_state():  # where tapes record, as they do not in what is transposed
            pulled, push, _ = vjp(lambda *inputs: (tuple(pull(inputs)), ()), inputs)
        with stop_recording():
            conditions += linear.transposes(this_backend, pull, push, inputs, pulled) if pulled else []
        if tf.executing_eagerly():
            check_or_nan(this_backend, (), conditions, partial(messages.not_linear, self.fun.name))
            return [*map(dense, gradients)]
        # A sum, because the derivative of a product with NaN is zero where the rule clips upstream.
        unknown = _total(cotangents) * nan_unless(conditions)
        return [gradient if gradient is None else dense(gradient) + _like(gradient, unknown) for gradient in gradients]


def is_constant(tensor: Any) -> bool:
    """Whether a tensor of a graph is a constant of it."""
    return all([part.op.type == "Const" for part in parts([tensor])])


def _gradient_parts(tensor: Any, gradient: Any) -> list[Any]:
    """Returns the gradients of the parts of `tensor`."""
    if type(gradient) in PLAIN and type(tensor) in PLAIN:
        # `parts` has no integers, and a tape (2.21) fails on a gradient that belongs to none of them.
        return [gradient] if tensor.dtype.is_floating or tensor.dtype.is_complex else []
    if gradient is None:
        return [None] * len(parts([tensor]))
    if isinstance(gradient, tf.IndexedSlices) and not is_composite(tensor):
        # Copied, because a graph (2.21) does not find tensors that it did not compute, such as indices from outside.
        size = None if gradient.dense_shape is None else tf.identity(gradient.dense_shape)
        return [tf.IndexedSlices(tf.identity(gradient.values), tf.identity(gradient.indices), size)]
    tf.nest.assert_same_structure(tensor, gradient, expand_composites=True)
    return parts([gradient])


def _ensure_shape(gradient: Any, tensor: Any, message: str) -> Any:
    """Returns the gradient of `tensor`; the program compares their shapes when it runs if they are not known before.

    An assertion has our message. XLA drops assertions, and refuses to compile the `Select` of two empty tensors of
    different shapes; its message has the name of the operation.
    """
    if gradient is None or (tensor.shape.is_fully_defined() and tf.TensorShape(shape(gradient)).is_fully_defined()):
        return gradient
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    came, size = tf.shape(values), tf.shape(tensor)
    if values is not gradient:
        rows = size if gradient.dense_shape is None else tf.cast(gradient.dense_shape, tf.int32)
        came = tf.concat([rows[:1], came[1:]], 0)
    # Grappler (2.21) infers unknown shapes from what later operations need, and drops an assertion that they meet.
    # It infers nothing through this operation, nor through a transposition whose order it does not know.
    opaque = tf.raw_ops.PlaceholderWithDefault
    came, order = (opaque(input=each, shape=None) for each in (came, tf.range(tf.rank(values))))
    is_same = tf.reduce_all(tf.equal(came, size))
    with tf.control_dependencies([tf.debugging.Assert(is_same, [message, "got:", came, "expected:", size])]):
        one, two = [tf.zeros(tf.concat([[0], each], 0)) for each in (came, size)]
        check = tf.raw_ops.Select(condition=True, x=one, y=two, name=re.sub("[^A-Za-z0-9]+", "_", message))
    with tf.control_dependencies([check]):
        checked = tf.transpose(values, order)
    checked.set_shape(values.shape)
    return checked if values is gradient else tf.IndexedSlices(checked, gradient.indices, gradient.dense_shape)


def _nan_like(tensor: Any, cotangents: Sequence[Any]) -> Any:
    """Returns NaN in the shape of `tensor`; its derivatives are NaN, unless they are multiplied by zero."""
    hanging = tf.zeros_like(tensor) + _like(tensor, _total(cotangents))
    return tf.math.multiply_no_nan(_like(tensor, float("nan")), hanging) + float("nan")


def _total(cotangents: Sequence[Any]) -> Any:
    """Returns a number that depends on all of `cotangents`."""
    return tf.add_n([tf.reduce_sum(tf.cast(tf.math.real(cotangent), tf.float32)) for cotangent in cotangents])


def _like(tensor: Any, value: Any) -> Any:
    return tf.cast(value, tensor.dtype)
