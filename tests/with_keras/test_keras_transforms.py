"""Keras's variables in functions that JAX's own transforms differentiate, whichever way round."""

import keras
import numpy as np
import pytest

from keras_cg import CapturedVariableError, custom_gradient

X = np.array([1.0, 2.0], np.float32)


@pytest.fixture(params=["grad", "jit(grad)", "grad(jit)"])
def transform(request):
    import jax

    return {
        "grad": jax.grad,
        "jit(grad)": lambda h, at: jax.jit(jax.grad(h, at)),
        "grad(jit)": lambda h, at: jax.grad(jax.jit(h), at),
    }[request.param]


def stateless(rule):
    """A loss, by a function with this rule, of the values of a variable and of `x`; and those of the variable."""
    variable, frozen = keras.Variable([3.0, 4.0]), keras.Variable([5.0, 6.0], trainable=False)
    function = custom_gradient(lambda x: (x * variable * frozen, rule))

    def loss(value, x):
        with keras.StatelessScope(state_mapping=[(variable, value)]):
            return function(x).sum()

    return loss, variable.value


@pytest.mark.only("jax")
def test_a_captured_variable_that_the_rule_serves(backend, transform):
    loss, value = stateless(lambda upstream, variables=None: (7 * upstream, [5 * upstream * X for _ in variables]))
    of_variable, of_x = transform(loss, (0, 1))(value, X)
    np.testing.assert_allclose(of_variable, 5 * X)
    np.testing.assert_allclose(of_x, [7.0, 7.0])


@pytest.mark.only("jax")
def test_a_captured_variable_that_it_does_not_serve(backend, transform):
    loss, value = stateless(lambda upstream: 7 * upstream)
    with pytest.raises(CapturedVariableError, match="reads 1 trainable value"):
        transform(loss, 0)(value, X)
    np.testing.assert_allclose(transform(loss, 1)(value, X), [7.0, 7.0])
