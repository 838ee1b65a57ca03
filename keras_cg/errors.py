"""The exceptions of keras_cg and the messages of its core; every other part keeps its own beside it.

A message says what happened, the usual cause, and the remedy, in the user's words: the function's
name, the argument's name and path, what came and what was expected.
"""

from __future__ import annotations

import difflib
import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

__all__ = ["CapturedVariableError", "GradientError"]

E = TypeVar("E", bound=Exception)


class Reported:
    """What the message of an error says, as data; None is what it does not say."""

    function: str | None = None
    argument: str | None = None
    got: str | None = None
    expected: str | None = None
    cause: str | None = None
    remedy: str | None = None


class GradientError(Reported, ValueError):
    """A rule returned something that is not the gradient of its function's arguments.

    Raised by the backward pass of a function decorated with `keras_cg.custom_gradient` when the
    count, structure, shape or kind (real/complex) of what the rule returned does not fit.

    Its attributes are what the message says: the `function` and the `argument` by their names, what
    it `got` and what is `expected`, the usual `cause` and the `remedy`; None is what it does not say.
    Out of a `tf.function`, TensorFlow raises the error anew without them; its `__context__` has them.
    """


class CapturedVariableError(Reported, TypeError):
    """A decorated function reads a trainable value that is not one of its arguments.

    Without a `variables` parameter in the rule, that value would silently receive no gradient.

    Its attributes are those of a `GradientError`.
    """


# TensorFlow's autograph raises an exception anew, as one of its own unless it has exactly this constructor (2.21).
GradientError.__init__ = CapturedVariableError.__init__ = Exception.__init__  # type: ignore[method-assign]


# The attributes that `report` sets, and what the lines of a message are called.
DATA = tuple(Reported.__annotations__)
_LABELS = ("got", "expected", "usual cause", "what would happen", "remedy", "remedy, one of three")

# What a rule may look like; shown whenever a signature fits none of them.
ACCEPTED_FORMS = """\
    grad(upstream)               one upstream, with the output's structure
    grad(dy1, dy2, ...)          one upstream per output leaf
    grad(*dys)                   one upstream per output leaf
    grad(*args, upstream)        the function's positional arguments, then upstream=
    grad(x, y, upstream=None)    the same, spelled out
    any of them with `variables` also variables=[...], when the function captured any"""


# --- how a message is written --------------------------------------------------------------------


def lines(*parts: str) -> str:
    """The parts, each on a line of its own."""
    return "\n".join(parts)


