"""The standard's `linalg` on TensorFlow, of `tf.linalg`, which has other names and other defaults."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from keras_cg.namespaces import standard
from keras_cg.namespaces.tensorflow.promoted import same, summed, tensor

tnp = tf.experimental.numpy

det, inv = tf.linalg.det, tf.linalg.inv


def cholesky(x: Any, /, *, upper: bool = False) -> Any:
    factor = tf.linalg.cholesky(x)
    return tf.linalg.adjoint(factor) if upper else factor


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    x1, x2 = same(x1, x2)
    first, second = (tnp.moveaxis(each, axis, 0) for each in (x1, x2))
    parts = [first[i] * second[j] - first[j] * second[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return tf.stack(parts, axis)


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    return tf.linalg.diag_part(x, k=offset)


def eigh(x: Any, /) -> standard.EighResult:
    values, vectors = tf.linalg.eigh(x)
    return standard.EighResult(tf.math.real(values), vectors)


def eigvalsh(x: Any, /) -> Any:
    return tf.math.real(tf.linalg.eigvalsh(x))


def matmul(x1: Any, x2: Any, /) -> Any:
    return tnp.matmul(*same(x1, x2))


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in ("nuc", 2, -2):
        norm = {"nuc": tf.reduce_sum, 2: tf.reduce_max, -2: tf.reduce_min}[ord](svdvals(x), axis=-1)
    else:
        sums = tf.reduce_sum(tf.abs(x), axis=-2 if abs(ord) == 1 else -1)
        norm = tf.reduce_max(sums, axis=-1) if ord > 0 else tf.reduce_min(sums, axis=-1)
    return norm[..., None, None] if keepdims else norm


def matrix_power(x: Any, n: int, /) -> Any:
    x = tf.linalg.inv(x) if n < 0 else tensor(x)
    power = tf.eye(x.shape[-1], batch_shape=tf.shape(x)[:-2], dtype=x.dtype)
    for _ in range(abs(n)):
        power = tf.matmul(power, x)
    return power


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Any:
    values = svdvals(x)
    if rtol is None:
        rtol = max(x.shape[-2:]) * tnp.finfo(values.dtype.as_numpy_dtype).eps
    least = tf.cast(rtol, values.dtype) * tf.reduce_max(values, axis=-1)
    return tf.math.count_nonzero(values > least[..., None], axis=-1)


def matrix_transpose(x: Any, /) -> Any:
    return tf.linalg.matrix_transpose(tensor(x))


def outer(x1: Any, x2: Any, /) -> Any:
    x1, x2 = same(x1, x2)
    return x1[:, None] * x2


def pinv(x: Any, /, *, rtol: Any = None) -> Any:
    # Not tf.linalg.pinv: its gradient (TensorFlow 2.21) is wrong where two singular values are equal.
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def inverted(x: Any) -> Any:
        u, s, vh = svd(x, full_matrices=False)
        least = max(x.shape[-2:]) * tnp.finfo(s.dtype.as_numpy_dtype).eps if rtol is None else rtol
        is_large = s > tf.cast(least, s.dtype) * tf.reduce_max(s, axis=-1, keepdims=True)
        inverse = tf.math.divide_no_nan(tf.cast(is_large, s.dtype), s)

        def grad(upstream: Any) -> Any:
            # The formula of Golub and Pereyra (1973), for the rank as it is.
            inverse, g = pinv(x, rtol=rtol), tf.linalg.adjoint(upstream)
            h = tf.linalg.adjoint(inverse)
            rows, columns = (tf.eye(tf.shape(x)[axis], dtype=x.dtype) for axis in (-2, -1))
            outside = (rows - x @ inverse) @ g @ inverse @ h + h @ inverse @ g @ (columns - inverse @ x)
            return outside - h @ upstream @ h

        return tf.linalg.adjoint(vh) @ (tf.cast(inverse, u.dtype)[..., None] * tf.linalg.adjoint(u)), grad

    return inverted(tensor(x))


def qr(x: Any, /, *, mode: str = "reduced") -> standard.QRResult:
    return standard.QRResult(*tf.linalg.qr(x, full_matrices=mode == "complete"))


def slogdet(x: Any, /) -> standard.SlogdetResult:
    sign, logarithm = tf.linalg.slogdet(x)
    return standard.SlogdetResult(sign, tf.math.real(logarithm))


def solve(x1: Any, x2: Any, /) -> Any:
    x1, x2 = same(x1, x2)
    if x2.shape.rank == 1:
        return solve(x1, x2[:, None])[..., 0]
    # tf.linalg.solve (TensorFlow 2.21) wants as many of the one as of the other.
    batch = tf.broadcast_dynamic_shape(tf.shape(x1)[:-2], tf.shape(x2)[:-2])
    whole = [tf.broadcast_to(each, tf.concat([batch, tf.shape(each)[-2:]], 0)) for each in (x1, x2)]
    return tf.linalg.solve(*whole)


def svd(x: Any, /, *, full_matrices: bool = True) -> standard.SVDResult:
    s, u, v = tf.linalg.svd(x, full_matrices=full_matrices)
    return standard.SVDResult(u, s, tf.linalg.adjoint(v))


def svdvals(x: Any, /) -> Any:
    return tf.linalg.svd(x, compute_uv=False)


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    return tf.tensordot(*same(x1, x2), axes)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    return tf.reduce_sum(summed(diagonal(x, offset=offset), dtype), axis=-1)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    x1, x2 = same(x1, x2)
    return tf.reduce_sum(tf.math.conj(x1) * x2, axis=axis)


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    length = tf.abs(tensor(x))
    if abs(ord) == math.inf:
        return (tf.reduce_max if ord > 0 else tf.reduce_min)(length, axis, keepdims)
    if ord == 0:
        return tf.reduce_sum(tf.cast(length != 0, length.dtype), axis, keepdims)
    total = tf.reduce_sum(length if ord == 1 else length**ord, axis, keepdims)
    return total if ord == 1 else tf.sqrt(total) if ord == 2 else total ** (1 / ord)
