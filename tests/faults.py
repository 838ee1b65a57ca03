"""Plants faults in the core, one after the other, and says which of them the tests of one compiled mode find.

So it is seen whether what a file lists as `IN_EVERY_MODE` finds what all of its cases find:

    PYTHONPATH=tests python -m faults jax "jit(grad)"
    PYTHONPATH=tests python -m faults jax "jit(grad)" --every-mode

Numbers of faults behind the mode leave out the others.
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
FILES = ("conventions", "returns", "arguments", "planted_faults", "never_silent")

# Module, what is wrong, the lines as they are, and as they are planted.
FAULTS = [
    (
        "conventions",
        "one positional read as one by one",
        'if parameters.varargs is None and len(positional) == 1 and "upstream" not in parameters.keyword_only:',
        "if False:",
    ),
    (
        "conventions",
        "arguments not before upstream",
        'return (*self.values, *[default for _, default in left]), {"upstream": upstream}',
        'return (*self.values[::-1], *[default for _, default in left]), {"upstream": upstream}',
    ),
    (
        "conventions",
        "defaults left out",
        'return (*self.values, *[default for _, default in left]), {"upstream": upstream}',
        'return (*self.values, *[None for _, default in left]), {"upstream": upstream}',
    ),
    (
        "conventions",
        "varargs get upstream whole",
        "return (EACH, range(count)) if fits else None",
        "return (WHOLE, ()) if fits else None",
    ),
    (
        "conventions",
        "defaults count as required",
        "if required <= 1:",
        "if required <= 0:",
    ),
    (
        "conventions",
        "one for each tensor alone",
        "return EACH, self.output.places",
        "return EACH, list(self.output.places)[::-1]",
    ),
    (
        "conventions",
        "integer outputs not counted",
        "return (EACH, range(count)) if required == count else None",
        "return None",
    ),
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
    (
        "conventions",
        "variables are positional",
        'positional = parameters.without("variables")\n        if parameters.varargs',
        'positional = parameters.without("none")\n        if parameters.varargs',
    ),
    (
        "conventions",
        "upstream not packed",
        "upstream = self.output.unflatten(upstreams)",
        "upstream = upstreams[0] if len(upstreams) == 1 else list(upstreams)",
    ),
    (
        "conventions",
        "misfits pass",
        "            raise self._misfit(len(upstreams))\n        gets, places = way",
        "            return (upstreams[0],), {}\n        gets, places = way",
    ),
    (
        "gradients",
        "a row reversed",
        "if is_row and all(map(backend.is_tensor, result)):\n            return result",
        "if is_row and all(map(backend.is_tensor, result)):\n            return result[::-1]",
    ),
    (
        "gradients",
        "whole nest read as inserted",
        "return [whole.leaves[place] for place in places]\n        value",
        "return [whole.leaves[place] for place in places][::-1]\n        value",
    ),
    (
        "gradients",
        "None is an error",
        "return value is None or (type(value) in (int, float) and value == 0)",
        "return value is None",
    ),
    (
        "gradients",
        "no cast",
        "return gradient if came == dtype else backend.cast(gradient, dtype)",
        "return gradient",
    ),
    (
        "gradients",
        "shape unchecked",
        "if not compatible(size, shape):",
        "if False:",
    ),
    (
        "gradients",
        "complex unchecked",
        'if came.startswith("complex") and not dtype.startswith("complex"):',
        "if False:",
    ),
    (
        "gradients",
        "boolean unchecked",
        'if came == "bool":',
        "if False:",
    ),
    (
        "gradients",
        "integers get gradients",
        "if gradient is None or not is_differentiable(dtype):",
        "if gradient is None:",
    ),
    (
        "gradients",
        "zero is a tensor",
        "if gradient == 0 and not isinstance(gradient, bool):\n            return None",
        "if gradient == 0 and not isinstance(gradient, bool):\n            gradient = 7.0",
    ),
    (
        "gradients",
        "defaults not put in",
        "complete = self._with_every_default(explicit)",
        "complete = explicit",
    ),
    (
        "gradients",
        "keywords in another order",
        "keyword_only = signature.left_keyword_only(arguments.fun, named)",
        "keyword_only = list(signature.left_keyword_only(arguments.fun, named))[::-1]",
    ),
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
        "ambiguous is taken",
        "if is_blank and not all(",
        "if False and not all(",
    ),
    (
        "gradients",
        "static gradients read",
        "clean = [reading for reading in sorted_ones if self._is_clean(reading)] or sorted_ones",
        "clean = sorted_ones",
    ),
    (
        "gradients",
        "wanted upside down",
        "if wanted is not None and not wanted[index]:",
        "if wanted is not None and wanted[index]:",
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
    (
        "arguments",
        "keywords lost their order",
        "return values[:count], dict(zip(self.keywords, values[count:], strict=True))",
        "return values[:count], dict(zip(self.keywords, values[count:][::-1], strict=True))",
    ),
    (
        "arguments",
        "by keyword not positional",
        "return (*args, *signature.by_position(self.fun, len(args), kwargs))",
        "return args",
    ),
    (
        "arguments",
        "labels off",
        "named.append(label + inside)",
        "named.append(label)",
    ),
    (
        "leaves",
        "scalars of NumPy refused",
        "if isinstance(leaf, complex) or is_scalar:\n        return",
        "if isinstance(leaf, complex) or is_scalar:\n        raise TypeError(leaf)",
    ),
    (
        "leaves",
        "shapes compared by rank",
        "return all(a is None or b is None or a == b for a, b in zip(came, expected, strict=True))",
        "return True",
    ),
    (
        "leaves",
        "leaf kept as static",
        "leaves[place] = None\n    return",
        "pass\n    return",
    ),
    (
        "call",
        "arguments in the rule without defaults",
        "values = given.by_position(args, kwargs) if kwargs else args",
        "values = args",
    ),
    (
        "call",
        "integer upstreams given",
        "if cotangent is not None and is_differentiable(backend.dtype(cotangent)):",
        "if cotangent is not None:",
    ),
    (
        "call",
        "upstreams at other places",
        "for place, cotangent in zip(outputs.places, cotangents, strict=False):",
        "for place, cotangent in zip(list(outputs.places)[::-1], cotangents, strict=False):",
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
    (
        "call",
        "rule unchecked",
        "if not callable(rule):\n        raise errors.rule_not_callable(name, rule)",
        "pass",
    ),
    (
        "call",
        "changed variables first",
        "return output.combine(results[:count])",
        "return output.combine(list(results[:count])[::-1])",
    ),
]


class Tests:
    """A plugin that runs the tests of one mode alone, and counts."""

    def __init__(self, mode):
        # What is marked for it runs under inductor in the place of aot_eager.
        self.modes = (mode, "inductor") if mode == "aot_eager" else (mode,)
        self.failed, self.passed = [], 0

    def pytest_collection_modifyitems(self, items):
        frames = [getattr(getattr(item, "callspec", None), "params", {}).get("frame") for item in items]
        items[:] = [item for item, frame in zip(items, frames, strict=True) if frame and frame[1] in self.modes]

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
