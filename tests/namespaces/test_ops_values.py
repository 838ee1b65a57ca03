"""`keras_cg.ops` has the right values, shapes and dtypes, where a framework's own differ, too; in batches."""

import numpy as np
import pytest
from ops_cases import BOTH, TENSORFLOW, TORCH_AND_JAX, batched, check, plain, tensor

import keras_cg
from keras_cg import ops
from keras_cg.frontend import config


@pytest.fixture(autouse=True)
def doubles(backend):
    with config.active.double_precision():
        yield


def wide(values, dtype="float64"):
    return tensor(values, dtype)


NAN, INF = np.nan, np.inf
# What is called, and what is due.
EVERYWHERE = {
    "clip, bounds outside": (lambda: ops.clip(wide([0, 5, 9], "uint8"), -1, 7), [0, 5, 7]),
    "clip, a maximum outside": (lambda: ops.clip(wide([0, 5, 9], "int8"), 6, 200), [6, 6, 9]),
    "clip, 64 bits": (lambda: ops.clip(wide([0, 5, 9], "int32"), max=2**40), [0, 5, 9]),
    "all of complex": (lambda: [ops.all(wide([1j], "complex128")), ops.all(wide([0j], "complex128"))], [True, False]),
    "any of complex": (lambda: [ops.any(wide([1j, 0], "complex128"), axis=0)], [True]),
    "sum of int8": (lambda: ops.sum(wide([100, 100], "int8")), 200),
    "prod of int8": (lambda: ops.prod(wide([100, 2], "int8")), 200),
    "cumulative_sum of int8": (lambda: ops.cumulative_sum(wide([100, 100], "int8")), [100, 200]),
    "sort downwards": (lambda: ops.sort(wide([[3, 1], [2, 5]]), axis=0, descending=True), [[3, 5], [2, 1]]),
    "argsort downwards": (lambda: ops.argsort(wide([3, 1, 3, 5]), descending=True), [3, 0, 2, 1]),
    "sign": (lambda: ops.sign(wide([NAN, -2, 0, INF])), [NAN, -1, 0, 1]),
    "roll, one shift": (lambda: ops.roll(wide([[1, 2], [3, 4]]), 1, axis=(0, 1)), [[4, 3], [2, 1]]),
    "take, uint8": (lambda: ops.take(wide([1, 2]), wide([1], "uint8")), [2]),
    "take, int8": (lambda: ops.take(wide([[1, 2]]), wide([-1], "int8"), axis=1), [[2]]),
    "take, a number": (lambda: ops.take(wide([1, 2]), 1), 2),
    "take, a matrix of indices": (lambda: ops.take(wide([1, 2]), np.array([[0, 1], [1, 1]])), [[1, 2], [2, 2]]),
    "an axis of NumPy": (lambda: ops.sum(wide([[1, 2]]), np.int64(0)), [1, 2]),
    "an axis of NumPy by its name": (lambda: ops.sum(wide([[1, 2]]), axis=np.int64(0)), [1, 2]),
    "numbers in a list beside a tensor": (lambda: ops.asarray([wide(0.1), 0.1]), [0.1, 0.1]),
}
VALUES = {
    "arange": (
        lambda: [ops.arange(0.0, 1.0, 0.3, dtype="float64"), ops.arange(16777216.0, 16777218.0, 0.5, dtype="float64")],
        ([0, 0.3, 0.6, 0.9], [16777216, 16777216.5, 16777217, 16777217.5]),
    ),
    "sort": (lambda: ops.sort(tensor([3.0, NAN, 1.0, 2.0, INF])), [1, 2, 3, INF, NAN]),
    "argsort": (lambda: ops.argsort(tensor([NAN, 3.0, INF, NAN, 0.0, -0.0])), [4, 5, 1, 2, 0, 3]),
    "sort downwards": (lambda: ops.sort(tensor([3.0, NAN, -INF]), descending=True), [NAN, 3, -INF]),
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
    "truth of complex numbers": (
        lambda: [f(tensor([1j])) for f in (ops.all, ops.any)] + [ops.astype(tensor([1j]), "bool")],
        (True, True, [True]),
    ),
    "logaddexp": (lambda: ops.logaddexp(tensor([1.0], "float32"), tensor([1.0])), [1 + np.log(2)]),
    "tril": (lambda: ops.tril(tensor(np.ones((2, 2), bool))), [[True, False], [True, True]]),
    "triu": (lambda: ops.triu(tensor(np.ones((2, 3), "uint16")), k=1), [[0, 1, 1], [0, 0, 1]]),
    "take_along_axis": (lambda: ops.take_along_axis(tensor([1, 2]), tensor([1, -1], "int8")), [2, 2]),
    "roll": (
        lambda: [ops.roll(tensor([[1, 2], [3, 4]]), 1, axis=axis) for axis in ((0, -1), -1)],
        ([[4, 3], [2, 1]], [[2, 1], [4, 3]]),
    ),
    "finfo": (
        lambda: [float(ops.finfo(kind).eps) for kind in (tensor(1.0, "float32"), ops.float32, "float32")],
        (2.0**-23,) * 3,
    ),
    "sqrt of integers": (lambda: [ops.sqrt(tensor([4])), ops.sin(1), ops.exp(tensor([0]))], ([2], np.sin(1), [1])),
}


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
@pytest.mark.parametrize(("function", "expected"), EVERYWHERE.values(), ids=EVERYWHERE)
def test_a_value(backend, function, expected):
    check(function(), np.array(expected) if isinstance(expected, list) else expected, rtol=1e-13)


