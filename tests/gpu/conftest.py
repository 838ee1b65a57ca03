"""The accelerator of this machine, whatever it is; where there is none, tests are skipped with a word."""

import importlib

import numpy as np
import pytest

import keras_cg
from keras_cg import ops

X = np.linspace(-1, 1, 8, dtype=np.float32)


# Wrong on purpose: the gradients are 7 exp(x) and 5 exp(x), where x * w has w and x.
@keras_cg.custom_gradient
def f(x, w):
    e = ops.exp(x)
    return x * w, lambda upstream: (7 * upstream * e, 5 * upstream * e)


def capturing(w):
    """The same, where w is captured."""

    @keras_cg.custom_gradient
    def g(x):
        e = ops.exp(x)
        return x * w, lambda upstream, variables: (7 * upstream * e, [5 * upstream * e])

    return g


def from_numpy(x):
    return keras_cg.recipes.from_numpy(lambda x: 2 * x, lambda x, upstream: 7 * upstream * np.exp(x))(x)


def close(found, due, rtol=1e-5):
    """Up to the rounding of an accelerator in float32."""
    np.testing.assert_allclose(found, due, rtol=rtol, atol=1e-6)


def pytest_addoption(parser):
    parser.addoption("--device", default="", help="the device to test, as the framework calls it; default: the first")


def accelerators(backend, name):
    """The devices that the option names, or the accelerators that a framework sees, as its own objects."""
    framework = importlib.import_module(backend)
    if backend == "torch":
        if name or not framework.accelerator.is_available():
            return [framework.device(name)] if name else []
        kind = framework.accelerator.current_accelerator().type
        return [framework.device(kind, index) for index in range(framework.accelerator.device_count())]
    if backend == "jax":
        return framework.devices(name) if name else [each for each in framework.devices() if each.platform != "cpu"]
    kinds = [name.upper()] if name else ["GPU", "TPU"]
    return [device.name for kind in kinds for device in framework.config.list_logical_devices(kind)]


@pytest.fixture
def devices(request, backend):
    """The accelerators, at least one."""
    found = accelerators(backend, request.config.getoption("--device")) if backend != "numpy" else []
    if not found:
        pytest.skip(f"{backend} sees no accelerator on this machine")
    return found


@pytest.fixture
def device(devices):
    return devices[0]


@pytest.fixture
def second(devices):
    """A device that is not the default one."""
    if len(devices) < 2:
        pytest.skip("there is one device alone")
    return devices[1]
