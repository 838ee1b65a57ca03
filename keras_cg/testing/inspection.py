"""One function at one point on one backend: what all its checks know of it, and what they ask."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from keras_cg import config, errors
from keras_cg.decorator import CustomGradient
from keras_cg.testing import comparison
from keras_cg.testing.arrays import Array, random, vector
from keras_cg.testing.comparison import ALONG, Column, Row, text
from keras_cg.testing.differences import Path, Slope, kink, slope
from keras_cg.testing.report import Finding
from keras_cg.testing.subject import Arguments, Arrays, Subject, epsilon, is_rule, with_rule

# How many elements of an argument are looked at one by one; of a larger one as many, chosen at random. All of them are
# looked at together, along random directions.
ELEMENTS, ELEMENTS_OF_HIGHER_ORDERS, DIRECTIONS = 24, 4, 2

# So many numbers are followed one by one along a direction, with their whole Jacobian; of more, only the sum that
# upstream weighs.
NUMBERS = 4096

# What a gradient may be off by, relative to its largest number, for each machine epsilon. In double precision at least
# six digits of the differences are right; in coarser dtypes the rounding of function and rule counts.
DOUBLE = 2.0**-52
TOLERANCES = {DOUBLE: 1e-6, 2.0**-23: 5e-4, 2.0**-10: 2e-2, 2.0**-7: 1e-1}
# Where double precision has shown already that the formula is right: only what rounding cannot explain.
ROUNDING = {2.0**-23: 1e-2, 2.0**-10: 1e-1, 2.0**-7: 3e-1}

ORDERS = ("first order", "second order", "third order", "fourth order")

KINK = "a kink at the test point: choose another one"


class Inspection:
    """One function at one point: what each check may build on, and hands on to those after it."""

    def __init__(
        self,
        f: Callable[..., Any],
        given: Arguments,
        expected: Callable[..., Any] | None,
        order: int,
        modes: Sequence[str],
        compiled: bool,
        seed: int,
    ):
        self.given, self.order, self.modes, self.is_compiled = given, order, modes, compiled
        self.backend, self.name = config.active, config.backend()
        self.points, self.is_decorated = given.points, isinstance(f, CustomGradient)
        self.random = numpy.random.default_rng(seed)
        # What is right: the derivative of `reference`, or what the rule of `reference` gives.
        self.is_declared, self.is_rule = expected is not None, expected is not None and is_rule(expected)
        right = f if expected is None else with_rule(f, expected) if self.is_rule else expected
        self.subject, self.reference = Subject(f, given), Subject(right, given)
        self.in_double = Subject(f, given, double=True), Subject(right, given, double=True)
        self.eps = epsilon(self.subject.dtypes)
        self.precision: Callable[[], contextlib.AbstractContextManager[Any]] = (
            self.backend.double_precision if self.eps == DOUBLE else contextlib.nullcontext
        )
        self.output: Arrays = []
        self.upstream: Arrays = []
        self.gradient: Arrays = []
        # The gradient in the dtypes of the arguments, if `gradient` is in double precision.
        self.rounded: Arrays | None = None
        self.is_linear = True
        # The orders that passed, by their names and the number of the argument.
        self.passed: set[tuple[str, int]] = set()

    def pull(self, upstream: Sequence[Array]) -> Arrays:
        """What the rule gives for an upstream."""
        return self.subject.gradients(self.points, [upstream])

    def pull_expected(self, upstream: Sequence[Array]) -> Arrays:
        """What it should give; NaN where nobody looked."""
        if self.is_rule:
            return self.reference.gradients(self.points, [upstream])
        weights = weigh(upstream)
        if upstream is not self.upstream and vector(upstream).size > NUMBERS:
            weights = numpy.full(1, numpy.nan)
        return [
            comparison.gradient(self.columns_of_output(number), point, weights)
            for number, point in enumerate(self.points)
        ]

    # --- differences --------------------------------------------------------------------------------

    def path(self, number: int, direction: Array, function: Callable[[Arrays], Arrays], upstream: Arrays) -> Path:
        """`function` of the points as a row of numbers, while one of them moves along a direction."""
        weights = vector(upstream)
        here = vector(function(self.points)) if weights.size > NUMBERS else None

        def path(t: float) -> Array:
            points = [*self.points]
            points[number] = points[number] + t * direction
            row = vector(function(points))
            return row if here is None else numpy.array([weights @ (row - here)])

        return path

    def slope(self, number: int, direction: Array, function: Callable[[Arrays], Arrays], upstream: Arrays) -> Slope:
        path = self.path(number, direction, function, upstream)
        return slope(path, self.eps, self.scale(number, direction))

    def scale(self, number: int, direction: Array) -> float:
        """How far it is along a direction until a number of the argument is not what it was: zero, say."""
        sizes = numpy.abs(self.points[number][direction != 0])
        return float(numpy.min(sizes, initial=1.0, where=sizes > 0))

    def columns(
        self, number: int, function: Callable[[Arrays], Arrays], upstream: Arrays, elements: int
    ) -> list[Column]:
        """The derivatives of `function` along the elements of one argument, and along random directions."""
        point = self.points[number]
        places = list(numpy.ndindex(point.shape))
        if len(places) > elements:
            places = [places[each] for each in sorted(self.random.choice(len(places), elements, replace=False))]
        directions: list[tuple[tuple[int, ...] | None, Array]] = []
        for place in places:
            for unit in (1, 1j) if numpy.iscomplexobj(point) else (1,):
                direction = numpy.zeros_like(point)
                direction[place] = unit
                directions.append((place, direction))
        if point.size > 1:
            directions += [(None, random(self.random, point)) for _ in range(DIRECTIONS)]
        return [
            Column(place, direction, self.slope(number, direction, function, upstream))
            for place, direction in directions
        ]

    @functools.cache  # noqa: B019 - an inspection is dropped after its one run
    def columns_of_output(self, number: int) -> list[Column]:
        return self.columns(number, self.reference.output, self.upstream, ELEMENTS)

    def jacobian(self, number: int) -> Array | None:
        """The derivative of the outputs by one argument, an element of it to a row, if all of it is known and real."""
        is_complex = any(map(numpy.iscomplexobj, (self.points[number], *self.output)))
        if self.is_rule or is_complex or vector(self.output).size > NUMBERS:
            return None
        found = [each.slope.values for each in self.columns_of_output(number) if each.place is not None]
        return numpy.stack(found) if len(found) == self.points[number].size > 0 else None

    def kink(self, number: int, function: Callable[[Arrays], Arrays], upstream: Arrays, row: Row) -> str | None:
        """Why there is no derivative to compare a number with, if there is none."""
        path = self.path(number, row.direction, function, upstream)
        return kink(path, weigh(upstream), self.eps, self.scale(number, row.direction))

    # --- findings -----------------------------------------------------------------------------------

    def compare(
        self,
        check: str,
        number: int | None,
        rows: list[Row],
        look: Callable[[Row], str | None] | None = None,
        tolerance: float | None = None,
    ) -> Finding:
        """What comes of comparing some numbers, and of looking closer (`look`) at those that differ."""
        tolerance = tolerance or TOLERANCES[self.eps]
        name = None if number is None else self.given.names[number]
        largest = max(map(_largest, (*self.output, *self.upstream, *self.gradient)))
        sizes = [max(abs(each.expected), each.size) for each in rows if not numpy.isnan(each.expected)]
        size = max(sizes, default=0.0)
        noise = 256 * self.eps * max(size, *map(_largest, self.upstream))
        size = size if size > noise else 0.0
        # In double precision each element has to be right by itself; elsewhere rounding is that of the largest.
        is_single = self.eps == DOUBLE and tolerance == TOLERANCES[DOUBLE]

        def is_wrong(row: Row) -> bool:
            measure = abs(row.expected) if is_single and row.where != ALONG else size
            # NaN is not less either.
            return not row.difference <= tolerance * measure + 4 * row.error + noise

        def is_rough(row: Row) -> bool:
            return 4 * row.error > max(0.05 * size, 1e-5 * largest)

        def is_bent(row: Row) -> bool:
            return row.bend > 1e-2 * max(size, abs(row.came)) + 1e-4 * largest * math.sqrt(self.eps)

        doubtful = [each for each in rows if is_wrong(each) or is_rough(each) or is_bent(each)]
        looked = [(each, None if look is None else look(each)) for each in doubtful]
        sure = [each for each, reason in looked if reason is None and is_wrong(each)]
        found = functools.partial(self.finding, check, argument=name, tolerance=tolerance)
        if sure:
            # Rather an element than a direction: it says more.
            worst = min(sure, key=lambda each: (each.where == ALONG, -each.difference))
            alike = [abs(each.expected) for each in rows if (each.where == ALONG) == (worst.where == ALONG)]
            scale = max((number for number in alike if number > noise), default=0.0) or abs(worst.came)
            return found(
                "failed",
                where=worst.where,
                came=text(worst.came),
                expected=text(worst.expected),
                error=worst.difference / scale,
            )
        for each, reason in looked:
            if reason is not None:
                what = "the gradient" if check in ORDERS[1:] else "the function"
                reason = f"{what} has no derivative there: {reason}. The rule gives {text(each.came)}"
                return found("undecided", where=each.where, reason=reason, diagnosis=KINK)
        if any(map(is_rough, rows)):
            return found(
                "undecided",
                reason="the differences do not settle: the function changes too fast here, or rounds too much",
            )
        return found("passed", error=max((each.difference for each in rows), default=0.0) / (size or largest or 1.0))

    def finding(self, check: str, status: str, /, **details: Any) -> Finding:
        return Finding(self.name, check, status, **details)

    def raised(self, check: str, error: Exception) -> Finding:
        """A finding from an exception; one of ours says as data what came, what was expected and the usual cause."""
        ours = _reported(error)
        told = [line.strip() for line in str(ours or error).splitlines() if line.strip()] or ["no message"]
        # TensorFlow puts its own traceback before what happened.
        happened = told[-1] if told[0] == "in user code:" else told[0]
        details = [f"{name}: {getattr(ours, name)}" for name in ("got", "expected") if getattr(ours, name, None)]
        reason = f"{type(error).__name__}: " + "; ".join([happened.removesuffix("."), *details])
        return self.finding(check, "failed", reason=reason, diagnosis=getattr(ours, "cause", None))


def _reported(error: BaseException) -> BaseException | None:
    """The error of ours whose message `error` shows: itself, or the one that a framework raised it from.

    What shows another message is not ours: somebody may have raised it while handling one of ours.
    """
    passed: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in passed:
        if vars(link).keys() >= set(errors.DATA) and str(link).partition("\n")[0] in str(error):
            return link
        passed.add(id(link))
        link = link.__cause__ or link.__context__
    return None


def weigh(upstream: Sequence[Array]) -> Array:
    """What the numbers of a path are weighed with."""
    weights = vector(upstream)
    return weights if weights.size <= NUMBERS else numpy.ones(1)


def _largest(array: Array) -> float:
    return float(numpy.abs(array).max(initial=0))
