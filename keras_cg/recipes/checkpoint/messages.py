"""The messages of recomputed functions."""

from __future__ import annotations

from keras_cg.errors import message
from keras_cg.recipes.messages import not_a_function as not_a_function

symbolic = message(
    TypeError,
    "{0}: the argument {1} is a KerasTensor, which holds no numbers: a functional model would not own the weights that"
    " the function uses, and so not train them.",
    cause="a call with the result of keras.Input.",
    remedy="call it in the `call` of a layer that owns them; for a function without weights, use keras.layers.Lambda.",
)
