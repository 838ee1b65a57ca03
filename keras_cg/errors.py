"""The exceptions of keras_cg and every message it can give, together.

A message says what happened, the usual cause, and the remedy, in the user's words: the function's
name, the argument's name and path, what came and what was expected.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = ["CapturedVariableError", "GradientError"]


class GradientError(ValueError):
    """A rule returned something that is not the gradient of its function's arguments.

    Raised by the backward pass of a function decorated with `keras_cg.custom_gradient` when the
    count, structure, shape or kind (real/complex) of what the rule returned does not fit.
    """


class CapturedVariableError(TypeError):
    """A decorated function reads a trainable value that is not one of its arguments.

    Without a `variables` parameter in the rule, that value would silently receive no gradient.
    """


# TensorFlow's autograph raises an exception anew, as one of its own unless it has exactly this constructor (2.21).
GradientError.__init__ = CapturedVariableError.__init__ = Exception.__init__  # type: ignore[method-assign]


# What a rule may look like; shown whenever a signature fits none of them.
ACCEPTED_FORMS = """\
    grad(upstream)               one upstream, with the output's structure
    grad(dy1, dy2, ...)          one upstream per output leaf
    grad(*dys)                   one upstream per output leaf
    grad(*args, upstream)        the function's positional arguments, then upstream=
    grad(x, y, upstream=None)    the same, spelled out
    any of them with `variables` also variables=[...], when the function captured any"""


def _lines(*parts: str) -> str:
    return "\n".join(parts)


def article(noun: str) -> str:
    """`noun` with its indefinite article."""
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def type_name(value: object) -> str:
    """The type of `value` as a user would write it: `torch.Tensor`, `str`."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# --- choosing the backend ------------------------------------------------------------------------


# What people call a framework, where spelling alone would not lead to its name here.
_ALIASES = {"pytorch": "torch", "tf": "tensorflow", "np": "numpy", "jnp": "jax", "autograd": "numpy"}


def unknown_backend(name: object, source: str, names: Sequence[str]) -> ValueError:
    """No backend is called `name`."""
    message = f"unknown backend {name!r} (from {source}). The backends are: {', '.join(names)}."
    text = str(name).strip().lower()
    near = (
        [_ALIASES.get(text, text)] if _ALIASES.get(text, text) in names else difflib.get_close_matches(text, names, 1)
    )
    if near:
        message += f" Did you mean {near[0]!r}?"
    return ValueError(message)


def missing_backend(name: str, source: str, module: str | None) -> ImportError:
    """The framework behind a known backend is not installed."""
    return ImportError(
        _lines(
            f"the backend {name!r} (from {source}) needs {module or name!r}, which is not installed.",
            f'    remedy: pip install "keras-cg[{name}]", or choose another backend with'
            " keras_cg.set_backend() or KERAS_CG_BACKEND.",
        ),
        name=module,
    )


def broken_backend(name: str, source: str, error: BaseException) -> ImportError:
    """The framework is there but does not start."""
    return ImportError(
        _lines(
            f"the backend {name!r} (from {source}) is installed but does not start:",
            f"    {type_name(error)}: {error}",
            f"    remedy: see that its framework can be imported by itself; reinstall it with"
            f' pip install --force-reinstall "keras-cg[{name}]".',
        ),
        name=name,
    )


def incomplete_backend(name: str, missing: Iterable[str]) -> ImportError:
    """A backend module does not meet the contract of `keras_cg.backends`."""
    return ImportError(
        f"the backend {name!r} lacks {', '.join(missing)}; a backend defines every name listed in"
        " keras_cg.backends.CONTRACT.",
        name=name,
    )


def no_such_op(name: str, backend: str, namespace: str) -> AttributeError:
    """The active backend's namespace has no function of that name."""
    return AttributeError(
        f"keras_cg.ops is {namespace} while the backend is {backend!r}, and it has no {name!r}."
        " keras_cg.ops adds no functions of its own: use one that every backend you target has."
    )


def foreign_tensor(function: str, role: str, value: object, backend: str, source: str, owner: str) -> TypeError:
    """A tensor that the active backend does not take as its own."""
    return TypeError(
        _lines(
            f"{function}: {role} is {article(type_name(value))}, but the active backend is {backend!r}.",
            f"    the backend comes from: {source}",
            f"    usual cause: a tensor made by {owner}, or a backend left at its default.",
            f"    remedy: convert the value to a {backend} tensor, or choose the backend with"
            f" keras_cg.set_backend({owner!r}), `with keras_cg.use_backend({owner!r}):` or"
            f" KERAS_CG_BACKEND={owner}.",
        )
    )


