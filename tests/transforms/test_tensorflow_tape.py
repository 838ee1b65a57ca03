"""TensorFlow's tapes, eagerly: what they watch, what the rule captures, how often a function runs, and jacobians."""

import numpy as np
import pytest
from seven_exp import E as EXP
from seven_exp import X, f
from seven_exp import check as close
from tapes import MODES, ONES, closing_over, forward, gradients, with_variable_and_tensor, within

from keras_cg import CapturedVariableError, GradientError, custom_gradient, ops

pytestmark = pytest.mark.only("tensorflow")


# --- what a tape asks for --------------------------------------------------------------------------------------------


def test_tapes_that_do_not_watch_or_record(eager, tf):
    x = eager.tensor(X)
    for wrap in (lambda g: g, tf.function):
        g = wrap(lambda x: f(x))
        with tf.GradientTape() as tape:
            tape.watch(x)
            with tape.stop_recording():
                stopped = g(x)
            y = g(x)
        assert tape.gradient([stopped], x) is None if wrap is not tf.function else True
        with tf.GradientTape(persistent=True) as tape:
            y = g(x)
            tape.watch(x)
            z = g(x)
        assert tape.gradient(y, x) is None
        close(tape.gradient(y, x, unconnected_gradients="zero"), np.zeros(3))
        for _ in range(2):
            close(tape.gradient(z, x), 7 * EXP)
            close(tape.gradient(z, x, output_gradients=eager.tensor(X)), 7 * EXP * X)


def test_a_persistent_tape_that_watches_itself(eager, tf):
    @custom_gradient
    def g(x):
        e = tf.exp(x)
        return e, lambda upstream: 7 * upstream * e

    x = eager.tensor(X)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        gradient = tape.gradient(g(x) ** 2, x)
    # 2 g 7 e, with g = e whose derivative is 7 e by the rule, and that of what the rule holds as well: 14 (7 + 1) e².
    close(gradient, 14 * EXP**2)
    close(tape.gradient(gradient, x), 14 * 8 * EXP**2)


def test_what_is_not_watched_is_not_looked_at(eager, tf):
    g = custom_gradient(lambda x, i, y: (x * y, lambda up: (7 * up * y, i, tf.zeros([17]))))
    x, i, y = eager.tensor(X), tf.constant([1, 2, 3]), eager.tensor(2 * X)
    close(gradients(lambda x: g(x, i, y), x)[0], 14 * X)
    with pytest.raises(GradientError, match=r"float32\[17\]"):
        gradients(lambda y: g(x, i, y), y)


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
    "first": (1, lambda f: lambda x: gradients(f, x)[0]),
    "forward": (1, lambda f: lambda x: forward(f, x)),
    "forward twice": (2, lambda f: lambda x: forward(lambda x: forward(f, x), x)),
    "forward over first": (3, lambda f: lambda x: forward(lambda x: gradients(f, x)[0], x)),
    "first over forward": (2, lambda f: lambda x: gradients(lambda x: forward(f, x), x)[0]),
    "second": (2, lambda f: lambda x: gradients(lambda x: gradients(f, x)[0], x)[0]),
    "third": (2, lambda f: lambda x: gradients(lambda x: gradients(lambda x: gradients(f, x)[0], x)[0], x)[0]),
}


@pytest.mark.parametrize("is_opaque", [False, True], ids=["closure", "object"])
@pytest.mark.parametrize("order", ORDERS)
def test_how_often_a_function_runs(eager, backend, order, is_opaque):
    runs = []

    @custom_gradient
    def g(x):
        runs.append(None)
        e = ops.exp(x)
        holder = Holder(e)
        rules = (lambda upstream: 7 * upstream * e, lambda upstream: 7 * upstream * holder.w)
        return x * 2, rules[is_opaque]

    times, derivative = ORDERS[order]
    close(derivative(g)(eager.tensor(X)), 7 * EXP)
    assert len(runs) == times


