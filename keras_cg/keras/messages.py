"""The messages about Keras's models, layers and versions."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from keras_cg.errors import did_you_mean, lines, report

_REGISTER = "@keras.saving.register_keras_serializable() above @keras_cg.custom_gradient"


def symbolic_variable(function: str, role: str, variable: str) -> TypeError:
    """A Keras variable beside a KerasTensor: no model would own it."""
    headline = (
        f"{function}: {role} is the Keras variable {variable!r}, and an argument is a KerasTensor: the model would"
        " neither train the variable nor save it, unless another of its layers owns it."
    )
    cause = "a weight used in the functional API without a layer around it."
    remedy = "make it in a layer's `build` by `self.add_weight`, and call the function in its `call`."
    return report(TypeError, headline, function=function, cause=cause, remedy=remedy)


def not_saveable(function: str) -> TypeError:
    """Keras saves a decorated lambda, or a partial."""
    headline = f"{function} cannot be saved: Keras finds a function again by its name, and this one has none."
    cause = "a lambda, a functools.partial, a method or a callable object that was decorated."
    remedy = f"write it with `def`, and register it: {_REGISTER}."
    return report(TypeError, headline, function=function, cause=cause, remedy=remedy)


def name_is_in_use(function: str, name: str) -> TypeError:
    """Keras saves a decorated function, and would load another one in its place."""
    headline = f"{function} cannot be saved: Keras knows another object as {name!r}, and would load that in its place."
    cause = "a function that is made and registered several times, with different values in it."
    remedy = (
        "register each under a name of its own: @keras.saving.register_keras_serializable(name=...), or make what"
        " differs an argument."
    )
    return report(TypeError, headline, function=function, cause=cause, remedy=remedy)


def not_registered(name: str) -> TypeError:
    """Keras loads a decorated function that is not registered."""
    headline = f"could not find the decorated function {name!r} that a saved model uses."
    cause = "the module that defines it was not imported, or it was not registered."
    remedy = (
        f"register it ({_REGISTER}) and import its module before loading, or pass custom_objects={{{name!r}: ...}} to"
        " keras.saving.load_model."
    )
    return report(TypeError, headline, function=name, cause=cause, remedy=remedy)


def keras_has_moved(place: str, version: str) -> ImportError:
    """A module of Keras that should have its decorator is gone."""
    headline = (
        f"Keras {version} has no {place}: `keras_cg.keras.install` would leave some of its layers without our"
        " gradients, and so changes nothing."
    )
    remedy = (
        "use keras_cg.custom_gradient itself, or a version of Keras that this version of keras_cg was tested with (see"
        " constraints.txt)."
    )
    return report(functools.partial(ImportError, name="keras"), headline, remedy=remedy)


def keras_lacks(name: str, version: str) -> ImportError:
    """Keras lacks a private name that the layers use."""
    headline = f"Keras {version} has no {name}, which the layers of keras_cg need and nothing public replaces."
    remedy = "use a version of Keras that this version of keras_cg was tested with: `keras-cg info` says which."
    return report(functools.partial(ImportError, name="keras"), headline, remedy=remedy)


def weights_are_away(what: str, layer: str) -> RuntimeError:
    """A layer's scale or step is set while Keras's trainer on JAX holds the model's weights."""
    return RuntimeError(
        lines(
            f"the {what} of the layer {layer} cannot be set here.",
            "In the middle of an epoch Keras on JAX has moved the weights out of the model, and would overwrite it.",
            f'In a callback reach the layer through the model, which fetches them: self.model.get_layer("{layer}"), or',
            f"set the {what} at the beginning of an epoch.",
        )
    )


def unknown_loss_scale(layer: str) -> RuntimeError:
    """A layer would clip the gradient of a loss that may have been multiplied by a number."""
    headline = f"the layer {layer} does not know the loss scale, and would clip a gradient that is multiplied by it."
    cause = (
        "your own training step, which leaves model.losses (by which the layer finds the loss scale) out of the"
        " loss, or a stateless_call without return_losses=True."
    )
    remedy = (
        "compute the loss by self.compute_loss, or add sum(model.losses) to it before it is scaled. Where the loss"
        " scale is fixed, give it to the layer: loss_scale=1.0 if there is none."
    )
    return report(RuntimeError, headline, cause=cause, remedy=remedy)


def unknown_operation(name: str, known: Iterable[str]) -> ValueError:
    """`keras.ops` has no function of that name."""
    hint = did_you_mean(name, [*known])
    return ValueError(
        f"StraightThrough: keras.ops has no function {name!r}.{hint} Pass a function of your own itself, not its name."
    )
