"""What a backend is: the folder is the registry, and a fifth one takes one file and no edit elsewhere."""

import contextlib
import subprocess
import sys
import textwrap

import numpy
import pytest

import keras_cg
from keras_cg import backends

pytestmark = pytest.mark.together

TOY = '''
"""A backend whose tensors are one Python float each, with a tape of its own."""

import contextlib
import types

import numpy

namespace = types.ModuleType("toy.namespace")
namespace.exp = lambda x: Toy(__import__("math").exp(x.value), [(x, __import__("math").exp(x.value))])
namespace.ones_like = lambda x: Toy(1.0)
namespace.zeros_like = lambda x: Toy(0.0)


class Toy:
    def __init__(self, value, parents=()):
        self.value, self.parents = value, list(parents)

    def __mul__(self, other):
        other = asarray(other)
        return Toy(self.value * other.value, [(self, other.value), (other, self.value)])

    __rmul__ = __mul__


tensors = (Toy,)


def is_tensor(value):
    return isinstance(value, Toy)


def asarray(value):
    return value if isinstance(value, Toy) else Toy(float(value))


def to_numpy(tensor):
    return numpy.asarray(tensor.value)


def shape(tensor):
    return ()


def dtype(tensor):
    return "float64"


def cast(value, dtype):
    return value


def children(value):
    return None


def converted(fun):
    return fun


def is_recording():
    # A toy records always.
    return True


def attach(fun, tensors):
    outputs, pullback = fun(*tensors)
    node = Toy(outputs[0].value)
    node.pull = lambda upstream: list(zip(tensors, pullback([upstream])[0]))
    return (node,)


def vjp(fun, tensors):
    outputs, aux = fun(*tensors)

    def pullback(cotangents):
        found = {id(each): 0.0 for each in tensors}

        def visit(node, upstream):
            if id(node) in found:
                found[id(node)] += upstream
            elif hasattr(node, "pull"):
                for parent, gradient in node.pull(Toy(upstream)):
                    visit(parent, gradient.value)
            for parent, factor in node.parents:
                visit(parent, upstream * factor)

        visit(outputs[0], cotangents[0].value)
        return tuple(Toy(found[id(each)]) for each in tensors)

    return outputs, pullback, aux


def jvp(fun, tensors, tangents):
    # The derivative of a number is itself, transposed or not.
    outputs, (found,), aux = jacobian(fun, tensors)
    return outputs, (Toy(sum(slope.value * tangent.value for slope, tangent in zip(found, tangents))),), aux


def jacobian(fun, tensors):
    outputs, pullback, aux = vjp(fun, tensors)
    return outputs, (pullback([Toy(1.0)]),), aux


def recompute(fun, tensors):
    return fun(*tensors)


def compiled(fun):
    return None


def double_precision():
    return contextlib.nullcontext()


def devices():
    return ("toy",)
'''

USE = """
    import keras_cg
    from keras_cg import ops

    @keras_cg.custom_gradient
    def f(params, n):
        y = ops.exp(params["w"])
        return {"y": y}, lambda *args, upstream: ({"w": 7 * upstream["y"] * y}, None)

    print(keras_cg.backend(), keras_cg.available_backends()[-1])
    g = lambda x: f({"w": x}, n=3)["y"]
    print(keras_cg.grad(g)(0.0).value)
    tangent = keras_cg.jvp(g, (0.0,), (3.0,))[1]
    print(keras_cg.vjp(g, 0.0)[1](2.0)[0].value, tangent.value, keras_cg.jacobian(g)(0.0).value)
    try:
        keras_cg.grad(lambda x: keras_cg.custom_gradient(lambda x: (x, lambda g: (g, g)))(x))(0.0)
    except keras_cg.GradientError as error:
        print(str(error).splitlines()[0])
    try:
        keras_cg.set_backend("toi")
    except ValueError as error:
        print(error)
"""


def install(folder, source, value="toy_backend"):
    """A package elsewhere that registers a backend by an entry point."""
    (folder / "toy_backend.py").write_text(source)
    info = folder / "toy_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    points = f"[keras_cg.backends]\ntoy = {value}\n[keras_cg.transforms]\ntoy = toy_transforms\n"
    (info / "entry_points.txt").write_text(points)


