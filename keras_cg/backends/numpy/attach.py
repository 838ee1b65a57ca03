"""Attaches a rule to the outputs of a function, by a primitive of autograd that returns them."""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy
from autograd.extend import Box, defvjp_argnums, primitive, vspace
from autograd.tracer import trace_stack

from keras_cg.backends.numpy.tensors import asarray, boxes, conjugate, innermost, unboxed
from keras_cg.engine import linear, messages
from keras_cg.engine.contract import Function, Tensors


def attach(fun: Function, tensors: Sequence[Any]) -> Tensors:
    """Runs `fun` once, on plain arrays; an output that is in a box all the same depends on a captured value.

    Here and in the backward pass there are loops in the place of comprehensions, which cost a frame each.
    """
    inputs, levels = unboxed(tensors)
    outputs = fun.start(*inputs)
    fun.note()
    for output in outputs:
        if isinstance(output, Box):
            raise _captured(fun, outputs, tensors)
    if not levels:
        return outputs  # type: ignore[no-any-return]
    call = SavedCall(fun, outputs, levels)
    if call.is_alone:
        return (custom_gradient(call, outputs[0], *tensors),)
    # autograd has no vector space of integers, so they do not pass through the primitive.
    floating = [*itertools.compress(outputs, call.floating)]
    boxed = custom_gradient(call, floating[0] if call.is_single else tuple(floating), *tensors)
    arriving = iter((boxed,) if call.is_single else boxed)
    return tuple([next(arriving) if is_real else each for each, is_real in zip(outputs, call.floating, strict=True)])


def _captured(fun: Function, outputs: Tensors, tensors: Sequence[Any]) -> Exception:
    """Returns the error for outputs that depend on a captured value."""
    sources = {*_ancestors([output._node for output in outputs if isinstance(output, Box)])}
    values = [*fun.captures(lambda value: isinstance(value, Box) and value._node in sources)]
    error = messages.argument_also_captured(fun.name, values, tensors)
    if error is None:
        fun.capture(["(a value that autograd differentiates)"] * max(len(values), 1), values)
        error = messages.unserved_variables("numpy", "a closure over it, or a global.", fun)
    return error


