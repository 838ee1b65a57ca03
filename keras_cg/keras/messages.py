"""The messages about Keras's models, layers and versions."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from keras_cg.errors import did_you_mean, lines, message

_REGISTER = "@keras.saving.register_keras_serializable() above @keras_cg.custom_gradient"


# A Keras variable beside a KerasTensor: no model would own it.
symbolic_variable = message(
    TypeError,
    "{0}: {1} is the Keras variable {2!r}, and an argument is a KerasTensor: the model would neither train the variable"
    " nor save it, unless another of its layers owns it.",
    cause="a weight used in the functional API without a layer around it.",
    remedy="make it in a layer's `build` by `self.add_weight`, and call the function in its `call`.",
)
not_saveable = message(
    TypeError,
    "{0} cannot be saved: Keras finds a function again by its name, and this one has none.",
    cause="a lambda, a functools.partial, a method or a callable object that was decorated.",
    remedy=f"write it with `def`, and register it: {_REGISTER}.",
)
name_is_in_use = message(
    TypeError,
    "{0} cannot be saved: Keras knows another object as {1!r}, and would load that in its place.",
    cause="a function that is made and registered several times, with different values in it.",
    remedy="register each under a name of its own: @keras.saving.register_keras_serializable(name=...), or make what"
    " differs an argument.",
)
not_registered = message(
    TypeError,
    "could not find the decorated function {0!r} that a saved model uses.",
    cause="the module that defines it was not imported, or it was not registered.",
    remedy=f"register it ({_REGISTER}) and import its module before loading, or pass"
    " custom_objects={{{0!r}: ...}} to keras.saving.load_model.",
)
_no_keras = functools.partial(ImportError, name="keras")
keras_has_moved = message(
    _no_keras,
    "Keras {1} has no {0}: `keras_cg.keras.install` would leave some of its layers without our gradients, and so"
    " changes nothing.",
    remedy="use keras_cg.custom_gradient itself, or a version of Keras that this version of keras_cg was tested with"
    " (see constraints.txt).",
)
# A private name that the layers use.
keras_lacks = message(
    _no_keras,
    "Keras {1} has no {0}, which the layers of keras_cg need and nothing public replaces.",
    remedy="use a version of Keras that this version of keras_cg was tested with: `keras-cg info` says which.",
)
# Keras's trainer on JAX has the weights.
weights_are_away = message(
    RuntimeError,
    lines(
        "the {0} of the layer {1} cannot be set here.",
        "In the middle of an epoch Keras on JAX has moved the weights out of the model, and would overwrite it.",
        'In a callback reach the layer through the model, which fetches them: self.model.get_layer("{1}"), or',
        "set the {0} at the beginning of an epoch.",
    ),
)
missing_loss_scale = message(
    ValueError,
    "the layer {0} computes in float16, and clips the gradient times the loss scale, which it does not know.",
    remedy="pass loss_scale=1024.0 to the layer, loss_scale_factor=1024.0 to the optimizer, and auto_scale_loss=False"
    " to compile. Pass loss_scale=1.0 if nothing scales the loss.",
)


def unknown_operation(name: str, known: Sequence[str]) -> ValueError:
    """`keras.ops` has no function of that name."""
    headline = f"StraightThrough: keras.ops has no function {name!r}.{did_you_mean(name, known)}"
    return ValueError(f"{headline} Pass a function of your own itself, not its name.")
