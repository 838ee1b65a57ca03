"""The messages of recomputed functions."""

from __future__ import annotations

from collections.abc import Sequence

from keras_cg.bridge.messages import changes_variables
from keras_cg.engine.messages import lost_capture, recomputed_otherwise
from keras_cg.errors import CapturedVariableError, report
from keras_cg.recipes.messages import not_a_function

__all__ = [
    "adds_loss",
    "assigns_trainable",
    "builds_while_traced",
    "changed_since",
    "changes_variables",
    "draws_others",
    "lost_to_recompute",
    "not_a_function",
    "recomputed_otherwise",
    "symbolic",
]


def lost_to_recompute(function: str, backend: str) -> CapturedVariableError:
    """A recomputed function captures a value, on a backend without rematerialisation of its own."""
    consequence = f"on the backend {backend!r} the second run gets the arguments alone"
    return lost_capture(function, "a closure over it, or a global.", consequence)


def changed_since(function: str, what: str) -> RuntimeError:
    """A value that a recomputed function reads was changed before its second run."""
    headline = (
        f"{function} reads {what} that was assigned or changed in place since it ran; its gradient needs to run it"
        " again, with the values that it read."
    )
    cause = "an optimizer's step, or another update, between the forward and the backward pass, or in the function."
    remedy = "make the update after the backward pass, or pass a copy of the values as an argument."
    return report(RuntimeError, headline, function=function, cause=cause, remedy=remedy)


def assigns_trainable(function: str, names: Sequence[str]) -> RuntimeError:
    """A recomputed function assigned to a trainable variable."""
    headline = (
        f"{function} assigns to a trainable variable of Keras: {', '.join(names)}. Its gradient needs to run it again,"
        " with the value from before, which could not be trained."
    )
    cause = "a layer that normalises its weights in its call, such as keras.layers.SpectralNormalization."
    remedy = "leave this layer out of keras_cg.recipes.recompute, or compute what it needs without assigning it."
    return report(RuntimeError, headline, function=function, cause=cause, remedy=remedy)


def builds_while_traced(function: str) -> RuntimeError:
    """A layer is built while its variables would be a framework's placeholders."""
    headline = f"{function} builds a layer while it is traced: its variables would have no values afterwards."
    cause = "the first call of a layer inside keras_cg.recipes.recompute, on JAX."
    remedy = "build the layer before, by `layer.build(shape)` or by a call outside."
    return report(RuntimeError, headline, function=function, cause=cause, remedy=remedy)


def adds_loss(function: str) -> RuntimeError:
    """A layer inside a recomputed function adds a loss, which would not be connected to the model."""
    headline = f"{function} adds a loss to a layer, which would not be differentiated outside of it."
    cause = "`add_loss`, or a layer with an activity_regularizer, inside keras_cg.recipes.recompute."
    remedy = "return the loss as an output, and call `add_loss` with it outside."
    return report(RuntimeError, headline, function=function, cause=cause, remedy=remedy)


def draws_others(function: str, operation: str) -> RuntimeError:
    """A recomputed function draws random numbers in a graph."""
    headline = f"{function} draws random numbers ({operation}), and would draw others when it runs for its gradient."
    cause = "tf.random, tf.nn.dropout, or a tf.random.Generator inside keras_cg.recipes.recompute."
    remedy = "draw them by keras.random, by tf.random.stateless_* from a seed, or outside."
    return report(RuntimeError, headline, function=function, cause=cause, remedy=remedy)


def symbolic(function: str, argument: str) -> TypeError:
    """A recomputed function was called on a placeholder of Keras's functional API."""
    headline = (
        f"{function}: the argument {argument} is a KerasTensor, which holds no numbers: a functional model would not"
        " own the weights that the function uses, and so not train them."
    )
    cause = "a call with the result of keras.Input."
    remedy = "call it in the `call` of a layer that owns them; for a function without weights, use keras.layers.Lambda."
    return report(TypeError, headline, function=function, argument=argument, cause=cause, remedy=remedy)
