"""The messages of the recipes for wrong arguments."""

from __future__ import annotations

from collections.abc import Sequence

from keras_cg.errors import GradientError, article, count, did_you_mean, report, type_name


def not_a_function(recipe: str, value: object) -> TypeError:
    """An argument of a recipe cannot be called."""
    return TypeError(
        f"{recipe} expects a function, got {article(type_name(value))}. Give the function itself, not what it returns."
    )


def not_real(recipe: str, argument: str, came: str) -> TypeError:
    """An argument of a recipe is no real floating tensor."""
    return TypeError(
        f"{recipe}: {argument} is {came}, and this recipe takes real floating tensors. Convert it to a floating dtype;"
        " pass the real and the imaginary part of a complex tensor separately."
    )


def no_array(recipe: str, argument: str, value: object) -> TypeError:
    """An argument of a recipe is no tensor, but perhaps an object with one in it."""
    return TypeError(
        f"{recipe}: {argument} is {article(type_name(value))}, and this recipe takes real floating tensors. Convert it"
        " to an array, or pass the array in it, such as `param[...]` for a flax.nnx.Param."
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


def too_large(recipe: str, argument: str) -> ValueError:
    """A parameter of a recipe is an integer, or a fraction, that no float holds."""
    return ValueError(
        f"{recipe}: {argument} is a number that is too large for a float, which ends at about 1.8e308 in either"
        " direction. Give a smaller number, or math.inf if that is what you mean."
    )


def not_broadcast(recipe: str, argument: str, came: str, name: str, expected: str) -> ValueError:
    """A parameter would give the result another shape than that of a tensor."""
    return ValueError(
        f"{recipe}: {argument} is {came}, which does not broadcast to {name}, {expected}. Each of its axes, counted"
        f" from the last, must have the length of that of {name}, or 1."
    )


def unknown_rank(recipe: str, argument: str, came: str) -> ValueError:
    """The rank of a tensor is unknown, and the recipe needs it."""
    return ValueError(
        f"{recipe}: the number of axes of {argument} ({came}) is unknown until run time. Set its shape, such as with"
        " tf.ensure_shape(x, [None, None])."
    )


def not_of_shape(recipe: str, argument: str, came: str, name: str, expected: str) -> ValueError:
    """Two tensors that go together element by element have different shapes."""
    return ValueError(
        f"{recipe}: {argument} is {came}, and {name} is {expected}. Give one of the same shape: it is not broadcast,"
        " because equal numbers would stand where different ones should."
    )


def not_a_mask(recipe: str, argument: str, came: str) -> TypeError:
    """A mask is not boolean."""
    return TypeError(
        f"{recipe}: {argument} is {came}, and a mask is a boolean tensor of the active backend. Compare, such as x > 0."
    )


def no_blocks(recipe: str) -> TypeError:
    """A chain of blocks was called without one."""
    return TypeError(
        f"{recipe} applies its function once for each argument after the first, and there is none. Give the parameters"
        " of each block, None for a block without any."
    )


def nothing_to_solve(recipe: str, argument: str) -> TypeError:
    """An iteration starts from a pytree without a tensor."""
    return TypeError(f"{recipe}: there is no tensor in {argument}. Give a real floating tensor, or a pytree of such.")


def no_floating(recipe: str, argument: str) -> TypeError:
    """An argument of a recipe has no floating tensor."""
    return TypeError(f"{recipe}: there is no floating tensor in {argument}. Give one, or a pytree with one in it.")


def unknown_size(recipe: str) -> ValueError:
    """A matrix would have a size that is unknown until run time."""
    return ValueError(
        f"{recipe}: the number of elements of x0 is unknown until run time, and the matrix of the Jacobian needs it."
        " Set its shape, such as with tf.ensure_shape(x, [3]), or give linear_solve."
    )


def not_one_limit(recipe: str) -> TypeError:
    """A recipe that clips has no limit, or two."""
    return TypeError(
        f"{recipe} takes exactly one of value=... (clips each element) and norm=... (clips the norm of all)."
    )


def not_alike_output(function: str, came: str, expected: str, of: str) -> GradientError:
    """The output of a function differs in structure or shapes from the values that get its upstream as gradient."""
    headline = f"{function}: the output is not like {of}, so upstream cannot be its gradient."
    cause = "a function that reduces or broadcasts, or one that returns a comparison or integers."
    remedy = f"return the structure and the shapes of {of}, in a floating dtype."
    return report(GradientError, headline, function=function, got=came, expected=expected, cause=cause, remedy=remedy)


def not_a_jvp(function: str, value: object) -> TypeError:
    """A function of `from_jvp` did not return its output and its forward derivative."""
    headline = f"{function}: the function must return a pair (output, jvp) whose second part is a function."
    parts = isinstance(value, tuple) and ", ".join(map(type_name, value))
    came = f"a tuple of {len(value)}: ({parts})" if isinstance(value, tuple) else article(type_name(value))
    remedy = "return (output, jvp), and ((output1, output2), jvp) for several outputs."
    return report(TypeError, headline, function=function, got=came, remedy=remedy)


def wrong_tangents(function: str, came: str, expected: str) -> GradientError:
    """The forward derivative of `from_jvp` returned something that is no tangent of the output."""
    headline = f"{function}: its jvp returned tangents that are not like the output."
    cause = "another shape, one tangent for each argument in place of each output, or no `return`."
    remedy = "return a pytree like the output, with a floating tensor for each tensor, or None for zeros."
    return report(GradientError, headline, function=function, got=came, expected=expected, cause=cause, remedy=remedy)


def not_linear(function: str) -> ValueError:
    """The forward derivative of `from_jvp` is not linear in its tangents, or has another transpose."""
    headline = f"{function}: its jvp is not linear in the tangents."
    cause = "a derivative without its tangent, or a tangent that is squared, clipped or stopped."
    remedy = "return the sum of each derivative times its tangent; write a gradient that is clipped as a rule."
    return report(ValueError, headline, function=function, cause=cause, remedy=remedy)


def by_keyword(function: str, argument: str) -> TypeError:
    """A function of NumPy arrays was called with a keyword."""
    headline = f"{function}: {argument} was passed by keyword, but arrays are passed by position."
    remedy = f"bind other arguments first: from_numpy(functools.partial(function, {argument}=...), ...)."
    return report(TypeError, headline, function=function, argument=argument, remedy=remedy)


def not_an_array(function: str, place: int, value: object) -> TypeError:
    """An argument of a function of NumPy arrays is no tensor."""
    headline = f"{function}: argument {place} is {article(type_name(value))}, and not a tensor."
    remedy = (
        "pass tensors and numbers, and the leaves of a pytree one by one. Bind other arguments first:"
        " from_numpy(functools.partial(function, mode=...), ...)."
    )
    return report(TypeError, headline, function=function, remedy=remedy)


def no_arguments(function: str) -> TypeError:
    """A recipe's function was called without arguments."""
    return TypeError(f"{function} was called without arguments. Give it a tensor.")


def no_gradient(function: str) -> GradientError:
    """A function of NumPy arrays without a vjp is differentiated."""
    headline = f"{function} has no gradient: it was made with vjp=None."
    remedy = "give the rule, from_numpy(function, vjp), or stop the gradient before."
    return report(GradientError, headline, function=function, remedy=remedy)


def no_derivative(function: str) -> GradientError:
    """The rule of a function of NumPy arrays is differentiated."""
    headline = f"{function}: its vjp is a function of NumPy arrays without a gradient of its own."
    cause = "a second derivative, or forward mode, which is the derivative of the vjp with respect to upstream."
    remedy = "give the vjp a rule, too: from_numpy(function, from_numpy(vjp, vjp_of_vjp))."
    return report(GradientError, headline, function=function, cause=cause, remedy=remedy)


def vjp_of_other_arguments(function: str, shown: str, arguments: int, upstreams: int) -> TypeError:
    """The vjp of a function of NumPy arrays has another count of parameters than it gets arguments."""
    called = f"{count(arguments, 'argument')} of the function, then {count(upstreams, 'upstream')}"
    headline = f"{function}: its vjp must take {called}."
    cause = "a rule that is written as for custom_gradient, and takes upstream alone."
    remedy = "write it as vjp(x, upstream): it gets each argument of the function, then upstream."
    return report(TypeError, headline, function=function, got=shown, cause=cause, remedy=remedy)


def not_one_gradient_each(function: str, came: int, expected: int) -> GradientError:
    """The vjp of a function of NumPy arrays returned too few gradients, or too many."""
    headline = f"{function}: its vjp must return one gradient for each argument, or None for one that has none."
    return report(GradientError, headline, function=function, got=str(came), expected=str(expected))


def not_so_many(function: str, value: object, expected: int) -> ValueError:
    """A function of NumPy arrays returned another count of results than promised."""
    came = f"{type_name(value)} of {len(value)}" if isinstance(value, (tuple, list)) else article(type_name(value))
    headline = f"{function} did not return what it promised."
    wanted = f"a tuple of {expected}"
    remedy = "describe what it returns with `result=`: a kind, or a list of kinds for a tuple."
    return report(ValueError, headline, function=function, got=came, expected=wanted, remedy=remedy)


def not_as_promised(function: str, came: str, expected: str) -> ValueError:
    """A function of NumPy arrays returned another shape or dtype than promised."""
    headline = f"{function} did not return what it promised."
    cause = "NumPy promoted the result to float64, or the result differs from the first argument."
    remedy = "convert it with y.astype(x.dtype); if it differs from the first argument, describe it with `result=`."
    return report(ValueError, headline, function=function, got=came, expected=expected, cause=cause, remedy=remedy)


def not_a_kind(function: str, said: object) -> TypeError:
    """The return value of `result` is no shape and dtype."""
    headline = f"{function}: `result` must return the kind of an argument, a pair (shape, dtype), or a list of these."
    return report(TypeError, headline, function=function, got=repr(said))


def unknown_surrogate(recipe: str, kind: object, kinds: Sequence[str]) -> ValueError:
    """`surrogate_spike` has no derivative of that name."""
    message = f"{recipe}: there is no kind {kind!r}. The kinds are: {', '.join(kinds)}."
    return ValueError(message + did_you_mean(str(kind).lower(), kinds))


def unknown_count(recipe: str) -> ValueError:
    """The paper's scale needs a number that is unknown until run time."""
    return ValueError(
        f"{recipe}: gradient_scale='lsq' needs the number of elements of x, which is unknown until run time."
        " Give gradient_scale as a number: 1 / sqrt(N Qp), with N the elements of one example."
    )


def function_is_gone() -> RuntimeError:
    """A program calls a function of NumPy arrays that is not in this process."""
    headline = "A program calls a function of NumPy arrays that is not in this process."
    cause = "the program was saved and is loaded elsewhere, or what recipes.from_numpy returned is gone."
    remedy = "keep what from_numpy returned as long as the program, and save models without such functions."
    return report(RuntimeError, headline, cause=cause, remedy=remedy)