def article(noun: str) -> str:
    """`noun` with its indefinite article."""
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def count(number: int, one: str, many: str | None = None) -> str:
    """`number` with its noun: `1 gradient`, `2 gradients`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def type_name(value: object) -> str:
    """The type of `value` as a user would write it: `torch.Tensor`, `str`."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """A question after the one of `names` that is almost `name`; nothing if there is none."""
    near = difflib.get_close_matches(name, names, 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def report(
    kind: Callable[[str], E],
    headline: str,
    *more: str,
    function: str | None = None,
    argument: str | None = None,
    got: str | None = None,
    expected: str | None = None,
    cause: str | None = None,
    consequence: str | None = None,
    remedy: str | None = None,
    remedies: str | None = None,
) -> E:
    """An error of that kind: its message has the headline, a line for each part that is given, and the lines `more`.

    The parts are the attributes of the error that `DATA` names, too; the headline tells `function` and `argument`.
    `remedies` are three to choose from, in the place of `remedy`.
    """
    texts = (got, expected, cause, consequence, remedy, remedies)
    told = [f"    {label}: {text}" for label, text in zip(_LABELS, texts, strict=True) if text is not None]
    error = kind(lines(headline, *told, *more))
    # Dynamo (torch 2.13) cannot trace that a built-in exception gets an attribute: torch.compile would tell the user
    # of that, and not what happened.
    compiler: Any = getattr(sys.modules.get("torch"), "compiler", None)
    if compiler is None or not compiler.is_compiling():
        for name, value in zip(DATA, (function, argument, got, expected, cause, remedy or remedies), strict=True):
            setattr(error, name, value)
    return error


def deprecated(what: str, until: str, remedy: str) -> None:
    """Warns whoever calls the caller of this that something is going; CONTRIBUTING has the policy.

    Args:
        what: What is going, as the user writes it: `keras_cg.grad(f, aux=...)`.
        until: The release that will not have it.
        remedy: What to write instead.
    """
    text = lines(f"{what} is deprecated, and goes in keras_cg {until}.", f"    remedy: {remedy}.")
    warnings.warn(text, DeprecationWarning, stacklevel=3)


# --- choosing the backend ------------------------------------------------------------------------


# What people call a framework, where spelling alone would not lead to its name here.
_ALIASES = {"pytorch": "torch", "tf": "tensorflow", "np": "numpy", "jnp": "jax", "autograd": "numpy"}


def unknown_backend(name: object, source: str, names: Sequence[str]) -> ValueError:
    """No backend is called `name`."""
    message = f"unknown backend {name!r} (from {source}). The backends are: {', '.join(names)}."
    text = str(name).strip().lower()
    return ValueError(message + did_you_mean(_ALIASES.get(text, text), names))


def missing_backend(name: str, source: str, module: str | None, requirement: str) -> ImportError:
    """The framework behind a known backend is not installed."""
    headline = f"the backend {name!r} (from {source}) needs {module or name!r}, which is not installed."
    choose = "or choose another backend with keras_cg.set_backend() or KERAS_CG_BACKEND."
    remedy = f'pip install "{requirement}", {choose}'
    return report(functools.partial(ImportError, name=module), headline, remedy=remedy)


def broken_backend(
    name: str, source: str, error: BaseException, requirement: str, version: str | None = None
) -> ImportError:
    """The framework, of a version if that is known, is there but does not start."""
    release = f" with {name} {version}" if version else ""
    headline = f"the backend {name!r} (from {source}) is installed but does not start{release}:"
    reinstall = f'reinstall it with pip install --force-reinstall "{requirement}".'
    remedy = f"see that its framework can be imported by itself; {reinstall}"
    kind = functools.partial(ImportError, name=name)
    return report(kind, lines(headline, f"    {type_name(error)}: {error}"), remedy=remedy)


def incomplete_backend(name: str, missing: Iterable[str]) -> ImportError:
    """A backend module does not meet the contract of `keras_cg.backends`."""
    contract = "a backend defines every name listed in keras_cg.engine.contract.REQUIRED."
    return ImportError(f"the backend {name!r} lacks {', '.join(missing)}; {contract}", name=name)


def no_such_op(name: str, backend: str, names: Sequence[str]) -> AttributeError:
    """`keras_cg.ops` has no function of that name on the active backend."""
    headline = f"keras_cg.ops has no {name!r} while the backend is {backend!r}.{did_you_mean(name, names)}"
    cause = "a function that one framework has and the array API standard does not."
    remedy = "use one of docs/ops.md: they are there on every backend."
    return report(AttributeError, headline, cause=cause, remedy=remedy)


def no_op_here(name: str, backend: str, what: str, remedy: str) -> NotImplementedError:
    """A function of `keras_cg.ops` that the framework has no means for, or not for these arguments."""
    headline = f"keras_cg.ops: `{name}` {what} on the backend {backend!r}."
    cause = "the framework has no means for it; docs/ops.md has what each backend refuses."
    return report(NotImplementedError, headline, function=name, cause=cause, remedy=remedy)


def no_axis() -> ValueError:
    """A cumulative function of `keras_cg.ops`, of a tensor with several axes or none."""
    return ValueError("the axis must be given, unless there is one alone.")


def foreign_tensor(function: str, role: str, value: object, backend: str, source: str, owner: str) -> TypeError:
    """A tensor that the active backend does not take as its own."""
    headline = f"{function}: {role} is {article(type_name(value))}, but the active backend is {backend!r}."
    cause = f"a tensor made by {owner}, or a backend left at its default."
    remedy = (
        f"convert the value to a {backend} tensor, or choose the backend with keras_cg.set_backend({owner!r}),"
        f" `with keras_cg.use_backend({owner!r}):` or KERAS_CG_BACKEND={owner}."
    )
    headline = lines(headline, f"    the backend comes from: {source}")
    return report(TypeError, headline, function=function, cause=cause, remedy=remedy)


def keras_elsewhere(
    function: str, role: str, value: object, backend: str, source: str, keras: str, keras_source: str
) -> TypeError:
    """Keras runs on another backend than the active one."""
    kind = type_name(value)
    public = f"keras.{type(value).__name__}" if kind.startswith("keras.") else kind
    headline = lines(
        f"{function}: {role} is {article(public)}, and Keras runs on {keras!r}, but the active backend of keras_cg is"
        f" {backend!r}.",
        f"    the backend of keras_cg comes from: {source}",
        f"    the backend of Keras comes from: {keras_source}",
    )
    remedy = (
        "let keras_cg follow Keras by choosing no backend for it, or choose the same one for both:"
        f" KERAS_CG_BACKEND={keras}."
    )
    return report(TypeError, headline, function=function, remedy=remedy)


def symbolic_tensor(function: str, role: str) -> TypeError:
    """A placeholder of Keras's functional API where Keras would not find it."""
    headline = f"{function}: {role} is a KerasTensor, which holds no numbers, where Keras does not look for one."
    cause = (
        "it is the attribute of a dataclass or of an object that only another framework opens, it was closed over, or"
        " what was called is no decorated function (keras_cg.grad)."
    )
    remedy = "pass it as an argument, or in a tuple, list or dict; or call the function inside a layer."
    return report(TypeError, headline, function=function, cause=cause, remedy=remedy)


