"""Faults that were found in `keras_cg.ops` on NumPy and TensorFlow: wrong gradients, wrong values, unclear crashes."""

import numpy as np
import pytest

from keras_cg import config, grad, ops

BOTH = pytest.mark.only("numpy", "tensorflow")
TENSORFLOW = pytest.mark.only("tensorflow")


def tensor(values, dtype=None):
    return config.active.asarray(np.array(values, dtype))


def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return config.active.to_numpy(value) if config.active.is_tensor(value) else value


def check(value, expected, rtol=1e-6):
    value = plain(value)
    if isinstance(expected, tuple):
        assert len(value) == len(expected)
        for one, due in zip(value, expected, strict=True):
            check(one, due, rtol)
    else:
        assert np.shape(value) == np.shape(expected)
        np.testing.assert_allclose(value, expected, rtol=rtol, atol=1e-7)


def total(function):
    return lambda *args: ops.sum(function(*args))


# --- gradients -----------------------------------------------------------------------------------

W = np.arange(8.0).reshape(2, 4)
GRADIENTS = {
    "repeat": (lambda t: ops.repeat(t, 2, axis=-1) * tensor(W), np.ones((2, 2)), [[1, 5], [9, 13]]),
    "repeat of a number": (lambda t: ops.repeat(t, 3), 1.0, 3),
    "astype": (lambda t: ops.astype(ops.astype(t, "int32"), "float64") * t, [1.5, 2.5, 3.5], [1, 2, 3]),
    "astype to bool": (lambda t: ops.astype(ops.astype(t, "bool"), "float64") * t, [1.5, 0.0], [1, 0]),
    "sign": (lambda t: ops.imag(ops.sign(ops.add(t, 1j))), [1.0, 2.0], [-(2**-1.5), -2 * 5**-1.5]),
    "permute_dims": (lambda t: ops.permute_dims(t, (-1, 0)) * tensor(W[:, :2]), np.ones((2, 2)), [[0, 4], [1, 5]]),
    "copysign": (lambda t: ops.copysign(2.0, t) * t, [1.0, -3.0], [2, -2]),
    "matrix_power": (lambda t: ops.linalg.matrix_power(t, 0) * t, 3 * np.eye(2), np.eye(2)),
    "cross": (
        lambda t: ops.linalg.cross(tensor(np.ones((2, 3))), t) * tensor(np.arange(6.0).reshape(2, 3)),
        [1.0, 2.0, 3.0],
        [-2, 4, -2],
    ),
    "cholesky": (lambda t: ops.linalg.cholesky(t, upper=True), np.eye(2), [[0.5, 0.5], [0.5, 0.5]]),
    "pinv": (lambda t: ops.linalg.pinv(t, rtol=1e-6), np.eye(2), -np.ones((2, 2))),
    "pow of zero": (lambda t: ops.pow(t, 0), [0.0, 1.0], [0, 0]),
    "pow of zero to a tensor": (lambda t: ops.pow(t, tensor([0.0, 2.0])), [0.0, 3.0], [0, 6]),
    "pow by the exponent": (lambda t: ops.pow(tensor([0.0, np.e]), t), [0.0, 2.0], [0, np.e**2]),
    "unique_values": (lambda t: ops.unique_values(t) * tensor([1.0, 10.0, 100.0]), [3.0, 2.0, 4.0], [10, 1, 100]),
    "svdvals of equal ones": (lambda t: ops.linalg.svdvals(t), np.eye(2), np.eye(2)),
    "prod of two axes": (lambda t: ops.prod(t, axis=(0, -1)), [[[2.0, 3.0]], [[5.0, 0.0]]], [[[0, 0]], [[0, 30]]]),
}


@BOTH
@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient(backend, name):
    function, x, expected = GRADIENTS[name]
    check(grad(total(function))(tensor(x)), np.array(expected, float))


