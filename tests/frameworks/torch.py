"""PyTorch, eagerly and under torch.compile."""

import numpy as np
import torch

MODES = ("eager", "aot_eager", "inductor")


def tensor(array):
    return torch.as_tensor(np.asarray(array))


def array(tensor):
    return tensor.detach().resolve_conj().numpy()


def differentiate(f, arrays, mode):
    tensors = [tensor(np.array(array)) for array in arrays]
    for each in tensors:
        each.requires_grad_(each.is_floating_point() or each.is_complex())
    if mode != "eager":
        torch.compiler.reset()
        f = torch.compile(f, backend=mode, fullgraph=True)
    output = f(*tensors)
    if output.requires_grad:
        output.sum().backward()
    return array(output), [None if each.grad is None else array(each.grad) for each in tensors]


def batched(f, x):
    return torch.func.vmap(f)(x)


def vjp(f, x, way):
    if way == "transformed":
        output, pullback = torch.func.vjp(f, x)
        return output, lambda upstream: pullback(upstream)[0]
    # A tensor of its own, so that the gradient is that of this call alone.
    x = x * 1 if x.requires_grad else x.detach().requires_grad_()
    output = f(x)
    return output, lambda upstream: torch.autograd.grad(output, x, upstream, create_graph=True)[0]


def gradient(f, way):
    if way == "transformed":
        return torch.func.grad(lambda x: f(x).sum())

    def pulled(x):
        output, pullback = vjp(f, x, way)
        return pullback(torch.ones_like(output))

    return pulled