class SavedCall:
    """One call for the backward pass of each level of differentiation that an argument is in."""

    def __init__(self, run: Function, outputs: Tensors, levels: set[int]):
        self.run, self.levels = run, levels
        # autograd numbers its levels from the outermost on, and uses the number of one that is over again.
        self.highest = trace_stack.top
        self.floating, self.outputs = [], []
        for output in outputs:
            self.floating.append(output.dtype.kind in "fc")
            if isinstance(output, numpy.ndarray):
                # Weakly: an output that the rule does not refer to can be freed.
                self.outputs.append(weakref.ref(output))
        # Whether there is one output that is differentiated; and none beside it.
        self.is_single = self.floating.count(True) == 1
        self.is_alone = self.is_single and len(outputs) == 1
        # Strongly only what autograd does not keep for a rule that takes the output.
        pairs = zip(outputs, self.floating, strict=True) if run.takes_output else ()
        self.integers = pairs and [output for output, is_real in pairs if not is_real]

    def pull(self, argnums: Sequence[int], parents: Sequence[Any], ans: Any, upstream: Any) -> list[Any]:
        """Returns the gradients of the arguments of the primitive at `argnums`; the parents begin at 2.

        `ans` is what the primitive returned, if the rule takes the output.
        """
        # The caller's own may be a number of Python.
        if self.is_alone:
            cotangents = [conjugate(asarray(upstream))]
        else:
            arriving = iter((upstream,) if self.is_single else upstream)
            cotangents = [conjugate(asarray(next(arriving))) if is_real else None for is_real in self.floating]
        outer, needs_grad, shared = -1, [], set()
        for place, parent in enumerate(parents, 2):
            needs_grad.append(place in argnums)
            shared.add(_owner(parent))
            if isinstance(parent, Box) and parent._trace > outer:
                outer = parent._trace
        level: Any = None
        for each in self.levels:
            if each > outer and (level is None or each < level):
                level = each
        if level is None:
            raise messages.lost_count(self.run.name)
        is_over = trace_stack.top < level
        # A derivative inside the rule must not get the number of a level that is over, and that the rule has boxes of.
        added = max(self.highest - trace_stack.top, 0)
        trace_stack.top += added
        try:
            outputs = self._whole(ans) if self.run.takes_output else None
            # The function runs again, on values that the outer level differentiates.
            run = self.run if outer < 0 else self._again(parents, cotangents, needs_grad, outputs)
            found = run.pull(cotangents, (), needs_grad, None, outputs)[0]
        finally:
            trace_stack.top -= added
        for output in self.outputs:
            shared.add(_owner(output()))
        gradients = []
        for argnum in argnums:
            gradient = found[argnum - 2]
            if isinstance(gradient, Box) and is_over:
                gradient = _below(level, gradient)
            elif isinstance(gradient, Box):
                self._refuse_others(level, gradient, cotangents)
            if gradient is None:
                gradients.append(vspace(parents[argnum - 2]).zeros())
            else:
                # The user may change a gradient, which must not change an argument or an output.
                owner = _owner(gradient)
                gradient = gradient.copy() if owner and owner in shared else gradient
                gradients.append(conjugate(gradient))
        return gradients

    def _whole(self, ans: Any) -> list[Any]:
        """Returns all outputs, as the level has them that differentiates the gradient."""
        arriving, integers = iter((ans,) if self.is_single else ans), iter(self.integers)
        return [next(arriving if is_real else integers) for is_real in self.floating]

    def _again(
        self, parents: Sequence[Any], cotangents: list[Any], needs_grad: list[bool], outputs: list[Any] | None
    ) -> Any:
        """Returns another run, whose rule is that of the first."""
        _, run = self.run.repeat(*map(asarray, parents))
        shapes = [None if each is None else asarray(innermost(each)) for each in cotangents]
        irregular = functools.partial(linear.irregular, sys.modules[__package__], shapes)
        self.run.check(run, lambda each: each.pull(irregular(), (), needs_grad, None, outputs)[0])
        return self.run.repeat(*map(asarray, parents))[1] if run.is_used_up else run

    def _refuse_others(self, level: int, gradient: Any, cotangents: Sequence[Any]) -> None:
        """Raises if a gradient hangs on a level that is over, whose number another one has by now.

        All boxes of that level, and of those above, must come from upstream.
        """
        known = {box._node for each in cotangents for box in boxes(each)}
        if not all([_is_from(box._node, known) for box in boxes(gradient) if box._trace >= level]):
            raise messages.lost_capture(
                f"the rule of {self.run.name}",
                "a value that was differentiated together with an argument, in forward mode or in a pullback.",
                "autograd cannot tell it from what is differentiated now",
            )


def _below(level: int, gradient: Any) -> Any:
    """Returns a gradient without the boxes of a level that is over, and of those above."""
    while isinstance(gradient, Box) and gradient._trace >= level:
        gradient = gradient._value
    return gradient


def _ancestors(nodes: Sequence[Any], known: Iterable[Any] = ()) -> Iterator[Any]:
    """Yields nodes of autograd, and those that they were computed from; not `known` ones, nor what is behind these."""
    waiting, seen = [*nodes], {*known}
    while waiting:
        if (node := waiting.pop()) not in seen:
            seen.add(node)
            yield node
            waiting += getattr(node, "parents", ())


def _is_from(node: Any, known: set[Any]) -> bool:
    """Whether a node of autograd was computed from `known` nodes of its level alone."""
    # A node of forward mode has no list of parents; there autograd itself cannot mix levels.
    return all(getattr(each, "parents", True) for each in _ancestors([node], known))


# One primitive for all calls: autograd (1.9) never frees a primitive.
@primitive  # type: ignore[untyped-decorator]
def custom_gradient(call: SavedCall, outputs: Any, *parents: Any) -> Any:
    """Returns the outputs of a call, whose gradient is its rule."""
    return outputs


def _vjps(argnums: Sequence[int], ans: Any, args: Sequence[Any], kwargs: Any) -> Callable[[Any], Sequence[Any]]:
    # Else autograd would keep the output for as long as the gradient may be asked for.
    return functools.partial(args[0].pull, argnums, args[2:], ans if args[0].run.takes_output else None)


defvjp_argnums(custom_gradient, _vjps)


def _owner(array: Any) -> int:
    """Returns what identifies the array that has the memory of another one; 0 for anything else.

    All memory that is none of NumPy's counts as one: it does not tell where it comes from.
    """
    if not isinstance(array, numpy.ndarray):
        return 0
    while isinstance(base := array.base, numpy.ndarray):
        array = base
    return id(array if base is None else None)
