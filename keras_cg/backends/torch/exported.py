"""A function in a program that leaves Python: its output, and no gradient.

torch keeps no rule in the programs that torch.export and make_fx make, and would differentiate in its place what the
function computed. So the outputs are cut there: with a gradient switched off, which leaves no operation behind, where
torch keeps that; else by a detach, in place where nobody else holds the output, since torch drops that one when it
decomposes the program.
"""

from __future__ import annotations

import operator
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import torch

# The stack of the running transforms, and what an operation that is traced gave, have no public names (torch 2.13). If
# one of these is gone, importing this file fails, and with it the backend.
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

from keras_cg import errors
from keras_cg.backends.torch.tensors import is_captured, is_floating, transforms_active
from keras_cg.engine.contract import Function

_switch = torch._C._set_grad_enabled
_MAPPING = TransformType.Vmap
_COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd
_BEFORE = "train before exporting, or keep the rule by torch.compile"


def attach(fun: Function, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """As `attach.attach`, in what torch.export traces, by Dynamo or without it."""
    if transforms_active():
        if not _is_mapping():
            raise errors.rule_dropped(
                "torch.export around a transform of torch.func", "leave what differentiates out of what is exported"
            )
        outputs = fun(*_begin(fun.name, False, *tensors))[0]
        return tuple([output.detach() if is_floating(output) else output for output in outputs])
    is_on = torch.is_grad_enabled()
    inputs: Sequence[torch.Tensor] = _begin(fun.name, is_on, *tensors) if tensors else ()
    if is_on:
        with torch.no_grad():
            outputs = fun(*inputs)[0]
            results = _end(fun.name, bool(tensors), *outputs) if outputs else ()
    else:
        # Without a region: inside a Function, where the gradient is off, torch (2.13) would write down its end alone.
        outputs = fun(*inputs)[0]
        results = _end(fun.name, bool(tensors), *outputs) if outputs else ()
    if is_on and not torch.compiler.is_dynamo_compiling() and any([tensor.requires_grad for tensor in tensors]):
        return _Refused.apply(results, *tensors)  # type: ignore[no-any-return, no-untyped-call]
    return results


def cut(name: str, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """`outputs` that nobody differentiates, in what is written down as well, if somebody does that."""
    if not is_captured():
        return tuple(outputs)
    mode = get_proxy_mode()
    if mode is not None:
        _warn(name, mode.tracer, outputs)
    return tuple([output if output.requires_grad or not is_floating(output) else output.detach() for output in outputs])


# Dynamo takes what this says for a constant.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_mapping() -> bool:
    """Whether every transform that is running is a vmap, which differentiates nothing."""
    return all([level.key() == _MAPPING for level in retrieve_all_functorch_interpreters()])


class _Refused(torch.autograd.Function):
    """Outputs as they are, which refuse to be differentiated while they are traced."""

    @staticmethod
    def forward(ctx: Any, outputs: tuple[torch.Tensor, ...], *tensors: torch.Tensor) -> Any:
        ctx.mark_non_differentiable(*[output for output in outputs if not is_floating(output)])
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        raise errors.rule_dropped("torch.export of a gradient", "leave what differentiates out of what is exported")


class _Trace:
    """What is known of one trace.

    Attributes:
        is_kept: Whether a region without a gradient is one in the program, too: torch (2.13) leaves out each whose
            gradient is as it was when the export began.
        starts: How many operations there were when each of the functions that are running began.
    """

    def __init__(self) -> None:
        self.is_kept: bool | None = None
        self.starts: list[int] = []


_traces: weakref.WeakKeyDictionary[Any, _Trace] = weakref.WeakKeyDictionary()
_told: weakref.WeakSet[Any] = weakref.WeakSet()


def _trace(tracer: Any) -> _Trace:
    return _traces.setdefault(tracer, _Trace())


def _warn(name: str, tracer: Any, tensors: Sequence[torch.Tensor]) -> None:
    """Says once that there will be no gradient; the tensors of an export have one mode, however many tracers it has."""
    wholes = [tracer, *(tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor))]
    if not any([whole in _told for whole in wholes]):
        warnings.warn(errors.no_gradient_exported(name, _BEFORE), stacklevel=2)
    _told.update(wholes)


# Dynamo leaves a call of these two in its graph, and they run when torch.export traces that.
@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def _begin(name: str, is_on: bool, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Notes where a function begins."""
    mode = get_proxy_mode()
    if mode is not None:
        trace, nodes = _trace(mode.tracer), mode.tracer.graph.nodes
        _warn(name, mode.tracer, tensors)
        if trace.is_kept is None:
            trace.is_kept = is_on and not any(node.target is _switch for node in nodes)
        trace.starts.append(len(nodes))
    return tensors


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def _end(name: str, is_begun: bool, *outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The outputs of a function, cut."""
    mode = get_proxy_mode()
    if mode is None:  # Dynamo asks what comes out
        return outputs
    trace, nodes = _trace(mode.tracer), list(mode.tracer.graph.nodes)
    _warn(name, mode.tracer, outputs)
    made = nodes[trace.starts.pop() :] if is_begun else []
    results = []
    for output in outputs:
        node = get_proxy_slot(output, mode.tracer, None, lambda slot: slot.proxy.node)
        if not is_floating(output) or (trace.is_kept and _is_new(node) and _is_switched_off(nodes, node)):
            results.append(output)
        elif node in made and _is_new(node) and not _is_view(node):
            results.append(output.detach_())
        else:
            results.append(output.detach())
    return tuple(results)


# Operations that are made of others, and yet return no argument as it is, as dropout does where it drops nothing.
_MAKING = frozenset(
    (
        *("conv1d", "conv2d", "conv3d", "layer_norm", "linear", "log_sigmoid", "log_softmax", "matmul", "outer"),
        *("reshape", "rms_norm", "selu", "softmax", "square"),
    )
)


def _made_by(node: torch.fx.Node | None) -> tuple[OpOverload | None, int]:
    """The operation that a node stands for, and which of its results; None if it is no operation of torch."""
    index = 0
    if node is not None and node.target is operator.getitem:
        node, index = node.args  # type: ignore[assignment]
    return (node.target, index) if node is not None and isinstance(node.target, OpOverload) else (None, 0)


def _is_new(node: torch.fx.Node | None) -> bool:
    """Whether what stands at a node is another object than each argument of its operation."""
    operation, _ = _made_by(node)
    if operation is None or operation._schema.is_mutable:
        return False
    if operation._schema.name == "aten::to":  # which returns what has that dtype already
        before, after = [each.meta["val"].dtype for each in (*node.all_input_nodes[:1], node)]  # type: ignore[union-attr]
        return bool(before != after)
    is_composed = operation.has_kernel_for_dispatch_key(_COMPOSED)
    return not is_composed or operation._schema.name.removeprefix("aten::") in _MAKING


def _is_view(node: torch.fx.Node | None) -> bool:
    """Whether what stands at a node may share its memory, so that torch does not detach it in place."""
    operation, index = _made_by(node)
    if operation is None or operation._schema.name == "aten::to":
        return operation is None
    return operation._schema.returns[index].alias_info is not None


def _is_switched_off(nodes: Sequence[torch.fx.Node], node: torch.fx.Node | None) -> bool:
    """Whether a node stands where gradients are switched off."""
    is_off = False
    for other in nodes:
        if other.target is _switch:
            is_off = not other.args[0]
        if other is node:
            return is_off
    return False
