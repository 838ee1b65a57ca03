"""The messages of calls, conventions and gradients."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from keras_cg.errors import (
    CapturedVariableError,
    GradientError,
    article,
    count,
    did_you_mean,
    lines,
    message,
    named,
    report,
    type_name,
)

# The conventions of a rule; shown where a signature fits none of them.
ACCEPTED_FORMS = """\
        grad(upstream)               one upstream, with the output's structure
        grad(dy1, dy2, ...)          one upstream per output leaf
        grad(*dys)                   one upstream per output leaf
        grad(*args, upstream)        the function's positional arguments, then upstream=
        grad(x, y, upstream=None)    the same, spelled out
        any of them with `variables` also variables=[...], when the function captured any
        any with `needs_input_grad`  also one boolean for each tensor argument
        any with `output`            also the function's output, as the caller has it"""


def unknown_variable(name: str, names: Sequence[str]) -> UserWarning:
    """An environment variable of this package that does not exist."""
    headline = f"the environment variable {name} is ignored: keras_cg knows {' and '.join(names)}."
    return UserWarning(headline + did_you_mean(name, names))


def foreign_tensor(function: str, role: str, value: object, backend: str, source: str, owner: str) -> TypeError:
    """A tensor of another framework."""
    headline = f"{function}: {role} is {article(type_name(value))}, but the active backend is {backend!r}."
    cause = f"a tensor made by {owner}, or a backend left at its default."
    choose = f"keras_cg.set_backend({owner!r}), `with keras_cg.use_backend({owner!r}):` or KERAS_CG_BACKEND={owner}."
    remedy = f"convert the value to a {backend} tensor, or choose the backend with {choose}"
    headline = lines(headline, f"    the backend comes from: {source}")
    return report(TypeError, headline, function=function, cause=cause, remedy=remedy)


tensors_in_objects = message(
    TypeError,
    "{0}: {1} is a NumPy array of objects, and its elements would silently get no gradient.",
    cause="an array of tensors, of fractions or of decimals (dtype=object).",
    remedy="convert it to an array of numbers, or put tensors into a tuple, a list or a dict.",
)


def tensors_in_container(function: str, role: str, value: object) -> TypeError:
    """An output is a container that is not opened, and has a tensor in it."""
    headline = f"{function}: {role} is {article(type_name(value))}, and its elements would silently get no gradient."
    cause = "a class that is derived from a list, a tuple or a dict, or another container of Python's."
    remedy = "return a plain tuple, list or dict, or register the class with the framework's own tree utility."
    return report(TypeError, headline, function=function, cause=cause, remedy=remedy)


_PAIR = "return (output, grad), and ((output1, output2), grad) for several outputs."


def not_callable(value: object) -> TypeError:
    """A decorator got something that is no function."""
    got = f"custom_gradient expects a function that returns (output, grad), got {article(type_name(value))}."
    return TypeError(f"{got} Use it as @custom_gradient above a function or method.")


told_by_the_decorator = message(
    TypeError,
    "{0} got an argument needs_input_grad, which its decorator gives it.",
    cause="a call of the function as it was before it was decorated.",
    remedy="leave it out, or give the parameter another name.",
)


unsorted_needs = message(
    TypeError,
    "needs_input_grad of {0} is about a dict whose keys were not inserted in sorted order.",
    cause="booleans in the order of insertion, while they come by sorted keys.",
    remedy="insert the keys in sorted order, or ask for no needs_input_grad.",
)


argument_of_tf_function = message(
    TypeError,
    "{0} cannot be an argument of a tf.function, which would call it without its rule.",
    cause="a tf.function with a parameter, or a default, for a function.",
    remedy="close over the function: tf.function(lambda x: step(f, x)).",
)