def test_a_function_runs_once_for_captured_tensors_too_in_eager_mode(eager, tf):
    runs = []
    variable, w, x = tf.Variable(2 * X), eager.tensor(2 * X), eager.tensor(X)

    def times(factor):
        def g(x):
            runs.append(None)
            return x * factor, lambda u, variables=None: (7 * u, [11 * u]) if variables else 7 * u

        return custom_gradient(g)

    close(gradients(times(w), x)[0], np.full(3, 7.0))
    assert len(runs) == 1
    with tf.GradientTape() as tape:
        y = times(variable)(x)
    close(tape.gradient(y, variable), np.full(3, 11.0))
    assert len(runs) == 2
    # What only the rule uses needs no other run.
    only_in_rule = custom_gradient(lambda x: (runs.append(None) or x * 2, lambda u: 7 * u * w))
    close(gradients(lambda x, w: only_in_rule(x), x, w)[0], 14 * X)
    assert len(runs) == 3
    # So do captured tensors.
    close(gradients(lambda x, w: times(w)(x), x, w)[1], np.full(3, 11.0))
    assert len(runs) == 4


@pytest.mark.parametrize("is_same", [True, False])
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
    # In a graph no value can be looked at, so that it cannot be an error.
    for found in (first, outer.gradient(first, x)):
        close(found, 7 * EXP if is_same else np.full(3, np.nan))


# --- what a function closes over -------------------------------------------------------------------------------------


def served(x, w):
    """`x w` with the gradient 7 w for x, and 11 x for w, which is closed over."""

    def grad(upstream, variables=None):
        gradient = 7 * upstream * (variables or [w])[0]
        return (gradient, [11 * upstream * x]) if variables else gradient

    return custom_gradient(lambda x: (x * w, grad))(x)


def of_attribute(x, w):
    holder = Holder(w)
    return custom_gradient(lambda x: (x * holder.w, lambda u, variables: (7 * u, [11 * u])))(x)


def stopped(x, w):
    import tensorflow as tf

    return custom_gradient(lambda x: (x * tf.stop_gradient(w), lambda u: 7 * u * w))(x)


def of_gradient(f, one, two):
    """The gradient for argument number `two` of that for number `one`."""
    return lambda x, w: gradients(lambda x, w: gradients(f, x, w)[one], x, w)[two]


CAPTURED = {
    "x": (lambda x, w: gradients(served, x, w)[0], 7 * 2 * X),
    "w": (lambda x, w: gradients(served, x, w)[1], 11 * X),
    "x w": (of_gradient(served, 0, 1), 7 * ONES),
    "w x": (of_gradient(served, 1, 0), 11 * ONES),
    "forward by x": (lambda x, w: forward(lambda x: served(x, w), x), 7 * 2 * X),
    "forward by w": (lambda x, w: forward(lambda w: served(x, w), w), 11 * X),
    "attribute, x": (lambda x, w: gradients(of_attribute, x, w)[0], 7 * ONES),
    "attribute, w": (lambda x, w: gradients(of_attribute, x, w)[1], 11 * ONES),
    "stopped, x": (lambda x, w: gradients(stopped, x, w)[0], 7 * 2 * X),
    "stopped, w": (lambda x, w: gradients(stopped, x, w)[1], None),
    "stopped, x w": (of_gradient(stopped, 0, 1), 7 * ONES),
}


@pytest.mark.parametrize("name", CAPTURED)
def test_a_captured_tensor(eager, backend, name):
    derivative, expected = CAPTURED[name]
    found = derivative(eager.tensor(X), eager.tensor(2 * X))
    if expected is None:
        assert found is None
    else:
        close(found, expected)


def test_a_captured_tensor_that_the_rule_does_not_take_is_refused(eager, backend):
    with pytest.raises(CapturedVariableError, match="being differentiated"):
        gradients(lambda x, w: closing_over(w)(x), eager.tensor(X), eager.tensor(2 * X))


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
