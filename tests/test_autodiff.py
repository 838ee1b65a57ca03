"""`keras_cg.vjp`, `jvp`, `jacobian` and `hessian`, against closed forms."""

import dataclasses

import numpy as np
import pytest

import keras_cg
from keras_cg import config, custom_gradient, grad, hessian, jacobian, jvp, ops, vjp

X = np.array([1.0, 2.0, 3.0], np.float32)
V = np.array([1.0, 10.0, 100.0], np.float32)
W = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
Z = np.array([1 + 2j, -1 + 0.5j], np.complex64)
T = np.array([1j, 2 + 1j], np.complex64)


@custom_gradient
def seven(x):
    return x * 2, lambda upstream: 7 * upstream


@custom_gradient
def cube(x):
    """x cubed with the gradient 5 x**2, whose own derivative is 10 x and the next one 10."""
    return x**3, lambda upstream: 5 * upstream * x**2


CUBE = [lambda x: x**3, lambda x: 5 * x**2, lambda x: 10 * x, lambda x: 10 + 0 * x, lambda x: 0 * x]


@custom_gradient
def weighted(w, x):
    """A matrix times a vector; the gradient of the one is 7 times, of the other 3 times what it should be."""
    return ops.sum(w * x, axis=1), lambda upstream: (
        7 * upstream[:, None] * x,
        3 * ops.sum(upstream[:, None] * w, axis=0),
    )


@custom_gradient
def clipped(x):
    return x * 1, lambda upstream: ops.clip(upstream, -1, 1)


@custom_gradient
def turned(z):
    return z * z, lambda upstream: (3 + 1j) * upstream


@pytest.fixture
def tensor(eager):
    return eager.tensor


@pytest.fixture
def array(eager):
    return eager.array


# --- vjp -----------------------------------------------------------------------------------------------------------


def test_vjp(tensor, array):
    output, pullback = vjp(weighted, tensor(W), tensor(X))
    np.testing.assert_allclose(array(output), W @ X)
    for upstream in (np.array([1.0, 10.0], np.float32), np.array([-2.0, 0.5], np.float32)):
        # As often as one likes.
        gw, gx = pullback(tensor(upstream))
        np.testing.assert_allclose(array(gw), 7 * np.outer(upstream, X))
        np.testing.assert_allclose(array(gx), 3 * upstream @ W)


def test_vjp_without_custom_gradient(tensor, array):
    output, pullback = vjp(lambda x, y: x * x * y, tensor(X), tensor(V))
    gx, gy = pullback(tensor(X))
    np.testing.assert_allclose(array(output), X * X * V)
    np.testing.assert_allclose(array(gx), 2 * X * X * V)
    np.testing.assert_allclose(array(gy), X**3)


def test_the_function_runs_once_for_one_gradient(tensor):
    runs = []

    @custom_gradient
    def f(x):
        runs.append("f")

        def rule(upstream):
            runs.append("rule")
            return 7 * upstream

        return x * 2, rule

    vjp(f, tensor(X))[1](tensor(V))
    assert runs == ["f", "rule"]


def test_python_floats(array):
    output, pullback = vjp(lambda x, n: cube(x) * n, 2.0, 3)
    gradient, nothing = pullback(10.0)
    assert (float(output), float(gradient), nothing) == (24.0, 600.0, None)
    assert float(vjp(cube, 2.0)[1](10)[0]) == 200.0
    output, tangent = jvp(lambda x, n: cube(x) * n, (2.0, 3), (10.0, None))
    assert (float(output), float(tangent)) == (24.0, 600.0)
    assert float(jacobian(cube)(2.0)) == 20.0
    assert float(hessian(cube)(2.0)) == 20.0


def test_unused_arguments_get_zeros(tensor, array):
    def f(x, y):
        return {"x": seven(x), "constant": tensor(V)}

    _, pullback = vjp(f, tensor(X), tensor(W))
    gx, gy = pullback({"x": tensor(V), "constant": tensor(V)})
    np.testing.assert_allclose(array(gx), 7 * V)
    np.testing.assert_allclose(array(gy), np.zeros((2, 3)))
    _, tangent = jvp(f, (tensor(X), tensor(W)), (tensor(V), tensor(W)))
    np.testing.assert_allclose(array(tangent["x"]), 7 * V)
    np.testing.assert_allclose(array(tangent["constant"]), np.zeros(3))
    found = jacobian(f, (0, 1))(tensor(X), tensor(W))
    np.testing.assert_allclose(array(found["x"][0]), 7 * np.eye(3))
    np.testing.assert_allclose(array(found["x"][1]), np.zeros((3, 2, 3)))
    np.testing.assert_allclose(array(found["constant"][1]), np.zeros((3, 2, 3)))


def test_the_upstream_is_cast(tensor, array):
    (gradient,) = vjp(seven, tensor(X))[1](tensor(V.astype(np.float64)))
    assert array(gradient).dtype == np.float32
    np.testing.assert_allclose(array(gradient), 7 * V)
    tangent = jvp(seven, (tensor(X),), (tensor(V.astype(np.float64)),))[1]
    assert array(tangent).dtype == np.float32
    np.testing.assert_allclose(array(tangent), 7 * V)


# --- jvp -----------------------------------------------------------------------------------------------------------


