"""The rule while torch.jit.trace runs, which keeps a Function as a call of Python that the traced module makes again.

So the function runs again in that call, on other data, and its rule is the one of that run. Nothing of the first run
may stay in what is called: tensors that the function closes over are arguments of the call, as its own are.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree

# What checks a trace has no public name (torch 2.13), nor what is traced, nor what the tracer knows of a tensor, nor
# how it is told to wait. If one of these is gone, importing this file fails, and with it the backend.
from torch._C import _get_tracing_state, _get_value_trace, _set_tracing_state  # type: ignore[attr-defined]
from torch.jit import _trace
from torch.overrides import TorchFunctionMode

from keras_cg import errors
from keras_cg.backends import torch as own
from keras_cg.backends.torch.recorded import aliases, backward, captured
from keras_cg.backends.torch.replayed import Replay, run, sequence_number, surroundings
from keras_cg.backends.torch.tensors import (
    describe,
    integers,
    is_floating,
    is_forward_open,
    is_tracing,
    saveable,
    transforms_active,
)
from keras_cg.engine.again import Run
from keras_cg.engine.contract import Function, Pullback

_CHECK = _trace._check_trace.__wrapped__.__code__  # type: ignore[attr-defined]
_trace._trace_module_map  # noqa: B018


def attach(fun: Function, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """As `attach.attach`, while torch.jit.trace runs.

    Where nobody differentiates, the operations of `fun` are traced, so that the program can be saved; it has no
    gradient there.
    """
    if transforms_active() or is_forward_open():
        raise errors.rule_dropped("torch.jit.trace around a transform of torch.func, or in forward mode", _OUTSIDE)
    choices = _choices()
    is_kept = _is_differentiated(tensors) if choices.is_open else choices.next()
    if not is_kept:
        outputs, _ = fun(*tensors)
        is_kept = choices.is_open and _is_differentiated(outputs)
        if is_kept:
            fun = fun.anew()
    if choices.is_open:
        choices.made.append(is_kept)
    if is_kept:
        return _kept(fun, tensors)
    if choices.is_open and not choices.is_told:
        choices.is_told = True
        warnings.warn(errors.no_gradient_exported(fun.name, _REQUIRING), stacklevel=2)
    return tuple([output.detach() if is_floating(output) else output for output in outputs])


_OUTSIDE = "trace the function, and differentiate what was traced"
_REQUIRING = "trace with gradients on, an example that requires one, or parameters that do; but what is saved has none"


class _Choices(threading.local):
    """Of the calls in a trace of this thread, one after the other, which keep the rule.

    torch traces a second time, without a gradient, to compare, and must find the same there.

    Attributes:
        state: The tracer's own of the trace; kept, so that no other gets its identity.
        is_open: Whether this is no second trace.
        is_told: Whether it was said that there is no gradient.
    """

    state: Any = None
    is_open = True
    is_told = False

    def __init__(self) -> None:
        self.made: list[bool] = []
        self.left: list[bool] = []

    def begin(self, state: Any) -> None:
        """For a trace that begins."""
        self.state, self.is_open, self.is_told = state, not _is_checking(), False
        if self.is_open:
            self.made = []
        self.left = self.made[::-1]

    def next(self) -> bool:
        """What was chosen for the call before."""
        return bool(self.left) and self.left.pop()


_known = _Choices()


def _choices() -> _Choices:
    """Those of the trace that runs."""
    state = _get_tracing_state()
    if _known.state is not state:
        _known.begin(state)
    return _known


def _is_checking() -> bool:
    """Whether torch traces a second time."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _CHECK:
        frame = frame.f_back
    return frame is not None


