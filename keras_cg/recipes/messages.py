"""What the recipes say of wrong arguments."""

from __future__ import annotations

from collections.abc import Sequence

from keras_cg.errors import GradientError, article, did_you_mean, report, type_name


def not_a_function(recipe: str, value: object) -> TypeError:
    """A recipe for functions was given something else."""
    return TypeError(
        f"{recipe} expects a function, got {article(type_name(value))}. Give the function itself, not what it returns."
    )


def symbolic(function: str, argument: str) -> TypeError:
    """A recomputed function was given a placeholder of Keras's functional API."""
    headline = (
        f"{function}: the argument {argument} is a KerasTensor, which holds no numbers: a functional model would not"
        " own the weights that the function uses, and so not train them."
    )
    cause = "a call on what keras.Input gave."
    remedy = "call it in the `call` of a layer that owns them; keras.layers.Lambda makes one of a function without any."
    return report(TypeError, headline, function=function, argument=argument, cause=cause, remedy=remedy)


def not_real(recipe: str, argument: str, came: str) -> TypeError:
    """A recipe for real numbers was given something else."""
    return TypeError(
        f"{recipe}: {argument} is {came}, and this recipe takes real floating tensors. Convert it to a floating dtype;"
        " of complex numbers, give real and imaginary parts by themselves."
    )


def not_a_number(recipe: str, argument: str, value: object) -> TypeError:
    """A parameter of a recipe is neither a number nor a tensor."""
    return TypeError(
        f"{recipe}: {argument} must be a number or a real floating tensor of the active backend,"
        f" got {article(type_name(value))}."
    )


def bad_parameter(recipe: str, argument: str, value: object, choices: str) -> ValueError:
    """A parameter of a recipe has no such value."""
    return ValueError(f"{recipe}: {argument}={value!r} is not {choices}.")


def not_broadcast(recipe: str, argument: str, came: str, name: str, expected: str) -> ValueError:
    """A parameter would give the result another shape than that of a tensor."""
    return ValueError(
        f"{recipe}: {argument} is {came}, which does not broadcast to {name}, {expected}. Each of its axes, counted"
        f" from the last, must have the length of that of {name}, or 1."
    )


def unknown_rank(recipe: str, argument: str, came: str) -> ValueError:
    """A tensor of which nobody knows how many axes it has, where that matters."""
    return ValueError(
        f"{recipe}: how many axes {argument} ({came}) has is unknown until run time. Set its shape, as by"
        " tf.ensure_shape(x, [None, None])."
    )


def nothing_to_solve(recipe: str) -> TypeError:
    """`fixed_point` starts from a nest without a tensor."""
    return TypeError(f"{recipe}: there is no tensor in z0. Give a real floating tensor, or a nest of such.")


def not_one_limit() -> TypeError:
    """`clip_gradient` with no limit, or with two."""
    return TypeError(
        "clip_gradient takes exactly one of value=... (clips each element) and norm=... (clips the norm of all)."
    )


def not_alike_output(function: str, came: str, expected: str) -> GradientError:
    """The output of a function cannot have the gradient of the identity."""
    headline = f"{function}: the output is not like the first argument, so that upstream cannot be its gradient."
    cause = "a function that reduces or broadcasts, or one that returns a comparison or integers."
    remedy = "return the structure and the shapes of the first argument, in a floating dtype."
    return report(GradientError, headline, function=function, got=came, expected=expected, cause=cause, remedy=remedy)


def unknown_surrogate(kind: object, kinds: Sequence[str]) -> ValueError:
    """`surrogate_spike` has no derivative of that name."""
    message = f"surrogate_spike: there is no kind {kind!r}. The kinds are: {', '.join(kinds)}."
    return ValueError(message + did_you_mean(str(kind).lower(), kinds))


def unknown_count(recipe: str) -> ValueError:
    """The paper's scale needs a number that is not known until run time."""
    return ValueError(
        f"{recipe}: gradient_scale='lsq' needs the number of elements of x, which is unknown until run time."
        " Give gradient_scale as a number: 1 / sqrt(N Qp), with N the elements of one example."
    )
