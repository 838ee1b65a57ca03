"""JAX's forward mode: the transpose of a rule that is proved linear in upstream, or an error that says why not."""

import numpy as np
import pytest
from seven_exp import E, X, check, f

from keras_cg import GradientError, custom_gradient, jvp, ops, recipes

pytestmark = pytest.mark.only("jax")

W = np.array([2.0, 3.0, 4.0], np.float32)
T = np.array([0.25, -1.0, 2.0], np.float32)
NOT_LINEAR_ERROR = "forward mode needs a rule that is linear in upstream"


def test_several_arguments_of_which_some_have_no_tangent(eager, jax):
    @custom_gradient
    def g(p, n, *, scale):
        e = ops.exp(p["x"])
        outputs = {"product": p["x"] * p["y"] * scale, "count": n + 1, "sum": ops.sum(p["y"])}

        def rule(p, n, *, upstream):
            up = upstream["product"]
            return {"x": 7 * up * e * p["y"], "y": 5 * up * p["x"] + 11 * upstream["sum"]}, None, 13 * ops.sum(up)

        return outputs, rule

    x, y, t = map(eager.tensor, (X, W, T))
    run = lambda x, y, s: g({"x": x, "y": y}, 3, scale=s)
    for each in (run, jax.jit(run)):
        tangents = jax.jvp(each, (x, y, 2.0), (t, 3 * t, 1.0))[1]
        check(tangents["product"], 7 * E * W * T + 5 * X * 3 * T + 13)
        check(tangents["sum"], 11 * 3 * T.sum())
        assert tangents["count"].dtype == jax.dtypes.float0
    check(jax.jit(lambda y: jax.jvp(lambda y: run(x, y, 2.0), (y,), (t,))[1]["product"])(y), 5 * X * T)
    check(jax.jit(jax.jacfwd(lambda s: run(x, y, s)["product"]))(2.0), np.full(3, 13.0))


def test_a_rule_of_outputs_without_a_derivative_is_not_called(jax, eager):
    def rule(upstream):
        raise AssertionError

    for number in (lambda x: 3.0, lambda x: ops.astype(ops.sum(x), "int32")):
        g = custom_gradient(lambda x, number=number: (number(x), rule))
        loss = lambda x, g=g: ops.sum(g(x) * x)
        x, expected = eager.tensor(X), np.full_like(X, float(number(eager.tensor(X))))
        for gradient in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.jacfwd(loss)):
            check(gradient(x), expected)
            check(jax.vmap(gradient)(x[None])[0], expected)


def test_what_python_looks_at_is_there(eager, jax):
    x, t = eager.tensor(X), eager.tensor(T)
    branching = custom_gradient(lambda x: (x * 2, (lambda u: 7 * u) if x[0] < 0 else (lambda u: 5 * u)))
    check(jax.jvp(branching, (x,), (t,))[1], 7 * T)
    check(jax.linearize(branching, x)[1](t), 7 * T)


def test_a_wrong_rule_says_so_forwards(eager, jax):
    g = custom_gradient(lambda x: (x * 2, lambda upstream: upstream[:2]))
    for wrap in (lambda h: h, jax.jit):
        with pytest.raises(GradientError, match="returned a gradient of the wrong shape for x"):
            jax.jvp(wrap(g), (eager.tensor(X),), (eager.tensor(T),))


# --- which rules are linear ------------------------------------------------------------------------------------------