SECOND = {
    "prod": (lambda t: ops.prod(t), [0.0, 2.0, 3.0], [5, 3, 2]),
    "pow to the first": (lambda t: ops.pow(t, 1.0), [0.0, 1.0], [0, 0]),
    "pow to a tensor": (lambda t: ops.pow(t, tensor([1.0, 2.0, 3.0])), [0.0, 0.0, 2.0], [0, 2, 12]),
}


@BOTH
@pytest.mark.parametrize("name", SECOND)
def test_a_second_derivative(backend, name):
    function, x, expected = SECOND[name]
    check(grad(total(grad(total(function))))(tensor(x)), np.array(expected, float))


SQUARE = np.array([[4.0, 1 + 2j], [1 - 1j, 5.0]])
TALL = np.array([[4.0, 1 + 2j], [1 - 2j, 5.0], [1j, 2.0]])
HERMITIAN = np.array([[4.0, 1 + 2j], [1 - 2j, 5.0]])
COMPLEX = {
    "cholesky": (lambda z: ops.linalg.cholesky(z), np.linalg.cholesky, HERMITIAN, np.array([[1, 1j], [-1j, 2]])),
    "det": (lambda z: ops.linalg.det(z), np.linalg.det, SQUARE, np.array([[1, 1j], [-1j, 2j]])),
    "slogdet": (lambda z: ops.linalg.slogdet(z).sign, lambda z: np.linalg.slogdet(z).sign, SQUARE, SQUARE * 1j),
    "pinv": (lambda z: ops.linalg.pinv(z), np.linalg.pinv, TALL, np.array([[1, 1j], [-1j, 2], [1, 1j]])),
    "wide pinv": (lambda z: ops.linalg.pinv(z), np.linalg.pinv, TALL.T, np.array([[1, 1j, 1], [-1j, 2, 1j]])),
    "svdvals": (
        lambda z: ops.linalg.svdvals(z),
        lambda z: np.linalg.svd(z, compute_uv=False) + 0j,
        TALL,
        TALL * 1j + 1,
    ),
    "prod": (lambda z: ops.prod(z), np.prod, SQUARE, np.array([[1, 1j], [-1j, 2j]])),
    "sign": (lambda z: ops.sign(z), np.sign, SQUARE, np.array([[1, 1j], [-1j, 2j]])),
    "inv": (lambda z: ops.linalg.inv(z), np.linalg.inv, SQUARE, np.array([[1, 1j], [-1j, 2j]])),
    "pow": (lambda z: ops.pow(z, 2.5), lambda z: z**2.5, SQUARE, np.array([[1, 1j], [-1j, 2j]])),
}


@BOTH
@pytest.mark.parametrize("name", COMPLEX)
def test_a_complex_gradient(backend, name):
    """First and second derivative along a line, against differences of NumPy's function."""
    function, reference, start, direction = COMPLEX[name]

    def loss(t):
        z = function(tensor(start) + ops.astype(t, "complex128") * tensor(direction))
        return ops.sum(ops.real(z) ** 2 + 2 * ops.imag(z) + ops.real(z) * ops.imag(z))

    def due(t):
        z = reference(start + t * direction)
        return np.sum(z.real**2 + 2 * z.imag + z.real * z.imag)

    check(grad(loss)(tensor(0.1)), (due(0.1 + 1e-6) - due(0.1 - 1e-6)) / 2e-6)
    check(grad(grad(loss))(tensor(0.1)), (due(0.101) - 2 * due(0.1) + due(0.099)) / 1e-6, rtol=1e-3)


@TENSORFLOW
def test_the_second_derivative_of_complex_singular_vectors_is_refused(backend):
    """TensorFlow's own (2.21) is wrong."""

    def loss(t):
        u, _, vh = ops.linalg.svd(tensor(SQUARE) + ops.astype(t, "complex128") * tensor(1j * SQUARE**2))
        return ops.sum(ops.real(u * ops.conj(u)) ** 2) + ops.sum(ops.real(ops.matmul(u, vh)))

    def due(t):
        u, _, vh = np.linalg.svd(SQUARE + t * 1j * SQUARE**2)
        return np.sum(np.abs(u) ** 4) + np.sum((u @ vh).real)

    check(grad(loss)(tensor(0.0)), (due(1e-6) - due(-1e-6)) / 2e-6)
    with pytest.raises(LookupError, match=r"`linalg\.svd` of complex numbers has no second derivative"):
        grad(grad(loss))(tensor(0.0))


