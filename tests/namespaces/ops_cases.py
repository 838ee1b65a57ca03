"""What the tests of `keras_cg.ops` share: tensors, batches, and comparison with what is due."""

import numpy as np
import pytest

from keras_cg import ops
from keras_cg.frontend import config

BOTH = pytest.mark.only("numpy", "tensorflow")
TENSORFLOW = pytest.mark.only("tensorflow")
TORCH_AND_JAX = pytest.mark.only("torch", "jax")


def tensor(values, dtype=None):
    return config.active.asarray(np.array(values, dtype))


def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return config.active.to_numpy(value) if config.active.is_tensor(value) else value


def check(value, expected, rtol=1e-6):
    value = plain(value)
    if isinstance(expected, tuple):
        assert len(value) == len(expected)
        for one, due in zip(value, expected, strict=True):
            check(one, due, rtol)
    else:
        assert np.shape(value) == np.shape(expected)
        np.testing.assert_allclose(value, expected, rtol=rtol, atol=1e-7)


def total(function):
    return lambda *args: ops.sum(function(*args))


def batched(function):
    """A function of each element along the first axis of its arguments."""
    if config.backend() == "jax":
        import jax

        return jax.vmap(function)
    import torch

    return torch.func.vmap(function)