@BOTH
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
@pytest.mark.parametrize(("function", "expected"), VALUES.values(), ids=VALUES)
def test_a_value_on_numpy_and_tensorflow(backend, function, expected):
    check(function(), expected if isinstance(expected, tuple) else np.array(expected), rtol=1e-13)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers(backend, dtype):
    x, y = np.array([[2, -3], [1, 0]], dtype), np.array([[5, 1], [1, 7]], dtype)
    a, b = tensor(x), tensor(y)
    pairs = {
        **{name: (getattr(ops, name)(a), getattr(np, name)(x)) for name in ("abs", "sign", "negative", "square")},
        **{name: (getattr(ops, name)(a), getattr(np, name)(x)) for name in ("ceil", "floor", "round", "trunc")},
        "pow": (ops.pow(a, 2), x**2),
        "floor_divide": (ops.floor_divide(a, 2), x // 2),
        "remainder": (ops.remainder(a, 2), x % 2),
        "matmul": (ops.matmul(a, b), x @ y),
        "vecdot": (ops.vecdot(a, b), np.vecdot(x, y)),
        "tensordot": (ops.tensordot(a, b, axes=1), x @ y),
        "tile": (ops.tile(a, (1, 2)), np.tile(x, (1, 2))),
        "repeat": (ops.repeat(a, 2, axis=-1), np.repeat(x, 2, -1)),
        "max": (ops.max(a, axis=0), np.max(x, axis=0)),
        "argmin": (ops.astype(ops.argmin(a), "int64"), np.argmin(x)),
        "sort": (ops.sort(a, axis=0), np.sort(x, axis=0)),
        "clip": (ops.clip(a, -1, 2), np.clip(x, -1, 2)),
    }
    for name, (found, due) in pairs.items():
        np.testing.assert_array_equal(plain(found), due, name)
        assert config.active.dtype(found) == str(due.dtype), name


@TENSORFLOW
def test_bfloat16_beside_a_number(backend):
    x = ops.ones(2, dtype="bfloat16")
    results = [ops.add(x, 2.0), ops.where(x > 0, x, 0.5), ops.maximum(x, 2.0), ops.pow(x, 2.0), ops.clip(x, 0.5, 2)]
    assert [config.active.dtype(each) for each in results] == ["bfloat16"] * 5
    assert ops.result_type(x, 1.0) == x.dtype and ops.result_type(x, 1) == x.dtype
    assert float(ops.finfo(x.dtype).eps) == 2.0**-7


UNKNOWN = {
    "tril": (lambda t: ops.tril(t, k=-1), lambda x: np.tril(x, -1)),
    "prod": (lambda t: ops.prod(t, axis=-1), lambda x: np.prod(x, -1)),
    "repeat": (lambda t: ops.repeat(t, ops.asarray([1, 0, 2]), axis=0), lambda x: np.repeat(x, [1, 0, 2], 0)),
    "sort": (lambda t: ops.sort(t, descending=True), lambda x: -np.sort(-x)),
    "tile": (lambda t: ops.tile(t, (2, 1)), lambda x: np.tile(x, (2, 1))),
    "roll": (lambda t: ops.roll(t, 1, axis=-1), lambda x: np.roll(x, 1, -1)),
    "var": (lambda t: ops.var(t, axis=0, correction=1), lambda x: np.var(x, 0, ddof=1)),
}


@TENSORFLOW
@pytest.mark.parametrize(("function", "reference"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_sizes(tf, function, reference):
    x = np.array([[3.0, 1.0, 0.0], [1.0, 4.0, 2.0], [0.0, 1.0, 5.0]])
    traced = tf.function(function, input_signature=[tf.TensorSpec([None, None], tf.float64)])
    check(traced(tf.constant(x)), reference(x))


@TORCH_AND_JAX
def test_a_bound_that_the_dtype_does_not_hold_raises(backend):
    with pytest.raises((OverflowError, RuntimeError), match=r"out of bounds|overflow"):
        ops.clip(wide([1, 2], "uint8"), 300)


A = np.random.default_rng(0).normal(size=(2, 2, 2, 2)) + 3 * np.eye(2)


B = np.random.default_rng(1).normal(size=(2, 2, 2))


@TORCH_AND_JAX
@pytest.mark.parametrize("columns", ["vector", "matrix", "matrices", "of other sizes"])
def test_solving_in_a_batch(backend, columns):
    """Where all sizes are two, no rank tells a matrix from a batch of vectors."""
    a, b = A, {"vector": B[:, 0], "matrix": B, "matrices": np.stack([B, 2 * B], 1)}.get(columns)
    if b is None:
        random = np.random.default_rng(2)
        a, b = random.normal(size=(2, 2, 3, 3)) + 3 * np.eye(3), random.normal(size=(2, 3, 2))
    due = np.stack([solved(*pair) for pair in zip(a, b, strict=True)])
    np.testing.assert_allclose(plain(batched(ops.linalg.solve)(wide(a), wide(b))), due, rtol=1e-9)
    one = batched(lambda a: ops.linalg.solve(a, wide(b[0])))(wide(a))
    np.testing.assert_allclose(plain(one)[0], due[0], rtol=1e-9)
    other = batched(lambda b: ops.linalg.solve(wide(a[1]), b))(wide(b))
    np.testing.assert_allclose(plain(other)[1], due[1], rtol=1e-9)


def solved(a, b):
    return np.linalg.solve(a, b[:, None])[..., 0] if b.ndim == 1 else np.linalg.solve(a, b)


BATCHES = {
    "sign": (lambda x: ops.sign(x), [[1, -2], [0, 3]], [[1, -1], [0, 1]]),
    "straight_through": (
        keras_cg.recipes.straight_through(lambda x: ops.sign(x)),
        [[1, -2], [0, 3]],
        [[1, -1], [0, 1]],
    ),
    "conj": (lambda x: ops.imag(ops.conj(x * 1j)), [[1.0], [2.0]], [[-1], [-2]]),
    "nested list": (lambda x: ops.asarray([[x[0], 1.0], [2, x[1]]]), [[3, 4]], [[[3, 1], [2, 4]]]),
}


@TORCH_AND_JAX
@pytest.mark.parametrize(("function", "x", "expected"), BATCHES.values(), ids=BATCHES)
def test_a_batch(backend, function, x, expected):
    np.testing.assert_allclose(plain(batched(function)(wide(x))), expected, atol=1e-12)


@TORCH_AND_JAX
def test_numpy_arrays_beside_tensors(backend):
    x, array = wide([1, 2]), np.array([3.0, 4.0])
    for found, expected in (
        (ops.add(x, array[::-1]), [5, 5]),
        (ops.multiply(array, 2), [6, 8]),
        (ops.pow(array, x), [3, 16]),
        (ops.where(np.array([True, False]), x, array), [1, 4]),
        (ops.concat([x, array]), [1, 2, 3, 4]),
        (ops.stack([1.0, 2.0]), [1, 2]),
        (ops.asarray([x[0], array[1]]), [1, 4]),
        (ops.clip(x, array - 2, max=array), [1, 2]),
        (ops.repeat(x, np.array([1, 2])), [1, 2, 2]),
        (ops.matmul(np.eye(2), x), [1, 2]),
        (ops.full(2, array[0]), [3, 3]),
    ):
        assert config.active.is_tensor(found) and config.active.dtype(found) in ("float64", "float32")
        np.testing.assert_allclose(plain(found), expected)
    assert config.active.dtype(ops.add(wide([1], "float32"), np.ones(1, "float32"))) == "float32"


@TORCH_AND_JAX
@pytest.mark.parametrize("dtype", [np.float32, np.dtype("float32"), "float32"])
def test_dtypes_of_numpy(backend, dtype):
    for found in (
        ops.zeros(2, dtype=dtype),
        ops.zeros(2, dtype),
        ops.astype(wide([1]), dtype),
        ops.asarray([1], dtype),
    ):
        assert config.active.dtype(found) == "float32"
    assert ops.result_type(dtype, ops.float32) == ops.result_type(wide([1], "float32"), 1.0)
    assert ops.isdtype(dtype, "real floating") and ops.finfo(dtype).bits == 32


@TORCH_AND_JAX
def test_types_of_python_numbers_alone(backend):
    assert config.active.dtype(ops.astype(wide([1.5]), int)) == "int64"
    assert config.active.dtype(ops.zeros(1, ops.result_type(1, 1.0))).startswith("float")
