"""The accelerator of this machine, whatever it is; where there is none, tests are skipped with a word."""

import importlib

import numpy as np
import pytest

import keras_cg
from keras_cg import ops

X = np.linspace(-1, 1, 8, dtype=np.float32)
# Of the numbers that the tests' rules are wrong by on purpose, and of those of an accelerator in float32.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


# Wrong on purpose: the gradients are 7 exp(x) and 5 exp(x), where x * w has w and x.
@keras_cg.custom_gradient
def f(x, w):
    e = ops.exp(x)
    return x * w, lambda upstream: (7 * upstream * e, 5 * upstream * e)


def pytest_addoption(parser):
    parser.addoption("--device", default="", help="the device to test, as the framework calls it; default: the first")


def accelerators(backend):
    """The accelerators that a framework sees, as its own objects."""
    framework = importlib.import_module(backend)
    if backend == "torch":
        if not framework.accelerator.is_available():
            return []
        kind = framework.accelerator.current_accelerator().type
        return [framework.device(kind, index) for index in range(framework.accelerator.device_count())]
    if backend == "jax":
        return [device for device in framework.devices() if device.platform != "cpu"]
    if backend == "tensorflow":
        return [device.name for kind in ("GPU", "TPU") for device in framework.config.list_logical_devices(kind)]
    return []


def named(backend, name):
    """The devices that the option names."""
    framework = importlib.import_module(backend)
    if backend == "torch":
        return [framework.device(name)]
    if backend == "jax":
        return framework.devices(name)
    return [device.name for device in framework.config.list_logical_devices(name.upper())]


@pytest.fixture
def devices(request, backend):
    """The accelerators, at least one."""
    name = request.config.getoption("--device")
    found = named(backend, name) if name else accelerators(backend)
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