def run(folder, code, backend="toy"):
    import os

    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "KERAS_CG_BACKEND": backend}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)


@pytest.mark.once
def test_a_fifth_backend_takes_one_file(tmp_path):
    install(tmp_path, TOY)
    done = run(tmp_path, USE)
    assert done.returncode == 0, done.stderr
    first, gradient, others, refused, unknown = done.stdout.splitlines()
    assert first == "toy toy"
    assert float(gradient) == 7.0
    assert others == "14.0 21.0 7.0"
    assert refused.endswith("returned 2 gradients.")
    assert "jax, numpy, tensorflow, torch, toy" in unknown and "Did you mean 'toy'?" in unknown


NUMPY_ELSEWHERE = """
from keras_cg.backends.numpy import *
from keras_cg.backends.numpy import attach as attach_numpy

def attach(fun, tensors):
    return {attach}
"""

TRANSFORMS_ELSEWHERE = """
from conformance.transforms.numpy import *
from conformance.transforms.numpy import TRANSFORMS as ALL

TRANSFORMS = {name: ALL[name] for name in ("call", "grad")}
"""


@pytest.mark.once
@pytest.mark.parametrize(
    ("attach", "passed", "failed"), [("attach_numpy(fun, tensors)", 6, 0), ("fun(*tensors)[0]", 3, 3)]
)
def test_the_conformance_suite_runs_on_a_backend_elsewhere(tmp_path, attach, passed, failed):
    import pathlib

    install(tmp_path, NUMPY_ELSEWHERE.format(attach=attach))
    (tmp_path / "toy_transforms.py").write_text(TRANSFORMS_ELSEWHERE)
    code = """
        import sys, pytest
        options = ["-q", "-p", "no:cacheprovider", "--backends=toy", "-k", "matmul or log1pexp or keyword"]
        sys.exit(pytest.main([*options, "{suite}"]))
    """
    done = run(tmp_path, code.format(suite=pathlib.Path(__file__).parent / "conformance"))
    summary = done.stdout.splitlines()[-1]
    assert f"{passed} passed" in summary
    assert f"{failed} failed" in summary if failed else "failed" not in summary


@pytest.mark.once
def test_an_incomplete_backend(tmp_path):
    install(tmp_path, TOY.replace("def attach(", "def attached(").replace("def shape(", "def shaped("))
    done = run(tmp_path, "import keras_cg; keras_cg.custom_gradient(lambda x: (x, lambda g: g))(1)")
    assert done.returncode == 1
    assert "ImportError: the backend 'toy' lacks shape, attach" in done.stderr


@pytest.mark.once
def test_an_entry_point_to_nowhere(tmp_path):
    install(tmp_path, TOY, "absent_package.module")
    done = run(tmp_path, "import keras_cg; print(keras_cg.available_backends()); keras_cg.ops.exp")
    assert done.returncode == 1
    assert "toy" not in done.stdout
    assert "the backend 'toy'" in done.stderr and "needs 'absent_package', which is not installed" in done.stderr


def test_the_folder_is_the_registry():
    assert backends.names()[:4] == ("jax", "numpy", "tensorflow", "torch")


def test_a_backend_defines_the_contract_in_its_order(backend):
    import ast
    import inspect

    module = backends.load(backend, "a test")
    tree = ast.parse(inspect.getsource(module))
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in backends.CONTRACT]
    assert defined == [name for name in backends.CONTRACT if name not in ("namespace", "tensors")]
    assert sorted(module.__all__) == sorted(backends.CONTRACT)


@contextlib.contextmanager
def nobody(backend):
    """Where nobody differentiates."""
    if backend == "torch":  # records everywhere else
        import torch

        with torch.no_grad():
            yield
    elif backend == "numpy":  # counts for good what ended by an exception (autograd 1.9), maybe in another test
        from autograd.tracer import trace_stack

        before, trace_stack.top = trace_stack.top, -1
        yield
        trace_stack.top = before
    else:
        yield


