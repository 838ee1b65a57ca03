"""One run of a function: how it begins, and what is noted at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from keras_cg.bridge import keras_scope
from keras_cg.engine import world
from keras_cg.engine.functions import UNREAD
from keras_cg.engine.ground import BARE, Ground, are_data, only_reads
from keras_cg.engine.world import World
from keras_cg.frontend import conventions, pytree
from keras_cg.frontend.conventions import ALONE, ANY, EACH
from keras_cg.frontend.function import checked_pair
from keras_cg.frontend.rule import Rule
from keras_cg.frontend.tree import SINGLE, Tree


class Run(Rule):
    """One run of a function, with its rule.

    A backend gets the first run before it begins, as a `Call`; `start` begins it, and `note` ends it. Each other one is
    a `Pullback`.

    Attributes:
        engine: What `is_recording` of the backend said when the call began.
        is_traced: Set by the backend where a compiler traces Python code: then the rule is traced at once, in no world.
        ground: What `ground_of` says of the function.
        is_later: Whether a run has gone before, or Keras saves values for the runs.
        is_closed: Whether all that the rule can read is data.
        look: Set by a backend: what it asks of the values that the first run will have at hand.
        existing: What `look` said.
    """

    engine: Any = None
    ground: Ground | Literal["bare"] | None = None
    is_traced = is_later = False
    is_closed: bool
    look: Callable[[list[Any]], Sequence[Any]] | None = None
    existing: Sequence[Any] = ()

    def another(self) -> Pullback:
        """Returns another run of the same call, which has not begun."""
        run = Pullback(self.backend, self.name, self.user, self.positionals)
        run.keywords, run.nest, run.is_plain, run.whole = self.keywords, self.nest, self.is_plain, self.whole
        run.extras, run.engine, run.ground = self.extras, self.engine, self.ground
        run.converted, run.state, run.output, run.first = self.converted, self.state, self.output, self.first
        run.is_later = self.output is not None or self.state is not None
        return run

    def repeat(self, *tensors: Any) -> tuple[tuple[Any, ...], Pullback]:
        """Does another run, which is noted: returns what `start` returns, and the run."""
        run = self.another()
        if self.first:
            results = self.first.again(run.complete, *tensors)
        else:
            results = run.start(*tensors)
            run.note()
        self.output, self.converted, self.state, self.first = run.output, run.converted, run.state, run.first
        return results, run

    def alone(self, *tensors: Any) -> tuple[Any, ...]:
        """Does another run, without its rule: returns what `start` returns."""
        run = self.another()
        results: tuple[Any, ...] = self.first.again(run.start, *tensors) if self.first else run.start(*tensors)
        self.output, self.converted, self.state = run.output, run.converted, run.state
        return results

    def complete(self, *tensors: Any) -> tuple[Any, ...]:
        """Does the run and notes it: returns what `start` returns."""
        results = self.start(*tensors)
        self.note()
        return results

    def start(self, *tensors: Any) -> tuple[Any, ...]:
        """Begins the run: returns the tensors of the output, then the variables that it changed.

        The run is to be noted before anything else happens, if anything differentiates.
        """
        if self.is_later or not keras_scope.is_unscoped:
            return self._start_with_care(tensors)
        # The backend of the call is active.
        backend, fun = self.backend, self.user
        if self.ground is not BARE or self.nest is not None:
            self.world = self._open()
        if backend.converted is not None:
            self.converted = fun = backend.converted(fun)
        if self.nest is None:
            self.args, pair = tensors, fun(*tensors)
        else:
            self.args, kwargs = self.bind(tensors)
            if kwargs:
                self.kwargs = kwargs
            pair = fun(*self.args, **kwargs)
        output, rule = pair if type(pair) is tuple and len(pair) == 2 else (None, None)
        if (type(output) in backend.plain or backend.is_plain(output)) and callable(rule):
            self.rule, self.output, self.tree = rule, SINGLE, SINGLE
            self.outputs = results = (output,)
        else:
            self.outputs = results = self._accept(pair)
        self.tensors = tensors
        return results

    def _open(self) -> World | None:
        """Returns the world before a run, of which the backend may look at what is there; None if nothing is there."""
        if self.is_traced:
            return None
        static = () if self.nest is None else self.nest.leaves
        if are_data(static):
            static, ground = (), self.ground
            if ground == BARE or (ground is None and only_reads(self.user)):
                return None
            if ground is not None and (opened := ground.open()) is not None:
                return opened
        opened = World(self.user, static)
        if self.look is not None:
            self.existing = self.look(opened.values())
        return opened

    def _start_with_care(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """Begins a run in a scope of Keras, or one that is not the first."""
        self.world = self._open()
        self.args, self.kwargs = self.bind(tensors)
        pair, changed, scope = self.run(self.args, self.kwargs)
        self.tensors, self.outputs = tensors, self._accept(pair)
        # Only values in a scope of Keras are shown to the rule.
        self.scope = scope if scope is not None and scope.state.scope is not None else None
        return (*self.outputs, *changed)

    def _accept(self, pair: Any) -> tuple[Any, ...]:
        """Returns the tensors of the output, and keeps its static part and the rule, of what a run returned."""
        output, self.rule = checked_pair(self.name, self.user, pair)
        self.tree, results = pytree.split(self.backend, output) or self.flatten(output)
        if self.output is None:
            self.output = self.tree
        return results  # type: ignore[return-value]

    def note(self) -> None:
        """Notes what the rule holds and the world of the run, as soon as it is over; a rule may be asked for then."""
        if self.is_traced:
            self.world, self.residuals, self.is_closed = None, (), True
            style = conventions.traced_style(self.rule)
        else:
            fun = self.converted or self.user
            self.world, self.residuals, self.is_closed, known = world.note(self.world, self.rule, fun)
            if self.first is False:
                self.first = self.world
            style = UNREAD
            if known is not None:
                self.known, style = known, known.style
            if style is UNREAD:
                style = conventions.style(self.rule, self.user, self.name)
        if style not in (ALONE, ANY) or self.kwargs or self.scope is not None:
            self._note_arguments(style)
        else:
            self.style = style
            if style == ALONE:
                self.args = ()
        if self.is_closed:
            # The data of a rule that reads nothing else tells whether another run has the same one.
            self.outputs = ()
        if not self.is_plain:
            backend = self.backend
            self.specs = [(backend.dtype(tensor), backend.shape(tensor)) for tensor in self.tensors]
            self.tensors = ()
        elif self.backend.types is not None:
            self.tensors = self.backend.types(self.tensors)

    def _note_arguments(self, style: int | None) -> None:
        """Notes how a rule is called that gets more than upstream alone."""
        if self.kwargs and style != ALONE:
            self.args = self.positional(self.args, dict(self.kwargs))
        self.count = len(self.args)
        if style == EACH:
            # By its signature, if the output has something else than one tensor for each parameter.
            tree, known = self.tree, self.known
            is_told = known is not None and len(tree.leaves) == len(tree.places) == known.code.co_argcount
            style = EACH if is_told and type(tree) is Tree else None
        if self.scope is None and style in (ALONE, ANY, EACH, self.count):
            self.style = style
        if style in (ALONE, EACH):
            self.args = ()
        elif style is None:
            gets_arguments, self.takes_output = conventions.asks(self.rule, self.user)
            self.args = self.args if gets_arguments else ()


class Call(Run):
    """The first run of a call of a decorated function, as a backend gets it: it can be called for another run."""

    __call__ = Run.repeat


class Pullback(Run):
    """Another run, as a backend gets it: it can be called for the gradients."""

    __call__ = Rule.pull
    closed_over = Rule.near