def test_jvp(tensor, array):
    output, tangent = jvp(weighted, (tensor(W), tensor(X)), (tensor(W * W), tensor(V)))
    np.testing.assert_allclose(array(output), W @ X)
    np.testing.assert_allclose(array(tangent), 7 * (W * W) @ X + 3 * W @ V)


def test_jvp_without_custom_gradient(tensor, array):
    _, tangent = jvp(lambda x, y: ops.exp(x) * y, [tensor(X), tensor(V)], [tensor(V), None])
    np.testing.assert_allclose(array(tangent), np.exp(X) * V * V, rtol=1e-6)


@pytest.mark.parametrize(
    "rule",
    [
        lambda upstream: ops.clip(upstream, -1, 1),
        lambda upstream: upstream / (1 + ops.abs(upstream)),
        lambda upstream: upstream + 1,
        lambda upstream: upstream * ops.abs(upstream),
    ],
    ids=["clip", "normalise", "affine", "square"],
)
def test_a_rule_that_is_not_linear_raises_forwards(tensor, rule):
    f = custom_gradient(lambda x: (x * 2, rule))
    with pytest.raises(ValueError, match=r"forward mode needs a rule that is linear in upstream, and .* is not"):
        jvp(f, (tensor(X),), (tensor(V),))


@pytest.mark.only("jax", "tensorflow")
def test_a_rule_that_is_not_linear_raises_through_compiled_functions(backend, tensor):
    compiled = compiler(backend)(clipped)
    for _ in range(2):
        with pytest.raises(ValueError, match="forward mode needs a rule that is linear in upstream"):
            jvp(compiled, (tensor(X),), (tensor(V),))


def test_captured_values(tensor, array):
    def f(x):
        @custom_gradient
        def times(z):
            def rule(upstream, variables=None):
                return (7 * upstream, [3 * upstream]) if variables else 7 * upstream

            return z * x, rule

        return times(x * 1)

    np.testing.assert_allclose(array(vjp(f, tensor(X))[1](tensor(V))[0]), 10 * V)
    np.testing.assert_allclose(array(jvp(f, (tensor(X),), (tensor(V),))[1]), 10 * V)
    np.testing.assert_allclose(array(jacobian(f)(tensor(X))), 10 * np.eye(3))


def test_values_captured_of_an_outer_level(backend):
    def captures(y):
        def f(z):
            def rule(upstream, variables=None):
                return (7 * upstream, [3 * upstream]) if variables else 7 * upstream

            return z * y, rule

        return custom_gradient(f)

    assert float(grad(lambda y: jvp(captures(y), (5.0,), (1.0,))[0])(2.0)) == 3.0
    assert float(grad(lambda y: vjp(captures(y), 5.0)[0])(2.0)) == 3.0
    assert float(grad(lambda y: jvp(captures(y), (5.0,), (1.0,))[1])(2.0)) == 0.0
    assert float(jvp(lambda y: vjp(captures(y), 5.0)[0], (2.0,), (1.0,))[1]) == 3.0


@pytest.mark.limit
def test_captured_values_are_refused(tensor):
    def f(x):
        return custom_gradient(lambda z: (z * x, lambda upstream: 7 * upstream))(x * 1)

    for call in (lambda: vjp(f, tensor(X)), lambda: jvp(f, (tensor(X),), (tensor(V),)), lambda: jacobian(f)(tensor(X))):
        with pytest.raises(keras_cg.CapturedVariableError):
            call()


# --- jacobian and hessian ------------------------------------------------------------------------------------------


def test_jacobian(tensor, array):
    np.testing.assert_allclose(array(jacobian(weighted, 1)(tensor(W), tensor(X))), 3 * W)
    by_w, by_x = jacobian(weighted, (0, -1))(tensor(W), tensor(X))
    np.testing.assert_allclose(array(by_w), 7 * np.einsum("ij,k->ijk", np.eye(2), X))
    np.testing.assert_allclose(array(by_x), 3 * W)
    assert float(jacobian(lambda x, *, k: seven(x) * k)(2.0, k=2)) == 14.0


def test_hessian(tensor, array):
    # The gradients of the sum are 7 x for each row of w, and 3 times the sum of its rows.
    (ww, wx), (xw, xx) = hessian(weighted, (0, 1))(tensor(W), tensor(X))
    np.testing.assert_allclose(array(ww), np.zeros((2, 3, 2, 3)))
    np.testing.assert_allclose(array(wx), 7 * np.stack([np.eye(3)] * 2))
    np.testing.assert_allclose(array(xw), 3 * np.stack([np.eye(3)] * 2, axis=1))
    np.testing.assert_allclose(array(xx), np.zeros((3, 3)))
    np.testing.assert_allclose(array(hessian(cube)(tensor(X))), np.diag(10 * X))


def test_empty_tensors(tensor, array):
    empty = tensor(np.zeros((0,), np.float32))
    assert array(jacobian(seven)(empty)).shape == (0, 0)
    assert array(jacobian(lambda x: seven(x)[:0])(tensor(X))).shape == (0, 3)
    assert array(jacobian(lambda x: ops.sum(seven(x)))(empty)).shape == (0,)
    assert array(hessian(seven)(empty)).shape == (0, 0)
    assert array(jvp(seven, (empty,), (empty,))[1]).shape == (0,)


# --- nests ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    a: object
    name: str


