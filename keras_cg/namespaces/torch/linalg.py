"""The functions of `keras_cg.ops.linalg` on torch: those of `array_api_compat.torch.linalg`, and two of our own."""

from __future__ import annotations

import sys
from typing import Any

import torch
from array_api_compat.torch import linalg, result_type

from keras_cg.namespaces import standard
from keras_cg.namespaces.torch import arguments
from keras_cg.namespaces.torch.arguments import as_tensor, tensors


def det(x: Any, /) -> Any:
    """Returns the determinant, whose gradient is right where it is zero.

    torch (2.13) multiplies the determinant by an inverse, and gets 0 for a singular matrix. There a rounding error is
    added to the matrix, in the columns where the factor U has a zero on its diagonal, and the value is subtracted.
    """
    x = as_tensor(x)
    if not x.numel():
        return torch.linalg.det(x)
    constant = x.detach()
    permutation, lower, upper = torch.lu_unpack(
        *torch.linalg.lu_factor_ex(constant)[:2]
    )  # torch.linalg.lu has no batch
    is_zero = upper.diagonal(dim1=-2, dim2=-1) == 0
    scale = constant.abs().amax((-2, -1), keepdim=True)
    step = 8 * torch.finfo(x.dtype).eps * torch.where(scale == 0, 1, scale)
    shifted = x + torch.where(is_zero[..., None, :], permutation @ lower * step, 0)
    value = torch.linalg.det(shifted)
    return value - torch.where(is_zero.any(-1), value.detach(), 0)


def solve(x1: Any, x2: Any, /) -> Any:
    """Returns the solution, for which torch (2.13) in a batch mistakes matrices for vectors."""
    x1, x2 = tensors([x1, x2])
    kind = result_type(x1, x2)
    columns = x2[:, None] if x2.ndim == 1 else x2
    batch = torch.broadcast_shapes(x1.shape[:-2], columns.shape[:-2])  # type: ignore[no-untyped-call]
    matrix, columns = [each.to(kind).expand(*batch, *each.shape[-2:]) for each in (x1, columns)]
    solution = torch.linalg.solve(matrix, columns)
    return solution[..., 0] if x2.ndim == 1 else solution


namespace = standard.Namespace(linalg, arguments.functions(linalg, "linalg"), standard.defined(sys.modules[__name__]))
