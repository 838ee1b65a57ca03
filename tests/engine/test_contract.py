"""What a backend is: the folder is the registry, and a fifth one takes no edit elsewhere."""

import contextlib
import functools
import os
import pathlib
import pkgutil
import re

import numpy
import programs
import pytest
from conformance import zoo
from toy import transforms

import keras_cg
from keras_cg import backends
from keras_cg.engine import defaults
from keras_cg.engine.contract import OPTIONAL, REQUIRED

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

TESTS = pathlib.Path(__file__).parent.parent


def install(folder, *, transforms="toy.transforms", **backends):
    """A package elsewhere that registers backends by entry points, and the transforms of `toy` by another."""
    info = folder / "toy_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    points = [f"{name} = {module}" for name, module in backends.items()]
    lines = ["[keras_cg.backends]", *points, "[keras_cg.transforms]", f"toy = {transforms}"]
    (info / "entry_points.txt").write_text("\n".join(lines))


def run(folder, code):
    paths = [str(folder), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return programs.run(code, PYTHONPATH=os.pathsep.join(paths), KERAS_CG_BACKEND="toy").splitlines()


def conform(folder, which, *options):
    """The last line of what the conformance suite says of the backend `toy`."""
    code = f"""
        import sys, pytest
        options = ["-q", "-p", "no:cacheprovider", "--backends=toy", "-k", {which!r}, *{options!r}]
        sys.exit(pytest.main([*options, {str(TESTS / "conformance" / "test_conformance.py")!r}]))
    """
    return run(folder, code)[-1]


@pytest.mark.only("numpy")
def test_a_fifth_backend_takes_no_edit_elsewhere(tmp_path):
    install(tmp_path, toy="toy")
    first, gradient, others, refused, unknown = run(tmp_path, USE)
    assert first == "toy toy"
    assert float(gradient) == 7.0
    assert others == "14.0 21.0 7.0"
    assert refused.endswith("returned 2 gradients.")
    assert "jax, numpy, tensorflow, torch, toy" in unknown and "Did you mean 'toy'?" in unknown


# The toy has no complex numbers, no einsum and no integer indices; what it has of half precision ends in float32.
OUT_OF_REACH = ("holomorphic", "conjugate", "squared", "fourier", "einsum", "sparse", "half")


@pytest.mark.only("numpy")
@pytest.mark.parametrize("options", [["--dozen"], pytest.param([], marks=pytest.mark.thorough)], ids=["dozen", "all"])
def test_the_required_names_are_enough_for_the_conformance_suite(tmp_path, options):
    """First order, second order and forward mode, of every rule that the toy has the operations for.

    But for forward mode of rules that clip, which raises.
    """
    install(tmp_path, toy="toy")
    rules = [name for name in (zoo.DOZEN if options else zoo.ZOO) if not any(word in name for word in OUT_OF_REACH)]
    clipping = [name for name in rules if name.startswith("clip")]
    which = " and ".join(f"not {word}" for word in (*OUT_OF_REACH, "toy-jvp-clip", "table", "truth"))
    summary = conform(tmp_path, which, *options)
    assert (len(rules), len(clipping)) == ((12, 1) if options else (35, 2))
    assert re.search(rf"\b{len(transforms.TRANSFORMS) * len(rules) - len(clipping)} passed\b", summary)
    assert "failed" not in summary


@pytest.mark.only("numpy")
def test_a_backend_that_is_incomplete_or_absent(tmp_path):
    install(tmp_path, toy="incomplete", absent="absent_package.module")
    (tmp_path / "incomplete.py").write_text("from toy import *\ndel attach, shape")
    code = """
        import keras_cg
        print([name for name in keras_cg.available_backends() if name in ("toy", "absent")])
        for name in ("toy", "absent"):
            try:
                with keras_cg.use_backend(name):
                    keras_cg.custom_gradient(lambda x: (x, lambda g: g))(1)
            except ImportError as error:
                print(error)
    """
    installed, incomplete, remedy_of_incomplete, absent, remedy = run(tmp_path, code)
    assert installed == "['toy']"
    assert incomplete.startswith("the backend 'toy' lacks shape, attach")
    assert "remedy: update the package of the backend" in remedy_of_incomplete
    assert absent.startswith("the backend 'absent'") and "needs 'absent_package', which is not installed" in absent
    assert 'remedy: pip install "toy-backend", or choose another backend' in remedy


def is_derived(module, name):
    """Whether a name of a backend was filled in."""
    value, default = getattr(module, name), getattr(defaults, name)
    return value.func is default if isinstance(value, functools.partial) else value is default


@pytest.mark.together
def test_a_backend_names_the_contract(backend):
    module = backends.load(backend, "a test")
    files = {file.name for file in pkgutil.iter_modules(module.__path__)} - {*REQUIRED}  # `attach` is a file, too
    # pytest adds names with @ where there is a plugin.
    names = {name for name in vars(module) if not name.startswith(("_", "@"))} - files - {"annotations"}
    assert names == {*REQUIRED, *OPTIONAL}


@pytest.mark.together
def test_what_a_backend_leaves_out_is_derived():
    module = backends.load("numpy", "a test")
    assert {name for name in OPTIONAL if is_derived(module, name)} == set(OPTIONAL) - {"is_plain", "needs_grad"}
    assert all(getattr(defaults, name).__doc__ for name in OPTIONAL if callable(getattr(defaults, name)))


@contextlib.contextmanager
def not_recording(backend):
    """No derivative is recorded inside."""
    if backend == "torch":  # records everywhere else
        import torch

        with torch.no_grad():
            yield
    elif backend == "numpy":  # counts for good what ended by an exception (autograd 1.9), maybe in another test
        from autograd.tracer import trace_stack

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trace_stack, "top", -1)
            yield
    else:
        yield


