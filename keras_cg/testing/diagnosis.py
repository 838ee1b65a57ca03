"""Names the most likely fault of a wrong gradient from the way in which it is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy

from keras_cg.frontend import signature
from keras_cg.frontend.decorator import CustomGradient
from keras_cg.testing.arrays import Array
from keras_cg.testing.inspection import TOLERANCES, Inspection
from keras_cg.testing.subject import Arrays

# The relative difference up to which two gradients count as equal.
SAME = 1e-4

# The largest relative difference of equal gradients, however few digits the dtype has.
ALIKE = 0.05


class _Evidence:
    """The gradients at one point, and the expected ones, which are NaN where they are unknown."""

    def __init__(self, at: Inspection):
        self.at, self.came, self.tolerance = at, at.gradient, TOLERANCES[at.eps]
        self.names, self.expected = at.arguments.names, at.pull_expected(at.upstream)

    def is_same(self, one: Array, other: Array) -> bool:
        """Whether two gradients are equal wherever both are known."""
        return one.shape == other.shape and is_same(one, other, min(10 * self.tolerance, ALIKE))

    def is_mistaken(self, index: int, other: Array) -> bool:
        """Whether the gradient equals `other`, which differs from the expected gradient."""
        return self.is_same(self.came[index], other) and not self.is_same(self.expected[index], other)


def is_same(one: Array, other: Array, tolerance: float = SAME) -> bool:
    """Whether two arrays of one shape are equal wherever both are known; zero equals only zero."""
    known = ~(numpy.isnan(one) | numpy.isnan(other))
    if not known.any():
        return False
    size = max(numpy.abs(one[known]).max(), numpy.abs(other[known]).max())
    return bool(numpy.abs(one[known] - other[known]).max() <= tolerance * size)


def diagnose(at: Inspection, number: int) -> str | None:
    """Returns the most likely fault of the gradient of an argument; None if no known fault matches."""
    evidence = _Evidence(at)
    return next(filter(None, (diagnosis(evidence, number) for diagnosis in DIAGNOSES)), None)


NEGATIVE = "a negative upstream is treated differently: its gradient is not the negative of the gradient for upstream"
CUT = "upstream is detached by the rule (by NumPy, detach, stop_gradient), so there is no forward derivative"
CLIPS = "the rule clips or normalises upstream; if that is intended, declare it with `expected`"


def diagnose_upstream(pull: Callable[[Sequence[Array]], Arrays], upstream: Arrays, index: int) -> str | None:
    """Returns how a rule that is not linear depends on upstream; None if no known fault matches."""
    once, twice, other, minus = (
        pull(each)[index] for each in (upstream, _times(2, upstream), _turned(upstream), _times(-1, upstream))
    )
    if not numpy.any(once):
        return NEGATIVE if numpy.any(minus) else None
    if is_same(once, twice) and is_same(once, other):
        return "upstream forgotten: the rule returns the same gradient for every upstream"
    if is_same(4 * once, twice):
        return "upstream used twice: the gradient grows with the square of upstream"
    nothing = pull(_times(0, upstream))[index]
    if is_same(once - nothing, (twice - nothing) / 2) and numpy.any(nothing):
        return "a term does not depend on upstream: the rule returns a nonzero gradient for an upstream of zero"
    if any(not is_same(factor * once, pull(_times(factor, upstream))[index]) for factor in (32, 1024)):
        return CLIPS
    if is_same(once, minus):
        return "the sign of upstream is lost: the rule returns the same gradient for upstream and its negative"
    if not is_same(-once, minus):
        return NEGATIVE
    return None


ALONE = "a rule that skips work that is needed: look at what it does with `needs_input_grad`, or with `requires_grad`"

EARLIER = (
    "a gradient that depends on earlier calls: the rule uses a value that one of them stored (cache, global, attribute)"
)


def in_steps(at: Inspection, number: int) -> str:
    """Returns the advice for a function without a useful derivative."""
    name = at.arguments.names[number]
    return f"the function does not change with {name} here, or only in steps {_declare(at, number)}"


def in_jumps(at: Inspection, number: int) -> str:
    """Returns the advice for a function that jumps, and also changes in other ways."""
    return f"the function jumps with {at.arguments.names[number]} {_declare(at, number)}"


def _declare(at: Inspection, number: int) -> str:
    """Returns the advice to declare the gradient of an argument, with the line that does so."""
    fun = at.subject.f.__wrapped__ if isinstance(at.subject.f, CustomGradient) else at.subject.f
    found = signature.parameters(fun)
    if found is not None:
        found = found._replace(keyword_only=tuple([name for name in found.keyword_only if name != signature.NEEDS]))
    shown, name = "..." if found is None else found.show("")[1:-1], at.arguments.names[number]
    others = [each for index, each in enumerate(at.gradient) if index != number]
    is_identity = len(at.upstream) == 1 and numpy.array_equal(at.gradient[number], at.upstream[0])
    if is_identity and name.isidentifier() and not any(map(numpy.any, others)):
        line = f"expected=lambda {shown}: {name}"
    else:
        line = f"expected=lambda {shown}: ... (without the steps), or lambda {shown}, upstream: ... (the right rule)"
    return (
        "(rounding, a comparison, a cast); if the gradient differs on purpose, such as that of a straight-through"
        f" estimator, declare the right one: {line}"
    )


def diagnose_higher(came: Array, expected: Array, lower: str) -> str:
    """Returns the most likely fault if a derivative is wrong and the next lower order is right."""
    if not numpy.any(came):
        lost = "its derivative is zero"
    elif is_same(came, 2 * expected):
        lost = "its derivative is twice what it should be"
    else:
        lost = "a part of its derivative is missing"
    return (
        f"a detached intermediate: the {lower} is right, but {lost}, as if the rule used a value that is detached"
        " from the arguments (by NumPy, detach, stop_gradient, or a custom gradient inside it)"
    )


def _times(factor: float, upstream: Arrays) -> Arrays:
    return [factor * each for each in upstream]


def _turned(upstream: Arrays) -> Arrays:
    """Returns the numbers of each array in other places and with other signs."""
    return [-numpy.roll(each, 1) for each in upstream]


def _nothing(evidence: _Evidence, index: int) -> str | None:
    if not numpy.any(evidence.came[index]) and numpy.any(numpy.nan_to_num(evidence.expected[index])):
        return f"no gradient for {evidence.names[index]}: the rule returns zero or None instead of the derivative"
    return None


def _swapped(evidence: _Evidence, index: int) -> str | None:
    for other, name in enumerate(evidence.names):
        if (
            other != index
            and evidence.is_mistaken(index, evidence.expected[other])
            and evidence.is_mistaken(other, evidence.expected[index])
        ):
            return f"the gradients of {evidence.names[index]} and {name} are swapped"
    return None


def _conjugate(evidence: _Evidence, index: int) -> str | None:
    came, expected = evidence.came[index], evidence.expected[index]
    if not numpy.iscomplexobj(came):
        return None
    conjugated = evidence.at.pull_expected([numpy.conj(each) for each in evidence.at.upstream])[index]
    others = (numpy.conj(expected), numpy.conj(conjugated), conjugated)
    if any(evidence.is_mistaken(index, other) for other in others):
        return "a missing conjugate: the gradient of a loss at x + iy is dL/dx + i dL/dy on every backend"
    return None


def _transposed(evidence: _Evidence, index: int) -> str | None:
    came, expected = evidence.came[index], evidence.expected[index]
    jacobian = evidence.at.jacobian(index)
    if jacobian is not None and len(evidence.at.upstream) == 1 and evidence.at.upstream[0].size == came.size:
        pushed = numpy.reshape(evidence.at.upstream[0].ravel() @ jacobian, came.shape)
        if evidence.is_mistaken(index, pushed):
            return "a transposed Jacobian: the rule multiplies upstream with the Jacobian itself, as forward mode would"
    if came.ndim == 2 and came.shape[0] == came.shape[1] and evidence.is_mistaken(index, expected.T):
        return "a transposed gradient: rows and columns are exchanged"
    return None


def _upstream(evidence: _Evidence, index: int) -> str | None:
    return diagnose_upstream(evidence.at.pull, evidence.at.upstream, index)


def _factor(evidence: _Evidence, index: int) -> str | None:
    came, expected = evidence.came[index], evidence.expected[index]
    known = ~numpy.isnan(expected)
    square = float(numpy.sum(numpy.abs(expected[known]) ** 2))
    if square == 0:
        return None
    factor = float(numpy.sum(numpy.real(numpy.conj(expected[known]) * came[known])) / square)
    if abs(factor - 1) <= evidence.tolerance or not evidence.is_same(came, factor * expected):
        return None
    return f"a factor of {_named(factor, evidence)}"


# Factors that are written as fractions.
_FRACTIONS = {0.5: "1/2", -0.5: "-1/2"}


def _named(factor: float, evidence: _Evidence) -> str:
    def is_close(number: float) -> bool:
        return abs(factor - number) <= min(10 * evidence.tolerance, ALIKE) * abs(number)

    if is_close(-1):
        return "-1: a wrong sign" + (
            "" if evidence.at.is_declared else ", or a gradient reversal that `expected` should declare"
        )
    digits = math.ceil(-math.log10(evidence.tolerance))
    name = next((text for number, text in _FRACTIONS.items() if is_close(number)), f"{factor:.{digits}g}")
    shapes = [each.shape for each in (*evidence.at.points, *evidence.at.output)]
    counts = {shape[0]: "the batch size" for shape in shapes if shape}
    for each in (*evidence.came, *evidence.at.upstream):
        counts.setdefault(each.size, "the number of elements")
    # A factor of 2 or 1/2 is common, so a count of two explains nothing.
    counts.pop(2, None)
    for count, what in counts.items():
        if count > 1 and is_close(count):
            return f"{name}, which is {what}: does the function take a mean that the rule leaves out?"
        if count > 1 and is_close(1 / count):
            return f"{name}, which is one over {what}: does the rule take a mean that the function does not?"
    return name


def _flat(evidence: _Evidence, index: int) -> str | None:
    if evidence.at.is_declared or numpy.any(numpy.nan_to_num(evidence.expected[index])):
        return None
    return in_steps(evidence.at, index)


# The most places that a message names.
_NAMED = 3


def _moved(evidence: _Evidence, index: int) -> str | None:
    """Finds a gradient that is right for a moved, averaged or partly ignored upstream, or right in other places."""
    came, expected = evidence.came[index], evidence.expected[index]
    for number in range(len(evidence.at.upstream) if len(evidence.at.upstream) > 1 else 0):
        part = [0 * each if place == number else each for place, each in enumerate(evidence.at.upstream)]
        if evidence.is_mistaken(index, evidence.at.pull_expected(part)[index]):
            return f"output {number} is forgotten: the gradient ignores its upstream"
    for change, text in _CHANGES.items():
        moved = [change(each) if each.ndim else each for each in evidence.at.upstream]
        if evidence.is_mistaken(index, evidence.at.pull_expected(moved)[index]):
            return f"the gradient is right for an upstream that is {text}"
    for change, text in _CHANGES.items():
        if came.ndim and not numpy.isnan(expected).any() and evidence.is_mistaken(index, change(expected)):
            return f"the gradient is {text}"
    if numpy.isnan(expected).any() or evidence.is_same(came, expected):
        return None
    if evidence.is_same(*(numpy.sort(each, axis=None) for each in (came, expected))):
        return "the elements of the gradient are in another order, as if it were transposed and reshaped"
    return None


# Common mistakes with the rows of an array, and their descriptions.
_CHANGES: dict[Callable[[Array], Array], str] = {
    lambda array: numpy.roll(array, 1, 0): "in another order: moved by one row along axis 0",
    lambda array: numpy.roll(array, -1, 0): "in another order: moved back by one row along axis 0",
    lambda array: numpy.flip(array, 0): "in another order: reversed along axis 0",
    lambda array: numpy.flip(array, -1): "in another order: reversed along the last axis",
    lambda array: 0 * array + numpy.mean(array, 0, keepdims=True): "the mean along axis 0 in every row",
}


def _parts(evidence: _Evidence, index: int) -> str | None:
    """Finds a complex gradient without its real or its imaginary part."""
    came, expected = evidence.came[index], evidence.expected[index]
    if numpy.iscomplexobj(came):
        for part, other in ((numpy.real, "imaginary"), (lambda array: 1j * numpy.imag(array), "real")):
            if evidence.is_mistaken(index, part(expected) + 0j):
                return f"the {other} part of the gradient is missing"
    return None


def _some(evidence: _Evidence, index: int) -> str | None:
    """Names the wrong elements if others are right."""
    came, expected = evidence.came[index], evidence.expected[index]
    known = ~numpy.isnan(expected)
    size = float(numpy.abs(expected[known]).max(initial=0))
    allowed = 10 * evidence.tolerance * numpy.maximum(numpy.abs(expected), 1e-3 * size)
    is_wrong = known & (numpy.abs(came - expected) > allowed)
    wrong = numpy.argwhere(is_wrong)
    if not 0 < len(wrong) < known.sum():
        return None
    details = f"{_by(came[is_wrong], expected[is_wrong])}{_where(evidence, index, is_wrong, known)}"
    for axis in range(came.ndim if came.ndim > 1 else 0):
        places = sorted({int(each[axis]) for each in wrong})
        whole = numpy.zeros(came.shape, bool)
        whole[(slice(None),) * axis + (places,)] = True
        if len(places) < min(came.shape[axis], _NAMED + 1) and numpy.array_equal(is_wrong, whole & known):
            rows = f"row {_and(places)}" if axis == 0 else f"index {_and(places)} along axis {axis}"
            return f"wrong only in {rows} of {came.shape[axis]}{details}"
    named = [str(list(map(int, each))) for each in wrong[:_NAMED]] + ["..."] * (len(wrong) > _NAMED)
    return f"wrong in only {len(wrong)} of {known.sum()} elements: {', '.join(named)}{details}"


def _by(came: Array, expected: Array) -> str:
    """Describes the factor between wrong and right numbers, if all have the same."""
    if not numpy.all(expected) or not numpy.any(came):
        return ""
    factors = numpy.real(came / expected)
    return f"; by a factor of {factors[0]:.6g}" if numpy.ptp(factors) <= SAME * abs(factors[0]) else ""


def _where(evidence: _Evidence, index: int, is_wrong: Array, known: Array) -> str:
    """Describes the values of the argument in the places of a wrong gradient, if no other place has such values."""
    name, point = evidence.names[index], evidence.at.points[index]
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


# A fault that explains the whole gradient comes before a fault that explains a part of it.
DIAGNOSES = (_upstream, _nothing, _swapped, _conjugate, _transposed, _factor, _flat, _parts, _moved, _some)
