"""TensorFlow's tapes, eagerly: what they watch, what the rule captures, another run, and jacobians."""

import numpy as np
import pytest
from places import Slots
from seven_exp import E as EXP
from seven_exp import X, f
from seven_exp import check as close
from tapes import MODES, ONES, gradients, with_variable_and_tensor, within

from keras_cg import CapturedVariableError, custom_gradient, ops
from keras_cg.engine import linear
from keras_cg.frontend import config
from keras_cg.frontend.call import Call
from keras_cg.frontend.run import Run

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


# --- another run ---------------------------------------------------------------------------------------------------


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
        holder = Slots(w)
        return custom_gradient(lambda x: (x * holder.e, lambda u, variables: (7 * u, [11 * u])))(x)

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
        holder = Slots(w)
        return custom_gradient(lambda x: (x * holder.e * variable, lambda u, variables: (7 * u, [11 * u])))(x)

    for g in (lambda x, w: with_variable_and_tensor(x, w, variable), two, hidden):
        with pytest.raises(CapturedVariableError, match="is being differentiated and is not among its arguments"):
            gradients(g, eager.tensor(X), eager.tensor(3 * X))


TENSOR, TABLE = [None], {"deep": [None]}


def of_this_module(x):
    return x * TENSOR[0]


class Owner:
    def __init__(self, w):
        self.parts = {"w": [w]}

    def of_an_attribute(self, x):
        return x * self.parts["w"][0]

    def of_a_global(self, x):
        return of_this_module(x)


# Where a function finds `w`, beside a variable that explains why its output is differentiated.
BESIDE = {
    "global": lambda tf, w: lambda x: x + TABLE["deep"][0],
    "function": lambda tf, w: lambda x: of_this_module(x),
    "list": lambda tf, w: lambda x, parts=(w,): tf.add_n([x, parts[0]]),
    "slot": lambda tf, w: (lambda holder: lambda x: x * holder.e)(Slots(w)),
    "method": lambda tf, w: Owner(w).of_an_attribute,
    "method of a global": lambda tf, w: Owner(None).of_a_global,
    "array": lambda tf, w: tf.TensorArray(tf.float32, 1, clear_after_read=False).write(0, w).read,
    "variable": lambda tf, w: lambda x: x * w,
    "handle": lambda tf, w: lambda x, h=w.handle: x * tf.raw_ops.ReadVariableOp(resource=h, dtype=tf.float32),
}


@pytest.mark.parametrize("place", BESIDE)
def test_what_is_hidden_beside_a_variable_is_refused(eager, tf, place):
    is_variable = place in ("variable", "handle")
    variable, w = tf.Variable(2 * X), tf.Variable(X, trainable=False) if is_variable else tf.constant(X)
    TENSOR[0] = TABLE["deep"][0] = w
    read = BESIDE[place](tf, w)
    f = lambda x: (variable * (read(0) if place == "array" else read(x)), lambda u, variables: (7 * u, [11 * u]))
    for watched in (True, False):
        with tf.GradientTape() as tape:
            tape.watch([w] if watched else [])
            if watched:
                with pytest.raises(CapturedVariableError):
                    custom_gradient(f)(eager.tensor(X))
            else:
                y = custom_gradient(f)(eager.tensor(X))
    close(tape.gradient(y, variable), np.full(3, 11.0))


def test_what_explains_the_output_is_found_in_the_first_run(eager, tf):
    """What is stopped, or in a cell and not used, is no source, and nothing is drawn or assigned a second time."""
    variable, runs, x, w = tf.Variable(2 * X), tf.Variable(0), eager.tensor(X), eager.tensor(3 * X)

    def f(x, of_variable, of_tensor):
        def g(z):
            runs.assign_add(1)
            return z * of_variable(variable) * of_tensor(w), lambda u, variables: (7 * u + 0 * w, [11 * u])

        return custom_gradient(g)(x)

    for stops in ((lambda v: v, tf.stop_gradient), (tf.stop_gradient, lambda w: w), (lambda v: v, lambda w: 1.0)):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = f(x * 2, *stops)
        sources = [x, w if stops[0] is tf.stop_gradient else variable]
        for found, expected in zip(tape.gradient(y, sources), (14, 11), strict=True):
            close(found, np.full(3, float(expected)))

    def keeps(owner, x):
        def g(z):
            runs.assign_add(1)
            return z * variable, lambda u, variables: (7 * u + 0 * owner.parts, [11 * u])

        owner.parts = x * 2
        return custom_gradient(g)(x)

    gx, gv = gradients(lambda x, _: keeps(Owner(None), x), x, variable)
    close(gx, 7 * ONES)
    close(gv, 11 * ONES)
    assert runs == 4