def keras_elsewhere(
    function: str, role: str, value: object, backend: str, source: str, keras: str, keras_source: str
) -> TypeError:
    """Keras runs on another backend than the active one."""
    kind = type_name(value)
    public = f"keras.{type(value).__name__}" if kind.startswith("keras.") else kind
    return TypeError(
        _lines(
            f"{function}: {role} is {article(public)}, and Keras runs on {keras!r}, but the active backend of keras_cg"
            f" is {backend!r}.",
            f"    the backend of keras_cg comes from: {source}",
            f"    the backend of Keras comes from: {keras_source}",
            "    remedy: let keras_cg follow Keras by choosing no backend for it, or choose the same one for both:"
            f" KERAS_CG_BACKEND={keras}.",
        )
    )


def symbolic_tensor(function: str, role: str) -> TypeError:
    """A placeholder of Keras's functional API where Keras would not find it."""
    return TypeError(
        _lines(
            f"{function}: {role} is a KerasTensor, which holds no numbers, where Keras does not look for one.",
            "    usual cause: it is the attribute of a dataclass or of an object that only another framework opens, it"
            " was closed over, or what was called is no decorated function (recipes.recompute, keras_cg.grad).",
            "    remedy: pass it as an argument, or in a tuple, list or dict; or call the function inside a layer.",
        )
    )


def symbolic_variable(function: str, role: str, variable: str) -> TypeError:
    """A Keras variable beside a KerasTensor: no model would own it."""
    return TypeError(
        _lines(
            f"{function}: {role} is the Keras variable {variable!r}, and an argument is a KerasTensor: the model would"
            " neither train the variable nor save it.",
            "    usual cause: a weight used in the functional API without a layer that owns it.",
            "    remedy: make it in a layer's `build` by `self.add_weight`, and call the function in its `call`.",
        )
    )


def not_saveable(function: str) -> TypeError:
    """Keras is to save a decorated lambda, or a partial."""
    return TypeError(
        _lines(
            f"{function} cannot be saved: Keras finds a function again by its name, and this one has none.",
            "    usual cause: a lambda, a functools.partial, a method or a callable object that was decorated.",
            "    remedy: write it with `def`, and register it:"
            " @keras.saving.register_keras_serializable() above @keras_cg.custom_gradient.",
        )
    )


def name_is_taken(function: str, name: str) -> TypeError:
    """Keras is to save a decorated function, and would load another one in its place."""
    return TypeError(
        _lines(
            f"{function} cannot be saved: Keras knows another object as {name!r}, and would load that in its place.",
            "    usual cause: a function that is made and registered several times, with different values in it.",
            "    remedy: register each under a name of its own:"
            " @keras.saving.register_keras_serializable(name=...), or make what differs an argument.",
        )
    )


def not_registered(name: str) -> TypeError:
    """Keras loads a decorated function that it does not know."""
    return TypeError(
        _lines(
            f"could not find the decorated function {name!r} that a saved model uses.",
            "    usual cause: the module that defines it was not imported, or it was not registered.",
            "    remedy: register it (@keras.saving.register_keras_serializable() above @keras_cg.custom_gradient) and"
            " import its module before loading, or pass custom_objects={"
            f"{name!r}: ...}} to keras.saving.load_model.",
        )
    )


def keras_has_moved(place: str, version: str) -> ImportError:
    """Keras keeps its decorator somewhere else than we know."""
    return ImportError(
        _lines(
            f"Keras {version} has no {place}: `keras_cg.keras.install` would leave some of its layers without our"
            " gradients, and so changes nothing.",
            "    remedy: use keras_cg.custom_gradient itself, or a version of Keras that this version of keras_cg was"
            " tested with (see constraints.txt).",
        ),
        name="keras",
    )


# --- what the function returns -------------------------------------------------------------------


def not_callable(value: object) -> TypeError:
    """`custom_gradient` was given something that cannot be decorated."""
    return TypeError(
        f"custom_gradient expects a function that returns (output, grad), got {article(type_name(value))}."
        " Use it as @custom_gradient or custom_gradient(f)."
    )


def not_a_pair(function: str, value: object) -> TypeError:
    """The function returned no `(output, grad)`."""
    if isinstance(value, (tuple, list)):
        came = f"{article(type(value).__name__)} of {len(value)}: ({', '.join(map(type_name, value))})"
    else:
        came = article(type_name(value))
    return TypeError(
        _lines(
            f"{function} must return a pair (output, grad).",
            f"    got: {came}",
            "    usual cause: `return output` without the rule, or several outputs that are not in a tuple.",
            "    remedy: return (output, grad), and ((output1, output2), grad) for several outputs.",
        )
    )


