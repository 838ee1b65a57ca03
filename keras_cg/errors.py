"""The exceptions of keras_cg, and how a message is written.

A message names the function and the argument, and says what came, what was expected, the usual cause and the remedy.
"""

from __future__ import annotations

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
        ...     "pass it as an argument" in str(error)
        True
    """


# TensorFlow's autograph replaces an exception by one of its own, unless it has exactly this constructor (2.21).
GradientError.__init__ = CapturedVariableError.__init__ = Exception.__init__  # type: ignore[method-assign]


# The attributes that `report` sets, and the labels of the lines of a message.
DATA = tuple(Reported.__annotations__)
_FACTS = ("got", "expected", "cause", "consequence", "remedy", "remedies")
_LABELS = {"cause": "usual cause", "consequence": "consequence", "remedies": "remedy, one of these"}


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
    import difflib  # a tenth of the time of `import keras_cg`, for messages alone

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
    """Returns a function of values, first the function's name, that fills them into `headline` and the facts."""

    def fill(*values: Any) -> E:
        told = {name: text.format(*values) for name, text in facts.items()}
        return report(kind, headline.format(*values), function=values[0] if values else None, **told)

    return fill
