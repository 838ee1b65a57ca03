"""The short way: a call as most are, served by what is known of its site and of the form of its rule.

As in the other backends that have one, what most calls do stands in plain loops, in few frames: these are most of what
a decorated function costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any

import numpy
from autograd.numpy.numpy_boxes import ArrayBox
from autograd.tracer import trace_stack

from keras_cg.backends.numpy.attach import Call, custom_gradient, finished
from keras_cg.backends.numpy.tensors import boxes, dtype, own
from keras_cg.engine.contract import Form, Laid, Site

# The types of arrays and of their scalars, and of these the kinds of dtypes that are tensors.
_CODES = ("?", *numpy.typecodes["AllInteger"], *numpy.typecodes["AllFloat"])
_ARRAYS = frozenset((numpy.ndarray, *[numpy.dtype(code).type for code in _CODES]))
_KINDS = frozenset("biufc")
_TENSORS = _ARRAYS | {ArrayBox}


def straight(sites: Any, args: tuple[Any, ...]) -> Any:
    site, spec, leaves = sites.known.get((own, *map(type, args))), None, args
    if site is None:
        site, (leaves, spec) = sites.find(own, _TENSORS, args)
        if site is None:
            return NotImplemented
    tensors: Any = leaves
    if not site.is_full:
        tensors = [leaves[place] for place in site.places]
    is_boxed = False
    for tensor in tensors:
        if type(tensor) is ArrayBox:
            is_boxed = True
        elif tensor.dtype.kind not in _KINDS:
            return NotImplemented
    if trace_stack.top >= 0:
        closure = site.closure
        # What the function closes over and autograd differentiates is an argument to the long way.
        if closure is None or ArrayBox in closure.kinds or closure.taken(site.fun) is None or not site.is_unscoped():
            return NotImplemented
        if is_boxed:
            return _recorded(site, leaves, spec, tensors)
    pair = site.fun(*(args if spec is None else spec.unflatten(leaves)))
    if type(pair) is tuple and len(pair) == 2 and type(pair[0]) in _ARRAYS and callable(pair[1]):
        return pair[0]
    if trace_stack.top < 0:
        return site.plain(pair)
    return _looked_at(site, Laid(leaves, spec), tensors, tensors, pair)


def _recorded(site: Site, leaves: Sequence[Any], spec: Any, tensors: Sequence[Any]) -> Any:
    """A call that is differentiated, as `attach` does it, where it can be told at once what must be done."""
    inputs = []
    for tensor in tensors:
        value = tensor
        while type(value) is ArrayBox:
            value = value._value
        # autograd boxes numbers, too.
        inputs.append(value if type(value) in _ARRAYS else numpy.asarray(value))
    is_row = spec is None and site.is_full
    pair = site.fun(*(inputs if is_row else site.arguments(Laid(leaves, spec), inputs)))
    rule = out = None
    outputs: Sequence[Any] = ()
    if type(pair) is tuple and len(pair) == 2 and type(pair[1]) is FunctionType:
        output, rule = pair
        if type(output) in _ARRAYS:
            outputs = (output,)
        else:
            outputs, out = site.output(output)
    for output in outputs:
        # Complex numbers are conjugated, and integers go past autograd, on the long way.
        if type(output) is ArrayBox or output.dtype.kind != "f":
            outputs = ()
    form = inside = None
    if rule is not None and outputs:
        form = site.forms.get(rule.__code__) if out is None else None
        form = form or site.form(rule, Laid(leaves, spec), out)
        inside = None if form is None else form.closure.taken(rule)
        if inside is None and form is not None:
            # A scalar has another type than an array, and a rule holds now this, now that.
            form = site.form(rule, Laid(leaves, spec), out, True)
            inside = None if form is None else form.closure.taken(rule)
    if rule is None or form is None or inside is None or ArrayBox in form.closure.kinds:
        return _looked_at(site, Laid(leaves, spec), tensors, inputs, pair)
    kept = Steady()
    kept.site, kept.form, kept.spec, kept.inputs, kept.tensors = site, form, out, inputs, tensors
    # Without the tensors, which are kept elsewhere.
    kept.laid = site.blanks if is_row else site.blank(Laid(leaves, spec))
    kept.inside, kept.defaults = inside, (rule.__defaults__, rule.__kwdefaults__)
    kept.carried = outputs[0] if out is None else tuple(outputs)
    carried = custom_gradient(kept, *tensors)
    # What is kept of a run holds no output that its rule does not hold.
    kept.carried = None
    return carried if out is None else out.unflatten([carried[place] for place in range(len(outputs))])


def _looked_at(site: Site, laid: Laid, tensors: Sequence[Any], inputs: Sequence[Any], pair: Any) -> Any:
    """The long way, from where the function has returned."""
    function = site.seen(laid)
    outputs, pullback = function.accept(inputs, tuple(site.arguments(laid, inputs)), {}, pair, ())
    call = Call(function, len(inputs), [], outputs, inputs, pullback)
    return function.finish(call.carry(outputs, tensors))


class Steady:
    """One run of a function at a site, whose rule has a form: what `Call` is, without having looked for anything.

    Attributes:
        site: Where the call is.
        laid: The arguments, without their tensors.
        inputs: These, as the function got them.
        tensors: The same as they came, in boxes.
        form: How the rule is called.
        inside: What the cells of the rule hold.
        defaults: The defaults of its parameters.
        spec: The structure of the output.
        carried: The output, in a tuple if it is a nest, until it is carried.
    """

    __slots__ = ("carried", "defaults", "form", "inputs", "inside", "laid", "site", "spec", "tensors")

    site: Site
    laid: Laid
    inputs: Sequence[Any]
    tensors: Sequence[Any]
    form: Form
    inside: list[Any]
    defaults: tuple[Any, Any]
    spec: Any
    carried: Any

    def pull(self, argnums: Sequence[int], tensors: Sequence[Any], upstream: Any) -> Sequence[Any]:
        """As `Call` has it; by the form, where nobody differentiates what the rule gets."""
        site, form, inputs, spec = self.site, self.form, self.inputs, self.spec
        cotangents = (upstream,) if spec is None else upstream
        is_plain = type(cotangents) is tuple
        for each in tensors:
            is_plain = is_plain and type(each) is not ArrayBox
        if not is_plain:
            return self.whole().pull(argnums, tensors, upstream)
        rule = form.closure.made(self.inside, (), (), self.defaults)
        args = cotangents if form.is_each or spec is None else (spec.unflatten(cotangents),)
        if form.is_behind:
            result = site.under(rule, site.arguments(self.laid, inputs), {"upstream": args[0]})
        else:
            result = site.under(rule, args, {}) if form.closure.is_reaching else rule(*args)
        gradients: Any = None
        if self.laid.spec is not None:
            gradients = site.read(self.laid, result)
        elif len(inputs) == 1 and type(result) in _ARRAYS:
            gradients = (result,)
        elif type(result) in (tuple, list) and len(result) == len(inputs):
            gradients = result
        for gradient in gradients or ():
            if type(gradient) not in _ARRAYS:
                gradients = None
        chosen = []
        for argnum in argnums if gradients is not None else ():
            gradient, like = gradients[argnum - 1], inputs[argnum - 1]
            if gradient.dtype is not like.dtype or like.dtype.kind != "f" or gradient.shape != like.shape:
                break
            chosen.append(gradient)
        if len(chosen) == len(argnums):
            return chosen
        wanted = [place + 1 in argnums for place in range(len(inputs))]
        gradients = site.collect(self.laid, self.likes(), result, wanted)
        ended = [box for tensor in self.tensors for box in boxes(tensor)]
        return [finished(gradients[argnum - 1], tensors[argnum - 1], ended, -1) for argnum in argnums]

    def whole(self) -> Call:
        """The same as the long way has it."""
        site, count = self.site, len(self.inputs)
        rest = site.rest(self.spec)
        rule = self.form.closure.made(self.inside, (), (), self.defaults)
        pullback = site.pullback(self.laid, self.inputs, self.spec, rule, self.likes())
        call = Call(site.seen(self.laid, rest), count, [], (), self.inputs, pullback)
        call.floating = [True] * len(rest.places)
        call.boxes = [box for tensor in self.tensors for box in boxes(tensor)]
        return call

    def likes(self) -> list[tuple[str, tuple[int, ...]]]:
        """What the gradients must look like."""
        return [(dtype(each), each.shape) for each in self.inputs]
