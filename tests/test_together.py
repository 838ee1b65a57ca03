"""All frameworks in one process: one decorated function, the backend switched at run time."""

import concurrent.futures
import importlib

import numpy as np
import pytest

import keras_cg
from keras_cg import custom_gradient, ops

pytestmark = pytest.mark.side_by_side

X = np.array([1.0, 2.0, 3.0], np.float32)


@custom_gradient
def f(params, n=2, *, scale):
    y = ops.exp(params["w"]) * scale

    def grad(*args, upstream):
        return {"w": 7 * upstream["y"] * y}, None, 5 * upstream["y"]

    return {"y": y * n, "backend": keras_cg.backend()}, grad


def check(name):
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


def test_switching(backends):
    for name in (*backends, *reversed(backends), *backends):
        check(name)


def test_switching_by_set_backend(backends, clean_environment):
    for name in (*backends, *backends):
        keras_cg.set_backend(name)
        output = f({"w": importlib.import_module(f"frameworks.{name}").tensor(X)}, scale=1.0)
        assert output["backend"] == name


def test_each_thread_its_own_backend(backends):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        work = list(backends) * (12 // len(backends))
        assert list(pool.map(check, work)) == work


def test_eight_threads_of_two_hundred_calls(backends):
    def work(number):
        name = backends[number % len(backends)]
        native = importlib.import_module(f"frameworks.{name}")
        with keras_cg.use_backend(name):
            for call in range(200):
                factor = number + call

                @custom_gradient
                def g(x, factor=factor):
                    return x * 2, lambda upstream: factor * upstream

                output, (gx,) = native.differentiate(g, [X], "eager")
                np.testing.assert_array_equal(output, 2 * X)
                np.testing.assert_array_equal(gx, np.full(3, float(factor)))
        return True

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_torch_compile_follows_the_backend(backends):
    if not {"torch", "numpy"} <= set(backends):
        return
    import torch

    with keras_cg.use_backend("torch"):
        compiled = torch.compile(lambda x: f({"w": x}, scale=1.0)["y"], backend="eager")
        compiled(torch.ones(3))
    with keras_cg.use_backend("numpy"), pytest.raises(Exception, match="active backend is 'numpy'"):
        compiled(torch.ones(3))
