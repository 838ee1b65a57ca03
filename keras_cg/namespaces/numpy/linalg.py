"""The standard's `linalg` on NumPy: `autograd.numpy.linalg`, and in its place what autograd does not differentiate."""

from __future__ import annotations

import math
from typing import Any

import autograd.numpy as anp
import numpy
from autograd.extend import Box

from keras_cg.namespaces import messages, standard

matmul, outer, tensordot = anp.matmul, anp.outer, anp.tensordot


def broadcast_to(x: Any, shape: Any) -> Any:
    """The function of the main namespace: autograd's gradient is that of as many axes alone."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return anp.broadcast_to(anp.reshape(x, (*(1,) * (len(shape) - anp.ndim(x)), *anp.shape(x))), shape)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return anp.cross(x1, x2, axis=axis)


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    rows, columns = anp.shape(x)[-2:]
    first = numpy.arange(max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)))
    return x[..., first - min(offset, 0), first + max(offset, 0)]


def eigh(x: Any, /) -> standard.EighResult:
    return standard.EighResult(*anp.linalg.eigh(x))


def eigvalsh(x: Any, /) -> Any:
    return anp.linalg.eigh(x)[0]


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    if ord == "fro":
        norm = vector_norm(x, axis=(-2, -1))
    elif ord in ("nuc", 2, -2):
        norm = {"nuc": anp.sum, 2: anp.max, -2: anp.min}[ord](svdvals(x), axis=-1)
    else:
        sums = anp.sum(anp.abs(x), axis=-2 if abs(ord) == 1 else -1)
        norm = anp.max(sums, axis=-1) if ord > 0 else anp.min(sums, axis=-1)
    return norm[..., None, None] if keepdims else norm


def matrix_power(x: Any, n: int, /) -> Any:
    if n == 0 or not isinstance(x, Box):
        return anp.linalg.matrix_power(x, n)
    x = anp.linalg.inv(x) if n < 0 else x
    power = x
    for _ in range(abs(n) - 1):
        power = anp.matmul(power, x)
    return power


def matrix_transpose(x: Any, /) -> Any:
    return anp.swapaxes(x, -1, -2)


def pinv(x: Any, /, *, rtol: Any = None) -> Any:
    return anp.linalg.pinv(x) if rtol is None else anp.linalg.pinv(x, rtol=rtol)


def qr(x: Any, /, *, mode: Any = "reduced") -> standard.QRResult:
    if isinstance(x, Box):
        raise messages.no_op_here(
            "linalg.qr",
            "numpy",
            "has no gradient",
            "use `linalg.cholesky` of the matrix times its transpose, or `linalg.svd`.",
        )
    return standard.QRResult(*numpy.linalg.qr(x, mode=mode))


def slogdet(x: Any, /) -> standard.SlogdetResult:
    return standard.SlogdetResult(*anp.linalg.slogdet(x))


def solve(x1: Any, x2: Any, /) -> Any:
    if not isinstance(x1, Box) and not isinstance(x2, Box):
        return numpy.linalg.solve(x1, x2)
    if anp.ndim(x2) == 1:
        return solve(x1, x2[:, None])[..., 0]
    batch = numpy.broadcast_shapes(anp.shape(x1)[:-2], anp.shape(x2)[:-2])
    return anp.linalg.solve(*[broadcast_to(each, (*batch, *anp.shape(each)[-2:])) for each in (x1, x2)])


def svd(x: Any, /, *, full_matrices: bool = True) -> standard.SVDResult:
    if full_matrices and isinstance(x, Box):
        if x.shape[-1] != x.shape[-2]:
            raise messages.no_op_here(
                "linalg.svd", "numpy", "has no gradient of full matrices", "give full_matrices=False."
            )
        full_matrices = False
    return standard.SVDResult(*anp.linalg.svd(x, full_matrices=full_matrices))


def svdvals(x: Any, /) -> Any:
    return anp.linalg.svd(x, full_matrices=False)[1]


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    return anp.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return anp.sum(anp.conj(x1) * x2, axis=axis, dtype=anp.result_type(x1, x2))


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    size = anp.abs(x)
    if abs(ord) == math.inf:
        return (anp.max if ord > 0 else anp.min)(size, axis=axis, keepdims=keepdims)
    if ord == 0:
        return anp.sum(anp.astype(size != 0, size.dtype), axis=axis, keepdims=keepdims)
    total = anp.sum(size if ord == 1 else size**ord, axis=axis, keepdims=keepdims)
    return total if ord == 1 else anp.sqrt(total) if ord == 2 else total ** (1 / ord)