@TENSORFLOW
@pytest.mark.filterwarnings("ignore")
def test_a_complex_determinant_whose_rule_is_dropped_is_refused(backend):
    """tf.vectorized_map drops the rule; TensorFlow's own gradient (2.21) lacks a conjugate."""
    import tensorflow as tf

    z = tf.constant(np.stack([SQUARE, SQUARE + 1]))
    check(tf.vectorized_map(lambda t: ops.linalg.det(t), z), np.linalg.det(z.numpy()))
    with tf.GradientTape() as tape:
        tape.watch(z)
        with pytest.raises(LookupError, match=r"`linalg\.det` of complex numbers"):
            tf.vectorized_map(lambda t: ops.linalg.det(t), z)


# --- values --------------------------------------------------------------------------------------

NAN, INF = np.nan, np.inf
VALUES = {
    "arange": (
        lambda: [ops.arange(0.0, 1.0, 0.3, dtype="float64"), ops.arange(16777216.0, 16777218.0, 0.5, dtype="float64")],
        ([0, 0.3, 0.6, 0.9], [16777216, 16777216.5, 16777217, 16777217.5]),
    ),
    "sort": (lambda: ops.sort(tensor([3.0, NAN, 1.0, 2.0, INF])), [1, 2, 3, INF, NAN]),
    "argsort": (lambda: ops.argsort(tensor([NAN, 3.0, INF, NAN, 0.0, -0.0])), [4, 5, 1, 2, 0, 3]),
    "sort downwards": (lambda: ops.sort(tensor([3.0, NAN, -INF]), descending=True), [NAN, 3, -INF]),
    "searchsorted": (lambda: ops.searchsorted(tensor([1.0, 2.0, NAN]), tensor([NAN, 2.0])), [2, 1]),
    "unique_counts": (lambda: list(ops.unique_counts(tensor([1.0, NAN, 1.0]))), ([1, NAN], [2, 1])),
    "unique of bool": (lambda: ops.unique_values(tensor([True, False, True])), [False, True]),
    "argmax": (lambda: [ops.argmax(tensor([INF, NAN, 3.0])), ops.argmin(tensor([1.0, NAN, -INF]))], (1, 1)),
    "a zero after a negative one": (
        lambda: (
            [ops.divide(tensor([1.0]), zero) for zero in (-0.0, 0.0, -0.0)]
            + [ops.divide(1.0, ops.asarray(zero)) for zero in (-0.0, 0.0, -0.0)]
            + [ops.atan2(zero, tensor([-1.0])) for zero in (0.0, -0.0)]
            + [ops.divide(1.0, ops.full((1,), zero)) for zero in (0.0, -0.0)]
            + [ops.divide(1.0, ops.full_like(tensor([1.0]), zero)) for zero in (0.0, -0.0)]
        ),
        ([-INF], [INF], [-INF], -INF, INF, -INF, [np.pi], [-np.pi], [INF], [-INF], [INF], [-INF]),
    ),
    "shapes of nothing": (
        lambda: [ops.eye(3, 0), ops.squeeze(tensor(np.ones((1, 2, 1))), ())],
        (np.ones((3, 0)), np.ones((1, 2, 1))),
    ),
    "clip": (
        lambda: [
            ops.clip(tensor([0, 5, 9], "uint8"), -1, 7),
            ops.clip(tensor([0, 5, 9], "int8"), 0, 200),
            ops.clip(tensor([0, 5, 9], "int32"), 0, 2**40),
            ops.clip(tensor([0, 5, 9], "int32"), tensor(6, "int64"), None),
        ],
        ([0, 5, 7], [0, 5, 9], [0, 5, 9], [6, 6, 9]),
    ),
    "truth of complex numbers": (
        lambda: (
            [f(tensor([1j])) for f in (ops.all, ops.any, ops.count_nonzero)]
            + [ops.astype(tensor([1j]), "bool"), ops.nonzero(tensor([0, 1j]))[0]]
        ),
        (True, True, 1, [True], [1]),
    ),
    "var": (lambda: ops.var(tensor([1.0, 2.0, 3.0]), correction=4), INF),
    "std": (lambda: ops.std(tensor([1.0, 2.0, 3.0]), correction=3), INF),
    "mean of nothing": (lambda: ops.isnan(ops.mean(tensor(np.zeros(0, complex)))), True),
    "signbit": (lambda: [ops.signbit(tensor([-NAN, NAN])), ops.copysign(1.0, tensor([-NAN]))], ([True, False], [-1])),
    "floor_divide": (lambda: ops.floor_divide(tensor([-1e-30], "float32"), tensor([1e30], "float32")), [-1]),
    "logaddexp": (lambda: ops.logaddexp(tensor([1.0], "float32"), tensor([1.0])), [1 + np.log(2)]),
    "tril": (lambda: ops.tril(tensor(np.ones((2, 2), bool))), [[True, False], [True, True]]),
    "triu": (lambda: ops.triu(tensor(np.ones((2, 3), "uint16")), k=1), [[0, 1, 1], [0, 0, 1]]),
    "a diagonal outside": (
        lambda: [ops.linalg.diagonal(tensor(W), offset=9), ops.linalg.trace(tensor(W), offset=-9)],
        (np.zeros(0), 0),
    ),
    "take": (lambda: [ops.take(tensor([1, 2]), tensor([1, 0], kind)) for kind in ("uint8", "int8")], ([2, 1], [2, 1])),
    "take_along_axis": (lambda: ops.take_along_axis(tensor([1, 2]), tensor([1, -1], "int8")), [2, 2]),
    "roll": (
        lambda: [ops.roll(tensor([[1, 2], [3, 4]]), 1, axis=axis) for axis in ((0, -1), ())],
        ([[4, 3], [2, 1]], [[1, 2], [3, 4]]),
    ),
    "can_cast": (
        lambda: (
            [ops.can_cast(*pair) for pair in (("bool", "int8"), ("int8", "float64"), ("int8", "int16"))]
            + [
                ops.can_cast("float32", "complex64"),
                ops.can_cast("complex64", "float64"),
                ops.can_cast("uint8", "int8"),
            ]
        ),
        (False, False, True, True, False, False),
    ),
    "isdtype": (
        lambda: [ops.isdtype(ops.int64, kind) for kind in (ops.int64, (ops.bool, "integral"), ops.int8)],
        (True, True, False),
    ),
    "finfo": (
        lambda: (
            [float(ops.finfo(kind).eps) for kind in (tensor(1.0, "float32").dtype, ops.float32, "float32")]
            + [int(ops.iinfo(kind).max) for kind in (tensor(1, "int32").dtype, ops.int32)]
        ),
        (2.0**-23,) * 3 + (2**31 - 1,) * 2,
    ),
    "sqrt of integers": (lambda: [ops.sqrt(tensor([4])), ops.sin(1), ops.exp(tensor([0]))], ([2], np.sin(1), [1])),
}


