"""What must come out: closed forms of the zoo, differentiated by central differences in float64.

For complex numbers all of it is real arithmetic on (Re, Im): the loss is `sum Re(conj(w) output)`, and a gradient is
`dL/dRe + i dL/dIm`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from conformance.zoo import ZOO, Arrays, Rule

# Five-point central differences: https://en.wikipedia.org/wiki/Five-point_stencil
STENCIL = ((-2, 1 / 12), (-1, -8 / 12), (1, 8 / 12), (2, -1 / 12))
STEP = 1e-2


def inner(a: Arrays, b: Arrays) -> float:
    """The real inner product of two lists of arrays."""
    return sum(float(np.sum(np.real(np.conj(left) * right))) for left, right in zip(a, b, strict=True))


def along(function: Callable[[Arrays], Arrays], arrays: Arrays, direction: Arrays) -> Arrays:
    """The derivative of `function` at `arrays` in a direction."""
    total: Arrays | None = None
    for place, weight in STENCIL:
        moved = [array + place * STEP * part for array, part in zip(arrays, direction, strict=True)]
        found = [weight / STEP * each for each in function(moved)]
        total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
    assert total is not None
    return total


def basis(arrays: Arrays) -> list[tuple[int, tuple[int, ...], complex, Arrays]]:
    """Every unit direction, those along the imaginary axis included."""
    found = []
    for index, array in enumerate(arrays):
        units = (1.0, 1j) if np.iscomplexobj(array) else (1.0,)
        for place in np.ndindex(array.shape):
            for unit in units:
                direction = [np.zeros_like(each) for each in arrays]
                direction[index][place] = unit
                found.append((index, place, unit, direction))
    return found


def gradient(function: Callable[[Arrays], float], arrays: Arrays) -> Arrays:
    """The gradient of a real function of arrays."""
    found = [np.zeros_like(array) for array in arrays]
    for index, place, unit, direction in basis(arrays):
        (slope,) = along(lambda arrays: [np.asarray(function(arrays))], arrays, direction)
        found[index][place] += unit * slope
    return found


class Case:
    """A rule at its point, with fixed random weights and directions."""

    def __init__(self, rule: Rule):
        generator = np.random.default_rng(len(rule.name))
        self.rule = rule
        self.dtype = rule.arrays[0].dtype
        self.arrays = [wide(array) for array in rule.arrays]
        self.outputs = rule.output(*self.arrays)

        def like(arrays: Arrays) -> Arrays:
            # Rounded to what the framework gets, and away from the kinks of rules that clip.
            return [self.narrow(random(generator, array)).astype(array.dtype) for array in arrays]

        self.weights = like(self.outputs)
        self.c, self.d = like(self.arrays), like(self.arrays)

    def narrow(self, array: np.ndarray) -> np.ndarray:
        """As the framework gets it."""
        real = {"float16": "float16"}.get(str(self.dtype), "float32")
        return np.asarray(array).astype("complex64" if np.iscomplexobj(array) else real)

    def first_at(self, arrays: Arrays, weights: Arrays) -> Arrays:
        return self.rule.gradient(*arrays, weights)

    def second_at(self, arrays: Arrays, weights: Arrays, c: Arrays) -> Arrays:
        if self.rule.second is not None:
            return self.rule.second(arrays, weights, c)
        return gradient(lambda arrays: inner(c, self.first_at(arrays, weights)), arrays)

    # Each of these is what a kind of transform must give.

    def value(self) -> Arrays:
        return self.outputs

    def first(self) -> Arrays:
        return self.first_at(self.arrays, self.weights)

    def rows(self) -> Arrays:
        """The Jacobian of real outputs, weighted: first, but for rules that are not linear."""
        found = [np.zeros_like(array) for array in self.arrays]
        for index, place, unit, direction in basis(self.outputs):
            if unit == 1:
                row = self.first_at(self.arrays, direction)
                found = [a + self.weights[index][place] * b for a, b in zip(found, row, strict=True)]
        return found

    def second(self) -> Arrays:
        """The gradient of <c, first>."""
        return self.second_at(self.arrays, self.weights, self.c)

    def third(self) -> Arrays:
        """The gradient of <d, second>."""
        return gradient(lambda arrays: inner(self.d, self.second_at(arrays, self.weights, self.c)), self.arrays)

    def composite(self) -> Arrays:
        """The gradient of <c, gradient of sum w |output|^2>: the upstream depends on the arguments, too."""

        def upstream(outputs: Arrays) -> Arrays:
            return [2 * np.real(weight) * output for weight, output in zip(self.weights, outputs, strict=True)]

        through_rule = self.second_at(self.arrays, upstream(self.outputs), self.c)
        arriving = gradient(
            lambda outputs: inner(self.c, self.first_at(self.arrays, upstream(outputs))), list(self.outputs)
        )
        return [a + b for a, b in zip(through_rule, self.first_at(self.arrays, arriving), strict=True)]

    def tangent(self) -> Arrays:
        """The forward derivative along c: the transpose of the rule."""
        found = [np.zeros_like(output) for output in self.outputs]
        for index, place, unit, direction in basis(self.outputs):
            found[index][place] += unit * inner(self.first_at(self.arrays, direction), self.c)
        return found

    def along(self) -> Arrays:
        """The derivative of first along c."""
        if self.rule.second is not None:
            return self.second()  # such rules work on each element for itself
        return along(lambda arrays: self.first_at(arrays, self.weights), self.arrays, self.c)

    def batched(self) -> Arrays:
        """First for a batch of two points."""
        return [
            np.stack(each) for each in zip(*(self.first_at(point, self.weights) for point in self.batch()), strict=True)
        ]

    def batch(self) -> list[Arrays]:
        return [self.arrays, [wide(self.narrow(array + 0.03)) for array in self.arrays]]


def wide(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(complex if np.iscomplexobj(array) else float)


def random(generator: np.random.Generator, array: np.ndarray) -> np.ndarray:
    found = generator.uniform(0.2, 1.5, array.shape) * generator.choice([-1, 1], array.shape)
    if np.iscomplexobj(array):
        return found + 1j * generator.uniform(0.2, 1.5, array.shape)
    return found


@functools.cache
def case(name: str) -> Case:
    return Case(ZOO[name])


@functools.cache
def expected(name: str, kind: str) -> Arrays:
    return getattr(case(name), kind)()
