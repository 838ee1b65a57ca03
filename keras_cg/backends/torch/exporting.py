"""A function in an exported program, which has its output and no gradient.

The programs of torch.export, torch.jit.trace and make_fx keep no rule: torch would use plain differentiation in its
place. So the outputs are detached there, and a warning says so.
"""

from __future__ import annotations

import functools
import sys
import warnings
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

# These have no public names (torch 2.13). Without them, this import fails.
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch._subclasses import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from keras_cg.backends.torch.tensors import (
    constant,
    constant_result,
    is_captured,
    is_floating,
    is_forward_open,
    is_tracing,
    transforms_active,
)
from keras_cg.engine import messages
from keras_cg.engine.contract import Function

_MAPPING = TransformType.Vmap
_REWRITING = ("make_fx, where it rewrites `detach`,", "pass decomposition_table={} or pre_dispatch=True to make_fx")
_DERIVATIVE = ("exporting a derivative", "leave what differentiates out of what is exported")


def without_rule(fun: Function, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Returns the outputs of `fun` for a program that torch.export or torch.jit.trace records."""
    if is_forward_open() or (transforms_active() and not _is_mapping()):
        raise messages.rule_dropped(*_DERIVATIVE, fun.name)
    outputs = fun.start(*tensors)
    results = this.detached(fun.name, *outputs) if outputs else ()
    is_differentiable = torch.is_grad_enabled() and any([tensor.requires_grad for tensor in tensors])
    if is_differentiable and not torch.compiler.is_dynamo_compiling() and not is_tracing():
        return _Refused.apply(results, *tensors)  # type: ignore[no-any-return, no-untyped-call]
    return results


def cut(name: str, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Detaches `outputs` that are not differentiated; in a program that is recorded, they would lose that."""
    return _detached(name, *outputs) if is_captured() else tuple(map(constant, outputs))


class _Refused(torch.autograd.Function):
    """Returns outputs unchanged, and raises where they are differentiated in the trace: the program would be wrong."""

    @staticmethod
    def forward(ctx: Any, outputs: tuple[torch.Tensor, ...], *tensors: torch.Tensor) -> Any:
        ctx.mark_non_differentiable(*[output for output in outputs if not is_floating(output)])
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        raise messages.rule_dropped(*_DERIVATIVE)


# Dynamo could not trace this.
@constant_result
def _is_mapping() -> bool:
    """Whether every running transform is a vmap, which differentiates nothing."""
    return all([level.key() == _MAPPING for level in retrieve_all_functorch_interpreters()])


class _Exporting(ModuleType):
    @functools.cached_property
    def detached(self) -> Any:
        """The function `_detached`, of which Dynamo records a call; it runs when torch.export traces Dynamo's graph.

        It is an attribute because Dynamo evaluates a module's attributes for real. It is made when it is needed,
        because the decorator imports the compiler (torch 2.13), which takes seconds.
        """
        return torch.compiler.allow_in_graph(_detached)  # type: ignore[no-untyped-call]


# The module itself, so that Dynamo reads `detached` as an attribute.
this: Any = sys.modules[__name__]
this.__class__ = _Exporting


def _detached(name: str, *outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns the outputs of a function, detached."""
    mode = get_proxy_mode()
    if is_tracing() or mode is not None:  # else Dynamo only infers shapes
        _warn(name, outputs)
    results = []
    for output in outputs:
        if is_floating(output):
            output = output.detach()
            recorded = () if mode is None else reversed(mode.tracer.graph.nodes)
            # From torch 2.14 on, make_fx records another operation in the place of `detach`, which has a derivative.
            if getattr(next(iter(recorded), None), "target", None) is torch.ops.aten.alias.default:
                raise messages.rule_dropped(*_REWRITING, name)
        results.append(output)
    return tuple(results)


_told: weakref.WeakSet[Any] = weakref.WeakSet()


def _warn(name: str, outputs: Sequence[torch.Tensor]) -> None:
    """Warns once for each program that it will have no gradient."""
    mode = get_proxy_mode()
    # An export has many tracers, but its tensors have one mode.
    programs: list[Any] = [each.fake_mode for each in outputs if isinstance(each, FakeTensor)]
    programs += [] if mode is None else [mode.tracer]
    if not any([program in _told for program in programs]):
        warnings.warn(messages.no_gradient_exported(name), stacklevel=2)
    _told.update(programs)
