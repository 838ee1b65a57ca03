"""The exceptions of keras_cg and the messages of its core; every other part keeps its own beside it.

A message says what happened, the usual cause, and the remedy, in the user's words: the function's
name, the argument's name and path, what came and what was expected.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Callable, Sequence
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


def got_whole(function: str, rule: str, parameter: str, leaves: int) -> str:
    """What is added to an error of a rule, or about it, whose further parameters have defaults."""
    what = f"the rule of {function} is {rule}, and got one nest of {count(leaves, 'upstream')} as {parameter}"
    return f"{what}: its other parameters have defaults. Without these it gets one upstream for each."


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
