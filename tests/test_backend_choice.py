"""Which backend is active: who chooses it, for how long; a wrong choice is named, and others stay unloaded."""

import asyncio
import concurrent.futures
import functools
import importlib
import sys
import threading
from types import SimpleNamespace

import numpy as np
import programs
import pytest
from wrong_rules import X

import keras_cg
from keras_cg import custom_gradient, ops

# In a fresh interpreter that has no choice of a backend.
run = functools.partial(programs.run, without=("KERAS_CG_BACKEND", "KERAS_BACKEND"))


# --- the order of the choices --------------------------------------------------------------------------------------


@pytest.mark.together
@pytest.mark.limit
def test_order(clean_environment):
    """From the last to the first; what is empty is unset."""
    clean_environment.set("KERAS_CG_BACKEND", "")
    clean_environment.set("KERAS_BACKEND", "")
    assert keras_cg.backend() == "numpy"
    clean_environment.set("KERAS_BACKEND", "tensorflow")
    assert keras_cg.backend() == "tensorflow"
    clean_environment.module(sys.modules, "keras", SimpleNamespace(backend=SimpleNamespace(backend=lambda: "jax")))
    assert keras_cg.backend() == "jax"
    clean_environment.set("KERAS_CG_BACKEND", "torch")
    assert keras_cg.backend() == "torch"
    keras_cg.set_backend("numpy")
    assert keras_cg.backend() == "numpy"
    with keras_cg.use_backend("jax"):
        assert keras_cg.backend() == "jax"
        with keras_cg.use_backend("torch"):
            assert keras_cg.backend() == "torch"
        assert keras_cg.backend() == "jax"
    assert keras_cg.backend() == "numpy"
    keras_cg.set_backend(None)
    assert keras_cg.backend() == "torch"


@pytest.mark.together
def test_read_when_called(clean_environment):
    seen = []
    f = custom_gradient(lambda x: (seen.append(keras_cg.backend()) or x, lambda upstream: upstream))
    f(1)
    clean_environment.set("KERAS_CG_BACKEND", "numpy")
    f(1)
    assert seen == ["numpy", "numpy"]
    with keras_cg.use_backend("numpy"):
        clean_environment.set("KERAS_CG_BACKEND", "nonsense")
        f(1)
    with pytest.raises(ValueError, match="nonsense"):
        f(1)


@pytest.mark.together
def test_use_backend_belongs_to_its_thread_and_its_task(clean_environment):
    async def task(name):
        with keras_cg.use_backend(name):
            await asyncio.sleep(0)
            return keras_cg.backend()

    async def main():
        return await asyncio.gather(*map(task, ("jax", "torch", "numpy")))

    assert asyncio.run(main()) == ["jax", "torch", "numpy"]
    found = []
    with keras_cg.use_backend("jax"):
        thread = threading.Thread(target=lambda: found.append(keras_cg.backend()))
        thread.start()
        thread.join()
    assert found == ["numpy"]


@pytest.mark.together
def test_use_backend_ends_with_an_exception(clean_environment):
    with pytest.raises(RuntimeError), keras_cg.use_backend("jax"):
        raise RuntimeError
    assert keras_cg.backend() == "numpy"


# --- bad choices ---------------------------------------------------------------------------------------------------


@pytest.mark.together
@pytest.mark.parametrize(
    ("name", "near"),
    [("pytorch", "torch"), ("tf", "tensorflow"), ("Jax", "jax"), ("tensorflw", "tensorflow"), ("np", "numpy")],
)
def test_unknown_names_the_nearest(clean_environment, name, near):
    for choose in (keras_cg.set_backend, lambda name: keras_cg.use_backend(name).__enter__()):
        with pytest.raises(ValueError) as caught:
            choose(name)
        text = str(caught.value)
        assert f"unknown backend {name!r}" in text and f"Did you mean {near!r}?" in text
        for known in ("jax", "numpy", "tensorflow", "torch"):
            assert known in text
    assert keras_cg.backend() == "numpy"


@pytest.mark.together
@pytest.mark.parametrize("variable", ["KERAS_CG_BACKEND", "KERAS_BACKEND"])
def test_unknown_in_the_environment_names_the_variable(clean_environment, variable):
    clean_environment.set(variable, "theano")
    for ask in (keras_cg.backend, lambda: custom_gradient(lambda x: (x, x))(1), lambda: ops.exp):
        with pytest.raises(ValueError, match=rf"unknown backend 'theano' \(from the environment variable {variable}\)"):
            ask()


