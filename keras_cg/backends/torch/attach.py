"""The rule in eager mode: a Function returns outputs that were computed before, and calls the rule in its backward.

- Forward: the function runs once, on detached arguments; `Attached` gives its outputs a node of autograd.
- Backward without `create_graph`: the rule of that run is called, and dropped unless the graph is kept.
- Backward with `create_graph`: the function runs again, on the saved arguments, which are on the graph. Its rule must
  be the first one; it is called, and autograd records what it computes.

`attach_in_any_engine` chooses the file for torch's other engines: no Function works in two of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from keras_cg.backends.torch import capturing, compiling, exporting, transforms
from keras_cg.backends.torch.saved import SavedCall, existing, is_changed
from keras_cg.backends.torch.tensors import (
    OTHERS,
    autocasts,
    constant,
    hooks,
    integers,
    is_autocast,
    is_compiling,
    is_forward_open,
    is_tracing,
    keeps_graph,
    probe,
    saveable,
    sequence_number,
    storage_of,
    transforms_active,
    uncompiled,
    unwrap_if_dead,
)
from keras_cg.engine import messages
from keras_cg.engine.contract import Function


@uncompiled
def attach(fun: Function, tensors: Sequence[torch.Tensor], is_special: bool = False) -> tuple[torch.Tensor, ...]:
    """Returns the outputs of `fun`, with the rule as their gradient.

    It runs once, on detached tensors; an output that requires a gradient then depends on a captured tensor.
    """
    if fun.engine == OTHERS and not is_special:
        return attach_in_any_engine(fun, tensors)
    is_differentiated, saved = False, tensors
    for tensor in tensors:
        if tensor.requires_grad:
            is_differentiated = True
        elif tensor.is_inference():  # autograd cannot save it, and it does not tell when it is changed
            saved = [tensor.clone() if tensor.is_inference() else tensor for tensor in saved]
    inputs, watched, start, fun.look = [], [], sequence_number(), existing
    for tensor in saved:
        if is_differentiated:
            tensor = tensor.detach()
        inputs.append(tensor)
        watched.append((tensor, tensor._version))
    try:
        outputs = fun.start(*inputs)
    except RuntimeError as error:
        capturing.explain(error, fun)
        raise
    for tensor, before in watched:
        if tensor._version != before:
            raise messages.changed_argument(fun.name)
    has_captured = False
    for output in outputs:
        if output.requires_grad:
            has_captured = True
    if is_special and is_forward_open() and any(map(transforms.is_dual, outputs)):
        # The function captured a value that forward mode differentiates; the transform runs it again, and finds that.
        return transforms.with_transforms(fun, saved)
    if not is_differentiated and not has_captured:
        return exporting.cut(fun.name, outputs) if is_special else outputs
    fun.note()
    if has_captured:
        variables = capturing.captured(fun, inputs, outputs, start)
        capturing.check(fun, tensors, variables)
        saved = [*saved, *saveable(variables)]
        if not is_differentiated and not variables:
            return exporting.cut(fun.name, outputs)
    call = SavedCall(fun, tensors, watched, outputs)
    if has_captured:
        call.is_direct = False
    if not is_special:
        return _apply((call, outputs, ()), *saved)  # type: ignore[no-any-return]
    call.autocasts = autocasts(tensors) if is_autocast() else ()
    saved = [*map(unwrap_if_dead, saved)]
    residuals = call.outlined(tensors, inputs, saved, outputs) if hooks(False) is not None else ()
    return _apply((call, outputs, residuals), *saved)  # type: ignore[no-any-return]


def attach_in_any_engine(fun: Function, tensors: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Attaches the rule in any state of torch.

    This is one function, because torch.compile (2.13) resumes after a graph break at an inner function, which would not
    know that it is compiled.
    """
    if is_compiling():
        fun.is_traced = True
        if compiling.is_exporting():
            return exporting.without_rule(fun, tensors)
        return compiling.with_compiler(fun, tensors) if torch.is_grad_enabled() else fun.start(*tensors)
    if is_tracing():
        return exporting.without_rule(fun, tensors)
    if transforms_active() or is_forward_open():
        if not torch.is_grad_enabled() and not transforms.is_forward(tensors):
            outputs = fun.alone(*tensors)
            if not any(map(transforms.is_dual, outputs)):
                return tuple(map(constant, outputs))
            return transforms.with_transforms(fun, saveable(tensors))
        if transforms_active() or any(map(transforms.is_dual, tensors)):
            return transforms.with_transforms(fun, saveable(tensors))
    if not torch.is_grad_enabled():
        return exporting.cut(fun.name, fun.start(*tensors))
    return attach(fun, tensors, True)  # type: ignore[no-any-return]


