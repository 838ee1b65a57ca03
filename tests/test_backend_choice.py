"""CONTRACT 1: which backend is active, and the messages about it."""

import asyncio
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import pytest

import keras_cg

pytestmark = pytest.mark.together


def run(code, **environment):
    """Runs code in a fresh interpreter and returns what it printed."""
    import os

    kept = {key: value for key, value in os.environ.items() if key not in ("KERAS_CG_BACKEND", "KERAS_BACKEND")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env={**kept, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- the order of the choices --------------------------------------------------------------------------------------


def test_default(clean_environment):
    assert keras_cg.backend() == "numpy"


@pytest.mark.limit
def test_order(clean_environment):
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


def test_empty_is_unset(clean_environment):
    clean_environment.set("KERAS_CG_BACKEND", "")
    clean_environment.set("KERAS_BACKEND", "")
    assert keras_cg.backend() == "numpy"
    clean_environment.set("KERAS_BACKEND", "jax")
    assert keras_cg.backend() == "jax"


def test_the_environment_in_a_fresh_process():
    code = "import keras_cg; print(keras_cg.backend())"
    assert run(code) == "numpy"
    assert run(code, KERAS_CG_BACKEND="torch") == "torch"
    assert run(code, KERAS_BACKEND="jax") == "jax"
    assert run(code, KERAS_BACKEND="jax", KERAS_CG_BACKEND="tensorflow") == "tensorflow"


def test_read_when_called(clean_environment):
    seen = []

    @keras_cg.custom_gradient
    def f(x):
        seen.append(keras_cg.backend())
        return x, lambda upstream: upstream

    f(1)
    clean_environment.set("KERAS_CG_BACKEND", "numpy")
    f(1)
    assert seen == ["numpy", "numpy"]
    with keras_cg.use_backend("numpy"):
        clean_environment.set("KERAS_CG_BACKEND", "nonsense")
        f(1)
    with pytest.raises(ValueError, match="nonsense"):
        f(1)


def test_use_backend_belongs_to_its_thread(clean_environment):
    found = []
    with keras_cg.use_backend("jax"):
        thread = threading.Thread(target=lambda: found.append(keras_cg.backend()))
        thread.start()
        thread.join()
    assert found == ["numpy"]


def test_use_backend_belongs_to_its_task(clean_environment):
    async def task(name):
        with keras_cg.use_backend(name):
            await asyncio.sleep(0)
            return keras_cg.backend()

    async def main():
        return await asyncio.gather(*map(task, ("jax", "torch", "numpy")))

    assert asyncio.run(main()) == ["jax", "torch", "numpy"]


def test_use_backend_ends_with_an_exception(clean_environment):
    with pytest.raises(RuntimeError), keras_cg.use_backend("jax"):
        raise RuntimeError
    assert keras_cg.backend() == "numpy"


def test_available_backends(backends):
    available = keras_cg.available_backends()
    assert set(backends) <= set(available)
    assert "numpy" in available


# --- bad choices ---------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("variable", ["KERAS_CG_BACKEND", "KERAS_BACKEND"])
def test_unknown_in_the_environment_names_the_variable(clean_environment, variable):
    clean_environment.set(variable, "theano")
    for ask in (keras_cg.backend, lambda: keras_cg.custom_gradient(lambda x: (x, x))(1), lambda: keras_cg.ops.exp):
        with pytest.raises(ValueError, match=rf"unknown backend 'theano' \(from the environment variable {variable}\)"):
            ask()


@pytest.mark.parametrize("name", ["", 3, b"jax"], ids=str)
def test_no_name(clean_environment, name):
    with pytest.raises(ValueError, match="unknown backend"):
        keras_cg.set_backend(name)


MISSING = """
    import importlib.abc, sys
    class Absent(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "jax":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Absent())
    import keras_cg
    try:
        keras_cg.custom_gradient(lambda x: (x, lambda g: g))(1.0)
    except ImportError as error:
        print(type(error).__name__, error)
"""


def test_missing():
    text = run(MISSING, KERAS_CG_BACKEND="jax")
    assert text.startswith("ImportError the backend 'jax' (from the environment variable KERAS_CG_BACKEND) needs 'jax'")
    assert "which is not installed" in text
    assert 'remedy: pip install "keras-cg[jax]"' in text


BROKEN = """
    import importlib.abc, importlib.util, sys
    class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name, path=None, target=None):
            return importlib.util.spec_from_loader(name, self) if name == "jax" else None
        def exec_module(self, module):
            raise RuntimeError("libdevice is missing")
    sys.meta_path.insert(0, Broken())
    import keras_cg
    try:
        keras_cg.custom_gradient(lambda x: (x, lambda g: g))(1.0)
    except ImportError as error:
        print(type(error).__name__, error, "cause:", repr(error.__cause__))
"""


def test_broken():
    text = run(BROKEN, KERAS_CG_BACKEND="jax")
    assert "the backend 'jax' (from the environment variable KERAS_CG_BACKEND) is installed but does not start" in text
    assert "RuntimeError: libdevice is missing" in text
    assert "remedy: " in text and 'pip install --force-reinstall "keras-cg[jax]"' in text
    assert "cause: RuntimeError('libdevice is missing')" in text


# --- laziness ------------------------------------------------------------------------------------------------------

LAZY = """
    import sys
    {extra}
    import keras_cg
    @keras_cg.custom_gradient
    def f(x):
        return x, lambda upstream: upstream
    class Layer:
        @keras_cg.ops.custom_gradient
        def call(self, x):
            return x, lambda upstream: upstream
    Layer().call
    keras_cg.available_backends(), keras_cg.backend()
    loaded = [name for name in ("jax", "torch", "tensorflow", "keras", "autograd") if name in sys.modules]
    print(",".join(loaded))
"""


def test_importing_and_decorating_load_no_framework():
    assert run(LAZY.format(extra="")) == ""


def test_the_test_above_can_fail():
    assert run(LAZY.format(extra="import autograd")) == "autograd"


def test_a_call_loads_the_active_framework_alone():
    code = """
        import sys
        import keras_cg
        print(keras_cg.custom_gradient(lambda x: (x, lambda g: g))(1.0))
        print([name for name in ("jax", "torch", "tensorflow", "keras", "autograd") if name in sys.modules])
    """
    assert run(code) == "1.0\n['autograd']"