# --- what the function returns -------------------------------------------------------------------

_PAIR = "return (output, grad), and ((output1, output2), grad) for several outputs."


def not_callable(value: object) -> TypeError:
    """`custom_gradient` was given something that cannot be decorated."""
    got = f"custom_gradient expects a function that returns (output, grad), got {article(type_name(value))}."
    return TypeError(f"{got} Use it as @custom_gradient or custom_gradient(f).")


def not_a_pair(function: str, value: object) -> TypeError:
    """The function returned no `(output, grad)`."""
    headline, came = f"{function} must return a pair (output, grad).", article(type_name(value))
    if isinstance(value, (tuple, list)):
        came = f"{article(type(value).__name__)} of {len(value)}: ({', '.join(map(type_name, value))})"
    cause = "`return output` without the rule, or several outputs that are not in a tuple."
    return report(TypeError, headline, function=function, got=came, cause=cause, remedy=_PAIR)


def rule_not_callable(function: str, rule: object) -> TypeError:
    """The second part of the pair is no function."""
    headline = f"{function} must return a pair (output, grad) whose second part is a function."
    came = f"{article(type_name(rule))} in the place of grad"
    cause = "the rule was called (`grad(...)`) instead of returned, or the pair is two outputs."
    return report(TypeError, headline, function=function, got=came, cause=cause, remedy=_PAIR)


def no_convention(function: str, shown: str, arguments: int, outputs: int) -> TypeError:
    """The signature of the rule fits none of the conventions."""
    headline = f"{function}: no calling convention fits the signature of its rule."
    call = f"{count(arguments, 'positional argument')} and {count(outputs, 'output leaf', 'output leaves')}"
    came = f"{shown}, for a call with {call}"
    return report(TypeError, headline, "    expected one of:", ACCEPTED_FORMS, function=function, got=came)


# --- what the rule returns -----------------------------------------------------------------------