def rule_not_callable(function: str, rule: object) -> TypeError:
    """The second part of the pair is no function."""
    return TypeError(
        _lines(
            f"{function} must return a pair (output, grad) whose second part is a function.",
            f"    got: {article(type_name(rule))} in the place of grad",
            "    usual cause: the rule was called (`grad(...)`) instead of returned, or the pair is two outputs.",
            "    remedy: return (output, grad), and ((output1, output2), grad) for several outputs.",
        )
    )


def no_convention(function: str, shown: str, arguments: int, outputs: int) -> TypeError:
    """The signature of the rule fits none of the conventions."""
    return TypeError(
        _lines(
            f"{function}: no calling convention fits the signature of its rule.",
            f"    got: {shown}, for a call with {_count(arguments, 'positional argument')}"
            f" and {_count(outputs, 'output leaf', 'output leaves')}",
            "    expected one of:",
            ACCEPTED_FORMS,
        )
    )


# --- what the rule returns -----------------------------------------------------------------------


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def wrong_count(function: str, came: int, names: Sequence[str], leaves: int) -> GradientError:
    """Too few or too many gradients."""
    also = f" (or {leaves}, counting every leaf of the arguments)" if leaves != len(names) else ""
    return GradientError(
        _lines(
            f"the rule of {function} returned {_count(came, 'gradient')}.",
            f"    expected: {len(names)}{also}, one for each tensor argument: {', '.join(names)}",
            "    usual cause: a gradient was forgotten, or one was returned for something that is no argument.",
            "    remedy: return one gradient per argument, in order; None where there is none.",
        )
    )


def wrong_structure(function: str, came: str, expected: str) -> GradientError:
    """The nest that came is not that of the arguments."""
    return GradientError(
        _lines(
            f"the rule of {function} returned gradients in the wrong structure.",
            f"    got: {came}",
            f"    expected: {expected}",
            "    usual cause: keys or levels that differ from those of the arguments.",
            "    remedy: return the same nest as the arguments, or a flat list with one gradient per leaf.",
        )
    )


def ambiguous(function: str, came: str, expected: str) -> GradientError:
    """The gradients fit the arguments in two ways, which differ."""
    return GradientError(
        _lines(
            f"the rule of {function} returned gradients that fit its arguments in two ways.",
            f"    got: {came}",
            f"    expected: {expected}",
            "    usual cause: None or 0 for a whole nest, in a result that is also a flat list with one part per leaf.",
            "    remedy: return the same nest as the arguments, with None at each leaf that has no gradient.",
        )
    )


def wrong_shape(function: str, argument: str, came: str, expected: str, axes: Sequence[int]) -> GradientError:
    """The shape of a gradient is not that of its argument, which may have been broadcast along `axes`."""
    over = f"{'axis' if len(axes) == 1 else 'axes'} {' and '.join(map(str, axes))}"
    cause = f"{argument} was broadcast, and a sum over {over} is missing."
    if not axes:
        cause = "a gradient that was summed or cut, or gradients in the wrong order."
    return GradientError(
        _lines(
            f"the rule of {function} returned a gradient of the wrong shape for {argument}.",
            f"    got: {came}",
            f"    expected: {expected}",
            f"    usual cause: {cause}",
            "    remedy: sum over the broadcast axes or reshape; nothing is broadcast or summed for you.",
        )
    )


def wrong_kind(function: str, argument: str, came: str, expected: str) -> GradientError:
    """Complex where real is due, or an integer gradient."""
    return GradientError(
        _lines(
            f"the rule of {function} returned a gradient of the wrong kind for {argument}.",
            f"    got: {came}",
            f"    expected: {expected}",
            "    usual cause: a complex intermediate, or an integer or boolean mask that was never multiplied"
            " with upstream.",
            "    remedy: return the real part, or cast the gradient to the argument's dtype.",
        )
    )


def boolean_gradient(function: str, argument: str, came: str, expected: str) -> GradientError:
    """A mask in the place of a gradient."""
    return GradientError(
        _lines(
            f"the rule of {function} returned a boolean gradient for {argument}.",
            f"    got: {came}",
            f"    expected: {expected}",
            "    usual cause: a mask that upstream was multiplied with, which on TensorFlow gives a boolean and loses"
            " upstream, or a comparison that was returned.",
            "    remedy: ops.where(mask, upstream, 0), or cast the mask to the dtype of upstream first.",
        )
    )


