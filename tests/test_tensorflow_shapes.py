"""Shapes that TensorFlow does not know before a program runs: the gradient's is compared then."""

import functools
import re

import numpy as np
import pytest

from keras_cg import GradientError, custom_gradient

pytestmark = pytest.mark.only("tensorflow")

MESSAGE = "the rule of {} returned a gradient of the wrong shape for its tensor argument {}"


def modes(tf, function, *shapes):
    """The function as a graph that knows these shapes, which also XLA compiles."""
    for jit in (False, True):
        specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
        yield jit, tf.function(function, input_signature=specs, jit_compile=jit)


def refused(call, name, place):
    """Whether the error has our message; XLA has it as the name of an operation."""
    import tensorflow as tf

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        call()
    message, text = (re.sub("[^A-Za-z0-9]+", "_", each) for each in (MESSAGE.format(name, place), str(caught.value)))
    return message in text


@custom_gradient
def affine(x, b):
    """The rule forgets the sum over the batch."""
    return x + b, lambda upstream: (7 * upstream, 7 * upstream)


@pytest.mark.parametrize("loss", ["constant upstream", "other upstream"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_missing_sum_over_an_unknown_batch(eager, backend, loss, batch):
    import tensorflow as tf

    def slope(x, v):
        with tf.GradientTape() as tape:
            tape.watch(v)
            # Its gradient reshapes what it gets, from which Grappler infers the shape.
            y = affine(x, tf.reduce_mean(v, 0, keepdims=True))
            total = tf.reduce_sum(y if loss == "constant upstream" else y * y)
        return tape.gradient(total, v)

    x, v = tf.ones((batch, 3)), tf.ones((1, 3))
    for _, graph in modes(tf, slope, [None, 3], [1, 3]):
        if batch == 1:
            np.testing.assert_allclose(graph(x, v), np.full((1, 3), 7 if loss == "constant upstream" else 28))
        else:
            assert refused(lambda: graph(x, v), "affine", 2)


def test_two_unknown_axes_of_one_size(eager, backend):
    """Shapes (2, 3) and (3, 2) have as many elements."""
    import tensorflow as tf

    @custom_gradient
    def f(x):
        return 2 * x, lambda upstream: tf.transpose(7 * upstream)

    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(f(x))
        return tape.gradient(y, x)

    for _, graph in modes(tf, slope, [None, None]):
        np.testing.assert_allclose(graph(tf.ones((2, 2))), np.full((2, 2), 7))
        assert refused(lambda: graph(tf.ones((2, 3))), "test_two_unknown_axes_of_one_size.<locals>.f", 1)


@pytest.mark.parametrize(
    "how", ["tape", "tf.gradients", "map_fn", "while_loop", "cond", "function", "unknown rank", "in a rule"]
)
def test_right_rules_serve(eager, backend, how):
    import tensorflow as tf

    # dx = 7 u x; db is the sum of 7 u over the batch.
    @custom_gradient
    def f(x, b):
        return x * x + b, lambda upstream: (7 * upstream * x, tf.reduce_sum(7 * upstream, 0, keepdims=True))

    @custom_gradient
    def g(x, b):
        def grad(upstream):
            with tf.GradientTape() as tape:
                tape.watch([x, b])
                y = tf.reduce_sum(f(x, b) * upstream)
            return tape.gradient(y, [x, b])

        return f(x, b), grad

    def total(x, b, function=f):
        if how == "while_loop":
            return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, f(y, b)), (0, x), maximum_iterations=2)[1]
        if how == "cond":
            return tf.cond(tf.reduce_sum(x) > 0, lambda: f(x * 1, b), lambda: x)
        if how == "function":
            return tf.function(f)(x, b)
        if how == "map_fn":
            return tf.map_fn(lambda row: f(row[None, :], b)[0], x)
        return function(x, b)

    def slope(x, b):
        if how == "tf.gradients":
            return tf.gradients(total(x, b), [x, b])
        with tf.GradientTape() as tape:
            tape.watch([x, b])
            y = total(x, b, g if how == "in a rule" else f)
        return tape.gradient(y, [x, b])

    x, b = 2 * tf.ones((2, 3)), tf.ones((1, 3))
    # With two turns, f(f(x)) at x = 2, b = 1: the first gives 5, the slopes are 7·5 and 7·2, and b counts in both.
    expected = (490, 2 * 7 + 2 * 7 * 35) if how == "while_loop" else (14, 14)
    for _, graph in modes(tf, slope, None if how == "unknown rank" else [None, 3], [1, 3]):
        for found, value in zip(graph(x, b), expected, strict=True):
            np.testing.assert_allclose(found, np.full_like(found, value))


