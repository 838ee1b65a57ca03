"""The exceptions of keras_cg, how a message is written, and the messages of the files of this folder.

A message names the function and the argument, and says what came, what was expected, the usual cause and the remedy.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from keras_cg import user_code

__all__ = ["CapturedVariableError", "GradientError"]

E = TypeVar("E", bound=Exception)


class Reported:
    """The facts in the message of an error, as data; None is a fact that the message does not state."""

    function: str | None = None
    argument: str | None = None
    got: str | None = None
    expected: str | None = None
    cause: str | None = None
    remedy: str | None = None
    location: str | None = None


class GradientError(Reported, ValueError):
    """A rule returned gradients whose count, structure, shape or dtype does not fit the arguments.

    The backward pass raises it. From a `tf.function`, TensorFlow raises a new error without the attributes. The
    `__context__` of the new error is the original, with the attributes.

    Attributes:
        location: The file and line of the rule, such as `model.py:41`.
        function: The name of the function, as text like all attributes. None if the message does not name it.
        argument: The name and path of the argument, such as `params["w"]`.
        got: The value or the count that the rule returned, described by dtype and shape.
        expected: The description of a right value.
        cause: The usual cause.
        remedy: The remedy.

    See Also:
        `keras_cg.CapturedVariableError`, for a value that the rule has no gradient for.

    Example:
        >>> import keras_cg
        >>> from keras_cg import ops
        >>> @keras_cg.custom_gradient
        ... def scale(x, w):
        ...     def grad(upstream):
        ...         return upstream * w, upstream * x  # w was broadcast, and a sum is missing
        ...     return x * w, grad
        >>> try:
        ...     keras_cg.grad(lambda w: ops.sum(scale(ops.ones(3), w)))(5.0)
        ... except keras_cg.GradientError as error:
        ...     error.function, error.argument, error.cause
        ('scale', 'w', 'w was broadcast, and a sum over axis 0 is missing.')
    """


class CapturedVariableError(Reported, TypeError):
    """A decorated function reads a trainable value that is not an argument, and its rule has no parameter `variables`.

    That value would silently get no gradient. The attributes are those of a `GradientError`.

    See Also:
        `keras_cg.GradientError`, for a gradient of the wrong shape, count or structure.

    Example:
        >>> import keras_cg
        >>> def loss(w):
        ...     @keras_cg.custom_gradient
        ...     def scaled(x):
        ...         return x * w, lambda upstream: upstream * w
        ...     return scaled(3.0)
        >>> try:
        ...     keras_cg.grad(loss)(2.0)
        ... except keras_cg.CapturedVariableError as error:
        ...     "pass them as arguments" in str(error)
        True
    """


# TensorFlow's autograph replaces an exception by one of its own, unless it has exactly this constructor (2.21).
GradientError.__init__ = CapturedVariableError.__init__ = Exception.__init__  # type: ignore[method-assign]


# The attributes that `report` sets, and the labels of the lines of a message.
DATA = tuple(Reported.__annotations__)
_FACTS = ("got", "expected", "cause", "consequence", "remedy", "remedies")
_LABELS = {"cause": "usual cause", "consequence": "consequence", "remedies": "remedy, one of these"}

# The conventions of a rule; shown where a signature fits none of them.
ACCEPTED_FORMS = """\
        grad(upstream)               one upstream, with the output's structure
        grad(dy1, dy2, ...)          one upstream per output leaf
        grad(*dys)                   one upstream per output leaf
        grad(*args, upstream)        the function's positional arguments, then upstream=
        grad(x, y, upstream=None)    the same, spelled out
        any of them with `variables` also variables=[...], when the function captured any
        any with `needs_input_grad`  also one boolean for each tensor argument"""


def lines(*parts: str) -> str:
    """Joins the parts, each on a line of its own."""
    return "\n".join(parts)


def article(noun: str) -> str:
    """Returns `noun` with its indefinite article."""
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def count(number: int, one: str, many: str | None = None) -> str:
    """Returns `number` with its noun: `1 gradient`, `2 gradients`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


# The public names of classes of JAX and TensorFlow.
_PUBLIC = {
    "ArrayImpl": "jax.Array",
    "EagerTensor": "tf.Tensor",
    "SymbolicTensor": "tf.Tensor",
    "ResourceVariable": "tf.Variable",
}


