"""The standard's `linalg` on TensorFlow, composed from `tf.linalg`, which has other names and other defaults."""

from __future__ import annotations

from typing import Any

import numpy
import tensorflow as tf

from keras_cg.namespaces import composed, standard
from keras_cg.namespaces.tensorflow.elementwise import sign
from keras_cg.namespaces.tensorflow.promoted import in_64_bits, same, size, summed, tensor

tnp = tf.experimental.numpy

inv = tf.linalg.inv


def cholesky(x: Any, /, *, upper: bool = False) -> Any:
    factor = tf.linalg.cholesky(x)
    return tf.linalg.adjoint(factor) if upper else factor


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    x1, x2 = same(x1, x2)
    first, second = (tnp.moveaxis(each, axis, 0) for each in (x1, x2))
    parts = [first[i] * second[j] - first[j] * second[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return tf.stack(parts, axis)


def det(x: Any, /) -> Any:
    x = tensor(x)
    return _complex_det(x) if x.dtype.is_complex else tf.linalg.det(x)


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _complex_det(x: Any) -> Any:
    """Computes a determinant whose gradient has the conjugate that TensorFlow's (2.21) lacks."""

    def grad(upstream: Any) -> Any:
        return (upstream * tf.math.conj(_complex_det(x)))[..., None, None] * tf.linalg.inv(x, adjoint=True)

    # Where TensorFlow drops this rule, its own gradient would be wrong, so it raises.
    message = "keras_cg.ops: `linalg.det` of complex numbers has no gradient here on the backend 'tensorflow'."
    return tf.raw_ops.PreventGradient(input=tf.linalg.det(x), message=message), grad


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    x = tensor(x)
    rows, columns = x.shape[-2:]
    if None not in (rows, columns) and not -rows < offset < columns:
        return tf.zeros(tf.concat([tf.shape(x)[:-2], [0]], 0), x.dtype)
    return tf.linalg.diag_part(x, k=offset)


def eigh(x: Any, /) -> standard.EighResult:
    values, vectors = tf.linalg.eigh(x)
    return standard.EighResult(tf.math.real(values), vectors)


def eigvalsh(x: Any, /) -> Any:
    return tf.math.real(tf.linalg.eigvalsh(x))


def matmul(x1: Any, x2: Any, /) -> Any:
    return in_64_bits(tnp.matmul, *same(x1, x2))


def matrix_power(x: Any, n: int, /) -> Any:
    x = tf.linalg.inv(x) if n < 0 else tensor(x)
    power = tf.eye(size(x, -1), batch_shape=tf.shape(x)[:-2], dtype=x.dtype)
    for _ in range(abs(n)):
        power = tf.matmul(power, x)
    return power


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Any:
    values = svdvals(x)
    least = _tolerance(x, rtol, values.dtype) * tf.reduce_max(values, axis=-1)
    return tf.math.count_nonzero(values > least[..., None], axis=-1)


def _tolerance(x: Any, rtol: Any, kind: Any) -> Any:
    """Returns the fraction of the largest singular value below which a singular value counts as zero."""
    if rtol is not None:
        return tf.cast(rtol, kind)
    return tf.cast(tf.reduce_max(tf.shape(x)[-2:]), kind) * numpy.finfo(kind.as_numpy_dtype).eps


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
        least = _tolerance(x, rtol, s.dtype)
        is_large = s > least[..., None] * tf.reduce_max(s, axis=-1, keepdims=True)
        inverse = tf.math.divide_no_nan(tf.cast(is_large, s.dtype), s)

        def grad(upstream: Any) -> Any:
            return composed.pinv_pullback(x, pinv(x, rtol=rtol), upstream, tf.linalg.adjoint)

        return tf.linalg.adjoint(vh) @ (tf.cast(inverse, u.dtype)[..., None] * tf.linalg.adjoint(u)), grad

    return inverted(tensor(x))


def qr(x: Any, /, *, mode: str = "reduced") -> standard.QRResult:
    return standard.QRResult(*tf.linalg.qr(x, full_matrices=mode == "complete"))


def slogdet(x: Any, /) -> standard.SlogdetResult:
    x = tensor(x)
    unit, logarithm = tf.linalg.slogdet(x)
    logarithm = tf.math.real(logarithm)
    if x.dtype.is_complex:
        # TensorFlow (2.21) has no gradient of the sign, so it comes from `det`, scaled so that it cannot overflow.
        length = tf.exp(tf.stop_gradient(logarithm) / tf.cast(size(x, -1), logarithm.dtype))[..., None, None]
        unit = sign(det(x / tf.cast(tf.where(length == 0, tf.ones_like(length), length), x.dtype)))
    return standard.SlogdetResult(unit, logarithm)


def solve(x1: Any, x2: Any, /) -> Any:
    x1, x2 = same(x1, x2)
    if x2.shape.rank == 1:
        return solve(x1, x2[:, None])[..., 0]
    # tf.linalg.solve (2.21) does not broadcast batches.
    batch = tf.broadcast_dynamic_shape(tf.shape(x1)[:-2], tf.shape(x2)[:-2])
    whole = [tf.broadcast_to(each, tf.concat([batch, tf.shape(each)[-2:]], 0)) for each in (x1, x2)]
    return tf.linalg.solve(*whole)


def svd(x: Any, /, *, full_matrices: bool = True) -> standard.SVDResult:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def of_complex(x: Any) -> Any:
        def grad(*upstream: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                factors = tf.linalg.svd(x, full_matrices=full_matrices)
            # The derivative of this gradient is wrong (TensorFlow 2.21) for complex singular vectors, so it raises.
            slope = tape.gradient(factors, x, output_gradients=upstream)
            message = (
                "keras_cg.ops: `linalg.svd` of complex numbers has no second derivative on the backend 'tensorflow'."
            )
            return tf.raw_ops.PreventGradient(input=slope, message=message)

        return tf.linalg.svd(x, full_matrices=full_matrices), grad

    x = tensor(x)
    s, u, v = of_complex(x) if x.dtype.is_complex else tf.linalg.svd(x, full_matrices=full_matrices)
    return standard.SVDResult(u, s, tf.linalg.adjoint(v))


def svdvals(x: Any, /) -> Any:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def of_complex(x: Any) -> Any:
        def grad(upstream: Any) -> Any:
            u, _, vh = svd(x, full_matrices=False)
            return (u * tf.cast(upstream, u.dtype)[..., None, :]) @ vh

        return tf.linalg.svd(x, compute_uv=False), grad

    x = tensor(x)
    return of_complex(x) if x.dtype.is_complex else tf.linalg.svd(x, compute_uv=False)


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    return in_64_bits(lambda x1, x2: tf.tensordot(x1, x2, axes), *same(x1, x2))


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    return tf.reduce_sum(summed(diagonal(x, offset=offset), dtype), axis=-1)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return in_64_bits(lambda x1, x2: tf.reduce_sum(tf.math.conj(x1) * x2, axis=axis), *same(x1, x2))


vector_norm, matrix_norm = composed.norms(
    lambda x: tf.abs(tensor(x)), tf.reduce_sum, tf.reduce_max, tf.reduce_min, tf.sqrt, tf.cast, svdvals
)
