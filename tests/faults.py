"""Plants faults in the core, one after the other, and prints the first test of one mode that finds each.

The eager mode also runs the tests that have no mode, such as those of the engine:

    PYTHONPATH=tests python -m faults numpy eager

A few faults change nothing on NumPy. Tests of PyTorch or JAX find these.

In a compiled mode, a file runs only the cases that it lists as `IN_EVERY_MODE`. They are enough if they find every
fault that all cases find:

    PYTHONPATH=tests python -m faults jax "jit(grad)"
    PYTHONPATH=tests python -m faults jax "jit(grad)" --every-mode

Numbers after the mode choose some of the faults.
"""

import argparse
import contextlib
import importlib
import io
import pathlib
import sys
import types

import pytest

TESTS = pathlib.Path(__file__).parent
FILES = ("conventions", "returns", "arguments", "errors", "never_silent")
FILES += ("pytree", "frozen", "engine", "engine_rules")

# Module below keras_cg, what is wrong, the lines as they are, and as they are planted.
FAULTS = [
    # A rule's convention.
    (
        "conventions",
        "one positional read as one by one",
        "elif len(positional) == 1 or (positional and (count == 1 or parameters.required() <= 1)):",
        "elif positional and count == 1:",
    ),
    (
        "conventions",
        "arguments not before upstream",
        'values, upstream = self.values, {"upstream"',
        'values, upstream = self.values[::-1], {"upstream"',
    ),
    (
        "conventions",
        "defaults left out",
        "(*values, *[default for _, default in unbound])",
        "(*values, *[None for _, default in unbound])",
    ),
    (
        "conventions",
        "varargs get upstream whole",
        "return self._one_by_one(upstreams, range(count))",
        "return (self.output.unflatten(upstreams),), {}",
    ),
    ("conventions", "defaults count as required", "parameters.required() <= 1)):", "parameters.required() <= 0)):"),
    (
        "conventions",
        "one for each tensor alone",
        "tensors if parameters.required() == len(tensors)",
        "tensors[::-1] if parameters.required() == len(tensors)",
    ),
    ("conventions", "varargs get no arguments", "return len(positional) <= count", "return False"),
    (
        "conventions",
        "upstream not by name",
        'return "upstream" in parameters.keyword_only or "upstream" in parameters.without("variables")[1:]',
        'return "upstream" in parameters.keyword_only',
    ),
    (
        "conventions",
        "keyword only not by name",
        'return "upstream" in parameters.keyword_only or "upstream" in parameters.without("variables")[1:]',
        'return "upstream" in parameters.without("variables")[1:]',
    ),
    ("conventions", "upstream at any place", 'return positional.index("upstream") == count', "return True"),
    (
        "conventions",
        "upstream not packed",
        '{"upstream": self.output.unflatten(upstreams)}',
        '{"upstream": list(upstreams)}',
    ),
    ("conventions", "misfits pass", "raise self._misfit(count)", "return (upstreams[0],), {}"),
    ("conventions", "unsorted outputs pass", "if not self.output.is_in_order(places):", "if False:"),
    # The result of a rule.
    (
        "gradients",
        "a row reversed",
        "if gradients and all(map(backend.is_tensor, gradients)):\n            return gradients",
        "if gradients and all(map(backend.is_tensor, gradients)):\n            return gradients[::-1]",
    ),
    (
        "gradients",
        "whole nest read as inserted",
        "return [whole.leaves[place] for place in static.places]",
        "return [whole.leaves[place] for place in static.places][::-1]",
    ),
    (
        "gradients",
        "None is an error",
        "return value is None or (type(value) in (int, float) and value == 0)",
        "return value is None",
    ),
    ("gradients", "no cast", "return gradient if came == dtype else backend.cast(gradient, dtype)", "return gradient"),
    ("gradients", "shape unchecked", "if not compatible(size, shape):", "if False:"),
    (
        "gradients",
        "complex unchecked",
        'if came.startswith("complex") and not dtype.startswith("complex"):',
        "if False:",
    ),
    ("gradients", "boolean unchecked", 'if came == "bool":', "if False:"),
    ("gradients", "anything is a gradient", "if not isinstance(gradient, (int, float, complex)):", "if False:"),
    (
        "gradients",
        "zero is a tensor",
        "if gradient == 0 and not isinstance(gradient, bool):\n            return None",
        "if gradient == 0 and not isinstance(gradient, bool):\n            gradient = 7.0",
    ),
    ("gradients", "defaults not put in", "complete = self._with_defaults(explicit)", "complete = explicit"),
    ("gradients", "keywords at other places", "return named.pop(name)", "return named.popitem()[1]"),
    (
        "gradients",
        "dict keys as they come",
        "children = [by_key[key] for key in spec.entries()]",
        "children = list(by_key.values())",
    ),
    (
        "gradients",
        "None for a nest is refused",
        "if _is_nothing(value):\n        return [None] * spec.num_leaves",
        "if False:\n        return [None] * spec.num_leaves",
    ),
    (
        "gradients",
        "ambiguous results pass",
        "if not all(self._is_same(first.gradients, other.gradients) for other in others):",
        "if False:",
    ),
    (
        "gradients",
        "static gradients read",
        "first, *others = [*filter(self._is_clean, ordered)] or ordered",
        "first, *others = ordered",
    ),
    ("gradients", "unsorted results pass", "ordered = [*filter(self._is_in_order, readings)]", "ordered = readings"),
    (
        "gradients",
        "needs_grad inverted",
        "needs_grad is None or needs_grad[index]",
        "needs_grad is None or not needs_grad[index]",
    ),
    (
        "gradients",
        "broadcast axes unnamed",
        "if came is None or expected is None or len(came) < len(expected):\n        return []",
        "if True:\n        return []",
    ),
    (
        "gradients",
        "other type for a dataclass",
        "elif type(value) is not spec.type or list(entries) != list(spec.entries()):\n        return None",
        "elif True:\n        return None",
    ),
    # Arguments, and signatures.
    (
        "arguments",
        "keywords lost their order",
        "return values[:count], dict(zip(self.keywords, values[count:], strict=True))",
        "return values[:count], dict(zip(self.keywords, values[count:][::-1], strict=True))",
    ),
    ("arguments", "tensors reversed", "self._static.combine(tensors)", "self._static.combine(tensors[::-1])"),
    ("arguments", "labels off", "names[int(index)] + inside", "names[int(index)]"),
    (
        "arguments",
        "arguments without names",
        'parameters.label(place) if parameters else f"argument {place}"',
        'f"argument {place}"',
    ),
    ("signature", "labels reversed", "return self.positional[index]", "return self.positional[::-1][index]"),
    (
        "signature",
        "every call binds",
        "return all(name in known for name in (*self.positional[len(args) :], *self.keyword_only))",
        "return True",
    ),
    (
        "signature",
        "defaults of the first parameters",
        "names[len(names) - len(values) :], values",
        "names[: len(values)], values",
    ),
    (
        "signature",
        "defaults between keywords lost",
        "[kwargs.get(name, default) for name, default in pairs]",
        "[kwargs.get(name) for name, default in pairs]",
    ),
    ("signature", "self is a parameter", "positional = whole.positional[count:]", "positional = whole.positional"),
    ("signature", "parameters before a partial's keyword lost", "positional=positional[:first],", "positional=(),"),
    ("signature", "two parameters are one", "code.co_argcount != 1", "code.co_argcount not in (1, 2)"),
    # Pytrees.
    (
        "pytree",
        "scalars of NumPy refused",
        "(isinstance(leaf, numpy.ndarray) and leaf.ndim == 0):\n        return",
        "(isinstance(leaf, numpy.ndarray) and leaf.ndim == 0):\n        raise TypeError(leaf)",
    ),
    (
        "pytree",
        "shapes compared by rank",
        "return len(came) == len(expected) and all(a is None or b is None or a == b for a, b in pairs)",
        "return len(came) == len(expected)",
    ),
    ("pytree", "tensors stay in the static part", "leaves[place] = None\n    tree.is_plain", "pass\n    tree.is_plain"),
    (
        "pytree",
        "tensors at other places",
        "return self.fill(self.places, tensors)",
        "return self.fill(self.places, tensors[::-1])",
    ),
    ("pytree", "every dict is in order", "return ranks == sorted(ranks)", "return True"),
    ("pytree", "nodes stay wrapped", "return _unwrap(value) if self.is_wrapped else value", "return value"),
    # A call.
    (
        "call",
        "keywords not among the rule's arguments",
        "args = (*args, *signature.by_position(self.user, len(args), kwargs))",
        "args = (*args,)",
    ),
    (
        "call",
        "integers get upstreams",
        "if cotangent is not None and is_differentiable(backend.dtype(cotangent)):",
        "if cotangent is not None:",
    ),
    (
        "call",
        "upstreams at other places",
        "zip(output.places, cotangents, strict=False)",
        "zip(list(output.places)[::-1], cotangents, strict=False)",
    ),
    (
        "call",
        "kwargs unordered",
        "kwargs = signature.in_order(fun, kwargs) if kwargs else kwargs\n",
        "kwargs = dict(reversed(kwargs.items())) if kwargs else kwargs\n",
    ),
    (
        "call",
        "pair unchecked",
        "if not isinstance(pair, (tuple, list)) or len(pair) != 2:\n        raise errors.not_a_pair(name, pair)",
        "pass",
    ),
    ("call", "rule unchecked", "if not callable(rule):\n        raise errors.rule_not_callable(name, rule)", "pass"),
    (
        "call",
        "outputs reversed",
        "output.combine(results[: len(output.places)])",
        "output.combine(list(results[: len(output.places)])[::-1])",
    ),
    (
        "call",
        "fast path skips the check of shapes",
        " or gradient.dtype != tensor.dtype or gradient.shape != tensor.shape:",
        " or gradient.dtype != tensor.dtype:",
    ),
    ("call", "rule not frozen", "rule if backend.is_compiling() else freeze(rule), tree", "rule, tree"),
    # A rule is compared, copied and tried.
    ("engine.rule", "tensors never differ", "if is_equal is False:", "if False:"),
    ("engine.rule", "heads never differ", "if head != other_head:", "if False:"),
    ("engine.rule", "NaN differs from NaN", " or (a != a and b != b)", ""),
    ("engine.rule", "keyword defaults not compared", "parts += (value.__kwdefaults__ or {}).items()", "pass"),
    ("engine.rule", "arguments of a run are alike", 'f"argument {place}"', '"argument"'),
    (
        "engine.rule",
        "half of a container searched",
        "waiting.extend([part for _, part in _parts(value)])",
        "waiting.extend([part for _, part in _parts(value)][:1])",
    ),
    (
        "engine.rule",
        "shapes of arrays not compared",
        "if other.shape != first.shape or other.dtype != first.dtype:",
        "if other.dtype != first.dtype:",
    ),
    ("engine.freezing", "cells shared", "alone.append(CellType(value))", "alone.append(cell)"),
    (
        "engine.freezing",
        "functions in defaults shared",
        "tuple([_frozen(part, copies) for part in function.__defaults__])",
        "function.__defaults__",
    ),
    (
        "engine.freezing",
        "cells that the rule assigns to copied",
        "for name, cell in named if name in _writes(function.__code__).cells",
        "for name, cell in named if False",
    ),
    (
        "engine.freezing",
        "arguments of partials shared",
        "args = [_frozen(part, copies) for part in value.args]",
        "args = value.args",
    ),
    (
        "engine.freezing",
        "objects that assign to attributes copied",
        " or _assigns_attributes(method, kind, set()):",
        ":",
    ),
    ("engine.freezing", "functions of frameworks copied", "if not is_frameworks and (", "if ("),
    (
        "engine.linear",
        "sums not tried",
        "pairs = list(zip(pulled(1.0, -2.0), ",
        "pairs = list(zip(first, first, strict=True)) or list(zip(first, ",
    ),
    ("engine.linear", "zero not tried", "for scale in (0.0, *(", "for scale in (1.0, *("),
    ("engine.linear", "negative factors not tried", "for sign in (1, -1)", "for sign in (1,)"),
    (
        "engine.linear",
        "huge and tiny not tried",
        "return [2.0**power for power in (reach, reach // 2, -reach // 2, -reach)]",
        "return [1.0]",
    ),
    (
        "engine.linear",
        "every map is a transpose",
        "is_close = difference <= tolerance",
        "is_close = difference >= -tolerance",
    ),
    (
        "engine.linear",
        "overflow is an error",
        "return xp.all(xp.logical_not(xp.isfinite(difference)) | (difference <= allowed))",
        "return xp.all(difference <= allowed)",
    ),
    ("engine.linear", "no NaN in a trace", '1.0, float("nan"))', "1.0, 1.0)"),
]


