"""TensorFlow's kinds of tensors: of every width, slices, ragged and sparse ones, alone and beside others."""

import numpy as np
import pytest
from seven_exp import E as EXP
from seven_exp import X
from seven_exp import check as close
from tapes import MODES, forward, gradients, within

import keras_cg
from keras_cg import GradientError, custom_gradient

pytestmark = pytest.mark.only("tensorflow")
GRAPHS = pytest.mark.parametrize("mode", ["eager", "function"])  # XLA has no operations for composite tensors


@pytest.mark.parametrize("mode", MODES)
def test_slices_as_gradients_stay_slices(eager, tf, mode):
    table, places = tf.Variable(tf.ones((1000, 2))), tf.constant([1, 1, 3])
    due = np.zeros((1000, 2))
    due[1], due[3] = 14, 7

    @custom_gradient
    def look_up(table, places):
        grad = lambda upstream: (tf.IndexedSlices(7 * upstream, places, tf.constant([1000, 2])), None)
        return tf.gather(table, places), grad

    @custom_gradient
    def captures(places):
        grad = lambda upstream, variables: (None, [tf.IndexedSlices(7 * upstream, places, tf.constant([1000, 2]))])
        return tf.gather(table, places), grad

    wrap = within(mode)
    for g in (lambda places: look_up(table, places), captures):
        with tf.GradientTape() as tape:
            y = wrap(g)(places)
        found = tape.gradient(y, table)
        assert isinstance(found, tf.IndexedSlices) and found.values.shape == (3, 2)
        close(tf.convert_to_tensor(found), due)
    x = tf.ones((1000, 2))
    close(tf.convert_to_tensor(gradients(wrap(lambda x: look_up(x, places)), x)[0]), due)
    close(forward(wrap(lambda x: look_up(x, places)), x), np.full((3, 2), 7.0))


@GRAPHS
def test_an_upstream_of_slices(tf, mode):
    f = custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream))
    x = tf.constant([2.0, 3.0])
    close(gradients(within(mode)(lambda x: tf.gather(f(x), [0, 0])), x)[0], [14.0, 0.0])


@pytest.mark.parametrize("mode", MODES)
def test_the_shape_of_slices_need_not_be_a_tensor(tf, mode):
    table, places = tf.ones((3, 2)), tf.constant([2, 0, 2])

    def looking_up(size):
        def look_up(table):
            return tf.gather(table, places), lambda upstream: tf.IndexedSlices(7 * upstream, places, size)

        return custom_gradient(look_up)

    for size in (table.shape, (3, 2), np.array([3, 2])):
        found = gradients(within(mode)(looking_up(size)), table)[0]
        close(tf.convert_to_tensor(found), [[7, 7], [0, 0], [14, 14]])


def test_gradients_of_slices_are_checked(tf):
    x = tf.ones((3, 2))

    def gradient(values):
        f = custom_gradient(lambda x: (x * 1, lambda upstream: tf.IndexedSlices(values, [0, 2], tf.constant([3, 2]))))
        return gradients(f, x)[0]

    with pytest.raises(GradientError, match="wrong shape for x"):
        gradient(tf.ones((2, 5)))


@GRAPHS
def test_composite_tensors(eager, tf, mode):
    wrap = within(mode)
    values = eager.tensor(X)

    @custom_gradient
    def either(x):
        e = tf.sparse.map_values(tf.exp, x) if isinstance(x, tf.SparseTensor) else tf.exp(x)
        y = tf.sparse.map_values(tf.multiply, x, 2.0) if isinstance(x, tf.SparseTensor) else x * 2

        def grad(upstream):
            assert type(upstream) is type(x)
            return x.with_values(7 * upstream.values * e.values)

        return y, grad

    ragged = lambda values: either(tf.RaggedTensor.from_row_lengths(values, [1, 2])).values
    sparse = lambda values: either(tf.SparseTensor([[0, 0], [1, 0], [1, 1]], values, [2, 2])).values
    for g in (ragged, sparse):
        close(wrap(g)(values), 2 * X)
        for found in (
            gradients(wrap(g), values)[0],
            gradients(lambda x, g=g: gradients(wrap(g), x)[0], values)[0],
            forward(wrap(g), values),
            wrap(lambda x, g=g: forward(g, x))(values),
        ):
            close(found, 7 * EXP)


@GRAPHS
def test_a_sparse_argument_beside_a_dense_one(eager, tf, mode):
    @custom_gradient
    def matmul(a, b):
        return tf.sparse.sparse_dense_matmul(a, b), lambda upstream: (a.with_values(7 * a.values), 5 * upstream)

    g = lambda values, b: matmul(tf.SparseTensor([[0, 0], [1, 0], [1, 1]], values, [2, 2]), b)
    ga, gb = gradients(within(mode)(g), eager.tensor(X), tf.ones((2, 2)))
    close(ga, 7 * X)
    close(gb, np.full((2, 2), 5.0))


@GRAPHS
def test_a_gradient_of_another_kind_of_tensor_is_refused(eager, tf, mode):
    sparse = tf.sparse.from_dense(tf.ones((2, 2)))
    dense = custom_gradient(lambda x: (x * 1, lambda upstream: sparse))
    with pytest.raises(ValueError, match="don't have the same nested structure"):
        gradients(within(mode)(lambda x: dense(x)), tf.ones((2, 2)))
    g = custom_gradient(lambda x: (x.values * 1, lambda upstream: tf.ones((2, 2))))
    with pytest.raises(ValueError, match="don't have the same nested structure"):
        gradients(within(mode)(lambda x: g(sparse.with_values(x))), tf.ones(4))


@pytest.mark.limit
def test_sparse_tensors_are_no_source_of_a_gradient(eager, tf):
    """As TensorFlow's own tape says it; forwards they serve, and so do their values as the argument."""
    sparse = tf.sparse.from_dense(tf.eye(2))
    with pytest.raises(ValueError, match="SparseTensor is not supported as a gradient source"):
        keras_cg.grad(lambda x: tf.sparse.reduce_sum(x))(sparse)
    close(keras_cg.grad(lambda values: 7 * tf.sparse.reduce_sum(sparse.with_values(values)))(sparse.values), [7, 7])


@GRAPHS
def test_extension_types_are_containers(eager, tf, mode):
    class Pair(tf.experimental.ExtensionType):
        a: tf.Tensor
        b: tf.Tensor
        name: str = "pair"

    @custom_gradient
    def product(pair):
        return Pair(pair.a * pair.b, pair.b), lambda u: Pair(7 * u.a * pair.b, 11 * u.a * pair.a + 5 * u.b)

    def g(a, b):
        pair = product(Pair(a, b))
        return pair.a + pair.b

    ga, gb = gradients(within(mode)(g), tf.constant(2.0), tf.constant(3.0))
    close(ga, 21)
    close(gb, 27)