def unsorted_result(function: str, came: str, expected: str) -> GradientError:
    """A flat result for a dict, of which nobody can tell in which order it is meant."""
    return GradientError(
        _lines(
            f"the rule of {function} returned flat gradients for a dict whose keys are not sorted.",
            f"    got: {came}",
            f"    expected: {expected}",
            "    usual cause: a flat list in the order in which the keys were inserted; it would be read by sorted keys.",
            "    remedy: return the same nest as the arguments.",
        )
    )


def unsorted_output(function: str, shown: str) -> TypeError:
    """A rule that takes the upstreams of a dict one by one, and cannot know in which order they come."""
    return TypeError(
        _lines(
            f"the rule of {function} takes one upstream for each leaf of an output with a dict whose keys are not sorted.",
            f"    got: {shown}",
            "    usual cause: parameters in the order in which the keys were inserted; upstreams come by sorted keys.",
            "    remedy: take one `upstream`, the same nest as the output, or insert the keys in sorted order.",
        )
    )


def not_a_gradient(function: str, argument: str, value: object, expected: str) -> GradientError:
    """Something that no tensor can be made of."""
    return GradientError(
        _lines(
            f"the rule of {function} returned no tensor for {argument}.",
            f"    got: {article(type_name(value))}",
            f"    expected: {expected}",
            "    usual cause: a value of another library, or a value that is no gradient at all.",
            "    remedy: return a tensor of the active backend, or None for no gradient.",
        )
    )


def captured_variable(function: str, names: Sequence[str]) -> CapturedVariableError:
    """The function captured something trainable, and its rule takes no `variables`."""
    return CapturedVariableError(
        _lines(
            f"{function} reads {_count(len(names), 'trainable value')} that {'is' if len(names) == 1 else 'are'}"
            f" not among its arguments: {', '.join(names)}",
            "    what would happen: the rule says nothing about them, so they would silently get no gradient.",
            "    remedy, one of three: pass them as arguments; give the rule a `variables` parameter and return"
            " (grads, variable_grads); or stop their gradient inside the function.",
        )
    )


def unserved_variables(backend: str, where: str = "") -> CapturedVariableError:
    """The rule takes `variables`, and the backend cannot tell there which they are."""
    there = f"the backend {backend!r} {where}".rstrip()
    return CapturedVariableError(
        _lines(
            "the function reads a value that is being differentiated and is not among its arguments.",
            "    usual cause: a closure over it.",
            f"    what would happen: {there} cannot hand it to the rule as `variables`, and it would silently get no"
            " gradient.",
            "    remedy: pass it as an argument, or stop its gradient inside the function.",
        )
    )


def rule_dropped(where: str, remedy: str) -> NotImplementedError:
    """The framework would ignore the rule without a word."""
    return NotImplementedError(
        _lines(
            f"{where} ignores custom gradients, and would silently give those of plain differentiation.",
            f"    remedy: {remedy}.",
        )
    )


def changed_in_place(what: str, remedy: str) -> RuntimeError:
    """Values that the gradient needs are no longer what they were."""
    return RuntimeError(
        _lines(
            f"{what}, so that the gradient would be silently wrong.",
            f"    remedy: {remedy}.",
        )
    )


def changes_variables(function: str) -> RuntimeError:
    """A function that must run again, and would not do the same."""
    return RuntimeError(
        _lines(
            f"{function} changes a variable of Keras whenever it runs, and what was asked for, such as the derivative"
            " of its gradient, needs to run it again: with other values than the first time.",
            "    usual cause: a keras.random.SeedGenerator, or a layer with a state such as Dropout, inside of it.",
            "    remedy: use it outside and pass what it gives as an argument, such as seed=generator.next().",
        )
    )


def not_repeated() -> RuntimeError:
    """A function that ran again gave something else."""
    return RuntimeError(
        _lines(
            "a function with a custom gradient ran again, because its gradient is differentiated, and gave another"
            " output than the first time.",
            "    usual cause: it draws random numbers, or changes what it reads.",
            "    remedy: draw them outside and pass them as an argument, or draw them from a seed that is one.",
        )
    )


def not_linear() -> ValueError:
    """Forward mode was asked for a rule that has no transpose."""
    return ValueError(
        _lines(
            "forward mode needs a rule that is linear in upstream, and this one is not.",
            "    usual cause: a rule that clips or normalises upstream.",
            "    remedy: differentiate in reverse mode.",
        )
    )