@BOTH
@pytest.mark.filterwarnings("ignore:Degrees of freedom", "ignore:divide by zero", "ignore:invalid value")
@pytest.mark.filterwarnings("ignore:Mean of empty")
@pytest.mark.parametrize("name", VALUES)
def test_a_value(backend, name):
    function, expected = VALUES[name]
    check(function(), expected if isinstance(expected, tuple) else np.array(expected), rtol=1e-13)


@BOTH
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers(backend, dtype):
    x, y = np.array([[2, 3], [1, 0]], dtype), np.array([[5, 1], [1, 7]], dtype)
    a, b = tensor(x), tensor(y)
    with np.errstate(over="ignore"):
        pairs = {
            "abs": (ops.abs(a), x),
            "sign": (ops.sign(a), np.sign(x)),
            "negative": (ops.negative(a), np.negative(x)),
            "positive": (ops.positive(a), x),
            "square": (ops.square(a), x * x),
            "pow": (ops.pow(a, 2), x**2),
            "floor_divide": (ops.floor_divide(b, 2), y // 2),
            "remainder": (ops.remainder(b, 2), y % 2),
            "matmul": (ops.matmul(a, b), x @ y),
            "vecdot": (ops.vecdot(a, b), np.vecdot(x, y)),
            "tensordot": (ops.tensordot(a, b, axes=1), x @ y),
            "outer": (ops.linalg.outer(a[0], b[0]), np.outer(x[0], y[0])),
            "tile": (ops.tile(a, (1, 2)), np.tile(x, (1, 2))),
            "repeat": (ops.repeat(a, 2, axis=-1), np.repeat(x, 2, -1)),
            "roll": (ops.roll(a, 1), np.roll(x, 1)),
            "sum": (ops.sum(a), np.sum(x)),
            "max": (ops.max(a, axis=0), np.max(x, axis=0)),
            "argmin": (ops.argmin(a), np.argmin(x)),
            "sort": (ops.sort(a, axis=0), np.sort(x, axis=0)),
            "unique_values": (ops.unique_values(a), np.unique(x)),
            "cumulative_sum": (ops.cumulative_sum(a, axis=0, dtype=dtype), np.cumsum(x, 0, dtype=dtype)),
            "cumulative_prod": (ops.cumulative_prod(a, axis=0, dtype=dtype), np.cumprod(x, 0, dtype=dtype)),
            "clip": (ops.clip(a, -1, 2), np.clip(x, -1, 2)),
            "searchsorted": (ops.searchsorted(a[0], b[0]), np.searchsorted(x[0], y[0])),
        }
    for name, (got, due) in pairs.items():
        np.testing.assert_array_equal(plain(got), due, name)
        assert config.active.dtype(got) == str(due.dtype), name


@BOTH
def test_a_number_that_does_not_fit_is_refused(backend):
    with pytest.raises(OverflowError, match="out of bounds"):
        ops.add(tensor([1], "uint8"), 300)


@TENSORFLOW
def test_bfloat16_beside_a_number(backend):
    x = ops.ones(2, dtype="bfloat16")
    results = [ops.add(x, 2.0), ops.where(x > 0, x, 0.5), ops.maximum(x, 2.0), ops.pow(x, 2.0), ops.clip(x, 0.5, 2)]
    assert [config.active.dtype(each) for each in results] == ["bfloat16"] * 5
    assert ops.result_type(x, 1.0) == x.dtype and ops.result_type(x, 1) == x.dtype
    assert float(ops.finfo(x.dtype).eps) == 2.0**-7


# --- batches, and sizes that are unknown in a graph ----------------------------------------------

BATCHED = {
    "roll": (lambda t: ops.roll(t, 1, axis=-1), lambda x: np.roll(x, 1, axis=-1)),
    "fftshift": (lambda t: ops.fft.fftshift(t, axes=-1), lambda x: np.fft.fftshift(x, axes=-1)),
    "ifftshift": (lambda t: ops.fft.ifftshift(t), lambda x: np.fft.ifftshift(x, axes=(1, 2))),
    "sort": (lambda t: ops.sort(t), np.sort),
    "argmax": (lambda t: ops.argmax(t, axis=-1), lambda x: np.argmax(x, axis=-1)),
    "repeat": (lambda t: ops.repeat(t, 2, axis=-1), lambda x: np.repeat(x, 2, axis=-1)),
    "tril": (lambda t: ops.tril(t), np.tril),
    "prod": (lambda t: ops.prod(t, axis=-1), lambda x: np.prod(x, axis=-1)),
    "pow": (lambda t: ops.pow(t, 2.0), lambda x: x**2),
}


@TENSORFLOW
@pytest.mark.parametrize("name", BATCHED)
def test_a_batch(backend, name):
    import tensorflow as tf

    function, reference = BATCHED[name]
    x = np.random.default_rng(0).normal(size=(2, 3, 3))
    check(tf.vectorized_map(function, tf.constant(x)), reference(x))


UNKNOWN = {
    "tril": (lambda t: ops.tril(t, k=-1), lambda x: np.tril(x, -1)),
    "matrix_power": (lambda t: ops.linalg.matrix_power(t, 2), lambda x: x @ x),
    "matrix_rank": (lambda t: ops.linalg.matrix_rank(t), np.linalg.matrix_rank),
    "pinv": (lambda t: ops.linalg.pinv(t), np.linalg.pinv),
    "prod": (lambda t: ops.prod(t, axis=-1), lambda x: np.prod(x, -1)),
    "repeat": (lambda t: ops.repeat(t, ops.asarray([1, 0, 2]), axis=0), lambda x: np.repeat(x, [1, 0, 2], 0)),
    "sort": (lambda t: ops.sort(t, descending=True), lambda x: -np.sort(-x)),
    "tile": (lambda t: ops.tile(t, (2, 1)), lambda x: np.tile(x, (2, 1))),
    "roll": (lambda t: ops.roll(t, 1, axis=-1), lambda x: np.roll(x, 1, -1)),
    "fftshift": (lambda t: ops.fft.fftshift(t), np.fft.fftshift),
    "var": (lambda t: ops.var(t, axis=0, correction=1), lambda x: np.var(x, 0, ddof=1)),
}


@TENSORFLOW
@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_sizes(backend, name):
    import tensorflow as tf

    function, reference = UNKNOWN[name]
    x = np.array([[3.0, 1.0, 0.0], [1.0, 4.0, 2.0], [0.0, 1.0, 5.0]])
    traced = tf.function(function, input_signature=[tf.TensorSpec([None, None], tf.float64)])
    check(traced(tf.constant(x)), reference(x))


HOLOMORPHIC = {
    **{name: getattr(np, name) for name in ("log", "log10", "log1p", "log2", "reciprocal", "sqrt", "tan", "tanh")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")},
    "pow": lambda z: z**1.5,
}


@TENSORFLOW
def test_complex_functions_compiled_by_xla(backend):
    """First and second derivatives of each function along a line, in one program, against differences."""
    import tensorflow as tf

    functions = {name: getattr(ops, name) for name in HOLOMORPHIC} | {"pow": lambda z: ops.pow(z, 1.5)}

    def loss(t):
        parts = []
        for function, each in zip(functions.values(), ops.unstack(t), strict=True):
            z = function(ops.astype(each, "complex128") * (1 - 0.5j) + (0.3 + 0.4j))
            parts.append(ops.real(z) ** 2 + 2 * ops.imag(z) + ops.real(z) * ops.imag(z))
        return ops.sum(ops.stack(parts))

    def due(reference, t):
        z = reference(0.3 + 0.4j + t * (1 - 0.5j))
        return z.real**2 + 2 * z.imag + z.real * z.imag

    for derivative, expected, rtol in (
        (grad(loss), lambda f: (due(f, 1e-6) - due(f, -1e-6)) / 2e-6, 1e-6),
        (grad(total(grad(loss))), lambda f: (due(f, 1e-4) - 2 * due(f, 0) + due(f, -1e-4)) / 1e-8, 1e-4),
    ):
        compiled = tf.function(derivative, jit_compile=True)
        check(compiled(tensor(np.zeros(len(functions)))), np.array([expected(f) for f in HOLOMORPHIC.values()]), rtol)


@TENSORFLOW
def test_the_second_derivative_of_a_product_of_unknown_size(backend):
    import tensorflow as tf

    second = tf.function(grad(total(grad(ops.prod))), input_signature=[tf.TensorSpec([None], tf.float64)])
    check(second(tf.constant([0.0, 2.0, 3.0], tf.float64)), np.array([5.0, 3.0, 2.0]))
