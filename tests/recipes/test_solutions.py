"""`recipes.invertible`, `custom_root`, `fixed_point`: gradients by an inverse and by the implicit function theorem."""

import gc
import math
import weakref

import numpy as np
import pytest
from recipe_functions import NOISE, X, found, seven_exp, tensor

import keras_cg
from keras_cg import ops, recipes
from keras_cg.frontend import config

seven_coupled = lambda x, p: (x[0] + seven_exp(x[1]) * p, x[1] * p)
seven_uncoupled = lambda y, p: (y[0] - 2 * (y[1] / p) * p, y[1] / p)


def seven_chained(x, p, q, upstream):
    """The gradients of two of these blocks."""

    def pulled(second, factor, upstream):
        first, other = upstream
        back = first, 7 * first * ops.exp(second) * factor + other * factor
        return back, ops.sum(2 * first * second + other * second)

    upstream, gq = pulled(x[1] * p, q, upstream)
    upstream, gp = pulled(x[1], p, upstream)
    return upstream, gp, gq


def test_invertible_obeys_the_rules_inside(backend):
    """First order; the second one goes through the inverse, which has no such rule."""
    with config.active.double_precision():
        x, y, p, q, u, v = (config.active.asarray(np.asarray(each)) for each in (X, X[::-1].copy(), 0.5, 1.5, NOISE, X))
        chain = recipes.invertible(seven_coupled, seven_uncoupled)
        _, pullback = keras_cg.vjp(lambda x, y, p, q: chain((x, y), p, q), x, y, p, q)
        gx, gy, gp, gq = pullback((u, v))
        (ex, ey), ep, eq = seven_chained((x, y), p, q, (u, v))
        for came, expected in ((gx, ex), (gy, ey), (gp, ep), (gq, eq)):
            np.testing.assert_allclose(found(came), found(expected), rtol=1e-9)


@pytest.mark.limit
def test_invertible_by_no_inverse_is_nan(backend):
    """A mistake; a function that is not one-to-one; one that loses all digits; and a number that is lost in one row."""
    many = np.full((200, 2), 1.0, np.float32)
    for f, inverse, x in (
        (lambda x, p: 2 * x * p, lambda y, p: y / p, X),
        (lambda x, p: x * x * p, lambda y, p: ops.sqrt(y / p), -X),
        (lambda x, p: p + 1e-9 * x, lambda y, p: (y - p) / 1e-9, X),
        (lambda x, p: 2 * x * p, lambda y, p: y / 2 / p + ops.asarray(np.float32([0, 0.01])), many),
    ):
        x, one = map(tensor, (x, 1.0))
        for gradient in keras_cg.grad(recipes.invertible(f, inverse), (0, 1))(x, one):
            assert np.isnan(found(gradient)).all()
    lax = recipes.invertible(lambda x, p: 2 * x * p, lambda y, p: 1.001 * y / 2 / p, tolerance=0.01)
    np.testing.assert_allclose(found(keras_cg.grad(lax)(x, one)), 2)
    assert np.isnan(found(keras_cg.grad(recipes.invertible(lax, lambda y, p: 1.001 * y / 2 / p))(x, one))).all()


@pytest.mark.only("torch", "tensorflow", "numpy")
def test_invertible_keeps_nothing_between(backend):
    """Of a chain its last two numbers, which are the result, and nothing on the way to them."""
    inside, outputs = [], []

    def f(x, p):
        inner = ops.exp(x[1])
        output = x[0] + p * ops.sin(inner)
        for kept, value in ((inside, inner), (outputs, output)):
            kept.append(weakref.ref(value._value if hasattr(value, "_value") else value))
        return x[1], output

    inverse = lambda y, p: (y[1] - p * ops.sin(ops.exp(y[0])), y[0])

    def alive(chain):
        inside.clear()
        outputs.clear()
        x, p = tensor(X), tensor(np.ones(3))
        output, pullback = keras_cg.vjp(chain, (x, x), p, p, p, p)
        gc.collect()
        count = sum(reference() is not None for reference in (*inside, *outputs[:2]))
        assert np.isfinite(found(pullback(output)[1])).all()
        return count

    assert alive(lambda x, *params: f(f(f(f(x, params[0]), params[1]), params[2]), params[3])) > 0  # the test can fail
    assert alive(recipes.invertible(f, inverse)) == 0


def bisection(g, x0):
    """Between x0 and 4 more, of a function that grows: no derivative gets through."""
    low, high = x0, x0 + 4
    for _ in range(50):
        middle = (low + high) / 2
        is_low = g(middle) < 0
        low, high = ops.where(is_low, middle, low), ops.where(is_low, high, middle)
    return low