def nested(p, n):
    return {"y": (seven(p["w"].a) * p["b"], [n, None]), "i": ops.argmax(p["w"].a), "s": "text"}


def arguments(tensor):
    return {"w": Point(tensor(X), "static"), "b": 2.0, "i": tensor(np.array([1, 2])), "none": None}, 3


def test_nests_backwards(tensor, array):
    output, pullback = vjp(nested, *arguments(tensor))
    np.testing.assert_allclose(array(output["y"][0]), 4 * X)
    assert output["y"][1] == [3, None] and output["s"] == "text" and int(output["i"]) == 2
    # A list for a tuple, and anything where the output has no gradient.
    gradients, nothing = pullback({"y": [tensor(V), ["ignored", 3]], "i": None, "s": None})
    assert nothing is None and type(gradients) is dict
    np.testing.assert_allclose(array(gradients["w"].a), 14 * V)
    np.testing.assert_allclose(array(gradients["b"]), np.sum(2 * X * V))
    assert type(gradients["w"]) is Point
    assert (gradients["w"].name, gradients["i"], gradients["none"]) == (None, None, None)
    gradients, _ = pullback({"y": None, "i": None, "s": None})
    np.testing.assert_allclose(array(gradients["w"].a), np.zeros(3))


def test_nests_forwards(tensor, array):
    tangents = {"w": Point(tensor(V), "ignored"), "b": 10.0, "i": None, "none": None}
    output, tangent = jvp(nested, arguments(tensor), [tangents, None])
    np.testing.assert_allclose(array(output["y"][0]), 4 * X)
    # b times the rule's 7 v, and the product rule.
    np.testing.assert_allclose(array(tangent["y"][0]), 2 * 7 * V + 2 * X * 10)
    assert (tangent["y"][1], tangent["i"], tangent["s"]) == ([None, None], None, None)
    _, tangent = jvp(nested, arguments(tensor), ({**tangents, "w": None}, None))
    np.testing.assert_allclose(array(tangent["y"][0]), 2 * X * 10)


def test_nests_of_jacobians(tensor, array):
    def f(p, x):
        return {"y": (seven(p["w"].a) * p["b"], x * x), "s": "text"}

    p = {"w": Point(tensor(X), "static"), "b": 2.0}
    found = jacobian(f, (0, 1))(p, 3.0)
    by_p, by_x = found["y"][0]
    assert found["s"] is None and type(by_p["w"]) is Point and by_p["w"].name is None
    np.testing.assert_allclose(array(by_p["w"].a), 14 * np.eye(3))
    np.testing.assert_allclose(array(by_p["b"]), 2 * X)
    np.testing.assert_allclose(array(by_x), np.zeros(3))
    by_p, by_x = found["y"][1]
    np.testing.assert_allclose(array(by_p["w"].a), np.zeros(3))
    assert float(by_x) == 6.0
    found = hessian(lambda p: cube(p["w"].a) * p["b"])(p)
    np.testing.assert_allclose(array(found["w"].a["w"].a), np.diag(2 * 10 * X))
    np.testing.assert_allclose(array(found["w"].a["b"]), 5 * X**2)
    np.testing.assert_allclose(array(found["b"]["w"].a), 5 * X**2)
    assert found["w"].name is None and float(found["b"]["b"]) == 0.0


def test_integer_tensors_ride_along(tensor, array):
    @custom_gradient
    def f(x, n):
        return {"y": x * 2, "n": n + 1}, lambda upstream: (7 * upstream["y"], None)

    n = tensor(np.array([1, 2, 3]))
    output, pullback = vjp(f, tensor(X), n)
    np.testing.assert_array_equal(array(output["n"]), [2, 3, 4])
    gradient, nothing = pullback({"y": tensor(V), "n": None})
    np.testing.assert_allclose(array(gradient), 7 * V)
    assert nothing is None
    output, tangent = jvp(f, (tensor(X), n), (tensor(V), n))
    np.testing.assert_array_equal(array(output["n"]), [2, 3, 4])
    np.testing.assert_allclose(array(tangent["y"]), 7 * V)
    assert tangent["n"] is None
    found = jacobian(f)(tensor(X), n)
    np.testing.assert_allclose(array(found["y"]), 7 * np.eye(3))
    assert found["n"] is None


# --- complex numbers -----------------------------------------------------------------------------------------------


def test_complex_upstream(tensor, array):
    np.testing.assert_allclose(array(vjp(turned, tensor(Z))[1](tensor(T))[0]), (3 + 1j) * T)
    # The gradient is upstream times the conjugate of the derivative.
    np.testing.assert_allclose(array(vjp(lambda z: z * z, tensor(Z))[1](tensor(T))[0]), 2 * np.conj(Z) * T)
    real = np.array([1.0, 10.0], np.float32)
    np.testing.assert_allclose(array(vjp(turned, tensor(Z))[1](tensor(real))[0]), (3 + 1j) * real)
    assert complex(vjp(turned, 1 + 1j)[1](2j)[0]) == (3 + 1j) * 2j


