"""`keras_cg.ops` on torch and JAX: calls that gave a wrong number or gradient, or raised."""

import math

import numpy as np
import pytest

import keras_cg
from keras_cg import config, grad, ops

pytestmark = pytest.mark.only("torch", "jax")


@pytest.fixture(autouse=True)
def doubles(backend):
    with config.active.double_precision():
        yield


def tensor(values, dtype="float64"):
    return config.active.asarray(np.array(values, dtype))


def plain(value):
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    return config.active.to_numpy(value) if config.active.is_tensor(value) else value


def batched(function):
    if config.backend() == "jax":
        import jax

        return jax.vmap(function)
    import torch

    return torch.func.vmap(function)


# --- gradients -----------------------------------------------------------------------------------

# A function, where it is differentiated, and the gradient of the sum of what it gives.
GRADIENTS = {
    "nested list": (lambda t: ops.asarray([[t[0], t[1]], [t[1], t[2]]]), [1, 2, 3], [1, 2, 1]),
    "nested tuple with numbers": (lambda t: ops.asarray(((t[0], 2), (0.5, t[2]))), [1, 2, 3], [1, 0, 1]),
    "linspace": (lambda t: ops.linspace(0.0, t, 3), 2.0, 1.5),
    "linspace, start": (lambda t: ops.linspace(t, 7, 4, endpoint=False), 2.0, 1 + 3 / 4 + 2 / 4 + 1 / 4),
    "full": (lambda t: ops.full((2, 3), t * t), 2.0, 24.0),
    "full_like": (lambda t: ops.full_like(ops.ones(3), t * t, dtype="float64"), 2.0, 12.0),
    "det, singular": (lambda t: ops.linalg.det(t), [[1, 2], [2, 4]], [[4, -2], [-2, 1]]),
    "det, of rank 2 of 3": (lambda t: ops.linalg.det(t), np.diag([2, 3, 0]), np.diag([0, 0, 6])),
    "det, of rank 1 of 3": (lambda t: ops.linalg.det(t), np.ones((3, 3)), np.zeros((3, 3))),
    "det, zeros": (lambda t: ops.linalg.det(t), np.zeros((3, 3)), np.zeros((3, 3))),
    "det, of rank 3 of 4": (lambda t: ops.linalg.det(t), np.diag([2, 3, 0, 5]), np.diag([0, 0, 30, 0])),
    "det, of rank 4 of 5, complex": (
        lambda t: ops.imag(ops.linalg.det(t * (1 + 1j))),
        np.diag([1, 2, 3, 0, 5]),
        np.diag([0, 0, 0, -120, 0]),  # the imaginary part of (1 + 1j) ** 5 is -4
    ),
    "sign of complex numbers": (
        lambda t: ops.imag(ops.sign(t + 1j)),
        [1.0, 2.0],
        [-1 / 2**1.5, -2 / 5**1.5],
    ),
    "sign of a complex zero": (lambda t: ops.real(ops.sign(t * (1 + 1j))) + t, [0.0], [1.0]),
    "unique_values": (lambda t: ops.unique_values(t) * tensor([2, 4, 6]), [3, 1, 5, 1], [4, 2, 6, 0]),
    "unique_all": (lambda t: ops.unique_all(t).values * tensor([2, 4, 6]), [3, 1, 5, 1], [4, 2, 6, 0]),
    "unique_counts": (lambda t: ops.unique_counts(t).values * tensor([2, 4, 6]), [3, 1, 5, 1], [4, 2, 6, 0]),
    "unique_inverse": (lambda t: ops.unique_inverse(t).values * tensor([2, 4, 6]), [3, 1, 5, 1], [4, 2, 6, 0]),
    "floor_divide": (lambda t: ops.floor_divide(t, 2.0) * t, [1.5, 2.5], [0, 1]),
    "floor_divide of numbers": (lambda t: ops.floor_divide(7, t), [1.5, 2.5], [0, 0]),
    "second derivative of x ** 0": (lambda t: grad(lambda u: ops.sum(ops.pow(u, 0)))(t), [0, 1], [0, 0]),
    "second derivative of det": (
        lambda t: grad(lambda u: ops.linalg.det(u))(t) * tensor([[1, 2], [3, 4]]),
        [[1, 2], [2, 4]],
        [[4, -3], [-2, 1]],
    ),
    "second derivative of det, of rank 3 of 4": (
        lambda t: grad(lambda u: ops.linalg.det(u))(t) * tensor(np.diag([1, 2, 3, 4])),
        np.diag([2, 3, 0, 5]),
        np.diag([3 * 15, 3 * 10, 15 + 2 * 10 + 4 * 6, 3 * 6]),
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient(backend, name):
    function, x, expected = GRADIENTS[name]
    found = plain(grad(lambda t: ops.sum(function(t)))(tensor(x)))
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
    assert found.dtype == np.float64


def test_forward_mode_of_det_where_it_is_singular(backend):
    x, direction = tensor([[1, 2], [2, 4]]), tensor([[1, 2], [3, 5]])
    value, tangent = keras_cg.jvp(ops.linalg.det, (x,), (direction,))
    assert (float(value), float(tangent)) == (0, pytest.approx(4 - 4 - 6 + 5))


def test_forward_mode_of_complex_powers(backend):
    z = 1 + 2j
    for name, function, expected in (
        ("exponent", lambda y: ops.pow(tensor([z], "complex128"), y), np.log(z) * z**2),
        ("base", lambda y: ops.pow(y, tensor([z], "complex128")), z * 2 ** (z - 1)),
        ("number", lambda y: ops.pow(z, y), np.log(z) * z**2),
        ("number as the exponent", lambda y: ops.pow(y, z), z * 2 ** (z - 1)),
    ):
        _, tangent = keras_cg.jvp(lambda y, f=function: ops.imag(f(y)), (tensor([2.0]),), (tensor([1.0]),))
        np.testing.assert_allclose(plain(tangent), [expected.imag], rtol=1e-9, err_msg=name)


# --- values --------------------------------------------------------------------------------------

# What is called, and what is due.
VALUES = {
    "clip, bounds outside": (lambda: ops.clip(tensor([0, 5, 9], "uint8"), -1, 7), [0, 5, 7]),
    "clip, a maximum outside": (lambda: ops.clip(tensor([0, 5, 9], "int8"), 6, 200), [6, 6, 9]),
    "clip, 64 bits": (lambda: ops.clip(tensor([0, 5, 9], "int32"), max=2**40), [0, 5, 9]),
    "all of complex": (
        lambda: [ops.all(tensor([1j], "complex128")), ops.all(tensor([0j], "complex128"))],
        [True, False],
    ),
    "any of complex": (lambda: [ops.any(tensor([1j, 0], "complex128"), axis=0)], [True]),
    "cumulative_prod of int8": (lambda: ops.cumulative_prod(tensor([100, 2], "int8")), [100, 200]),
    "var, large correction": (lambda: ops.var(tensor([1, 2, 3]), correction=4), math.inf),
    "var, correction of the count": (lambda: ops.var(tensor([[1, 2, 3]]), axis=1, correction=3), [math.inf]),
    "std, large correction": (lambda: ops.std(tensor([1, 2, 3]), correction=3.5), math.inf),
    "var of equal numbers, large correction": (lambda: ops.var(tensor([2, 2]), correction=2), math.nan),
    "var, correction": (lambda: ops.var(tensor([1, 2, 3]), correction=1), 1.0),
    "count_nonzero, no axis": (lambda: ops.count_nonzero(tensor([[1, 0], [2, 3]]), axis=()), [[1, 0], [1, 1]]),
    "count_nonzero": (lambda: ops.count_nonzero(tensor([[1, 0], [2, 3]]), axis=0, keepdims=True), [[2, 1]]),
    "roll, one shift": (lambda: ops.roll(tensor([[1, 2], [3, 4]]), 1, axis=(0, 1)), [[4, 3], [2, 1]]),
    "take, uint8": (lambda: ops.take(tensor([1, 2]), tensor([1], "uint8")), [2]),
    "take, int8": (lambda: ops.take(tensor([[1, 2]]), tensor([-1], "int8"), axis=1), [[2]]),
    "take, a number": (lambda: ops.take(tensor([1, 2]), 1), 2),
    "take, a matrix of indices": (lambda: ops.take(tensor([1, 2]), np.array([[0, 1], [1, 1]])), [[1, 2], [2, 2]]),
    "permute_dims": (lambda: ops.permute_dims(tensor([[1, 2]]), (-1, 0)), [[1], [2]]),
    "an axis of NumPy": (lambda: ops.sum(tensor([[1, 2]]), np.int64(0)), [1, 2]),
    "sign of NaN": (lambda: ops.sign(tensor([math.nan, -2.0, 0.0])), [math.nan, -1, 0]),
    "linspace of tensors": (lambda: ops.linspace(tensor(0.1), tensor(0.7), 3), [0.1, 0.4, 0.7]),
    "numbers in a list beside a tensor": (lambda: ops.asarray([tensor(0.1), 0.1]), [0.1, 0.1]),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value(backend, name):
    function, expected = VALUES[name]
    found = plain(function())
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    assert np.shape(found) == np.shape(expected)


def test_a_bound_that_the_dtype_does_not_hold_raises(backend):
    with pytest.raises((OverflowError, RuntimeError), match=r"out of bounds|overflow"):
        ops.clip(tensor([1, 2], "uint8"), 300)


def test_what_can_be_cast(backend):
    """The standard promotes integers to integers, floats to floats and complex numbers, booleans to booleans."""
    can = [("int8", "int64"), ("uint8", "int16"), ("float32", "complex64"), ("bool", "bool"), ("uint32", "uint64")]
    cannot = [
        ("bool", "int8"),
        ("int8", "float32"),
        ("uint64", "int64"),
        ("float64", "float32"),
        ("complex64", "float32"),
    ]
    can += [("bfloat16", "float32"), ("bfloat16", "bfloat16")]
    cannot += [("bfloat16", "float16"), ("float32", "bfloat16")]
    assert all(ops.can_cast(*pair) for pair in can) and not any(ops.can_cast(*pair) for pair in cannot)
    assert ops.can_cast(tensor([1], "int8"), ops.int16) and not ops.can_cast(tensor([1]), ops.float32)


# --- batches -------------------------------------------------------------------------------------

A = np.random.default_rng(0).normal(size=(2, 2, 2, 2)) + 3 * np.eye(2)
B = np.random.default_rng(1).normal(size=(2, 2, 2))


@pytest.mark.parametrize("columns", ["vector", "matrix", "matrices", "of other sizes"])
def test_solving_in_a_batch(backend, columns):
    """Where all sizes are two, no rank tells a matrix from a batch of vectors."""
    a, b = A, {"vector": B[:, 0], "matrix": B, "matrices": np.stack([B, 2 * B], 1)}.get(columns)
    if b is None:
        random = np.random.default_rng(2)
        a, b = random.normal(size=(2, 2, 3, 3)) + 3 * np.eye(3), random.normal(size=(2, 3, 2))
    due = np.stack([solved(*pair) for pair in zip(a, b, strict=True)])
    np.testing.assert_allclose(plain(batched(ops.linalg.solve)(tensor(a), tensor(b))), due, rtol=1e-9)
    one = batched(lambda a: ops.linalg.solve(a, tensor(b[0])))(tensor(a))
    np.testing.assert_allclose(plain(one)[0], due[0], rtol=1e-9)
    other = batched(lambda b: ops.linalg.solve(tensor(a[1]), b))(tensor(b))
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
    "ihfft": (lambda x: ops.imag(ops.fft.ihfft(x)), [[1, 2, 3, 4]], np.fft.ihfft([[1, 2, 3, 4]]).imag),
    "conj": (lambda x: ops.imag(ops.conj(x * 1j)), [[1.0], [2.0]], [[-1], [-2]]),
    "nested list": (lambda x: ops.asarray([[x[0], 1.0], [2, x[1]]]), [[3, 4]], [[[3, 1], [2, 4]]]),
    "det": (lambda x: ops.linalg.det(x), [[[1, 2], [2, 4]], [[2, 0], [0, 3]]], [0, 6]),
    "det of four rows": (lambda x: ops.linalg.det(x), [np.ones((4, 4)), 2 * np.eye(4)], [0, 16]),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch(backend, name):
    function, x, expected = BATCHES[name]
    np.testing.assert_allclose(plain(batched(function)(tensor(x))), expected, atol=1e-12)


# --- what is accepted ----------------------------------------------------------------------------


def test_numpy_arrays_beside_tensors(backend):
    x, array = tensor([1, 2]), np.array([3.0, 4.0])
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
        (ops.linalg.vector_norm(array), 5),
        (ops.matmul(np.eye(2), x), [1, 2]),
        (ops.full(2, array[0]), [3, 3]),
    ):
        assert config.active.is_tensor(found) and config.active.dtype(found) in ("float64", "float32")
        np.testing.assert_allclose(plain(found), expected)
    assert config.active.dtype(ops.add(tensor([1], "float32"), np.ones(1, "float32"))) == "float32"


@pytest.mark.parametrize("dtype", [np.float32, np.dtype("float32"), "float32"])
def test_dtypes_of_numpy(backend, dtype):
    for found in (
        ops.zeros(2, dtype=dtype),
        ops.zeros(2, dtype),
        ops.astype(tensor([1]), dtype),
        ops.asarray([1], dtype),
    ):
        assert config.active.dtype(found) == "float32"
    assert ops.result_type(dtype, ops.float32) == ops.result_type(tensor([1], "float32"), 1.0)
    assert ops.isdtype(dtype, "real floating") and ops.can_cast(dtype, np.float64) and ops.finfo(dtype).bits == 32


def test_types_of_python_and_numbers_alone(backend):
    assert config.active.dtype(ops.astype(tensor([1.5]), int)) == "int64"
    assert config.active.dtype(ops.zeros(1, ops.result_type(1, 1.0))).startswith("float")


POSITIONAL = {
    "concat": lambda xp, x, v: xp.concat((x, x), 1),
    "cumulative_sum": lambda xp, x, v: xp.cumulative_sum(x, 1) if xp is ops else xp.cumulative_sum(x, axis=1),
    "unstack": lambda xp, x, v: xp.unstack(x, 1) if xp is ops else xp.unstack(x, axis=1),
    "svd": lambda xp, x, v: xp.linalg.svd(x, False)[1],
    "qr": lambda xp, x, v: abs(xp.linalg.qr(x, "complete")[1]),
    "fft": lambda xp, x, v: xp.fft.fft(x, 2, 0),
    "fftn": lambda xp, x, v: xp.fft.fftn(x, (2, 2), (0, 1)),
    "fftfreq": lambda xp, x, v: xp.fft.fftfreq(4, 0.5),
    "fftshift": lambda xp, x, v: xp.fft.fftshift(x, 0),
    "searchsorted": lambda xp, x, v: xp.searchsorted(v, v, "right"),
    "diff": lambda xp, x, v: xp.diff(x, 2),
    "argmax": lambda xp, x, v: xp.argmax(x, 0),
    "count_nonzero": lambda xp, x, v: xp.count_nonzero(x, 0),
    "var": lambda xp, x, v: xp.var(x, 0),
}


@pytest.mark.parametrize("name", POSITIONAL)
def test_by_position(backend, name):
    x, v = np.array([[1.0, 2, 4], [3, 5, 0]]), np.array([1.0, 2, 4])
    due = POSITIONAL[name](np, x, v)
    np.testing.assert_allclose(plain(POSITIONAL[name](ops, tensor(x), tensor(v))), due, atol=1e-12)


def test_a_transform_of_nothing(backend):
    x = ops.zeros((0, 4))
    assert [tuple(getattr(ops.fft, name)(x).shape) for name in ("fft", "rfft", "irfft")] == [(0, 4), (0, 3), (0, 6)]