@pytest.mark.only("numpy")
def test_a_variable_that_does_not_exist_is_told():
    code = """
        import warnings
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            from keras_cg import ops, backend
        print(*[f"{each.filename}:{each.lineno} {each.category.__name__}: {each.message}" for each in told], backend())
    """
    assert run(code, KERAS_CG_BACKENDS="jax") == (
        "<string>:5 UserWarning: the environment variable KERAS_CG_BACKENDS is ignored: keras_cg knows"
        " KERAS_CG_BACKEND and KERAS_CG_TRACEBACK. Did you mean 'KERAS_CG_BACKEND'? numpy"
    )
    assert run(code, KERAS_CG_BACKEND="numpy", KERAS_CG_TRACEBACK="full") == "numpy"


# A framework whose import raises, and what is said of it.
ABSENT = """
    import importlib.abc, importlib.util, sys
    class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name, path=None, target=None):
            return importlib.util.spec_from_loader(name, self) if name.partition(".")[0] == "jax" else None
        def exec_module(self, module):
            raise {}
    sys.meta_path.insert(0, Absent())
    import keras_cg
    try:
        keras_cg.custom_gradient(lambda x: (x, lambda g: g))(1.0)
    except ImportError as error:
        print(type(error).__name__, error, "cause:", repr(error.__cause__))
"""
FROM = "ImportError the backend 'jax' (from the environment variable KERAS_CG_BACKEND)"


@pytest.mark.only("numpy")
def test_a_framework_that_does_not_start():
    """It is not installed, or broken."""
    text = run(ABSENT.format("ModuleNotFoundError('No module named \\'jax\\'', name='jax')"), KERAS_CG_BACKEND="jax")
    assert text.startswith(f"{FROM} needs 'jax', which is not installed")
    assert 'remedy: pip install "keras-cg[jax]"' in text
    text = run(ABSENT.format("RuntimeError('libdevice is missing')"), KERAS_CG_BACKEND="jax")
    assert text.startswith(f"{FROM} is installed but does not start") and "RuntimeError: libdevice is missing" in text
    assert "remedy: " in text and 'pip install --force-reinstall "keras-cg[jax]"' in text
    assert "cause: RuntimeError('libdevice is missing')" in text


# --- laziness ------------------------------------------------------------------------------------------------------

LAZY = """
    import sys

    def show():
        print([name for name in ("jax", "torch", "tensorflow", "keras", "autograd") if name in sys.modules])

    import keras_cg, keras_cg.testing
    @keras_cg.custom_gradient
    def f(x):
        return x, lambda upstream: upstream
    class Layer:
        @keras_cg.ops.custom_gradient
        def call(self, x):
            return x, lambda upstream: upstream
    Layer().call
    keras_cg.available_backends(), keras_cg.backend()
    show()
    f(1.0)
    show()
"""


@pytest.mark.only("numpy")
def test_decorating_loads_no_framework_and_a_call_the_active_one_alone():
    assert run(LAZY) == "[]\n['autograd']"


# --- several in one process ----------------------------------------------------------------------------------------


@custom_gradient
def f(params, n=2, *, scale):
    y = ops.exp(params["w"]) * scale
    backend = keras_cg.backend()

    def grad(*args, upstream):
        assert keras_cg.backend() == backend
        return {"w": 7 * upstream["y"] * y}, None, 5 * upstream["y"]

    return {"y": y * n, "backend": backend}, grad


def check(name):
    """The function and its rule on a backend, in every mode; torch.compile takes long, and has a test below."""
    native = importlib.import_module(f"frameworks.{name}")
    with keras_cg.use_backend(name):

        def run(w, scale):
            output = f({"w": w}, scale=scale)
            assert output["backend"] == name
            return output["y"]

        for mode in native.MODES if name != "torch" else ("eager",):
            output, (gw, gs) = native.differentiate(run, [X, 2 * X], mode)
            np.testing.assert_allclose(output, np.exp(X) * 4 * X, rtol=1e-5)
            np.testing.assert_allclose(gw, 7 * np.exp(X) * 2 * X, rtol=1e-5)
            np.testing.assert_allclose(gs, np.full(3, 5.0))
    return name


@pytest.mark.side_by_side
def test_switching(backends, clean_environment):
    assert {"numpy", *backends} <= set(keras_cg.available_backends())
    for name in (*backends, *reversed(backends)):
        check(name)
        keras_cg.set_backend(name)
        output = f({"w": importlib.import_module(f"frameworks.{name}").tensor(X)}, scale=1.0)
        assert output["backend"] == name


@pytest.mark.side_by_side
def test_each_thread_its_own_backend(backends):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        work = list(backends) * (8 // len(backends))
        assert list(pool.map(check, work)) == work


@pytest.mark.side_by_side
def test_torch_compile_follows_the_backend(backends):
    if not {"torch", "numpy"} <= set(backends):
        return
    import torch

    with keras_cg.use_backend("torch"):
        compiled = torch.compile(lambda x: f({"w": x}, scale=1.0)["y"], backend="eager")
        compiled(torch.ones(3))
    with keras_cg.use_backend("numpy"), pytest.raises(Exception, match="active backend is 'numpy'"):
        compiled(torch.ones(3))