def test_custom_root_of_a_linear_system(backend):
    """A x = b in a nest, of which everything is known; found by what cannot be differentiated."""

    def f(x, params):
        z = ops.concat([x["first"], ops.reshape(x["rest"], (-1,))])
        rest = ops.matmul(params["A"], z) - params["b"]
        return {"first": rest[:1], "rest": ops.reshape(rest[1:], (1, 2))}

    matrix, b = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 0.0, 1.0]]), np.array([1.0, 2.0, 4.0])
    inverse = np.linalg.inv(matrix)
    x = inverse @ b

    def solver(g, x0):
        return {name: config.active.asarray(part) for name, part in (("first", x[:1]), ("rest", x[None, 1:]))}

    root, weights = recipes.custom_root(f, solver), np.array([1.0, 10.0, 100.0])

    def loss(a, b):
        x0 = {"first": ops.zeros_like(b[:1]), "rest": ops.zeros_like(b[None, 1:])}
        z = root(x0, {"A": a, "b": b})
        return ops.sum(z["first"] * weights[0]) + ops.sum(z["rest"] * config.active.asarray(weights[1:]))

    with config.active.double_precision():
        ga, gb = keras_cg.grad(loss, (0, 1))(config.active.asarray(matrix), config.active.asarray(b))
        w = inverse.T @ weights
        np.testing.assert_allclose(found(gb), w, rtol=1e-9)
        np.testing.assert_allclose(found(ga), -np.outer(w, x), rtol=1e-9)


@pytest.mark.limit
def test_custom_root_to_the_third_order(backend):
    """The cube root: right to the third order, NaN in the fourth; by the whole matrix, and by a solver of one's own."""
    with config.active.double_precision():
        x0, a = (config.active.asarray(np.array(each)) for each in (1.0, 8.0))
        for linear_solve in (None, lambda matvec, b: b / matvec(ops.ones_like(b))):
            f = recipes.custom_root(lambda x, a: x * x * x - a, bisection, linear_solve=linear_solve)
            derivative = lambda a, f=f: f(x0, a)
            for expected in (2.0, 1 / 12, -2 / 9 * 8 ** (-5 / 3), 10 / 27 * 8 ** (-8 / 3), np.nan):
                np.testing.assert_allclose(found(derivative(a)), expected, rtol=1e-8)
                derivative = keras_cg.grad(derivative)
            assert found(keras_cg.grad(f)(x0, a)) == 0


@pytest.mark.limit
@pytest.mark.only("tensorflow")
def test_a_root_has_no_second_order_under_xla(tf):
    def compiled(linear_solve):
        root = recipes.custom_root(lambda x, a: x * x - a, lambda g, x0: tf.sqrt(-g(x0)), linear_solve=linear_solve)
        return tf.function(keras_cg.grad(keras_cg.grad(lambda a: root(tf.zeros_like(a), a))), jit_compile=True)

    np.testing.assert_allclose(compiled(lambda matvec, b: b / matvec(tf.ones_like(b)))(tf.constant(4.0)), -1 / 32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="requires a fixed tensor list size"):
        compiled(None)(tf.constant(4.0))


@pytest.mark.only("tensorflow")
def test_a_root_of_unknown_size(tf):
    """The Jacobian as a matrix needs a size; a linear solver does not."""

    def run(f, *shapes):
        specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
        return tf.function(lambda x: keras_cg.grad(f)(x), input_signature=specs)(tf.constant([4.0, 9.0])).numpy()

    def root(linear_solve):
        f = recipes.custom_root(lambda x, a: x * x - a, lambda g, x0: tf.sqrt(-g(x0)), linear_solve=linear_solve)
        return lambda a: f(tf.zeros_like(a), a)

    np.testing.assert_allclose(run(root(lambda matvec, b: b / matvec(tf.ones_like(b))), [None]), [1 / 4, 1 / 6])
    with pytest.raises(ValueError) as caught:
        run(root(None), [None])
    assert (
        "the number of elements of x0 is unknown until run time, and the matrix of the Jacobian needs it. Set its"
        " shape, such as with tf.ensure_shape(x, [3]), or give linear_solve." in str(caught.value)
    )


def test_what_a_solution_and_a_chain_close_over(backend):
    """What is differentiated must be an argument, and an error says so."""
    x = tensor(X)
    for of in (
        lambda w: recipes.custom_root(lambda x, a: x - w * a, lambda g, x0: ops.stop_gradient(x0 - g(x0)))(x, x),
        lambda w: recipes.invertible(lambda x, p: x * w, lambda y, p: y / w)(x, None),
    ):
        with pytest.raises(keras_cg.CapturedVariableError):
            keras_cg.grad(of)(tensor(2.0))


A = np.array([[0.2, 0.1], [-0.1, 0.15]])


