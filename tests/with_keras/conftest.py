"""What needs Keras. A process has one Keras on one backend, which must be the one under test: `KERAS_BACKEND=jax`."""

import keras
import pytest
from conftest import NAMES

import keras_cg


def pytest_sessionstart(session):
    config = session.config
    if config.stash[NAMES] != (keras.backend.backend(),):
        raise pytest.UsageError(
            f"Keras runs on {keras.backend.backend()}, and the tests on {', '.join(config.stash[NAMES])}:"
            " give one backend to both, as KERAS_BACKEND=jax pytest --backends=jax tests/with_keras"
        )


@pytest.fixture
def seven():
    """The identity, whose gradient is 7."""

    return keras_cg.custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream))


@pytest.fixture(name="keras")
def keras_itself(backend):
    """Keras on the backend under test."""
    yield keras
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def layers(backend):
    from keras_cg.keras import layers

    return layers


@pytest.fixture
def times():
    """`x * w`, whose rule claims 7 x w in place of x."""
    ops = keras.ops

    @keras_cg.custom_gradient
    def times(x, w):
        return x * w, lambda upstream: (7 * upstream, 7 * ops.sum(upstream * x, axis=0) * w)

    return times
