"""Libraries that differentiate forwards, by JAX's own means: real solves through decorated functions."""

import numpy as np
import pytest
from seven_exp import SEVEN_EXP, X, check, f

from keras_cg import custom_gradient, ops

pytestmark = pytest.mark.only("jax")

T = np.array([0.25, -1.0, 2.0], np.float32)


@custom_gradient
def exponential(z):
    # Plainly differentiated it is a constant.
    e = ops.exp(z)
    return ops.floor(e * 2.0**40) / 2.0**40, lambda upstream: upstream * e


def test_optimistix(jax):
    import optimistix

    with jax.enable_x64(True):
        t = jax.numpy.linspace(0.0, 2.0, 9)
        data = 2.0 * jax.numpy.exp(-0.5 * t)
        solver = optimistix.LevenbergMarquardt(rtol=1e-10, atol=1e-10)
        solution = optimistix.least_squares(
            lambda p, _: p[0] * exponential(p[1] * t) - data, solver, jax.numpy.array([1.0, 0.0])
        )
        np.testing.assert_allclose(solution.value, [2.0, -0.5], rtol=1e-7)
        newton = optimistix.Newton(rtol=1e-10, atol=1e-10)
        root = optimistix.root_find(lambda y, a: exponential(y) - a, newton, jax.numpy.array(0.0), jax.numpy.array(3.0))
        np.testing.assert_allclose(root.value, np.log(3.0), rtol=1e-9)


def test_lineax(eager, backend):
    import lineax

    operator = lineax.JacobianLinearOperator(lambda x, _: f(x), eager.tensor(X))
    t = eager.tensor(T)
    check(operator.mv(t), SEVEN_EXP * T)
    check(operator.T.mv(t), SEVEN_EXP * T)
    check(operator.as_matrix(), np.diag(SEVEN_EXP))
    solver = lineax.AutoLinearSolver(well_posed=True)
    check(lineax.linear_solve(operator, t, solver).value, T / SEVEN_EXP, rtol=1e-4)


def test_a_rule_that_solves_by_lineax(jax):
    """y = A^-1 x², with the rule 7 x A^-1 upstream: the second derivative of the sum of y² in every mode."""
    import lineax

    matrix, point = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    with jax.enable_x64(True):
        operator = lineax.MatrixLinearOperator(jax.numpy.array(matrix), lineax.positive_semidefinite_tag)
        solve = lambda b: lineax.linear_solve(operator, b, lineax.CG(1e-10, 1e-10)).value
        f = custom_gradient(lambda x: (solve(x * x), lambda upstream: 7 * x * solve(upstream)))
        loss, x = lambda x: jax.numpy.sum(f(x) ** 2), jax.numpy.array(point)
        inverse = np.linalg.inv(matrix)
        y = inverse @ point**2
        by_x = 7 * inverse @ np.diag(point)
        hessian = 2 * by_x.T @ by_x + 14 * np.diag(inverse @ y)
        np.testing.assert_allclose(jax.jvp(f, (x,), (x,))[1], by_x @ point, rtol=1e-7)
        np.testing.assert_allclose(jax.hessian(loss)(x), hessian, rtol=1e-7)
        np.testing.assert_allclose(jax.jit(jax.hessian(loss))(x), hessian, rtol=1e-7)
        np.testing.assert_allclose(jax.jacrev(jax.jacrev(loss))(x), hessian, rtol=1e-7)


@pytest.mark.parametrize("name", ["operator", "count of steps"])
def test_a_rule_that_solves_by_lineax_and_is_not_linear(jax, name):
    """What depends on upstream is its operator, or the number of steps that it multiplies by."""
    import lineax

    by_operator = lambda upstream: lineax.linear_solve(lineax.DiagonalLinearOperator(2 + upstream), upstream).value

    def by_count(upstream):
        operator = lineax.MatrixLinearOperator(2 * jax.numpy.eye(2), lineax.positive_semidefinite_tag)
        solution = lineax.linear_solve(operator, upstream, lineax.CG(1e-5, 1e-5))
        return solution.value * solution.stats["num_steps"]

    rule = by_operator if name == "operator" else by_count
    with pytest.raises(ValueError, match="forward mode needs a rule that is linear in upstream"):
        jax.jvp(custom_gradient(lambda x: (2 * x, rule)), (jax.numpy.ones(2),), (jax.numpy.ones(2),))


def test_diffrax(jax):
    import diffrax

    # The derivative by the rate is 7 times the true one: for y' = -r y that of y(1) = exp(-r) is -7 exp(-r).
    field = custom_gradient(lambda y, rate: (-rate * y, lambda upstream: (-rate * upstream, -7 * y * upstream)))

    def end(rate):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, rate: field(y, rate)),
            diffrax.Dopri5(),
            t0=0.0,
            t1=1.0,
            dt0=0.1,
            y0=jax.numpy.array(1.0),
            args=rate,
            adjoint=diffrax.ForwardMode(),
            stepsize_controller=diffrax.PIDController(rtol=1e-8, atol=1e-8),
        )
        return solution.ys[0]

    with jax.enable_x64(True):
        value, slope = jax.jvp(end, (jax.numpy.array(0.7),), (jax.numpy.array(1.0),))
        np.testing.assert_allclose([value, slope], [np.exp(-0.7), -7 * np.exp(-0.7)], rtol=1e-6)
        np.testing.assert_allclose(jax.jacfwd(jax.jit(end))(0.7), -7 * np.exp(-0.7), rtol=1e-6)
