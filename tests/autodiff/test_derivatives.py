"""`keras_cg.vjp`, `jvp`, `jacobian` and `hessian` give the rule's derivative: of pytrees and of arrays."""

import dataclasses

import numpy as np
import pytest
from wrong_rules import X, close, cube, seven, weighted

import keras_cg
from keras_cg import custom_gradient, grad, hessian, jacobian, jvp, ops, vjp
from keras_cg.frontend import config

V = np.array([1.0, 10.0, 100.0], np.float32)
W = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
Z = np.array([1 + 2j, -1 + 0.5j], np.complex64)
T = np.array([1j, 2 + 1j], np.complex64)


@pytest.fixture
def tensor(eager):
    return eager.tensor


@pytest.fixture
def array(eager):
    return eager.array


# --- with a rule and without -----------------------------------------------------------------------------------------


def test_vjp(tensor):
    output, pullback = vjp(weighted, tensor(W), tensor(X))
    close(output, W @ X)
    for upstream in (np.array([1.0, 10.0], np.float32), np.array([-2.0, 0.5], np.float32)):
        # As often as one likes.
        gw, gx = pullback(tensor(upstream))
        close(gw, 7 * np.outer(upstream, X))
        close(gx, 3 * upstream @ W)
    output, pullback = vjp(lambda x, y: x * x * y, tensor(X), tensor(V))
    gx, gy = pullback(tensor(X))
    close(output, X * X * V)
    close(gx, 2 * X * X * V)
    close(gy, X**3)


def test_jvp(tensor):
    output, tangent = jvp(weighted, (tensor(W), tensor(X)), (tensor(W * W), tensor(V)))
    close(output, W @ X)
    close(tangent, 7 * (W * W) @ X + 3 * W @ V)
    _, tangent = jvp(lambda x, y: ops.exp(x) * y, [tensor(X), tensor(V)], [tensor(V), None])
    close(tangent, np.exp(X) * V * V, rtol=1e-6)


def test_jacobian(tensor):
    close(jacobian(weighted, 1)(tensor(W), tensor(X)), 3 * W)
    by_w, by_x = jacobian(weighted, (0, -1))(tensor(W), tensor(X))
    close(by_w, 7 * np.einsum("ij,k->ijk", np.eye(2), X))
    close(by_x, 3 * W)
    assert float(jacobian(lambda x, *, k: seven(x) * k)(2.0, k=2)) == 14.0


def test_jacobians_of_several_dtypes(backend):
    both = custom_gradient(lambda x: (x, lambda u: (7 * u[0], 5 * u[1])))
    x = tuple(config.active.cast(ops.asarray(X), kind) for kind in ("float16", "float32"))
    rows = jacobian(both)(x)
    for place, (slope, kind) in enumerate(((7, "float16"), (5, "float32"))):
        close(rows[place][place], slope * np.eye(3))
        close(rows[place][1 - place], np.zeros((3, 3)))
        assert config.active.dtype(rows[place][place]) == kind


def test_hessian(tensor):
    # The gradients of the sum are 7 x for each row of w, and 3 times the sum of its rows.
    (ww, wx), (xw, xx) = hessian(weighted, (0, 1))(tensor(W), tensor(X))
    close(ww, np.zeros((2, 3, 2, 3)))
    close(wx, 7 * np.stack([np.eye(3)] * 2))
    close(xw, 3 * np.stack([np.eye(3)] * 2, axis=1))
    close(xx, np.zeros((3, 3)))
    close(hessian(cube)(tensor(X)), np.diag(10 * X))


def test_numbers_of_python(backend):
    output, pullback = vjp(lambda x, n: cube(x) * n, 2.0, 3)
    gradient, nothing = pullback(10.0)
    assert (float(output), float(gradient), nothing) == (24.0, 600.0, None)
    assert float(vjp(cube, 2.0)[1](10)[0]) == 200.0
    output, tangent = jvp(lambda x, n: cube(x) * n, (2.0, 3), (10.0, None))
    assert (float(output), float(tangent)) == (24.0, 600.0)
    assert float(jacobian(cube)(2.0)) == float(hessian(cube)(2.0)) == 20.0


def test_unused_arguments_get_zeros(tensor):
    f = lambda x, y: {"x": seven(x), "constant": tensor(V)}
    _, pullback = vjp(f, tensor(X), tensor(W))
    gx, gy = pullback({"x": tensor(V), "constant": tensor(V)})
    close(gx, 7 * V)
    close(gy, np.zeros((2, 3)))
    _, tangent = jvp(f, (tensor(X), tensor(W)), (tensor(V), tensor(W)))
    close(tangent["x"], 7 * V)
    close(tangent["constant"], np.zeros(3))
    found = jacobian(f, (0, 1))(tensor(X), tensor(W))
    close(found["x"][0], 7 * np.eye(3))
    close(found["x"][1], np.zeros((3, 2, 3)))
    close(found["constant"][1], np.zeros((3, 2, 3)))