def test_nothing_is_searched_where_nothing_is_captured(eager, tf, monkeypatch):
    monkeypatch.setattr(Call, "captures", lambda self, is_wanted: pytest.fail("searched"))
    history = [{"epoch": epoch} for epoch in range(9)]
    x, w = eager.tensor(X), eager.tensor(3 * X)
    for read in (lambda: history, lambda: w):
        g = custom_gradient(lambda x, read=read: (x * 2 + 0 * len(read()), lambda u: 7 * u))
        close(gradients(lambda x, w, g=g: g(x), x, w)[0], 7 * ONES)


@pytest.mark.limit
def test_a_tensor_in_another_module_beside_a_variable_is_a_limit(eager, tf):
    scope = {"tensor": eager.tensor(X)}
    exec("def read(): return tensor * 1", scope)
    variable, read, w = tf.Variable(2 * X), scope["read"], scope["tensor"]

    def g(of):
        return lambda w: custom_gradient(lambda x: (x * of(), lambda u, variables: (7 * u, [11 * u])))(eager.tensor(X))

    assert gradients(g(lambda: read() * variable), w) == (None,)
    with pytest.raises(CapturedVariableError):
        gradients(g(read), w)


@pytest.mark.limit
def test_what_a_function_hands_out_by_another_way_has_no_gradient_in_eager_mode(eager, tf):
    def run(x):
        kept = []

        @custom_gradient
        def g(x):
            kept.append(3 * x)
            return x * x, lambda upstream: 7 * upstream

        return g(x) + kept[0]

    close(gradients(run, eager.tensor(X))[0], np.full(3, 7.0))
    close(tf.function(lambda x: gradients(run, x)[0])(eager.tensor(X)), np.full(3, 10.0))


def test_rules_are_compared_along_upstreams_that_are_always_the_same(eager, tf, monkeypatch):
    """Also inside a composite tensor, with the captured variables, and new ones each time."""
    came, variable = [], tf.Variable(2.0)

    @custom_gradient
    def g(x):
        grad = lambda u, variables: (7 * tf.reduce_sum(u[0].flat_values) * u[1] + 0 * x, [11 * u[1][0]])
        return (tf.RaggedTensor.from_row_lengths(x * variable, [2, 1]), x * 2), grad

    monkeypatch.setattr(Run, "check", lambda self, other, probe: came.extend([probe(self), probe(other)]) or [])
    x = eager.tensor(X)
    gradients(lambda x: gradients(lambda x: g(x)[0].flat_values * g(x)[1], x)[0], x)
    upstreams = linear.irregular(config.active, [x, x])
    expected = [7 * tf.reduce_sum(upstreams[0]) * upstreams[1], 11 * upstreams[1][0]]
    assert len(came) == 4
    for found in came:
        for one, two in zip(found, expected, strict=True):
            close(one, two)


def test_a_rule_keeps_a_variable_for_what_it_is_in_every_order(eager, tf):
    variable, x = tf.Variable(2 * X), eager.tensor(X)

    @custom_gradient
    def g(x):
        e = tf.exp(x)
        return x * 2, lambda upstream: 7 * upstream * e * variable.read_value()

    first = lambda x: gradients(g, x)[0]
    close(gradients(first, x)[0], 7 * EXP * 2 * X)
    close(gradients(lambda _: first(x), variable)[0], 7 * EXP)


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
