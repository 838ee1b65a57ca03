"""The standard's `fft` on NumPy: `autograd.numpy.fft`, and compositions where autograd has no right gradient.

autograd (1.9) has the gradient of complex transforms. Its gradient of real transforms needs an even size, and is wrong
for an explicit size `n` and for the norm "forward". So what is differentiated is composed from complex transforms.
"""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy
from autograd.extend import Box

from keras_cg.namespaces import composed


def fft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: Any = "backward") -> Any:
    return anp.fft.fft(_fitted(x, n, axis), None, axis, norm) if isinstance(x, Box) else numpy.fft.fft(x, n, axis, norm)


def ifft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: Any = "backward") -> Any:
    if not isinstance(x, Box):
        return numpy.fft.ifft(x, n, axis, norm)
    return anp.fft.ifft(_fitted(x, n, axis), None, axis, norm)


def rfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: Any = "backward") -> Any:
    if not isinstance(x, Box):
        return numpy.fft.rfft(x, n, axis, norm)
    count = n or x.shape[axis]
    return _cut(fft(x, n=n, axis=axis, norm=norm), axis, 0, count // 2 + 1)


def irfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: Any = "backward") -> Any:
    if not isinstance(x, Box):
        return numpy.fft.irfft(x, n, axis, norm)
    count = n or 2 * (x.shape[axis] - 1)
    half = _fitted(x, count // 2 + 1, axis)
    mirrored = anp.conj(_cut(half, axis, 1, count - count // 2))
    places = [slice(None)] * anp.ndim(x)
    places[axis] = slice(None, None, -1)
    return anp.real(ifft(anp.concatenate([half, mirrored[tuple(places)]], axis), axis=axis, norm=norm))


def _cut(x: Any, axis: int, start: int, stop: int) -> Any:
    places = [slice(None)] * anp.ndim(x)
    places[axis] = slice(start, stop)
    return x[tuple(places)]


def _fitted(x: Any, n: int | None, axis: int) -> Any:
    """Returns the first `n` along an axis, with zeros after them if there are fewer."""
    if n is None:
        return x
    x = _cut(x, axis, 0, n)
    shape = list(x.shape)
    shape[axis] = n - shape[axis]
    return anp.concatenate([x, numpy.zeros(shape, x.dtype)], axis) if shape[axis] else x


hfft, ihfft, fftn, ifftn, rfftn, irfftn = composed.transforms(fft, ifft, rfft, irfft, anp.conj, anp.ndim)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Any:
    frequencies = numpy.fft.fftfreq(n, d, device=device)
    return frequencies if dtype is None else frequencies.astype(dtype)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Any:
    frequencies = numpy.fft.rfftfreq(n, d, device=device)
    return frequencies if dtype is None else frequencies.astype(dtype)