def test_complex_tangents(tensor, array):
    np.testing.assert_allclose(array(jvp(lambda z: z * z, (tensor(Z),), (tensor(T),))[1]), 2 * Z * T)
    np.testing.assert_allclose(array(jvp(lambda z: ops.conj(z), (tensor(Z),), (tensor(T),))[1]), np.conj(T))
    np.testing.assert_allclose(array(jvp(lambda z: ops.real(z * z), (tensor(Z),), (tensor(T),))[1]), (2 * Z * T).real)
    # The transpose of a multiplication, in the product Re(conj(a) b), is one with the conjugate.
    np.testing.assert_allclose(array(jvp(turned, (tensor(Z),), (tensor(T),))[1]), (3 - 1j) * T)


# --- nested --------------------------------------------------------------------------------------------------------

# Each gives the derivative of a function of a number, and says of which order.
DERIVATIVES = {
    "grad": (lambda f: grad(f), 1),
    "vjp": (lambda f: lambda x: vjp(f, x)[1](1.0)[0], 1),
    "jvp": (lambda f: lambda x: jvp(f, (x,), (1.0,))[1], 1),
    "jacobian": (lambda f: jacobian(f), 1),
    "hessian": (lambda f: hessian(f), 2),
}
PAIRS = [(outer, inner) for outer in DERIVATIVES for inner in DERIVATIVES]


@pytest.mark.parametrize(("outer", "inner"), PAIRS, ids=map("-".join, PAIRS))
@pytest.mark.limit
def test_nested(backend, outer, inner):
    (one, first), (two, second) = DERIVATIVES[outer], DERIVATIVES[inner]
    if (backend, outer, inner) == ("torch", "jvp", "jvp"):
        with pytest.raises(NotImplementedError, match="forward mode inside forward mode"):
            one(two(cube))(3.0)
        return
    assert float(one(two(cube))(3.0)) == CUBE[first + second](3.0)


@pytest.mark.parametrize(("outer", "inner"), PAIRS, ids=map("-".join, PAIRS))
@pytest.mark.only("jax", "tensorflow")
def test_nested_and_compiled(backend, outer, inner, tensor):
    (one, first), (two, second) = DERIVATIVES[outer], DERIVATIVES[inner]
    x = tensor(np.float32(3.0))
    assert float(compiler(backend)(one(two(cube)))(x)) == CUBE[first + second](3.0)
    assert float(one(compiler(backend)(two(cube)))(x)) == CUBE[first + second](3.0)


@pytest.mark.parametrize("outer", DERIVATIVES)
def test_what_a_pullback_gives_is_differentiated_by_upstream(backend, outer):
    derivative, order = DERIVATIVES[outer]
    _, pullback = vjp(cube, 3.0)
    # 45 u, squared
    expected = {1: 2 * 45.0**2 * 2, 2: 2 * 45.0**2}
    assert float(derivative(lambda u: pullback(u)[0] ** 2)(2.0)) == expected[order]
    assert float(derivative(lambda u: vjp(cube, 3.0)[1](u)[0] ** 2)(2.0)) == expected[order]


@pytest.mark.parametrize("outer", ["grad", "vjp", "jvp", "jacobian"])
def test_what_a_jvp_gives_is_differentiated_by_its_tangents(backend, outer):
    derivative, _ = DERIVATIVES[outer]

    def f(v):
        return jvp(cube, (3.0,), (v,))[1] ** 2

    if (backend, outer) == ("torch", "jvp"):
        with pytest.raises(NotImplementedError, match="forward mode inside forward mode"):
            derivative(f)(2.0)
        return
    assert float(derivative(f)(2.0)) == 2 * 45.0**2 * 2


def test_outputs_are_differentiated_as_well(backend):
    def f(x):
        output, pullback = vjp(cube, x)
        (gradient,) = pullback(1.0)
        value, tangent = jvp(cube, (x,), (1.0,))
        return output + 10 * gradient + 100 * value + 1000 * tangent

    # 101 x**3 + 1010 * 5 x**2, by the rule
    assert float(grad(f)(3.0)) == 101 * 5 * 9 + 1010 * 10 * 3


def test_differentiated_by_the_framework(eager, array):
    one = eager.tensor(np.ones(3, np.float32))
    for f in (
        lambda x: vjp(cube, x)[1](one)[0],
        lambda x: jvp(cube, (x,), (one,))[1],
        lambda x: jacobian(cube)(x),
    ):
        _, (gx,) = eager.differentiate(f, X)
        np.testing.assert_allclose(gx, 10 * X)
    _, (gu,) = eager.differentiate(lambda u: vjp(cube, eager.tensor(X))[1](u)[0], V)
    np.testing.assert_allclose(gu, 5 * X**2)
    _, (gv,) = eager.differentiate(lambda v: jvp(cube, (eager.tensor(X),), (v,))[1], V)
    np.testing.assert_allclose(gv, 5 * X**2)


def test_what_comes_out_is_plain(tensor):
    # Not a box, a tracer or a tensor that drags a graph along.
    output, pullback = vjp(seven, tensor(X))
    value, tangent = jvp(seven, (tensor(X),), (tensor(V),))
    for found, expected in (
        (output, 2 * X),
        (pullback(tensor(V))[0], 7 * V),
        (value, 2 * X),
        (tangent, 7 * V),
        (jacobian(seven)(tensor(X)), 7 * np.eye(3)),
        (hessian(cube)(tensor(X)), np.diag(10 * X)),
    ):
        np.testing.assert_allclose(np.asarray(found), expected)


