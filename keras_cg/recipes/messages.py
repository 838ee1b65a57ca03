"""The messages of the recipes for wrong arguments; the first text of each is the name of the recipe or its function."""

from __future__ import annotations

from collections.abc import Sequence

from keras_cg.errors import GradientError, article, count, did_you_mean, message, report, type_name


def not_a_function(recipe: str, value: object) -> TypeError:
    """An argument of a recipe cannot be called."""
    return TypeError(
        f"{recipe} expects a function, got {article(type_name(value))}. Give the function itself, not what it returns."
    )


# An object, perhaps with an array in it.
no_array = message(
    TypeError,
    "{0}: {1} is {2}, and this recipe takes real floating tensors. Convert it to an array, or pass the array in it,"
    " such as `param[...]` for a flax.nnx.Param.",
)
not_real = message(
    TypeError,
    "{0}: {1} is {2}, and this recipe takes real floating tensors. Convert it to a floating dtype; pass the real and"
    " the imaginary part of a complex tensor separately.",
)


not_a_number = message(TypeError, "{0}: {1} must be a number or a real floating tensor of the active backend, got {2}.")
bad_parameter = message(ValueError, "{0}: {1}={2!r} is not {3}.")
not_broadcast = message(
    ValueError,
    "{0}: {1} is {2}, which does not broadcast to {3}, {4}. Each of its axes, counted from the last, must have the"
    " length of that of {3}, or 1.",
)
unknown_rank = message(
    ValueError,
    "{0}: the number of axes of {1} ({2}) is unknown until run time. Set its shape, such as with"
    " tf.ensure_shape(x, [None, None]).",
)
not_of_shape = message(
    ValueError,
    "{0}: {1} is {2}, and {3} is {4}. Give one of the same shape: it is not broadcast, because equal numbers would"
    " stand where different ones should.",
)
not_a_mask = message(
    TypeError,
    "{0}: {1} is {2}, and a mask is a boolean tensor of the active backend. Compare, such as x > 0.",
)
no_blocks = message(
    TypeError,
    "{0} applies its function once for each argument after the first, and there is none. Give the parameters of each"
    " block, None for a block without any.",
)
nothing_to_solve = message(
    TypeError, "{0}: there is no tensor in {1}. Give a real floating tensor, or a pytree of such."
)
no_floating = message(TypeError, "{0}: there is no floating tensor in {1}. Give one, or a pytree with one in it.")
unknown_size = message(
    ValueError,
    "{0}: the number of elements of x0 is unknown until run time, and the matrix of the Jacobian needs it. Set its"
    " shape, such as with tf.ensure_shape(x, [3]), or give linear_solve.",
)
not_one_limit = message(
    TypeError, "{0} takes exactly one of value=... (clips each element) and norm=... (clips the norm of all)."
)
not_alike_output = message(
    GradientError,
    "{0}: the output is not like {3}, so upstream cannot be its gradient.",
    got="{1}",
    expected="{2}",
    cause="a function that reduces or broadcasts, or one that returns a comparison or integers.",
    remedy="return the structure and the shapes of {3}, in a floating dtype.",
)
symbolic = message(
    TypeError,
    "{0}: the argument {1} is a KerasTensor, which holds no numbers: a functional model would not own the weights that"
    " the function uses, and so not train them.",
    cause="a call with the result of keras.Input.",
    remedy="call it in the `call` of a layer that owns them; for a function without weights, use keras.layers.Lambda.",
)


def not_a_jvp(function: str, value: object) -> TypeError:
    """A function of `from_jvp` did not return its output and its forward derivative."""
    headline = f"{function}: the function must return a pair (output, jvp) whose second part is a function."
    parts = isinstance(value, tuple) and ", ".join(map(type_name, value))
    came = f"a tuple of {len(value)}: ({parts})" if isinstance(value, tuple) else article(type_name(value))
    remedy = "return (output, jvp), and ((output1, output2), jvp) for several outputs."
    return report(TypeError, headline, function=function, got=came, remedy=remedy)


def not_an_autograd_function(recipe: str, value: object) -> TypeError:
    """The argument of `from_autograd_function` is no class with its two methods."""
    came = f"the class {value.__qualname__}" if isinstance(value, type) else article(type_name(value))
    headline = f"{recipe} expects a class with the static methods forward and backward."
    return report(TypeError, headline, function=recipe, got=came, remedy="decorate a function by custom_gradient.")