def test_a_backend_says_whether_somebody_differentiates(backend):
    module = backends.load(backend, "a test")
    with nobody(backend):
        assert module.is_recording() is False
    seen = []

    def f(x):
        seen.append(module.is_recording())
        return x * x

    keras_cg.grad(f)(3.0)
    keras_cg.hessian(f)(3.0)
    keras_cg.jvp(f, (3.0,), (1.0,))
    if compiled := module.compiled(lambda x: (f(x),)):
        compiled(module.asarray(3.0))
    assert set(seen) == {True}
    with nobody(backend):
        assert module.is_recording() is False


CALLS = {
    "a tensor": (lambda x: x * 2, lambda output: [output]),
    "a nest": (lambda x: {"y": (x * 2, 3), "name": "f"}, lambda output: [output["y"][0]]),
    "a tensor and numbers": (lambda x: (x * 2, 0.5, None), lambda output: [output[0]]),
}


@pytest.mark.parametrize("output", CALLS)
def test_a_call_that_nobody_differentiates_is_the_function_alone(backend, monkeypatch, output):
    module = backends.load(backend, "a test")
    compute, tensors = CALLS[output]
    monkeypatch.setattr(module, "attach", lambda fun, tensors: pytest.fail("attached"))
    f = keras_cg.custom_gradient(lambda x: (compute(x), lambda *upstream: 7 * upstream[0]))
    with nobody(backend):
        found = f(module.asarray(numpy.array([1.0, 2.0])))
    assert [module.to_numpy(each).tolist() for each in tensors(found)] == [[2.0, 4.0]]
    if output == "a nest":
        assert found["y"][1] == 3 and found["name"] == "f"


def test_a_call_that_nobody_differentiates_must_return_a_pair(backend):
    module = backends.load(backend, "a test")
    with nobody(backend), pytest.raises(TypeError, match="must return a pair"):
        keras_cg.custom_gradient(lambda x: x)(module.asarray(1.0))


def test_a_call_that_nobody_differentiates_returns_the_frameworks_own_tensors(backend):
    module = backends.load(backend, "a test")
    f = keras_cg.custom_gradient(lambda x: (numpy.array([1.0, 2.0]), lambda upstream: upstream))
    with nobody(backend):
        if backend == "torch":
            with pytest.raises(TypeError, match="the output"):
                f(module.asarray(1.0))
        else:
            assert isinstance(f(module.asarray(1.0)), module.tensors)


def test_a_backend_knows_neither_the_frontend_nor_another_backend(backend):
    import inspect

    source = inspect.getsource(backends.load(backend, "a test"))
    for stranger in ("frontend", "rule", "nest", "config", "signature", "autodiff"):
        assert f"keras_cg.{stranger}" not in source and f"import {stranger}" not in source
    for other in {"jax", "torch", "tensorflow", "autograd"} - {backend, "autograd" if backend == "numpy" else ""}:
        assert f"import {other}" not in source


def test_the_public_names_are_what_is_exported():
    # pytest adds names with @ to the modules of a package that has a plugin.
    public = {name for name in vars(keras_cg) if not name.startswith(("_", "@"))}
    modules = {"autodiff", "backends", "closure", "config", "errors", "frontend", "nest", "rule", "signature", "state"}
    modules |= {"command", "keras", "pytest_plugin", "testing", "tracing"}  # if somebody imported them
    assert public - modules == set(keras_cg.__all__)
    assert keras_cg.__all__ == sorted(keras_cg.__all__)


@pytest.mark.parametrize("name", [name for name in keras_cg.__all__ if name not in ("ops", "recipes")])
def test_public_names_have_docstrings(name):
    assert getattr(keras_cg, name).__doc__.strip()


def test_the_docstrings_run(clean_environment):
    import doctest

    from keras_cg import autodiff, config, frontend
    from keras_cg.recipes import discrete, passing, repeated, safe

    for module in (autodiff, config, frontend, discrete, passing, repeated, safe):
        tested = doctest.testmod(module)
        assert tested.attempted and not tested.failed