def test_upstreams_and_tangents_are_cast(tensor, array):
    double = tensor(V.astype(np.float64))
    for found in (vjp(seven, tensor(X))[1](double)[0], jvp(seven, (tensor(X),), (double,))[1]):
        assert array(found).dtype == np.float32
        close(found, 7 * V)


def test_empty_tensors(tensor, array):
    empty = tensor(np.zeros((0,), np.float32))
    assert array(jacobian(seven)(empty)).shape == (0, 0)
    assert array(jacobian(lambda x: seven(x)[:0])(tensor(X))).shape == (0, 3)
    assert array(jacobian(lambda x: ops.sum(seven(x)))(empty)).shape == (0,)
    assert array(hessian(seven)(empty)).shape == (0, 0)
    assert array(jvp(seven, (empty,), (empty,))[1]).shape == (0,)


def test_complex_numbers(tensor):
    """The gradient is upstream times the conjugate of the derivative, a tangent is multiplied by the derivative."""
    turned = custom_gradient(lambda z: (z * z, lambda upstream: (3 + 1j) * upstream))
    real = np.array([1.0, 10.0], np.float32)
    close(vjp(turned, tensor(Z))[1](tensor(T))[0], (3 + 1j) * T)
    close(vjp(lambda z: z * z, tensor(Z))[1](tensor(T))[0], 2 * np.conj(Z) * T)
    close(vjp(turned, tensor(Z))[1](tensor(real))[0], (3 + 1j) * real)
    assert complex(vjp(turned, 1 + 1j)[1](2j)[0]) == (3 + 1j) * 2j
    close(jvp(lambda z: z * z, (tensor(Z),), (tensor(T),))[1], 2 * Z * T)
    close(jvp(lambda z: ops.conj(z), (tensor(Z),), (tensor(T),))[1], np.conj(T))
    close(jvp(lambda z: ops.real(z * z), (tensor(Z),), (tensor(T),))[1], (2 * Z * T).real)
    # The transpose of a multiplication, in the product Re(conj(a) b), is one with the conjugate.
    close(jvp(turned, (tensor(Z),), (tensor(T),))[1], (3 - 1j) * T)


# --- pytrees -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    a: object
    name: str


nested = lambda p, n: {"y": (seven(p["w"].a) * p["b"], [n, None]), "i": ops.argmax(p["w"].a), "s": "text"}
arguments = lambda tensor: ({"w": Point(tensor(X), "static"), "b": 2.0, "i": tensor(np.array([1, 2])), "none": None}, 3)


def test_pytrees_backwards(tensor):
    output, pullback = vjp(nested, *arguments(tensor))
    close(output["y"][0], 4 * X)
    assert output["y"][1] == [3, None] and output["s"] == "text" and int(output["i"]) == 2
    # A list for a tuple, and anything where the output has no gradient.
    gradients, nothing = pullback({"y": [tensor(V), ["ignored", 3]], "i": None, "s": None})
    assert nothing is None and type(gradients) is dict
    close(gradients["w"].a, 14 * V)
    close(gradients["b"], np.sum(2 * X * V))
    assert type(gradients["w"]) is Point
    assert (gradients["w"].name, gradients["i"], gradients["none"]) == (None, None, None)
    gradients, _ = pullback({"y": None, "i": None, "s": None})
    close(gradients["w"].a, np.zeros(3))


def test_pytrees_forwards(tensor):
    tangents = {"w": Point(tensor(V), "ignored"), "b": 10.0, "i": None, "none": None}
    output, tangent = jvp(nested, arguments(tensor), [tangents, None])
    close(output["y"][0], 4 * X)
    # b times the rule's 7 v, and the product rule.
    close(tangent["y"][0], 2 * 7 * V + 2 * X * 10)
    assert (tangent["y"][1], tangent["i"], tangent["s"]) == ([None, None], None, None)
    _, tangent = jvp(nested, arguments(tensor), ({**tangents, "w": None}, None))
    close(tangent["y"][0], 2 * X * 10)


