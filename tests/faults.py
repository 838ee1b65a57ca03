"""Plants faults in the package, one after the other, and prints the first test that fails for each.

    PYTHONPATH=tests python -m faults --all          # every fault, with the tests that are there to find it: minutes
    PYTHONPATH=tests python -m faults 12 40          # some, by their numbers
    PYTHONPATH=tests python -m faults torch linear   # some, by a part of the module's name, or of the description
    PYTHONPATH=tests python -m faults arguments --where "jax core" --every-mode -k jit

A fault is planted in a copy of the package, which tests in a process of their own import. What the parser does not know
goes to pytest. In a compiled mode, a file runs only the cases that it lists as `IN_EVERY_MODE`; they are enough if they
find every fault that all cases find (`--every-mode`).
"""

import argparse
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

TESTS = pathlib.Path(__file__).parent
ROOT = TESTS.parent

# The files of tests with a name, those first that find most; `{}` is the backend.
SUITES = {
    "core": "test_conventions* test_returns* test_arguments* test_returned_* test_dict_order* test_errors* engine/*"
    " orders/* test_captured* test_any_arguments*",
    "engine": "engine/*",
    "orders": "orders/*",
    "own": "test_memory* transforms/test_{}* transforms/* test_backend_of_*",
    "backends": "test_backend_choice* test_contract*",
    "autodiff": "autodiff/*",
    "recipes": "recipes/*",
    "with_keras": "with_keras/*",
}

