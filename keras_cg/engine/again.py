"""One run of a function, kept for its backward pass; and another run, which is compared with it.

The first order needs the one run only: its rule, around the tensors that it held then. To differentiate that gradient,
what the rule held must hang on the inputs. So it is *replayed*: the backend returns the values it has, whose derivative
is the plain one of another run of the function. That run happens when somebody asks for this derivative, and not
before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from keras_cg import errors
from keras_cg.engine import precision
from keras_cg.engine.contract import PlainFunction, Pullback, Runnable, Tensors
from keras_cg.engine.held import Held
from keras_cg.engine.precision import is_differentiable
from keras_cg.engine.settled import settled

# `replay(again, values, inputs)`: `values` again, as what hangs on `inputs` by the derivative of `again(*inputs)`.
Replay = Callable[["Again", Sequence[Any], Sequence[Any]], Sequence[Any]]

# `cut(tensor)`: the same values, which nobody differentiates.
Cut = Callable[[Any], Any]


class Run:
    """One run of a function: its rule, and the tensors that the rule holds, apart from each other.

    Args:
        backend: The names of the backend that say what a tensor is, its dtype, and its values.
        fun: The function; it is called again for higher orders.
        inputs: The tensors that it was called with, themselves.
        pullback: What it gave.

    Attributes:
        held: The tensors that the rule holds and that are no inputs. Whoever keeps them elsewhere empties this.
        is_whole: Whether there are no others.
        stuck: Those that stay where they are, or None if there may be others that were not found.
        uses_inputs: Whether the rule holds an input.
        readings: A list for whoever wants to know whether the rule reads what somebody else differentiates; else None.
    """

    __slots__ = ("backend", "build", "count", "fun", "held", "is_whole", "readings", "sources", "stuck", "uses_inputs")

    def __init__(self, backend: Any, fun: Runnable, inputs: Sequence[Any], pullback: Pullback):
        found = pullback.held()
        self.is_whole, self.build = found.is_whole, found.build
        self.stuck = None if found.is_hiding else [found.tensors[place] for place in found.stuck]
        self.backend, self.fun, self.count = backend, fun, len(inputs)
        self.readings: list[bool] | None = None
        self.held: list[Any] = []
        # Where each tensor of the rule is to be found among the inputs, followed by what is held.
        self.sources: list[int] = []
        places = {id(tensor): place for place, tensor in enumerate(inputs)}
        for tensor in found.tensors:
            if id(tensor) not in places:
                places[id(tensor)] = self.count + len(self.held)
                self.held.append(tensor)
            self.sources.append(places[id(tensor)])
        self.uses_inputs = any([place < self.count for place in self.sources])

    def pullback(self, inputs: Sequence[Any], held: Sequence[Any]) -> Pullback:
        """The pullback of this run around other tensors."""
        count = self.count
        around = [inputs[place] if place < count else held[place - count] for place in self.sources]
        return self.build(around)  # type: ignore[no-any-return]

    def differentiated(self, replay: Replay, cut: Cut, inputs: Sequence[Any], held: Sequence[Any]) -> Pullback:
        """The pullback whose gradients can be differentiated: what it holds hangs on `inputs`.

        What was found is replayed. Where the rule may hold more, its gradients are.
        """
        if not self.is_whole:
            return _Deferred(self, replay, cut, inputs, held)
        return self.pullback(inputs, self.replayed(replay, inputs, held))

    def replayed(self, replay: Replay, inputs: Sequence[Any], held: Sequence[Any]) -> Sequence[Any]:
        """What the rule held, hanging on `inputs`."""
        floating = [place for place, tensor in enumerate(held) if is_differentiable(self.backend.dtype(tensor))]
        if not floating:
            return held
        again = Again(held, functools.partial(self.held_again, floating))
        others = list(held)
        for place, tensor in zip(floating, replay(again, [held[place] for place in floating], inputs), strict=True):
            others[place] = tensor
        return others

    def held_again(self, floating: Sequence[int], first: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """What the rule of another run holds, of `first` those at the places `floating`."""
        held = self.another(inputs, first)[1]
        return [held[place] for place in floating]

    def another(self, inputs: Sequence[Any], first: Sequence[Any]) -> tuple[Pullback, list[Any]]:
        """The pullback of another run, and what its rule holds, which must be what the rule of this run held."""
        _, pullback = self.fun(*inputs)
        other = Run(self.backend, self.fun, inputs, pullback)
        return pullback, self.compare(other.held, first)

    def compare(self, others: Sequence[Any], first: Sequence[Any]) -> list[Any]:
        """The tensors of another run, if they are those of this one; NaN where it is too early to tell.

        Raises:
            RuntimeError: They are not the same, so that derivatives would be those of something else.
        """
        backend = self.backend
        if len(others) == len(first) and not backend.is_known([each for each in (*others, *first) if each is not None]):
            return self._compared_later(others, first)
        if len(others) != len(first) or not all(map(self._is_same, others, first)):
            raise errors.not_repeated()
        return list(others)

    def _compared_later(self, others: Sequence[Any], first: Sequence[Any]) -> list[Any]:
        """The same where a program is traced: what cannot be compared by its dtype is compared in the program."""
        backend, found = self.backend, list(others)
        pairs = [(other, one) for other, one in zip(others, first, strict=True) if other is not None or one is not None]
        if any([other is None or one is None or backend.dtype(other) != backend.dtype(one) for other, one in pairs]):
            raise errors.not_repeated()
        conditions = [is_repeated_later(backend, other, one) for other, one in pairs]
        floating = [
            place for place, each in enumerate(others) if each is not None and is_differentiable(backend.dtype(each))
        ]
        values = settled(backend, [others[place] for place in floating], conditions, errors.not_repeated)
        for place, value in zip(floating, values, strict=True):
            found[place] = value
        return found

    def _is_same(self, other: Any, first: Any) -> bool:
        if other is None or first is None:
            return other is first
        kind = self.backend.dtype(first)
        if self.backend.dtype(other) != kind:
            return False
        return is_repeated(self.backend.to_numpy(other), self.backend.to_numpy(first), kind)


class Again:
    """What another run gives, as a function of its inputs.

    Attributes:
        first: The tensors that it is compared with. `against` takes them from elsewhere, as a framework saved them.
    """

    def __init__(self, first: Sequence[Any], compute: Callable[[Sequence[Any], Sequence[Any]], list[Any]]):
        self.first, self.compute = first, compute

    def __call__(self, *inputs: Any) -> list[Any]:
        """Runs again."""
        return self.compute(self.first, inputs)

    def against(self, first: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """The same, compared with `first`."""
        return self.compute(first, inputs)

    def moving(
        self, backend: Any, first: Sequence[Any], inputs: Sequence[Any]
    ) -> tuple[list[int], list[Any], PlainFunction]:
        """Which of the inputs are floating, these, and `against` as a function of them alone, as `vjp` takes one."""
        places = [place for place, tensor in enumerate(inputs) if is_differentiable(backend.dtype(tensor))]

        def run(*moved: Any) -> tuple[Tensors, Tensors]:
            known = {**dict(enumerate(inputs)), **dict(zip(places, moved, strict=True))}
            return tuple(self.against(first, [*known.values()])), ()

        return places, [inputs[place] for place in places], run


class _Deferred:
    """A pullback that may hold more than was found: its gradients are those of the first run, and they are replayed."""

    def __init__(self, run: Run, replay: Replay, cut: Cut, inputs: Sequence[Any], held: Sequence[Any]):
        self.run, self.replay, self.cut, self.inputs, self.saved = run, replay, cut, inputs, held
        self.first = run.pullback([*map(cut, inputs)], held)

    def __call__(
        self, cotangents: Sequence[Any], variables: Sequence[Any] = (), wanted: Sequence[bool] | None = None
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        cut, count = self.cut, len(self.inputs)
        arrived = [place for place, cotangent in enumerate(cotangents) if cotangent is not None]
        gradients, others = self.first(
            [None if cotangent is None else cut(cotangent) for cotangent in cotangents], [*map(cut, variables)], wanted
        )
        given = [place for place, gradient in enumerate((*gradients, *others)) if gradient is not None]
        values = [(*gradients, *others)[place] for place in given]

        def compute(first: Sequence[Any], moved: Sequence[Any]) -> list[Any]:
            pullback, _ = self.run.another(moved[:count], first[: len(self.saved)])
            upstreams = dict(zip(arrived, moved[count:], strict=False))
            further = moved[count + len(arrived) :]
            again, more = pullback([upstreams.get(place) for place in range(len(cotangents))], further, wanted)
            computed = [gradient for gradient in (*again, *more) if gradient is not None]
            return self.run.compare(computed, first[len(self.saved) :])

        inputs = [*self.inputs, *(cotangents[place] for place in arrived), *variables]
        replayed = self.replay(Again([*self.saved, *values], compute), values, inputs)
        known = dict(zip(given, replayed, strict=True))
        everything = [known.get(place) for place in range(len(gradients) + len(others))]
        return tuple(everything[: len(gradients)]), tuple(everything[len(gradients) :])

    def takes_variables(self) -> bool:
        """As the rule of the first run."""
        return self.first.takes_variables()

    def capture(self, names: Sequence[str]) -> None:
        """As the rule of the first run."""
        self.first.capture(names)

    def held(self) -> Held:
        """As the rule of the first run."""
        return self.first.held()


class Sample:
    """Some numbers of the outputs of a run, by which another one is compared with it."""

    # Of each output at most twice as many; a run that differs at all differs in one of these, but by chance.
    SIZE = 64

    def __init__(self, backend: Any, outputs: Sequence[Any]):
        self.backend = backend
        self.is_known = backend.is_known(outputs)
        # Arrays, or tensors of what is only traced.
        self.values = [self._of(output) if self.is_known else self._later(output) for output in outputs]

    def _of(self, output: Any) -> numpy.ndarray:
        values = self.backend.to_numpy(output).reshape(-1)
        return values[:: max(1, len(values) // self.SIZE)].copy()  # type: ignore[no-any-return]

    def _later(self, output: Any) -> Any:
        row = self.backend.namespace.reshape(output, (-1,))
        return row[:: max(1, self.backend.shape(row)[0] // self.SIZE)]

    def compare(self, function: str, outputs: Sequence[Any]) -> list[Any]:
        """Compares another run with it; gives the conditions that must hold, where it is too early to look at them.

        Raises:
            RuntimeError: It gave something else.
        """
        if not self.is_known or not self.backend.is_known(outputs):
            firsts = map(self.backend.asarray, self.values)
            pairs = zip(map(self._later, outputs), firsts, strict=True)
            return [is_repeated_later(self.backend, *pair) for pair in pairs]
        for output, value in zip(outputs, self.values, strict=True):
            if not is_repeated(self._of(output), value, self.backend.dtype(output)):
                raise errors.recomputed_otherwise(function)
        return []


def is_repeated_later(backend: Any, other: Any, first: Any) -> Any:
    """`is_repeated` as a boolean tensor."""
    xp, kind = backend.namespace, backend.dtype(first)
    if backend.shape(other) != backend.shape(first):
        raise errors.not_repeated()
    if 0 in backend.shape(first) or not is_differentiable(kind):
        return xp.all(other == first)
    size = xp.where(xp.isfinite(first), xp.abs(first), xp.zeros_like(xp.abs(first)))
    with numpy.errstate(all="ignore"):  # NumPy warns of infinities
        is_near = xp.abs(other - first) <= precision.of(kind).repeated * xp.max(size)
    return xp.all(is_near | (other == first) | ((other != other) & (first != first)))


def is_repeated(other: numpy.ndarray, first: numpy.ndarray, dtype: str) -> bool:
    """Whether two arrays are equal, but for the rounding of sums in another order."""
    if other.shape != first.shape:
        return False
    if numpy.array_equal(other, first):
        return True
    if first.dtype.kind not in "fcV":
        return False
    size = numpy.max(numpy.abs(first), initial=0.0, where=numpy.isfinite(first))
    tolerance = precision.of(dtype).repeated
    return bool(numpy.allclose(other, first, rtol=0, atol=tolerance * float(size), equal_nan=True))
