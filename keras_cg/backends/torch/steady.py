"""A run that is as those before it: what is kept of it, and how the long way would have kept it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from keras_cg import errors
from keras_cg.backends import torch as own
from keras_cg.backends.torch.replayed import Replay, Surroundings, surrounded
from keras_cg.backends.torch.tensors import dtype_name
from keras_cg.engine.again import Run
from keras_cg.engine.contract import Form, Laid, Pullback, Runnable, Site


class Steady(Run):
    """One run of a function at a site, whose rule has a form: what `Run` is, without having looked for anything.

    Attributes:
        site: Where the call is.
        laid: The arguments, without their tensors.
        likes: The dtype and the shape of each of these.
        spec: The structure of the output.
        form: How the rule is called.
        inside: What the cells of the rule hold, without the tensors.
        defaults: The defaults of its parameters.
        seen: What the run saw besides.
    """

    __slots__ = ("defaults", "form", "inside", "laid", "likes", "seen", "site", "spec")

    site: Site
    laid: Laid
    likes: Sequence[tuple[torch.dtype, torch.Size]]
    spec: Any
    form: Form
    inside: list[Any]
    defaults: tuple[Any, Any]
    seen: Surroundings

    backend, is_whole, stuck = own, True, None

    # Whoever makes one fills it in, which saves every call a frame.
    __init__ = object.__init__

    def find(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Takes the tensors out of what the cells of the rule hold; returns those that are no inputs."""
        count, inside, known = self.count, self.inside, [*inputs]
        sources: list[int] = []
        held: list[torch.Tensor] = []
        self.held, self.sources, self.uses_inputs = [], sources, self.form.is_behind
        for place in self.form.closure.places:
            tensor, inside[place] = inside[place], None
            for source, other in enumerate(known):
                if other is tensor:
                    sources.append(source)
                    self.uses_inputs = self.uses_inputs or source < count
                    break
            else:
                sources.append(len(known))
                known.append(tensor)
                # autograd saves none of inference mode.
                held.append(tensor.clone() if tensor.is_inference() else tensor)
        if self.form.is_behind:
            sources += range(count)
        return held

    @property
    def fun(self) -> Runnable:  # type: ignore[override]
        """The function, for another run."""
        return Replay(self.site.seen(self.laid, self.site.rest(self.spec)), self.seen)

    def held_again(
        self, floating: Sequence[int], first: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """As `Run` has it; where the function reads nothing but its arguments, without the long way."""
        if self.site.is_capturing():
            return super().held_again(floating, first, inputs)
        with surrounded(self.seen):
            pair = self.site.fun(*self.site.arguments(self.laid, inputs))
        other = Steady()
        other.form, other.count = self.form, self.count
        rule = pair[1] if type(pair) is tuple and len(pair) == 2 else None
        inside = self.form.closure.taken(rule) if getattr(rule, "__code__", None) is self.form.closure.code else None
        if inside is None:
            raise errors.not_repeated()
        other.inside = inside
        held = other.find(inputs)
        if len(held) != len(first) or not all(map(_is_equal, held, first)):
            self.compare(held, first)
        return [held[place] for place in floating]

    def build(self, tensors: Sequence[torch.Tensor]) -> Pullback:
        """The rule as the long way gives it, around the tensors of its cells, and of the arguments if it gets them."""
        cells = len(self.form.closure.places)
        rule = self.form.closure.made(self.inside, range(cells), tensors, self.defaults)
        inputs = tensors[cells:] if self.form.is_behind else [None] * self.count
        return self.site.pullback(self.laid, inputs, self.spec, rule, self.named())

    def named(self) -> list[tuple[str, tuple[int, ...]]]:
        """`likes` as the long way has them."""
        return [(dtype_name(kind), tuple(shape)) for kind, shape in self.likes]


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same for certain."""
    return one.dtype is other.dtype and one.device == other.device and torch.equal(one, other)
