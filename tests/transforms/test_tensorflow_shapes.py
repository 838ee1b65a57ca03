"""Shapes that TensorFlow does not know before a program runs: the gradient's is compared then."""

import re

import numpy as np
import pytest
from tapes import gradients

from keras_cg import custom_gradient

pytestmark = pytest.mark.only("tensorflow")

MESSAGE = "the rule of {} returned a gradient of the wrong shape for its tensor argument {}. rule: {}:{}"


def square(x):
    return x * x, lambda upstream: 7 * upstream * x


def graphs(tf, function, *shapes):
    """The function as a graph that knows these shapes, which also XLA compiles."""
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    return [tf.function(function, input_signature=specs, jit_compile=jit) for jit in (False, True)]


def check(tf, function, shapes, inputs, expected):
    """That each gradient, or the only one, has the expected value everywhere."""
    for graph in graphs(tf, function, *shapes):
        found = graph(*inputs)
        for each, value in zip(found if isinstance(found, (list, tuple)) else [found], expected, strict=True):
            np.testing.assert_allclose(each, np.broadcast_to(value, each.shape))


def check_refused(tf, function, shapes, inputs, culprit, place):
    """That our message comes, with the place of the rule; XLA has it as the name of an operation."""
    told = MESSAGE.format(culprit.__qualname__, place, __file__, culprit.__wrapped__.__code__.co_firstlineno)
    for graph in graphs(tf, function, *shapes):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            graph(*inputs)
        assert re.sub("[^A-Za-z0-9]+", "_", told) in re.sub("[^A-Za-z0-9]+", "_", str(caught.value))


# The rule forgets the sum over the batch.
affine = custom_gradient(lambda x, b: (x + b, lambda upstream: (7 * upstream, 7 * upstream)))


@pytest.mark.parametrize("loss", ["constant upstream", "other upstream"])
def test_a_missing_sum_over_an_unknown_batch(tf, loss):
    def slope(x, v):
        def total(v):
            # Its gradient reshapes what it gets, from which Grappler infers the shape.
            y = affine(x, tf.reduce_mean(v, 0, keepdims=True))
            return tf.reduce_sum(y if loss == "constant upstream" else y * y)

        return gradients(total, v)[0]

    shapes, v = ([None, 3], [1, 3]), tf.ones((1, 3))
    check(tf, slope, shapes, (tf.ones((1, 3)), v), [7 if loss == "constant upstream" else 28])
    check_refused(tf, slope, shapes, (tf.ones((2, 3)), v), affine, 2)


def test_two_unknown_axes_of_one_size(tf):
    """Shapes (2, 3) and (3, 2) have as many elements."""

    f = custom_gradient(lambda x: (2 * x, lambda upstream: tf.transpose(7 * upstream)))
    slope = lambda x: gradients(lambda x: tf.reduce_sum(f(x)), x)[0]
    check(tf, slope, ([None, None],), (tf.ones((2, 2)),), [7])
    check_refused(tf, slope, ([None, None],), (tf.ones((2, 3)),), f, 1)


# dx = 7 u x; db is the sum of 7 u over the batch.
@custom_gradient
def both(x, b):
    return x * x + b, lambda upstream: (7 * upstream * x, total_of_batch(7 * upstream))


def total_of_batch(values):
    import tensorflow as tf

    return tf.reduce_sum(values, 0, keepdims=True)


WITHIN = {
    "tape": lambda tf, x, b: both(x, b),
    "map_fn": lambda tf, x, b: tf.map_fn(lambda row: both(row[None, :], b)[0], x),
    "cond": lambda tf, x, b: tf.cond(tf.reduce_sum(x) > 0, lambda: both(x * 1, b), lambda: x),
    "function": lambda tf, x, b: tf.function(both)(x, b),
    "while_loop": lambda tf, x, b: tf.while_loop(
        lambda i, y: i < 2, lambda i, y: (i + 1, both(y, b)), (0, x), maximum_iterations=2
    )[1],
}


@pytest.mark.parametrize("how", [*WITHIN, "unknown rank", "tf.gradients"])
def test_right_rules_serve(tf, how):
    total = lambda x, b: WITHIN.get(how, WITHIN["tape"])(tf, x, b)
    slope = lambda x, b: tf.gradients(total(x, b), [x, b]) if how == "tf.gradients" else gradients(total, x, b)
    # With two turns, f(f(x)) at x = 2, b = 1: the first gives 5, the slopes are 7·5 and 7·2, and b counts in both.
    expected = (490, 2 * 7 + 2 * 7 * 35) if how == "while_loop" else (14, 14)
    shapes = None if how == "unknown rank" else [None, 3], [1, 3]
    check(tf, slope, shapes, (2 * tf.ones((2, 3)), tf.ones((1, 3))), expected)


def test_a_mask(tf):
    """XLA knows only how many elements it leaves at most."""
    f = custom_gradient(square)
    slope = lambda x: gradients(lambda x: f(tf.boolean_mask(x, x > 0)), x)[0]
    check(tf, slope, ([3],), (tf.constant([1.0, -1.0, 2.0]),), [[7, 0, 14]])


def test_a_captured_variable(tf):
    w, x = tf.Variable(tf.ones((1, 3))), tf.ones((2, 3))

    def slope(rule):
        f = custom_gradient(lambda x: (w * x, lambda u, variables: (7 * u * w, [rule(7 * u * x)])))

        return lambda x: gradients(lambda _: tf.reduce_sum(f(x)), w)[0], f

    check(tf, slope(total_of_batch)[0], ([None, 3],), (x,), [14])
    wrong, culprit = slope(lambda gradient: gradient)
    check_refused(tf, wrong, ([None, 3],), (x,), culprit, 2)


def test_a_known_shape_costs_nothing(tf):
    f = custom_gradient(square)
    known, unknown = (
        {
            each.type
            for each in tf.function(lambda x: gradients(f, x)).get_concrete_function(spec).graph.get_operations()
        }
        for spec in (tf.TensorSpec([2, 3]), tf.TensorSpec([None, 3]))
    )
    assert "Assert" in unknown and not {"Assert", "Select", "Shape"} & known