# For each module below keras_cg, and after the colon the backend and the suites of the tests that are to find its
# faults: what is wrong, lines or a part of one as they are, and as they are planted. The part is there once.
TABLE = {
    "frontend.conventions: numpy conventions errors returns core": [
        ("upstream not by name", ' or "upstream" in parameters.plain()[1:]', ""),
        (
            "two parameters are one",
            "elif len(positional) == 1:\n        return ALONE",
            "elif positional:\n        return ALONE",
        ),
        (
            "one positional read as one by one",
            "len(positional) == 1 or (positional and (count == 1 or parameters.required() <= 1)):",
            "positional and count == 1:",
        ),
        ("arguments not before upstream", 'self.values, {"', 'self.values[::-1], {"'),
        ("defaults left out", ", *[default ", ", *[None "),
        (
            "varargs get upstream whole",
            "self._one_by_one(upstreams, range(count))",
            "(self.output.unflatten(upstreams),), {}",
        ),
        ("defaults count as required", "required() <= 1)):", "required() <= 0)):"),
        ("one for each tensor alone", "tensors if parameters", "tensors[::-1] if parameters"),
        ("upstream at any place", 'return positional.index("upstream") == count', "return True"),
        ("upstream not packed", '": self.output.unflatten', '": list'),
        ("misfits pass", "raise self._misfit(count)", "return (upstreams[0],), {}"),
        ("unsorted outputs pass", "if not self.output.is_in_order(places):", "if False:"),
    ],
    "frontend.gradients: jax returns core": [
        ("no cast", "return gradient if came == dtype else backend.cast(gradient, dtype)", "return gradient"),
    ],
    "frontend.gradients: numpy errors returns arguments core": [
        ("a warning at each call", "_told.add((arguments.name, where))", "pass"),
        ("a warning of a recipe", "if where is not None and (", "if ("),
        ("a row reversed", "     return gradients", "     return gradients[::-1]"),
        ("whole nest read as inserted", " static.places]", " static.places][::-1]"),
        ("None is an error", " or (type(value) in (int, float) and value == 0)", ""),
        ("shape unchecked", "if not compatible(size, shape):", "if False:"),
        ("complex unchecked", 'if came.startswith("complex") and not dtype.startswith("complex"):', "if False:"),
        ("boolean unchecked", 'if came == "bool":', "if False:"),
        ("anything is a gradient", "if not isinstance(gradient, (int, float, complex)):", "if False:"),
        ("zero is a tensor", "bool):\n            return None", "bool):\n            gradient = 7.0"),
        ("defaults not put in", "self._with_defaults(explicit)", "explicit"),
        ("keywords at other places", "named.pop(name)", "named.popitem()[1]"),
        ("dict keys as they come", "[by_key[key] for key in spec.entries()]", "list(by_key.values())"),
        ("None for a nest is refused", "_is_nothing(value):\n", "False:\n"),
        ("ambiguous results pass", "if not all(self._is_same(", "if False and not all(self._is_same("),
        ("static gradients read", "[*filter(self._is_clean, ordered)] or ", ""),
        ("unsorted results pass", "ordered = [*filter(self._is_in_order, readings)]", "ordered = readings"),
        ("needs_grad inverted", " needs_grad[", " not needs_grad["),
        ("broadcast axes unnamed", "came is None or expected is None or len(came) < len(expected):\n", "True:\n"),
        (
            "other type for a dataclass",
            "not pytree.is_like(value, spec):\n",
            "True:\n",
        ),
    ],
    "frontend.pickling: numpy errors core": [
        ("a function is pickled by the name of another", "if found is function or", "if found is not None or"),
        (
            "a method is pickled by the name of another",
            "else functools.partial(self, instance)",
            "else self.func.__get__(instance)",
        ),
    ],
    "frontend.arguments: numpy arguments errors core": [
        ("keywords lost their order", "count:], strict", "count:][::-1], strict"),
        ("tensors reversed", "combine(tensors)", "combine(tensors[::-1])"),
        ("labels off", "index)] + inside", "index)]"),
        ("arguments without names", "parameters.label(place) if parameters else ", ""),
    ],
    "frontend.signature: numpy conventions arguments returns core": [
        ("labels reversed", "positional[index", "positional[::-1][index"),
        ("every call binds", "all(name in known for", "True or all(name in known for"),
        ("defaults of the first parameters", "len(names) - len(values) :], ", ": len(values)], "),
        ("defaults between keywords lost", "name, default) ", "name) "),
        ("self is a parameter", "whole.positional[count:]", "whole.positional"),
        ("parameters before a partial's keyword lost", "positional[:first],", "(),"),
    ],
    "frontend.pytree: torch arguments core own": [
        ("scalars of NumPy refused", "0):\n        return", "0):\n        raise TypeError(leaf)"),
    ],
    "frontend.pytree: jax returns captured orders core": [
        ("tensors stay in the static part", "leaves[place] = None", "pass")
    ],
    "frontend.pytree: numpy pytree arguments returns core": [
        ("shapes compared by rank", ") and all(a is None or b is None or a == b for a, b in pairs)", ")"),
        ("tensors at other places", "self.fill(self.places, tensors)", "self.fill(self.places, tensors[::-1])"),
        ("every dict is in order", "return ranks == sorted(ranks)", "return True"),
        ("nodes stay wrapped", "return _unwrap(value) if self.is_wrapped else value", "return value"),
    ],
    "frontend.pullback: torch needs_input_grad conventions core": [
        ("detached arguments for the rule", "if values and arguments is not None:", "if False:"),
        ("integers get upstreams", " and is_differentiable(backend.dtype(cotangent)):", ":"),
    ],
    "frontend.call: numpy core": [
        ("keywords not among the rule's arguments", ", *signature.by_position(self.user, len(args), kwargs))", ",)"),
        ("kwargs unordered", "signature.in_order(fun, kwargs", "dict(reversed(kwargs.items())"),
        ("pair unchecked", "if not isinstance(pair, (tuple, list)) or len(pair) != 2:", "if False:"),
        ("rule unchecked", "if not callable(rule):", "if False:"),
        ("outputs reversed", "results[: len(output.places)])", "list(results[: len(output.places)])[::-1])"),
    ],
    "frontend.pullback: numpy core": [
        ("upstreams at other places", "(output.places, ", "(list(output.places)[::-1], "),
        ("fast path skips the check of shapes", " or gradient.shape != tensor.shape", ""),
    ],
    "frontend.conventions: numpy needs_input_grad conventions core": [
        ("varargs get no arguments", "return len(positional) <= count", "return False"),
        ("keyword only not by name", 'keyword_only or "upstream" in parameters.', ""),
        (
            "no gradient is asked for",
            '"needs_input_grad": tuple(needs_grad)',
            '"needs_input_grad": tuple(False for _ in needs_grad)',
        ),
    ],
    "frontend.call: numpy engine orders core": [
        ("rule not frozen", "if not backend.is_compiling():", "if False:"),
    ],
    "frontend.pullback: numpy engine orders core": [
        ("what is watched is forgotten", "if watch is None:", "if True:"),
        ("what is unknown is believed", "if name is None and found.is_unknown:", "if False:"),
        (
            "a gradient that is None is another",
            "== [each is None for each in others]]",
            "== [each is None for each in ones]]",
        ),
        ("gradients never differ", "if any([answer is False for answer in answers]):", "if False:"),
    ],
    "engine.comparing: numpy engine orders core": [
        (
            "tensors never differ",
            "is_equal is False:\n            return Difference(_told(*pair))",
            "is_equal is None:\n            return Difference(_told(*pair))",
        ),
        (
            "numbers never differ",
            "if is_equal is False:\n            return Difference(_told(path, one, two))",
            "if is_equal == 7:\n            return Difference(_told(path, one, two))",
        ),
        ("NaN differs from NaN", " or (one != one and two != two))", ")"),
        ("types of numbers do not count", "(True if type(one) is type(two) else None)", "True"),
        ("texts of objects refuse", '(None if "." in path else False)', "False"),
        (
            "another structure is the same",
            "head is None or head != other_head or len(parts) != len(others)",
            "head is None",
        ),
        ("what is unknown is known", "head is None or head != other_head", "head != other_head"),
        ("what both share is entered", "one is two or (id(one), id(two)) in seen", "(id(one), id(two)) in seen"),
        ("what a rule assigns is data", "parts[name] = cell  # the", "parts[name] = cell.cell_contents  # the"),
        ("keyword defaults not compared", "parts.update(fun.__kwdefaults__ or {})", "pass"),
        ("defaults not compared", 'parts[f"default {place}"] = part', "pass"),
        (
            "the object of a method not compared",
            '{"": value.__func__, ".__self__": value.__self__}',
            '{"": value.__func__}',
        ),
        ("what C made is data", "not any([isinstance(new, types.BuiltinMethodType) for new in news])", "True"),
        ("globals of functions not compared", "(value.__code__, id(value.__globals__)), _of", "value.__code__, _of"),
        (
            "an outline keeps its tensors",
            "target[step], _ = _Place(len(saved)), value",
            "target[step], _ = value, value",
        ),
        (
            "an outline is always known",
            "is_unknown |= head is None\n                known",
            "is_unknown |= False\n                known",
        ),
    ],
    "engine.precision: numpy engine": [
        ("shapes of arrays not compared", "other.shape != first.shape or ", ""),
    ],
    "engine.freezing: numpy engine orders core": [
        ("cells shared", "tuple(map(CellType, values[: len(cells)]))", "cells"),
        (
            "functions in defaults shared",
            "tuple([_replaced(part, copies) for part in fun.__defaults__])",
            "fun.__defaults__",
        ),
        (
            "cells that the rule assigns to copied",
            "shared = {id(cell) for value, _ in found.values() for cell in _assigned_cells(value)}",
            "shared = set()",
        ),
        (
            "arguments of partials shared",
            "parts = references(value)",
            "parts = [value.func, *[None for _ in value.args], *value.keywords.values()]",
        ),
        ("wrappers shared", "        copied |= more", "        break"),
        ("functions of the run are told by their scope alone", "id(fun.__code__) in self.codes or ", "False or "),
        ("functions of AutoGraph are from elsewhere", " or self.rewritten in fun.__code__.co_qualname", ""),
        (
            "functions of the rule's scope are from elsewhere",
            "self.scope is not None and _scope(fun) == self.scope",
            "False",
        ),
        ("methods of a class of the run shared", "_define_again(value, copies)", "pass"),
        ("decorated functions shared", "copies[id(value)] = value.of(fun)", "copies[id(value)] = value"),
        (
            "attributes of functions copied",
            "copy.__dict__ = function.__dict__",
            "copy.__dict__.update(function.__dict__)",
        ),
        ("no name of a helper is watched", "        yield from of_cells(value, shared)", "        pass"),
        ("callable objects are not watched", "if parts is not None or value is rule:", "if parts is not None:"),
    ],
    "engine.watching: numpy engine orders core": [
        ("no attribute is watched", "        yield _entry(owner, name,", "        _entry(owner, name,"),
        (
            "the rule's own state is watched",
            "                known.last = _reference(known.read())",
            "                pass",
        ),
        ("an equal number is another", "        return bool(now == value)", "        return False"),
        (
            "an object is kept by its name",
            "functools.partial(_stored, _reference(owner), name)",
            "functools.partial(_stored, owner, name)",
        ),
        (
            "methods that a method calls are not read",
            "waiting += [other for other in others if type(other) is FunctionType and other not in waiting]",
            "pass",
        ),
    ],
    "engine.functions: numpy engine orders core": [
        (
            "defaults are not held",
            "return [*cells, *(fun.__defaults__ or ()), *(fun.__kwdefaults__ or {}).values()]",
            "return cells",
        ),
    ],
    "engine.linear: numpy engine autodiff core": [
        (
            "sums not tried",
            "zip(both, first, second",
            "zip([a - 2.0 * b for a, b in zip(first, second)], first, second",
        ),
        (
            "large terms that cancel are no rounding",
            "_FACTORS, _MORE = (1.3, -1.9), 64",
            "_FACTORS, _MORE = (1.3, -1.9), 0",
        ),
        ("zero not tried", " in (0.0, *(", " in (1.0, *("),
        ("negative factors not tried", "for sign in (1, -1)", "for sign in (1,)"),
        ("huge and tiny not tried", "2.0**power for power in (reach, reach // 2, -reach // 2, -reach)]", "1.0]"),
        ("every map is a transpose", "(difference <= allowed) | xp", "(difference >= -allowed) | xp"),
        (
            "overflow is an error",
            "xp.logical_not(xp.isfinite(difference)) | (difference <= allowed))",
            "difference <= allowed)",
        ),
        ("no NaN in a trace", 'float("nan"))', "1.0)"),
    ],
    "engine.contract: numpy backends core": [
        ("gradient is required of a backend", '_NAMES.index("gradient")', '_NAMES.index("jvp")'),
    ],
    "engine.messages: tensorflow tensorflow_shapes own": [
        ("tensors counted from 0", "tensor argument {place + 1}", "tensor argument {place}"),
    ],
    "engine.precision: numpy recipes": [
        ("a smallest number that is not normal", "**-23, 2.0**-126", "**-23, 2.0**-149"),
    ],
    "engine.precision: numpy core": [
        ("complex numbers get no gradient", '("float", "bfloat", "complex")', '("float", "bfloat")'),
    ],
    "engine.defaults: numpy engine": [
        ("infinity differs from infinity", " | (other == first) | ((other", " | ((other"),
    ],
    "engine.defaults: numpy autodiff": [("rows of the first argument for all", "gradients[index] ", "gradients[0] ")],
    "engine.defaults: numpy core": [
        ("dtypes of two runs not compared", "backend.dtype(one) == backend.dtype(two)\n        and ", ""),
    ],
    "backends.__init__: torch versions": [
        ("modules of a framework that is there are said to be missing", "package != module", "package == module"),
    ],
    "backends.__init__: numpy backends core": [("incomplete backends load", "if missing:", "if False:")],
    "backends.numpy.__init__: numpy own core": [("numpy in the place of autograd's", "from autograd ", "")],
    "backends.numpy.attach: numpy memory own core": [
        ("the rule of a later run unchecked", "self.pullback.check(", "(lambda *_: None)("),
        ("upstream not conjugated", "conjugate(next(arriving)) if is_real", "next(arriving) if is_real"),
        ("a gradient shares memory", "return conjugate(gradient.copy())", "pass"),
        ("a level that is over keeps its boxes", "gradient = gradient._value\n", "break\n"),
        ("levels share a number", "max(self.highest - trace_stack.top, 0)", "0"),
        ("roots of another level pass", 'getattr(each, "parents", True) for', "True for"),
    ],
    "backends.numpy.derivatives: numpy own core": [
        ("changes in place are seen", "return tensor.copy() if isinstance", "return tensor if isinstance"),
    ],
    "backends.numpy.tensors: numpy own core": [("byte order in a dtype", "return dtype.name", "return str(dtype)")],
    "backends.torch.__init__: torch own core": [
        ("is_compiling forgotten", "is_compiling,\n    is_plain", "is_plain"),
    ],
    "backends.torch.attach: torch torch_backward memory_torch own core": [
        ("attach is compiled by itself", "@uncompiled\ndef attach", "def attach"),
        ("a later run unchecked", "            self.pullback.check(pullback, gradients)", "            pass"),
        (
            "a later run under hooks unchecked",
            "pullback.check_outline(inputs, residuals, self.facts, gradients)",
            "pass",
        ),
        ("autocast forgotten for another run", "            run = torch.autocast(*each)(run)", "            pass"),
        ("changes in place since the call unseen", "        if is_changed(call.watched):", "        if False:"),
        (
            "changes of a tensor without a storage unseen",
            "watched.append((alias if storage else tensor, tensor._version))",
            "watched.append((alias, alias._version))",
        ),
        ("what a rule changes is refused", "not is_state(tensor) or", "True or"),
        ("what its own run made may change", "(self.is_used and id(tensor) not in shared)", "False"),
        (
            "a view of an argument as any output",
            "call.is_simple &= storage not in places and output",
            "call.is_simple &= output",
        ),
        (
            "inference tensors are not copied",
            "            tensor = tensor.clone()  # autograd",
            "            pass  # autograd",
        ),
        ("the rule gets copies", ", saved[:count] if saved else None)", ")"),
        ("changes in place unseen", "            call.refuse_changes()\n", "            pass\n"),
        ("a gradient shares memory, torch", "gradients = copied(gradients, call.storages)", "pass"),
        ("the rule is kept after backward", "not keeps_graph():\n", "False:\n"),
    ],
    "backends.torch.capturing: torch torch_backward memory_torch own core": [
        ("leaves of the run are captured", "if captured <= set(map(id, used)):", "if False:"),
    ],
    "backends.torch.compiling: torch own core": [
        ("an input as output has no gradient of its own", "found = len(outputs) + place", "found = -1"),
        ("captured tensors pass", "        if output.requires_grad:\n", "        if False:\n"),
    ],
    "backends.torch.exporting: torch torch_export own": [
        (
            "what is exported keeps a gradient",
            "results = this.detached(fun.name, *outputs) if outputs else ()",
            "results = outputs",
        ),
    ],
    "backends.torch.derivatives: torch own core": [
        ("stop_gradient stops nothing", "    return tensor.detach()", "    return tensor"),
        ("zero tensors as torch has them", "torch.zeros_like(tensor) if tensor._is_zerotensor() else tensor", "tensor"),
    ],
    "backends.torch.tensors: torch own core": [
        ("batches of two levels the wrong way round", "enumerate(reversed(axes))", "enumerate(axes)"),
    ],
    "backends.torch.transforms: torch own core": [
        (
            "a run of another level unchecked",
            "pullback.check_outline(saved[:count], *self.first, functools.partial(probe, cotangents, variables, None))",
            "pass",
        ),
        ("what hides deeper passes", "        if hidden:", "        if False:"),
        ("captured constants as variables", "if id(tensor) in operands.used]", "]"),
    ],
    "backends.jax.__init__: jax own core": [
        ("double precision forgotten", "devices, double_precision, exported", "devices, exported"),
    ],
    "backends.jax.attach: jax own core": [
        (
            "a stopped gradient is a captured value",
            "for const, is_read in zip(hoisted, is_used[-count:], strict=True) if is_read]",
            "for const in hoisted]",
        ),
        (
            "an argument of two levels is like one",
            "elif not any([is_traced(tensor) and is_traced(inside(tensor)) for tensor in tensors]):",
            "else:",
        ),
        (
            "functions of one code are one",
            'id(getattr(fun.user, "__self__", None)), *cells',
            'id(getattr(fun.user, "__self__", None))',
        ),
        ("what only the rule reads is lost", "read = (*outputs, *pullback.closed_over())", "read = outputs"),
        ("upstream not conjugated, jax", "arriving = map(conjugate, cotangents)", "arriving = iter(cotangents)"),
    ],
    "backends.jax.linear: jax jax_forward own core": [
        ("a product with itself is linear", "numbers.count(LINEAR) == 1 else", "numbers.count(LINEAR) >= 1 else"),
        ("a constant is nothing", "return CONSTANT if numpy.any(operand.val) else ZERO", "return ZERO"),
    ],
    "backends.jax.names: jax jax_forward own core": [
        ("every tracer is one of reverse mode", 'getattr(getattr(tracer, "_trace", None), "is_vjp", False) is ', ""),
    ],
    "backends.jax.derivatives: jax autodiff": [
        (
            "the gradient of a vjp not conjugated",
            "map(conjugate, back(tuple(map(conjugate, cotangents)))))",
            "back(tuple(map(conjugate, cotangents))))",
        ),
    ],
    "backends.jax.rule_primitives: jax own core": [
        ("integers get a batch", " and is_floating(jax.typeof(value)))", ")"),
        ("one of a batch of gradients", "namespace.sum(grad, 0) if", "grad[0] if"),
        (
            "the forward pass of the second order is not tied",
            "return [*operands",
            "return [2 * operand for operand in operands",
        ),
    ],
    "backends.tensorflow.__init__: tensorflow ops": [
        ("stop_gradient is the identity", " stop_gradient", " identity as stop_gradient"),
    ],
    "backends.tensorflow.attach: tensorflow own core": [
        ("arguments not copied", "recording.copies(tensors) if True in needs_grad else ", ""),
    ],
    "backends.tensorflow.backward: tensorflow own core": [
        ("unknown shapes pass", "transpose(values, order)\n", "identity(values)\n    return gradient\n"),
        ("no NaN for rules that are not linear", "dense(gradient) + _like(gradient, unknown)", "dense(gradient)"),
    ],
    "backends.tensorflow.composite: tensorflow own core": [],
    "backends.tensorflow.derivatives: tensorflow autodiff tensorflow_function": [
        ("unconnected gradients are None", "), tf.UnconnectedGradients.ZERO", "), tf.UnconnectedGradients.NONE"),
        (
            "control flow is not converted",
            'tf.__internal__.autograph.tf_convert(fun, context) if context.status.name == "ENABLED" else ',
            "",
        ),
    ],
    "backends.tensorflow.graph: tensorflow own core": [
        ("vectorized maps drop the rule", "if results and _is_vectorizing():", "if False:"),
    ],
    "backends.tensorflow.recording: tensorflow own core": [],
    "backends.tensorflow.tensors: tensorflow own core": [
        ("NaN where all is right", "0.0, numpy.nan", "numpy.nan, 0.0"),
        ("dtypes of two runs not compared, tensorflow", "!= [(dtype(two), shape(two)) for two in others]", "== 7"),
    ],
    "recipes.__init__: numpy recipes": [
        (
            "another recipe under a name",
            "scale_gradient, straight_through",
            "straight_through, reverse_gradient as scale_gradient",
        ),
    ],
    "recipes.annealed: numpy recipes": [
        ("the temperature forgotten in a gradient", "keepdims=True)) / heat\n", "keepdims=True))\n"),
        ("soft_round as steep everywhere", "(2 * slope * (1 + ops.exp(-sharp)) * bell)", "(2 * slope * bell)"),
    ],
    "recipes.discrete: numpy recipes": [
        ("the derivative of arctan without a half", "slope / 2 / (1", "slope / (1"),
        ("limits of levels get a gradient", "ratio >= high, ratio <= low", "ratio > high, ratio < low"),
    ],
    "recipes.implicit: numpy recipes": [
        ("the sign of an implicit gradient", " each: -each, ", " each: each, "),
        ("the Jacobian is not transposed", "ops.permute_dims(matrix, (1, 0))", "matrix"),
    ],
    "recipes.messages: numpy recipes": [("the upper limit is another one", "1.8e308", "3.4e38")],
    "recipes.passing: numpy recipes": [
        ("a gradient that is not reversed", "upstream, -scale", "upstream, scale"),
        ("clipped one by one", "widest = max(map", "widest = min(map"),
    ],
    "recipes.repeated: numpy recipes": [
        ("a fixed point that was not reached", "tolerance)) <= 0", "tolerance)) <= math.inf"),
    ],
    "recipes.reversible: numpy recipes": [
        ("a wrong inverse passes", "gradient * ops.where(is_same, one, math.nan * one)", "gradient * one"),
        ("gradients of blocks in reverse", "(upstream, *reversed(gradients))", "(upstream, *gradients)"),
    ],
    "recipes.safe: numpy recipes": [
        ("an infinite slope of safe_sqrt", "is_negative = wide <= 0\n", "is_negative = wide < 0\n"),
        ("a norm of zeros has a gradient", "ops.zeros_like(scaled", "ops.ones_like(scaled"),
    ],
    "recipes.tensors: numpy recipes": [
        ("integers of NumPy are no numbers", ".item() if isinstance(value, numpy.generic) else value", ""),
        ("half precision stays half", 'in ("float16", "bfloat16") else x', 'in ("bfloat16",) else x'),
    ],
    "recipes.frameworks: jax from_numpy": [
        ("the generic file for all", "name if importlib.util.find_spec(name) else ", ""),
    ],
    "recipes.callback.__init__: numpy from_numpy": [
        ("results as they come", "if array.dtype.name != kind.dtype or array.shape", "if array.shape"),
        ("the second order is the first again", "raise messages.no_derivative(function.of)", "return values"),
    ],
    "recipes.callback.generic: numpy from_numpy": [
        ("outputs reversed, generic", "asarray, arrays))", "asarray, arrays[::-1]))"),
    ],
    "recipes.callback.host: numpy from_numpy": [
        (
            "functions are kept",
            "weakref.WeakValueDictionary[str, HostFunction] = weakref.WeakValueDictionary()",
            "dict[str, HostFunction] = {}",
        ),
    ],
    "recipes.callback.jax: jax from_numpy": [
        ("a batch along another axis", "namespace.moveaxis(inputs[index], places[index], 0)", "inputs[index]"),
    ],
    "recipes.callback.tensorflow: tensorflow from_numpy": [
        ("a shape that was promised is unknown", "result.set_shape(kind.shape)", "pass"),
    ],
    "recipes.callback.torch: torch from_numpy": [
        ("a batch along another axis, torch", "tensor.select(axis, place)", "tensor.select(0, place)"),
    ],
    "recipes.checkpoint.jax: jax recipes": [
        ("nothing is recomputed", "jax.checkpoint(fun)(*tensors)", "fun(*tensors)"),
    ],
    "recipes.checkpoint.torch: torch recipes": [
        ("changes in place unseen, torch", "            if old != new:", "            if False:"),
    ],
    "recipes.checkpoint.sample: numpy recipes": [
        ("samples never differ", "if not is_repeated", "if False and not is_repeated"),
    ],
    "recipes.checkpoint.messages: torch keras_recompute": [
        ("no remedy is named", "use keras.remat or keras.RematScope", "use another"),
    ],
    "recipes.checkpoint.__init__: numpy with_keras": [
        ("keywords lost their order, __init__", ", tree)[place]", ", tree)[0]"),
    ],
    "recipes.checkpoint.keras_state: torch keras_recompute": [
        ("a second run has another state", "        if self.thread is None:\n", "        if True:\n"),
        ("losses are lost", "collect_losses=True", "collect_losses=False"),
    ],
    "recipes.checkpoint.generic: numpy recipes": [
        ("changes in place unseen, generic", "                if old != new:", "                if False:"),
    ],
    "recipes.checkpoint.tensorflow: tensorflow recipes": [
        ("random operations pass", "conditions += sample.compare(fun.name, parts(results))", "pass"),
    ],
    "recipes.checkpoint.function: numpy recipes": [
        ("globals unseen", "[fun, *self.static.leaves, *values]", "[fun, *self.static.leaves]"),
    ],
    "keras.__init__: numpy with_keras": [
        ("installed in the place of install", "install, installed", "installed, installed as install"),
    ],
    "keras.base: numpy with_keras": [
        ("a mask is dropped", "self.supports_masking = True", "self.supports_masking = False"),
    ],
    "keras.installation: numpy with_keras": [
        ("the first block that ends uninstalls for all", "while _replaced and not _requests:", "while _replaced:"),
    ],
    "keras.layers: torch with_keras": [
        ("the scale of a reversal forgotten", "reverse_gradient(inputs, self._scale)", "reverse_gradient(inputs)"),
        ("the step of a config forgotten", 'initial_step", "', ""),
    ],
    "keras.loss_scale: torch with_keras": [("clipped without the loss scale", "times(scale, norm))", "norm)")],
    "keras.messages: torch with_keras": [("another remedy", "return_losses=True", "training=True")],
    "keras.operation: jax with_keras": [
        ("variables pass", "            if variable.trainable:\n", "            if False:\n"),
    ],
    "keras.operation: numpy with_keras": [
        ("any object of that name is loaded", "registered is not None and registered is not function", "False"),
    ],
}
FAULTS = [(key.partition(":")[0], *row) for key, rows in TABLE.items() for row in rows]
WHERE = {what: key.partition(": ")[2] for key, rows in TABLE.items() for what, _, _ in rows}


