"""The functions of `keras_cg.ops.linalg` on NumPy that differ from those of `autograd.numpy.linalg`."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy
from autograd.extend import Box, defvjp, primitive


def constant(x: Any) -> Any:
    """Returns the array inside autograd's boxes, which has no gradient."""
    while isinstance(x, Box):
        x = x._value
    return x


def broadcast_to(x: Any, /, shape: Any) -> Any:
    """Broadcasts after adding axes, because autograd's gradient (1.9) is wrong where the number of axes differs."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return anp.broadcast_to(anp.reshape(x, (*(1,) * (len(shape) - anp.ndim(x)), *anp.shape(x))), shape)


def cholesky(x: Any, /) -> Any:
    return _cholesky(x)


def _cholesky_vjp(factor: Any, x: Any) -> Any:
    """Returns the gradient by the formula of Murray (2016) for complex matrices; autograd's (1.9) is wrong for them."""

    def vjp(g: Any) -> Any:
        # autograd's gradients are conjugates of those in the formula.
        lower = anp.tril(anp.matmul(_adjoint(factor), anp.conj(g))) / (1 + numpy.eye(factor.shape[-1]))
        half = anp.linalg.solve(_adjoint(factor), lower + _adjoint(lower)) / 2
        return anp.conj(anp.linalg.solve(_adjoint(factor), _adjoint(half)))

    return vjp


def _adjoint(x: Any) -> Any:
    return anp.conj(anp.swapaxes(x, -1, -2))


_cholesky = primitive(numpy.linalg.cholesky)
defvjp(_cholesky, _cholesky_vjp)


def solve(x1: Any, x2: Any, /) -> Any:
    if not isinstance(x1, Box) and not isinstance(x2, Box):
        return numpy.linalg.solve(x1, x2)
    # autograd's gradient (1.9) is wrong where batches broadcast.
    if anp.ndim(x2) == 1:
        return solve(x1, x2[:, None])[..., 0]
    batch = numpy.broadcast_shapes(anp.shape(x1)[:-2], anp.shape(x2)[:-2])
    return anp.linalg.solve(*[broadcast_to(each, (*batch, *anp.shape(each)[-2:])) for each in (x1, x2)])
