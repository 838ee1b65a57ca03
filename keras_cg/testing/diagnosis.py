"""What a wrong gradient looks like, and so what its fault most likely is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy

from keras_cg.testing.arrays import Array

Arrays = list[Array]

# Two gradients that differ by no more are taken for the same, relative to the largest number.
SAME = 1e-4

# However few digits there are, gradients that differ by more are not alike.
ALIKE = 0.05


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Of one point: what the rule gives for any upstream, and what it should.

    Attributes:
        names: The differentiated arguments.
        points: Their values.
        upstream: One array for each floating output.
        came: What the rule gives for it, one array for each argument.
        expected: What it should give; NaN where nobody looked.
        tolerance: What the two may differ by, relative to the largest number.
        pull: What the rule gives for any upstream.
        pull_expected: What it should give.
        jacobians: The derivative of all outputs, as one row of real numbers, with respect to each argument, or None.
        shapes: The shapes of all arguments and outputs.
        is_declared: Whether the rule is compared with what somebody said that it should be.
    """

    names: list[str]
    points: Arrays
    upstream: Arrays
    came: Arrays
    expected: Arrays
    tolerance: float
    pull: Callable[[Sequence[Array]], Arrays]
    pull_expected: Callable[[Sequence[Array]], Arrays]
    jacobians: list[Array | None]
    shapes: list[tuple[int, ...]]
    is_declared: bool

    def is_same(self, one: Array, other: Array) -> bool:
        """Whether two gradients are equal wherever both are known."""
        return one.shape == other.shape and is_same(one, other, min(10 * self.tolerance, ALIKE))

    def is_mistaken(self, index: int, other: Array) -> bool:
        """Whether the gradient is `other` in the place of the right one, and the two can be told apart."""
        return self.is_same(self.came[index], other) and not self.is_same(self.expected[index], other)


def is_same(one: Array, other: Array, tolerance: float = SAME) -> bool:
    """Whether two arrays of one shape are equal wherever both are known; nothing equals nothing but itself."""
    known = ~(numpy.isnan(one) | numpy.isnan(other))
    if not known.any():
        return False
    size = max(numpy.abs(one[known]).max(), numpy.abs(other[known]).max())
    return bool(numpy.abs(one[known] - other[known]).max() <= tolerance * size)


def diagnose(evidence: Evidence, index: int) -> str | None:
    """What is most likely wrong with the gradient of the argument number `index`."""
    for look in LOOKS:
        found = look(evidence, index)
        if found is not None:
            return found
    return None


NEGATIVE = "a negative upstream is treated otherwise: the rule for it is not the negative of that for upstream"
CUT = "upstream is detached: the rule cuts it (by NumPy, detach, stop_gradient), so it has no forward derivative"
CLIPS = "a rule that clips or normalises upstream; if it is meant to, declare it by `expected`"


def diagnose_upstream(pull: Callable[[Sequence[Array]], Arrays], upstream: Arrays, index: int) -> str | None:
    """How a rule that is not linear depends on upstream."""
    once, twice, other, minus = (
        pull(each)[index] for each in (upstream, _times(2, upstream), _turned(upstream), _times(-1, upstream))
    )
    if not numpy.any(once):
        return NEGATIVE if numpy.any(minus) else None
    if is_same(once, twice) and is_same(once, other):
        return "upstream forgotten: the rule gives the same for every upstream"
    if is_same(4 * once, twice):
        return "upstream used twice: the gradient grows with the square of upstream"
    nothing = pull(_times(0, upstream))[index]
    if is_same(once - nothing, (twice - nothing) / 2) and numpy.any(nothing):
        return "something is added that does not depend on upstream: the rule gives a gradient for an upstream of zero"
    if any(not is_same(factor * once, pull(_times(factor, upstream))[index]) for factor in (32, 1024)):
        return CLIPS
    if is_same(once, minus):
        return "the sign of upstream is lost: the rule gives the same for upstream and its negative"
    if not is_same(-once, minus):
        return NEGATIVE
    return None


EARLIER = (
    "a gradient that depends on earlier calls: the rule uses what one of them kept, in a cache, a global, an attribute"
)


def diagnose_higher(came: Array, expected: Array, lower: str) -> str:
    """What is most likely wrong if a higher order is, and the one below is right."""
    if not numpy.any(came):
        lost = "its derivative is zero"
    elif is_same(came, 2 * expected):
        lost = "its derivative is twice what it should be"
    else:
        lost = "a part of its derivative is missing"
    return (
        f"a detached intermediate: the {lower} is right, but {lost}, as if the rule used a value that was cut from the"
        " arguments (by NumPy, detach, stop_gradient, or a custom gradient inside it)"
    )


def _times(factor: float, upstream: Arrays) -> Arrays:
    return [factor * each for each in upstream]