def not_a_pair(function: str, value: object) -> TypeError:
    """The function returned no pair."""
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
    """The signature of a rule fits no convention."""
    headline = f"{function}: no calling convention fits the signature of its rule."
    call = f"{count(arguments, 'positional argument')} and {count(outputs, 'output leaf', 'output leaves')}"
    cause = "a parameter per argument and none called `upstream`, a wrong number of them, or keyword-only ones."
    remedy = "write grad(upstream): inside the function, it can read the arguments without getting them."
    if shown.endswith("()"):
        cause = "the derivative alone: a rule gets upstream, and multiplies the derivative by it."
        remedy = "write grad(upstream), such as `lambda upstream: 2 * x * upstream` for x * x."
    facts = {"got": f"{shown}, for a call with {call}", "cause": cause, "remedy": remedy}
    return report(TypeError, headline, "    expected one of:", ACCEPTED_FORMS, function=function, **facts)


no_output = message(
    NotImplementedError,
    "the rule of {0} takes the output, which this backend does not give to a rule.",
    remedy="let the rule read the value in the function, or ask for it in the package of the backend.",
)


unsorted_output = message(
    TypeError,
    "the rule of {0} takes the upstreams of a dict one by one, but its keys were not inserted in sorted order.",
    got="{1}",
    cause="parameters in the order of insertion, while upstreams would come by sorted keys.",
    remedy="take one upstream, the same pytree as the output, or insert the keys in sorted order.",
)


def _wrong(what: str, cause: str, remedy: str) -> Callable[..., GradientError]:
    """Returns a function that writes a message about a result, or about the part of it for one argument."""

    def write(function: str, came: str | None, expected: str, argument: str | None = None) -> GradientError:
        headline = f"the rule of {function} returned {what}{f' for {argument}' if argument else ''}."
        facts = {"function": function, "argument": argument, "got": came, "expected": expected}
        return report(GradientError, headline, **facts, cause=cause, remedy=remedy)

    return write


wrong_structure = _wrong(
    "gradients in the wrong structure",
    "keys or levels that differ from those of the arguments.",
    "return the same pytree as the arguments, or a flat list with one gradient per leaf.",
)


ambiguous = _wrong(
    "gradients that fit its arguments in two ways",
    "None or 0 for a whole pytree, in a result that is also a flat list with one part per leaf.",
    "return the same pytree as the arguments, with None at each leaf that has no gradient.",
)


misread_needs = message(
    GradientError,
    "the rule of {0} returned no gradient for {1}, which is asked for, and has a place for each static argument.",
    cause="needs_input_grad with a boolean for each argument; it has one for each tensor argument alone.",
    remedy="count the tensor arguments alone: nx, nw = needs_input_grad.",
)


unsorted_result = _wrong(
    "flat gradients for a dict whose keys were not inserted in sorted order",
    "a flat list in the order of insertion, which would be read by sorted keys.",
    "return the same pytree as the arguments.",
)


wrong_kind = _wrong(
    "a gradient of the wrong kind",
    "a complex intermediate, or an integer or boolean mask that was never multiplied with upstream.",
    "return the real part, or cast the gradient to the argument's dtype.",
)


boolean_gradient = _wrong(
    "a boolean gradient",
    "a mask that upstream was multiplied with, which on TensorFlow gives a boolean and loses upstream, or a comparison"
    " that was returned.",
    "ops.where(mask, upstream, 0), or cast the mask to the dtype of upstream first.",
)


not_a_gradient = _wrong(
    "something that is not a tensor",
    "a value of another library, or a value that is no gradient at all.",
    "return a tensor of the active backend, or None for no gradient.",
)


def wrong_shape(function: str, came: str, expected: str, argument: str, axes: Sequence[int]) -> GradientError:
    """A gradient has another shape than its argument."""
    cause = "a gradient that was summed or sliced, a number for a whole tensor, or gradients in the wrong order."
    remedy = f"return a gradient in the shape of {argument}; nothing is broadcast or summed for you."
    if axes:
        over = f"{'axis' if len(axes) == 1 else 'axes'} {' and '.join(map(str, axes))}"
        cause = f"{argument} was broadcast, and a sum over {over} is missing."
        remedy = f"keras_cg.ops.sum_to(gradient, {argument}) sums it; nothing is broadcast or summed for you."
    return _wrong("a gradient of the wrong shape", cause, remedy)(function, came, expected, argument)


