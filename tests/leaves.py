"""Leaves of torch, which require a gradient, and the gradients of what was computed from them."""


def leaf(array):
    import torch

    return torch.tensor(array, requires_grad=True)


def gradients(output, *leaves, **options):
    """Of the sum of an output, or of several, as NumPy arrays."""
    import torch

    outputs = output if isinstance(output, tuple) else (output,)
    found = torch.autograd.grad(sum(part.sum() for part in outputs), leaves, **options)
    return [each.detach().numpy() for each in found]


def gradient(output, x, **options):
    return gradients(output, x, **options)[0]