def _turned(upstream: Arrays) -> Arrays:
    """The same numbers, each one elsewhere, and of other signs."""
    return [-numpy.roll(each, 1) for each in upstream]


def _nothing(evidence: Evidence, index: int) -> str | None:
    if not numpy.any(evidence.came[index]) and numpy.any(numpy.nan_to_num(evidence.expected[index])):
        return f"no gradient for {evidence.names[index]}: the rule gives zero or None where there is one"
    return None


def _swapped(evidence: Evidence, index: int) -> str | None:
    for other, name in enumerate(evidence.names):
        if (
            other != index
            and evidence.is_mistaken(index, evidence.expected[other])
            and evidence.is_mistaken(other, evidence.expected[index])
        ):
            return f"the gradients of {evidence.names[index]} and {name} are swapped"
    return None


def _conjugate(evidence: Evidence, index: int) -> str | None:
    came, expected = evidence.came[index], evidence.expected[index]
    if not numpy.iscomplexobj(came):
        return None
    conjugated = evidence.pull_expected([numpy.conj(each) for each in evidence.upstream])[index]
    others = (numpy.conj(expected), numpy.conj(conjugated), conjugated)
    if any(evidence.is_mistaken(index, other) for other in others):
        return "a missing conjugate: the gradient of a loss at x + iy is dL/dx + i dL/dy on every backend"
    return None


def _transposed(evidence: Evidence, index: int) -> str | None:
    came, expected = evidence.came[index], evidence.expected[index]
    jacobian = evidence.jacobians[index]
    if jacobian is not None and len(evidence.upstream) == 1 and evidence.upstream[0].size == came.size:
        pushed = numpy.reshape(evidence.upstream[0].ravel() @ jacobian, came.shape)
        if evidence.is_mistaken(index, pushed):
            return "a transposed Jacobian: the rule multiplies upstream with the Jacobian itself, as forward mode would"
    if came.ndim == 2 and came.shape[0] == came.shape[1] and evidence.is_mistaken(index, expected.T):
        return "a transposed gradient: rows and columns are exchanged"
    return None


def _upstream(evidence: Evidence, index: int) -> str | None:
    return diagnose_upstream(evidence.pull, evidence.upstream, index)


def _factor(evidence: Evidence, index: int) -> str | None:
    came, expected = evidence.came[index], evidence.expected[index]
    known = ~numpy.isnan(expected)
    square = float(numpy.sum(numpy.abs(expected[known]) ** 2))
    if square == 0:
        return None
    factor = float(numpy.sum(numpy.real(numpy.conj(expected[known]) * came[known])) / square)
    if abs(factor - 1) <= evidence.tolerance or not evidence.is_same(came, factor * expected):
        return None
    return f"a factor of {_named(factor, evidence)}"


# How factors are written that are no decimal fractions to anybody.
_FRACTIONS = {0.5: "1/2", -0.5: "-1/2"}


def _named(factor: float, evidence: Evidence) -> str:
    def is_close(number: float) -> bool:
        return abs(factor - number) <= min(10 * evidence.tolerance, ALIKE) * abs(number)

    if is_close(-1):
        return "-1: a wrong sign" + ("" if evidence.is_declared else ", or a reversal that `expected` should declare")
    digits = math.ceil(-math.log10(evidence.tolerance))
    name = next((text for number, text in _FRACTIONS.items() if is_close(number)), f"{factor:.{digits}g}")
    counts = {shape[0]: "the batch size" for shape in evidence.shapes if shape}
    for each in (*evidence.came, *evidence.upstream):
        counts.setdefault(each.size, "the number of elements")
    # Every second factor is 2 or 1/2, whatever there are two of.
    counts.pop(2, None)
    for count, what in counts.items():
        if count > 1 and is_close(count):
            return f"{name}, which is {what}: does the function take a mean that the rule leaves out?"
        if count > 1 and is_close(1 / count):
            return f"{name}, which is one over {what}: does the rule take a mean that the function does not?"
    return name


def _flat(evidence: Evidence, index: int) -> str | None:
    if evidence.is_declared or numpy.any(numpy.nan_to_num(evidence.expected[index])):
        return None
    return (
        f"the function does not change with {evidence.names[index]} here; if the rule is meant to differ, as a"
        " straight-through estimator does, declare what it should be by `expected`"
    )


# How many places are named.
_NAMED = 3


