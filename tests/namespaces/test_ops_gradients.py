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


# A function, where it is differentiated, and the gradient of the sum of what it gives.
GRADIENTS = {
    "astype": (lambda t: ops.astype(ops.astype(t, "int32"), "float64") * t, [1.5, 2.5, 3.5], [1, 2, 3]),
    "astype to bool": (lambda t: ops.astype(ops.astype(t, "bool"), "float64") * t, [1.5, 0.0], [1, 0]),
    "sign": (lambda t: ops.imag(ops.sign(ops.add(t, 1j))), [1.0, 2.0], [-(2**-1.5), -2 * 5**-1.5]),
    "pow of zero": (lambda t: ops.pow(t, 0), [0.0, 1.0], [0, 0]),
    "pow of zero to a tensor": (lambda t: ops.pow(t, tensor([0.0, 2.0])), [0.0, 3.0], [0, 6]),
    "pow by the exponent": (lambda t: ops.pow(tensor([0.0, np.e]), t), [0.0, 2.0], [0, np.e**2]),
}
EVERYWHERE = {
    "nested tuple with numbers": (lambda t: ops.asarray(((t[0], 2), (0.5, t[2]))), [1, 2, 3], [1, 0, 1]),
    "prod with a zero": (lambda t: ops.prod(t), [2, 0, 3, 5], [0, 30, 0, 0]),
    "floor_divide of numbers": (lambda t: ops.floor_divide(7, t), [1.5, 2.5], [0, 0]),
    "second derivative of x ** 0": (lambda t: grad(lambda u: ops.sum(ops.pow(u, 0)))(t), [0, 1], [0, 0]),
}


@pytest.mark.only("numpy", "tensorflow", "torch")
@pytest.mark.parametrize(("function", "x", "expected"), GRADIENTS.values(), ids=GRADIENTS)
def test_a_gradient(backend, function, x, expected):
    check(grad(total(function))(tensor(x, float)), np.array(expected, float))


@pytest.mark.parametrize(("function", "x", "expected"), EVERYWHERE.values(), ids=EVERYWHERE)
def test_a_gradient_on_every_backend(backend, function, x, expected):
    check(grad(total(function))(tensor(x, float)), np.array(expected, float))


ROOT = 2**-0.5
# A function of two numbers, where it is differentiated, its two first derivatives and the three second ones.
PAIRS = {
    "hypot of equals": ("hypot", (3, 3), (ROOT, ROOT), (ROOT / 6, -ROOT / 6, ROOT / 6)),
    "hypot of opposites": ("hypot", (3, -3), (ROOT, -ROOT), (ROOT / 6, ROOT / 6, ROOT / 6)),
    "hypot of negatives": ("hypot", (-3, -3), (-ROOT, -ROOT), (ROOT / 6, -ROOT / 6, ROOT / 6)),
    "hypot of zeros": ("hypot", (0, 0), (0, 0), (0, 0, 0)),
    "hypot beside zero": ("hypot", (2, 0), (1, 0), (0, 0, 0.5)),
    "hypot before zero": ("hypot", (0, -4), (0, -1), (0.25, 0, 0)),
    "hypot": ("hypot", (3, -4), (0.6, -0.8), (16 / 125, 12 / 125, 9 / 125)),
    "hypot of huge numbers": ("hypot", (3e150, 4e150), (0.6, 0.8), (0, 0, 0)),
    "logaddexp of equals": ("logaddexp", (1, 1), (0.5, 0.5), (0.25, -0.25, 0.25)),
    "logaddexp of zeros": ("logaddexp", (0, 0), (0.5, 0.5), (0.25, -0.25, 0.25)),
    "logaddexp far apart": ("logaddexp", (800, 0), (1, 0), (0, 0, 0)),
    "logaddexp far below": ("logaddexp", (0, 1e300), (0, 1), (0, 0, 0)),
    "logaddexp": ("logaddexp", (0, np.log(3)), (0.25, 0.75), (3 / 16, -3 / 16, 3 / 16)),
    "pow by zero": ("pow", (2, 0), (0, np.log(2)), (0, 0.5, np.log(2) ** 2)),
    "pow by one": ("pow", (2, 1), (1, 2 * np.log(2)), (0, 1 + np.log(2), 2 * np.log(2) ** 2)),
    "pow by a fraction": ("pow", (4, 0.5), (0.25, 2 * np.log(4)), (-1 / 32, 0.5 + np.log(2) / 2, 2 * np.log(4) ** 2)),
    "pow of zero by zero": ("pow", (0, 0), (0, 0), (0, None, 0)),
    "pow of zero by one": ("pow", (0, 1), (1, 0), (0, None, 0)),
    "atan2 of equals": ("atan2", (2, 2), (0.25, -0.25), (-1 / 8, 0, 1 / 8)),
}


@pytest.mark.parametrize(("name", "at", "first", "second"), PAIRS.values(), ids=PAIRS)
def test_derivatives_by_two_numbers(backend, name, at, first, second):
    function = getattr(ops, name)
    at = [tensor(float(each)) for each in at]
    by_x, by_y = grad(function, 0), grad(function, 1)
    check(by_x(*at), np.array(first[0], float))
    check(by_y(*at), np.array(first[1], float))
    check(grad(by_x, 0)(*at), np.array(second[0], float))
    check(grad(by_y, 1)(*at), np.array(second[2], float))
    if second[1] is not None:
        for mixed in (grad(by_x, 1), grad(by_y, 0)):
            check(mixed(*at), np.array(second[1], float))


