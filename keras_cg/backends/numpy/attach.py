"""Attaches a rule to the outputs of a function, by a primitive of autograd that returns them."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy
from autograd.extend import Box, defvjp_argnums, primitive, vspace
from autograd.tracer import trace_stack

from keras_cg.backends.numpy.tensors import asarray, boxes, conjugate, innermost, is_floating, unboxed
from keras_cg.engine import linear, messages
from keras_cg.engine.contract import Function, Tensors


def attach(fun: Function, tensors: Sequence[Any]) -> Tensors:
    """Runs `fun` once, on plain arrays; an output that is in a box all the same depends on a captured value."""
    inputs, levels = unboxed(tensors)
    outputs = fun.start(*inputs)
    fun.note()
    if any([isinstance(output, Box) for output in outputs]):
        sources = {*_ancestors([output._node for output in outputs if isinstance(output, Box)])}
        values = [*fun.captures(lambda value: isinstance(value, Box) and value._node in sources)]
        error = messages.argument_also_captured(fun.name, values, tensors)
        if error is not None:
            raise error
        fun.capture(["(a value that autograd differentiates)"] * max(len(values), 1), values)
        raise messages.unserved_variables("numpy", "a closure over it, or a global.", fun)
    if not levels:
        return outputs  # type: ignore[no-any-return]
    call = SavedCall(fun, outputs, levels)
    # autograd has no vector space of integers, so they do not pass through the primitive.
    pairs = [*zip(outputs, call.floating, strict=True)]
    floating = [output for output, is_real in pairs if is_real]
    boxed = custom_gradient(call, floating[0] if len(floating) == 1 else tuple(floating), *tensors)
    arriving = iter((boxed,) if len(floating) == 1 else boxed)
    return tuple([next(arriving) if is_real else output for output, is_real in pairs])


class SavedCall:
    """One call for the backward pass of each level of differentiation that an argument is in."""

    def __init__(self, run: Function, outputs: Tensors, levels: set[int]):
        self.run, self.levels = run, levels
        # autograd numbers its levels from the outermost on, and uses the number of one that is over again.
        self.highest = trace_stack.top
        self.floating = [is_floating(output) for output in outputs]
        # Strongly only what autograd does not keep for a rule that takes the output.
        pairs = zip(outputs, self.floating, strict=True) if run.takes_output else ()
        self.integers = [output for output, is_real in pairs if not is_real]
        # Weakly: an output that the rule does not refer to can be freed.
        self.outputs = [weakref.ref(output) for output in outputs if isinstance(output, numpy.ndarray)]

    def pull(self, argnums: Sequence[int], parents: Sequence[Any], ans: Any, upstream: Any) -> list[Any]:
        """Returns the gradients of the arguments of the primitive at `argnums`; the parents begin at 2.

        `ans` is what the primitive returned, if the rule takes the output.
        """
        arriving = iter((upstream,) if self.floating.count(True) == 1 else upstream)
        # The caller's own may be a number of Python.
        cotangents = [conjugate(asarray(next(arriving))) if is_real else None for is_real in self.floating]
        outer = max([parent._trace for parent in parents if isinstance(parent, Box)], default=-1)
        if max(self.levels) <= outer:
            raise messages.lost_count(self.run.name)
        level = min([level for level in self.levels if level > outer])
        is_over = trace_stack.top < level
        places = [argnum - 2 for argnum in argnums]
        needs_grad = [place in places for place in range(len(parents))]
        # A derivative inside the rule must not get the number of a level that is over, and that the rule has boxes of.
        added = max(self.highest - trace_stack.top, 0)
        trace_stack.top += added
        try:
            outputs = self._whole(ans) if self.run.takes_output else None
            found = self._gradients(parents, cotangents, needs_grad, outputs)
        finally:
            trace_stack.top -= added
        gradients = [found[place] for place in places]
        if is_over:
            gradients = [_below(level, gradient) for gradient in gradients]
        else:
            self._refuse_others(level, gradients, cotangents)
        shared = [*parents, *[output() for output in self.outputs]]
        return [_for_autograd(each, parents[place], shared) for place, each in zip(places, gradients, strict=True)]

    def _whole(self, ans: Any) -> list[Any]:
        """Returns all outputs, as the level has them that differentiates the gradient."""
        arriving, integers = iter((ans,) if self.floating.count(True) == 1 else ans), iter(self.integers)
        return [next(arriving if is_real else integers) for is_real in self.floating]

    def _gradients(
        self, parents: Sequence[Any], cotangents: list[Any], needs_grad: list[bool], outputs: list[Any] | None
    ) -> Tensors:
        run = self.run
        if any([isinstance(parent, Box) for parent in parents]):
            # The function runs again, on values that the outer level differentiates.
            _, run = self.run.repeat(*map(asarray, parents))
            shapes = [None if each is None else asarray(innermost(each)) for each in cotangents]
            this_backend: Any = sys.modules[__package__]
            irregular = functools.partial(linear.irregular, this_backend, shapes)
            self.run.check(run, lambda each: each.pull(irregular(), (), needs_grad, None, outputs)[0])
            if run.is_used_up:
                _, run = self.run.repeat(*map(asarray, parents))
        return run.pull(cotangents, (), needs_grad, None, outputs)[0]  # type: ignore[no-any-return]

    def _refuse_others(self, level: int, gradients: Sequence[Any], cotangents: Sequence[Any]) -> None:
        """Raises if a gradient hangs on a level that is over, whose number another one has by now.

        All boxes of that level, and of those above, must come from upstream.
        """
        known = {box._node for each in cotangents for box in boxes(each)}
        found = [box for gradient in gradients for box in boxes(gradient) if box._trace >= level]
        if not all([_is_from(box._node, known) for box in found]):
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


def _for_autograd(gradient: Any, parent: Any, shared: Sequence[Any]) -> Any:
    """Returns a gradient as autograd wants it: zeros for None, a copy of an array that shares its memory."""
    if gradient is None:
        return vspace(parent).zeros()
    if isinstance(gradient, numpy.ndarray):
        for each in shared:
            if isinstance(each, numpy.ndarray) and numpy.may_share_memory(gradient, each):
                return conjugate(gradient.copy())
    return conjugate(gradient)
