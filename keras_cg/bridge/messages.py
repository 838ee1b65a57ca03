"""The messages about Keras's backend, placeholders and variables."""

from __future__ import annotations

from keras_cg.errors import article, lines, message, report, type_name


def keras_elsewhere(
    function: str, role: str, value: object, backend: str, source: str, keras: str, keras_source: str
) -> TypeError:
    """A value of Keras, which runs on another backend."""
    kind = type_name(value)
    public = article(f"keras.{type(value).__name__}" if kind.startswith("keras.") else kind)
    headline = lines(
        f"{function}: {role} is {public}, and Keras runs on {keras!r},"
        f" but the active backend of keras_cg is {backend!r}.",
        f"    the backend of keras_cg comes from: {source}",
        f"    the backend of Keras comes from: {keras_source}",
    )
    follow = "let keras_cg follow Keras by choosing no backend for it, or choose the same one for both"
    return report(TypeError, headline, function=function, remedy=f"{follow}: KERAS_CG_BACKEND={keras}.")


symbolic_tensor = message(
    TypeError,
    "{0}: {1} is a KerasTensor, which holds no numbers, in a place where Keras does not find it.",
    cause="it is the attribute of a dataclass or of an object that only another framework opens, it was closed over, or"
    " what was called is no decorated function (keras_cg.grad).",
    remedy="pass it as an argument, or in a tuple, list or dict; or call the function inside a layer.",
)


changes_keras = message(
    RuntimeError,
    "{0} {1} whenever it runs, and needs to run again: for its gradient, or for the derivative of that.",
    cause="a keras.random.SeedGenerator, a layer that draws random numbers, counts or averages (Dropout,"
    " BatchNormalization), a layer that was not built before, or `add_loss`, inside of it.",
    remedy="build layers and add losses outside; draw the random numbers outside, and pass them as an argument; and use"
    " keras.remat or keras.RematScope in the place of keras_cg.recipes.recompute.",
)


rule_changes_variables = message(
    RuntimeError,
    "the rule of {0} changes a variable of Keras after the keras.StatelessScope of its call: the new value is lost.",
    cause="a keras.random.SeedGenerator, a layer with a state such as Dropout, or `assign` in the rule.",
    remedy="use it in the function, and let the rule close over what it gives.",
)