class Tests:
    """A plugin that runs the tests of one mode alone, and counts."""

    def __init__(self, mode):
        # What is marked for it runs under inductor in the place of aot_eager.
        self.modes = (mode, "inductor") if mode == "aot_eager" else (mode,)
        self.failed, self.passed = [], 0

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if self.is_wanted(item)]

    def is_wanted(self, item):
        frame = getattr(getattr(item, "callspec", None), "params", {}).get("frame")
        if frame is None:
            # A test of that file plants every fault itself, and would fail for each.
            return "eager" in self.modes and item.module.__name__ != "test_planted"
        return frame[1] in self.modes

    def pytest_runtest_logreport(self, report):
        self.failed += [report.nodeid] if report.failed else []
        self.passed += report.when == "call" and report.passed


def run(backend, mode, *options):
    """The tests until one fails."""
    tests = Tests(mode)
    files = [str(TESTS / f"test_{name}.py") for name in FILES]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        pytest.main(["-x", "-p", "no:cacheprovider", f"--backends={backend}", *options, *files], plugins=[tests])
    return tests


def codes(code):
    """The code of all functions in a piece of code, by name."""
    found = {}
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            found |= {each.co_qualname: each, **codes(each)}
    return found


def functions(module):
    """Those of a module, and of its classes."""
    for each in vars(module).values():
        for one in (each, *vars(each).values()) if isinstance(each, type) else (each,):
            if isinstance(one, types.FunctionType) and one.__module__ == module.__name__:
                yield one


