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
    """Returns the determinant, whose derivatives are right where it is zero.

    torch (2.13) multiplies the determinant by an inverse: the gradient at a singular matrix is 0, and the second
    derivative near one is noise. Up to three rows the products are written out. A larger singular matrix is shifted, by
    little and in both directions, in the columns where the factor U has a zero on its diagonal.
    """
    x = as_tensor(x)
    rows = x.shape[-1]
    if rows == 0 or not (x.is_floating_point() or x.is_complex()):
        return torch.linalg.det(x)
    if x.shape[-2] == rows == 2:
        return x[..., 0, 0] * x[..., 1, 1] - x[..., 0, 1] * x[..., 1, 0]
    if x.shape[-2] == rows == 3:
        return (x[..., 0, :] * torch.linalg.cross(x[..., 1, :], x[..., 2, :])).sum(-1)
    constant = x.detach()
    factors, pivots, _ = torch.linalg.lu_factor_ex(constant)  # torch.linalg.lu (2.13) has no batch
    permutation, lower, upper = torch.lu_unpack(factors, pivots)
    is_zero = upper.diagonal(dim1=-2, dim2=-1) == 0
    scale = constant.abs().amax((-2, -1), keepdim=True)
    # The cube root balances what the shift is wrong by with what rounding is, in the second derivative.
    step = torch.finfo(x.dtype).eps ** (1 / 3) * torch.where(scale == 0, 1, scale)
    shift = torch.where(is_zero[..., None, :], permutation @ lower * step, 0)
    value = (torch.linalg.det(x + shift) + torch.linalg.det(x - shift)) / 2
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