@pytest.mark.together
def test_a_backend_says_whether_a_derivative_is_recorded(backend):
    module = backends.load(backend, "a test")
    with not_recording(backend):
        assert not module.is_recording()
    seen = []

    def f(x):
        seen.append(bool(module.is_recording()))
        return x * x

    keras_cg.grad(f)(3.0)
    keras_cg.hessian(f)(3.0)
    keras_cg.jvp(f, (3.0,), (1.0,))
    if compiled := module.compiled(lambda x: (f(x),)):
        compiled(module.asarray(3.0))
    assert set(seen) == {True}
    with not_recording(backend):
        assert not module.is_recording()


CALLS = {
    "a tensor": (lambda x: x * 2, lambda output: output),
    "a nest": (lambda x: {"y": (x * 2, 3), "name": "f"}, lambda output: output["y"][0]),
    "a tensor and numbers": (lambda x: (x * 2, 0.5, None), lambda output: output[0]),
}


@pytest.mark.together
@pytest.mark.parametrize("output", CALLS)
def test_a_call_that_is_not_differentiated_is_the_function_alone(backend, monkeypatch, output):
    module = backends.load(backend, "a test")
    compute, tensor = CALLS[output]
    monkeypatch.setattr(module, "attach", lambda fun, tensors: pytest.fail("attached"))
    f = keras_cg.custom_gradient(lambda x: (compute(x), lambda *upstream: 7 * upstream[0]))
    with not_recording(backend):
        found = f(module.asarray(numpy.array([1.0, 2.0])))
    assert module.to_numpy(tensor(found)).tolist() == [2.0, 4.0]
    if output == "a nest":
        assert found["y"][1] == 3 and found["name"] == "f"


@pytest.mark.together
def test_a_call_that_is_not_differentiated_is_checked_and_returns_the_frameworks_own_tensors(backend):
    module = backends.load(backend, "a test")
    f = keras_cg.custom_gradient(lambda x: (numpy.array([1.0, 2.0]), lambda upstream: upstream))
    with not_recording(backend):
        with pytest.raises(TypeError, match="must return a pair"):
            keras_cg.custom_gradient(lambda x: x)(module.asarray(1.0))
        if backend == "torch":
            with pytest.raises(TypeError, match="the output"):
                f(module.asarray(1.0))
        else:
            assert isinstance(f(module.asarray(1.0)), module.tensors)