# Rules that are linear in upstream in other words, or through a program of their own; with the transpose of each.
LINEAR = {
    "where": (lambda jax, up, x: ops.where(x < 9, 14 * up, 0.0), lambda t: 14 * t),
    "quotient": (lambda jax, up, x: 28 * up / (1 + x / x), lambda t: 14 * t),
    "matrix": (lambda jax, up, x: ops.einsum("ij,j->i", 14 * ops.eye(3), up), lambda t: 14 * t),
    "padded": (lambda jax, up, x: 14 * ops.pad(up, 1)[:-2], lambda t: 14 * np.array([t[1], t[2], 0])),
    "set and added": (
        lambda jax, up, x: up.at[0].set(0.0) + ops.zeros(3).at[0].add(7 * up[0]),
        lambda t: t * [7, 1, 1],
    ),
    "fft": (lambda jax, up, x: 14 * ops.real(ops.fft.ifft(ops.fft.fft(up))), lambda t: 14 * t),
    "half": (lambda jax, up, x: 14 * up.astype("float16").astype("float32"), lambda t: 14 * t),
    "scan with a counter": (
        lambda jax, up, x: jax.lax.scan(lambda c, v: ((c[0] + 1, c[1] + v), c[0] * v), (1.0, 0.0), up)[1],
        lambda t: t * np.array([1, 2, 3]),
    ),
    "while_loop beside it": (
        lambda jax, up, x: jax.lax.while_loop(lambda c: c < 7, lambda c: c + 1, 0.0) * up,
        lambda t: 7 * t,
    ),
    "cond with nothing": (
        lambda jax, up, x: jax.lax.cond(True, lambda u: 7 * u, lambda u: jax.numpy.zeros(3), up),
        lambda t: 7 * t,
    ),
    "jit in a jit": (lambda jax, up, x: jax.jit(lambda u: jax.jit(lambda u: 7 * u)(u) + u)(up), lambda t: 8 * t),
    "custom_jvp": (lambda jax, up, x: with_custom_jvp(jax)(up), lambda t: 7 * t),
    "solve": (lambda jax, up, x: jax.numpy.linalg.solve(jax.numpy.diag(jax.numpy.array(W)), up), lambda t: t / W),
    "tridiagonal": (
        lambda jax, up, x: jax.lax.linalg.tridiagonal_solve(0 * W, jax.numpy.array(W), 0 * W, up[:, None])[:, 0],
        lambda t: t / W,
    ),
    "scatter": (lambda jax, up, x: up.at[0].multiply(7.0), lambda t: t * np.array([7, 1, 1])),
    "linear rule of another order": (
        lambda jax, up, x: jax.vjp(lambda x: f(x), jax.numpy.array(X))[1](up)[0],
        lambda t: 7 * E * t,
    ),
}


def with_custom_jvp(jax):
    g = jax.custom_jvp(lambda u: 7 * u)
    g.defjvp(lambda primals, tangents: (g(*primals), 5 * tangents[0]))
    return g


def jax_transposes(rule, w):
    """Not every release transposes a scan over upstream: JAX 0.8 and 0.9 do not."""
    import jax

    try:
        jax.eval_shape(lambda w: jax.linear_transpose(rule, w)(w), w)
    except TypeError:
        return False
    return True


@pytest.mark.parametrize(("rule", "transpose"), LINEAR.values(), ids=LINEAR)
@pytest.mark.limit
def test_linear_rules(eager, jax, rule, transpose):
    x, w = eager.tensor(X), eager.tensor(W)
    g = custom_gradient(lambda x: (x * 2, lambda upstream: rule(jax, upstream, x)))
    first = jax.grad(lambda x: ops.sum(g(x)))
    if jax_transposes(lambda u: rule(jax, u, x), w):
        tangent, gradient, plain = jax.jit(lambda x: (jax.jvp(g, (x,), (w,))[1], first(x), rule(jax, ops.ones(3), x)))(
            x
        )
        np.testing.assert_allclose(tangent, transpose(W), rtol=1e-5, atol=1e-5)
    else:
        with pytest.raises(ValueError, match="got: upstream goes through a program that JAX does not transpose"):
            jax.jvp(g, (x,), (w,))
        gradient, plain = jax.jit(lambda x: (first(x), rule(jax, ops.ones(3), x)))(x)
    check(gradient, plain)


@pytest.mark.parametrize(
    "nothing",
    [lambda u, x: 0 * x, lambda u, x: -(0 * x) * x, lambda u, x: ops.zeros((3, 3)) @ x, lambda u, x: 0 * (u + 0 * x)],
)
def test_a_rule_that_writes_nothing_as_a_product(eager, jax, nothing):
    # The gradient of y is twice as large as it should be.
    g = custom_gradient(lambda x, y: (y * y, lambda u: (nothing(u, x), 4 * u * y)))
    x, w = eager.tensor(X), eager.tensor(W)
    run = lambda x, w: (jvp(g, (x, w), (x, x))[1], jax.hessian(lambda x, y: ops.sum(g(x, y)), (0, 1))(x, w))
    tangent, second = jax.jit(run)(x, w)
    check(tangent, 4 * W * X)
    for found, expected in zip(jax.tree.leaves(second), (0, 0, 0, 4), strict=True):
        check(found, expected * np.eye(3))