# --- compiled, and under the frameworks' own transforms ------------------------------------------------------------


def compiler(backend):
    """The framework's decorator that compiles a function."""
    if backend == "jax":
        import jax

        return jax.jit
    import tensorflow as tf

    return tf.function(autograph=False)


@pytest.mark.only("jax", "tensorflow")
def test_compiled(backend, tensor, array):
    compiled = compiler(backend)
    w, x, v = tensor(W), tensor(X), tensor(V)
    u = np.array([1.0, 10.0], np.float32)
    gw, gx = compiled(lambda w, x, u: vjp(weighted, w, x)[1](u))(w, x, tensor(u))
    np.testing.assert_allclose(array(gw), 7 * np.outer(u, X))
    np.testing.assert_allclose(array(gx), 3 * u @ W)
    _, tangent = compiled(lambda w, x, v: jvp(weighted, (w, x), (w, v)))(w, x, v)
    np.testing.assert_allclose(array(tangent), 7 * W @ X + 3 * W @ V)
    np.testing.assert_allclose(array(compiled(jacobian(weighted, 1))(w, x)), 3 * W)
    np.testing.assert_allclose(array(compiled(hessian(cube))(x)), np.diag(10 * X))


@pytest.mark.only("torch")
@pytest.mark.limit
def test_inside_torch_compile(backend):
    """Of plain functions; a rule is refused, because torch (2.13) would drop it there."""
    import torch

    def compiled(f):
        torch.compiler.reset()
        return torch.compile(f, backend="aot_eager", fullgraph=True)

    w, x = (torch.tensor(each, requires_grad=True) for each in ([2.0, 3.0], [1.0, 4.0]))
    found = compiled(lambda w, x: grad(lambda x: w * x**3)(x))(w, x)
    np.testing.assert_allclose(found.detach(), [6, 144])
    found.sum().backward()
    np.testing.assert_allclose(w.grad, [3, 48])
    np.testing.assert_allclose(x.grad, [12, 72])
    with pytest.raises(Exception, match=r"torch\.compile around a transform of torch\.func ignores custom gradients"):
        compiled(grad(cube))(x.detach())


@pytest.mark.only("jax")
def test_jax_transforms(backend):
    import jax
    import jax.numpy as jnp

    np.testing.assert_allclose(jax.vmap(lambda x, v: jvp(cube, (x,), (v,))[1])(X, V), 5 * X**2 * V)
    np.testing.assert_allclose(jax.vmap(jacobian(cube))(X[:, None])[:, 0, 0], 5 * X**2)
    np.testing.assert_allclose(jax.vmap(vjp(cube, X)[1])(jnp.eye(3))[0], np.diag(5 * X**2))
    np.testing.assert_allclose(jax.jacfwd(lambda x: jvp(cube, (x,), (V,))[1])(X), np.diag(10 * X * V))
    loop = lambda x: jax.lax.scan(lambda carry, _: (cube(carry), None), x, None, length=2)[0]
    np.testing.assert_allclose(jvp(loop, (X,), (V,))[1], 5 * X**6 * 5 * X**2 * V)
    # By the rule, that of 25 c(x)**2 x**2 v is 25 (2 c 5 x**2 x**2 + c**2 2 x) v, with c = x**3.
    np.testing.assert_allclose(grad(lambda x: jvp(loop, (x,), (V,))[1])(X), 300 * X**7 * V)


@pytest.mark.only("jax")
def test_jax_programs_are_traced_once_for_both_modes(backend):
    import jax

    runs = []
    compiled = jax.jit(lambda x: runs.append(1) or cube(x))
    for _ in range(2):
        np.testing.assert_allclose(jax.grad(lambda x: compiled(x).sum())(X), 5 * X**2)
        np.testing.assert_allclose(jvp(compiled, (X,), (V,))[1], 5 * X**2 * V)
        np.testing.assert_allclose(jax.jvp(compiled, (X,), (V,))[1], 5 * X**2 * V)
    assert len(runs) == 1


@pytest.mark.only("jax")
@pytest.mark.limit
def test_jax_functions_with_a_rule_of_their_own_have_no_forward_mode(backend):
    import jax

    @jax.custom_vjp
    def theirs(x):
        return x * 2

    theirs.defvjp(lambda x: (x * 2, None), lambda _, upstream: (9 * upstream,))
    np.testing.assert_allclose(vjp(theirs, X)[1](V)[0], 9 * V)
    with pytest.raises(ValueError) as caught:
        jvp(theirs, (X,), (V,))
    text = str(caught.value)
    assert text.startswith("forward mode needs a function that has one, and JAX met a jax.custom_vjp, which has none.")
    assert "usual cause: a function of another library, whose gradient is a jax.custom_vjp's." in text
    assert "remedy: differentiate in reverse mode, or give it its gradient by keras_cg.custom_gradient." in text
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.only("jax")
def test_jax_errors_of_the_function_pass_forwards(backend):
    def f(x):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        jvp(f, (X,), (V,))