def type_name(value: object) -> str:
    """Returns the type of `value` as a user would write it: `torch.Tensor`, `jax.Array`, `str`."""
    kind = type(value)
    # Dynamo (torch 2.13) cannot trace methods of the name of a module.
    package = "" if user_code.is_traced_by_dynamo() else kind.__module__.partition(".")[0]
    if package in ("jax", "jaxlib") and kind.__name__.endswith("Tracer"):
        return "jax.Array"
    if package in ("jaxlib", "tensorflow") and kind.__name__ in _PUBLIC:
        return _PUBLIC[kind.__name__]
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def named(name: str, fun: Any) -> str:
    """Returns the name of a function with its file and line, if they are known: `f (model.py:41)`."""
    place = user_code.location(fun)
    return name if place is None else f"{name} ({place})"


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Asks whether one of `names`, which is almost `name`, was meant; empty if there is none."""
    near = difflib.get_close_matches(name, names, 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def report(kind: Callable[[str], E], headline: str, *more: str, **facts: str | None) -> E:
    """Returns an error whose message is the headline, a line for each fact of `_FACTS`, and the lines `more`.

    The facts are attributes of the error, too; the headline states `function` and `argument`. `remedies` are several.
    """
    told = [f"    {_LABELS.get(name, name)}: {facts[name]}" for name in _FACTS if facts.get(name) is not None]
    error = kind(lines(headline, *told, *more))
    # Dynamo (torch 2.13) cannot trace that a built-in exception gets an attribute: torch.compile would complain of
    # that instead of raising the error.
    if not user_code.is_traced_by_dynamo():
        facts["remedy"] = facts.get("remedy") or facts.get("remedies")
        for name in DATA:
            setattr(error, name, facts.get(name))
    return error


def locate(error: E, rule: Any, function: Any = None, what: str = "rule") -> E:
    """Returns an error about a rule of `function`, or about another function, with its file and line, if known."""
    where = user_code.location(rule, function)
    if where is None:
        return error
    headline, *rest = str(error).split("\n")
    located = type(error)(lines(headline, f"    {what}: {where}", *rest))
    if not user_code.is_traced_by_dynamo():
        vars(located).update(vars(error), location=where)
    return located


def message(kind: Callable[[str], E], headline: str, **facts: str) -> Callable[..., E]:
    """Returns a function of texts, first the function's name, that fills them into `headline` and the facts."""

    def fill(*texts: str) -> E:
        told = {name: text.format(*texts) for name, text in facts.items()}
        return report(kind, headline.format(*texts), function=texts[0] if texts else None, **told)

    return fill


# Other names of the frameworks, which are not close enough to their names here for `did_you_mean`.
_ALIASES = {"pytorch": "torch", "tf": "tensorflow", "np": "numpy", "jnp": "jax", "autograd": "numpy"}


def unknown_backend(name: object, source: str, names: Sequence[str]) -> ValueError:
    message = f"unknown backend {name!r} (from {source}). The backends are: {', '.join(names)}."
    text = str(name).strip().lower()
    return ValueError(message + did_you_mean(_ALIASES.get(text, text), names))


def unknown_variable(name: str, names: Sequence[str]) -> UserWarning:
    headline = f"the environment variable {name} is ignored: keras_cg knows {' and '.join(names)}."
    return UserWarning(headline + did_you_mean(name, names))


def foreign_tensor(function: str, role: str, value: object, backend: str, source: str, owner: str) -> TypeError:
    headline = f"{function}: {role} is {article(type_name(value))}, but the active backend is {backend!r}."
    cause = f"a tensor made by {owner}, or a backend left at its default."
    choose = f"keras_cg.set_backend({owner!r}), `with keras_cg.use_backend({owner!r}):` or KERAS_CG_BACKEND={owner}."
    remedy = f"convert the value to a {backend} tensor, or choose the backend with {choose}"
    headline = lines(headline, f"    the backend comes from: {source}")
    return report(TypeError, headline, function=function, cause=cause, remedy=remedy)


def keras_elsewhere(
    function: str, role: str, value: object, backend: str, source: str, keras: str, keras_source: str
) -> TypeError:
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
    "{0}: {1} is a KerasTensor, which holds no numbers, where Keras does not look for one.",
    cause="it is the attribute of a dataclass or of an object that only another framework opens, it was closed over, or"
    " what was called is no decorated function (keras_cg.grad).",
    remedy="pass it as an argument, or in a tuple, list or dict; or call the function inside a layer.",
)


tensors_in_objects = message(
    TypeError,
    "{0}: {1} is a NumPy array of objects, and what is differentiated in it would silently get no gradient.",
    cause="an array of tensors, of fractions or of decimals (dtype=object).",
    remedy="convert it to an array of numbers, or put tensors into a tuple, a list or a dict.",
)


_PAIR = "return (output, grad), and ((output1, output2), grad) for several outputs."


def not_callable(value: object) -> TypeError:
    got = f"custom_gradient expects a function that returns (output, grad), got {article(type_name(value))}."
    return TypeError(f"{got} Use it as @custom_gradient above a function or method.")


def not_a_pair(function: str, value: object) -> TypeError:
    headline, came = f"{function} must return a pair (output, grad).", article(type_name(value))
    if isinstance(value, (tuple, list)):
        came = f"{article(type(value).__name__)} of {len(value)}: ({', '.join(map(type_name, value))})"
    cause = "`return output` without the rule, or several outputs that are not in a tuple."
    return report(TypeError, headline, function=function, got=came, cause=cause, remedy=_PAIR)


