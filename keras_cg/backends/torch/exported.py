"""A function in a program that leaves Python: its output, and no gradient.

torch keeps no rule in the programs that torch.export, torch.jit.trace and make_fx make, and would differentiate in its
place what the function computed. So the outputs are detached there, and a warning says so.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import torch

# What writes operations down, and which transforms run, have no public names (torch 2.13). If one of these is gone,
# importing this file fails, and with it the backend.
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch._subclasses import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from keras_cg.backends.torch.tensors import is_captured, is_floating, is_forward_open, is_tracing, transforms_active
from keras_cg.engine import messages
from keras_cg.engine.contract import Function

_MAPPING = TransformType.Vmap


def attach(fun: Function, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """As `attach.attach`, in what torch.export or torch.jit.trace writes down."""
    if is_forward_open() or (transforms_active() and not _is_mapping()):
        raise messages.rule_dropped(
            "exporting a derivative",
            "leave what differentiates out of what is exported",
        )
    outputs, _ = fun(*tensors)
    results = _detached(fun.name, *outputs) if outputs else ()
    is_differentiable = torch.is_grad_enabled() and any([tensor.requires_grad for tensor in tensors])
    if is_differentiable and not torch.compiler.is_dynamo_compiling() and not is_tracing():
        return _Refused.apply(results, *tensors)  # type: ignore[no-any-return, no-untyped-call]
    return results


def cut(name: str, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """`outputs` that are not differentiated: in what is written down as well, if something is."""
    if not is_captured():
        return tuple(outputs)
    if get_proxy_mode() is not None:
        _warn(name, outputs)
    return tuple([output if output.requires_grad or not is_floating(output) else output.detach() for output in outputs])


class _Refused(torch.autograd.Function):
    """Outputs as they are, which refuse to be differentiated while they are traced: the program would be wrong."""

    @staticmethod
    def forward(ctx: Any, outputs: tuple[torch.Tensor, ...], *tensors: torch.Tensor) -> Any:
        ctx.mark_non_differentiable(*[output for output in outputs if not is_floating(output)])
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        raise messages.rule_dropped("exporting a derivative", "leave what differentiates out of what is exported")


# Dynamo takes what this says for a constant.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_mapping() -> bool:
    """Whether every transform that is running is a vmap, which differentiates nothing."""
    return all([level.key() == _MAPPING for level in retrieve_all_functorch_interpreters()])


# Dynamo leaves a call of this in its graph, and it runs when torch.export traces that.
@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def _detached(name: str, *outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The outputs of a function without what they were computed from."""
    if is_tracing() or get_proxy_mode() is not None:  # else Dynamo asks only what comes out
        _warn(name, outputs)
    return tuple([output.detach() if is_floating(output) else output for output in outputs])


_told: weakref.WeakSet[Any] = weakref.WeakSet()


def _warn(name: str, outputs: Sequence[torch.Tensor]) -> None:
    """Says once for each program that there will be no gradient."""
    mode = get_proxy_mode()
    # The tensors of an export have one mode, however many tracers it has.
    programs: list[Any] = [each.fake_mode for each in outputs if isinstance(each, FakeTensor)]
    programs += [] if mode is None else [mode.tracer]
    if not any([program in _told for program in programs]):
        warnings.warn(messages.no_gradient_exported(name), stacklevel=2)
    _told.update(programs)
