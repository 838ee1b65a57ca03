"""Everyday functions of one array, written with the standard alone: `xp` is `keras_cg.ops`, or array-api-strict.

The array is (2, 3), of different numbers between 0.2 and 0.8.
"""


def total(xp, function, x):
    """A scalar that hangs on every element of what a function gives."""
    output = function(xp, x)
    return xp.sum(output * output)


def gram(xp, x):
    """A matrix (2, 2), symmetric and far from singular."""
    return xp.matmul(x, xp.matrix_transpose(x)) + xp.asarray([[1.0, 0.0], [0.0, 2.0]], dtype=x.dtype)


FUNCTIONS = {
    **{
        name: lambda xp, x, name=name: getattr(xp, name)(x)
        for name in (
            *("abs", "acos", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log", "log10", "log1p"),
            *("log2", "negative", "positive", "reciprocal", "sin", "sinh", "sqrt", "square", "tan", "tanh"),
            *("max", "mean", "min", "prod", "std", "sum", "var", "sort", "flip", "matrix_transpose"),
        )
    },
    "acosh": lambda xp, x: xp.acosh(x + 1),
    "add": lambda xp, x: xp.add(x, 2.0),
    "atan2": lambda xp, x: xp.atan2(x, 2.0),
    "copysign": lambda xp, x: xp.copysign(x, -2.0),
    "divide": lambda xp, x: xp.divide(2.0, x),
    "hypot": lambda xp, x: xp.hypot(x, 2.0),
    "logaddexp": lambda xp, x: xp.logaddexp(x, 0.0),
    "maximum": lambda xp, x: xp.maximum(x, 0.5),
    "minimum": lambda xp, x: xp.minimum(0.5, x),
    "multiply": lambda xp, x: xp.multiply(x, x),
    "pow": lambda xp, x: xp.pow(x, 3.0),
    "remainder": lambda xp, x: xp.remainder(x, 0.3),
    "subtract": lambda xp, x: xp.subtract(1, x),
    "clip": lambda xp, x: xp.clip(x, 0.3, 0.6),
    "where": lambda xp, x: xp.where(x > 0.5, x, 2.0),
    "triu": lambda xp, x: xp.triu(x, k=1),
    "astype": lambda xp, x: xp.real(xp.astype(x, xp.result_type(x, 1j)) * 2j * 1j),
    "broadcast_to": lambda xp, x: xp.broadcast_to(x[0, :], (4, 3)) * x[1, :],
    "concat": lambda xp, x: xp.concat((x, x * x), axis=1),
    "expand_dims": lambda xp, x: xp.expand_dims(x, axis=1),
    "moveaxis": lambda xp, x: xp.moveaxis(x, 0, 1),
    "permute_dims": lambda xp, x: xp.permute_dims(x, (1, 0)),
    "repeat": lambda xp, x: xp.repeat(x, 2, axis=1),
    "reshape": lambda xp, x: xp.reshape(x, (-1,)),
    "roll": lambda xp, x: xp.roll(x, (1, 2), axis=(0, 1)),
    "squeeze": lambda xp, x: xp.squeeze(x[:1, :], axis=0),
    "stack": lambda xp, x: xp.stack((x, x * x), axis=-1),
    "tile": lambda xp, x: xp.tile(x, (2,)),
    "unstack": lambda xp, x: xp.unstack(x, axis=1)[1],
    "take": lambda xp, x: xp.take(x, xp.asarray([2, 0]), axis=1),
    "take_along_axis": lambda xp, x: xp.take_along_axis(x, xp.asarray([[1], [0]]), axis=1),
    "sum of an axis": lambda xp, x: xp.sum(x * x, axis=0, keepdims=True),
    "var, corrected": lambda xp, x: xp.var(x, axis=1, correction=1),
    "cumulative_sum": lambda xp, x: xp.cumulative_sum(x, axis=1, include_initial=True),
    "cumulative_prod": lambda xp, x: xp.cumulative_prod(x, axis=1),
    "diff": lambda xp, x: xp.diff(x, axis=1, n=2),
    "matmul": lambda xp, x: xp.matmul(x, xp.matrix_transpose(x)),
    "tensordot": lambda xp, x: xp.tensordot(x, x, axes=((0,), (0,))),
    "vecdot": lambda xp, x: xp.vecdot(x, x),
    "linalg.inv": lambda xp, x: xp.linalg.inv(gram(xp, x)),
    "linalg.det": lambda xp, x: xp.linalg.det(gram(xp, x)),
    "linalg.slogdet": lambda xp, x: xp.linalg.slogdet(gram(xp, x)).logabsdet,
    "linalg.solve": lambda xp, x: xp.linalg.solve(gram(xp, x), x),
    "linalg.cholesky": lambda xp, x: xp.linalg.cholesky(gram(xp, x)),
    "linalg.eigvalsh": lambda xp, x: xp.linalg.eigvalsh(gram(xp, x)),
    "linalg.pinv": lambda xp, x: xp.linalg.pinv(x),
    "linalg.svdvals": lambda xp, x: xp.linalg.svdvals(x),
    "linalg.matrix_norm": lambda xp, x: xp.linalg.matrix_norm(x),
    "linalg.vector_norm": lambda xp, x: xp.linalg.vector_norm(x, axis=1),
    "linalg.outer": lambda xp, x: xp.linalg.outer(x[0, :], x[1, :]),
    "linalg.cross": lambda xp, x: xp.linalg.cross(x[0, :], x[1, :]),
    "linalg.trace": lambda xp, x: xp.linalg.trace(gram(xp, x)),
    "linalg.matrix_power": lambda xp, x: xp.linalg.matrix_power(gram(xp, x), 3),
    "fft.rfft": lambda xp, x: xp.real(xp.fft.rfft(x, n=4)),
    "fft.irfft": lambda xp, x: xp.fft.irfft(xp.fft.rfft(x) * (1 + 1j), n=5),
}

# What the framework's compiler has not; in every other mode it is right.
NOT_COMPILED = {("tensorflow", "jit_compile"): ("linalg.det", "linalg.slogdet")}
# And these it takes long for, one by one; they are TensorFlow's own operations.
LONG = {("tensorflow", "jit_compile"): ("linalg.", "fft.")}
