"""PyTorch, eagerly and under torch.compile."""

import numpy as np
import torch

MODES = ("eager", "aot_eager", "inductor")


def tensor(array):
    return torch.as_tensor(np.asarray(array))


def array(tensor):
    return tensor.detach().numpy()


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