def no_forward_mode() -> ValueError:
    """JAX met a function that has a rule for reverse mode only, in a compiled program or of another library."""
    return ValueError(
        _lines(
            "forward mode needs a rule that is linear in upstream, and JAX met a custom_vjp function that has none.",
            "    usual cause: inside jax.jit, a rule that clips or normalises upstream; a jax.custom_vjp function of"
            " another library; a gradient that is taken inside jvp through a scan, map or fori_loop.",
            "    remedy: differentiate in reverse mode.",
        )
    )


def wrong_variable_count(function: str, came: str, expected: int) -> GradientError:
    """The rule was given `variables` and did not return one gradient for each."""
    return GradientError(
        _lines(
            f"the rule of {function} was called with variables=[...] and must return (grads, variable_grads).",
            f"    got: {came}",
            f"    expected: a pair whose second part is a list of {_count(expected, 'gradient')}",
            "    usual cause: only the gradients of the arguments were returned.",
            "    remedy: return (grads, [one gradient for each of `variables`]).",
        )
    )


# --- keras_cg.grad and its like ------------------------------------------------------------------

# Here `where` is the call as the user would write it: `grad(f)`, `jvp(f)`.


def not_differentiable(where: str, argument: str, came: str) -> TypeError:
    """`grad` was asked for the gradient of something that has none."""
    return TypeError(
        f"{where}: {argument} is {came}, and only floating or complex tensors have a gradient."
        " Convert it to a floating dtype, or leave it out of `argnums`."
    )


def nothing_to_differentiate(where: str) -> TypeError:
    """No argument holds a tensor that has a gradient."""
    return TypeError(
        f"{where}: there is no floating or complex tensor among the arguments to differentiate."
        " Give at least one: integers, booleans and strings have no gradient."
    )


def bad_argnums(where: str, argnums: object, count: int) -> TypeError:
    """`argnums` does not name positional arguments of the call."""
    return TypeError(
        f"{where}: argnums={argnums!r} does not fit a call with {_count(count, 'positional argument')}."
        " Give the index of a positional argument, or a tuple of different ones; keywords are not differentiated."
    )


def not_a_scalar_output(where: str, came: str) -> TypeError:
    """`grad` can differentiate one real tensor."""
    return TypeError(
        f"{where}: the function must return one real floating tensor, got {came}."
        " Return the loss alone, or (loss, aux) with has_aux=True."
    )


def no_aux(where: str, value: object) -> TypeError:
    """`has_aux=True` and the function returned no pair."""
    return TypeError(
        f"{where}: with has_aux=True the function must return a pair (output, aux), got {article(type_name(value))}."
    )


def no_floating_output(where: str, came: str) -> TypeError:
    """Nothing in the output has a derivative."""
    return TypeError(
        f"{where}: the function must return at least one floating or complex tensor, got {came}."
        " A forgotten `return`, or a comparison or an index where its values were meant, gives such an output."
    )


def complex_jacobian(where: str, what: str, came: str) -> TypeError:
    """There is no one Jacobian of complex numbers."""
    return TypeError(
        f"{where}: {what} is {came}, and one complex matrix cannot hold the derivative of a complex function that is"
        " not holomorphic. Use keras_cg.vjp or keras_cg.jvp, or give real and imaginary parts as tensors of their own."
    )


def not_arguments(where: str, name: str, value: object) -> TypeError:
    """`primals` or `tangents` is no sequence of arguments."""
    return TypeError(
        f"{where}: {name} must be a tuple with one part for each argument, got {article(type_name(value))}."
        " For one argument write jvp(f, (x,), (tangent,))."
    )


def not_the_nest(where: str, name: str, came: str, expected: str, model: str) -> ValueError:
    """Upstream or tangents with another structure than what they belong to."""
    return ValueError(
        _lines(
            f"{where}: {name} has another structure than {model}.",
            f"    got: {came}",
            f"    expected: {expected}",
            "    usual cause: keys or levels that differ, or a bare tensor where a tuple of one is due.",
            "    remedy: give the same nest, with None for zeros and at every leaf that is no floating tensor.",
        )
    )


def not_alike(where: str, name: str, came: str, expected: str, model: str) -> ValueError:
    """One leaf of upstream or tangents that does not fit the tensor it belongs to."""
    return ValueError(
        _lines(
            f"{where}: {name} does not fit {model}.",
            f"    got: {came}",
            f"    expected: {expected}",
            "    usual cause: a value that was to be broadcast, an integer tensor, or complex numbers for real ones.",
            "    remedy: give a floating tensor of exactly that shape; None stands for zeros. Nothing is broadcast.",
        )
    )