def _misfit(function: str, what: str, **said: str) -> GradientError:
    """What the rule returned is no gradient."""
    return report(GradientError, f"the rule of {function} {what}", function=function, **said)


def wrong_count(function: str, came: int, names: Sequence[str], leaves: int) -> GradientError:
    """Too few or too many gradients."""
    also = f" (or {leaves}, counting every leaf of the arguments)" if leaves != len(names) else ""
    expected = f"{len(names)}{also}, one for each tensor argument: {', '.join(names)}"
    cause = "a gradient was forgotten, or one was returned for something that is no argument."
    remedy = "return one gradient per argument, in order; None where there is none."
    whole = names[0].removesuffix("[0]") if names else ""
    if came == 1 and names == [f"{whole}[{index}]" for index in range(len(names))]:
        cause = f"a gradient was forgotten, or {whole} was meant as one tensor; a list or a tuple is a nest of them."
        remedy = f"return one gradient for each tensor in {whole}, or pass one array."
    return _misfit(function, f"returned {count(came, 'gradient')}.", expected=expected, cause=cause, remedy=remedy)


def given_whole(function: str, rule: str, parameter: str, leaves: int) -> str:
    """What is added to an error of a rule, or about it, whose further parameters have defaults."""
    what = f"the rule of {function} is {rule}, and got one nest of {count(leaves, 'upstream')} as {parameter}"
    return f"{what}: its other parameters have defaults. Without these it gets one upstream for each."


def nest_of_numbers(where: str, argument: str, came: Sequence[Any]) -> str:
    """What is added to an error of the function itself: it may have taken numbers in a list for one tensor."""
    what = f"{argument} is {article(type_name(came))}, which is a nest of {count(len(came), 'number')} and no tensor"
    return f"{where}: {what}. If one tensor is meant, pass an array."


def wrong_structure(function: str, came: str, expected: str) -> GradientError:
    """The nest that came is not that of the arguments."""
    what = "returned gradients in the wrong structure."
    cause = "keys or levels that differ from those of the arguments."
    remedy = "return the same nest as the arguments, or a flat list with one gradient per leaf."
    return _misfit(function, what, got=came, expected=expected, cause=cause, remedy=remedy)


def ambiguous(function: str, came: str, expected: str) -> GradientError:
    """The gradients fit the arguments in two ways, which differ."""
    what = "returned gradients that fit its arguments in two ways."
    cause = "None or 0 for a whole nest, in a result that is also a flat list with one part per leaf."
    remedy = "return the same nest as the arguments, with None at each leaf that has no gradient."
    return _misfit(function, what, got=came, expected=expected, cause=cause, remedy=remedy)


def wrong_shape(function: str, argument: str, came: str, expected: str, axes: Sequence[int]) -> GradientError:
    """The shape of a gradient is not that of its argument, which may have been broadcast along `axes`."""
    what = f"returned a gradient of the wrong shape for {argument}."
    over = f"{'axis' if len(axes) == 1 else 'axes'} {' and '.join(map(str, axes))}"
    cause = f"{argument} was broadcast, and a sum over {over} is missing."
    if not axes:
        cause = "a gradient that was summed or cut, or gradients in the wrong order."
    remedy = "sum over the broadcast axes or reshape; nothing is broadcast or summed for you."
    return _misfit(function, what, argument=argument, got=came, expected=expected, cause=cause, remedy=remedy)


def wrong_kind(function: str, argument: str, came: str, expected: str) -> GradientError:
    """Complex where real is due, or an integer gradient."""
    what = f"returned a gradient of the wrong kind for {argument}."
    cause = "a complex intermediate, or an integer or boolean mask that was never multiplied with upstream."
    remedy = "return the real part, or cast the gradient to the argument's dtype."
    return _misfit(function, what, argument=argument, got=came, expected=expected, cause=cause, remedy=remedy)


