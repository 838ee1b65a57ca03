"""On the way in: under which convention a rule is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras_cg import errors, signature
from keras_cg.arguments import Arguments
from keras_cg.pytree import LEAF, Tree
from keras_cg.signature import Parameters

# What a rule gets: the upstream of the whole output; that by name behind the arguments of the call, or behind all
# arguments, those left at their defaults included; or one upstream for each leaf.
WHOLE, BEHIND, BEHIND_ALL, EACH = "whole", "behind", "behind all", "each"

Rule = Callable[..., Any]


def takes_variables(rule: Rule) -> bool:
    """Whether a rule asks for what the function captured."""
    parameters = signature.parameters(rule)
    return parameters is not None and ("variables" in parameters.names() or parameters.varkw is not None)


def gets_arguments(rule: Rule) -> bool:
    """Whether a rule is called with the function's arguments."""
    parameters = None if signature.takes_one(rule) else signature.parameters(rule)
    return parameters is not None and _gets_arguments(parameters)


class Convention:
    """How the rule of one call is called.

    Args:
        rule: What the function returned.
        arguments: The arguments of the call.
        values: The positional arguments of this run of the function; () if the rule gets none.
        output: The static part of the output.
    """

    def __init__(self, rule: Rule, arguments: Arguments, values: tuple[Any, ...], output: Tree):
        self.rule, self.arguments, self.output = rule, arguments, output
        self.takes_one = signature.takes_one(rule)
        self.values = values if not self.takes_one and gets_arguments(rule) else ()
        self.count = len(values)

    def call(self, upstreams: list[Any], variables: Sequence[Any]) -> Any:
        """What the rule returns for one upstream for each leaf of the output."""
        if self.takes_one and self.output.structure is LEAF and not variables:
            return self.rule(upstreams[0])
        args, kwargs = self._arrange(upstreams)
        if variables:
            kwargs = {**kwargs, "variables": list(variables)}
        try:
            return self.rule(*args, **kwargs)
        except TypeError:
            parameters = signature.parameters(self.rule)
            if parameters is not None and not parameters.binds(args, kwargs):
                raise self._misfit(len(upstreams)) from None
            raise

    def hint(self) -> str | None:
        """What to add to an error of a rule that got one upstream, and could have been meant for one each."""
        parameters = None if self.takes_one else signature.parameters(self.rule)
        count = len(self.output.leaves)
        if parameters is None or parameters.varargs is not None or _gets_arguments(parameters) or count == 1:
            return None
        positional = parameters.without("variables")
        if len(positional) not in (count, len(self.output.places)) or parameters.required() > 1:
            return None
        return errors.given_whole(self.arguments.name, self._shown(), positional[0], count)

    def way(self, count: int) -> tuple[str, Sequence[int]] | None:
        """How the rule gets the upstreams of an output of `count` leaves: the first convention that its signature fits.

        In this order: upstream as it is, for a single parameter or an unreadable signature; upstream by name behind the
        function's arguments, for a parameter `upstream` that is not the first; one upstream for each leaf, for `*dys`;
        upstream as it is, where the output is one leaf or one parameter is required; one for each tensor of the output,
        or for each leaf, where as many parameters are required. None if it fits none.

        Returns:
            What it gets, `WHOLE`, `BEHIND`, `BEHIND_ALL` or `EACH`, and the leaves whose upstreams it then gets.
        """
        parameters = None if self.takes_one else signature.parameters(self.rule)
        if parameters is None:
            return WHOLE, ()
        positional = parameters.without("variables")
        if parameters.varargs is None and len(positional) == 1 and "upstream" not in parameters.keyword_only:
            return WHOLE, ()
        if _gets_arguments(parameters):
            if _takes_arguments(parameters, positional, self.count):
                return BEHIND, ()
            left = signature.left_positional(self.arguments.user, self.count, ())
            return (BEHIND_ALL, ()) if _takes_arguments(parameters, positional, self.count + len(left)) else None
        if parameters.varargs is not None:
            fits = len(positional) <= count or parameters.required() <= count
            return (EACH, range(count)) if fits else None
        if len(positional) > 1 and count == 1:
            # All but the first have defaults, or the call will tell.
            return WHOLE, ()
        if not positional:
            return None
        required = parameters.required()
        if required <= 1:
            return WHOLE, ()
        if required == len(self.output.places):
            return EACH, self.output.places
        return (EACH, range(count)) if required == count else None

    def _arrange(self, upstreams: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for the rule."""
        way = self.way(len(upstreams))
        if way is None:
            raise self._misfit(len(upstreams))
        gets, places = way
        if gets == EACH:
            return self._one_by_one(upstreams, places)
        upstream = self.output.unflatten(upstreams)
        if gets == WHOLE:
            return (upstream,), {}
        left = signature.left_positional(self.arguments.user, self.count, ()) if gets == BEHIND_ALL else []
        return (*self.values, *[default for _, default in left]), {"upstream": upstream}

    def _one_by_one(self, upstreams: list[Any], places: Sequence[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The upstreams at `places` in a row; refused where they come by sorted keys and the dict does not."""
        if not self.output.is_in_order(places):
            raise errors.unsorted_output(self.arguments.name, self._shown())
        return tuple(upstreams[place] for place in places), {}

    def _shown(self) -> str:
        """The signature of the rule, for a message."""
        name = getattr(self.rule, "__name__", type(self.rule).__name__)
        parameters = signature.parameters(self.rule)
        return parameters.show(name) if parameters else f"{name}(...)"

    def _misfit(self, count: int) -> TypeError:
        """The error for a rule that fits no convention, over an output of `count` leaves."""
        return errors.no_convention(self.arguments.name, self._shown(), self.count, count)


def _gets_arguments(parameters: Parameters) -> bool:
    """Whether a rule is called with the function's arguments, and `upstream` by name."""
    return "upstream" in parameters.keyword_only or "upstream" in parameters.without("variables")[1:]


def _takes_arguments(parameters: Parameters, positional: tuple[str, ...], count: int) -> bool:
    """Whether a rule with an `upstream` that it gets by name can be called with `count` arguments before it."""
    if "upstream" in positional:
        return positional.index("upstream") == count
    if parameters.varargs is not None:
        return len(positional) <= count
    return len(positional) == count or (len(positional) > count >= parameters.required())
