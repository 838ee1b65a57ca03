"""The short way: a call as most are, served by what is known of its site and of the form of its rule.

What most calls do stands here in plain loops, and in one frame for the forward and one for the backward pass: frames of
Python are most of what a decorated function costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch
from torch.autograd import forward_ad

from keras_cg.backends import torch as own
from keras_cg.backends.torch.attach import aliases, backward, copied, record
from keras_cg.backends.torch.compiled import straight as traced
from keras_cg.backends.torch.replayed import Surroundings, changed, may_draw, replay, sequence_number, surroundings
from keras_cg.backends.torch.steady import Steady
from keras_cg.backends.torch.tensors import (
    PRE_DISPATCH,
    dispatch_modes,
    dynamo_callback,
    is_included,
    is_tracing,
    transforms_active,
)
from keras_cg.engine.contract import Laid, Site

# The types of tensors that do nothing by themselves.
_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))


def straight(sites: Any, args: tuple[Any, ...]) -> Any:
    if torch.compiler.is_compiling():
        return traced(sites, args)
    if transforms_active() or forward_ad._current_level >= 0 or dynamo_callback() is not None:
        return NotImplemented
    if is_tracing() or dispatch_modes() or is_included(PRE_DISPATCH):
        return NotImplemented
    site, spec, leaves = sites.known.get((own, *map(type, args))), None, args
    if site is None:
        site, (leaves, spec) = sites.find(own, _TENSORS, args)
        if site is None:
            return NotImplemented
    tensors: Any = leaves
    if not site.is_full:
        tensors = [leaves[place] for place in site.places]
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                return _recorded(site, leaves, spec, tensors)
        return _constant(site, leaves, spec, tensors)
    pair = site.fun(*(args if spec is None else spec.unflatten(leaves)))
    if type(pair) is tuple and len(pair) == 2 and type(pair[0]) is torch.Tensor and callable(pair[1]):
        return pair[0]
    return site.plain(pair)


def _constant(site: Site, leaves: Sequence[Any], spec: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """A call whose arguments nobody differentiates; what the function captures, somebody may."""
    if not site.is_unscoped():
        return NotImplemented
    before = []
    try:
        for tensor in tensors:
            before.append(tensor._version)
    except RuntimeError:  # one of inference mode does not count how often it was changed
        return NotImplemented
    # Random numbers are drawn again for the derivative of what was captured alone.
    seen = surroundings(tensors) if site.is_capturing() else None
    start = sequence_number()
    pair = site.fun(*(leaves if spec is None else spec.unflatten(leaves)))
    for index, tensor in enumerate(tensors):
        if tensor._version != before[index]:
            raise changed()
    is_plain = type(pair) is tuple and len(pair) == 2 and type(pair[0]) is torch.Tensor and callable(pair[1])
    if is_plain and not pair[0].requires_grad:
        return pair[0]
    return _looked_at(site, Laid(leaves, spec), tensors, tensors, seen or surroundings(tensors), start, pair)


def _recorded(site: Site, leaves: Sequence[Any], spec: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """A call that is differentiated, as `attach` does it, where it can be told at once what must be done."""
    before, inputs, likes = [], [], []
    if not site.is_unscoped():
        return NotImplemented
    try:
        for tensor in tensors:
            before.append(tensor._version)
            inputs.append(tensor.detach())
            likes.append((tensor.dtype, tensor.shape))
    except RuntimeError:
        return NotImplemented
    is_row = spec is None and site.is_full
    seen, start = surroundings(tensors, site.may(may_draw)), sequence_number()
    pair = site.fun(*(inputs if is_row else site.arguments(Laid(leaves, spec), inputs)))
    for index, tensor in enumerate(tensors):
        if tensor._version != before[index]:
            raise changed()
    rule = out = None
    outputs: Sequence[Any] = ()
    if type(pair) is tuple and len(pair) == 2 and type(pair[1]) is FunctionType:
        output, rule = pair
        if type(output) is torch.Tensor:
            outputs = (output,)
        else:
            outputs, out = site.output(output)
    for output in outputs:
        if output.requires_grad or not (output.is_floating_point() or output.is_complex()):
            outputs = ()
    form = inside = None
    if rule is not None and outputs:
        form = site.forms.get(rule.__code__) if out is None else None
        form = form or site.form(rule, Laid(leaves, spec), out)
        inside = None if form is None else form.closure.taken(rule)
    if rule is None or form is None or inside is None:
        return _looked_at(site, Laid(leaves, spec), tensors, inputs, seen, start, pair)
    kept = Steady()
    kept.site, kept.form, kept.outputs, kept.spec, kept.seen = site, form, outputs, out, seen
    # Without the tensors, which are kept elsewhere.
    kept.laid = site.blanks if is_row else site.blank(Laid(leaves, spec))
    kept.inside, kept.defaults, kept.readings = inside, (rule.__defaults__, rule.__kwdefaults__), None
    kept.likes, kept.count = likes, len(inputs)
    kept.find(inputs)
    results = _Straight.apply(kept, *tensors)  # type: ignore[no-untyped-call]
    return results if out is None else out.unflatten(results)


def _looked_at(
    site: Site,
    laid: Laid,
    tensors: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    seen: Surroundings,
    start: int,
    pair: Any,
) -> Any:
    """The long way, from where the function has returned."""
    function = site.seen(laid)
    flat = function.accept(inputs, tuple(site.arguments(laid, inputs)), {}, pair, ())
    return function.finish(record(function, tensors, inputs, seen, start, *flat))


class _Straight(torch.autograd.Function):
    """Outputs that were computed already, with the rule as their gradient."""

    @staticmethod
    def forward(ctx: Any, kept: Steady, *tensors: torch.Tensor) -> Any:
        outputs, held = kept.outputs, kept.held
        ctx.kept = kept
        # Saved, they are freed by the backward pass, seen by hooks, and guarded against changes in place.
        ctx.save_for_backward(*tensors, *held)
        kept.outputs, kept.held = (), []
        if kept.spec is not None:
            return aliases(outputs, tensors)
        # As `aliases` has it.
        (output,) = outputs
        storage = output.untyped_storage().data_ptr() if output.layout is torch.strided else 0
        for tensor in tensors:
            if storage and tensor.layout is torch.strided and tensor.untyped_storage().data_ptr() == storage:
                return aliases(outputs, tensors)[0]
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        kept: Steady = ctx.kept
        if kept.readings is not None:
            return (None, *backward(ctx, cotangents, ctx.needs_input_grad[1:]))
        site, form, count, likes = kept.site, kept.form, kept.count, kept.likes
        is_differentiated = torch.is_grad_enabled()
        tensors = ctx.saved_tensors if kept.sources or is_differentiated else ()
        if is_differentiated:
            tensors = (*tensors[:count], *kept.replayed(replay, tensors[:count], tensors[count:]))
        elif kept.uses_inputs:
            # The rule saw inputs cut from the graph.
            tensors = [*[tensor.detach() for tensor in tensors[:count]], *tensors[count:]]
        rule = form.closure.made(kept.inside, kept.sources, tensors, kept.defaults)
        args = cotangents if form.is_each or kept.spec is None else (kept.spec.unflatten(cotangents),)
        if form.is_behind:
            result = site.under(rule, site.arguments(kept.laid, tensors[:count]), {"upstream": args[0]})
        else:
            result = site.under(rule, args, {}) if form.closure.is_reaching else rule(*args)
        gradients: Any = None
        if count == 1 and type(result) is torch.Tensor:
            if (
                (is_differentiated or not kept.uses_inputs)
                and result.dtype is likes[0][0]
                and result.shape == likes[0][1]
            ):
                return None, result
            gradients = (result,)
        elif kept.laid.spec is not None:
            gradients = site.read(kept.laid, result)
        elif type(result) in (tuple, list) and len(result) == count:
            gradients = result
        for index, gradient in enumerate(gradients or ()):
            if type(gradient) is torch.Tensor:
                if gradient.dtype is not likes[index][0] or gradient.shape != likes[index][1]:
                    gradients = None
            elif gradient is not None or not site.is_full:
                gradients = None
        if gradients is None:
            gradients = site.collect(kept.laid, kept.named(), result, ctx.needs_input_grad[1:])
        if kept.uses_inputs and not is_differentiated:
            gradients = copied(gradients, tensors[:count])
        return (None, *gradients)
