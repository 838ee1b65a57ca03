"""What is the same at every call of a decorated function with arguments of one kind: decided once, and kept.

A *site* is the function together with the structure of its arguments and the types of their leaves. A *form* is how the
rules are called, and hold tensors, that one piece of code makes at a site. With these a backend serves most calls
without looking at what is always the same; each call asks by a few comparisons whether it is one of them, and goes the
long way of `call` if not. That way alone says what is right, and serves a backend that has no shorter one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from keras_cg import call, nest, signature, state
from keras_cg.arguments import Arguments
from keras_cg.call import Attached, Pullback
from keras_cg.conventions import BEHIND, EACH, WHOLE, Convention
from keras_cg.engine.contract import Backend, Form, Laid
from keras_cg.engine.held import Closure
from keras_cg.gradients import Gradients, Like
from keras_cg.leaves import Rest
from keras_cg.nest import Leaf, Nest, Row

# How many sites a function keeps, and forms a site: whoever has more makes types, or code, without end.
BOUND = 64

# The types of leaves that are no tensors, and hold none.
_STATIC = frozenset((type(None), bool, int, float, complex, str))
# Those of arguments in which there may be tensors.
_CONTAINERS = frozenset((tuple, list, dict))


class Sites:
    """The sites of a decorated function.

    Attributes:
        known: By the backend and the types of the arguments, with their structure where there are nests; None where
            there is no site.
    """

    def __init__(self, name: str, fun: Callable[..., Any]):
        self.name, self.fun = name, fun
        self.known: dict[Any, Site | None] = {}
        # What was called once. Only the second call makes a site: a method is a new function wherever it is called.
        self.met: set[Any] = set()

    def find(
        self,
        backend: Backend,
        tensors: frozenset[type],
        args: tuple[Any, ...],
        may_draw: Callable[[tuple[str, ...]], bool] | None = None,
    ) -> tuple[Site | None, Laid]:
        """The site of a call, None if it must go the long way, and its arguments; for what `known` does not have.

        Args:
            backend: The backend of the call.
            tensors: The types of its tensors that are nothing but tensors.
            args: The arguments.
            may_draw: Whether a function may draw random numbers that calls what has these names alone.
        """
        laid, kinds = None, [*map(type, args)]
        structure: tuple[Any, ...] = ()
        if not _CONTAINERS.isdisjoint(kinds):
            laid = Laid(*nest.lay(args))
            kinds, structure = [*map(type, laid.leaves)], (laid.spec,)
        laid = laid or Laid(args, None)
        key = (backend, *structure, *kinds)
        if key not in self.known and structure and not nest.has_plain_keys(laid.spec):
            # Whoever keeps the structure keeps its keys.
            return None, laid
        if key not in self.known and key not in self.met:
            self.met = {*self.met, key} if len(self.met) < BOUND else {key}
        elif key not in self.known:
            places = tuple([place for place, kind in enumerate(kinds) if kind in tensors])
            known = places and all([kind in tensors or kind in _STATIC for kind in kinds])
            if len(self.known) >= BOUND:
                self.known.clear()
            self.known[key] = Site(self, backend, tensors, places, len(kinds), may_draw) if known else None
        return self.known.get(key), laid

    # --- for who has no site: a compiler that traces has other types, and should see few objects ----------------------

    is_unscoped = staticmethod(state.is_unscoped)
    takes_one = staticmethod(signature.takes_one)

    def attached(self, backend: Backend, count: int) -> Attached:
        """The function as it is attached to so many tensors, after its first run, whose output is to be looked at."""
        return Attached(self._row(backend, count)).seen()

    def collect(self, backend: Backend, likes: Sequence[Like], result: Any) -> tuple[Any, ...]:
        """The checked gradients in whatever a rule returned for as many tensors."""
        return Gradients(self._row(backend, len(likes)), likes).collect(result, None)

    def _row(self, backend: Backend, count: int) -> Arguments:
        rest = Rest(Row([None] * count, None, False), range(count))
        return Arguments(backend, self.name, self.fun, count, (), rest)


class Site:
    """A decorated function, called on one backend with leaves of the same types in the same structure.

    Attributes:
        fun: The user's function.
        places: Where among the leaves there are tensors.
        is_full: Whether there is nothing else.
        forms: Those of the rules, by the code of the rule, and by the structure of the output if that is a nest; None
            where a rule has none.
        closure: That of the function; None if it may read what is no argument wherever that is.
        is_open: Whether it may read any, or ask which backend is active.
        still: The closure of one that may not, and draws no random numbers either.
        is_unscoped: Whether Keras keeps nothing in this thread that a second run would have to see.
    """

    __slots__ = (
        "backend",
        "blanks",
        "closure",
        "forms",
        "fun",
        "is_full",
        "is_open",
        "name",
        "places",
        "still",
        "tensors",
    )

    is_unscoped = staticmethod(state.is_unscoped)

    def __init__(
        self,
        sites: Sites,
        backend: Backend,
        tensors: frozenset[type],
        places: Sequence[int],
        count: int,
        may_draw: Callable[[tuple[str, ...]], bool] | None,
    ):
        self.name, self.fun, self.backend = sites.name, sites.fun, backend
        self.tensors, self.places, self.is_full = tensors, places, len(places) == count
        self.blanks = Laid((None,) * count, None)
        self.forms: dict[Any, Form | None] = {}
        self.closure = Closure.of(self.fun, backend.is_tensor)
        self.is_open = self.closure is None or bool(self.closure.places) or self.closure.is_reaching
        is_still = not self.is_open and may_draw is not None and not may_draw(self.closure.names())  # type: ignore[union-attr]
        self.still = self.closure if is_still else None

    def arguments(self, laid: Laid, tensors: Sequence[Any]) -> Sequence[Any]:
        """The arguments with other tensors."""
        leaves = tensors if self.is_full else self._filled(laid, tensors)
        return leaves if laid.spec is None else laid.spec.unflatten(leaves)

    def blank(self, laid: Laid) -> Laid:
        """The arguments without their tensors."""
        return Laid(self.blanks.leaves if self.is_full else self._filled(laid, [None] * len(self.places)), laid.spec)

    def _filled(self, laid: Laid, tensors: Sequence[Any]) -> Sequence[Any]:
        leaves = [*laid.leaves]
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return leaves

    def output(self, output: Any) -> tuple[Sequence[Any], Any]:
        """The tensors and the structure of an output; no tensors, if there is anything else in it."""
        leaves, spec = nest.lay(output)
        return (leaves if self.tensors.issuperset(map(type, leaves)) else ()), spec

    def form(self, rule: FunctionType, laid: Laid, spec: Any, is_other: bool = False) -> Form | None:
        """The form of a rule that is called for an output of that structure; None if it has none.

        If the rule `is_other` than that which the form was found out of, it is found out anew.
        """
        key = rule.__code__ if spec is None else (rule.__code__, spec)
        if is_other:
            self.forms.pop(key, None)
        try:
            return self.forms[key]
        except KeyError:
            if spec is not None and not nest.has_plain_keys(spec):
                return None
            if len(self.forms) >= BOUND:
                self.forms.clear()
            form = self.forms[key] = self._form(rule, self.given(laid), self.rest(spec))
            return form

    def is_capturing(self) -> bool:
        """Whether the function may read what somebody differentiates and is no argument."""
        return self.is_open or self.closure.taken(self.fun) is None  # type: ignore[union-attr]

    def _form(self, rule: FunctionType, given: Arguments, rest: Rest) -> Form | None:
        closure = Closure.of(rule, self.backend.is_tensor)
        convention = Convention(rule, given, (), given.positionals, rest)
        way = convention.way(len(rest.places))
        # What is added to an error is added on the long way.
        if closure is None or way is None or convention.hint() is not None:
            return None
        gets: str | None
        gets, places = way
        if gets == EACH:
            # Where leaves of a nest come one by one, their order is to be looked at each time.
            spec = rest.nest.spec
            is_row = spec.type is tuple and len(places) == spec.num_children == spec.num_leaves
            gets = WHOLE if isinstance(rest.nest, Leaf) else EACH if is_row else None
        return Form(closure, gets == EACH, gets == BEHIND) if self._binds(rule, gets, given, rest) else None

    def _binds(self, rule: FunctionType, gets: str | None, given: Arguments, rest: Rest) -> bool:
        """Whether the rule can be called with what it gets; if not, the long way says so."""
        counts = {WHOLE: 1, EACH: len(rest.places), BEHIND: given.positionals}
        parameters = signature.parameters(rule)
        if gets not in counts or parameters is None:
            return False
        return parameters.binds((None,) * counts[gets], {"upstream": None} if gets == BEHIND else {})

    # --- as the long way has it --------------------------------------------------------------------------------------

    def given(self, laid: Laid) -> Arguments:
        """The arguments of a call, without their tensors."""
        leaves = [*self.blank(laid).leaves]
        count = len(leaves) if laid.spec is None else laid.spec.num_children
        whole = Row(leaves, None, False) if laid.spec is None else Nest(leaves, laid.spec, False)
        return Arguments(self.backend, self.name, self.fun, count, (), Rest(whole, self.places))

    def rest(self, spec: Any) -> Rest:
        """An output of that structure, without its tensors."""
        count = 1 if spec is None else spec.num_leaves
        whole = Leaf([None], None, False) if spec is None else Nest([None] * count, spec, False)
        return Rest(whole, range(count))

    def seen(self, laid: Laid, rest: Rest | None = None) -> Attached:
        """The function as it is attached, after its first run, whose output is known, or is yet to be looked at."""
        return Attached(self.given(laid)).seen(rest)

    def plain(self, pair: Any) -> Any:
        """The output, of what the function returned where nobody differentiates."""
        return call.output_of(self.backend, self.name, pair)

    def pullback(
        self, laid: Laid, tensors: Sequence[Any], spec: Any, rule: FunctionType, likes: Sequence[Like]
    ) -> Pullback:
        """The rule of a run, as the long way gives it."""
        given, values = self.given(laid), tuple(self.arguments(laid, tensors))
        convention = Convention(rule, given, values, len(values), self.rest(spec))
        return Pullback(given, convention, likes)

    def collect(self, laid: Laid, likes: Sequence[Like], result: Any, wanted: Sequence[bool] | None) -> tuple[Any, ...]:
        """The checked gradients in whatever a rule returned."""
        return Gradients(self.given(laid), likes).collect(result, wanted)

    def read(self, laid: Laid, result: Any) -> Sequence[Any] | None:
        """The gradients in a result that is a nest as the arguments, with a tensor for each of theirs; else None."""
        leaves, spec = nest.lay(tuple(result) if type(result) in (tuple, list) else (result,))
        is_like = self.is_full and spec == laid.spec and self.tensors.issuperset(map(type, leaves))
        return leaves if is_like else None

    def under(self, rule: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What a rule returns, called under the backend of its call."""
        return call.under(self.backend, rule, args, kwargs)
