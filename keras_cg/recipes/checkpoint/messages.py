"""The messages of recomputed functions."""

from __future__ import annotations

from keras_cg.engine.messages import recomputed_otherwise as recomputed_otherwise
from keras_cg.errors import message
from keras_cg.recipes.messages import not_a_function as not_a_function

changed_since = message(
    RuntimeError,
    "{0} reads {1} that was assigned or changed in place since it ran; its gradient needs to run it again, with the"
    " values that it read.",
    cause="an optimizer's step, or another update, between the forward and the backward pass, or in the function.",
    remedy="make the update after the backward pass, or pass a copy of the values as an argument.",
)
changes_keras = message(
    RuntimeError,
    "{0} {1}, and would do so again when it runs for its gradient.",
    cause="a layer that draws random numbers, counts or averages (Dropout, BatchNormalization) while it trains, a layer"
    " that was not built before, or `add_loss`.",
    remedy="use keras.remat or keras.RematScope for such a layer, and leave it out of keras_cg.recipes.recompute; build"
    " layers and add losses outside.",
)
symbolic = message(
    TypeError,
    "{0}: the argument {1} is a KerasTensor, which holds no numbers: a functional model would not own the weights that"
    " the function uses, and so not train them.",
    cause="a call with the result of keras.Input.",
    remedy="call it in the `call` of a layer that owns them; for a function without weights, use keras.layers.Lambda.",
)