def _moved(evidence: Evidence, index: int) -> str | None:
    """What is right, for an upstream that was moved, averaged or forgotten in part, or in other places."""
    came, expected = evidence.came[index], evidence.expected[index]
    for number in range(len(evidence.upstream) if len(evidence.upstream) > 1 else 0):
        part = [0 * each if place == number else each for place, each in enumerate(evidence.upstream)]
        if evidence.is_mistaken(index, evidence.pull_expected(part)[index]):
            return f"output {number} is forgotten: the gradient is as if no upstream arrived there"
    for change, told in _CHANGES.items():
        moved = [change(each) if each.ndim else each for each in evidence.upstream]
        if evidence.is_mistaken(index, evidence.pull_expected(moved)[index]):
            return f"the gradient is right for an upstream that is {told}"
    for change, told in _CHANGES.items():
        if came.ndim and not numpy.isnan(expected).any() and evidence.is_mistaken(index, change(expected)):
            return f"the gradient is {told}"
    if numpy.isnan(expected).any() or evidence.is_same(came, expected):
        return None
    if evidence.is_same(*(numpy.sort(each, axis=None) for each in (came, expected))):
        return "the elements of the gradient are in another order, as if it were transposed and reshaped"
    return None


# How rows are moved by mistake, and what that is called.
_CHANGES: dict[Callable[[Array], Array], str] = {
    lambda array: numpy.roll(array, 1, 0): "in another order: moved by one row along axis 0",
    lambda array: numpy.roll(array, -1, 0): "in another order: moved back by one row along axis 0",
    lambda array: numpy.flip(array, 0): "in another order: reversed along axis 0",
    lambda array: numpy.flip(array, -1): "in another order: reversed along the last axis",
    lambda array: 0 * array + numpy.mean(array, 0, keepdims=True): "the mean along axis 0 in every row",
}


def _parts(evidence: Evidence, index: int) -> str | None:
    """A complex gradient of which one part is missing."""
    came, expected = evidence.came[index], evidence.expected[index]
    if numpy.iscomplexobj(came):
        for part, other in ((numpy.real, "imaginary"), (lambda array: 1j * numpy.imag(array), "real")):
            if evidence.is_mistaken(index, part(expected) + 0j):
                return f"the {other} part of the gradient is missing"
    return None


def _some(evidence: Evidence, index: int) -> str | None:
    """Which elements are wrong, if others are right."""
    came, expected = evidence.came[index], evidence.expected[index]
    known = ~numpy.isnan(expected)
    size = float(numpy.abs(expected[known]).max(initial=0))
    allowed = 10 * evidence.tolerance * numpy.maximum(numpy.abs(expected), 1e-3 * size)
    is_wrong = known & (numpy.abs(came - expected) > allowed)
    wrong = numpy.argwhere(is_wrong)
    if not 0 < len(wrong) < known.sum():
        return None
    told = f"{_by(came[is_wrong], expected[is_wrong])}{_where(evidence, index, is_wrong, known)}"
    for axis in range(came.ndim if came.ndim > 1 else 0):
        places = sorted({int(each[axis]) for each in wrong})
        whole = numpy.zeros(came.shape, bool)
        whole[(slice(None),) * axis + (places,)] = True
        if len(places) < min(came.shape[axis], _NAMED + 1) and numpy.array_equal(is_wrong, whole & known):
            rows = f"row {_and(places)}" if axis == 0 else f"index {_and(places)} along axis {axis}"
            return f"wrong only in {rows} of {came.shape[axis]}{told}"
    named = [str(list(map(int, each))) for each in wrong[:_NAMED]] + ["..."] * (len(wrong) > _NAMED)
    return f"wrong in only {len(wrong)} of {known.sum()} elements: {', '.join(named)}{told}"


def _by(came: Array, expected: Array) -> str:
    """The factor that some numbers are off by, if it is one for all of them."""
    if not numpy.all(expected) or not numpy.any(came):
        return ""
    factors = numpy.real(came / expected)
    return f"; by a factor of {factors[0]:.6g}" if numpy.ptp(factors) <= SAME * abs(factors[0]) else ""


def _where(evidence: Evidence, index: int, is_wrong: Array, known: Array) -> str:
    """What the argument has in common in the places where its gradient is wrong, and nowhere else."""
    name, point = evidence.names[index], evidence.points[index]
    if numpy.iscomplexobj(point):
        return ""
    wrong, right = point[is_wrong], point[known & ~is_wrong]
    if (wrong < 0).all() and (right >= 0).all():
        return f"; only where {name} is negative"
    if (wrong > 0).all() and (right <= 0).all():
        return f"; only where {name} is positive"
    if numpy.abs(wrong).max() < numpy.abs(right).min():
        return f"; only where {name} is close to zero, in the middle or at the edge of the domain"
    if wrong.min() > right.max() or wrong.max() < right.min() or numpy.abs(wrong).min() > numpy.abs(right).max():
        return f"; only where {name} is largest or smallest, at the edge of the domain"
    return ""


def _and(parts: Sequence[object]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, parts[:-1])), str(parts[-1])]))


# In this order: what explains all of a gradient comes before what explains a part.
LOOKS = (_upstream, _nothing, _swapped, _conjugate, _transposed, _factor, _flat, _parts, _moved, _some)