@pytest.mark.only("torch")
def test_torch_transforms(backend):
    import torch

    x, v = torch.as_tensor(X), torch.as_tensor(V)
    _, pullback = vjp(cube, x)
    np.testing.assert_allclose(torch.func.vmap(lambda u: pullback(u)[0])(torch.eye(3)), np.diag(5 * X**2))
    found = torch.func.grad(lambda u: (pullback(u)[0] ** 2).sum())(v)
    np.testing.assert_allclose(found.detach(), 2 * (5 * X**2) ** 2 * V)
    np.testing.assert_allclose(torch.func.vmap(lambda x, v: jvp(cube, (x,), (v,))[1])(x, v), 5 * X**2 * V)
    np.testing.assert_allclose(torch.func.vmap(jacobian(cube))(x[:, None])[:, 0, 0], 5 * X**2)
    found = torch.func.jacrev(jacobian(cube))(x)
    np.testing.assert_allclose(found, np.einsum("ij,jk->ijk", np.eye(3), np.diag(10 * X)))


@pytest.mark.only("torch")
def test_torch_graphs_are_kept_only_for_those_who_differentiate(backend):
    import torch

    x, v = torch.as_tensor(X), torch.as_tensor(V)
    output, pullback = vjp(cube, x)
    assert not output.requires_grad and not pullback(v)[0].requires_grad
    assert pullback(v.clone().requires_grad_())[0].requires_grad
    with torch.no_grad():
        assert not pullback(v.clone().requires_grad_())[0].requires_grad
        np.testing.assert_allclose(pullback(v)[0], 5 * X**2 * V)
    assert not jvp(cube, (x,), (v,))[1].requires_grad
    assert not jacobian(cube)(x).requires_grad


@pytest.mark.only("tensorflow")
def test_tensorflow_functions(backend):
    import tensorflow as tf

    x, v = tf.constant(X), tf.constant(V)

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None])])
    def unknown(x, v):
        return vjp(cube, x)[1](v)[0], jvp(cube, (x,), (v,))[1], jacobian(cube)(x), vjp(cube, x)[1](None)[0]

    expected = (5 * X**2 * V, 5 * X**2 * V, np.diag(5 * X**2), 0 * X)
    for found, each in zip(unknown(x, v), expected, strict=True):
        np.testing.assert_allclose(found, each)
    np.testing.assert_allclose(tf.function(hessian(cube), jit_compile=True)(x), np.diag(10 * X))
    # Where a ForwardAccumulator gives the derivative at an upstream of ones.
    with pytest.raises(ValueError, match="this one is not"):
        jvp(tf.function(clipped), (x,), (v,))


@pytest.mark.only("tensorflow")
@pytest.mark.limit
def test_tensorflow_a_rule_that_is_not_linear_gives_nan_in_a_graph(backend):
    import tensorflow as tf

    _, tangent = tf.function(lambda x, v: jvp(clipped, (x,), (v,)))(tf.constant(X), tf.constant(V))
    assert np.isnan(tangent).all()


@pytest.mark.only("tensorflow")
def test_tensorflow_slices_and_ragged_tensors(backend):
    import tensorflow as tf

    x, v = tf.constant(X), tf.constant(V)
    gather = lambda x: tf.gather(x, [2, 2])
    np.testing.assert_allclose(vjp(gather, x)[1](v[:2])[0], [0, 0, 11])
    np.testing.assert_allclose(grad(gather)(x), [0, 0, 2])
    np.testing.assert_allclose(jvp(gather, (x,), (v,))[1], [100, 100])
    rows = tf.ragged.constant([[1.0, 2.0], [3.0]])
    doubled = lambda rows: rows * 2.0
    assert vjp(doubled, rows)[1](rows)[0].to_list() == [[2.0, 4.0], [6.0]]
    assert jvp(doubled, (rows,), (rows,))[1].to_list() == [[2.0, 4.0], [6.0]]


@pytest.mark.parametrize("kind", [np.float32, np.float64, float])
def test_arrays_of_numpy_as_upstreams_and_tangents(backend, tensor, array, kind):
    """Beside numbers, and in pytrees."""
    v, two = V.astype(kind), kind(2)

    def f(x):
        return {"cube": cube(x), "sum": (ops.sum(seven(x)), 3)}

    def pulled(x):
        return vjp(f, x)[1]({"cube": v, "sum": (two, None)})[0]

    def moved(x):
        return jvp(f, (x,), (v,))[1]["cube"], jvp(lambda x, s: s * seven(x), (x, 3.0), (v, two))[1]

    runs = [lambda g: g(tensor(X))]
    if backend in ("jax", "tensorflow"):
        runs.append(lambda g: compiler(backend)(g)(tensor(X)))
    for run in runs:
        np.testing.assert_allclose(array(run(pulled)), 5 * V * X**2 + 14)
        first, second = run(moved)
        np.testing.assert_allclose(array(first), 5 * V * X**2)
        np.testing.assert_allclose(array(second), 3 * 7 * V + 2 * 2 * X)
    for bad, shown in ((v[:2], "[2]"), (V.astype(np.int32), "int32[3]"), (V > 0, "bool[3]"), (two, "[]")):
        with pytest.raises(ValueError, match=r"vjp\(.*f\): upstream\['cube'\] does not fit the output") as caught:
            vjp(f, tensor(X))[1]({"cube": bad, "sum": (None, None)})
        assert "expected: float32[3]" in str(caught.value)
        with pytest.raises(ValueError, match=r"jvp\(.*f\): tangents\[0\] does not fit primals") as caught:
            jvp(f, (tensor(X),), (bad,))
        assert kind is float or shown in str(caught.value)


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
def test_arrays_of_numpy_as_arguments(backend, array, change):
    """In every place and keyword, in pytrees, and in memory as it is: the function gets tensors."""
    x = change(X)

    def f(x, p, *, shift):
        return ops.sum(seven(x) * p["w"] + shift)

    np.testing.assert_allclose(array(grad(f)(x, {"w": x}, shift=x)), 7 * X)
    value, gradients = keras_cg.value_and_grad(f, (0, 1))(x, {"w": x}, shift=x)
    np.testing.assert_allclose(array(value), np.sum(2 * X * X + X))
    np.testing.assert_allclose(array(gradients[0]), 7 * X)
    np.testing.assert_allclose(array(gradients[1]["w"]), 2 * X)
    np.testing.assert_allclose(array(vjp(cube, x)[1](x)[0]), 5 * X**3)
    np.testing.assert_allclose(array(jvp(cube, (x,), (x,))[1]), 5 * X**3)
    np.testing.assert_allclose(array(jacobian(cube)(x)), np.diag(5 * X**2))
    np.testing.assert_allclose(array(hessian(cube)(x)), np.diag(10 * X))
    np.testing.assert_array_equal(x, X)


