"""What a function or its rule closes over is differentiated by an outer transform, to which the rule gives a gradient
or which is refused.
"""

import numpy as np
import pytest

from keras_cg import CapturedVariableError, custom_gradient, ops

X = np.array([2.0, 3.0], np.float32)
K = np.array([5.0, 7.0], np.float32)


def refused(k):
    return custom_gradient(lambda x: (x * k, lambda upstream: 7 * upstream))


def served(k):
    def rule(upstream, variables=None):
        return (7 * upstream, [11 * upstream]) if variables else 7 * upstream

    return custom_gradient(lambda x: (x * k, rule))


@pytest.mark.only("numpy")
def test_what_the_rule_alone_closes_over_is_differentiated(backend):
    import autograd

    def f(w):
        return ops.sum(custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream * w))(w))

    found = autograd.grad(f)(X)
    assert type(found) is np.ndarray
    np.testing.assert_allclose(found, 7 * X)
    np.testing.assert_allclose(autograd.grad(lambda w: ops.sum(autograd.grad(f)(w)))(X), np.full(2, 7.0))


@pytest.mark.only("jax")
@pytest.mark.parametrize("outer", ["grad", "jit of grad", "grad of jit"])
def test_jax_differentiates_what_an_inner_transform_closes_over(backend, outer):
    import jax
    import jax.numpy as jnp

    outer = {
        "grad": jax.grad,
        "jit of grad": lambda f: jax.jit(jax.grad(f)),
        "grad of jit": lambda f: jax.grad(jax.jit(f)),
    }[outer]
    x, k = jnp.array(X), jnp.array(K)
    for inner, expected in (
        (lambda f: jax.value_and_grad(lambda x: f(x).sum())(x)[0], 11),
        (lambda f: jax.vjp(lambda x: f(x), x)[0].sum(), 11),
        (lambda f: jax.grad(lambda x: (f(x) ** 2).sum())(x).sum(), 154),
    ):
        np.testing.assert_allclose(outer(lambda k: inner(served(k)))(k), np.full(2, expected))
        with pytest.raises(CapturedVariableError):
            outer(lambda k: inner(refused(k)))(k)
    first, second = outer(lambda p: served(p[1])(served(p[0])(x)).sum())([k, k])
    np.testing.assert_allclose(first, np.full(2, 77.0))
    np.testing.assert_allclose(second, np.full(2, 11.0))


@pytest.mark.only("tensorflow")
def test_forward_mode_of_tensorflow(eager, backend):
    import tensorflow as tf

    x, v, one = eager.tensor(X), tf.Variable(K), tf.ones(2)
    f = served(v)
    for wrap in (lambda f: f, tf.function):
        with tf.autodiff.ForwardAccumulator(v, one) as accumulator:
            y = wrap(lambda x: f(x))(x)
        np.testing.assert_allclose(accumulator.jvp(y), np.full(2, 11.0))
        with tf.autodiff.ForwardAccumulator([x, v], [one, one]) as accumulator:
            y = wrap(lambda x: f(x))(x)
        np.testing.assert_allclose(accumulator.jvp(y), np.full(2, 18.0))
    k = tf.constant(K)
    with pytest.raises(CapturedVariableError), tf.autodiff.ForwardAccumulator(k, one):
        refused(k)(x)


@pytest.mark.only("tensorflow")
def test_a_tensor_that_a_graph_computed_is_refused(eager, backend):
    import tensorflow as tf

    @tf.function
    def program(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = refused(x * 3)(x)
        return tape.gradient(y, x)

    with pytest.raises(CapturedVariableError):
        program(eager.tensor(X))