def test_pytrees_of_jacobians(tensor):
    f = lambda p, x: {"y": (seven(p["w"].a) * p["b"], x * x), "s": "text"}
    p = {"w": Point(tensor(X), "static"), "b": 2.0}
    found = jacobian(f, (0, 1))(p, 3.0)
    by_p, by_x = found["y"][0]
    assert found["s"] is None and type(by_p["w"]) is Point and by_p["w"].name is None
    close(by_p["w"].a, 14 * np.eye(3))
    close(by_p["b"], 2 * X)
    close(by_x, np.zeros(3))
    by_p, by_x = found["y"][1]
    close(by_p["w"].a, np.zeros(3))
    assert float(by_x) == 6.0
    found = hessian(lambda p: cube(p["w"].a) * p["b"])(p)
    close(found["w"].a["w"].a, np.diag(2 * 10 * X))
    close(found["w"].a["b"], 5 * X**2)
    close(found["b"]["w"].a, 5 * X**2)
    assert found["w"].name is None and float(found["b"]["b"]) == 0.0


# --- arrays of NumPy on every backend --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float32, np.float64, float])
def test_arrays_of_numpy_as_upstreams_and_tangents(backend, tensor, kind):
    """Beside numbers, and in pytrees."""
    v, two = V.astype(kind), kind(2)
    f = lambda x: {"cube": cube(x), "sum": (ops.sum(seven(x)), 3)}
    pulled = vjp(f, tensor(X))[1]({"cube": v, "sum": (two, None)})[0]
    first = jvp(f, (tensor(X),), (v,))[1]["cube"]
    second = jvp(lambda x, s: s * seven(x), (tensor(X), 3.0), (v, two))[1]
    close(pulled, 5 * V * X**2 + 14)
    close(first, 5 * V * X**2)
    close(second, 3 * 7 * V + 2 * 2 * X)


@pytest.mark.parametrize(
    "change",
    [
        np.array,
        np.float64,
        lambda x: x.astype(x.dtype.newbyteorder()),
        lambda x: np.array(x[::-1])[::-1],
        lambda x: np.broadcast_to(x[:, None], (3, 2))[:, 0],  # read-only, and with steps
    ],
    ids=["array", "float64", "byte order", "negative strides", "read-only"],
)
def test_arrays_of_numpy_as_arguments(backend, change):
    """In every place and keyword, in pytrees, and in memory as it is: the function gets tensors."""
    x = change(X)
    f = lambda x, p, *, shift: ops.sum(seven(x) * p["w"] + shift)
    close(grad(f)(x, {"w": x}, shift=x), 7 * X)
    value, gradients = keras_cg.value_and_grad(f, (0, 1))(x, {"w": x}, shift=x)
    close(value, np.sum(2 * X * X + X))
    close(gradients[0], 7 * X)
    close(gradients[1]["w"], 2 * X)
    close(vjp(cube, x)[1](x)[0], 5 * X**3)
    close(jvp(cube, (x,), (x,))[1], 5 * X**3)
    close(jacobian(cube)(x), np.diag(5 * X**2))
    close(hessian(cube)(x), np.diag(10 * X))
    np.testing.assert_array_equal(x, X)


def test_arrays_of_numpy_that_have_no_gradient(backend):
    places, mask = np.array([2, 0]), np.array([True, False])

    def f(x, places, mask, name):
        assert name.dtype.kind == "U"
        return ops.where(mask, ops.take(cube(x), places), ops.zeros_like(ops.take(x, places)))

    names = np.array(["a", "b"])
    close(grad(f)(X, places, mask, names), [0, 0, 45])
    assert vjp(f, X, places, mask, names)[1](None)[1:] == (None, None, None)
    with pytest.raises(TypeError, match=r"argument 1 is int(32|64)\[2\], and only floating"):
        grad(f, argnums=1)(X, places, mask, names)


def test_a_number_has_the_dtype_of_the_first_tensor_or_that_of_ops(backend, array):
    for kind in (np.float32, np.float64, np.float16):
        gradient = grad(cube)(kind(3))
        assert float(gradient) == 45
        assert config.active.dtype(gradient) in {np.dtype(kind).name, *(["float32"] if kind is np.float64 else [])}
    alone = array(grad(lambda t: t * ops.asarray(2.0))(3.0))
    assert float(alone) == 2 and alone.dtype == array(ops.asarray(2.0)).dtype
    for kind in (np.float32, np.float64):
        x = ops.asarray(X.astype(kind))
        for gradient in (
            grad(lambda t, x: ops.sum(t * x))(3.0, x),
            vjp(lambda x, t: ops.sum(t * x), x, 3.0)[1](1.0)[1],
            jvp(lambda x, t: t * x, (x, 3.0), (None, 2.0))[1][2],
        ):
            assert array(gradient).dtype == array(x).dtype and float(gradient) == 6
    z = ops.asarray(Z)
    assert array(grad(lambda t, z: ops.sum(ops.real(z) * t))(3.0, z)).dtype == np.float32
    assert array(grad(lambda c, x: ops.sum(ops.real(c) * x))(3j, ops.asarray(X))).dtype == np.complex64
