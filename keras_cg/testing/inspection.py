"""The state that all checks of one function at one point on one backend share."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy

from keras_cg.frontend import config
from keras_cg.frontend.decorator import CustomGradient
from keras_cg.testing import comparison, exceptions, staircases
from keras_cg.testing.arrays import Array, random, vector
from keras_cg.testing.comparison import Column, Row, text
from keras_cg.testing.differences import Break, Path, Slope, grain, is_jump, kink, slope
from keras_cg.testing.report import Finding
from keras_cg.testing.subject import Arguments, Arrays, Subject, epsilon, is_rule, with_rule

# The number of elements of an argument that are checked one by one, chosen at random in a larger argument; random
# directions check all elements together.
ELEMENTS, ELEMENTS_OF_HIGHER_ORDERS, DIRECTIONS = 24, 4, 2

# The Jacobian of an output of at most so many numbers is computed in full; of a larger output only its product with
# upstream.
NUMBERS = 4096

# The tolerance of a gradient, relative to its largest number, for each machine epsilon. In double precision finite
# differences are right to at least six digits; in coarser dtypes function and rule round.
DOUBLE = 2.0**-52
TOLERANCES = {DOUBLE: 1e-6, 2.0**-23: 5e-4, 2.0**-10: 2e-2, 2.0**-7: 1e-1}
# The tolerance once double precision has shown that the formula is right: rounding alone stays below it.
ROUNDING = {2.0**-23: 1e-2, 2.0**-10: 1e-1, 2.0**-7: 3e-1}

ORDERS = ("first order", "second order", "third order", "fourth order")

# A function that computes inside in a coarser precision than this has too few digits to prove its rule right.
INSIDE_ENOUGH = 2.0**-23

# The names of the precisions in which a function computes inside, for messages.
INSIDE = {2.0**-7: "half precision", 2.0**-10: "half precision", 2.0**-23: "single precision"}


# A function of the points, such as the output or the gradient.
Function = Callable[[Arrays], Arrays]


class Inspection:
    """One function at one point: the state that each check reads, and updates for later checks."""

    def __init__(
        self,
        f: Callable[..., Any],
        arguments: Arguments,
        expected: Callable[..., Any] | None,
        value: Callable[..., Any] | None,
        order: int,
        modes: Sequence[str],
        compiled: bool,
        fast: bool,
        seed: int,
    ):
        self.arguments, self.order, self.modes = arguments, order, modes
        self.is_compiled, self.is_fast = compiled and not fast, fast
        self.backend, self.name = config.active, config.backend()
        self.points, self.is_decorated = arguments.points, isinstance(f, CustomGradient)
        self.random = numpy.random.default_rng(seed)
        # The right gradient is the derivative of `reference`, or the result of the rule of `reference`.
        self.is_declared, self.is_rule = expected is not None, expected is not None and is_rule(expected)
        right = f if expected is None else with_rule(f, expected) if self.is_rule else expected
        self.subject, self.reference = Subject(f, arguments), Subject(right, arguments)
        self.in_double = Subject(f, arguments, double=True), Subject(right, arguments, double=True)
        # The functions that return the right output, if the caller passed `value`.
        self.value = None if value is None else (Subject(value, arguments), Subject(value, arguments, double=True))
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
        # Whether the checks run in double precision although the arguments have another one; and whether they cannot,
        # because the function returns other values there.
        self.is_in_double, self.is_other_in_double = False, False
        # Whether rounding is so large that it looks like a kink.
        self.is_noisy = False
        self._columns: dict[int, list[Column]] = {}
        self._staircases: dict[tuple[bool, int], bool] = {}
        # The orders that passed, as pairs of their name and the number of the argument.
        self.passed: set[tuple[str, int]] = set()

    def pull(self, upstream: Sequence[Array]) -> Arrays:
        """Returns the gradients from the rule for an upstream gradient."""
        return self.subject.gradients(self.points, [upstream])

    def pull_expected(self, upstream: Sequence[Array]) -> Arrays:
        """Returns the expected gradients for an upstream gradient; NaN where they are unknown."""
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
        """Returns the direction of all arguments that changes only one of them."""
        return [direction if each == number else 0 * point for each, point in enumerate(self.points)]

    def path(self, directions: Arrays, function: Function, upstream: Arrays, points: Arrays | None = None) -> Path:
        """Returns `function` as a vector that depends on t: its arguments are `points + t * directions`."""
        points = self.points if points is None else points
        weights = vector(upstream)
        here = vector(function(points)) if weights.size > NUMBERS else None

        def path(t: float) -> Array:
            row = vector(function(_moved(points, t, directions)))
            return row if here is None else numpy.array([weights @ (row - here)])

        return path

    def slope(self, directions: Arrays, function: Function, upstream: Arrays, points: Arrays | None = None) -> Slope:
        """Returns the derivative of `path` at 0."""
        return slope(self.path(directions, function, upstream, points), self.eps, self.scale(directions))

    def scale(self, directions: Arrays) -> float:
        """Returns the size of the smallest nonzero number that changes along `directions`, at most 1."""
        sizes = numpy.concatenate(
            [numpy.abs(point[each != 0]) for point, each in zip(self.points, directions, strict=True)]
        )
        return float(numpy.min(sizes, initial=1.0, where=sizes > 0))

    def columns(self, number: int, function: Function, upstream: Arrays, elements: int) -> list[Column]:
        """Returns the derivatives of `function` along elements of one argument and along random directions."""
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
        """Returns the derivatives of the output with respect to one argument."""
        if number not in self._columns:
            found = self.columns(number, self.reference.output, self.upstream, ELEMENTS)
            if self.is_staircase(number):
                # The derivative is zero. Finite differences would find the slope of the stairs, or none at all.
                found = [each._replace(slope=Slope(*map(numpy.zeros_like, each.slope))) for each in found]
            self._columns[number] = found
        return self._columns[number]

    def weighted(self, weights: Array, directions: Arrays, t: float) -> float:
        """Returns the weighted sum of the output at `points + t * directions`."""
        return float(weights @ vector(self.reference.output(_moved(self.points, t, directions))))

    def is_finite(self, points: Arrays) -> bool:
        """Whether the function and the reference are finite at some points."""
        functions = (self.subject.output, self.reference.output)
        return all(numpy.isfinite(vector(function(points))).all() for function in functions)

    def look_closer(self) -> None:
        """Makes all later comparisons check single elements, too."""
        if self.is_fast:
            self.is_fast = False
            self._columns.clear()

    def jacobian(self, number: int) -> Array | None:
        """Returns the Jacobian, one row for each element of an argument, if it is known in full and real."""
        is_complex = any(map(numpy.iscomplexobj, (self.points[number], *self.output)))
        if self.is_rule or is_complex or vector(self.output).size > NUMBERS:
            return None
        found = [each.slope.values for each in self.columns_of_output(number) if each.place is not None]
        return numpy.stack(found) if len(found) == self.points[number].size > 0 else None

    def kink(
        self, number: int, function: Function, upstream: Arrays, row: Row, points: Arrays | None = None
    ) -> Break | None:
        """Returns the reason why a number has no derivative to compare with; None if it has one."""
        directions = self.along(number, row.direction)
        return kink(
            self.path(directions, function, upstream, points), weigh(upstream), self.eps, self.scale(directions)
        )

    # --- staircases ---------------------------------------------------------------------------------

    def is_staircase(self, number: int, is_subject: bool = False) -> bool:
        """Whether the output of the reference, or of the function, changes with an argument in steps only."""
        key = is_subject or not self.is_declared or self.is_rule, number
        if self.is_other_in_double:  # rounding makes its steps
            return False
        if key not in self._staircases:
            self._staircases[key] = self.is_in_steps(number, self.subject if key[0] else self.reference)
        return self._staircases[key]

    def is_in_steps(self, number: int, subject: Subject, leaf: int | None = None) -> bool:
        """Whether the output of `subject`, or one leaf of it, changes with an argument in steps only."""
        path, point = self._of_one(number, subject, leaf), self.points[number]
        with contextlib.suppress(Exception), numpy.errstate(all="ignore"):  # the function may raise elsewhere
            if staircases.is_constant_beside(path, point, self.eps):
                steps, others = staircases.in_steps(path, point, self.eps)
                is_half = self.gives_half_precision() and staircases.grow(path, point, self.eps)
                return bool(steps.any()) and not others.any() and not is_half
        return False

    def _of_one(self, number: int, subject: Subject, leaf: int | None = None) -> Callable[[Array], Array]:
        """Returns the output, or one leaf of it, as a vector that depends on one argument."""

        def path(point: Array) -> Array:
            output = subject.output([point if index == number else each for index, each in enumerate(self.points)])
            return vector(output if leaf is None else output[leaf : leaf + 1])

        return path

    def has_jumps(self, number: int) -> bool:
        """Whether the output jumps with an argument, and changes with another argument in steps only."""
        others = (each for each in range(len(self.points)) if each != number)
        return any(self.is_staircase(each, True) for each in others) and self.is_jumping(number, staircases.CLOSE_BY)

    def is_jumping(self, number: int, times: Array) -> bool:
        """Whether the output jumps with an argument."""
        with contextlib.suppress(Exception), numpy.errstate(all="ignore"):  # the function may raise elsewhere
            return staircases.jumps(self._of_one(number, self.subject), self.points[number], self.eps, is_jump, times)
        return False

    # --- precision ----------------------------------------------------------------------------------

    def grain_of(self, function: Function) -> float | None:
        """Finds the precision in which a function of the points computes, if it is coarser than `eps`."""
        signs = [1 - 2.0 * self.signs.integers(0, 2, each.shape) for each in self.points]
        # The steps of the function itself are no rounding.
        signs = [0 * each if self._is_stepped(number) else each for number, each in enumerate(signs)]

        def path(t: float) -> Array:
            return vector(function([point * (1 + t * each) for point, each in zip(self.points, signs, strict=True)]))

        with numpy.errstate(all="ignore"):
            return grain(path, self.eps)

    def _is_stepped(self, number: int) -> bool:
        """Whether the function, or the reference, has steps or jumps with an argument."""
        return self.is_staircase(number, True) or self.is_staircase(number) or self.has_jumps(number)

    @functools.cached_property
    def grain_of_rule(self) -> float | None:
        """The precision in which the rule computes, if it is coarser than that of the function."""
        return self.grain_of(lambda points: self.subject.gradients(points, [self.upstream]))

    @contextlib.contextmanager
    def computing_in(self, eps: float) -> Iterator[None]:
        """Uses the tolerances of another precision inside the context."""
        (self.eps, self.is_noisy), saved = (eps, True), (self.eps, self.is_noisy)
        try:
            yield
        finally:
            self.eps, self.is_noisy = saved

    @property
    def precision_inside(self) -> str:
        """The start of a message that names a lower precision inside the function; empty if there is none."""
        if not self.grain:
            return ""
        return f"the function computes inside in {INSIDE[self.grain]}, lower than that of its arguments: "

    def gives_half_precision(self) -> bool:
        """Whether the output is rounded to half precision.

        Such an output is a staircase: its flat steps must not count as a zero derivative.
        """
        row = vector(self.subject.output([point * (1 + math.pi / 64) for point in self.points]))
        brain = (row.astype(numpy.float32).view(numpy.uint32) & 0xFFFF0000).view(numpy.float32)
        with numpy.errstate(all="ignore"):
            return any(numpy.array_equal(row, each.astype(float)) for each in (row.astype(numpy.float16), brain))

    def is_coarser(self) -> bool:
        """Detects a function that computes inside in a lower precision, and switches all later checks to it."""
        if self.is_grain_known:
            return False
        self.is_grain_known = True
        # The reference is the function itself, a declared function, or a declared rule.
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

    def finding(self, check: str, status: str, /, **details: Any) -> Finding:
        """Returns a finding of this backend."""
        return Finding(self.name, check, status, **details)

    def difference(self, one: Arrays, other: Arrays, names: Sequence[str]) -> str | None:
        """Describes the first difference between two runs of a computation that summation order cannot explain."""
        if [each.shape for each in one] != [each.shape for each in other]:
            return f"{names[0]} of shapes {[each.shape for each in one]}, then {[each.shape for each in other]}"
        for name, first, second in zip(names, one, other, strict=True):
            off = numpy.abs(first - second)
            # Two numbers that are both NaN or infinite count as equal.
            is_same = (first == second) | ~(numpy.isfinite(first) | numpy.isfinite(second))
            if not (is_same | (off <= 64 * self.eps * numpy.nan_to_num(numpy.abs(first)).max(initial=0))).all():
                place = tuple(
                    map(int, numpy.unravel_index(int(numpy.argmax(numpy.nan_to_num(off, nan=numpy.inf))), off.shape))
                )
                return f"{name}{comparison.index(place)} is {text(first[place])}, then {text(second[place])}"
        return None

    def raised(self, check: str, error: Exception) -> Finding:
        """Returns the finding for an exception from the user's functions."""
        reason, cause = exceptions.described(error)
        return self.finding(check, "failed", reason=reason, diagnosis=cause)


def weigh(upstream: Sequence[Array]) -> Array:
    """Returns the weights of the numbers of a path."""
    weights = vector(upstream)
    return weights if weights.size <= NUMBERS else numpy.ones(1)


def _moved(points: Arrays, t: float, directions: Arrays) -> Arrays:
    return [point + t * each for point, each in zip(points, directions, strict=True)]
