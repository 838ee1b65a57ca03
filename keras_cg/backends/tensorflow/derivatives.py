"""Derivatives by tapes, the compiler, the exporter and the devices of TensorFlow."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_cg.backends.tensorflow import recording
from keras_cg.backends.tensorflow.composite import Parts, dense, is_composite, mapped, parts
from keras_cg.backends.tensorflow.tensors import this_backend
from keras_cg.engine import defaults, messages
from keras_cg.engine.contract import PlainFunction, Tensors


def vjp(fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, Callable[[Sequence[Any]], Tensors], Tensors]:
    outputs, inputs, tape, aux = _recorded(fun, tensors)

    def pullback(cotangents: Sequence[Any]) -> Tensors:
        gradients = tape.gradient(outputs, inputs, list(cotangents), tf.UnconnectedGradients.ZERO)
        return tuple(
            gradient if is_composite(tensor) else dense(gradient)
            for tensor, gradient in zip(inputs, gradients, strict=True)
        )

    return outputs, pullback, aux


def _recorded(fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, list[Any], tf.GradientTape, Tensors]:
    """Runs `fun`, and returns the tape that recorded it, with the inputs that the tape watches."""
    # A tape identifies tensors by their ids. What is differentiated needs an id of its own, because the same tensor may
    # be passed twice or be closed over.
    inputs = [mapped(tf.identity, tensor) for tensor in tensors]
    recording.refuse_if_not_recording(messages.name_of(fun))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(inputs)
        outputs, aux = fun(*inputs)
    return outputs, inputs, tape, aux


def jvp(fun: PlainFunction, tensors: Sequence[Any], tangents: Sequence[Any]) -> tuple[Tensors, Tensors, Tensors]:
    # Not by a ForwardAccumulator: around a tf.function TensorFlow (2.21) does not ask whether a rule is linear.
    inputs, shells = Parts(tensors), list[Parts]()

    def flat(*values: Any) -> tuple[Tensors, Tensors]:
        outputs, aux = fun(*inputs.filled(values))
        shells.append(Parts(outputs))
        return tuple(shells[0].values), aux

    flat.__name__ = messages.name_of(fun)
    outputs, pushed, aux = defaults.jvp(this_backend, flat, inputs.values, parts(tangents))
    return shells[0].filled(outputs), shells[0].filled(pushed), aux


def jacobian(fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, tuple[Tensors, ...], Tensors]:
    # A tape (2.21) collects the rows of all sources in the dtype of what it differentiates.
    kinds = {tensor.dtype for tensor in tensors}
    kind = kinds.pop() if len(kinds) == 1 else tf.float64

    def cast(*inputs: Any) -> tuple[Tensors, Tensors]:
        outputs, aux = fun(*[tf.cast(one, tensor.dtype) for one, tensor in zip(inputs, tensors, strict=True)])
        return outputs, ([tf.cast(output, kind) for output in outputs], aux)

    cast.__name__ = messages.name_of(fun)
    outputs, inputs, tape, (targets, aux) = _recorded(cast, [tf.cast(tensor, kind) for tensor in tensors])

    def rows(target: Any) -> Tensors:
        if target.shape.num_elements() == 0:  # TensorFlow (2.21) stumbles over it
            return tuple([tf.zeros([*target.shape, *tensor.shape], tensor.dtype) for tensor in tensors])
        # Vectorized, it would drop the rule.
        found = tape.jacobian(target, inputs, tf.UnconnectedGradients.ZERO, experimental_use_pfor=False)
        return tuple([tf.cast(block, tensor.dtype) for block, tensor in zip(found, tensors, strict=True)])

    return outputs, tuple(map(rows, targets)), aux


def needs_grad(tensors: Sequence[Any]) -> list[bool]:
    # A graph may be differentiated later.
    return recording.needs_grad(Parts(tensors)) if tf.executing_eagerly() else [True] * len(tensors)


def converted(fun: Callable[..., Any]) -> Callable[..., Any]:
    if tf.executing_eagerly():
        return fun
    # TensorFlow exports these for wrappers like this one. AutoGraph itself does not convert a `CustomGradient`.
    context = tf.__internal__.autograph.control_status_ctx()
    return tf.__internal__.autograph.tf_convert(fun, context) if context.status.name == "ENABLED" else fun


def exported(fun: Callable[..., Tensors], tensors: Sequence[Any]) -> Callable[..., Tensors] | None:
    module = tf.Module()
    module.program = tf.function(fun, input_signature=[tf.TensorSpec(each.shape, each.dtype) for each in tensors])
    # TensorFlow saves the variables of a module alone.
    module.variables_of_program = list(module.program.get_concrete_function().graph.variables)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, options=tf.saved_model.SaveOptions(experimental_custom_gradients=True))
        loaded = tf.saved_model.load(folder)
    # The function refers to the loaded module, because its variables live as long as the module.
    return lambda *tensors: tuple(loaded.program(*tensors))


def devices() -> tuple[str, ...]:
    return tuple(device.name.removeprefix("/physical_device:") for device in tf.config.list_physical_devices())
