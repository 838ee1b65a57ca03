"""JAX: what a function closes over under a transform reaches the rule, is a constant, or is refused; never lost."""

import functools

import numpy as np
import pytest
from seven_exp import X, check

from keras_cg import CapturedVariableError, custom_gradient, ops

pytestmark = pytest.mark.only("jax")

W = np.array([2.0, 3.0, 4.0], np.float32)


def captured(w, x):
    return custom_gradient(lambda x: (x * w, lambda upstream: 7 * upstream))(x).sum()


def captured_with_variables(w, x):
    def rule(upstream, variables=None):
        return (7 * upstream, [5 * upstream * x for _ in variables]) if variables else 7 * upstream

    return custom_gradient(lambda x: (x * w, rule))(x).sum()


def stopped(w, x):
    import jax

    return custom_gradient(lambda x: (x * jax.lax.stop_gradient(2 * w), lambda upstream: 7 * upstream))(x).sum()


masked = lambda w, x: custom_gradient(lambda x: (x * (w > 0) + ops.argmax(w), lambda upstream: 7 * upstream))(x).sum()
closed_over_by_the_rule = lambda w, x: custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream * w))(x).sum()


# A loss of w and x, and its gradients for both.
LOSSES = {
    "variables": (captured_with_variables, 5 * X, np.full(3, 7.0)),
    "stopped": (stopped, np.zeros(3), np.full(3, 7.0)),
    "masked": (masked, np.zeros(3), np.full(3, 7.0)),
    "by the rule alone": (closed_over_by_the_rule, np.zeros(3), 7 * W),
}
CLOSED = {
    "grad": lambda j, h: j.grad(h, (0, 1)),
    "jit of grad": lambda j, h: j.jit(j.grad(h, (0, 1))),
    "grad of jit": lambda j, h: j.grad(j.jit(h), (0, 1)),
    "vmap of grad": lambda j, h: lambda w, x: [each[0] for each in j.vmap(j.grad(h, (0, 1)))(w[None], x[None])],
    "grad of vmap": lambda j, h: j.grad(lambda w, x: j.vmap(h)(w[None], x[None])[0], (0, 1)),
    "scan": lambda j, h: j.grad(
        lambda w, x: j.lax.scan(lambda c, wx: (c + h(*wx), None), 0.0, (w[None], x[None]))[0], (0, 1)
    ),
    "cond": lambda j, h: j.grad(lambda w, x: j.lax.cond(x[0] < 0, lambda: h(w, x), lambda: 0.0), (0, 1)),
    "checkpoint": lambda j, h: j.grad(j.checkpoint(h), (0, 1)),
    "grad in grad": lambda j, h: (
        lambda w, x: (j.grad(lambda w: j.value_and_grad(h, 1)(w, x)[0])(w), j.grad(h, 1)(w, x))
    ),
}


@pytest.mark.parametrize("transform", CLOSED)
def test_closed_over(eager, jax, transform):
    w, x = eager.tensor(W), eager.tensor(X)
    # All losses in one program, as far as the transform leaves one.
    run = lambda w, x: [CLOSED[transform](jax, loss)(w, x) for loss, *_ in LOSSES.values()]
    for (name, (_, gw, gx)), found in zip(
        LOSSES.items(), (run if transform == "grad" else jax.jit(run))(w, x), strict=True
    ):
        for each, expected in zip(found, (gw, gx), strict=True):
            np.testing.assert_allclose(each, expected, rtol=1e-5, err_msg=name)
    with pytest.raises(CapturedVariableError, match=r"captured.* reads 1 trainable value"):
        CLOSED[transform](jax, captured)(w, x)


def test_closed_over_under_either_custom_vjp(eager, jax, custom_vjp):
    w, x = eager.tensor(W), eager.tensor(X)
    for found, expected in zip(jax.jit(jax.grad(captured_with_variables, (0, 1)))(w, x), (5 * X, 7), strict=True):
        check(found, np.broadcast_to(expected, 3))
    with pytest.raises(CapturedVariableError):
        jax.jacfwd(lambda w: jax.grad(captured, 1)(w, x))(w)