@contextlib.contextmanager
def planted(name, old, new):
    """A module with other lines: in the functions that are there already, as others hold them."""
    module = importlib.import_module(f"keras_cg.{name}")
    source = pathlib.Path(module.__file__).read_text()
    assert source.count(old) == 1, f"{name}.py has these lines no more, or twice: {old}"
    found = codes(compile(source.replace(old, new), module.__file__, "exec"))
    before = {function: function.__code__ for function in functions(module)}
    for function in before:
        code = found.get(function.__code__.co_qualname)
        if code is not None and code.co_freevars == function.__code__.co_freevars:
            function.__code__ = code
    assert any(function.__code__ != code for function, code in before.items()), f"nothing of {name}.py changed: {new}"
    try:
        yield
    finally:
        for function, code in before.items():
            function.__code__ = code


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend")
    parser.add_argument("mode")
    parser.add_argument("numbers", nargs="*", type=int)
    parser.add_argument("--every-mode", action="store_const", const="--every-mode")
    given = parser.parse_args()
    options = [given.every_mode] if given.every_mode else []
    tests = run(given.backend, given.mode, *options)
    print(f"without a fault: {tests.passed} passed, {len(tests.failed)} failed", flush=True)  # noqa: T201
    for number, (module, what, old, new) in enumerate(FAULTS, 1):
        if given.numbers and number not in given.numbers:
            continue
        with planted(module, old, new):
            tests = run(given.backend, given.mode, *options)
        first = tests.failed[0].rpartition("::")[2] if tests.failed else "NOT FOUND"
        print(f"{number:3} {module}: {what}: {first}", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
