"""TensorFlow: in a training step that is compiled, the gradients have the values from before the step."""

import math

import numpy as np
import pytest
from late import read_late

from keras_cg import custom_gradient, recipes

pytestmark = pytest.mark.only("tensorflow")


def two(a, b, c):
    """Two outputs, of which the gradient of each argument needs the other arguments, and one upstream."""
    return (a * b, c * 1), lambda ab, c_: (7 * ab * b, 7 * ab * a, 7 * c_)


def one(a, b, c):
    return a * c, lambda ac: (ac * b, 7 * ac * a, 7 * ac * a)


def step(function, patience, nested):
    """What a step of gradient descent on the product of the outputs makes of three variables, 2, 3 and 5.

    The second of them is read late. The step does not return the loss, for then Grappler would keep the order.
    """
    import tensorflow as tf

    a, b, c = variables = [tf.Variable(value) for value in (2.0, 3.0, 5.0)]

    def train():
        with tf.GradientTape() as tape:
            read = [a.read_value(), read_late(b, 3, patience), c.read_value()]
            tape.watch(read)
            loss = math.prod(function(*read))
        for variable, gradient in zip(variables, tape.gradient(loss, read), strict=True):
            variable.assign_sub(gradient)
        return tf.constant(1.0)

    run = tf.function(train, autograph=False)
    (tf.function(lambda: run(), autograph=False) if nested else run)()
    return [float(variable.numpy()) for variable in variables]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", ["one", "two", "recompute"])
def test_a_variable_is_assigned_after_it_was_read(backend, name, nested):
    functions = {
        "one": (lambda a, b, c: [custom_gradient(one)(a, b, c)], [-1, -11, -9]),
        "two": (custom_gradient(two), [2 - 7 * 5 * 3, 3 - 7 * 5 * 2, 5 - 7 * 6]),
        "recompute": (recipes.recompute(lambda a, b, c: (a * b, c * 1)), [2 - 15, 3 - 10, 5 - 6]),
    }
    function, expected = functions[name]
    assert step(function, 0.3, nested) == expected


@pytest.mark.parametrize("nested", [False, True])
def test_tf_custom_gradient_forgets_the_order(backend, nested):
    """As ours would if the outputs came from one operation: what is read late has been assigned already."""
    import tensorflow as tf

    b = 3 - 7 * 5 * 2
    assert step(tf.custom_gradient(two), 30, nested) == [2 - 7 * 5 * b, b, 5 - 7 * 2 * b]


@pytest.mark.parametrize("optimised", [True, False])
@pytest.mark.limit
def test_grappler_forgets_the_order_where_one_operation_has_two_outputs(backend, optimised):
    """A limit, with nothing around it, and what helps."""
    import tensorflow as tf

    a, b = tf.Variable(2.0), tf.Variable(3.0)

    @tf.function(autograph=False)
    def train():
        first, second = tf.identity_n([7 * read_late(b, 3, 30 if optimised else 0.3), 5 * a])
        a.assign_sub(first)
        b.assign_sub(second)
        return first

    tf.config.optimizer.set_experimental_options({"dependency_optimization": optimised})
    try:
        train()
    finally:
        tf.config.optimizer.set_experimental_options({"dependency_optimization": True})
    read = 3 - 10 if optimised else 3
    np.testing.assert_array_equal([a.numpy(), b.numpy()], [2 - 7 * read, 3 - 10])
