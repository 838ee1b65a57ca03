"""torch on an accelerator: CUDA, ROCm, Metal, XPU."""

import numpy as np
import pytest
from gpu.conftest import X, capturing, close, f, from_numpy

import keras_cg
from keras_cg import ops

pytestmark = pytest.mark.only("torch")
PROCESSOR = "a processor has no streams, and pins no memory"


def leaf(device):
    import torch

    return torch.tensor(X, device=device).requires_grad_()


def check(found, factor, device):
    import torch

    device = torch.device(device)
    assert found.device.type == device.type
    assert device.index in (None, found.device.index)
    close(found.detach().float().cpu(), factor * np.exp(X))


def check_gradients(device, function=f):
    x, w = leaf(device), leaf(device)
    output = function(x, w)
    output.sum().backward()
    close(output.detach().cpu(), X * X)
    check(x.grad, 7, device)
    check(w.grad, 5, device)


def twice(f, x, *others):
    """The derivative, and its derivative."""
    import torch

    (first,) = torch.autograd.grad(f(x, *others).sum(), x, create_graph=True)
    return first, torch.autograd.grad(first.sum(), x)[0]


def test_gradients_are_where_the_arguments_are(backend, device):
    check_gradients(device)
    check(keras_cg.grad(f)(leaf(device), leaf(device)), 7, device)


def test_a_captured_value_gets_its_gradient_on_the_device(backend, device):
    check_gradients(device, lambda x, w: capturing(w)(x))


def test_a_device_that_is_not_the_default_one(backend, second):
    check_gradients(second)


@pytest.mark.parametrize("is_default", [True, False])
def test_beside_another_default_device(torch, device, is_default):
    try:
        torch.set_default_device(device if is_default else "cpu")
        check_gradients(device)
        check_gradients("cpu")
    finally:
        torch.set_default_device(None)


def test_arguments_on_two_kinds_of_devices(backend, device):

    # What is moved is moved by the function; the rule returns each gradient where its argument is.
    @keras_cg.custom_gradient
    def moved(x, w):
        e = ops.exp(x)
        return x * w.to(x.device), lambda upstream: (7 * upstream * e, (5 * upstream * e).to(w.device))

    x, w = leaf(device), leaf("cpu")
    moved(x, w).sum().backward()
    check(x.grad, 7, device)
    check(w.grad, 5, "cpu")


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_autocast(torch, device, half):
    seen = []

    @keras_cg.custom_gradient
    def g(x):
        product = x @ x.T
        seen.append(product.dtype)
        return product, lambda upstream: 7 * torch.ones_like(x)

    x = leaf(device).detach().reshape(2, 4).requires_grad_()
    dtype = getattr(torch, half)
    with torch.autocast(device.type, dtype):
        output = g(x)
    assert seen == [output.dtype] == [dtype]
    output.sum().backward()
    assert (x.grad.dtype, x.grad.device.type) == (torch.float32, device.type)
    np.testing.assert_array_equal(x.grad.cpu(), np.full((2, 4), 7))


def test_random_numbers_of_the_device(torch, device):
    """Right in first order, which is one run; in second order they would be others, and it raises."""
    drawn = []

    @keras_cg.custom_gradient
    def g(x):
        drawn.append(torch.rand(x.shape, device=x.device))
        held = drawn[-1] * ops.exp(x)
        return x * 1, lambda upstream: 7 * upstream * held

    x = leaf(device)
    g(x).sum().backward()
    (noise,) = drawn
    close(x.grad.cpu(), 7 * noise.cpu().numpy() * np.exp(X))
    with pytest.raises(RuntimeError, match="its rule is not that of the first run"):
        twice(g, x)


def test_streams(torch, device):
    if device.type == "cpu":
        pytest.skip(PROCESSOR)
    torch.accelerator.synchronize()
    stream = torch.Stream(device)
    x, w = leaf(device), leaf(device)
    stream.wait_stream(torch.accelerator.current_stream())
    with stream:
        output = f(x, w)
    torch.accelerator.current_stream().wait_stream(stream)
    output.sum().backward()  # autograd runs the rule on the stream of the forward pass
    torch.accelerator.synchronize()
    check(x.grad, 7, device)
    check(w.grad, 5, device)


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_compiled_gradients_are_on_the_device(torch, device, compiler):
    torch.compiler.reset()
    check_gradients(device, torch.compile(f, backend=compiler, fullgraph=True))


def test_a_function_of_numpy(backend, device):
    x = leaf(device)
    output = from_numpy(x)
    assert output.device == x.device
    output.sum().backward()
    check(x.grad, 7, device)