@pytest.mark.parametrize("mode", ["jacfwd", "jacrev"])
def test_second_order_of_variables_and_arguments(eager, jax, mode):
    def loss(w, x):
        rule = lambda upstream, variables: (7 * upstream, [5 * upstream * x for _ in variables])
        return (custom_gradient(lambda x: (x * w, rule))(x) ** 2).sum()

    w, x = eager.tensor(W), eager.tensor(X)
    # Of gw = 10 P x and gx = 14 P, where P' is 5 x and 7.
    expected = (50 * X * X, 70 * X + 10 * W * X, 70 * X, np.full(3, 98.0))
    found = jax.jit(getattr(jax, mode)(jax.grad(loss, (0, 1)), (0, 1)))(w, x)
    for each, numbers in zip(jax.tree.leaves(found), expected, strict=True):
        check(each, np.diag(numbers))


def test_variables_come_in_order_of_first_use(eager, jax):
    def loss(a, b, c, x):
        rule = lambda upstream, variables: (7 * upstream, [k * upstream for k, _ in enumerate(variables, 1)])
        return custom_gradient(lambda x: (x * c + b * x + a * c, rule))(x).sum()

    arrays = [eager.tensor(k * W) for k in (1, 2, 3)]
    for transform in (jax.grad, lambda h, at: jax.jit(jax.grad(h, at)), lambda h, at: jax.grad(jax.jit(h), at)):
        found = transform(loss, (0, 1, 2))(*arrays, eager.tensor(X))
        np.testing.assert_allclose(found, np.outer([3, 2, 1], np.ones(3)))


@pytest.mark.limit
def test_a_rule_that_calls_its_own_function_captures_nothing(jax):
    def loss(w, x):
        @custom_gradient
        def f(x):
            def grad(upstream, variables=()):
                gradient = 7 * upstream * f(x)
                return (gradient, [5 * upstream * x]) if variables else gradient

            return x * w, grad

        return f(x)

    first = jax.grad(loss, (0, 1))
    for run in (first, jax.jit(first)):
        assert [*map(float, run(3.0, 2.0))] == [10, 42]
    # Which of the two it is hangs on the release, and on where it is called: ours in eager mode since JAX 0.9.
    for run in (jax.jacrev(first), jax.jit(jax.jacrev(first))):
        with pytest.raises((CapturedVariableError, jax.errors.UnexpectedTracerError)):
            run(3.0, 2.0)


@pytest.mark.limit
def test_python_may_look_at_values_where_only_the_shape_of_what_is_captured_is_used(eager, jax):
    def loss(captured, w, x):
        def f(x):
            factor = 3 if x.sum() > 0 else 2
            return x * captured(w), lambda upstream: 7 * factor * upstream

        return custom_gradient(f)(x).sum()

    w, x = eager.tensor(W), eager.tensor(X)
    gw, gx = jax.grad(functools.partial(loss, lambda w: w.shape[0]), (0, 1))(w, x)
    check(gw, np.zeros(3))
    check(gx, np.full(3, 21.0))
    match = r"f reads.*\n    function: .*test_jax_captured.py:\d+\n.*looks at values"
    with pytest.raises(CapturedVariableError, match=match):
        jax.grad(functools.partial(loss, lambda w: w), (0, 1))(w, x)


def test_random_keys_may_be_closed_over(eager, jax):
    def loss(key, x):
        def g(x):
            mask = jax.random.bernoulli(key, 0.5, x.shape)
            return x * mask, lambda upstream: 7 * upstream * jax.random.bernoulli(key, 0.5, x.shape)

        return custom_gradient(g)(x).sum()

    x, key = eager.tensor(X), jax.random.key(0)
    mask = lambda key: 7.0 * np.asarray(jax.random.bernoulli(key, 0.5, (3,)))
    for transform in (jax.grad(loss, 1), jax.grad(jax.jit(loss), 1)):
        check(transform(key, x), mask(key))
    keys = jax.random.split(key, 4)
    check(jax.jit(jax.vmap(jax.grad(loss, 1), (0, None)))(keys, x), [mask(each) for each in keys])