once_differentiable = message(
    TypeError,
    "{0}: its backward is once_differentiable, which would lose a second derivative where upstream has no gradient.",
    remedy="remove that decorator; give a kernel that cannot be differentiated a rule of its own, such as by"
    " recipes.from_numpy(kernel, None), whose derivative raises.",
)
asks_while_compiling = message(
    RuntimeError,
    "{0}: its forward reads requires_grad, which torch.compile does not know of an argument.",
    remedy="read ctx.needs_input_grad.",
)
marked_dirty = message(
    RuntimeError,
    "{0}: its forward calls mark_dirty, but no function may change its arguments in place.",
    remedy="return a new tensor.",
)


wrong_tangents = message(
    GradientError,
    "{0}: its jvp returned tangents that are not like the output.",
    got="{1}",
    expected="{2}",
    cause="another shape, one tangent for each argument in place of each output, or no `return`.",
    remedy="return a pytree like the output, with a floating tensor for each tensor, or None for zeros.",
)
not_linear = message(
    ValueError,
    "{0}: its jvp is not linear in the tangents.",
    cause="a derivative without its tangent, or a tangent that is squared, clipped or stopped.",
    remedy="return the sum of each derivative times its tangent; write a gradient that is clipped as a rule.",
)
by_keyword = message(
    TypeError,
    "{0}: {1} was passed by keyword, but arrays are passed by position.",
    argument="{1}",
    remedy="bind other arguments first: from_numpy(functools.partial(function, {1}=...), ...).",
)


not_an_array = message(
    TypeError,
    "{0}: argument {1} is {2}, and not a tensor.",
    remedy="pass tensors and numbers, and the leaves of a pytree one by one. Bind other arguments first:"
    " from_numpy(functools.partial(function, mode=...), ...).",
)
no_arguments = message(TypeError, "{0} was called without arguments. Give it a tensor.")
no_gradient = message(
    GradientError,
    "{0} has no gradient: it was made with vjp=None.",
    remedy="give the rule, from_numpy(function, vjp), or stop the gradient before.",
)
no_derivative = message(
    GradientError,
    "{0}: its vjp is a function of NumPy arrays without a gradient of its own.",
    cause="a second derivative, or forward mode, which is the derivative of the vjp with respect to upstream.",
    remedy="give the vjp a rule, too: from_numpy(function, from_numpy(vjp, vjp_of_vjp)).",
)


def vjp_of_other_arguments(function: str, shown: str, arguments: int, upstreams: int) -> TypeError:
    """The vjp of a function of NumPy arrays has another count of parameters than it gets arguments."""
    called = f"{count(arguments, 'argument')} of the function, then {count(upstreams, 'upstream')}"
    headline = f"{function}: its vjp must take {called}."
    cause = "a rule that is written as for custom_gradient, and takes upstream alone."
    remedy = "write it as vjp(x, upstream): it gets each argument of the function, then upstream."
    return report(TypeError, headline, function=function, got=shown, cause=cause, remedy=remedy)


not_one_gradient_each = message(
    GradientError,
    "{0}: its vjp must return one gradient for each argument, or None for one that has none.",
    got="{1}",
    expected="{2}",
)


def not_so_many(function: str, value: object, expected: int) -> ValueError:
    """A function of NumPy arrays returned another count of results than promised."""
    came = f"{type_name(value)} of {len(value)}" if isinstance(value, (tuple, list)) else article(type_name(value))
    headline = f"{function} did not return what it promised."
    wanted = f"a tuple of {expected}"
    remedy = "describe what it returns with `result=`: a kind, or a list of kinds for a tuple."
    return report(ValueError, headline, function=function, got=came, expected=wanted, remedy=remedy)


not_as_promised = message(
    ValueError,
    "{0} did not return what it promised.",
    got="{1}",
    expected="{2}",
    cause="NumPy promoted the result to float64, or the result differs from the first argument.",
    remedy="convert it with y.astype(x.dtype); if it differs from the first argument, describe it with `result=`.",
)
not_a_kind = message(
    TypeError,
    "{0}: `result` must return the kind of an argument, a pair (shape, dtype), or a list of these.",
    got="{1!r}",
)


def unknown_surrogate(recipe: str, kind: object, kinds: Sequence[str]) -> ValueError:
    """`surrogate_spike` has no derivative of that name."""
    headline = f"{recipe}: there is no kind {kind!r}. The kinds are: {', '.join(kinds)}."
    return ValueError(headline + did_you_mean(str(kind).lower(), kinds))


unknown_count = message(
    ValueError,
    "{0}: gradient_scale='lsq' needs the number of elements of x, which is unknown until run time. Give gradient_scale"
    " as a number: 1 / sqrt(N Qp), with N the elements of one example.",
)
function_is_gone = message(
    RuntimeError,
    "A program calls a function of NumPy arrays that is not in this process.",
    cause="the program was saved and is loaded elsewhere, or what recipes.from_numpy returned is gone.",
    remedy="keep what from_numpy returned as long as the program, and save models without such functions.",
)
