"""The standard's `linalg` on NumPy: `autograd.numpy.linalg`, and functions where autograd has no right gradient."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy
from autograd.extend import Box, defvjp, primitive

from keras_cg.namespaces import composed, messages, standard

matmul, outer, tensordot = anp.matmul, anp.outer, anp.tensordot


def constant(x: Any) -> Any:
    """Returns the array inside autograd's boxes, which has no gradient."""
    while isinstance(x, Box):
        x = x._value
    return x


def broadcast_to(x: Any, /, shape: Any) -> Any:
    """Broadcasts after adding axes, because autograd's gradient (1.9) is wrong where the number of axes differs."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return anp.broadcast_to(anp.reshape(x, (*(1,) * (len(shape) - anp.ndim(x)), *anp.shape(x))), shape)


def sign(x: Any, /) -> Any:
    """Divides complex numbers by their size, because autograd (1.9) has no gradient of their sign."""
    if not isinstance(x, Box) or not anp.iscomplexobj(x):
        return anp.sign(x)
    size = anp.abs(x)
    return x / anp.where(size == 0, 1.0, size)


def cholesky(x: Any, /, *, upper: bool = False) -> Any:
    if not isinstance(x, Box):
        return numpy.linalg.cholesky(x, upper=upper)
    factor = _cholesky(x)
    return _adjoint(factor) if upper else factor


def _adjoint(x: Any) -> Any:
    return anp.conj(anp.swapaxes(x, -1, -2))


def _cholesky_vjp(factor: Any, x: Any) -> Any:
    """Returns the gradient by the formula of Murray (2016) for complex matrices; autograd's (1.9) is wrong for them."""

    def vjp(g: Any) -> Any:
        # autograd's gradients are conjugates of those in the formula.
        lower = anp.tril(anp.matmul(_adjoint(factor), anp.conj(g))) / (1 + numpy.eye(factor.shape[-1]))
        half = anp.linalg.solve(_adjoint(factor), lower + _adjoint(lower)) / 2
        return anp.conj(anp.linalg.solve(_adjoint(factor), _adjoint(half)))

    return vjp


_cholesky = primitive(numpy.linalg.cholesky)
defvjp(_cholesky, _cholesky_vjp)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    # autograd's gradient (1.9) fails where the shapes differ.
    shape = numpy.broadcast_shapes(anp.shape(x1), anp.shape(x2))
    return anp.cross(broadcast_to(x1, shape), broadcast_to(x2, shape), axis=axis)


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    rows, columns = anp.shape(x)[-2:]
    first = numpy.arange(max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)))
    return x[..., first - min(offset, 0), first + max(offset, 0)]


def eigh(x: Any, /) -> standard.EighResult:
    return standard.EighResult(*anp.linalg.eigh(x))


def eigvalsh(x: Any, /) -> Any:
    return anp.linalg.eigh(x)[0]


def matrix_power(x: Any, n: int, /) -> Any:
    if n == 0 or not isinstance(x, Box):
        return numpy.linalg.matrix_power(constant(x), n)
    x = anp.linalg.inv(x) if n < 0 else x
    power = x
    for _ in range(abs(n) - 1):
        power = anp.matmul(power, x)
    return power


def matrix_transpose(x: Any, /) -> Any:
    return anp.swapaxes(x, -1, -2)


def pinv(x: Any, /, *, rtol: Any = None) -> Any:
    return _pinv(x, rtol)


def _pinv_vjp(inverse: Any, x: Any, rtol: Any) -> Any:
    # autograd's formula (1.9) is wrong for complex matrices. Its gradients are conjugates of those in this formula.
    return lambda g: anp.conj(composed.pinv_pullback(x, inverse, anp.conj(g), _adjoint))


_pinv = primitive(lambda x, rtol: numpy.linalg.pinv(x, rtol=rtol))
defvjp(_pinv, _pinv_vjp, argnums=(0,))


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
    unit, logarithm = anp.linalg.slogdet(x)
    if isinstance(x, Box) and anp.iscomplexobj(x):
        # autograd (1.9) has no gradient of the sign, so it comes from `det`, scaled so that it cannot overflow.
        size = numpy.exp(numpy.asarray(constant(logarithm)) / x.shape[-1])[..., None, None]
        unit = sign(anp.linalg.det(x / numpy.where(size == 0, 1.0, size)))
    return standard.SlogdetResult(unit, logarithm)


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
    return anp.linalg.svd(x, compute_uv=False)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    return anp.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return anp.sum(anp.conj(x1) * x2, axis=axis, dtype=anp.result_type(x1, x2))


vector_norm, matrix_norm = composed.norms(anp.abs, anp.sum, anp.max, anp.min, anp.sqrt, anp.astype, svdvals)