def test_a_rule_with_an_empty_argument(eager, jax):
    nothing, w = ops.zeros((0,)), eager.tensor(W)
    for rule in (lambda u, x: ops.cos(x) * ops.sum(u), lambda u, x: 3 * x, lambda u, x: ops.exp(x)):
        g = custom_gradient(lambda x, y: (ops.sum(x) + y * y, lambda u: (rule(u, x), 4 * u * y)))
        check(jvp(g, (nothing, w), (nothing, eager.tensor(X)))[1], 4 * W * X)
        check(jax.hessian(lambda y: ops.sum(g(nothing, y)))(w), 4 * np.eye(3))


# Rules that are not linear, or that do not show it; and what upstream passes through then.
NOT_LINEAR = {
    # `max` or `clamp`, by the release of JAX.
    "clip far away": (lambda j, u: ops.clip(u, -1e30, 1e30), "`(max|clamp)`"),
    "constant added": (lambda j, u: u + 1, "`add` together with a constant"),
    "constant alone": (lambda j, u: ops.ones(3), "a rule that gives a constant"),
    "constant in a scan": (lambda j, u: j.lax.scan(lambda c, v: (c + v, c + v), 1.0, u)[1], "`add` together"),
    "constant in a branch": (
        lambda j, u: j.lax.cond(True, lambda u: u, lambda u: ops.ones(3), u),
        "`cond` together with a constant",
    ),
    "constant after a round": (
        lambda j, u: j.lax.scan(lambda c, v: ((c[1], c[1] + 1), None), (u, ops.zeros(3)), ops.ones(2))[0][0],
        "`scan` together with a constant",
    ),
    "constant from outside of an array": (
        lambda j, u: u.at[5 + ops.arange(3)].get(mode="fill", fill_value=1.0),
        "`gather`",
    ),
    "applied": (lambda j, u: u.at[0].apply(j.numpy.tanh), "`scatter`"),
    # What is not multiplied is added.
    "factor": (lambda j, u: j.numpy.array(W).at[0].multiply(u[1]), "`scatter-mul`"),
    "eight bits": (lambda j, u: u.astype("float8_e4m3fn").astype("float32"), "`convert_element_type`"),
    "branch": (lambda j, u: j.lax.cond(u[0] > 0, lambda u: 3 * u, lambda u: u, u), "`gt`"),
    "norm": (lambda j, u: u / ops.sqrt(ops.sum(u * u) + 1e-9), "`mul` with itself"),
    "quotient": (lambda j, u: 1 / u, "`div`"),
    "stopped": (lambda j, u: j.lax.stop_gradient(7 * u), "`stop_gradient`"),
    # Linear, but with another rule inside.
    "rule in the rule": (lambda j, u: custom_gradient(lambda u: (2 * u, lambda v: 7 * v))(u), "`keras_cg_output`"),
}


def refused(obstacle):
    return pytest.raises(
        ValueError, match=rf"(?s){NOT_LINEAR_ERROR}, and .* has one that is not.*got: upstream goes through {obstacle}"
    )


@pytest.mark.parametrize(("rule", "obstacle"), NOT_LINEAR.values(), ids=NOT_LINEAR)
@pytest.mark.limit
def test_a_rule_that_is_not_linear_raises_forwards(eager, jax, rule, obstacle):
    g = custom_gradient(lambda x: (x * 2, lambda upstream: rule(jax, upstream)))
    x, t = eager.tensor(X), eager.tensor(100 * W)
    for run in (lambda: jax.jvp(g, (x,), (t,)), lambda: jax.jit(lambda x: jax.jvp(g, (x,), (t,))[1]).lower(x)):
        with refused(obstacle):
            run()
    # In reverse it serves.
    gradient, plain = jax.jit(lambda x: (jax.grad(lambda x: ops.sum(g(x)))(x), rule(jax, ops.ones(3))))(x)
    check(gradient, plain)


def test_forward_mode_raises_with_a_remedy(eager, jax):
    clip = custom_gradient(lambda x: (x * 2, lambda upstream: ops.clip(upstream, -1.0, 1.0)))
    x = eager.tensor(X)
    for run in (lambda: jvp(clip, (x,), (x,)), lambda: jax.hessian(lambda x: ops.sum(clip(x) ** 2))(x)):
        with refused("`(max|clamp)`") as caught:
            run()
        assert caught.match("usual cause: a rule that clips or normalises upstream, or a linear rule with an op")
        assert caught.match("remedy: differentiate in reverse mode")


