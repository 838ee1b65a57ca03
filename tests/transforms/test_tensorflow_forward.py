"""TensorFlow's forward accumulators: the transpose of a linear rule, and an error, or NaN in a graph, for any other."""

import functools

import numpy as np
import pytest
from seven_exp import E as EXP
from seven_exp import X, f
from seven_exp import check as close
from tapes import ONES, forward, gradients, within

import keras_cg
from keras_cg import custom_gradient, ops, recipes

pytestmark = pytest.mark.only("tensorflow")


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("transform", ["forward over forward", "reverse over forward", "forward over reverse twice"])
def test_forward_mode_nests(eager, backend, transform, mode):
    def run(x):
        if transform == "forward over forward":
            return forward(lambda x: forward(f, x), x)
        if transform == "reverse over forward":
            return gradients(lambda x: forward(f, x), x)[0]
        return forward(lambda x: gradients(lambda x: gradients(f, x)[0], x)[0], x)

    close(within(mode)(run)(eager.tensor(X)), 7 * EXP)


def stop_gradient(x):
    import tensorflow as tf

    return tf.stop_gradient(x)


NONLINEAR = {
    "clip": lambda u: ops.clip(u, -1.0, 1.0),
    "clip beside infinity": lambda u: ops.clip(u, -1.0, 1.0) / np.array([0.0, 1.0, 1.0], np.float32),
    # What TensorFlow transposes is the derivative of a rule, which is not the rule itself here.
    "stopped": lambda u: 7 * u + stop_gradient(u),
    "another derivative": lambda u: custom_gradient(lambda u: (3 * u, lambda w: 11 * w))(u),
}


@pytest.mark.parametrize("rule", NONLINEAR)
@pytest.mark.limit
def test_forward_mode_of_a_rule_that_is_not_linear(eager, tf, rule):
    g = custom_gradient(lambda x: (x * 2, NONLINEAR[rule]))
    x = eager.tensor(X)
    upstream = eager.tensor(3 * X)
    expected = NONLINEAR[rule](upstream)
    for wrap in (lambda g: g, tf.function, tf.function(jit_compile=True)):
        close(gradients(wrap(lambda x: g(x) * upstream), x)[0], expected)
    with pytest.raises(ValueError, match="forward mode needs a rule that is linear in upstream"):
        forward(g, x)
    with pytest.raises(ValueError, match="forward mode needs a rule that is linear in upstream"):
        forward(lambda x: gradients(g, x)[0], x)
    # In a graph no value can be looked at, so that it cannot be an error. A gradient is right there as ever.
    for compiled in (False, True):
        close(tf.function(lambda x: forward(g, x), jit_compile=compiled)(x), np.full(3, np.nan))
        found = tf.function(lambda x: gradients(lambda x: g(x) * upstream, x)[0], jit_compile=compiled)(x)
        close(found, expected)


@pytest.mark.parametrize("mode", ["eager", "function", pytest.param("xla", marks=pytest.mark.thorough)])
def test_forward_mode_of_a_custom_gradient_of_upstream_in_a_rule(eager, backend, mode):
    # What an accumulator transposes hangs on upstream by the rule of `tripled` alone.
    tripled = custom_gradient(lambda u: (3 * stop_gradient(u), lambda w: 3 * w))
    g = custom_gradient(lambda x: (x * 2, tripled))
    x = eager.tensor(X)
    close(within(mode)(functools.partial(forward, g))(x), np.full(3, 3.0))
    close(forward(within(mode)(lambda x: g(x)), x), np.full(3, 3.0))


@pytest.mark.parametrize("inside", [False, True], ids=["eager", "function"])
@pytest.mark.limit
def test_a_rule_that_differentiates_where_tapes_do_not_record(eager, tf, inside):
    rule = lambda x: (x * 2, lambda upstream: upstream * keras_cg.grad(lambda z: 7 * ops.exp(z))(x))
    x, g = eager.tensor(X), custom_gradient(rule)
    # TensorFlow's tapes record nothing in what an accumulator transposes: with its own decorator, too.
    for function in (g, recipes.recompute(lambda x: x**3)):
        run = functools.partial(forward, function)
        with pytest.raises(Exception, match=r"tapes record nothing here(.|\n)*remedy: use keras_cg\.jvp"):
            (tf.function(run) if inside else run)(x)
    close(keras_cg.jvp(g, (x,), (ONES,))[1], 7 * EXP)
    close(forward(tf.function(lambda x: g(x)), x), 7 * EXP)
    close(gradients(g, x)[0], 7 * EXP)


def test_forward_mode_by_a_captured_variable(eager, tf):
    x, v, one = eager.tensor(X), tf.Variable(2 * X), tf.constant(ONES)
    f = custom_gradient(lambda x: (x * v, lambda u, variables: (7 * u, [11 * u])))
    for wrap in (lambda f: f, tf.function):
        with tf.autodiff.ForwardAccumulator([x, v], [one, one]) as accumulator:
            y = wrap(lambda x: f(x))(x)
        close(accumulator.jvp(y), 18 * ONES)


# --- what TensorFlow itself cannot do --------------------------------------------------------------------------------


@pytest.mark.limit
def test_forward_mode_around_a_function_of_a_rule_that_is_not_linear_is_a_limit(eager, tf):
    # TensorFlow transposes the function's own gradient at an upstream of ones: nothing of ours is called.
    g = tf.function(lambda x: custom_gradient(lambda x: (x * 2, lambda u: u * u))(x))
    close(forward(g, eager.tensor(X)), np.full(3, 2.0))


@pytest.mark.thorough
@pytest.mark.limit
def test_an_accumulator_around_a_function_that_is_differentiated_once_more(eager, tf):
    """A limit of TensorFlow (2.21): so it is for a function of plain operations."""
    x = eager.tensor(X)
    for function in (f, tf.exp):
        traced = within("function")(lambda x: function(x))
        with pytest.raises(tf.errors.InternalError, match="returned too few gradients"):
            gradients(lambda x: forward(traced, x), x)
        inside = tf.function(lambda x: gradients(lambda x: forward(traced, x), x)[0])
        assert inside(x) is None
    close(gradients(lambda x: forward(f, x), x)[0], 7 * EXP)


@pytest.mark.thorough
@pytest.mark.limit
def test_an_accumulator_of_what_an_inner_function_captures(eager, tf):
    """A limit of TensorFlow (2.21): so it is for a function of plain operations."""
    variable, x = tf.Variable(2 * X), eager.tensor(X)
    served = custom_gradient(lambda x: (x * variable, lambda u, variables: (7 * u, [11 * u])))
    for function, expected in ((served, 11 * ONES), (lambda x: x * variable, X)):
        traced = within("function")(lambda x: function(x))

        def run(traced=traced):
            with tf.autodiff.ForwardAccumulator(variable, tf.constant(ONES)) as accumulator:
                y = traced(x)
            return accumulator.jvp(y)

        close(run(), expected)
        assert tf.function(run)() is None
