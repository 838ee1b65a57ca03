"""One function at one point on one backend: what all its checks know of it, and what they ask."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy

from keras_cg import config, errors
from keras_cg.decorator import CustomGradient
from keras_cg.testing import comparison
from keras_cg.testing.arrays import Array, random, vector
from keras_cg.testing.comparison import ALONG, Column, Row, text
from keras_cg.testing.diagnosis import EARLIER
from keras_cg.testing.differences import Break, Path, Slope, grain, kink, slope
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
EDGE = "wrong at the edge of the domain: the function is finite on one side only, and has another slope there"
NOT_SETTLED = "the differences do not settle: the function changes too fast here, or rounds too much"
OTHER_IN_DOUBLE = (
    "the function gives other values in double precision, so its differences cannot be trusted: it rounds too much here"
)

# Up to this machine epsilon a function that computes inside in a lower precision shows whether its rule is right.
INSIDE_ENOUGH = 2.0**-23

# Steps of 1, 0.1 and so on are looked for: so many. Thirds of upstreams are no multiples of any.
STEPS = 5

# How far off a whole number of steps may be.
COUNTED = 1e-3

# What messages call the precision in which a function computes inside.
INSIDE = {2.0**-7: "half precision", 2.0**-10: "half precision", 2.0**-23: "single precision"}


class Inspection:
    """One function at one point: what each check may build on, and hands on to those after it."""

    def __init__(
        self,
        f: Callable[..., Any],
        given: Arguments,
        expected: Callable[..., Any] | None,
        value: Callable[..., Any] | None,
        order: int,
        modes: Sequence[str],
        compiled: bool,
        fast: bool,
        seed: int,
    ):
        self.given, self.order, self.modes = given, order, modes
        self.is_compiled, self.is_fast = compiled and not fast, fast
        self.backend, self.name = config.active, config.backend()
        self.points, self.is_decorated = given.points, isinstance(f, CustomGradient)
        self.random = numpy.random.default_rng(seed)
        # What is right: the derivative of `reference`, or what the rule of `reference` gives.
        self.is_declared, self.is_rule = expected is not None, expected is not None and is_rule(expected)
        right = f if expected is None else with_rule(f, expected) if self.is_rule else expected
        self.subject, self.reference = Subject(f, given), Subject(right, given)
        self.in_double = Subject(f, given, double=True), Subject(right, given, double=True)
        # What the output should be, if somebody said so.
        self.value = None if value is None else (Subject(value, given), Subject(value, given, double=True))
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
        # The precision in which the function computes inside, once it is known to be lower than that of its arguments.
        self.grain, self.is_grain_known, self.signs = 0.0, False, numpy.random.default_rng(seed)
        # Whether the rule turned out to compute in a lower precision than the function.
        self.is_rule_coarse = False
        # Whether everything is checked in double precision though the arguments are not; and whether the function gives
        # other values there, so that it is not.
        self.is_in_double, self.is_other_in_double = False, False
        # Whether rounding is so large that it cannot be told from a kink.
        self.is_noisy = False
        self._columns: dict[int, list[Column]] = {}
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

    def along(self, number: int, direction: Array) -> Arrays:
        """A direction of one argument as a direction of all of them."""
        return [direction if each == number else 0 * point for each, point in enumerate(self.points)]

    def path(
        self,
        directions: Arrays,
        function: Callable[[Arrays], Arrays],
        upstream: Arrays,
        points: Arrays | None = None,
    ) -> Path:
        """`function` as a row of numbers, while its arguments move from `points` along directions."""
        points = self.points if points is None else points
        weights = vector(upstream)
        here = vector(function(points)) if weights.size > NUMBERS else None

        def path(t: float) -> Array:
            row = vector(function(_moved(points, t, directions)))
            return row if here is None else numpy.array([weights @ (row - here)])

        return path

    def slope(
        self,
        directions: Arrays,
        function: Callable[[Arrays], Arrays],
        upstream: Arrays,
        points: Arrays | None = None,
    ) -> Slope:
        """The derivative of `path`."""
        return slope(self.path(directions, function, upstream, points), self.eps, self.scale(directions))

    def scale(self, directions: Arrays) -> float:
        """How far it is along directions until a number of an argument is not what it was: zero, say."""
        sizes = numpy.concatenate(
            [numpy.abs(point[each != 0]) for point, each in zip(self.points, directions, strict=True)]
        )
        return float(numpy.min(sizes, initial=1.0, where=sizes > 0))

    def columns(
        self, number: int, function: Callable[[Arrays], Arrays], upstream: Arrays, elements: int
    ) -> list[Column]:
        """The derivatives of `function` along the elements of one argument, and along random directions."""
        point = self.points[number]
        places = [] if self.is_fast and point.size > 1 else list(numpy.ndindex(point.shape))
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
            Column(place, direction, self.slope(self.along(number, direction), function, upstream))
            for place, direction in directions
        ]

    def columns_of_output(self, number: int) -> list[Column]:
        """The derivatives of the output by one argument."""
        if number not in self._columns:
            self._columns[number] = self.columns(number, self.reference.output, self.upstream, ELEMENTS)
        return self._columns[number]

    def weighed(self, weights: Array, directions: Arrays, t: float) -> float:
        """The weighted sum of the output, `t` along directions."""
        return float(weights @ vector(self.reference.output(_moved(self.points, t, directions))))

    def is_finite(self, points: Arrays) -> bool:
        """Whether the function and what its gradient is compared with are finite at some points."""
        functions = (self.subject.output, self.reference.output)
        return all(numpy.isfinite(vector(function(points))).all() for function in functions)

    def look_closer(self) -> None:
        """From now on looks at single elements, too."""
        if self.is_fast:
            self.is_fast = False
            self._columns.clear()

    def jacobian(self, number: int) -> Array | None:
        """The derivative of the outputs by one argument, an element of it to a row, if all of it is known and real."""
        is_complex = any(map(numpy.iscomplexobj, (self.points[number], *self.output)))
        if self.is_rule or is_complex or vector(self.output).size > NUMBERS:
            return None
        found = [each.slope.values for each in self.columns_of_output(number) if each.place is not None]
        return numpy.stack(found) if len(found) == self.points[number].size > 0 else None

    def kink(
        self,
        number: int,
        function: Callable[[Arrays], Arrays],
        upstream: Arrays,
        row: Row,
        points: Arrays | None = None,
    ) -> Break | None:
        """Why there is no derivative to compare a number with, if there is none."""
        directions = self.along(number, row.direction)
        return kink(
            self.path(directions, function, upstream, points), weigh(upstream), self.eps, self.scale(directions)
        )

    # --- precision ----------------------------------------------------------------------------------

    def grain_of(self, function: Callable[[Arrays], Arrays]) -> float | None:
        """The precision in which a function of the points computes, if it is coarser than that of its arguments."""
        signs = [1 - 2.0 * self.signs.integers(0, 2, each.shape) for each in self.points]

        def path(t: float) -> Array:
            return vector(function([point * (1 + t * each) for point, each in zip(self.points, signs, strict=True)]))

        with numpy.errstate(all="ignore"):
            return grain(path, self.eps)

    @functools.cached_property
    def grain_of_rule(self) -> float | None:
        """The precision in which the rule computes, if it is coarser than that of the function."""
        return self.grain_of(lambda points: self.subject.gradients(points, [self.upstream]))

    @contextlib.contextmanager
    def computing_in(self, eps: float) -> Iterator[None]:
        """Compares as for a function that computes in another precision."""
        (self.eps, self.is_noisy), kept = (eps, True), (self.eps, self.is_noisy)
        try:
            yield
        finally:
            self.eps, self.is_noisy = kept

    @property
    def precision_inside(self) -> str:
        """What to say before a reason that has to do with the function's precision; nothing if it is as it seems."""
        if not self.grain:
            return ""
        return f"the function computes inside in {INSIDE[self.grain]}, lower than that of its arguments: "

    def cause(self, number: int, found: Finding) -> str | None:
        """What is wrong with the rule apart from the mathematics: its memory, steps, or precision."""
        return self._history(number) or self.steps(number) or self.coarse_rule(found)

    def _history(self, number: int) -> str | None:
        """That the gradient of an argument depends on the calls before, if it does."""
        self.pull([2 * numpy.flip(each) for each in self.upstream])
        now = self.pull(self.upstream)
        is_other = self.difference([self.gradient[number]], [now[number]], [""]) is not None
        return EARLIER if is_other else None

    def steps(self, number: int) -> str | None:
        """That the gradient of an argument comes in steps, if it does: for a third of upstream, too."""
        whole, third = (vector([self.pull([each / part for each in self.upstream])[number]]) for part in (1, 3))
        if numpy.array_equal(whole, third):
            return None
        for power in range(STEPS):
            counts = 10.0**power * numpy.concatenate([whole, third])
            if 16 * epsilon(self.subject.dtypes) * numpy.abs(counts).max() > COUNTED:  # rounding alone has steps
                return None
            if (numpy.abs(counts - numpy.round(counts)) <= COUNTED).all():
                return f"the gradient is rounded to steps of {10.0**-power:g}"
        return None

    def coarse_rule(self, found: Finding) -> str | None:
        """That the rule computes in a lower precision than the function, if that is all that is wrong with it."""
        # What overflows is infinitely far off.
        if found.error is None or max(TOLERANCES.values()) < found.error < math.inf:
            return None
        grain = self.grain_of_rule
        if not grain or TOLERANCES[grain] < found.error < math.inf:
            return None
        self.is_rule_coarse = True
        return f"a lower precision inside: the rule computes in {INSIDE[grain]}, and the function does not"

    def gives_half_precision(self) -> bool:
        """Whether the output is rounded to half precision: a staircase, whose steps are no zero derivative."""
        row = vector(self.subject.output([point * (1 + math.pi / 64) for point in self.points]))
        brain = (row.astype(numpy.float32).view(numpy.uint32) & 0xFFFF0000).view(numpy.float32)
        with numpy.errstate(all="ignore"):
            return any(numpy.array_equal(row, each.astype(float)) for each in (row.astype(numpy.float16), brain))

    def is_coarser(self) -> bool:
        """Whether the function turns out to compute in a lower precision than it seemed; all goes on in that one."""
        if self.is_grain_known:
            return False
        self.is_grain_known = True
        # What is right has the output of the function, or a function of its own.
        functions = [self.subject.output, *([self.reference.output] if self.is_declared and not self.is_rule else [])]
        found = [self.grain_of(each) for each in functions] + [self.grain_of_rule if self.is_rule else None]
        self.grain = max(each or 0.0 for each in found)
        if not self.grain:
            return False
        self.eps, self.is_noisy = self.grain, True
        self._columns.clear()
        self.passed.clear()
        return True

    # --- findings -----------------------------------------------------------------------------------

    def compare(
        self,
        check: str,
        number: int | None,
        rows: list[Row],
        look: Callable[[Row], Break | None] | None = None,
        tolerance: float | None = None,
    ) -> Finding:
        """What comes of comparing some numbers, and of looking closer (`look`) at those that differ."""
        tolerance = tolerance or TOLERANCES[self.eps]
        name = None if number is None else self.given.names[number]
        largest = max(map(_largest, (*self.output, *self.upstream, *self.gradient)))
        sizes = [max(abs(each.expected), each.size) for each in rows if not numpy.isnan(each.expected)]
        size = max(sizes, default=0.0)
        noise = min(256 * self.eps, tolerance) * max(size, *map(_largest, self.upstream))
        size = size if size > noise else 0.0
        # Of what computes inside in half precision, and never passes, faults as large as a factor are looked for.
        settled = 1.0 if self.grain > INSIDE_ENOUGH else 0.05
        # In double precision each element has to be right by itself; elsewhere rounding is that of the largest.
        is_single = self.eps == DOUBLE and tolerance == TOLERANCES[DOUBLE]

        def is_wrong(row: Row) -> bool:
            measure = max(abs(row.expected), row.size) if is_single and row.where != ALONG else size
            # NaN is not less either.
            return not row.difference <= tolerance * measure + 4 * row.error + noise

        def is_rough(row: Row) -> bool:
            return 4 * row.error > max(settled * size, 1e-5 * largest)

        def is_bent(row: Row) -> bool:
            return row.bend > 1e-2 * max(size, abs(row.came)) + 1e-4 * largest * math.sqrt(self.eps)

        found = functools.partial(self.finding, check, argument=name, tolerance=tolerance)
        if not rows:
            return self.finding(check, "undecided", argument=name, reason="it has no elements: nothing was compared")
        doubtful = [each for each in rows if is_wrong(each) or is_rough(each) or is_bent(each)]
        # Rather an element than a direction: it says more. To look closer takes long; one fault is enough.
        doubtful.sort(key=lambda each: (not is_wrong(each), each.where == ALONG, -each.difference))
        looked: list[tuple[Row, Break | None]] = []
        for each in doubtful:
            # Where rounding is as large, what is rough stays undecided, whatever a look would show.
            is_clear = self.is_noisy and is_rough(each) and not is_wrong(each)
            looked.append((each, None if look is None or is_clear else look(each)))
            if looked[-1][1] is None and is_wrong(each):
                break
        # At the edge of a domain the function has its derivative on one side.
        edges = [(row, broken) for row, broken in looked if broken is not None and broken.is_edge]
        looked = [(row, broken) for row, broken in looked if broken is None or not broken.is_edge]
        sure = [each for each, broken in looked if broken is None and is_wrong(each)]
        beside = [row._replace(expected=broken.slope, error=broken.error) for row, broken in edges]
        off = [each for each in beside if each.difference > 1e-2 * max(abs(each.expected), size)]
        if (sure or off or looked) and self.is_other_in_double:
            return found("undecided", reason=OTHER_IN_DOUBLE)
        if sure or off:
            worst = min(sure or off, key=lambda each: (each.where == ALONG, -each.difference))
            alike = [abs(each.expected) for each in rows if (each.where == ALONG) == (worst.where == ALONG)]
            scale = max((number for number in alike if number > noise), default=0.0) or abs(worst.came)
            return found(
                "failed",
                where=worst.where,
                came=text(worst.came),
                expected=text(worst.expected),
                error=worst.difference / scale,
                diagnosis=None if sure else EDGE,
            )
        for each, broken in looked:
            if broken is not None and not self.is_noisy:
                what = "the gradient" if check in ORDERS[1:] else "the function"
                reason = f"{what} has no derivative there: {broken.reason}. The rule gives {text(each.came)}"
                return found("undecided", where=each.where, reason=reason, diagnosis=KINK)
        if any(broken is not None or is_rough(row) for row, broken in looked):
            return found("undecided", reason=f"{self.precision_inside}{NOT_SETTLED}")
        left = [each for each in rows if not any(each is row for row, _ in edges)] + beside
        return found("passed", error=max(each.difference for each in left) / (size or largest or 1.0))

    def finding(self, check: str, status: str, /, **details: Any) -> Finding:
        """A finding on this backend."""
        return Finding(self.name, check, status, **details)

    def difference(self, one: Arrays, other: Arrays, names: Sequence[str]) -> str | None:
        """What differs most between two runs of one computation, if it is more than their order of adding explains."""
        if [each.shape for each in one] != [each.shape for each in other]:
            return f"{names[0]} of shapes {[each.shape for each in one]}, then {[each.shape for each in other]}"
        for name, first, second in zip(names, one, other, strict=True):
            off = numpy.abs(first - second)
            # What is not finite in both runs is the same.
            is_same = (first == second) | ~(numpy.isfinite(first) | numpy.isfinite(second))
            if not (is_same | (off <= 64 * self.eps * numpy.nan_to_num(numpy.abs(first)).max(initial=0))).all():
                place = tuple(
                    map(int, numpy.unravel_index(int(numpy.argmax(numpy.nan_to_num(off, nan=numpy.inf))), off.shape))
                )
                return f"{name}{comparison.index(place)} is {text(first[place])}, then {text(second[place])}"
        return None

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


def _moved(points: Arrays, t: float, directions: Arrays) -> Arrays:
    return [point + t * each for point, each in zip(points, directions, strict=True)]


def _largest(array: Array) -> float:
    return float(numpy.abs(array).max(initial=0))