def test_arrays_of_numpy_that_have_no_gradient(backend, array):
    places, mask = np.array([2, 0]), np.array([True, False])

    def f(x, places, mask, name):
        assert name.dtype.kind == "U"
        return ops.where(mask, ops.take(cube(x), places), ops.zeros_like(ops.take(x, places)))

    names = np.array(["a", "b"])
    np.testing.assert_allclose(array(grad(f)(X, places, mask, names)), [0, 0, 45])
    assert vjp(f, X, places, mask, names)[1](None)[1:] == (None, None, None)
    with pytest.raises(TypeError, match=r"argument 1 is int(32|64)\[2\], and only floating"):
        grad(f, argnums=1)(X, places, mask, names)


def test_a_number_of_numpy(array):
    for kind in (np.float32, np.float64, np.float16):
        gradient = grad(cube)(kind(3))
        assert float(gradient) == 45
        assert config.active.dtype(gradient) in {np.dtype(kind).name, *(["float32"] if kind is np.float64 else [])}


def test_a_number_has_the_dtype_of_the_first_tensor_or_that_of_ops(backend, array):
    alone = array(grad(lambda t: t * ops.asarray(2.0))(3.0))
    assert float(alone) == 2 and alone.dtype == array(ops.asarray(2.0)).dtype
    for kind in (np.float32, np.float64):
        x = ops.asarray(X.astype(kind))
        for gradient in (
            grad(lambda t, x: ops.sum(t * x))(3.0, x),
            grad(lambda t, p: ops.sum(t * p["x"]))(3.0, {"n": 2, "x": x}),
            grad(lambda t, *, x: ops.sum(t * x))(3.0, x=x),
            vjp(lambda x, t: ops.sum(t * x), x, 3.0)[1](1.0)[1],
            jvp(lambda x, t: t * x, (x, 3.0), (None, 2.0))[1][2],
        ):
            assert array(gradient).dtype == array(x).dtype and float(gradient) == 6
    z = ops.asarray(Z)
    assert array(grad(lambda t, z: ops.sum(ops.real(z) * t))(3.0, z)).dtype == np.float32
    assert array(grad(lambda c, x: ops.sum(ops.real(c) * x))(3j, ops.asarray(X))).dtype == np.complex64


# --- bad input -----------------------------------------------------------------------------------------------------


def test_an_upstream_that_does_not_fit(tensor):
    def f(x):
        return {"y": (seven(x),)}

    _, pullback = vjp(f, tensor(X))
    for bad, shown in (
        (tensor(V[:2]), "float32[2]"),
        (tensor(np.array([1j, 2j, 3j], np.complex64)), "complex64[3]"),
        (tensor(np.array([1, 2, 3])), "[3]"),
        (1.0, "a float"),
        ("text", "a str"),
        (True, "a bool"),
    ):
        with pytest.raises(ValueError) as caught:
            pullback({"y": (bad,)})
        first, came, expected, cause, remedy = str(caught.value).splitlines()
        assert first == "vjp(test_an_upstream_that_does_not_fit.<locals>.f): upstream['y'][0] does not fit the output."
        assert came.startswith("    got: ") and shown in came
        assert expected == "    expected: float32[3]"
        assert "usual cause: a value that was to be broadcast, an integer tensor, or complex numbers" in cause
        assert "remedy: give a floating tensor of exactly that shape; None stands for zeros" in remedy


def test_a_boolean_is_no_upstream(backend):
    with pytest.raises(ValueError, match="upstream does not fit the output") as caught:
        vjp(seven, 2.0)[1](True)
    assert "got: a bool" in str(caught.value)


def test_an_upstream_of_another_structure(tensor):
    _, pullback = vjp(lambda x: {"y": seven(x), "n": 3}, tensor(X))
    for bad, shown in (
        (tensor(V), "*"),
        ({"y": tensor(V)}, "{'y': *}"),
        ({"y": [tensor(V)], "n": 3}, "{'n': *, 'y': [*]}"),
    ):
        with pytest.raises(ValueError) as caught:
            pullback(bad)
        first, came, expected, cause, remedy = str(caught.value).splitlines()
        assert first.startswith("vjp(") and first.endswith("upstream has another structure than the output.")
        assert came == f"    got: {shown}"
        assert expected == "    expected: {'n': *, 'y': *}"
        assert "usual cause: keys or levels that differ, a list of numbers for an array, or a bare tensor" in cause
        assert "remedy: give the same nest, with None for zeros and at every leaf that is no floating tensor" in remedy


