"""Finds faults outside the formula of a rule: dependence on earlier calls, steps, jumps and low precision."""

from __future__ import annotations

import math

import numpy

from keras_cg.testing import staircases
from keras_cg.testing.arrays import vector
from keras_cg.testing.diagnosis import EARLIER, in_jumps, in_steps
from keras_cg.testing.inspection import INSIDE, TOLERANCES, Inspection
from keras_cg.testing.report import Finding
from keras_cg.testing.subject import epsilon

# The number of step sizes to try: 1, 0.1 and so on. A third of upstream is a multiple of none of them.
STEPS = 5

# The tolerance of a whole number of steps.
COUNTED = 1e-3


def cause(at: Inspection, number: int, found: Finding) -> str | None:
    """Finds a fault outside the formula of the rule: dependence on earlier calls, steps, or low precision."""
    return history(at, number) or steps(at, number) or coarse_rule(at, found)


def history(at: Inspection, number: int) -> str | None:
    """Diagnoses a gradient that depends on earlier calls."""
    at.pull([2 * numpy.flip(each) for each in at.upstream])
    now = at.pull(at.upstream)
    is_other = at.difference([at.gradient[number]], [now[number]], [""]) is not None
    return EARLIER if is_other else None


def steps(at: Inspection, number: int) -> str | None:
    """Diagnoses a gradient that is rounded to steps, for upstream and for a third of it."""
    whole, third = (vector([at.pull([each / part for each in at.upstream])[number]]) for part in (1, 3))
    if numpy.array_equal(whole, third):
        return None
    for power in range(STEPS):
        counts = 10.0**power * numpy.concatenate([whole, third])
        if 16 * epsilon(at.subject.dtypes) * numpy.abs(counts).max() > COUNTED:  # rounding alone has steps
            return None
        if (numpy.abs(counts - numpy.round(counts)) <= COUNTED).all():
            return f"the gradient is rounded to steps of {10.0**-power:g}"
    return None


def coarse_rule(at: Inspection, found: Finding) -> str | None:
    """Diagnoses a rule whose only fault is that it computes in a lower precision than the function."""
    # An overflow has an infinite error.
    if found.error is None or max(TOLERANCES.values()) < found.error < math.inf:
        return None
    grain = at.grain_of_rule
    if not grain or TOLERANCES[grain] < found.error < math.inf:
        return None
    at.is_rule_coarse = True
    return f"a lower precision inside: the rule computes in {INSIDE[grain]}, and the function does not"


def advice(at: Inspection, number: int) -> str | None:
    """Advises to declare the gradient of a function that changes with an argument in steps; None if it does not.

    Another output may change in another way. If the output has steps in one argument, it may jump with another.
    """
    if at.is_declared or at.is_other_in_double:
        return None
    outputs = range(len(at.output) if len(at.output) > 1 else 0)
    is_in_steps = (
        at.is_staircase(number)
        or any(at.is_in_steps(number, at.subject, leaf) for leaf in outputs)
        or at.has_jumps(number)
    )
    return in_steps(at, number) if is_in_steps else None


def advice_for_jumps(at: Inspection, number: int) -> str | None:
    """Advises to declare the gradient of a function that jumps, and changes in other ways, too; None for others.

    A quantiser whose scale depends on the data is such a function.
    """
    if at.is_declared or at.is_other_in_double:
        return None
    is_jumping = at.is_jumping(number, staircases.CLOSE_BY) or at.is_jumping(number, staircases.THROUGH_ZERO)
    return in_jumps(at, number) if is_jumping else None