def changed(module, old, new):
    """The file of a module below the root, and its text with a fault."""
    file = pathlib.Path("keras_cg", *module.split(".")).with_suffix(".py")
    source = (ROOT / file).read_text()
    assert source.count(old) == 1, f"{file} has these lines no more, or twice: {old}"
    text = source.replace(old, new)
    assert compile(text, file, "exec") != compile(source, file, "exec"), f"nothing of {file} changed: {new}"
    return file, text


@contextlib.contextmanager
def planted(module, old, new):
    """A folder with a copy of the package that has a fault."""
    file, text = changed(module, old, new)
    with tempfile.TemporaryDirectory() as folder:
        for package in ("keras_cg", "_keras_cg"):
            shutil.copytree(ROOT / package, f"{folder}/{package}")
        pathlib.Path(folder, file).write_text(text)
        yield folder


def files(backend, suites):
    """The files of tests of some suites, in their order."""
    patterns = " ".join(SUITES.get(suite, f"test_{suite}*") for suite in suites).format(backend).split()
    found = [path for pattern in patterns for path in sorted(TESTS.glob(f"**/{pattern}.py"))]
    # Those that only run by themselves have names that others have, too.
    found = [
        path for path in found if path.name.startswith("test_") and path.parent.name not in ("export", "gpu", "scale")
    ]
    return [*dict.fromkeys(map(str, found))]


