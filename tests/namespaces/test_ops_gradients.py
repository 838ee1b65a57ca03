"""`keras_cg.ops` has the right gradients, where a framework's own are wrong or missing, too: first and second order."""

import numpy as np
import pytest
from ops_cases import BOTH, TENSORFLOW, TORCH_AND_JAX, check, plain, tensor, total

import keras_cg
from keras_cg import grad, ops
from keras_cg.frontend import config


@pytest.fixture(autouse=True)
def doubles(backend):
    with config.active.double_precision():
        yield


W = np.arange(8.0).reshape(2, 4)
# A function, where it is differentiated, and the gradient of the sum of what it gives.
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
EVERYWHERE = {
    "nested list": (lambda t: ops.asarray([[t[0], t[1]], [t[1], t[2]]]), [1, 2, 3], [1, 2, 1]),
    "nested tuple with numbers": (lambda t: ops.asarray(((t[0], 2), (0.5, t[2]))), [1, 2, 3], [1, 0, 1]),
    "prod with a zero": (lambda t: ops.prod(t), [2, 0, 3, 5], [0, 30, 0, 0]),
    "cumulative_prod with a zero": (lambda t: ops.cumulative_prod(t), [2, 0, 3, 5], [1, 2 + 6 + 30, 0, 0]),
    "linspace": (lambda t: ops.linspace(0.0, t, 3), 2.0, 1.5),
    "linspace, start": (lambda t: ops.linspace(t, 7, 4, endpoint=False), 2.0, 1 + 3 / 4 + 2 / 4 + 1 / 4),
    "full": (lambda t: ops.full((2, 3), t * t), 2.0, 24.0),
    "full_like": (lambda t: ops.full_like(ops.ones(3), t * t, dtype="float64"), 2.0, 12.0),
    "unique_values of equal ones": (lambda t: ops.unique_values(t) * tensor([2.0, 4, 6]), [3, 1, 5, 1], [4, 2, 6, 0]),
    "unique_all": (lambda t: ops.unique_all(t).values * tensor([2.0, 4, 6]), [3, 1, 5, 1], [4, 2, 6, 0]),
    "floor_divide": (lambda t: ops.floor_divide(t, 2.0) * t, [1.5, 2.5], [0, 1]),
    "floor_divide of numbers": (lambda t: ops.floor_divide(7, t), [1.5, 2.5], [0, 0]),
    "second derivative of x ** 0": (lambda t: grad(lambda u: ops.sum(ops.pow(u, 0)))(t), [0, 1], [0, 0]),
}
# NumPy refuses singular matrices.
SINGULAR = {
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
    "sign of a complex zero": (lambda t: ops.real(ops.sign(t * (1 + 1j))) + t, [0.0], [1.0]),
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


@pytest.mark.only("numpy", "tensorflow", "torch")
@pytest.mark.parametrize(("function", "x", "expected"), GRADIENTS.values(), ids=GRADIENTS)
def test_a_gradient(backend, function, x, expected):
    check(grad(total(function))(tensor(x, float)), np.array(expected, float))


@pytest.mark.parametrize(("function", "x", "expected"), EVERYWHERE.values(), ids=EVERYWHERE)
def test_a_gradient_on_every_backend(backend, function, x, expected):
    check(grad(total(function))(tensor(x, float)), np.array(expected, float))


@TORCH_AND_JAX
@pytest.mark.parametrize(("function", "x", "expected"), SINGULAR.values(), ids=SINGULAR)
def test_a_gradient_where_a_matrix_is_singular(backend, function, x, expected):
    check(grad(total(function))(tensor(x, float)), np.array(expected, float))


SECOND = {
    "prod": (lambda t: ops.prod(t), [0.0, 2.0, 3.0], [5, 3, 2]),
    "pow to the first": (lambda t: ops.pow(t, 1.0), [0.0, 1.0], [0, 0]),
    "pow to a tensor": (lambda t: ops.pow(t, tensor([1.0, 2.0, 3.0])), [0.0, 0.0, 2.0], [0, 2, 12]),
}


@BOTH
@pytest.mark.parametrize(("function", "x", "expected"), SECOND.values(), ids=SECOND)
def test_a_second_derivative(backend, function, x, expected):
    check(grad(total(grad(total(function))))(tensor(x)), np.array(expected, float))


SQUARE = np.array([[4.0, 1 + 2j], [1 - 1j, 5.0]])


TALL = np.array([[4.0, 1 + 2j], [1 - 2j, 5.0], [1j, 2.0]])


HERMITIAN = np.array([[4.0, 1 + 2j], [1 - 2j, 5.0]])


COMPLEX = {
    "cholesky": (lambda z: ops.linalg.cholesky(z), np.linalg.cholesky, HERMITIAN, np.array([[1, 1j], [-1j, 2]])),
    "upper cholesky": (
        lambda z: ops.linalg.cholesky(z, upper=True),
        lambda z: np.conj(np.linalg.cholesky(z)).T,
        HERMITIAN,
        np.array([[1, 1j], [-1j, 2]]),
    ),
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
@pytest.mark.parametrize(("function", "reference", "start", "direction"), COMPLEX.values(), ids=COMPLEX)
def test_a_complex_gradient(backend, function, reference, start, direction):
    """First and second derivative along a line, against differences of NumPy's function."""

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
def test_a_complex_determinant_whose_rule_is_dropped_is_refused(tf):
    """tf.vectorized_map drops the rule; TensorFlow's own gradient (2.21) lacks a conjugate."""
    z = tf.constant(np.stack([SQUARE, SQUARE + 1]))
    check(tf.vectorized_map(lambda t: ops.linalg.det(t), z), np.linalg.det(z.numpy()))
    with tf.GradientTape() as tape:
        tape.watch(z)
        with pytest.raises(LookupError, match=r"`linalg\.det` of complex numbers"):
            tf.vectorized_map(lambda t: ops.linalg.det(t), z)


HOLOMORPHIC = {
    **{name: getattr(np, name) for name in ("log", "log10", "log1p", "log2", "reciprocal", "sqrt", "tan", "tanh")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")},
    "pow": lambda z: z**1.5,
}


@TENSORFLOW
def test_complex_functions_compiled_by_xla(tf):
    """First and second derivatives of each function along a line, in one program, against differences."""
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
def test_the_second_derivative_of_a_product_of_unknown_size(tf):
    second = tf.function(grad(total(grad(ops.prod))), input_signature=[tf.TensorSpec([None], tf.float64)])
    check(second(tf.constant([0.0, 2.0, 3.0], tf.float64)), np.array([5.0, 3.0, 2.0]))


@TORCH_AND_JAX
def test_forward_mode_of_det_where_it_is_singular(backend):
    x, direction = tensor([[1.0, 2], [2, 4]]), tensor([[1.0, 2], [3, 5]])
    value, tangent = keras_cg.jvp(ops.linalg.det, (x,), (direction,))
    assert (float(value), float(tangent)) == (0, pytest.approx(4 - 4 - 6 + 5))


@TORCH_AND_JAX
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


@pytest.mark.only("numpy")
def test_the_sign_of_a_complex_zero_has_a_finite_gradient(backend):
    assert np.isfinite(grad(lambda t: ops.sum(ops.real(ops.sign(t * (1 + 1j)))))(tensor([0.0]))).all()
