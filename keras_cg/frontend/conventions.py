"""How a rule is called: with which arguments, by its signature."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

from keras_cg import errors, user_code
from keras_cg.engine.functions import UNREAD, facts, innermost, known_facts
from keras_cg.frontend import messages, signature
from keras_cg.frontend.arguments import Arguments
from keras_cg.frontend.gradients import needs_input_grad
from keras_cg.frontend.signature import Parameters
from keras_cg.frontend.tree import Tree

Rule = Callable[..., Any]


# How `style` says that a rule is called: with upstream alone, with any arguments of the function before it, or with as
# many upstreams as it has parameters.
ALONE, ANY, EACH = -1, -2, -3


def style(fun: Any, function: Any, name: str) -> int | None:
    """Returns how a rule is called, if its code tells: ALONE, ANY, EACH, or the number of arguments before upstream.

    It is read once for each code. After arguments, upstream is given by name. Warns if `function` asks an argument for
    `requires_grad`.
    """
    while type(fun) is FunctionType and fun.__dict__:
        # As `inspect.signature` does: a wrapper such as `torch.no_grad()(rule)` has the signature of what it wraps.
        if "__signature__" in fun.__dict__:
            return None
        if "__wrapped__" not in fun.__dict__:
            break
        fun = fun.__dict__["__wrapped__"]
    if type(fun) is not FunctionType:
        return None
    known = known_facts.get(id(fun.__code__)) or facts(fun.__code__)
    if known.style is UNREAD:
        known.style = _style(fun)
        user: Any = innermost(function)
        for asked in () if user is None else facts(user.__code__).asks.intersection(signature.from_code(user).names()):
            warnings.warn(messages.asks_requires_grad(name, asked), stacklevel=2)
    return known.style  # type: ignore[no-any-return]


def traced_style(rule: Rule) -> int | None:
    """Returns the `style` of a rule that a compiler traces, which can read no defaults."""
    return _of_code(rule.__code__, False) if signature.is_plain_function(rule) else None


def _style(fun: Any) -> int | None:
    found = signature.from_code(fun)
    optional = {**found.defaults(), **found.keyword_defaults()}
    is_each = len(found.positional) > 1 and {*found.names()}.isdisjoint((*signature.EXTRAS, "upstream"))
    if is_each and not optional:
        return EACH
    return _of_code(fun.__code__, "variables" in optional)


# As a constant, because torch.compile would trace all that reads a signature, in each call of a decorated function.
@user_code.constant_result
def _of_code(code: CodeType, has_variables: bool) -> int | None:
    """Returns the style of a rule with this code, of which `has_variables` says whether `variables` has a default."""
    found = signature.of_code(code)
    positional, keywords = found.plain(), [name for name in found.keyword_only if name not in signature.EXTRAS]
    names = {*found.names()}
    if not names.isdisjoint(("needs_input_grad", "output")) or ("variables" in names and not has_variables):
        return None
    if keywords == ["upstream"]:
        if found.varargs is not None:
            return None if positional else ANY
    elif found.varargs is not None or keywords:
        return None
    elif len(positional) == 1:
        return ALONE
    elif positional[-1:] == ("upstream",):
        positional = positional[:-1]
    else:
        return None
    return len(positional)


def takes_variables(rule: Rule) -> bool:
    """Whether a rule takes the captured variables."""
    parameters = signature.parameters(rule)
    return parameters is not None and ("variables" in parameters.names() or parameters.varkw is not None)


def asks(rule: Rule, function: Any) -> tuple[bool, bool]:
    """Whether a rule is called with the arguments of `function`, and whether it is called with its output."""
    parameters = _parameters(rule, function)
    if parameters is None:
        return False, False
    return _gets_arguments(parameters), "output" in parameters.names() and "output" in parameters.extras


def _parameters(rule: Rule, function: Any) -> Parameters | None:
    """Returns the parameters of a rule; its `output` may be upstream, if it is the only one, or an argument."""
    found = signature.parameters(rule)
    if found is None or "output" not in found.positional:
        return found
    is_upstream = not found.plain() and found.varargs is None and "upstream" not in found.keyword_only
    gets_arguments = "upstream" in (*found.positional[1:], *found.keyword_only)
    own = signature.parameters(function) if gets_arguments else None
    if is_upstream or (own is not None and "output" in own.positional):
        return found._replace(extras=tuple([name for name in found.extras if name != "output"]))
    return found


class Convention:
    """How the rule of one call is called: after `count` positional arguments, which are `values` if it gets them."""

    def __init__(self, rule: Rule, arguments: Arguments, values: tuple[Any, ...], count: int, output: Tree):
        self.rule, self.arguments, self.values, self.count, self.output = rule, arguments, values, count, output
        self.parameters = _parameters(rule, arguments.user)

    def call(
        self,
        upstreams: list[Any],
        variables: Sequence[Any],
        needs_grad: Sequence[bool],
        outputs: Sequence[Any] | None = None,
    ) -> Any:
        """Calls the rule with one upstream for each leaf of the output, and perhaps with the tensors of the output."""
        args, kwargs = self._arrange(upstreams)
        extras: dict[str, Any] = {"variables": list(variables)} if variables else {}
        if self.parameters is not None and "needs_input_grad" in self.parameters.names():
            extras["needs_input_grad"] = needs_input_grad(self.arguments, needs_grad)
        if outputs is not None:
            extras["output"] = self.output.combine(outputs[: len(self.output.places)])
        for place, name in enumerate(() if self.parameters is None else self.parameters.positional):
            # By position only before other arguments.
            if name in extras and place < len(args):
                args = (*args[:place], extras.pop(name), *args[place:])
        kwargs = {**kwargs, **extras}
        try:
            return self.rule(*args, **kwargs)
        except TypeError:
            if self.parameters is not None and not self.parameters.binds(args, kwargs):
                raise self._misfit(len(upstreams)) from None
            raise

    def hint(self) -> str | None:
        """Returns a note for an error of a rule that got one upstream, and may have expected one for each leaf."""
        parameters, count = self.parameters, len(self.output.leaves)
        if parameters is None or parameters.varargs is not None or _gets_arguments(parameters) or count == 1:
            return None
        positional = parameters.plain()
        if len(positional) not in (count, len(self.output.places)) or parameters.required() > 1:
            return None
        return messages.got_whole(self.arguments.name, self._shown(), positional[0], count)

    def _arrange(self, upstreams: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments for the rule, by the first convention that its signature fits.

        - A parameter `upstream` that is not the first: the function's arguments, with the defaults of the others if
          the rule needs them, and upstream by name.
        - `*dys`: one upstream for each leaf.
        - A single parameter, an unreadable signature, an output of one leaf, one required parameter: upstream as it is.
        - As many required parameters as the output has tensors, or leaves: one upstream for each of these.
        """
        parameters, count, tensors = self.parameters, len(upstreams), self.output.places
        if parameters is None:
            return (self.output.unflatten(upstreams),), {}
        positional = parameters.plain()
        if _gets_arguments(parameters):
            values, upstream = self.values, {"upstream": self.output.unflatten(upstreams)}
            if _takes_arguments(parameters, positional, self.count):
                return values, upstream
            unbound = signature.unbound(self.arguments.user, self.count, ())
            if _takes_arguments(parameters, positional, self.count + len(unbound)):
                return (*values, *[default for _, default in unbound]), upstream
        elif parameters.varargs is not None:
            if len(positional) <= count or parameters.required() <= count:
                return self._one_by_one(upstreams, range(count))
        elif len(positional) == 1 or (positional and (count == 1 or parameters.required() <= 1)):
            return (self.output.unflatten(upstreams),), {}
        elif positional and parameters.required() in (len(tensors), count):
            return self._one_by_one(upstreams, tensors if parameters.required() == len(tensors) else range(count))
        raise self._misfit(count)

    def _one_by_one(self, upstreams: list[Any], places: Sequence[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the upstreams at `places`; refuses a dict whose keys are not sorted, because upstreams would be."""
        if not self.output.is_in_order(places):
            raise self._located(messages.unsorted_output(self.arguments.name, self._shown()))
        return tuple(upstreams[place] for place in places), {}

    def _shown(self) -> str:
        """Returns the signature of the rule, for a message."""
        name = getattr(self.rule, "__name__", type(self.rule).__name__)
        parameters = signature.parameters(self.rule)
        return parameters.show(name) if parameters else f"{name}(...)"

    def _misfit(self, count: int) -> TypeError:
        """Returns the error for a rule that fits no convention for an output of `count` leaves."""
        return self._located(messages.no_convention(self.arguments.name, self._shown(), self.count, count))

    def _located(self, error: TypeError) -> TypeError:
        return errors.locate(error, self.rule, self.arguments.user)


def _gets_arguments(parameters: Parameters) -> bool:
    """Whether a rule is called with the function's arguments, and `upstream` by name."""
    return "upstream" in parameters.keyword_only or "upstream" in parameters.plain()[1:]


def _takes_arguments(parameters: Parameters, positional: tuple[str, ...], count: int) -> bool:
    """Whether a rule with an `upstream` that it gets by name can be called with `count` arguments before it."""
    if "upstream" in positional:
        return positional.index("upstream") == count
    if parameters.varargs is not None:
        return len(positional) <= count
    return len(positional) == count or (len(positional) > count >= parameters.required())