def first_failure(folder, backend, tests, *options, seconds=900):
    """The first of some tests that fails with the package of a folder, or None."""
    paths = [folder, TESTS, os.environ.get("PYTHONPATH", "")]
    # Not from the working directory, which has the package without a fault: neither here nor in what tests start.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONSAFEPATH": "1"}
    if any("with_keras" in test for test in tests):
        environment["KERAS_BACKEND"] = backend
    command = (sys.executable, "-m", "pytest", "-xq", "-rfE", "--tb=no", "-pno:cacheprovider")
    command = (*command, f"--backends={backend}", *options, *tests)
    try:
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return "(time is over)"
    lines = run.stdout.decode().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    if failed:
        return failed[0].partition(" - ")[0].partition(" ")[2]
    return None if run.returncode == 0 else (lines or run.stderr.decode().splitlines() or ["?"])[-1]


def finder(fault, where, *options):
    """The first test that fails with a fault and not without it, or None."""
    module, what, old, new = fault
    backend, *suites = (where or WHERE[what]).split()
    with planted(module, old, new) as folder:
        test = first_failure(folder, backend, files(backend, suites), *options)
    if test and "::" in test and first_failure(ROOT, backend, [test]):
        print(f"{test} fails without a fault, too", flush=True)  # noqa: T201
        return None
    return test


def chosen(words):
    """The faults with a number, or with a word in their module or description; without words, all."""
    for number, fault in enumerate(FAULTS, 1):
        if not words or any(word == str(number) or word in f"{fault[0]}: {fault[1]}" for word in words):
            yield number, fault


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--where", help="other tests than the table says: a backend, and suites or names of files")
    given, options = parser.parse_known_args()
    if not given.words and not given.all:
        parser.error("numbers, words or --all")

    def find(fault):
        start = time.monotonic()
        return finder(fault, given.where, *options), time.monotonic() - start

    missed = []
    with ThreadPoolExecutor(given.jobs) as pool:
        faults = {pool.submit(find, fault): (number, fault) for number, fault in chosen(given.words)}
        for each in as_completed(faults):
            number, (module, what, _, _) = faults[each]
            test, seconds = each.result()
            missed += [] if test else [number]
            print(f"{number:3} {module}: {what} | {test or 'NOT FOUND'} | {seconds:.0f} s", flush=True)  # noqa: T201
    print(f"{len(faults)} faults, not found: {sorted(missed) or 'none'}")  # noqa: T201
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
