"""TensorFlow's tapes, eagerly: what they watch, what the rule captures, how often a function runs, and jacobians."""

import numpy as np
import pytest
from seven_exp import E as EXP
from seven_exp import X, f
from seven_exp import check as close
from tapes import MODES, ONES, forward, gradients, with_variable_and_tensor, within

from keras_cg import CapturedVariableError, custom_gradient, ops

pytestmark = pytest.mark.only("tensorflow")


# --- what a tape asks for --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pfor", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_jacobians(eager, tf, mode, pfor):
    g = within(mode)(lambda x: f(x))
    x = tf.constant(np.stack([X, 2 * X]))
    expected = 7 * np.exp(np.stack([X, 2 * X]).astype(float))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = g(x)
    close(tf.einsum("ijij->ij", tape.jacobian(y, x, experimental_use_pfor=pfor)), expected)
    close(tf.einsum("ijj->ij", tape.batch_jacobian(y, x, experimental_use_pfor=pfor)), expected)
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(x)
        (first,) = gradients(g, x)
    hessian = outer.jacobian(first, x, experimental_use_pfor=pfor)
    close(tf.einsum("ijij->ij", hessian), expected)
    close(tf.reduce_sum(hessian), expected.sum())


# --- how often a function runs ---------------------------------------------------------------------------------------


class Holder:
    """Something that cannot be taken apart, with a tensor inside."""

    __slots__ = ("w",)

    def __init__(self, w):
        self.w = w


# How often a function runs at most, and a derivative of it.
ORDERS = {
    "forward": (1, lambda f: lambda x: forward(f, x)),
    "forward twice": (2, lambda f: lambda x: forward(lambda x: forward(f, x), x)),
    "first over forward": (2, lambda f: lambda x: gradients(lambda x: forward(f, x), x)[0]),
}


@pytest.mark.parametrize("order", ORDERS)
def test_how_often_a_function_runs(eager, backend, order):
    runs = []

    @custom_gradient
    def g(x):
        runs.append(None)
        e = ops.exp(x)
        return x * 2, lambda upstream: 7 * upstream * e

    times, derivative = ORDERS[order]
    close(derivative(g)(eager.tensor(X)), 7 * EXP)
    assert len(runs) == times


@pytest.mark.parametrize("is_same", [True, False])
@pytest.mark.limit
def test_another_run_in_a_graph_of_what_ran_eagerly(eager, tf, is_same):
    factor, x = [1.0], eager.tensor(X)

    @custom_gradient
    def g(x):
        e = tf.exp(x) * factor[0]
        return x * 2, lambda upstream: 7 * upstream * e

    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = g(x)
        factor[0] = 1.0 if is_same else 2.0
        first = tf.function(lambda: tape.gradient(y, x))()
    # In a graph no value can be looked at, so it cannot be an error.
    for found in (first, outer.gradient(first, x)):
        close(found, 7 * EXP if is_same else np.full(3, np.nan))


@pytest.mark.parametrize("other", [lambda e: ops.astype(e, ops.float64), lambda e: e[:, None]], ids=["dtype", "shape"])
def test_another_run_in_a_graph_with_a_tensor_of_another_kind(eager, tf, other):
    now, x = [lambda e: e], eager.tensor(X)

    @custom_gradient
    def g(x):
        e = now[0](tf.exp(x))
        return x * 2, lambda upstream: 7 * upstream * tf.cast(tf.reshape(e, [3]), tf.float32)

    with tf.GradientTape() as outer, tf.GradientTape() as tape:
        outer.watch(x)
        tape.watch(x)
        y = g(x)
        now[0] = other
        with pytest.raises(RuntimeError, match="its rule is not that of the first run"):
            tf.function(lambda: tape.gradient(y, x))()


# --- what a function closes over -------------------------------------------------------------------------------------


def test_a_captured_tensor_in_an_attribute(eager, tf):
    def f(x, w):
        holder = Holder(w)
        return custom_gradient(lambda x: (x * holder.w, lambda u, variables: (7 * u, [11 * u])))(x)

    gx, gw = gradients(f, eager.tensor(X), eager.tensor(2 * X))
    close(gx, 7 * ONES)
    close(gw, 11 * ONES)


@pytest.mark.limit
def test_captured_tensors_whose_order_nothing_tells_are_refused_in_eager_mode(eager, tf):
    variable = tf.Variable(2 * X)

    def two(x, w):
        v = w * 2
        return custom_gradient(lambda x: (x * w * v, lambda u, variables: (7 * u, [11 * u] * len(variables))))(x)

    def hidden(x, w):
        holder = Holder(w)
        return custom_gradient(lambda x: (x * holder.w * variable, lambda u, variables: (7 * u, [11 * u])))(x)

    for g in (lambda x, w: with_variable_and_tensor(x, w, variable), two, hidden):
        with pytest.raises(CapturedVariableError, match="is being differentiated and is not among its arguments"):
            gradients(g, eager.tensor(X), eager.tensor(3 * X))


def test_a_rule_keeps_a_variable_for_what_it_is_in_every_order(eager, tf):
    variable, x = tf.Variable(2 * X), eager.tensor(X)

    @custom_gradient
    def g(x):
        e = tf.exp(x)
        return x * 2, lambda upstream: 7 * upstream * e * variable.read_value()

    def first(x):
        return gradients(g, x)[0]

    close(gradients(first, x)[0], 7 * EXP * 2 * X)
    with tf.GradientTape() as tape:
        slope = first(x)
    close(tape.gradient(slope, variable), 7 * EXP)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.limit
def test_variables_come_in_the_order_of_creation_in_every_mode(eager, tf, mode):
    a, b = tf.Variable(2 * X, name="a"), tf.Variable(3 * X, name="b")
    came = []

    @custom_gradient
    def g(x):
        def grad(upstream, variables):
            came.append([each.name for each in variables])
            return 7 * upstream, [11 * upstream, 13 * upstream]

        return x * b + a, grad

    function = within(mode)(lambda x: g(x))
    x = eager.tensor(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    for found, expected in zip(tape.gradient(y, [x, a, b]), (7, 11, 13), strict=True):
        close(found, np.full(3, float(expected)))
    assert came == [["a:0", "b:0"]]


def test_a_variable_that_is_read_where_nothing_searches(eager, tf):
    """In a function of another module: once, whether the argument is watched or not."""
    scope = {"variable": tf.Variable(X)}
    exec("def read(): return variable * 1", scope)
    read, runs = scope["read"], []

    @custom_gradient
    def g(x):
        runs.append(None)
        return x * read(), lambda upstream, variables=None: (7 * upstream, [5 * upstream])

    for watched in (True, False):
        with tf.GradientTape() as tape:
            x = eager.tensor(X)
            tape.watch([x] if watched else [])
            output = g(x)
        gradient, of_variable = tape.gradient(output, [x, scope["variable"]])
        close(of_variable, 5 * ONES)
        assert not watched or np.all(gradient == 7)
    assert len(runs) == 2
