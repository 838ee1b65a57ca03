"""Fourier transforms along several axes, and those of Hermitian signals, made of those along one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# What a Hermitian transform divides by is what the real one that it is made of multiplies with.
_INVERSE = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


class Others(NamedTuple):
    """The functions of the standard's `fft` that are made of `fft`, `ifft`, `rfft` and `irfft`."""

    hfft: Callable[..., Any]
    ihfft: Callable[..., Any]
    fftn: Callable[..., Any]
    ifftn: Callable[..., Any]
    rfftn: Callable[..., Any]
    irfftn: Callable[..., Any]


def others(
    fft: Callable[..., Any],
    ifft: Callable[..., Any],
    rfft: Callable[..., Any],
    irfft: Callable[..., Any],
    conj: Callable[[Any], Any],
    rank: Callable[[Any], int],
) -> Others:
    """Those of a framework, of its transforms along one axis.

    Args:
        fft: As the standard has it; `ifft`, `rfft` and `irfft` likewise.
        ifft: See `fft`.
        rfft: See `fft`.
        irfft: See `fft`.
        conj: The complex conjugate.
        rank: How many axes a tensor has.
    """

    def hfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
        return irfft(conj(x), n=n, axis=axis, norm=_INVERSE[norm])

    def ihfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
        return conj(rfft(x, n=n, axis=axis, norm=_INVERSE[norm]))

    def fftn(x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
        return along(fft, x, sizes(x, s, axes), norm)

    def ifftn(x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
        return along(ifft, x, sizes(x, s, axes), norm)

    def rfftn(x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
        *before, last = sizes(x, s, axes)
        return along(fft, along(rfft, x, [last], norm), before, norm)

    def irfftn(x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
        *before, last = sizes(x, s, axes)
        return along(irfft, along(ifft, x, before, norm), [last], norm)

    def sizes(x: Any, s: Sequence[int] | None, axes: Sequence[int] | None) -> list[tuple[int, int | None]]:
        if axes is None:
            axes = range(-rank(x) if s is None else -len(s), 0)
        return list(zip(axes, [None] * len(axes) if s is None else s, strict=True))

    def along(function: Callable[..., Any], x: Any, axes: Sequence[tuple[int, int | None]], norm: str) -> Any:
        for axis, n in axes:
            x = function(x, n=n, axis=axis, norm=norm)
        return x

    return Others(hfft, ihfft, fftn, ifftn, rfftn, irfftn)
