"""The backward pass of one call, for tapes and accumulators and for graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_cg import errors
from keras_cg.backends.tensorflow.composite import PLAIN, dense, fill, is_composite, is_floating, parts
from keras_cg.backends.tensorflow.derivatives import vjp
from keras_cg.backends.tensorflow.recording import copied, push_forwardprop_state, record_operation, stop_recording
from keras_cg.backends.tensorflow.tensors import nan_unless, own
from keras_cg.engine import linear, messages
from keras_cg.engine.contract import Pullback


class Backward:
    """What leads from the gradients of a call's outputs to those of its inputs.

    It does not hold the outputs, whose memory would live as long as the tape.

    Args:
        pullback: That of the run.
        again: Gives the pullback whose gradients can be differentiated, and the conditions under which they are right.
        tensors: The arguments of the call.
        wanted: Which of them somebody differentiates.
        outputs: What came out.
        variables: What the function captured, for the rule.
        unknown: What it captured as well, and nobody can tell whether it will be differentiated.
    """

    def __init__(
        self,
        pullback: Pullback,
        again: Callable[[], tuple[Pullback, list[Any]]],
        tensors: Sequence[Any],
        wanted: Sequence[bool],
        outputs: Sequence[Any],
        variables: Sequence[Any],
        unknown: Sequence[Any] = (),
    ):
        self.pullback, self.again = pullback, again
        self.tensors, self.wanted, self.variables = tensors, wanted, variables
        self.values, self.unknown = [*map(tf.convert_to_tensor, variables)], unknown
        # How to lay cotangents out like the outputs.
        self.shells = [output if is_composite(output) else is_floating(output) for output in outputs]
        self.is_being_recorded = True

    def inputs(self) -> list[Any]:
        """What there is a gradient for."""
        return [*parts(self.tensors), *self.values, *self.unknown]

    def record(self, results: list[Any]) -> None:
        """Tells all tapes and accumulators that this leads from `results` to the inputs."""
        record_operation("custom_gradient", results, self.inputs(), self.for_tape)
        self.is_being_recorded = False

    def for_tape(self, *cotangents: Any) -> list[Any]:
        """What a tape asks for, or an accumulator, which transposes what it gets."""
        # Whoever asks while the operation is being recorded is an accumulator.
        is_transposed = self.is_being_recorded
        pullback, conditions = self.again()
        gradients = self._gradients(pullback, cotangents, self.wanted)
        if conditions:
            # NaN, and NaN derivatives, if one does not hold.
            factor = 1 + nan_unless(conditions)
            gradients = [each if each is None else dense(each) * _like(each, factor) for each in gradients]
        return self._transposable(gradients, cotangents) if is_transposed else gradients

    def for_graph(self, *cotangents: Any) -> list[Any]:
        """What a graph asks for, which does not say of which inputs; but constants, as a rule, are none of them."""
        try:
            return self._gradients(self.pullback, cotangents, None)
        except errors.GradientError:
            wanted = [not is_constant(tensor) for tensor in self.tensors]
            if all(wanted) or not any(wanted):
                raise
        gradients = self._gradients(self.pullback, cotangents, wanted)
        return [
            _nan_like(tensor, cotangents) if gradient is None and is_constant(tensor) else gradient
            for tensor, gradient in zip(self.inputs(), gradients, strict=True)
        ]

    def _gradients(self, pull: Pullback, cotangents: Sequence[Any], wanted: Sequence[bool] | None) -> list[Any]:
        arriving = map(dense, cotangents)
        gradients, others = pull([_upstream(shell, arriving) for shell in self.shells], self.variables, wanted)
        pairs = zip([*self.tensors, *self.values], [*gradients, *others], strict=True)
        # NaN is no wrong number, and not even computed where nobody asks for it.
        return [
            *(part for pair in pairs for part in gradient_parts(*pair)),
            *(_nan_like(tensor, cotangents) for tensor in self.unknown),
        ]

    def _transposable(self, gradients: list[Any], cotangents: Sequence[Any]) -> list[Any]:
        """The gradients by a rule that is linear in upstream: only then is its transpose the forward derivative."""

        def pull(cotangents: Sequence[Any]) -> list[Any]:
            pulled = self._gradients(self.pullback, cotangents, self.wanted)
            return [dense(gradient) for gradient in pulled if gradient is not None]

        # Of copies, so that nobody records what is only tried.
        copies = copied([*cotangents])
        conditions = linear.conditions(own, pull, copies)
        with push_forwardprop_state():  # where tapes record, as they do not in what is transposed
            pulled, push, _ = vjp(lambda *copies: (tuple(pull(copies)), ()), copies)
        with stop_recording():
            conditions += linear.transposes(own, pull, push, copies, pulled) if pulled else []
        if tf.executing_eagerly():
            if not all([bool(condition) for condition in conditions]):
                raise messages.not_linear()
            return [*map(dense, gradients)]
        unknown = _total(cotangents) * nan_unless(conditions)
        return [gradient if gradient is None else dense(gradient) + _like(gradient, unknown) for gradient in gradients]


def is_constant(tensor: Any) -> bool:
    """Whether a tensor of a graph is written down in it."""
    return all([part.op.type == "Const" for part in parts([tensor])])


def _upstream(shell: Any, arriving: Iterator[Any]) -> Any:
    """What arrives at an output: nothing if it has no gradient."""
    if isinstance(shell, bool):
        return next(arriving) if shell else None
    return fill(shell, arriving)


def gradient_parts(tensor: Any, gradient: Any) -> list[Any]:
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


def _nan_like(tensor: Any, cotangents: Sequence[Any]) -> Any:
    """NaN in the shape of `tensor`, with derivatives of NaN but for what is multiplied by zero."""
    hanging = tf.zeros_like(tensor) + _like(tensor, _total(cotangents))
    return tf.math.multiply_no_nan(_like(tensor, float("nan")), hanging) + float("nan")


def _total(cotangents: Sequence[Any]) -> Any:
    """A number that hangs on all of `cotangents`."""
    return tf.add_n([tf.reduce_sum(tf.cast(tf.math.real(cotangent), tf.float32)) for cotangent in cotangents])


def _like(tensor: Any, value: Any) -> Any:
    return tf.cast(value, tensor.dtype)