def boolean_gradient(function: str, argument: str, came: str, expected: str) -> GradientError:
    """A mask in the place of a gradient."""
    return report(
        GradientError,
        f"the rule of {function} returned a boolean gradient for {argument}.",
        function=function,
        argument=argument,
        got=came,
        expected=expected,
        cause="a mask that upstream was multiplied with, which on TensorFlow gives a boolean and loses upstream, or a"
        " comparison that was returned.",
        remedy="ops.where(mask, upstream, 0), or cast the mask to the dtype of upstream first.",
    )


def unsorted_result(function: str, came: str, expected: str) -> GradientError:
    """A flat result for a dict, of which nobody can tell in which order it is meant."""
    return report(
        GradientError,
        f"the rule of {function} returned flat gradients for a dict whose keys were inserted unsorted.",
        function=function,
        got=came,
        expected=expected,
        cause="a flat list in the order of insertion, which would be read by sorted keys.",
        remedy="return the same nest as the arguments.",
    )


def unsorted_output(function: str, shown: str) -> TypeError:
    """A rule that takes the upstreams of a dict one by one, and cannot know in which order they come."""
    return report(
        TypeError,
        f"the rule of {function} takes one by one the upstreams of a dict whose keys were inserted unsorted.",
        got=shown,
        cause="parameters in the order of insertion, while upstreams would come by sorted keys.",
        remedy="take one upstream, the same nest as the output, or insert the keys in sorted order.",
    )


def not_a_gradient(function: str, argument: str, value: object, expected: str) -> GradientError:
    """Something that no tensor can be made of."""
    what, came = f"returned no tensor for {argument}.", article(type_name(value))
    cause = "a value of another library, or a value that is no gradient at all."
    remedy = "return a tensor of the active backend, or None for no gradient."
    return _misfit(function, what, argument=argument, got=came, expected=expected, cause=cause, remedy=remedy)


def wrong_variable_count(function: str, came: str, expected: int) -> GradientError:
    """The rule was given `variables` and did not return one gradient for each."""
    what = "was called with variables=[...] and must return (grads, variable_grads)."
    pair = f"a pair whose second part is a list of {count(expected, 'gradient')}"
    cause = "only the gradients of the arguments were returned."
    remedy = "return (grads, [one gradient for each of `variables`])."
    return _misfit(function, what, got=came, expected=pair, cause=cause, remedy=remedy)


# --- what the function reads, and what it changes ------------------------------------------------


def captured_variable(function: str, names: Sequence[str]) -> CapturedVariableError:
    """The function captured something trainable, and its rule takes no `variables`."""
    values = f"{count(len(names), 'trainable value')} that {'is' if len(names) == 1 else 'are'}"
    headline = f"{function} reads {values} not among its arguments: {', '.join(names)}"
    consequence = "the rule says nothing about them, so they would silently get no gradient."
    remedies = (
        "pass them as arguments; give the rule a `variables` parameter and return (grads, variable_grads); or stop"
        " their gradient inside the function."
    )
    return report(CapturedVariableError, headline, function=function, consequence=consequence, remedies=remedies)


def unserved_variables(backend: str, where: str = "") -> CapturedVariableError:
    """The rule takes `variables`, and the backend cannot tell there which they are."""
    there = f"the backend {backend!r} {where}".rstrip()
    return lost_capture("the function", "a closure over it.", f"{there} cannot hand it to the rule as `variables`")


def lost_capture(who: str, cause: str, consequence: str) -> CapturedVariableError:
    """What is read has a gradient that nobody would compute."""
    headline = f"{who} reads a value that is being differentiated and is not among its arguments."
    consequence = f"{consequence}, and it would silently get no gradient."
    remedy = "pass it as an argument, or stop its gradient inside the function."
    return report(CapturedVariableError, headline, cause=cause, consequence=consequence, remedy=remedy)


def rule_dropped(where: str, remedy: str) -> NotImplementedError:
    """The framework would ignore the rule without a word."""
    headline = f"{where} ignores custom gradients, and would silently give those of plain differentiation."
    return report(NotImplementedError, headline, remedy=f"{remedy}.")