# --- keras_cg.keras.layers -----------------------------------------------------------------------


def weights_are_away(layer: str) -> RuntimeError:
    """A layer's scale is set while Keras's trainer on JAX holds the model's weights."""
    return RuntimeError(
        _lines(
            f"the scale of the layer {layer} cannot be set here.",
            "In the middle of an epoch Keras on JAX has taken the weights out of the model, and would overwrite it.",
            f'In a callback reach the layer through the model, which fetches them: self.model.get_layer("{layer}"), or',
            "set the scale at the beginning of an epoch.",
        )
    )


def unknown_operation(name: str, known: Iterable[str]) -> ValueError:
    """`keras.ops` has no function of that name."""
    near = difflib.get_close_matches(name, list(known), 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ValueError(f"keras.ops has no function {name!r}; {hint}A function of your own is given itself, not its name")


# --- keras_cg.testing ------------------------------------------------------------------------------


def missing_scipy() -> ImportError:
    """The checker was imported where SciPy is missing or old."""
    return ImportError(
        _lines(
            "keras_cg.testing needs SciPy 1.15 or later, for derivatives by differences.",
            '    remedy: pip install "keras-cg[testing]".',
        ),
        name="scipy.differentiate",
    )


def nothing_to_check(function: str) -> ValueError:
    """No argument can be differentiated."""
    return ValueError(
        f"check_gradients({function}): none of the arguments is an array of floating or complex numbers."
        " Python's own numbers are static, as in a call of the function: write numpy.asarray(2.0) for 2.0."
    )


def not_dense(function: str, argument: str, value: object) -> TypeError:
    """A tensor that NumPy cannot hold."""
    return TypeError(
        f"check_gradients({function}): {argument} is {article(type_name(value))}, which has no values for NumPy."
        " Give a dense tensor, or check a function that makes the other kind from one."
    )


def bad_option(function: str, option: str, value: object, choices: str) -> ValueError:
    """An option of the checker has no such value."""
    return ValueError(f"check_gradients({function}): {option}={value!r} is not {choices}.")


def wrong_expected(function: str, came: str, expected: str) -> ValueError:
    """What the function is compared with has another output."""
    return ValueError(
        _lines(
            f"check_gradients({function}): the output of `expected` is not like that of the function.",
            f"    got: {came}",
            f"    expected: {expected}",
            "    remedy: `expected` is a function with the same arguments and an output of the same shape, whose"
            " derivative the rule should be; or a rule, with a parameter called `upstream`.",
        )
    )


# --- keras_cg.recipes ------------------------------------------------------------------------------


def not_a_function(recipe: str, value: object) -> TypeError:
    """A recipe for functions was given something else."""
    return TypeError(
        f"{recipe} expects a function, got {article(type_name(value))}. Give the function itself, not what it returns."
    )


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


def not_one_limit() -> TypeError:
    """`clip_gradient` with no limit, or with two."""
    return TypeError(
        "clip_gradient takes exactly one of value=... (clips each element) and norm=... (clips the norm of all)."
    )


def not_alike_output(function: str, came: str, expected: str) -> GradientError:
    """The output of a function cannot have the gradient of the identity."""
    return GradientError(
        _lines(
            f"{function}: the output is not like the first argument, so that upstream cannot be its gradient.",
            f"    got: {came}",
            f"    expected: {expected}",
            "    usual cause: a function that reduces or broadcasts, or one that returns a comparison or integers.",
            "    remedy: return the structure and the shapes of the first argument, in a floating dtype.",
        )
    )


def unknown_surrogate(kind: object, kinds: Sequence[str]) -> ValueError:
    """`surrogate_spike` has no derivative of that name."""
    message = f"surrogate_spike: there is no kind {kind!r}. The kinds are: {', '.join(kinds)}."
    near = difflib.get_close_matches(str(kind).lower(), kinds, 1)
    return ValueError(message + (f" Did you mean {near[0]!r}?" if near else ""))


def lost_to_recompute(backend: str) -> CapturedVariableError:
    """A recomputed function reads what the backend cannot hand it again."""
    return CapturedVariableError(
        _lines(
            "recompute: the function reads a value that is being differentiated and is not among its arguments.",
            "    usual cause: a tensor in an attribute, a set or a global.",
            f"    what would happen: the backend {backend!r} finds only what is in closures, and it would silently"
            " get no gradient.",
            "    remedy: pass it as an argument, or stop its gradient inside the function.",
        )
    )


def unknown_count(recipe: str) -> ValueError:
    """The paper's scale needs a number that is not known until run time."""
    return ValueError(
        f"{recipe}: gradient_scale='lsq' needs the number of elements of x, which is unknown until run time."
        " Give gradient_scale as a number: 1 / sqrt(N Qp), with N the elements of one example."
    )


# --- the pytest plugin ---------------------------------------------------------------------------


def marker_without_names(test: str) -> TypeError:
    """The marker names no backend, or names them in another way."""
    return TypeError(
        f"{test}: the marker cg_backends takes the names of backends, one argument each:"
        ' @pytest.mark.cg_backends("jax", "torch").'
    )


def marker_without_fixture(test: str) -> TypeError:
    """The marker is on a test that does not run on the backends."""
    return TypeError(
        _lines(
            f"{test}: the marker cg_backends needs the fixture `cg_backend`, which this test does not use.",
            "    what would happen: the test would run once, on whichever backend is active.",
            "    remedy: take `cg_backend` as an argument of the test, or mark only the tests that do.",
        )
    )


def marker_on_a_parameter(test: str) -> TypeError:
    """The marker came too late to restrict anything."""
    return TypeError(
        _lines(
            f"{test}: the marker cg_backends does not name the backend that this test runs on.",
            "    usual cause: it stands on one parameter, pytest.param(..., marks=...), or was added after collection.",
            "    remedy: put it on a test, a class or a module.",
        )
    )


def fixture_without_parameter(test: str) -> TypeError:
    """The fixture was asked for where pytest cannot run the test several times."""
    return TypeError(
        _lines(
            f"{test}: the fixture `cg_backend` was asked for where a test cannot run once on each backend.",
            "    usual cause: request.getfixturevalue(), or a method of a unittest.TestCase.",
            "    remedy: take `cg_backend` as an argument of a test function or of a fixture that it uses.",
        )
    )


# --- the command line ----------------------------------------------------------------------------


class UsageError(Exception):
    """What the command line was asked cannot be done; told in one line."""


SPEC_FORMS = "normal:SHAPE, uniform:LO,HI:SHAPE, linspace:LO,HI,N, a Python literal, @FILE.npy; also with :DTYPE"


def _one_line(error: BaseException) -> str:
    """An exception in one line, as the last line of a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type_name(error)}: {lines[0]}" if lines else type_name(error)


def missing_extra(module: str) -> UsageError:
    """What draws tables or plots is not installed."""
    return UsageError(f'{module} is not installed: pip install "keras-cg[cli]"')


def bad_argument(text: str) -> UsageError:
    """Something after `--arg` that is no `name=spec`."""
    return UsageError(f"--arg {text}: expected NAME=SPEC, such as x=normal:4,3 or n=3")


def repeated_argument(name: str) -> UsageError:
    """The same name after two `--arg`."""
    return UsageError(f"--arg {name}: given twice; give each argument once")


def bad_spec(name: str, spec: str, problem: str) -> UsageError:
    """An argument's spec that does not parse."""
    return UsageError(f"argument {name}={spec}: {problem}. The forms are: {SPEC_FORMS}")


def no_such_file(path: str, near: str | None) -> UsageError:
    """The target's file is not there."""
    return UsageError(f"no file {path!r}" + (f"; did you mean {near!r}?" if near else "; check the path"))


def not_importable(target: str, error: BaseException, where: str | None) -> UsageError:
    """The target's file or module raised while it was imported."""
    if isinstance(error, SystemExit):
        what = f"it calls sys.exit({error.code!r})"
    elif isinstance(error, SyntaxError):
        what = f"SyntaxError: {error.msg}"
    else:
        what = _one_line(error)
    at = f" ({where})" if where else ""
    if isinstance(error, ModuleNotFoundError) and error.name == target.partition(":")[0]:
        remedy = "give the path of a file ending in .py, or the name of a module that can be imported from here"
    elif isinstance(error, ImportError) and "relative import" in str(error):
        remedy = "name a file of a package as a module: package.module:function"
    elif isinstance(error, ModuleNotFoundError):
        remedy = f"install {error.name!r}, or put the folder that has it on PYTHONPATH"
    else:
        remedy = "see that python can import it by itself"
    return UsageError(f"{target} cannot be imported: {what}{at}; {remedy}")


def no_such_function(target: str, name: str, known: Sequence[str]) -> UsageError:
    """The target's module has no attribute of that name."""
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known) or 'none'}"
    return UsageError(f"{target} has no {name!r}; {hint}")


