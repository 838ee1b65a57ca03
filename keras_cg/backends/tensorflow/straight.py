"""The short way where a tape records: a call as most are, served by what is known of its site and of its rule's form.

As in the other backends that have one, what most calls do stands in plain loops, in few frames.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import numpy
import tensorflow as tf

from keras_cg.backends.tensorflow.attach import differentiable, finish
from keras_cg.backends.tensorflow.backward import Backward, gradient_parts
from keras_cg.backends.tensorflow.composite import PLAIN
from keras_cg.backends.tensorflow.recording import (
    VariableWatcher,
    copied,
    could_possibly_record,
    has_accumulators,
    record_operation,
    should_record_backprop,
)
from keras_cg.backends.tensorflow.tensors import dtype, own, shape
from keras_cg.engine.contract import Form, Laid, Pullback, Site

_EAGER = PLAIN[0]
_TENSORS = frozenset((_EAGER,))
# The dtypes of tensors that have a gradient.
_FLOATING = frozenset(
    each for each in vars(tf.dtypes).values() if isinstance(each, tf.DType) and (each.is_floating or each.is_complex)
)


def straight(sites: Any, args: tuple[Any, ...]) -> Any:
    if not tf.executing_eagerly():
        return NotImplemented
    site, spec, leaves = sites.known.get((own, *map(type, args))), None, args
    if site is None:
        site, (leaves, spec) = sites.find(own, _TENSORS, args)
        if site is None:
            return NotImplemented
    if could_possibly_record():
        return _recorded(site, leaves, spec)
    pair = site.fun(*(args if spec is None else spec.unflatten(leaves)))
    if type(pair) is tuple and len(pair) == 2 and type(pair[0]) is _EAGER and callable(pair[1]):
        return pair[0]
    return site.plain(pair)


def _recorded(site: Site, leaves: Sequence[Any], spec: Any) -> Any:
    """A call that may be differentiated, as `attach` does it, where it can be told at once what must be done."""
    if has_accumulators() or not site.is_unscoped() or _is_closing(site):
        return NotImplemented
    is_row, laid = spec is None and site.is_full, Laid(leaves, spec)
    tensors: list[Any] = [*leaves]
    if not site.is_full:
        tensors = [leaves[place] for place in site.places]
    moving, wanted = [], []
    for tensor in tensors:
        is_moving = tensor.dtype in _FLOATING
        wanted.append(is_moving and bool(should_record_backprop([tensor])))
        if is_moving:
            moving.append(tensor)
    given = copied(tensors) if True in wanted else tensors
    with VariableWatcher() as watcher:
        pair = site.fun(*(given if is_row else site.arguments(laid, given)))
        rule, outputs, out = _parted(site, pair)
        # Inside, for it may read a variable.
        accepted = None if outputs else _accepted(site, laid, given, pair)
    is_alone = bool(outputs) and not should_record_backprop(outputs)
    if is_alone and True not in wanted:
        return outputs[0] if out is None else out.unflatten(outputs)
    form = None
    if is_alone and rule is not None:
        form = site.forms.get(rule.__code__) if out is None else None
        form = form or site.form(rule, laid, out)
    if rule is None or form is None or form.closure.taken(rule) is None:
        function, results, pullback = accepted or _accepted(site, laid, given, pair)
        return function.finish(finish(function, given, tensors, tensors, wanted, watcher, results, pullback, []))
    kept = Steady()
    kept.site, kept.form, kept.rule, kept.spec, kept.given = site, form, rule, out, given
    kept.tensors, kept.moving, kept.wanted, kept.count = tensors, moving, wanted, len(outputs)
    # Without the tensors, which are kept elsewhere.
    kept.laid = site.blanks if is_row else site.blank(laid)
    attached = copied([*outputs])
    record_operation("custom_gradient", attached, moving, kept.backward)
    return attached[0] if out is None else out.unflatten(attached)


def _is_closing(site: Site) -> bool:
    """Whether the function may close over what a tape watches, which is an argument to the long way."""
    closure = site.closure
    inside = None if closure is None else closure.taken(site.fun)
    if closure is None or inside is None:
        return True
    for place in closure.places:
        if type(inside[place]) is not numpy.ndarray and (
            type(inside[place]) is not _EAGER or should_record_backprop([inside[place]])
        ):
            return True
    return False


def _parted(site: Site, pair: Any) -> tuple[FunctionType | None, Sequence[Any], Any]:
    """The rule, the tensors of the output and its structure; no tensors, where the short way cannot be gone."""
    if type(pair) is not tuple or len(pair) != 2 or type(pair[1]) is not FunctionType:
        return None, (), None
    output, rule = pair
    outputs: Sequence[Any]
    outputs, out = ((output,), None) if type(output) is _EAGER else site.output(output)
    for each in outputs:
        if each.dtype not in _FLOATING:
            return rule, (), out
    return rule, outputs, out


def _accepted(site: Site, laid: Laid, given: Sequence[Any], pair: Any) -> tuple[Any, tuple[Any, ...], Pullback]:
    """The long way, from where the function has returned."""
    function = site.seen(laid)
    return function, *function.accept(given, tuple(site.arguments(laid, given)), {}, pair, ())


class Steady:
    """One run of a function at a site, whose rule has a form: what `Backward` is, without having looked for anything.

    Attributes:
        site: Where the call is.
        laid: The arguments, without their tensors.
        tensors: These.
        moving: Those of them that have a gradient.
        wanted: Which of the tensors somebody differentiates.
        given: What the function got in their place.
        form: How the rule is called.
        rule: The rule.
        spec: The structure of the output.
        count: How many tensors are in it.
    """

    __slots__ = ("count", "form", "given", "laid", "moving", "rule", "site", "spec", "tensors", "wanted")

    site: Site
    laid: Laid
    tensors: Sequence[Any]
    moving: Sequence[Any]
    wanted: Sequence[bool]
    given: Sequence[Any]
    form: Form
    rule: Any
    spec: Any
    count: int

    def backward(self, *cotangents: Any) -> list[Any]:
        """As `Backward.for_tape`; by the form, where nobody differentiates what the rule holds."""
        site, form, rule, spec = self.site, self.form, self.rule, self.spec
        is_plain = tf.executing_eagerly() and not should_record_backprop(self.moving) and not has_accumulators()
        for cotangent in cotangents:
            is_plain = is_plain and type(cotangent) is _EAGER
        if not is_plain:
            return self.whole().for_tape(*cotangents)
        args = cotangents if form.is_each or spec is None else (spec.unflatten(cotangents),)
        if form.is_behind:
            result = site.under(rule, site.arguments(self.laid, self.given), {"upstream": args[0]})
        else:
            result = site.under(rule, args, {}) if form.closure.is_reaching else rule(*args)
        gradients: Any = None
        if self.laid.spec is not None:
            gradients = site.read(self.laid, result)
        elif len(self.tensors) == 1 and type(result) is _EAGER:
            gradients = (result,)
        elif type(result) in (tuple, list) and len(result) == len(self.tensors):
            gradients = result
        for gradient in gradients or ():
            if type(gradient) is not _EAGER:
                gradients = None
        chosen: list[Any] = []
        for tensor, is_wanted, gradient in zip(self.tensors, self.wanted, gradients or (), strict=False):
            if not is_wanted:
                gradient = None
            elif gradient.dtype is not tensor.dtype or gradient.shape != tensor.shape:
                gradients = None
                break
            if tensor.dtype in _FLOATING:
                chosen.append(gradient)
        if gradients is not None:
            return chosen
        gradients = site.collect(self.laid, self.likes(), result, self.wanted)
        return [part for pair in zip(self.tensors, gradients, strict=True) for part in gradient_parts(*pair)]

    def whole(self) -> Backward:
        """The same as the long way has it."""
        site, given, tensors = self.site, self.given, self.tensors
        function = site.seen(self.laid, site.rest(self.spec))
        pullback = site.pullback(self.laid, given, self.spec, self.rule, self.likes())
        around = functools.partial(differentiable, function, given, tensors, pullback)
        whole = Backward(pullback, around, tensors, self.wanted, (), ())
        whole.shells, whole.is_being_recorded = [True] * self.count, False
        return whole

    def likes(self) -> list[tuple[str, tuple[int | None, ...] | None]]:
        """What the gradients must look like."""
        return [(dtype(tensor), shape(tensor)) for tensor in self.tensors]