def no_gradient_exported(function: str) -> UserWarning:
    """The exported program has the output of a function, and not its rule."""
    return report(
        UserWarning,
        f"the exported program has no gradient through {function}, nor through other functions with a custom gradient.",
        function=function,
        cause="torch keeps no rule in what it exports, and would silently give the gradient of plain differentiation.",
        remedy="train before exporting, or keep the rule by torch.compile.",
    )


def changed_argument(function: str) -> RuntimeError:
    """A function changed what it was called with."""
    return report(
        RuntimeError,
        f"{function} changed one of its arguments in place, so that the gradient would be silently wrong.",
        function=function,
        remedy="work on a copy: `x = x.clone()`.",
    )


def changed_since_call(function: str) -> RuntimeError:
    """Values that a rule needs are no longer what they were."""
    return report(
        RuntimeError,
        f"a tensor that the rule of {function} needs was modified by an inplace operation since the call.",
        function=function,
        cause="an argument or the output was changed in place before the backward pass.",
        remedy="change a copy, or change it after the backward pass.",
    )


def changes_variables(function: str) -> RuntimeError:
    """A function that must run again, and would not do the same."""
    headline = (
        f"{function} changes a variable of Keras whenever it runs, and what was asked for, such as the derivative of"
        " its gradient, needs to run it again: with other values than the first time."
    )
    cause = "a keras.random.SeedGenerator, or a layer with a state such as Dropout, inside of it."
    remedy = "use it outside and pass what it gives as an argument, such as seed=generator.next()."
    return report(RuntimeError, headline, function=function, cause=cause, remedy=remedy)


def not_repeated(
    function: str = "a function with a custom gradient", fun: Callable[..., Any] | None = None, what: str | None = None
) -> RuntimeError:
    """The rule of another run is not the rule of the first."""
    code = getattr(fun, "__code__", None)
    place = f" ({code.co_filename}, line {code.co_firstlineno})" if code is not None else ""
    return report(
        RuntimeError,
        f"{function}{place} ran again for a derivative of its gradient, and its rule is not that of the first run.",
        function=function,
        got=what,
        cause="the function draws random numbers, or reads something that has changed since.",
        remedy="draw or read it outside, and pass it as an argument.",
    )


def recomputed_otherwise(function: str) -> RuntimeError:
    """A recomputed function gave something else in the backward pass."""
    headline = f"{function} ran again for its gradient, and gave another output than the first time."
    cause = "random numbers of another library, or something in an attribute or a global that was changed."
    remedy = "draw random numbers by keras.random, or outside; pass what changes as an argument."
    return report(RuntimeError, headline, function=function, cause=cause, remedy=remedy)


def not_linear(obstacle: str | None = None) -> ValueError:
    """Forward mode was asked for a rule that has no transpose; `obstacle` is why, where a program shows it."""
    headline = "forward mode needs a rule that is linear in upstream, and this one is not."
    cause = "a rule that clips or normalises upstream"
    got = None
    if obstacle is not None:
        got = f"upstream goes through {obstacle}."
        cause += "; or one that is linear by an operation that is not known for it"
    return report(ValueError, headline, got=got, cause=f"{cause}.", remedy="differentiate in reverse mode.")


def deaf_tape() -> NotImplementedError:
    """A tape that TensorFlow lets record nothing."""
    headline = "TensorFlow's tapes record nothing here, and all derivatives would silently be zero."
    cause = "a rule that differentiates (keras_cg.grad, recipes.recompute), where a ForwardAccumulator is watching."
    remedy = "use keras_cg.jvp in its place, or put what it watches into a tf.function that is made outside of it."
    return report(NotImplementedError, headline, cause=cause, remedy=remedy)