class Attached(torch.autograd.Function):
    """Returns outputs that were computed before, with the rule as their gradient."""

    @staticmethod
    def forward(ctx: Any, computed: tuple[SavedCall, Any, Any], *tensors: torch.Tensor) -> Any:
        call, outputs, residuals = computed
        ctx.call = call
        ctx.save_for_backward(*tensors, *residuals)
        if call.is_simple:
            # A rule that captures an output would be in a reference cycle through the output's node.
            return tuple([output.detach() for output in outputs])
        sharing = {storage_of(tensor): tensor for tensor in tensors[: call.number]}
        sharing.pop(0, None)
        results, known = [], set()
        for output in outputs:
            storage = storage_of(output)
            base = sharing.get(storage)
            if base is not None and output.dtype == base.dtype and output.is_conj() == base.is_conj():
                # A view of the argument for autograd, which then notices a change in place of either.
                result = base.as_strided(output.size(), output.stride(), output.storage_offset())
            elif (call.outputs and output.is_inference()) or storage in known:
                # autograd cannot save an inference tensor, nor notice a change in place of another output.
                result = output.clone()
            else:
                result = output.detach()
            known |= {storage} - {0}
            results.append(result)
        ctx.mark_non_differentiable(*integers(results))
        if call.outputs:
            ctx.save_for_backward(*tensors, *residuals, *results)
        return tuple(results)

    @staticmethod
    @uncompiled
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        call, needs_grad, is_recorded = ctx.call, ctx.needs_input_grad[1:], torch.is_grad_enabled()
        if is_dynamo_compiling():
            # Compiled autograd traces this function, for which no tensor has a version or a place in memory.
            saved, count, stop = ctx.saved_tensors, call.number, len(needs_grad)
            extras = saved[:count], call.outputs_of(saved)
            gradients, others = call.run.pull(cotangents, saved[count:stop], needs_grad[:count], *extras)
            return (None, *gradients, *others)
        if call is None:
            return ctx.saved_tensors  # they are gone as well, and torch says so
        try:
            for tensor, before in call.watched:
                if tensor._version != before:
                    call.refuse_changes()
                    break
        except RuntimeError:  # an inference tensor has no version
            if is_changed(call.watched):
                call.refuse_changes()
        run, variables, arguments, outputs = call.run, (), None, None
        if is_recorded or not call.is_direct:
            # Read once: a checkpoint recomputes saved tensors only once. A rule that is called with the function's
            # arguments gets the caller's own tensors, and not detached ones.
            saved, residuals = ctx.saved_tensors, ()
            arguments, count = saved, call.number
            if len(saved) > count:
                stop = len(needs_grad)
                arguments, variables, needs_grad = saved[:count], saved[count:stop], needs_grad[:count]
                residuals, outputs = saved[stop : len(saved) - call.outputs], call.outputs_of(saved)
            if is_recorded or call.facts is not None:
                inputs = arguments if is_recorded else [tensor.detach() for tensor in arguments]
                probed = functools.partial(probe, cotangents, variables, needs_grad, outputs=outputs)
                run = call.again(inputs, residuals, probed)
        pull = run.pull
        if call.reads is not None and not is_recorded:
            pull = functools.partial(_read, call.reads, pull)
        try:
            if call.written:
                with call.guard():
                    gradients, others = pull(cotangents, variables, needs_grad, arguments, outputs)
            else:
                gradients, others = pull(cotangents, variables, needs_grad, arguments, outputs)
        except RuntimeError as error:
            if "One of the differentiated Tensors does not require grad" not in str(error):
                raise
            raise messages.detached_argument(call.run.name) from error
        gradients = call.copied(gradients, arguments or ())
        if not keeps_graph():
            # The function, too: a variable from outside may lead to the output, and so to this node.
            ctx.call = None
        return (None, *gradients, *others)


# The C part of `Function.apply`. The Python part (torch 2.13) looks for transforms and dead wrappers, as is done above,
# and for a `setup_context`, which is not here: 3 of 37 us.
_apply: Callable[..., Any] = super(torch.autograd.Function, Attached).apply


# --- what the backward pass asks -------------------------------------------------------------------------------------


def _read(reads: list[bool], pull: Callable[..., Any], *args: Any) -> Any:
    """Pulls cotangents back, and notes for each gradient whether it hangs on what only the rule reads."""
    with torch.enable_grad():
        parts = pull(*args)
    reads += [tensor.requires_grad for part in parts for tensor in part if tensor is not None]
    # Not all of them: `detach` would also drop the tangents of forward mode.
    return [[each.detach() if each is not None and each.requires_grad else each for each in part] for part in parts]