def _is_differentiated(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether somebody differentiates one of `tensors`, or will, since what is traced has something to train.

    ONNX differentiates nothing, whatever mode is on.
    """
    if torch.onnx.is_in_onnx_export() or not torch.is_grad_enabled():
        return False
    root = (_trace._trace_module_map or {}).get("__module")
    parameters = [] if root is None else [*root.parameters()]
    return any([tensor.requires_grad for tensor in (*tensors, *parameters)])


def _kept(fun: Function, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The outputs of a call that keeps the rule."""
    taken = fun.held(torch.is_tensor).movable()
    given = [*tensors, *taken.tensors]
    call = _Call(fun, len(tensors), taken.build, len(given))
    with _waiting(), _Reads() as reads:
        ran = call.run(fun, given)
    known = {*map(id, given)}
    # What the function did not read its rule may; but a module has what it was given for something else, too.
    reached = [tensor for tensor in fun.reached((torch.nn.Module,)) if id(tensor) not in known]
    for tensor in (*reads.strangers(given, ran.used), *reached):
        if _get_value_trace(tensor).node().kind() not in _LASTING:
            with _waiting():
                raise errors.traced_elsewhere(fun.name, f"a {describe(tensor)}")
    call.first = ran
    results: tuple[torch.Tensor, ...] = _Traced.apply(call, *given, *ran.others)  # type: ignore[no-untyped-call]
    return results


# What the tracer knows of the arguments, the parameters and the buffers of what it traces, and of constants.
_LASTING = frozenset(("prim::Param", "prim::GetAttr", "prim::TracedAttr", "prim::Constant"))


class _Ran(NamedTuple):
    """A run.

    Attributes:
        kept: What is kept of it.
        outputs: What it gave, cut from the graph.
        variables: The places of what it captured among the arguments of the call.
        others: What it captured and is no argument yet.
        used: What it gave, and what the rule holds.
    """

    kept: Run
    outputs: Sequence[torch.Tensor]
    variables: list[int]
    others: list[torch.Tensor]
    used: Sequence[torch.Tensor]


class _Call:
    """What a traced module calls: a function, without the tensors of any run."""

    def __init__(self, fun: Function, count: int, build: Any, total: int):
        self.fun, self.count, self.build, self.total = fun, count, build, total
        # The run that is there already when the call is traced.
        self.first: _Ran | None = None

    def __repr__(self) -> str:
        # torch compares the text of the program with that of another trace.
        return _name(self.fun)

    def run(self, fun: Function, given: Sequence[torch.Tensor]) -> _Ran:
        """A run of `fun`, on values cut from the graph.

        Args:
            fun: The function, around what it closes over.
            given: The arguments of the call: those of the function, what it closes over, and what else it captures.
        """
        inputs = [tensor.detach() for tensor in given[: self.count]]
        seen, start = surroundings(inputs), sequence_number()
        with torch.enable_grad():
            outputs, pullback = run(fun, inputs)
            variables, others = self._captured(fun, outputs, start, pullback, given)
        kept = Run(own, Replay(fun, seen), inputs, pullback)
        cut = [output.detach() for output in outputs]
        return _Ran(kept, cut, variables, others, [*outputs, *kept.held])

    def again(self, given: Sequence[torch.Tensor]) -> _Ran:
        """A run in a traced module."""
        ran = self.run(self.build(given[self.count : self.total]).anew(), given)
        if ran.others:
            raise errors.unserved_variables("torch", "in what torch.jit.trace made")
        return ran

    def _captured(
        self,
        fun: Function,
        outputs: Sequence[torch.Tensor],
        start: int,
        pullback: Pullback,
        given: Sequence[torch.Tensor],
    ) -> tuple[list[int], list[torch.Tensor]]:
        """The places of what was captured, and what of it is not among `given`, whose places come behind them."""
        if not any([output.requires_grad for output in outputs]):
            return [], []
        variables = captured(fun, outputs, start, pullback)
        pullback.capture([describe(variable) for variable in variables])
        known = {id(tensor): place for place, tensor in enumerate(given)}
        others: list[torch.Tensor] = []
        for variable in variables:
            if id(variable) not in known:
                known[id(variable)] = len(given) + len(others)
                others.append(variable)
        return [known[id(variable)] for variable in variables], others


class _Traced(torch.autograd.Function):
    """A run, with the rule as the gradient of its outputs."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *given: torch.Tensor) -> Any:
        ran, call.first = call.first, None
        if ran is None:
            ran = call.again(given)
        inputs = given[: call.count]
        ctx.kept, ctx.variables = ran.kept, ran.variables
        ctx.save_for_backward(*inputs, *saveable(ran.kept.held), *[given[place] for place in ran.variables])
        ran.kept.held = []
        outputs = aliases(ran.outputs, inputs)
        ctx.mark_non_differentiable(*integers(outputs))
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        if is_tracing():
            # The tracer does not know what the rule holds, and would keep it for good.
            raise errors.rule_dropped("torch.jit.trace of a gradient", _OUTSIDE)
        needs, count, variables = ctx.needs_input_grad[1:], ctx.kept.count, ctx.variables
        gradients = backward(ctx, cotangents, [*needs[:count], *[needs[place] for place in variables]])
        collected = dict(zip([*range(count), *variables], gradients, strict=True))
        return (None, *[collected.get(place) for place in range(len(needs))])


class _Reads(TorchFunctionMode):
    """Notices what a function reads besides what it is given, and what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[int, torch.Tensor] = {}
        # Kept, so that nothing else takes over an identity.
        self.made: dict[int, torch.Tensor] = {}

    def strangers(self, given: Sequence[torch.Tensor], used: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What was read, or is `used`, and was neither given nor made."""
        known = {*map(id, given), *self.made}
        return [tensor for tensor in (*self.read.values(), *used) if id(tensor) not in known]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        result = func(*args, **(kwargs or {}))
        self.read |= {id(value): value for value in given if id(value) not in self.made}
        made = [value for value in pytree.tree_leaves(result) if isinstance(value, torch.Tensor)]
        self.made |= {id(value): value for value in made if id(value) not in self.read}
        return result


def _name(fun: Function) -> str:
    """How a traced program shows the call."""
    return f"<custom_gradient {fun.name}>"


@contextlib.contextmanager
def _waiting() -> Iterator[None]:
    """Lets the tracer wait, so that a run has numbers for shapes, and warns of nothing that it does with values."""
    state = _get_tracing_state()
    _set_tracing_state(None)
    try:
        yield
    finally:
        _set_tracing_state(state)
