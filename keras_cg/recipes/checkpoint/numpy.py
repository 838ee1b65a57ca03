"""A function that runs again in the backward pass, on NumPy with autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autograd.core import VJPNode
from autograd.extend import Box
from autograd.tracer import new_box, trace_stack

from keras_cg.engine.contract import Tensors
from keras_cg.recipes.checkpoint import generic
from keras_cg.recipes.checkpoint.function import OutputFunction


def recompute(fun: OutputFunction, tensors: Sequence[Any]) -> Tensors:
    """A custom gradient whose rule is the vjp of another run, with the boxes that `fun` captures as arguments."""
    boxes = list(fun.captures(lambda value: isinstance(value, Box) and fun.backend.is_tensor(value)))
    if not boxes:
        return generic.recompute(fun, tensors)
    count = len(tensors)

    def run(*values: Any) -> Tensors:
        # Each box gets another value for the length of a run, because the function may read it anywhere.
        before = [(box._value, box._trace, box._node) for box in boxes]
        with trace_stack.new_trace() as level:
            for box, value in zip(boxes, values[count:], strict=True):
                other = value if isinstance(value, Box) else new_box(value, level, VJPNode.new_root())
                box._value, box._trace, box._node = other._value, other._trace, other._node
            try:
                outputs = fun.late(*values[:count])
            finally:
                for box, (value, trace, node) in zip(boxes, before, strict=True):
                    box._value, box._trace, box._node = value, trace, node
        # Without boxes of `level`, which ends with this run.
        return tuple([each._value if getattr(each, "_trace", None) == level else each for each in outputs])

    return generic.attach(fun, run, [*tensors, *boxes])