def not_decorated(target: str, value: object) -> UsageError:
    """The target is something else than what `custom_gradient` makes."""
    return UsageError(
        f"{target} is {article(type_name(value))}, not a function with a custom gradient;"
        " decorate it with @keras_cg.custom_gradient, and name what the decorator gave"
    )


def missing_arguments(function: str, names: Sequence[str]) -> UsageError:
    """Required arguments that nobody gave."""
    if names[0] == "self":
        return UsageError(f"{function} is the method of a class; name that of an object: MODULE:OBJECT.METHOD")
    options = " ".join(f"--arg {name}=..." for name in names)
    return UsageError(
        f"{function} needs {_count(len(names), 'more argument')}: add {options}, or set {function}.example_args"
    )


def unknown_argument(function: str, name: str, known: Sequence[str]) -> UsageError:
    """A name that is no parameter of the function."""
    return UsageError(f"{function} has no argument {name!r}; its arguments are: {', '.join(known) or 'none'}")


def no_array(function: str) -> UsageError:
    """Nothing among the arguments can be differentiated."""
    return UsageError(
        f"no argument of {function} is an array of floating or complex numbers, and a number as in x=3 is static;"
        " give x=3:float32 or x=normal:4,3"
    )


def bad_hint(function: str, problem: str) -> UsageError:
    """`example_args` of a form that is not known."""
    return UsageError(
        f"{function}.example_args {problem}; expected a dict such as {{'x': 'normal:4,3', 'n': 3}}, or a tuple"
    )