def no_forward_mode() -> ValueError:
    """JAX met a function of another library that has a rule for reverse mode only."""
    headline = "forward mode needs a function that has one, and JAX met a jax.custom_vjp, which has none."
    cause = "a function of another library, whose gradient is a jax.custom_vjp's."
    remedy = "differentiate in reverse mode, or give it its gradient by keras_cg.custom_gradient."
    return report(ValueError, headline, cause=cause, remedy=remedy)


# --- keras_cg.grad and its like ------------------------------------------------------------------

# Here `where` is the call as the user would write it: `grad(f)`, `jvp(f)`.


def not_differentiable(where: str, argument: str, came: str) -> TypeError:
    """`grad` was asked for the gradient of something that has none."""
    remedy = "Convert it to a floating dtype, or leave it out of `argnums`."
    return TypeError(f"{where}: {argument} is {came}, and only floating or complex tensors have a gradient. {remedy}")


def nothing_to_differentiate(where: str) -> TypeError:
    """No argument holds a tensor that has a gradient."""
    happened = "there is no floating or complex tensor among the arguments to differentiate."
    return TypeError(f"{where}: {happened} Give at least one: integers, booleans and strings have no gradient.")


def bad_argnums(where: str, argnums: object, arguments: int) -> TypeError:
    """`argnums` does not name positional arguments of the call."""
    call = f"a call with {count(arguments, 'positional argument')}"
    remedy = "Give the index of a positional argument, or a tuple of different ones; keywords are not differentiated."
    return TypeError(f"{where}: argnums={argnums!r} does not fit {call}. {remedy}")


def not_a_scalar_output(where: str, came: str) -> TypeError:
    """`grad` can differentiate one real tensor."""
    remedy = "Return the loss alone, or (loss, aux) with has_aux=True."
    return TypeError(f"{where}: the function must return one real floating tensor, got {came}. {remedy}")


def no_aux(where: str, value: object) -> TypeError:
    """`has_aux=True` and the function returned no pair."""
    came = article(type_name(value))
    return TypeError(f"{where}: with has_aux=True the function must return a pair (output, aux), got {came}.")


def no_floating_output(where: str, came: str) -> TypeError:
    """Nothing in the output has a derivative."""
    cause = "A forgotten `return`, or a comparison or an index where its values were meant, gives such an output."
    return TypeError(f"{where}: the function must return at least one floating or complex tensor, got {came}. {cause}")


def complex_jacobian(where: str, what: str, came: str) -> TypeError:
    """There is no one Jacobian of complex numbers."""
    return TypeError(
        f"{where}: {what} is {came}, and one complex matrix cannot hold the derivative of a complex function that is"
        " not holomorphic. Use keras_cg.vjp or keras_cg.jvp, or give real and imaginary parts as tensors of their own."
    )


def not_arguments(where: str, name: str, value: object) -> TypeError:
    """`primals` or `tangents` is no sequence of arguments."""
    due = f"{name} must be a tuple with one part for each argument"
    remedy = "For one argument write jvp(f, (x,), (tangent,))."
    return TypeError(f"{where}: {due}, got {article(type_name(value))}. {remedy}")


def not_the_nest(where: str, name: str, came: str, expected: str, model: str) -> ValueError:
    """Upstream or tangents with another structure than what they belong to."""
    headline = f"{where}: {name} has another structure than {model}."
    cause = "keys or levels that differ, or a bare tensor where a tuple of one is due."
    remedy = "give the same nest, with None for zeros and at every leaf that is no floating tensor."
    return report(ValueError, headline, got=came, expected=expected, cause=cause, remedy=remedy)


def not_alike(where: str, name: str, came: str, expected: str, model: str) -> ValueError:
    """One leaf of upstream or tangents that does not fit the tensor it belongs to."""
    headline = f"{where}: {name} does not fit {model}."
    cause = "a value that was to be broadcast, an integer tensor, or complex numbers for real ones."
    remedy = "give a floating tensor of exactly that shape; None stands for zeros. Nothing is broadcast."
    return report(ValueError, headline, got=came, expected=expected, cause=cause, remedy=remedy)
