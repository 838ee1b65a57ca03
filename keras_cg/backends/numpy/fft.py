"""The standard's `fft` on NumPy: `autograd.numpy.fft`, and in its place what autograd does not differentiate."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp

from keras_cg.engine import standard


# What a Hermitian transform divides by is what the real one that it is made of multiplies with.
_INVERSE = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def hfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    return anp.fft.irfft(anp.conj(x), n, axis, _INVERSE[norm])


def ihfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    return anp.conj(anp.fft.rfft(x, n, axis, _INVERSE[norm]))


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Any:
    frequencies = anp.fft.fftfreq(n, d, device=device)
    return frequencies if dtype is None else frequencies.astype(dtype)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Any:
    frequencies = anp.fft.rfftfreq(n, d, device=device)
    return frequencies if dtype is None else frequencies.astype(dtype)