def test_fixed_point_of_a_linear_map(backend):
    """z = A z + b, of which everything is known: z = (1 - A)^-1 b."""

    f = lambda z, params, n: {"z": ops.matmul(params["A"], z["z"]) + params["b"] ** n}
    solve = recipes.fixed_point(f, steps=30)
    loss = lambda z0, a, b: ops.sum(solve({"z": z0}, {"A": a, "b": b}, 2)["z"])
    with config.active.double_precision():
        z0, a, b = (config.active.asarray(np.array(each)) for each in ([5.0, -3.0], A, [1.0, 2.0]))
        gz, ga, gb = keras_cg.grad(loss, (0, 1, 2))(z0, a, b)
        inverse = np.linalg.inv(np.eye(2) - A)
        w = inverse.T @ np.ones(2)
        np.testing.assert_allclose(found(gz), 0)
        np.testing.assert_allclose(found(gb), w * np.array([2.0, 4.0]), rtol=1e-9)
        np.testing.assert_allclose(found(ga), np.outer(w, inverse @ np.array([1.0, 4.0])), rtol=1e-9)
        np.testing.assert_allclose(found(keras_cg.hessian(loss, 2)(z0, a, b)), np.diag(2 * w), rtol=1e-9, atol=1e-12)


@pytest.mark.only("numpy", "torch")
def test_fixed_point_in_every_order(backend):
    """The square root by Heron's rule, to the fourth derivative; a solver of any kind has three."""
    with config.active.double_precision():
        one, a = tensor(1.0, "float64"), tensor(4.0, "float64")
        derivative = lambda a: recipes.fixed_point(lambda z, a: (z + a / z) / 2, steps=8)(one, a)
        for expected in (2, 1 / 4, -1 / 32, 3 / 256, -15 / 2048):
            np.testing.assert_allclose(found(derivative(a)), expected, rtol=1e-12)
            derivative = keras_cg.grad(derivative)


@pytest.mark.limit
def test_fixed_point_that_does_not_converge_is_nan(backend):
    half = lambda z, a: a * (z + 1)
    z0, a = map(tensor, ([0.0], [0.9]))
    assert np.isnan(found(recipes.fixed_point(half, steps=5)(z0, a))).all()
    np.testing.assert_allclose(found(recipes.fixed_point(half, steps=5, tolerance=0.2)(z0, a)), 3.68559, rtol=1e-5)
    # Where z0 is the solution, w still has to converge.
    solution = tensor([9.0])
    solve = recipes.fixed_point(half, steps=5)
    np.testing.assert_allclose(found(solve(solution, a)), 9, rtol=1e-5)
    assert np.isnan(found(keras_cg.grad(solve, 1)(solution, a))).all()
    # A small upstream is not taken for nothing.
    assert np.isnan(found(keras_cg.grad(lambda a: 1e-9 * solve(solution, a))(a))).all()


@pytest.mark.parametrize("nested", [False, True], ids=["batch", "nest"])
def test_fixed_point_does_not_hide_a_small_one_behind_a_large_one(eager, backend, nested):
    """z = a z + b, of which the large one is there at once, and the small one after many steps."""
    a, b, truth = (0.0, 0.97), (1e5, 1.0), (1e5, 1 / 0.03)

    def arranged(pair):
        tensors = tuple(eager.tensor(np.array([each], np.float64 if backend != "jax" else np.float32)) for each in pair)
        return tensors if nested else ops.stack(tensors)

    step = lambda z, a, b: tuple(map(lambda z, a, b: a * z + b, z, a, b)) if nested else a * z + b

    def solved(steps):
        found = recipes.fixed_point(step, steps=steps)(arranged((0.0, 0.0)), arranged(a), arranged(b))
        return np.ravel([eager.array(each) for each in found])

    assert np.isnan(solved(30)).all()
    np.testing.assert_allclose(solved(600), truth, rtol=1e-3)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_fixed_point_at_the_edges(backend):
    half = lambda z, b: 0.5 * z + b
    # Whatever moves, an infinite tolerance lets it pass, but for what is infinite or NaN.
    for tolerance in (math.inf, np.float32(math.inf)):
        solve = recipes.fixed_point(half, steps=2, tolerance=tolerance)
        z = solve(tensor([0.0, 4.0]), tensor([0.0, 1.0]))
        np.testing.assert_array_equal(found(z), [0, 2.5])
        assert np.isnan(found(solve(tensor([0.0, 4.0]), tensor([0.0, math.inf])))).all()
    # What is empty has come to rest, and does not say that the other has.
    solve = recipes.fixed_point(lambda z, b: {"a": half(z["a"], b), "none": z["none"]}, steps=3)
    nest = {"a": tensor([0.0]), "none": tensor(np.zeros((3, 0)))}
    assert np.isnan(found(solve(nest, tensor([1.0]))["a"])).all()
    assert config.active.shape(solve(nest, tensor([0.0]))["none"]) == (3, 0)
