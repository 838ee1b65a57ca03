"""JAX on an accelerator: CUDA, ROCm, Metal, TPU."""

import numpy as np
import pytest
from gpu.conftest import X, capturing, close, f, from_numpy

pytestmark = pytest.mark.only("jax")


def gradients(x, w):
    import jax

    return jax.grad(lambda x, w: f(x, w).sum(), argnums=(0, 1))(x, w)


def check(found, factor, device):
    assert found.devices() == {device}
    close(found, factor * np.exp(X))


def check_both(found, device):
    for each, factor in zip(found, (7, 5), strict=True):
        check(each, factor, device)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_gradients_are_where_the_arguments_are(jax, device, is_compiled):
    x = jax.device_put(X, device)
    check_both((jax.jit(gradients) if is_compiled else gradients)(x, x), device)


def test_a_device_that_is_not_the_default_one(jax, second):
    x = jax.device_put(X, second)
    check_both(gradients(x, x), second)
    with jax.default_device(second):
        check_both(gradients(X, X), second)


def test_second_order_and_forwards(jax, device):
    x = jax.device_put(X, device)
    check(jax.grad(lambda x: gradients(x, X)[0].sum())(x), 7, device)
    check(jax.jvp(lambda x: f(x, X), (x,), (np.ones_like(X),))[1], 7, device)


def test_a_captured_value_gets_its_gradient_on_the_device(jax, device):
    w = jax.device_put(X, device)
    loss = lambda x, w: capturing(w)(x).sum()
    check_both(jax.jit(jax.grad(loss, argnums=(0, 1)))(w, w), device)


def test_a_function_of_numpy(jax, device):
    check(jax.jit(jax.grad(lambda x: from_numpy(x).sum()))(jax.device_put(X, device)), 7, device)
