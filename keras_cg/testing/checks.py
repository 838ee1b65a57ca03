"""The checks of one function at one point on one backend, one after the other."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy

from keras_cg import config, errors
from keras_cg.decorator import CustomGradient
from keras_cg.engine import linear
from keras_cg.testing import comparison, messages
from keras_cg.testing.arrays import Array, random, vector
from keras_cg.testing.comparison import ALONG, Column, Row, text
from keras_cg.testing.diagnosis import CLIPS, Evidence, diagnose, diagnose_higher, diagnose_upstream
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

Look = Callable[[], Iterator[Finding]]


class Inspection:
    """All checks of one function at one point, in an order in which each may build on the ones before."""

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

    def run(self, tell: Callable[[Finding], None]) -> dict[str, Arrays]:
        """Makes all checks and tells what each one found.

        Returns:
            The output and the gradient, for comparison with other backends; nothing if there is none.
        """
        checks = self._checks()
        with self.precision():
            value = self._value()
        tell(value)
        if value.status != "passed":
            self._skip(list(checks), "there is no value to go on with", tell)
            return {}
        with self.precision():
            failure = self._gradient()
        if failure is not None:
            tell(failure)
            self._skip([each for each in checks if each != ORDERS[0]], "there is no gradient to go on with", tell)
            return {}
        with self.precision():
            for check, look in checks.items():
                try:
                    for finding in look():
                        tell(finding)
                except Exception as error:  # whatever the user's functions raise is a finding
                    tell(self._raised(check, error))
            gradients = zip(self.given.names, self.gradient, strict=True)
            return {
                "epsilon": [numpy.asarray(self.eps)],
                "output": self.subject.output(self.points),
                **{f"gradient of {name}": [gradient] for name, gradient in gradients},
            }

    def _checks(self) -> dict[str, Look]:
        """What is to be looked at, by the name of the check."""
        checks: dict[str, Look] = {}
        if "reverse" in self.modes:
            checks[ORDERS[0]] = self._first
            for order in range(1, self.order):
                checks[ORDERS[order]] = functools.partial(self._higher, order)
        checks["linearity"] = self._linearity
        if self.is_compiled:
            checks["compiled"] = self._compiled
            checks["export"] = self._exported
        if "forward" in self.modes:
            checks["forward mode"] = self._forward
        return {**checks, "memory": self._memory}

    # --- what all the others start from -----------------------------------------------------------

    def _value(self) -> Finding:
        check = "value"
        try:
            first, second = self.subject.output(self.points), self.subject.output(self.points)
        except Exception as error:  # whatever the user's function raises is a finding
            return self._raised(check, error)
        if not first:
            return self._finding(check, "failed", reason="the function returns no floating tensor")
        if not all(numpy.isfinite(each).all() for each in first):
            return self._finding(check, "undecided", reason="the function itself gives NaN or infinity at this point")
        if not all(map(numpy.array_equal, first, second)):
            reason = "the function gives other values when it is called again; does it draw random numbers?"
            return self._finding(check, "undecided", reason=reason)
        self.output = first
        self.upstream = [random(self.random, each) for each in first]
        changed = self.subject.changed_argument(self.points)
        if changed is not None:
            reason = f"the function changes {changed} in place; work on a copy"
            return self._finding(check, "failed", argument=changed, reason=reason)
        return self._finding(check, "passed")

    def _gradient(self) -> Finding | None:
        """Computes the gradient, and decides in which precision everything is checked.

        Returns:
            What was found if there is no gradient, or nothing to compare it with.
        """
        check = ORDERS[0]
        try:
            self.gradient = self._pull(self.upstream)
        except Exception as error:  # whatever the user's rule raises is a finding
            return self._raised(check, error)
        if self.eps != DOUBLE:
            self._double()
        for name, each in zip(self.given.names, self.gradient, strict=True):
            if not numpy.isfinite(each).all():
                where = comparison.index(tuple(map(int, numpy.argwhere(~numpy.isfinite(each))[0])))
                reason = "the rule gives NaN or infinity where the function is finite"
                return self._finding(check, "failed", argument=name, where=where, reason=reason)
        try:
            expected = self._pull_expected(self.upstream) if self.is_rule else self.reference.output(self.points)
        except Exception as error:  # and so is what comes of `expected`
            found = self._raised(check, error)
            return replace(found, reason=f"`expected` raised {found.reason}")
        if not all(numpy.isfinite(each).all() for each in expected):
            return self._finding(check, "undecided", reason="`expected` gives NaN or infinity at this point")
        came, right = ([each.shape for each in arrays] for arrays in (expected, self.output))
        if not self.is_rule and came != right:
            raise messages.wrong_expected(self.subject.name, str(came), str(right))
        return None

    def _double(self) -> None:
        """Goes over to double precision if the function can be computed in it."""
        subject, reference = self.in_double
        try:
            with self.backend.double_precision():
                output, gradient = subject.output(self.points), subject.gradients(self.points, [self.upstream])
                eps = max(subject.epsilon(self.points), reference.epsilon(self.points))
        except Exception:  # a function that is made for one dtype is checked in that one
            return
        if eps == DOUBLE and all(map(self._is_near, output, self.output)):
            self.rounded, self.gradient = self.gradient, gradient
            self.subject, self.reference, self.eps = subject, reference, eps
            self.precision = self.backend.double_precision

    def _is_near(self, one: Array, other: Array) -> bool:
        size = numpy.abs(other).max(initial=0)
        return bool(numpy.abs(one - other).max(initial=0) <= ROUNDING[self.eps] * size)

    def _pull(self, upstream: Sequence[Array]) -> Arrays:
        """What the rule gives for an upstream."""
        return self.subject.gradients(self.points, [upstream])

    def _pull_expected(self, upstream: Sequence[Array]) -> Arrays:
        """What it should give; NaN where nobody looked."""
        if self.is_rule:
            return self.reference.gradients(self.points, [upstream])
        weights = _weights(upstream)
        if upstream is not self.upstream and vector(upstream).size > NUMBERS:
            weights = numpy.full(1, numpy.nan)
        return [
            comparison.gradient(self._columns_of_output(number), point, weights)
            for number, point in enumerate(self.points)
        ]

    # --- differences --------------------------------------------------------------------------------

    def _path(self, number: int, direction: Array, function: Callable[[Arrays], Arrays], upstream: Arrays) -> Path:
        """`function` of the points as a row of numbers, while one of them moves along a direction."""
        weights = vector(upstream)
        here = vector(function(self.points)) if weights.size > NUMBERS else None

        def path(t: float) -> Array:
            points = [*self.points]
            points[number] = points[number] + t * direction
            row = vector(function(points))
            return row if here is None else numpy.array([weights @ (row - here)])

        return path

    def _slope(self, number: int, direction: Array, function: Callable[[Arrays], Arrays], upstream: Arrays) -> Slope:
        path = self._path(number, direction, function, upstream)
        return slope(path, self.eps, self._scale(number, direction))

    def _scale(self, number: int, direction: Array) -> float:
        """How far it is along a direction until a number of the argument is not what it was: zero, say."""
        sizes = numpy.abs(self.points[number][direction != 0])
        return float(numpy.min(sizes, initial=1.0, where=sizes > 0))

    def _columns(
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
            Column(place, direction, self._slope(number, direction, function, upstream))
            for place, direction in directions
        ]

    @functools.cache  # noqa: B019 - an inspection is dropped after its one run
    def _columns_of_output(self, number: int) -> list[Column]:
        return self._columns(number, self.reference.output, self.upstream, ELEMENTS)

    def _jacobian(self, number: int) -> Array | None:
        """The derivative of the outputs by one argument, an element of it to a row, if all of it is known and real."""
        is_complex = any(map(numpy.iscomplexobj, (self.points[number], *self.output)))
        if self.is_rule or is_complex or vector(self.output).size > NUMBERS:
            return None
        found = [each.slope.values for each in self._columns_of_output(number) if each.place is not None]
        return numpy.stack(found) if len(found) == self.points[number].size > 0 else None

    # --- the orders of differentiation --------------------------------------------------------------

    def _first(self) -> Iterator[Finding]:
        expected = self._pull_expected(self.upstream)
        evidence = Evidence(
            names=self.given.names,
            upstream=self.upstream,
            came=self.gradient,
            expected=expected,
            tolerance=TOLERANCES[self.eps],
            pull=self._pull,
            pull_expected=self._pull_expected,
            jacobians=[self._jacobian(number) for number in range(len(self.points))],
            shapes=[each.shape for each in (*self.points, *self.output)],
            is_declared=self.is_declared,
        )
        for number, came in enumerate(self.gradient):
            if self.is_rule:
                found = self._compare(ORDERS[0], number, comparison.elements(came, expected[number]))
            else:
                rows = comparison.rows(self._columns_of_output(number), came, _weights(self.upstream))
                look = functools.partial(self._kink, number, self.reference.output, self.upstream)
                found = self._compare(ORDERS[0], number, rows, look)
            if found.status == "failed":
                found = replace(found, diagnosis=diagnose(evidence, number))
            elif found.status == "passed":
                found = self._rounding(number) or found
            if found.status == "passed":
                self.passed.add((ORDERS[0], number))
            yield found

    def _rounding(self, number: int) -> Finding | None:
        """What is wrong in the dtypes of the arguments alone."""
        if self.rounded is None:
            return None
        dtypes = [self.given.dtypes[place] for place in self.given.floating]
        allowed = ROUNDING[epsilon(self.given.dtypes)]
        found = self._compare(
            ORDERS[0], number, comparison.elements(self.rounded[number], self.gradient[number]), tolerance=allowed
        )
        reason = (
            f"right in double precision, wrong in {dtypes[number]}: it overflows, or subtracts what is nearly equal"
        )
        return replace(found, diagnosis=reason) if found.status == "failed" else None

    def _higher(self, order: int) -> Iterator[Finding]:
        """The derivative of the gradient of order `order`, beside its differences."""
        upstreams = [self.upstream, *([random(self.random, each) for each in self.points] for _ in range(order))]

        def lower(points: Arrays) -> Arrays:
            return self.reference.gradients(points, upstreams[:-1])

        for number, came in enumerate(self.subject.gradients(self.points, upstreams)):
            columns = self._columns(number, lower, upstreams[-1], ELEMENTS_OF_HIGHER_ORDERS)
            look = functools.partial(self._kink, number, lower, upstreams[-1])
            found = self._compare(ORDERS[order], number, comparison.rows(columns, came, _weights(upstreams[-1])), look)
            if found.status == "passed":
                self.passed.add((ORDERS[order], number))
            elif found.status == "failed" and (ORDERS[order - 1], number) in self.passed:
                expected = comparison.gradient(columns, came, _weights(upstreams[-1]))
                found = replace(found, diagnosis=diagnose_higher(came, expected, ORDERS[order - 1]))
            yield found

    def _kink(self, number: int, function: Callable[[Arrays], Arrays], upstream: Arrays, row: Row) -> str | None:
        """Why there is no derivative to compare a number with, if there is none."""
        path = self._path(number, row.direction, function, upstream)
        return kink(path, _weights(upstream), self.eps, self._scale(number, row.direction))

    # --- the other checks ---------------------------------------------------------------------------

    def _linearity(self) -> Iterator[Finding]:
        check = "linearity"
        other = [random(self.random, each) for each in self.output]
        first, second = self._pull(self.upstream), self._pull(other)
        # Large enough for a rule that clips at a thousand, and no overflow.
        large = 32.0 if self.eps > 1e-5 else 2.0**20
        trials = [
            (_combine(a, self.upstream, b, other), _combine(a, first, b, second))
            for a, b in ((3, -7), (0, large), (0, 0))
        ]
        found = [(upstream, self._pull(upstream), sums) for upstream, sums in trials]
        for number in range(len(self.points)):
            shown = self._worst(check, number, [(came, sums) for _, came, sums in found])
            if shown.status == "failed":
                self.is_linear = False
                if self.is_rule:
                    shown = self._worst(check, number, [(came, self._pull_expected(u)) for u, came, _ in found])
                    shown = replace(shown, reason="not linear in upstream, as declared")
            if shown.status == "failed":
                cause = diagnose_upstream(self._pull, self.upstream, number)
                shown = replace(shown, reason="the rule is not linear in upstream", diagnosis=cause)
            yield shown
        if self.is_linear and not self._is_tried_linear():
            self.is_linear = False
            if not self.is_rule:
                reason = "the rule is not linear in upstream, of tiny or huge size"
                yield self._finding(check, "failed", reason=reason, diagnosis=CLIPS)

    def _is_tried_linear(self) -> bool:
        """Whether forward mode takes the rule for linear."""
        flat, floating = self.subject.bound(self.points)
        outputs, pullback, _ = self.backend.vjp(flat, floating)
        fulfilled = linear.conditions(self.backend, pullback, outputs)
        return all(bool(numpy.all(self.backend.to_numpy(condition))) for condition in fulfilled)

    def _worst(self, check: str, number: int, pairs: list[tuple[Arrays, Arrays]]) -> Finding:
        """The comparison that failed, or else the first, of several gradients of one argument."""
        found = [
            self._compare(check, number, comparison.elements(came[number], right[number])) for came, right in pairs
        ]
        return next((each for each in found if each.status == "failed"), found[0])

    def _compiled(self) -> Iterator[Finding]:
        check = "compiled"
        flat, floating = self.subject.bound(self.points)
        program = self.backend.compiled(_fresh(lambda *floating: flat(*floating)[0]))
        if program is None:
            yield self._finding(check, "skipped", reason=f"{self.name} has no compiler")
            return
        try:
            outputs, pullback, _ = self.backend.vjp(lambda *floating: (program(*floating), ()), floating)
            gradients = pullback(self.subject.cast(self.upstream, outputs))
        except Exception as error:
            raised = self._raised(check, error)
            yield replace(raised, status="undecided", reason=f"it does not compile: {raised.reason}")
            return
        other = self._other_output(check, outputs)
        if other is not None:
            yield replace(other, reason="the compiled output differs from the eager one")
            return
        for number, came in enumerate(self.subject.arrays(gradients)):
            found = self._compare(check, number, comparison.elements(came, self.gradient[number]))
            if found.status == "failed":
                found = replace(found, reason="the compiled gradient differs from the eager one")
            yield found

    def _other_output(self, check: str, outputs: Sequence[Any]) -> Finding | None:
        """What was found if a program of the function gave another output than the function."""
        for each, output in zip(self.subject.arrays(outputs), self.subject.output(self.points), strict=True):
            found = self._compare(check, None, comparison.elements(each, output))
            if found.status == "failed":
                return found
        return None

    def _exported(self) -> Iterator[Finding]:
        check = "export"
        flat, floating = self.subject.bound(self.points)
        try:
            program = self.backend.exported(_fresh(lambda *floating: flat(*floating)[0]), floating)
            outputs = None if program is None else program(*floating)
        except Exception as error:
            raised = self._raised(check, error)
            # Some things a framework exports never, as JAX a callback, and says so.
            status = "skipped" if isinstance(error, NotImplementedError) else "undecided"
            yield replace(raised, status=status, reason=f"it cannot be exported: {raised.reason}")
            return
        if program is None or outputs is None:
            yield self._finding(check, "skipped", reason=f"{self.name} has nothing to export to")
            return
        other = self._other_output(check, outputs)
        if other is not None:
            yield replace(other, reason="the exported output differs from the function's")
            return
        try:
            outputs, pullback, _ = self.backend.vjp(lambda *floating: (program(*floating), ()), floating)
            gradients = self.subject.arrays(pullback(self.subject.cast(self.upstream, outputs)))
        except Exception:  # whatever a format says to whom it gives no gradient
            yield self._finding(check, "passed", gradient="refused")
            return
        yield self._carried(check, gradients)

    def _carried(self, check: str, gradients: Arrays) -> Finding:
        """Whether an exported program gave the gradient, none, or another one."""
        pairs = zip(gradients, self.gradient, strict=True)
        found = [
            self._compare(check, number, comparison.elements(came, right)) for number, (came, right) in enumerate(pairs)
        ]
        wrong = [each for each in found if each.status == "failed"]
        if not wrong:
            return replace(found[0], argument=None, error=max(each.error or 0.0 for each in found), gradient="carried")
        if not any(map(_largest, gradients)):
            return self._finding(check, "passed", gradient="absent")
        if not self.is_decorated:  # what is not decorated in it has a gradient in any format
            return self._finding(check, "passed", gradient="in part")
        return replace(wrong[0], reason="the exported program has another gradient than the function")

    def _forward(self) -> Iterator[Finding]:
        check = "forward mode"
        if not self.is_linear:
            yield self._finding(check, "skipped", reason="the rule is not linear in upstream, so it has no transpose")
            return
        for number, point in enumerate(self.points):
            direction = [0 * each for each in self.points]
            direction[number] = random(self.random, point)
            try:
                came = vector(self.subject.tangents(self.points, direction))
            except (NotImplementedError, errors.CapturedVariableError) as error:
                yield replace(self._raised(check, error), status="undecided")
                return
            if self.is_rule:
                # The transpose: <u, J c> = <pull(u), c>.
                terms = vector(self._pull_expected(self.upstream)) * vector(direction)
                pushed, right = float(vector(self.upstream) @ came), float(terms.sum())
                rows = [Row(ALONG, point, pushed, right, size=float(numpy.abs(terms).sum()))]
            else:
                values, margins, _ = self._slope(number, direction[number], self.reference.output, self.upstream)
                named = "number {} of the output"
                if came.size > NUMBERS:
                    came, named = numpy.array([vector(self.upstream) @ came]), "the sum of the output, randomly weighed"
                rows = [
                    Row(named.format(place), direction[number], *numbers)
                    for place, numbers in enumerate(zip(came.tolist(), values.tolist(), margins.tolist(), strict=True))
                ]
            look = None if self.is_rule else functools.partial(self._kink, number, self.reference.output, self.upstream)
            yield self._compare(check, number, rows, look)

    def _memory(self) -> Iterator[Finding]:
        """Whether everything is given back when nobody holds it any more."""
        check = "memory"
        collects = gc.isenabled()
        gc.disable()
        try:
            held = self._held()
            alive = [what for what, each in held if each() is not None]
            if alive:  # for it takes long
                gc.collect()
            lost = [what for what, each in held if each() is not None]
        finally:
            if collects:
                gc.enable()
        if lost:
            reason = f"{_listed(lost)} still there after the call; does the function store what it is given?"
            yield self._finding(check, "failed", reason=reason)
        elif alive:
            reason = f"{_listed(alive)} freed by the garbage collector alone; is there a reference cycle?"
            yield self._finding(check, "failed", reason=reason)
        else:
            yield self._finding(check, "passed")

    def _held(self) -> list[tuple[str, weakref.ref[Any]]]:
        """References to the tensors of one run, forwards and backwards, of which nobody holds one."""
        seen: list[weakref.ref[Any]] = []
        flat, floating = self.subject.watched(seen).bound(self.points)
        outputs, pullback, _ = self.backend.vjp(flat, floating)
        gradients = pullback(self.subject.cast(self.upstream, outputs))
        named = {"an argument": floating, "an output": outputs, "a gradient": gradients}
        found = [
            (what, weakref.ref(each))
            for what, tensors in named.items()
            for each in tensors
            if type(each).__weakrefoffset__  # a number of NumPy's is only a value
        ]
        return [*(("an argument", each) for each in seen), *found]

    # --- findings -----------------------------------------------------------------------------------

    def _compare(
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
        found = functools.partial(self._finding, check, argument=name, tolerance=tolerance)
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

    def _finding(self, check: str, status: str, /, **details: Any) -> Finding:
        return Finding(self.name, check, status, **details)

    def _skip(self, checks: Sequence[str], reason: str, tell: Callable[[Finding], None]) -> None:
        for check in checks:
            tell(self._finding(check, "skipped", reason=reason))

    def _raised(self, check: str, error: Exception) -> Finding:
        """A finding from an exception; one of ours says as data what came, what was expected and the usual cause."""
        ours = _reported(error)
        told = [line.strip() for line in str(ours or error).splitlines() if line.strip()] or ["no message"]
        # TensorFlow puts its own traceback before what happened.
        happened = told[-1] if told[0] == "in user code:" else told[0]
        details = [f"{name}: {getattr(ours, name)}" for name in ("got", "expected") if getattr(ours, name, None)]
        reason = f"{type(error).__name__}: " + "; ".join([happened.removesuffix("."), *details])
        return self._finding(check, "failed", reason=reason, diagnosis=getattr(ours, "cause", None))


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


def _weights(upstream: Sequence[Array]) -> Array:
    """What the numbers of a path are weighed with."""
    weights = vector(upstream)
    return weights if weights.size <= NUMBERS else numpy.ones(1)


def _combine(a: float, first: Arrays, b: float, second: Arrays) -> Arrays:
    return [a * one + b * other for one, other in zip(first, second, strict=True)]


def _fresh(fun: Any) -> Callable[..., Any]:
    """The same function with a code object of its own.

    torch (2.13) compiles the same code for only so many closures, and TensorFlow (2.21) warns of it.
    """
    return FunctionType(fun.__code__.replace(), fun.__globals__, fun.__name__, None, fun.__closure__)


def _largest(array: Array) -> float:
    return float(numpy.abs(array).max(initial=0))


def _listed(names: Sequence[str]) -> str:
    found = list(dict.fromkeys(names))
    return f"{' and '.join(found)} {'is' if len(found) == 1 else 'are'}"
