"""Every function of `keras_cg.ops` with its closed form, written for `xp`: it is `keras_cg.ops`, or NumPy."""

import math

import numpy as np

zero = np.zeros_like
one = np.ones_like
LINE = np.array([-0.9, -0.75, -0.3, 0.25, 0.5625, 0.8])
POSITIVE = np.array([0.25, 0.5625, 0.8])


def logistic(x):
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


# A function of each element, where it is tried, its first and its second derivative. The first word is its name.
ELEMENTWISE = {
    "abs": (LINE, lambda xp, x: xp.abs(x), np.sign, zero),
    "acos": (LINE, lambda xp, x: xp.acos(x), lambda x: -((1 - x * x) ** -0.5), lambda x: -x * (1 - x * x) ** -1.5),
    "acosh": (
        POSITIVE + 1,
        lambda xp, x: xp.acosh(x),
        lambda x: (x * x - 1) ** -0.5,
        lambda x: -x * (x * x - 1) ** -1.5,
    ),
    "asin": (LINE, lambda xp, x: xp.asin(x), lambda x: (1 - x * x) ** -0.5, lambda x: x * (1 - x * x) ** -1.5),
    "asinh": (LINE, lambda xp, x: xp.asinh(x), lambda x: (1 + x * x) ** -0.5, lambda x: -x * (1 + x * x) ** -1.5),
    "atan": (LINE, lambda xp, x: xp.atan(x), lambda x: 1 / (1 + x * x), lambda x: -2 * x / (1 + x * x) ** 2),
    "atanh": (LINE, lambda xp, x: xp.atanh(x), lambda x: 1 / (1 - x * x), lambda x: 2 * x / (1 - x * x) ** 2),
    "ceil": (LINE, lambda xp, x: xp.ceil(x), zero, zero),
    "conj": (LINE, lambda xp, x: xp.conj(x), one, zero),
    "cos": (LINE, lambda xp, x: xp.cos(x), lambda x: -np.sin(x), lambda x: -np.cos(x)),
    "cosh": (LINE, lambda xp, x: xp.cosh(x), np.sinh, np.cosh),
    "exp": (LINE, lambda xp, x: xp.exp(x), np.exp, np.exp),
    "expm1": (LINE, lambda xp, x: xp.expm1(x), np.exp, np.exp),
    "floor": (LINE, lambda xp, x: xp.floor(x), zero, zero),
    "imag": (LINE, lambda xp, x: xp.imag(xp.multiply(x, 2 + 3j)), lambda x: 3 * one(x), zero),
    "log": (POSITIVE, lambda xp, x: xp.log(x), lambda x: 1 / x, lambda x: -(x**-2)),
    "log10": (POSITIVE, lambda xp, x: xp.log10(x), lambda x: 1 / x / math.log(10), lambda x: -(x**-2) / math.log(10)),
    "log1p": (LINE, lambda xp, x: xp.log1p(x), lambda x: 1 / (1 + x), lambda x: -((1 + x) ** -2)),
    "log2": (POSITIVE, lambda xp, x: xp.log2(x), lambda x: 1 / x / math.log(2), lambda x: -(x**-2) / math.log(2)),
    "negative": (LINE, lambda xp, x: xp.negative(x), lambda x: -one(x), zero),
    "real": (LINE, lambda xp, x: xp.real(xp.multiply(x, 2 + 3j)), lambda x: 2 * one(x), zero),
    "reciprocal": (LINE, lambda xp, x: xp.reciprocal(x), lambda x: -(x**-2), lambda x: 2 * x**-3),
    "round": (LINE, lambda xp, x: xp.round(x), zero, zero),
    "sign": (LINE, lambda xp, x: xp.sign(x), zero, zero),
    "sin": (LINE, lambda xp, x: xp.sin(x), np.cos, lambda x: -np.sin(x)),
    "sinh": (LINE, lambda xp, x: xp.sinh(x), np.cosh, np.sinh),
    "sqrt": (POSITIVE, lambda xp, x: xp.sqrt(x), lambda x: x**-0.5 / 2, lambda x: -(x**-1.5) / 4),
    "square": (LINE, lambda xp, x: xp.square(x), lambda x: 2 * x, lambda x: 2 * one(x)),
    "tan": (LINE, lambda xp, x: xp.tan(x), lambda x: np.cos(x) ** -2, lambda x: 2 * np.tan(x) * np.cos(x) ** -2),
    "tanh": (LINE, lambda xp, x: xp.tanh(x), lambda x: np.cosh(x) ** -2, lambda x: -2 * np.tanh(x) * np.cosh(x) ** -2),
    "trunc": (LINE, lambda xp, x: xp.trunc(x), zero, zero),
    "add": (LINE, lambda xp, x: xp.add(x, 2.0), one, zero),
    "atan2": (LINE, lambda xp, x: xp.atan2(x, 2.0), lambda x: 2 / (4 + x * x), lambda x: -4 * x / (4 + x * x) ** 2),
    "atan2, second": (
        LINE,
        lambda xp, x: xp.atan2(2.0, x),
        lambda x: -2 / (4 + x * x),
        lambda x: 4 * x / (4 + x * x) ** 2,
    ),
    "divide": (LINE, lambda xp, x: xp.divide(x, 2.0), lambda x: one(x) / 2, zero),
    "divide, second": (LINE, lambda xp, x: xp.divide(2.0, x), lambda x: -2 / x**2, lambda x: 4 / x**3),
    "floor_divide": (LINE, lambda xp, x: xp.floor_divide(x, 0.4), zero, zero),
    "hypot": (LINE, lambda xp, x: xp.hypot(x, 2.0), lambda x: x / np.hypot(x, 2), lambda x: 4 / np.hypot(x, 2) ** 3),
    "logaddexp": (
        LINE,
        lambda xp, x: xp.logaddexp(x, 0.5),
        lambda x: logistic(x - 0.5),
        lambda x: logistic(x - 0.5) * logistic(0.5 - x),
    ),
    "maximum": (LINE, lambda xp, x: xp.maximum(x, 0.5), lambda x: 1.0 * (x > 0.5), zero),
    "minimum": (LINE, lambda xp, x: xp.minimum(0.5, x), lambda x: 1.0 * (x < 0.5), zero),
    "multiply": (LINE, lambda xp, x: xp.multiply(x, x), lambda x: 2 * x, lambda x: 2 * one(x)),
    "pow": (LINE, lambda xp, x: xp.pow(x, 3.0), lambda x: 3 * x * x, lambda x: 6 * x),
    "pow, second": (
        LINE,
        lambda xp, x: xp.pow(2.0, x),
        lambda x: math.log(2) * 2**x,
        lambda x: math.log(2) ** 2 * 2**x,
    ),
    "remainder": (LINE, lambda xp, x: xp.remainder(x, 0.4), one, zero),
    "subtract": (LINE, lambda xp, x: xp.subtract(1, x), lambda x: -one(x), zero),
    "clip": (LINE, lambda xp, x: xp.clip(x, -0.5, 0.6), lambda x: 1.0 * ((x > -0.5) & (x < 0.6)), zero),
    "where": (LINE, lambda xp, x: xp.where(x > 0.5, x, 2.0), lambda x: 1.0 * (x > 0.5), zero),
}