def rule_not_callable(function: str, rule: object) -> TypeError:
    headline = f"{function} must return a pair (output, grad) whose second part is a function."
    came = f"{article(type_name(rule))} in the place of grad"
    cause = "the rule was called (`grad(...)`) instead of returned, or the pair is two outputs."
    return report(TypeError, headline, function=function, got=came, cause=cause, remedy=_PAIR)


def no_convention(function: str, shown: str, arguments: int, outputs: int) -> TypeError:
    headline = f"{function}: no calling convention fits the signature of its rule."
    call = f"{count(arguments, 'positional argument')} and {count(outputs, 'output leaf', 'output leaves')}"
    cause = "a parameter per argument and none called `upstream`, a wrong number of them, or keyword-only ones."
    remedy = "write grad(upstream): inside the function, it can read the arguments without getting them."
    if shown.endswith("()"):
        cause = "the derivative alone: a rule gets upstream, and multiplies the derivative by it."
        remedy = "write grad(upstream), such as `lambda upstream: 2 * x * upstream` for x * x."
    facts = {"got": f"{shown}, for a call with {call}", "cause": cause, "remedy": remedy}
    return report(TypeError, headline, "    expected one of:", ACCEPTED_FORMS, function=function, **facts)


unsorted_output = message(
    TypeError,
    "the rule of {0} takes one by one the upstreams of a dict whose keys were inserted unsorted.",
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
unsorted_result = _wrong(
    "flat gradients for a dict whose keys were inserted unsorted",
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
    cause = "a gradient that was summed or sliced, a number for a whole tensor, or gradients in the wrong order."
    remedy = f"return a gradient in the shape of {argument}; nothing is broadcast or summed for you."
    if axes:
        over = f"{'axis' if len(axes) == 1 else 'axes'} {' and '.join(map(str, axes))}"
        cause = f"{argument} was broadcast, and a sum over {over} is missing."
        remedy = f"keras_cg.ops.sum_to(gradient, {argument}) sums it; nothing is broadcast or summed for you."
    return _wrong("a gradient of the wrong shape", cause, remedy)(function, came, expected, argument)


def wrong_count(function: str, came: int, names: Sequence[str], leaves: int) -> GradientError:
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
    what = f"the rule of {function} is {rule}, and got one pytree of {count(leaves, 'upstream')} as {parameter}"
    return f"{what}: its other parameters have defaults. Without these it gets one upstream for each."


def captured_variable(function: str, names: Sequence[str], is_users_rule: bool = True) -> CapturedVariableError:
    is_one = len(names) == 1
    they, them, their = ("it", "it", "its") if is_one else ("they", "them", "their")
    values = f"{count(len(names), 'trainable value')} that {'is' if is_one else 'are'}"
    headline = f"{function} reads {values} not among its arguments: {', '.join(names)}"
    consequence = f"the rule says nothing about {them}, so {they} would silently get no gradient."
    extra = "give the rule a `variables` parameter and return (grads, variable_grads); " if is_users_rule else ""
    stop = f"stop {their} gradient in the function with keras_cg.ops.stop_gradient"
    remedies = f"pass {them} as {'an argument' if is_one else 'arguments'}; {extra}or {stop}."
    return report(CapturedVariableError, headline, function=function, consequence=consequence, remedies=remedies)


changes_variables = message(
    RuntimeError,
    "{0} changes a variable of Keras whenever it runs, and what was asked for, such as the derivative of its gradient,"
    " needs to run it again: with other values than the first time.",
    cause="a keras.random.SeedGenerator, or a layer with a state such as Dropout, inside of it.",
    remedy="use it outside and pass what it gives as an argument, such as seed=generator.next().",
)

rule_changes_variables = message(
    RuntimeError,
    "the rule of {0} changes a variable of Keras after the keras.StatelessScope of its call: the new value is lost.",
    cause="a keras.random.SeedGenerator, a layer with a state such as Dropout, or `assign` in the rule.",
    remedy="use it in the function, and let the rule close over what it gives.",
)


def bound_again(function: str, name: str, where: str | None) -> RuntimeError:
    headline = f"the rule of {function} reads {name!r}, which was bound to something else since the call."
    headline = headline if where is None else lines(headline, f"    rule: {where}")
    cause = "an object that keeps values for its rule was called again, or what an outer function defines was changed."
    remedy = f"bind {name!r} to a local variable of the function, and let the rule read that."
    return report(RuntimeError, headline, function=function, cause=cause, remedy=remedy, location=where)


def not_repeated(function: str, fun: Callable[..., Any], what: str) -> RuntimeError:
    again = "ran again for a derivative, and its rule is not that of the first run."
    cause = "it draws random numbers, or reads what has changed since, or a hook alters what torch saves."
    remedy = "draw or read it outside, and pass it as an argument."
    headline = f"{named(function, fun)} {again}"
    return report(RuntimeError, headline, function=function, got=what, cause=cause, remedy=remedy)