def wrong_count(function: str, came: int, names: Sequence[str], leaves: int) -> GradientError:
    """The rule returned too few or too many gradients."""
    also = f" (or {leaves}, counting every leaf of the arguments)" if leaves != len(names) else ""
    expected = f"{len(names)}{also}, one for each tensor argument: {', '.join(names)}"
    cause = "a gradient was forgotten, one was returned for no tensor (such as self), or a list stands for a tensor."
    remedy = "return one gradient per argument, in order; None where there is none."
    whole = re.sub(r"(\[\d+\])+$", "", names[0]) if came == 1 and names else ""
    if whole and all([re.fullmatch(re.escape(whole) + r"(\[\d+\])+", name) for name in names]):
        cause = f"a gradient was forgotten, or {whole} was meant as one tensor; a list or a tuple is a pytree of them."
        remedy = f"return one gradient for each tensor in {whole}, or pass one array."
    return _wrong(count(came, "gradient"), cause, remedy)(function, None, expected)


no_gradient = message(
    UserWarning,
    "the rule of {0} returned no gradient for any argument.",
    cause="a forgotten `return`.",
    remedy="return one gradient for each argument, or 0 if there is none on purpose.",
)


asks_requires_grad = message(
    UserWarning,
    "{0} reads {1}.requires_grad, which says nothing: the function gets its arguments detached.",
    cause="a rule that leaves out a gradient that is not needed.",
    remedy="give the rule a parameter `needs_input_grad`, or let it take the arguments, which are the caller's own.",
)


wrong_variable_count = message(
    GradientError,
    "the rule of {0} was called with variables=[...] and must return (grads, variable_grads).",
    got="{1}",
    expected="a pair whose second part is a list of {2}",
    cause="only the gradients of the arguments were returned.",
    remedy="return (grads, [one gradient for each of `variables`]).",
)


def got_whole(function: str, rule: str, parameter: str, leaves: int) -> str:
    """Returns a hint: a rule got one pytree where it may have expected one upstream for each output."""
    what = f"the rule of {function} is {rule}, and got one pytree of {count(leaves, 'upstream')} as {parameter}"
    return f"{what}: its other parameters have defaults. Without these it gets one upstream for each."


def captured_variable(function: str, names: Sequence[str], is_users_rule: bool = True) -> CapturedVariableError:
    """The function reads trainable values that are no arguments."""
    is_one = len(names) == 1
    they, them, their = ("it", "it", "its") if is_one else ("they", "them", "their")
    values = f"{count(len(names), 'trainable value')} that {'is' if is_one else 'are'}"
    headline = f"{function} reads {values} not among its arguments: {', '.join(names)}"
    consequence = f"the rule says nothing about {them}, so {they} would silently get no gradient."
    extra = "give the rule a `variables` parameter and return (grads, variable_grads); " if is_users_rule else ""
    stop = f"stop {their} gradient in the function with keras_cg.ops.stop_gradient"
    remedies = f"pass {them} as {'an argument' if is_one else 'arguments'}; {extra}or {stop}."
    return report(CapturedVariableError, headline, function=function, consequence=consequence, remedies=remedies)


def not_repeated(function: str, fun: Callable[..., Any], what: str) -> RuntimeError:
    """Another run of the function has another rule."""
    again = "ran again for a derivative, and its rule is not that of the first run."
    cause = "it draws random numbers, or reads what has changed since, or a hook alters what torch saves."
    remedy = "draw or read it outside, and pass it as an argument."
    headline = f"{named(function, fun)} {again}"
    return report(RuntimeError, headline, function=function, got=what, cause=cause, remedy=remedy)