def no_hints(target: str, decorated: Sequence[str]) -> UsageError:
    """A whole module without a function that says how it may be called."""
    if not decorated:
        return UsageError(f"{target} has no function decorated with @keras_cg.custom_gradient; nothing to check")
    return UsageError(
        f"no function of {target} has example_args; name one, such as {target}:{decorated[0]} with --arg,"
        f" or set {decorated[0]}.example_args = {{'x': 'normal:4,3'}}"
    )


def needs_function(target: str, option: str) -> UsageError:
    """An option that is about one function, and a whole module."""
    return UsageError(f"{option} is for one function: name it, as in {target}:FUNCTION")


def not_a_reference(target: str, value: object) -> UsageError:
    """`expected` that cannot be called."""
    return UsageError(f"--expected {target} is {article(type_name(value))}; name a function, or a rule with `upstream`")


def not_installed(name: str) -> UsageError:
    """A backend that was asked for is absent."""
    return UsageError(f'{name}: not installed: pip install "keras-cg[{name}]"')


def not_a_file_to_write(path: str, problem: str) -> UsageError:
    """A plot that cannot be saved."""
    return UsageError(f"cannot write {path}: {problem}")


def output_lost(problem: str) -> UsageError:
    """The standard output does not take what a command wrote."""
    return UsageError(f"cannot write to the standard output: {problem}; send it elsewhere, or make room")


def no_range(function: str, came: Sequence[str]) -> UsageError:
    """A plot needs one argument that runs along the axis."""
    found = f"{', '.join(came)} do" if came else "none does"
    return UsageError(
        f"plot needs exactly one argument of {function} with increasing numbers (one axis, 3 or more), and {found};"
        " give one as --arg x=linspace:-5,5,400"
    )


def not_elementwise(function: str, problem: str) -> UsageError:
    """A function of which no curve can be drawn."""
    return UsageError(f"plot draws functions that act on each number by itself, and {function} does not: {problem}")


def process_died(backend: str, how: str, doing: str, where: str | None) -> str:
    """A backend's process ended before its work was done."""
    at = f", in {where}" if where else ""
    causes = {"SIGKILL": "usual cause: out of memory; use smaller arguments", "exit": "the function must not exit"}
    remedy = next((text for key, text in causes.items() if key in how), "run the function alone on this backend")
    return f"{backend}: the process {how} while {doing}{at}; {remedy}"


def process_late(backend: str, seconds: float, doing: str, where: str | None) -> str:
    """A backend's process was still busy when its time was over."""
    at = f", in {where}" if where else ""
    return f"{backend}: not done after {seconds:g} s while {doing}{at}; use smaller arguments or a longer --timeout"


def process_raised(backend: str, error: BaseException, where: str | None) -> str:
    """Something raised where a result was expected."""
    at = f" ({where})" if where else ""
    if isinstance(error, MemoryError):
        return f"{backend}: out of memory{at}; use smaller arguments"
    return f"{backend}: {_one_line(error)}{at}"