def test_second_order(eager, backend):
    import tensorflow as tf

    f = custom_gradient(lambda x: (x * x, lambda upstream: 7 * upstream * x))

    def slope(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = f(x)
            slope = inner.gradient(y, x)
        return outer.gradient(slope, x)

    for _, graph in modes(tf, slope, [None, 3]):
        np.testing.assert_allclose(graph(tf.ones((2, 3))), np.full((2, 3), 7))


def test_forward_mode(eager, backend):
    import tensorflow as tf

    f = custom_gradient(lambda x: (x * x, lambda upstream: 7 * upstream * x))

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def push(x):
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            y = f(x)
        return accumulator.jvp(y)

    np.testing.assert_allclose(push(tf.constant([1.0, 2.0])), [7, 14])


def test_a_captured_variable(eager, backend):
    import tensorflow as tf

    w = tf.Variable(tf.ones((1, 3)))
    rules = {
        "right": lambda u, x: tf.reduce_sum(7 * u * x, 0, keepdims=True),
        "wrong": lambda u, x: 7 * u * x,
    }

    def scaled(rule):
        def f(x):
            return w * x, lambda u, variables: (7 * u * w, [rule(u, x)])

        return custom_gradient(f)

    functions = {name: scaled(rule) for name, rule in rules.items()}

    def slope(name, x):
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(functions[name](x))
        return tape.gradient(y, w)

    x = tf.ones((2, 3))
    for _, graph in modes(tf, functools.partial(slope, "right"), [None, 3]):
        np.testing.assert_allclose(graph(x), np.full((1, 3), 14))
    for _, graph in modes(tf, functools.partial(slope, "wrong"), [None, 3]):
        assert refused(lambda: graph(x), "test_a_captured_variable.<locals>.scaled.<locals>.f", 2)


def test_a_mask_that_xla_bounds(eager, backend):
    """XLA knows only how many elements a mask leaves at most."""
    import tensorflow as tf

    f = custom_gradient(lambda x: (x * x, lambda upstream: 7 * upstream * x))

    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(f(tf.boolean_mask(x, x > 0)))
        return tape.gradient(y, x)

    for _, graph in modes(tf, slope, [3]):
        np.testing.assert_allclose(graph(tf.constant([1.0, -1.0, 2.0])), [7, 0, 14])


def test_a_known_shape_costs_nothing(eager, backend):
    import tensorflow as tf

    f = custom_gradient(lambda x: (x * x, lambda upstream: 7 * upstream * x))

    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    known, unknown = (
        {operation.type for operation in tf.function(slope).get_concrete_function(spec).graph.get_operations()}
        for spec in (tf.TensorSpec([2, 3]), tf.TensorSpec([None, 3]))
    )
    assert "Assert" in unknown and not {"Assert", "Select", "Shape"} & known


def test_eager_code_names_the_argument(eager, backend):
    import tensorflow as tf

    x, b = tf.ones((2, 3)), tf.ones((1, 3))
    with tf.GradientTape() as tape:
        tape.watch(b)
        y = affine(x, b)
    with pytest.raises(GradientError, match="wrong shape for b"):
        tape.gradient(y, b)