X = np.array([[0.25, 0.75, 0.40625], [0.5625, 0.34375, 0.6875]])


def gram(xp, x):
    """A matrix (2, 2), symmetric and far from singular."""
    return xp.matmul(x, xp.matrix_transpose(x)) + xp.asarray([[1.0, 0.0], [0.0, 2.0]], dtype=x.dtype)


def lower(xp, x):
    """A lower triangular matrix (2, 2)."""
    return xp.tril(x[:, :2])


# A function of X whose elements are piecewise polynomials of degree three at most, so that differences are exact.
FUNCTIONS = {
    "sum": lambda xp, x: xp.sum(x * x, axis=0, keepdims=True),
    "sum of all": lambda xp, x: xp.sum(x),
    "mean": lambda xp, x: xp.mean(x, axis=(0, 1)),
    "max": lambda xp, x: xp.max(x, axis=1),
    "min": lambda xp, x: xp.min(x, axis=-1, keepdims=True),
    "prod": lambda xp, x: xp.prod(x, axis=1),
    "prod of two axes": lambda xp, x: xp.prod(xp.stack((x[:, :1], x[:, 1:2] - 0.5)), axis=(0, -1), keepdims=True),
    "std": lambda xp, x: xp.square(xp.std(x, axis=0)),
    "var": lambda xp, x: xp.var(x, axis=1, correction=1, keepdims=True),
    "var of all": lambda xp, x: xp.var(x),
    "cumulative_sum": lambda xp, x: xp.cumulative_sum(x, axis=-1),
    "sort": lambda xp, x: xp.sort(x, 0),
    "broadcast_to": lambda xp, x: xp.broadcast_to(x[0, :], (4, 3)) * x[1, :],
    "concat": lambda xp, x: xp.concat((x, x * x), 1),
    "concat of all": lambda xp, x: xp.concat((x, x[0, :]), axis=None),
    "expand_dims": lambda xp, x: xp.expand_dims(x, 1) * xp.expand_dims(x, axis=-1)[:, :2, :],
    "flip": lambda xp, x: xp.flip(x, axis=-1),
    "flip of all": lambda xp, x: xp.flip(x),
    "moveaxis": lambda xp, x: xp.moveaxis(x, 0, -1),
    "permute_dims": lambda xp, x: xp.permute_dims(x, (-1, 0)),
    "repeat": lambda xp, x: xp.repeat(x, 2, axis=-1),
    "repeat of all": lambda xp, x: xp.repeat(x, 3),
    "reshape": lambda xp, x: xp.reshape(x, -1) * xp.reshape(x, (6,)),
    "roll": lambda xp, x: xp.roll(x, (1, 2), axis=(0, -1)),
    "roll of all": lambda xp, x: xp.roll(x, 1),
    "squeeze": lambda xp, x: xp.squeeze(x[:1, :], axis=0),
    "stack": lambda xp, x: xp.stack([x, x * x], -1),
    "tile": lambda xp, x: xp.tile(x, 2),
    "tile of two axes": lambda xp, x: xp.tile(x, (2, 1)),
    "tril": lambda xp, x: xp.tril(x, -1),
    "triu": lambda xp, x: xp.triu(x, k=1),
    "unstack": lambda xp, x: xp.unstack(x, axis=-1)[1],
    "take": lambda xp, x: xp.take(x, xp.asarray([2, 0]), axis=-1),
    "take of all": lambda xp, x: xp.take(x, xp.asarray([[2, 0], [5, 5]])),
    "take_along_axis": lambda xp, x: xp.take_along_axis(x, xp.asarray([[1], [0]]), axis=-1),
    "asarray": lambda xp, x: xp.asarray([[x[0, 0], x[0, 1]], [x[0, 1], x[1, 2]]]),
    "astype": lambda xp, x: xp.imag(xp.multiply(xp.astype(x, xp.result_type(x, 1j)), xp.multiply(x, 2j))),
    "full": lambda xp, x: xp.full((2, 3), x[0, 0] * x[1, 1]),
    "full_like": lambda xp, x: xp.full_like(x, x[0, 0] * x[1, 1]),
    "where of other shapes": lambda xp, x: xp.where(x > 0.5, x[0, :], x[:, :1]),
    "zeros_like": lambda xp, x: xp.zeros_like(x) + xp.ones_like(x) * x,
    "matmul": lambda xp, x: xp.matmul(x, xp.matrix_transpose(x)),
    "matrix_transpose": lambda xp, x: xp.matrix_transpose(x),
    "tensordot": lambda xp, x: xp.tensordot(x, x, axes=((0,), (0,))),
    "vecdot": lambda xp, x: xp.vecdot(x, x),
    "vecdot along the first axis": lambda xp, x: xp.vecdot(x, x, axis=0),
    # A L x = L x has the solution x, and the factor of L times its transpose is L.
    "linalg.solve": lambda xp, x: x * x if xp is np else xp.linalg.solve(gram(xp, x), xp.matmul(gram(xp, x), x * x)),
    "linalg.solve of a vector": lambda xp, x: (
        x[:, 0] if xp is np else xp.linalg.solve(gram(xp, x), xp.matmul(gram(xp, x), x[:, 0]))
    ),
    "linalg.solve of batches": lambda xp, x: (
        xp.stack((x[:, 0], x[:, 0] / 2))
        if xp is np
        else xp.linalg.solve(xp.stack((gram(xp, x), 2 * gram(xp, x))), xp.matmul(gram(xp, x), x[:, 0]))
    ),
    "linalg.cholesky": lambda xp, x: (
        lower(xp, x) if xp is np else xp.linalg.cholesky(xp.matmul(lower(xp, x), xp.matrix_transpose(lower(xp, x))))
    ),
}

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5])
# What has no gradient: each gives what NumPy's function of that name gives.
VALUES = {
    **{name: lambda xp, name=name: getattr(xp, name)(xp.asarray(SPECIAL)) for name in ("isfinite", "isinf", "isnan")},
    **{
        name: lambda xp, name=name: getattr(xp, name)(xp.asarray(SPECIAL)[:, None], xp.asarray(SPECIAL))
        for name in ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
    },
    **{
        name: lambda xp, name=name: getattr(xp, name)(xp.asarray([[True], [False]]), xp.asarray([True, False]))
        for name in ("logical_and", "logical_or", "logical_xor")
    },
    "logical_not": lambda xp: xp.logical_not(xp.asarray([True, False])),
    "all": lambda xp: xp.all(xp.asarray(X) > 0.3, axis=1, keepdims=True),
    "any": lambda xp: xp.any(xp.asarray(X) > 0.7, axis=1),
    "argmax": lambda xp: xp.argmax(xp.asarray(X), 1),
    "argmax of all": lambda xp: xp.argmax(xp.asarray(X)),
    "argmin": lambda xp: xp.argmin(xp.asarray(X), axis=0, keepdims=True),
    "argsort": lambda xp: xp.argsort(xp.asarray(X), axis=-1),
    "arange": lambda xp: xp.arange(1.0, 2.0, 0.25, dtype="float64"),
    "eye": lambda xp: xp.eye(2, 3, k=1),
    "ones": lambda xp: xp.ones((2, 3), "float64"),
    "zeros": lambda xp: xp.zeros(3),
    "ones_like": lambda xp: xp.ones_like(xp.asarray(X), dtype="int32"),
    "finfo": lambda xp: float(xp.finfo(xp.asarray(X).dtype).eps),
    "isdtype": lambda xp: [xp.isdtype(xp.asarray(X).dtype, kind) for kind in ("real floating", "integral", "numeric")],
}
