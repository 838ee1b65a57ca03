"""The short way: a call as most are, served by what is known of its site and of the form of its rule.

What most calls do stands here in plain loops, and in one frame for the forward and one for the backward pass: frames of
Python are most of what a decorated function costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.autograd import forward_ad

from keras_cg.backends import torch as own
from keras_cg.backends.torch.compiled import straight as traced
from keras_cg.backends.torch.recorded import aliases, backward, copied, record
from keras_cg.backends.torch.replayed import (
    USUAL,
    Surroundings,
    changed,
    may_draw,
    replay,
    sequence_number,
    surroundings,
)
from keras_cg.backends.torch.steady import Steady
from keras_cg.backends.torch.tensors import (
    PRE_DISPATCH,
    dispatch_modes,
    dynamo_callback,
    is_included,
    is_tracing,
    transforms_active,
    unwrap_if_dead,
)
from keras_cg.engine.contract import Laid, Site
from keras_cg.engine.held import Closure

# The types of tensors that do nothing by themselves.
_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))


def straight(sites: Any, args: tuple[Any, ...]) -> Any:
    if torch.compiler.is_dynamo_compiling():
        return traced(sites, args)
    if transforms_active() or forward_ad._current_level >= 0 or dynamo_callback() is not None:
        return NotImplemented
    # Nor where torch.export, torch.jit.trace or make_fx writes down what is computed.
    if is_tracing() or dispatch_modes() or is_included(PRE_DISPATCH):
        return NotImplemented
    site, laid = sites.known.get((own, *map(type, args))), None
    if site is None:
        site, laid = sites.find(own, _TENSORS, args, may_draw)
        if site is None:
            return NotImplemented
    leaves: Any = args if laid is None else laid.leaves
    tensors = leaves if site.is_full else [leaves[place] for place in site.places]
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                if laid is None and len(args) == 1 and site.still is not None:
                    return _alone(site, site.still, tensor)
                return _recorded(site, laid or Laid(args, None), tensors)
        return _constant(site, laid or Laid(args, None), tensors)
    pair = site.fun(*(args if laid is None else site.arguments(laid, tensors)))
    if type(pair) is tuple and len(pair) == 2 and type(pair[0]) is torch.Tensor and callable(pair[1]):
        return pair[0]
    return site.plain(pair)


def _constant(site: Site, laid: Laid, tensors: Sequence[torch.Tensor]) -> Any:
    """A call whose arguments nobody differentiates; what the function captures, somebody may."""
    is_capturing = site.is_capturing()
    if is_capturing and not site.is_unscoped():
        return NotImplemented
    before = []
    try:
        for tensor in tensors:
            before.append(tensor._version)
    except RuntimeError:  # one of inference mode does not count how often it was changed
        return NotImplemented
    # Random numbers are drawn again for the derivative of what was captured alone.
    seen = surroundings(tensors) if is_capturing else None
    start = sequence_number()
    pair = site.fun(*(laid.leaves if laid.spec is None else site.arguments(laid, tensors)))
    for index, tensor in enumerate(tensors):
        if tensor._version != before[index]:
            raise changed()
    is_plain = type(pair) is tuple and len(pair) == 2 and type(pair[0]) is torch.Tensor and callable(pair[1])
    if is_plain and not pair[0].requires_grad:
        return pair[0]
    return _looked_at(site, laid, tensors, tensors, seen or surroundings(tensors), start, pair)


def _alone(site: Site, still: Closure, tensor: torch.Tensor) -> Any:
    """As `_recorded`, for a still function of one tensor, in which there is nothing to be gone through."""
    tensors = (tensor,)
    if still.taken(site.fun) is None:
        return _recorded(site, Laid(tensors, None), tensors)
    before, taken, likes = tensor._version, tensor.detach(), [(tensor.dtype, tensor.shape)]
    is_usual = tensor.is_cpu and not torch.is_autocast_enabled("cpu")
    seen, start = USUAL if is_usual else surroundings(tensors, False), sequence_number()
    pair = site.fun(taken)
    if tensor._version != before:
        raise changed()
    output, rule = pair if type(pair) is tuple and len(pair) == 2 else (None, None)
    form = site.forms.get(rule.__code__) if type(rule) is FunctionType else None
    if form is not None and type(output) is torch.Tensor and output.is_floating_point() and not output.requires_grad:
        inside = form.closure.taken(rule)
        if inside is not None:
            known = site, form, rule, inside, (output,), None, site.blanks, likes, [taken], seen
            return _apply(known, unwrap_if_dead(tensor))
    return _known(site, Laid(tensors, None), tensors, [taken], likes, seen, start, pair)


def _recorded(site: Site, laid: Laid, tensors: Sequence[torch.Tensor]) -> Any:
    """A call that is differentiated, as `attach` does it, where it can be told at once what must be done."""
    # A still function sees neither a scope of Keras nor random numbers.
    is_still = site.still is not None and site.still.taken(site.fun) is not None
    if not is_still and not site.is_unscoped():
        return NotImplemented
    before, inputs, likes = [], [], []
    try:
        for tensor in tensors:
            before.append(tensor._version)
            inputs.append(tensor.detach())
            likes.append((tensor.dtype, tensor.shape))
    except RuntimeError:
        return NotImplemented
    is_row = laid.spec is None and site.is_full
    seen, start = surroundings(tensors, not is_still), sequence_number()
    pair = site.fun(*(inputs if is_row else site.arguments(laid, inputs)))
    for index, tensor in enumerate(tensors):
        if tensor._version != before[index]:
            raise changed()
    return _known(site, laid, tensors, inputs, likes, seen, start, pair)


def _known(
    site: Site,
    laid: Laid,
    tensors: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    likes: Sequence[Any],
    seen: Surroundings,
    start: int,
    pair: Any,
) -> Any:
    """What the function returned, attached by what is known of the form of its rule."""
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
        form = site.forms.get(rule.__code__ if out is None else (rule.__code__, out)) or site.form(rule, laid, out)
        inside = None if form is None else form.closure.taken(rule)
    if rule is None or form is None or inside is None:
        return _looked_at(site, laid, tensors, inputs, seen, start, pair)
    # Without the tensors, which are kept elsewhere.
    blank = site.blanks if laid.spec is None and site.is_full else site.blank(laid)
    known = site, form, rule, inside, outputs, out, blank, likes, inputs, seen
    results = _apply(known, *map(unwrap_if_dead, tensors))
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
    def forward(ctx: Any, known: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        ctx.kept = kept = Steady()
        # Here, and not where it is known, so that both ways here have it in one place and without a frame.
        kept.site, kept.form, rule, kept.inside, outputs, kept.spec, kept.laid, kept.likes, inputs, kept.seen = known
        kept.defaults, kept.readings, kept.count = (rule.__defaults__, rule.__kwdefaults__), None, len(inputs)
        # Saved, they are freed by the backward pass, seen by hooks, and guarded against changes in place.
        ctx.save_for_backward(*tensors, *kept.find(inputs))
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


# What `apply` of a Function comes down to. It looks for a transform before, as `straight` does, and for the form of a
# Function in two parts, which this has not.
_apply: Callable[..., Any] = super(torch.autograd.Function, _Straight).apply