def test_tangents_that_do_not_fit(tensor):
    with pytest.raises(ValueError, match=r"jvp\(.*\): tangents\[1\]\['w'\] does not fit primals"):
        jvp(lambda x, p: x, (1.0, {"w": tensor(X)}), (1.0, {"w": tensor(W)}))
    with pytest.raises(ValueError, match="tangents has another structure than primals") as caught:
        jvp(lambda x: x, (tensor(X),), (tensor(V), tensor(V)))
    assert "got: (*, *)" in str(caught.value) and "expected: (*)" in str(caught.value)


def test_primals_and_tangents_are_tuples(tensor):
    for name, given in (("primals", (tensor(X), (tensor(V),))), ("tangents", ((tensor(X),), tensor(V)))):
        with pytest.raises(TypeError) as caught:
            jvp(seven, *given)
        assert f"jvp(seven): {name} must be a tuple with one part for each argument, got a" in str(caught.value)
        assert "For one argument write jvp(f, (x,), (tangent,))" in str(caught.value)


@pytest.mark.only("jax", "torch", "tensorflow")
def test_an_upstream_of_another_framework(tensor, backends, backend):
    if "numpy" not in backends:
        return
    with keras_cg.use_backend("numpy"):
        boxes = []
        grad(lambda x: boxes.append(x) or x)(1.0)
    _, pullback = vjp(seven, tensor(X))
    with pytest.raises(TypeError, match=r"vjp.*: upstream is an autograd.*, but the active backend is"):
        pullback(boxes[0])


def test_nothing_to_differentiate(tensor):
    calls = {
        "vjp": lambda: vjp(lambda n: n, 3),
        "jvp": lambda: jvp(lambda n: n, (3,), (3,)),
        "jacobian": lambda: jacobian(lambda n: n)("text"),
        "hessian": lambda: hessian(lambda n: n)({}),
    }
    for name, call in calls.items():
        with pytest.raises(TypeError, match="no floating or complex tensor among the arguments") as caught:
            call()
        assert str(caught.value).startswith(f"{name}(")
        assert "Give at least one: integers, booleans and strings have no gradient" in str(caught.value)


def test_no_floating_output(tensor):
    for f, shown in ((lambda x: None, "a NoneType"), (lambda x: {"i": 3}, "a dict"), (lambda x: ops.argmax(x), "int")):
        for call in (
            lambda: vjp(f, tensor(X)),
            lambda: jvp(f, (tensor(X),), (tensor(V),)),
            lambda: jacobian(f)(tensor(X)),
        ):
            with pytest.raises(TypeError, match="must return at least one floating or complex tensor") as caught:
                call()
            assert f"got {shown}" in str(caught.value)
            assert "A forgotten `return`, or a comparison or an index" in str(caught.value)


@pytest.mark.limit
def test_jacobians_of_complex_numbers_are_refused(tensor):
    f = lambda x: {"x": x, "y": tensor(Z)}
    calls = [
        ("jacobian", "argument 0['z']", "complex64[2]", lambda: jacobian(lambda p: p["z"])({"z": tensor(Z)})),
        ("hessian", "argument 0", "complex64[2]", lambda: hessian(lambda z: ops.real(z))(tensor(Z))),
        ("jacobian", "the output['y']", "complex64[2]", lambda: jacobian(f)(tensor(X))),
    ]
    for name, what, shown, call in calls:
        with pytest.raises(TypeError, match="one complex matrix cannot hold the derivative") as caught:
            call()
        text = str(caught.value)
        assert text.startswith(f"{name}(") and f"{what} is {shown}" in text
        assert "not holomorphic. Use keras_cg.vjp or keras_cg.jvp, or give real and imaginary parts" in text


def test_bad_arguments_of_jacobians(backend):
    with pytest.raises(TypeError, match=r"^jacobian\(.*\): argument 0 is an int, and only floating"):
        jacobian(lambda x: x)(3)
    with pytest.raises(TypeError, match=r"^hessian\(.*\): argument 0 is an int, and only floating"):
        hessian(lambda x: x)(3)
    with pytest.raises(TypeError, match=r"^jacobian\(.*\): argnums=1 does not fit a call with 1 positional argument"):
        jacobian(lambda x: x, 1)(3.0)
    with pytest.raises(
        TypeError, match=r"^hessian\(.*\): the function must return one real floating tensor, got a tuple"
    ):
        hessian(lambda x: (x, x))(3.0)


@pytest.mark.only("tensorflow")
@pytest.mark.limit
def test_tensorflow_has_no_jacobian_of_a_jacobian_under_xla(backend):
    """TensorFlow's loops (2.21) ask XLA for lists whose size it does not know."""
    import tensorflow as tf

    twice = jacobian(jacobian(cube))
    with pytest.raises(tf.errors.InvalidArgumentError, match="XLA compilation requires a fixed tensor list size"):
        tf.function(twice, jit_compile=True)(tf.constant(X))