def test_the_third_derivative_of_a_power_by_both(backend):
    # That of x^y, twice by x and once by y, is (2y - 1) x^(y-2) + y (y - 1) x^(y-2) log x.
    third = grad(grad(grad(ops.pow, 0), 0), 1)
    for y, due in ((0.0, -1 / 4), (1.0, 1 / 2), (2.0, 3 + 2 * np.log(2))):
        check(third(tensor(2.0), tensor(y)), np.array(due))


def test_the_derivative_of_a_power_by_its_exponent_where_that_by_the_base_is_infinite(backend):
    check(grad(ops.pow, 1)(tensor(0.0), tensor(0.5)), np.array(0.0))
    _, tangent = keras_cg.jvp(lambda y: ops.pow(tensor(0.0), y), (tensor(0.5),), (tensor(1.0),))
    check(tangent, np.array(0.0))


# A function, where it is differentiated, and its second derivative.
EDGES = {
    "tanh": (lambda t: ops.tanh(t), [1000.0, -1000.0, 0.5], [0, 0, -2 * np.tanh(0.5) / np.cosh(0.5) ** 2]),
    "abs": (lambda t: ops.abs(t), [1e-300, -1e-8, 0.0, 2.0], [0, 0, 0, 0]),
}


@pytest.mark.parametrize(("function", "x", "expected"), EDGES.values(), ids=EDGES)
def test_a_second_derivative_at_an_edge(backend, function, x, expected):
    check(grad(total(grad(total(function))))(tensor(x)), np.array(expected, float))


@pytest.mark.parametrize("x", [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0]])
def test_the_second_derivative_of_the_variance_of_equals(backend, x):
    first = grad(ops.var)
    rows = [plain(grad(lambda t, i=i: first(t)[i])(tensor(x))) for i in range(3)]
    np.testing.assert_allclose(rows, 2 / 3 * np.eye(3) - 2 / 9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("hypot", [np.inf, np.inf, np.inf, np.inf, np.nan]), ("logaddexp", [np.inf, 1, np.inf, -np.inf, np.nan])],
)
def test_infinities_have_a_value(backend, name, expected):
    x1, x2 = [np.inf, -np.inf, np.inf, -np.inf, np.nan], [1.0, 1.0, np.inf, -np.inf, 1.0]
    with np.errstate(invalid="ignore"):
        check(getattr(ops, name)(tensor(x1), tensor(x2)), np.array(expected))


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


HERMITIAN = np.array([[4.0, 1 + 2j], [1 - 2j, 5.0]])


COMPLEX = {
    "cholesky": (lambda z: ops.linalg.cholesky(z), np.linalg.cholesky, HERMITIAN, np.array([[1, 1j], [-1j, 2]])),
    "solve": (
        lambda z: ops.linalg.solve(z, tensor(HERMITIAN)),
        lambda z: np.linalg.solve(z, HERMITIAN),
        SQUARE,
        np.array([[1, 1j], [-1j, 2j]]),
    ),
    "prod": (lambda z: ops.prod(z), np.prod, SQUARE, np.array([[1, 1j], [-1j, 2j]])),
    "sign": (lambda z: ops.sign(z), np.sign, SQUARE, np.array([[1, 1j], [-1j, 2j]])),
    "pow": (lambda z: ops.pow(z, 2.5), lambda z: z**2.5, SQUARE, np.array([[1, 1j], [-1j, 2j]])),
}


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


HOLOMORPHIC = {
    **{name: getattr(np, name) for name in ("log", "log10", "log1p", "log2", "reciprocal", "sqrt", "tan", "tanh")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")},
    "pow": lambda z: z**1.5,
}


EACH = HOLOMORPHIC | {name: getattr(np, name) for name in ("cos", "cosh", "exp", "expm1", "sin", "sinh", "square")}
EACH |= {"sigmoid": lambda z: 1 / (1 + np.exp(-z)), "negative": np.negative}


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("start", [0.3 + 0.4j, -0.4 + 0.8j, -1.3 - 0.6j])
def test_complex_functions(backend, name, start):
    """Value, first and second derivative of each function along a line, against differences of NumPy's function."""
    function = (lambda z: ops.pow(z, 1.5)) if name == "pow" else lambda z: getattr(ops, name)(z)

    def loss(t):
        z = function(ops.astype(t, "complex128") * (1 - 0.5j) + start)
        return ops.real(z) ** 2 + 2 * ops.imag(z) + ops.real(z) * ops.imag(z)

    def due(t):
        z = EACH[name](start + t * (1 - 0.5j))
        return z.real**2 + 2 * z.imag + z.real * z.imag

    check(loss(tensor(0.0)), due(0.0))
    check(grad(loss)(tensor(0.0)), (due(1e-6) - due(-1e-6)) / 2e-6, rtol=1e-6)
    check(grad(grad(loss))(tensor(0.0)), (due(1e-4) - 2 * due(0) + due(-1e-4)) / 1e-8, rtol=1e-4)


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


@TORCH_AND_JAX
def test_logaddexp_of_complex_numbers(backend):
    z = tensor([1 + 2j, 3.0], "complex128")
    check(ops.logaddexp(z, z), np.array([1 + 2j, 3.0]) + np.log(2))


@pytest.mark.only("numpy", "jax", "torch")
def test_the_sign_of_a_complex_zero_has_a_finite_gradient(backend):
    assert np.isfinite(plain(grad(lambda t: ops.sum(ops.real(ops.sign(t * (1 + 1j)))))(tensor([0.0])))).all()
