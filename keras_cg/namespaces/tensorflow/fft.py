"""The standard's `fft` on TensorFlow, composed from `tf.signal`, which transforms the whole last axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import tensorflow as tf

from keras_cg.namespaces import composed
from keras_cg.namespaces.tensorflow.promoted import as_dtype, cast, rolled, size, tensor

# A result is multiplied by this power of the size. TensorFlow has already divided that of an inverse transform.
_POWERS = {"backward": 0.0, "ortho": 0.5, "forward": 1.0}


def _one(function: Callable[..., Any], x: Any, n: Any, axis: int, norm: str, is_inverse: bool) -> Any:
    """Transforms `x`, fitted to the size `n`, along an axis; the `function` of an inverse transform divides by `n`."""
    x = tf.experimental.numpy.moveaxis(tensor(x), axis, -1)
    result = function(x, n)
    power = _POWERS[norm] if is_inverse else -_POWERS[norm]
    if power:
        result = result * tf.cast(tf.cast(n, tf.float64) ** power, result.dtype)
    return tf.experimental.numpy.moveaxis(result, -1, axis)


def _fitted(x: Any, n: Any) -> Any:
    """Returns the first `n` along the last axis, with zeros after them if there are fewer."""
    x = x[..., :n]
    missing = n - tf.shape(x)[-1]
    return tf.pad(x, [[0, 0]] * (x.shape.rank - 1) + [[0, missing]])


def _complex(x: Any) -> Any:
    x = tensor(x)
    return x if x.dtype.is_complex else cast(x, tf.complex128 if x.dtype == tf.float64 else tf.complex64)


def fft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    x = _complex(x)
    count = n or size(x, axis)
    return _one(lambda x, n: tf.signal.fft(_fitted(x, n)), x, count, axis, norm, False)


def ifft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    x = _complex(x)
    count = n or size(x, axis)
    return _one(lambda x, n: tf.signal.ifft(_fitted(x, n)), x, count, axis, norm, True)


def rfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    count = n or size(x, axis)
    return _one(lambda x, n: tf.signal.rfft(_fitted(x, n)), x, count, axis, norm, False)


def irfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    x = _complex(x)
    count = n or 2 * (size(x, axis) - 1)
    return _one(lambda x, n: tf.signal.irfft(_fitted(x, n // 2 + 1), [n]), x, count, axis, norm, True)


hfft, ihfft, fftn, ifftn, rfftn, irfftn = composed.transforms(
    fft, ifft, rfft, irfft, tf.math.conj, lambda x: tensor(x).shape.rank
)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Any:
    return tf.constant(numpy.fft.fftfreq(n, d), as_dtype(dtype or "float64"))


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Any:
    return tf.constant(numpy.fft.rfftfreq(n, d), as_dtype(dtype or "float64"))


def fftshift(x: Any, /, *, axes: Any = None) -> Any:
    x = tensor(x)
    return rolled(x, lambda axes: [size(x, axis) // 2 for axis in axes], axes)


def ifftshift(x: Any, /, *, axes: Any = None) -> Any:
    x = tensor(x)
    return rolled(x, lambda axes: [-(size(x, axis) // 2) for axis in axes], axes)