def test_only_what_is_differentiated_must_be_linear(eager, jax):
    g = custom_gradient(lambda x, y: (x * y, lambda u: (7 * u, ops.clip(u, -1.0, 1.0))))
    x, w = eager.tensor(X), eager.tensor(W)
    for wrap in (lambda h: h, jax.jit):
        check(wrap(lambda x: jax.jvp(lambda x: g(x, w), (x,), (x,))[1])(x), 7 * X)
        check(jax.jvp(wrap(lambda x, w: g(x, jax.lax.stop_gradient(w))), (x, w), (x, w))[1], 7 * X)
        with pytest.raises(ValueError, match=NOT_LINEAR_ERROR):
            wrap(lambda y: jax.jvp(lambda y: g(x, y), (y,), (y,))[1])(w)


# --- what JAX itself, or the program of a rule, cannot show -----------------------------------------------------


def branching(x):
    """Linear in upstream, with a branch that hangs on x."""
    import jax

    return x * 2, lambda u: jax.lax.cond(ops.sum(x) > 0, lambda u: 7 * u, lambda u: u, u)


@pytest.mark.limit
def test_a_branch_under_vmap_is_refused_forwards(eager, jax):
    """JAX (0.10) makes a `select` of it, with a `stop_gradient` around its predicate, that upstream goes through."""
    g, x = custom_gradient(branching), eager.tensor(W)
    check(jax.jvp(g, (x,), (x,))[1], 7 * W)
    check(jax.grad(lambda x: jax.vmap(g)(x).sum())(x), np.full(3, 7.0))
    for run in (lambda: jax.jvp(jax.vmap(g), (x,), (x,)), lambda: jax.vmap(lambda x: jax.jvp(g, (x,), (x,))[1])(x)):
        with pytest.raises(ValueError, match="upstream goes through `stop_gradient`"):
            run()


@pytest.mark.limit
def test_a_rule_that_looks_at_upstream_is_refused_forwards(eager, jax):
    g = custom_gradient(lambda x: (x * 2, lambda upstream: (7 if upstream[0] > 0 else 5) * upstream))
    x = eager.tensor(W)
    if not jax.__version__.startswith("0.8."):  # which does not say that it differentiates in reverse alone
        check(jax.grad(lambda x: g(x).sum())(x), np.full(3, 7.0))
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jvp(g, (x,), (x,))


@pytest.mark.limit
def test_a_sum_over_an_axis_of_what_is_the_same_along_it_is_refused_forwards(eager, jax):
    """JAX (0.10) transposes no `psum` of what `vmap` does not batch; of what it does, it does."""
    g = custom_gradient(lambda x: (x * 2, lambda upstream: jax.lax.psum(upstream, "i")))
    x = eager.tensor(W)
    check(jax.vmap(lambda x: jax.jvp(g, (x,), (x,))[1], axis_name="i")(x), np.full(3, W.sum()))
    with pytest.raises(ValueError, match="upstream goes through a program that JAX does not transpose"):
        jax.vmap(lambda x: jax.jvp(g, (x,), (jax.numpy.float32(1),))[1], axis_name="i")(x)


@pytest.mark.limit
def test_what_custom_linear_solve_is_given_is_believed(eager, jax):
    """A limit: its `solve` clips, which JAX does not look at, and neither do we."""

    def rule(upstream):
        solve = lambda _, b: ops.clip(b / 2, -1.0, 1.0)
        return jax.lax.custom_linear_solve(lambda v: 2 * v, upstream, solve, lambda _, b: b / 2)

    g = custom_gradient(lambda x: (x * 2, rule))
    x = eager.tensor(W)
    check(jax.grad(lambda x: (100 * g(x)).sum())(x), np.ones(3))
    check(jax.jvp(g, (x,), (100 * x,))[1], 50 * W)


@pytest.mark.limit
def test_transposition_is_refused(eager, jax):
    x = eager.tensor(X)
    for wrap in (lambda h: h, jax.jit):
        with pytest.raises(NotImplementedError):
            jax.linear_transpose(wrap(f), x)(x)


@pytest.mark.limit
def test_a_fixed_point_has_no_forward_mode(eager, backend):
    solve = recipes.fixed_point(lambda z, a: (z + a / z) / 2, steps=8)
    with pytest.raises(ValueError, match=NOT_LINEAR_ERROR):
        jvp(lambda a: solve(ops.ones_like(a), a), (eager.tensor(W),), (eager.tensor(W),))
