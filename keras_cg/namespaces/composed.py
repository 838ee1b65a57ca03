"""Functions of the standard that several backends compose from other functions of their framework."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from numpy.lib.array_utils import normalize_axis_tuple

from keras_cg.namespaces import messages, standard


def axis_of(axis: int | None, rank: int) -> int:
    """Finds the axis of a cumulative function, which is optional for a tensor with a single axis."""
    if axis is None and rank != 1:
        raise messages.no_axis(rank)
    return 0 if axis is None else axis


def axes_of(axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Finds the axes that `axis` means, as numbers from zero: all of them, one, or several.

    Some functions of TensorFlow (2.21) and autograd (1.9) are wrong along negative axes.
    """
    axes = range(rank) if axis is None else axis
    return tuple(map(int, normalize_axis_tuple(axes, rank)))


def pinv_pullback(x: Any, inverse: Any, upstream: Any, adjoint: Callable[[Any], Any]) -> Any:
    """Returns the gradient of a pseudoinverse, by the formula of Golub and Pereyra (1973) for a constant rank.

    Args:
        x: The matrix.
        inverse: The pseudoinverse of `x`.
        upstream: The gradient that arrives at the pseudoinverse.
        adjoint: Transposes a matrix and conjugates it.
    """
    g, h = adjoint(upstream), adjoint(inverse)
    left, right = g @ inverse @ h, h @ inverse @ g
    return left - x @ (inverse @ left) + right - (right @ inverse) @ x - h @ upstream @ h


def product(rows: Any, count: int, concat: Callable[[list[Any]], Any]) -> Any:
    """Multiplies all rows in pairs, then the products in pairs, until one is left; see `products`."""
    while count > 1:
        half = count // 2
        pairs = rows[:half] * rows[half : 2 * half]
        rows = concat([pairs, rows[2 * half :]]) if count % 2 else pairs
        count -= half
    return rows[0]


def products(rows: Any, count: int, concat: Callable[[list[Any]], Any]) -> Any:
    """Multiplies each row with all rows before it, in a logarithmic number of steps.

    Its gradient is right where a row is zero. Those of autograd (1.9) and TensorFlow (2.21) divide by each row.

    Args:
        rows: A tensor.
        count: The size of its first axis.
        concat: Joins tensors along that axis.
    """
    reach = 1
    while reach < count:
        rows = concat([rows[:reach], rows[reach:] * rows[:-reach]])
        reach *= 2
    return rows


# A Hermitian transform is an inverse real one, or the other way round, so its normalisation is the opposite one.
_INVERSE = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def transforms(
    fft: Callable[..., Any],
    ifft: Callable[..., Any],
    rfft: Callable[..., Any],
    irfft: Callable[..., Any],
    conj: Callable[[Any], Any],
    rank: Callable[[Any], int],
) -> tuple[Callable[..., Any], ...]:
    """Composes transforms along several axes, and those of Hermitian signals, from transforms along one axis.

    Returns the functions hfft, ihfft, fftn, ifftn, rfftn and irfftn of the standard.

    Args:
        fft: The standard's function of this name, along one axis.
        ifft: The standard's function of this name.
        rfft: The standard's function of this name.
        irfft: The standard's function of this name.
        conj: Returns the complex conjugate.
        rank: Returns the number of axes of a tensor.
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

    return hfft, ihfft, fftn, ifftn, rfftn, irfftn


def uniques(unique_all: Callable[..., standard.UniqueAllResult]) -> tuple[Callable[..., Any], ...]:
    """Builds `unique_counts`, `unique_inverse` and `unique_values` from `unique_all`, whose options they take."""

    def unique_counts(x: Any, /, **options: Any) -> standard.UniqueCountsResult:
        every = unique_all(x, **options)
        return standard.UniqueCountsResult(every.values, every.counts)

    def unique_inverse(x: Any, /, **options: Any) -> standard.UniqueInverseResult:
        every = unique_all(x, **options)
        return standard.UniqueInverseResult(every.values, every.inverse_indices)

    def unique_values(x: Any, /, **options: Any) -> Any:
        return unique_all(x, **options).values

    return unique_counts, unique_inverse, unique_values


def norms(
    size: Callable[[Any], Any],
    total: Callable[..., Any],
    most: Callable[..., Any],
    least: Callable[..., Any],
    sqrt: Callable[[Any], Any],
    cast: Callable[[Any, Any], Any],
    svdvals: Callable[[Any], Any],
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Builds `vector_norm` and `matrix_norm`.

    Args:
        size: Returns the absolute values.
        total: Sums along axes, as `most` and `least` reduce.
        most: Returns the maximum.
        least: Returns the minimum.
        sqrt: Returns the square roots.
        cast: Casts a tensor to a dtype.
        svdvals: The standard's function of this name.
    """

    def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
        sizes = size(x)
        if abs(ord) == math.inf:
            return (most if ord > 0 else least)(sizes, axis=axis, keepdims=keepdims)
        powers = cast(sizes != 0, sizes.dtype) if ord == 0 else sizes if ord == 1 else sizes**ord
        norm = total(powers, axis=axis, keepdims=keepdims)
        return norm if ord in (0, 1) else sqrt(norm) if ord == 2 else norm ** (1 / ord)

    def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
        if ord == "fro":
            return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
        if ord in ("nuc", 2, -2):
            norm = {"nuc": total, 2: most, -2: least}[ord](svdvals(x), axis=-1)
        else:
            norm = (most if ord > 0 else least)(total(size(x), axis=-2 if abs(ord) == 1 else -1), axis=-1)
        return norm[..., None, None] if keepdims else norm

    return vector_norm, matrix_norm
