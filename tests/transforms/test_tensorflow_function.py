"""TensorFlow: forward mode, captures in graphs, loops, strategies, saved models, memory, complex and composite tensors.

As in test_transforms.py the rule of `f` gives 7 exp(x) where plain differentiation gives 2: so do all derivatives.
"""

import functools
import gc
import itertools
import os
import subprocess
import sys
import textwrap
import traceback
import types
import weakref

import numpy as np
import pytest

import keras_cg
from keras_cg import CapturedVariableError, GradientError, custom_gradient, ops, recipes

pytestmark = pytest.mark.only("tensorflow")

X = np.array([-1.0, 0.5, 1.0], np.float32)
EXP = np.exp(X.astype(float))
ONES = np.ones(3, np.float32)


@custom_gradient
def f(x):
    e = ops.exp(x)
    return x * 2, lambda upstream: 7 * upstream * e


# The ways to run a function, where a tape or an accumulator is outside.
MODES = ("eager", "function", "xla")


def within(mode):
    import tensorflow as tf

    return {
        "eager": lambda g: g,
        "function": tf.autograph.experimental.do_not_convert(tf.function),
        "xla": tf.function(jit_compile=True),
    }[mode]


def close(found, expected, rtol=1e-5):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=rtol)


def gradients(g, *inputs):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = g(*inputs)
    return tape.gradient(y, inputs)


def forward(g, x, tangent=None):
    import tensorflow as tf

    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x) if tangent is None else tangent) as accumulator:
        y = g(x)
    return accumulator.jvp(y)


# --- forward mode --------------------------------------------------------------------------------------------------


def forward_and_all_else(x):
    """The derivatives of f and of the sum of its squares, forward, in reverse, and one over the other."""
    import tensorflow as tf

    with tf.autodiff.ForwardAccumulator(x, tf.ones(3)) as accumulator:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
            loss = tf.reduce_sum(y * y)
        gradient = tape.gradient(loss, x)
    return [accumulator.jvp(y), accumulator.jvp(loss), gradient, accumulator.jvp(gradient)]


@pytest.mark.parametrize("mode", MODES)
def test_accumulators_and_tapes_in_one_function(eager, backend, mode):
    # dy = 7e, and y = 2x: the loss has the gradient 2y 7e = 28xe, and that has 2(7e)(7e) + 2y 7e.
    found = within(mode)(forward_and_all_else)(eager.tensor(X))
    expected = [7 * EXP, np.sum(28 * X * EXP), 28 * X * EXP, 98 * EXP**2 + 28 * X * EXP]
    for came, due in zip(found, expected, strict=True):
        close(came, due)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transform", ["forward over forward", "reverse over forward", "forward over reverse twice"])
def test_forward_mode_nests(eager, backend, transform, mode):
    def run(x):
        if transform == "forward over forward":
            return forward(lambda x: forward(f, x), x)
        if transform == "reverse over forward":
            return gradients(lambda x: forward(f, x), x)[0]
        return forward(lambda x: gradients(lambda x: gradients(f, x)[0], x)[0], x)

    close(within(mode)(run)(eager.tensor(X)), 7 * EXP)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("inside", [False, True], ids=["accumulator outside", "accumulator inside"])
def test_forward_mode_of_keywords_and_several_outputs(eager, backend, inside, mode):
    import tensorflow as tf

    @custom_gradient
    def g(p, *, scale, n=2):
        e = tf.exp(p["a"])

        def grad(one, two):
            return {"a": 7 * one * e + 5 * two}, 3 * tf.reduce_sum(one)

        return (p["a"] * scale, n, (p["a"] * n,)), grad

    def run(a):
        one, _, (two,) = g({"a": a}, scale=tf.reduce_sum(a))
        return one, two

    x = eager.tensor(X)
    one, two = within(mode)(lambda x: forward(run, x))(x) if inside else forward(within(mode)(run), x)
    close(one, 7 * EXP + 3 * 3)  # the derivative of the sum is 3
    close(two, np.full(3, 5.0))


def stop_gradient(x):
    import tensorflow as tf

    return tf.stop_gradient(x)


NONLINEAR = {
    "clip": lambda u: ops.clip(u, -1.0, 1.0),
    "wide clip": lambda u: ops.clip(u, -90.0, 90.0),
    "sign": lambda u: ops.sign(u),
    "norm": lambda u: 7 * u / ops.sqrt(ops.sum(u * u)),
    "clip beside infinity": lambda u: ops.clip(u, -1.0, 1.0) / np.array([0.0, 1.0, 1.0], np.float32),
    "largest": lambda u: ops.max(u) + 0 * u,
    "clip at a million": lambda u: ops.clip(u, -1e6, 1e6),
    "nearly linear": lambda u: 1e4 * ops.tanh(u / 1e4),
    # What TensorFlow transposes is the derivative of a rule, which is not the rule itself here.
    "stopped": lambda u: 7 * u + stop_gradient(u),
    "another derivative": lambda u: custom_gradient(lambda u: (3 * u, lambda w: 11 * w))(u),
}


@pytest.mark.parametrize("rule", NONLINEAR)
@pytest.mark.limit
def test_forward_mode_of_a_rule_that_is_not_linear(eager, backend, rule):
    import tensorflow as tf

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


@pytest.mark.parametrize("inside", [False, True], ids=["eager", "function"])
@pytest.mark.limit
def test_a_rule_that_differentiates_where_tapes_do_not_record(eager, backend, inside):
    import tensorflow as tf

    def rule(x):
        return x * 2, lambda upstream: upstream * keras_cg.grad(lambda z: 7 * ops.exp(z))(x)

    x, g = eager.tensor(X), custom_gradient(rule)
    # TensorFlow's tapes record nothing in what an accumulator transposes: with its own decorator, too.
    for function in (g, recipes.recompute(lambda x: x**3)):
        run = functools.partial(forward, function)
        with pytest.raises(Exception, match=r"tapes record nothing here(.|\n)*remedy: use keras_cg\.jvp"):
            (tf.function(run) if inside else run)(x)
    close(keras_cg.jvp(g, (x,), (ONES,))[1], 7 * EXP)
    close(forward(tf.function(lambda x: g(x)), x), 7 * EXP)
    close(gradients(g, x)[0], 7 * EXP)


def test_recompute_of_a_function_that_differentiates(eager, backend):
    x = eager.tensor(X)
    g = recipes.recompute(keras_cg.grad(lambda z: z**3))
    close(g(x), 3 * X**2)
    close(gradients(g, x)[0], 6 * X)


@pytest.mark.limit
def test_forward_mode_around_a_function_of_a_rule_that_is_not_linear_is_a_limit(eager, backend):
    import tensorflow as tf

    # TensorFlow transposes the function's own gradient at an upstream of ones: nothing of ours is called.
    g = tf.function(lambda x: custom_gradient(lambda x: (x * 2, lambda u: u * u))(x))
    close(forward(g, eager.tensor(X)), np.full(3, 2.0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_linear_rules_pass_for_linear(eager, backend, dtype):
    import tensorflow as tf

    matrix = tf.cast(np.random.default_rng(0).standard_normal((64, 64)), dtype)
    rules = [
        lambda u: tf.linalg.matvec(matrix, u),
        lambda u: u - tf.reduce_mean(u),
        lambda u: tf.cumsum(u) * tf.cast(1 / 64, dtype),
        lambda u: tf.where(tf.range(64) % 2 == 0, u, tf.zeros_like(u)),
        lambda u: u / tf.cast(np.arange(64.0), dtype),  # infinite at one place
        lambda u: None,
    ]
    for rule in rules:
        g = custom_gradient(lambda x, rule=rule: (x * 2, rule))
        tangent = forward(g, tf.cast(np.linspace(-1, 1, 64), dtype))
        assert tangent is None or tangent.dtype == dtype


# --- what a function closes over -----------------------------------------------------------------------------------


def closing_over(w):
    return custom_gradient(lambda x: (x * w, lambda upstream: 7 * upstream))


@pytest.mark.parametrize("mode", ["function", "xla"])
@pytest.mark.parametrize("place", ["plain", "cond", "while_loop"])
@pytest.mark.limit
def test_a_captured_tensor_that_is_differentiated_later_gets_no_number(eager, backend, mode, place):
    import tensorflow as tf

    def run(x, w):
        g = closing_over(w)
        if place == "cond":
            return tf.cond(x[0] < 9, lambda: g(x), lambda: x)
        if place == "while_loop":
            return tf.while_loop(lambda i, a: i < 1, lambda i, a: (i + 1, g(a)), (0, x), maximum_iterations=1)[1]
        return g(x)

    x, w = eager.tensor(X), eager.tensor(2 * X)
    function = within(mode)(run)
    function(x, w)  # traced where no tape is
    first, unknown = gradients(function, x, w)
    close(first, np.full(3, 7.0))
    close(unknown, np.full(3, np.nan))
    # Nobody asks for it: nothing is lost.
    close(gradients(lambda x: function(x, w), x)[0], first)
    close(forward(lambda x: function(x, w), x), first)
    close(forward(lambda w: function(x, w), w), np.full(3, np.nan))
    second = gradients(lambda x: gradients(lambda x: function(x, w), x)[0], x)[0]
    assert second is None or not np.any(second)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_captured_constants_are_constants_in_every_order(eager, backend, dtype):
    import tensorflow as tf

    constant = tf.cast(np.linspace(1, 2, 1000), dtype)  # a large one is an input of the graph

    @custom_gradient
    def g(x):
        e = tf.exp(x)
        return x * constant, lambda upstream: 7 * upstream * e

    x = tf.cast(np.linspace(-1, 1, 1000), dtype)
    expected = 7 * np.exp(np.linspace(-1, 1, 1000))
    rtol = {"float16": 1e-2, "bfloat16": 5e-2}.get(dtype, 1e-5)
    for compiled in (False, True):
        function = tf.function(lambda x: g(x), jit_compile=compiled)

        def first(x, function=function):
            return gradients(function, x)[0]

        for found in (first(x), gradients(first, x)[0], forward(function, x), forward(first, x)):
            close(tf.cast(found, "complex128"), expected, rtol)


def test_a_stopped_gradient_in_a_graph(eager, backend):
    import tensorflow as tf

    variable = tf.Variable(2 * X)

    def tensor(x, w):
        return custom_gradient(lambda x: (x * tf.stop_gradient(w), lambda upstream: 7 * upstream))(x)

    def both(x):
        return gradients(lambda x: tensor(x, x * 3), x)[0]

    x, w = eager.tensor(X), eager.tensor(2 * X)
    for compiled in (False, True):
        close(tf.function(both, jit_compile=compiled)(x), np.full(3, 7.0))
        gx, gw = gradients(tf.function(tensor, jit_compile=compiled), x, w)
        close(gx, np.full(3, 7.0))
        assert gw is None
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.function(lambda x: tensor(x, variable), jit_compile=compiled)(x)
        gx, gv = tape.gradient(y, [x, variable])
        close(gx, np.full(3, 7.0))
        assert gv is None


def with_variable_and_tensor(x, w, variable):
    def g(x):
        return x * w * variable, lambda upstream, variables: (7 * upstream, [11 * upstream])

    return custom_gradient(g)(x)


def test_a_tensor_captured_beside_a_variable(eager, backend):
    import tensorflow as tf

    variable = tf.Variable(2 * X)
    x, w = eager.tensor(X), eager.tensor(3 * X)
    function = tf.function(lambda x, w: with_variable_and_tensor(x, w, variable))
    function(x, w)
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        y = function(x, w)
    gx, gw, gv = tape.gradient(y, [x, w, variable])
    close(gx, np.full(3, 7.0))
    close(gw, np.full(3, np.nan))
    close(gv, np.full(3, 11.0))
    with pytest.raises(CapturedVariableError, match="is being differentiated and is not among its arguments"):
        tf.function(lambda x: gradients(lambda x: with_variable_and_tensor(x, x * 3, variable), x))(x)


def test_a_captured_tensor_in_eager_mode(eager, backend):
    import tensorflow as tf

    def run(x, w):
        def grad(upstream, variables=None):
            gradient = 7 * upstream * (variables or [w])[0]
            return (gradient, [11 * upstream * x]) if variables else gradient

        return custom_gradient(lambda x: (x * w, grad))(x)

    def of_attribute(x, w):
        holder = types.SimpleNamespace(w=w)
        return custom_gradient(lambda x: (x * holder.w, lambda u, variables: (7 * u, [11 * u])))(x)

    def run_stopped(x, w):
        return custom_gradient(lambda x: (x * tf.stop_gradient(w), lambda u: 7 * u * w))(x)

    def gradient(g, index):
        return lambda x, w: gradients(g, x, w)[index]

    x, w = eager.tensor(X), eager.tensor(2 * X)
    for found, expected in zip(gradients(run, x, w), (7 * 2 * X, 11 * X), strict=True):
        close(found, expected)
    for found, expected in zip(gradients(of_attribute, x, w), (7 * ONES, 11 * ONES), strict=True):
        close(found, expected)
    close(gradients(gradient(run, 0), x, w)[1], np.full(3, 7.0))
    close(gradients(gradient(run, 1), x, w)[0], np.full(3, 11.0))
    close(forward(lambda x: run(x, w), x), 7 * 2 * X)
    close(forward(lambda w: run(x, w), w), 11 * X)
    gx, gw = gradients(run_stopped, x, w)
    close(gx, 7 * 2 * X)
    assert gw is None
    close(gradients(gradient(run_stopped, 0), x, w)[1], np.full(3, 7.0))
    with pytest.raises(CapturedVariableError, match="being differentiated"):
        gradients(lambda x, w: closing_over(w)(x), x, w)


class Holder:
    """Something that cannot be taken apart, with a tensor inside."""

    __slots__ = ("w",)

    def __init__(self, w):
        self.w = w


def test_a_function_runs_once_for_captured_tensors_too_in_eager_mode(eager, backend):
    import tensorflow as tf

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


@pytest.mark.parametrize("order", ORDERS)
def test_how_often_a_function_runs_in_eager_mode(eager, backend, order):
    runs = []

    @custom_gradient
    def g(x):
        runs.append(None)
        e = ops.exp(x)
        return x * 2, lambda upstream: 7 * upstream * e

    times, derivative = ORDERS[order]
    close(derivative(g)(eager.tensor(X)), 7 * EXP)
    assert len(runs) == times


@pytest.mark.parametrize("order", ORDERS)
def test_a_rule_that_cannot_be_taken_apart(eager, backend, order):
    @custom_gradient
    def g(x):
        holder = Holder(ops.exp(x))
        return x * 2, lambda upstream: 7 * upstream * holder.w

    close(ORDERS[order][1](g)(eager.tensor(X)), 7 * EXP)


def test_a_rule_keeps_a_variable_for_what_it_is_in_every_order(eager, backend):
    import tensorflow as tf

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


@pytest.mark.parametrize("is_same", [True, False])
def test_another_run_in_a_graph_of_what_ran_eagerly(eager, backend, is_same):
    import tensorflow as tf

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


def test_a_sloppy_gradient_of_a_constant_in_a_graph(eager, backend):
    import tensorflow as tf

    sloppy = custom_gradient(lambda x, s: (x * s, lambda upstream: (7 * upstream, upstream)))
    right = custom_gradient(lambda x, s: (x * s, lambda upstream: (7 * upstream, 5 * tf.reduce_sum(upstream))))

    def run(g):
        def derivatives(x):
            s = tf.constant(0.5)
            return tf.gradients(g(x, s), [x, s])

        return tf.function(derivatives)(eager.tensor(X))

    for g, expected in ((right, 15), (sloppy, np.nan)):
        gx, gs = run(g)
        close(gx, np.full(3, 7.0))
        close(gs, expected)
    # A tape says what it asks for, of any tensor.
    inside = tf.function(lambda x, s: gradients(lambda x: sloppy(x, s), x)[0])
    close(inside(eager.tensor(X), tf.constant(0.5)), np.full(3, 7.0))
    for call in (
        lambda: gradients(tf.function(lambda x, s: sloppy(x, s)), eager.tensor(X), tf.constant(0.5)),
        lambda: run(lambda x, s: sloppy(tf.constant(X), s)),
    ):
        with pytest.raises(GradientError, match="of the wrong shape for s"):
            call()


@pytest.mark.limit
def test_captured_tensors_whose_order_nothing_tells_are_refused_in_eager_mode(eager, backend):
    import tensorflow as tf

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


def test_a_captured_tensor_in_an_attribute(eager, backend):
    def g(x, w):
        holder = Holder(w)
        return custom_gradient(lambda x: (x * holder.w, lambda u, variables: (7 * u, [11 * u])))(x)

    gx, gw = gradients(g, eager.tensor(X), eager.tensor(3 * X))
    close(gx, np.full(3, 7.0))
    close(gw, np.full(3, 11.0))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.limit
def test_variables_come_in_the_order_of_creation_in_every_mode(eager, backend, mode):
    import tensorflow as tf

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


def test_variables_in_a_graph_of_tensorflow_1(eager, backend):
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("variable", initializer=2 * X, use_resource=True)
        x = tf.compat.v1.placeholder(tf.float32, (3,))
        y = custom_gradient(lambda x: (x * variable, lambda u, variables: (7 * u, [11 * u])))(x)
        session.run(tf.compat.v1.global_variables_initializer())
        gx, gv = session.run(tf.gradients(y, [x, variable]), {x: X})
    close(gx, np.full(3, 7.0))
    close(gv, np.full(3, 11.0))


@pytest.mark.limit
def test_a_reference_variable_that_a_function_makes_is_named(eager, backend):
    import tensorflow as tf

    @custom_gradient
    def g(x):
        w = tf.compat.v1.get_variable("made_inside", initializer=2 * X, use_resource=False)
        return x * w, lambda u, variables: (7 * u, [11 * u])

    with tf.Graph().as_default(), pytest.raises(CapturedVariableError, match=r"'made_inside'.*use_resource=False"):
        g(tf.constant(X))


# --- graphs, loops, tapes ------------------------------------------------------------------------------------------


def power(tf, x):
    return tf.while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, f(a)), (0, x), maximum_iterations=2)[1]


COMPOSED = {
    "while_loop": power,
    "cond": lambda tf, x: tf.cond(x[0] < 0, lambda: f(x), lambda: x),
    "switch_case": lambda tf, x: tf.switch_case(tf.constant(1), [lambda: x, lambda: f(x)]),
    "map_fn": lambda tf, x: tf.map_fn(f, x),
    "scan": lambda tf, x: tf.scan(lambda a, b: f(b), x, initializer=tf.zeros(())),
    "foldl": lambda tf, x: tf.foldl(lambda a, b: a + f(b), x, initializer=tf.zeros(())),
    "stop_gradient beside": lambda tf, x: f(x) + tf.stop_gradient(f(x)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", COMPOSED)
def test_control_flow_to_the_second_order(eager, backend, name, mode):
    import tensorflow as tf

    def derivatives(x):
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape(persistent=True) as inner:
                inner.watch(x)
                y = COMPOSED[name](tf, x)
            first = inner.gradient(y, x)
        return first, outer.gradient(first, x)

    first, second = within(mode)(derivatives)(eager.tensor(X))
    if name == "while_loop":
        # f(f(x)) with f = 2x by value and f' = f'' = 7 exp by rule.
        outer, inner = 7 * np.exp(2 * X.astype(float)), 7 * EXP
        close(first, outer * inner)
        close(second, outer * inner * inner + outer * inner)
    else:
        close(first, 7 * EXP)
        close(second, 7 * EXP)


def test_inputs_of_an_outer_graph_as_outputs(eager, backend):
    import tensorflow as tf

    @custom_gradient
    def g(x, y):
        return (x, y * x, y), lambda a, b, c: (7 * a + 5 * b, 3 * b + 2 * c)

    def run(x, y):
        return tf.cond(x[0] < 9, lambda: tf.add_n([k * each for k, each in enumerate(g(x, y), 1)]), lambda: x)

    # Recorded by a tape while the branch is traced, and only later.
    for function in (lambda x, y: gradients(run, x, y), lambda x, y: gradients(tf.function(run), x, y)):
        gx, gy = tf.function(function)(eager.tensor(X), eager.tensor(2 * X))
        close(gx, np.full(3, 7.0 + 2 * 5))
        close(gy, np.full(3, 2 * 3.0 + 3 * 2))


@custom_gradient
def inner(x):
    return x * x, lambda upstream: 7 * upstream * ops.exp(x)


@custom_gradient
def outer(x):
    return inner(x) * x, lambda upstream: 5 * upstream * inner(x)


@pytest.mark.parametrize("mode", MODES)
def test_a_custom_gradient_in_a_rule(eager, backend, mode):
    x = eager.tensor(X)
    function = within(mode)(lambda x: outer(x))

    def first(x):
        return gradients(function, x)[0]

    def second(x):
        return gradients(first, x)[0]

    close(first(x), 5 * X**2)
    close(second(x), 5 * 7 * np.exp(X))
    close(gradients(second, x)[0], 5 * 7 * np.exp(X))
    close(forward(function, x), 5 * X**2)
    close(forward(first, x), 5 * 7 * np.exp(X))


@pytest.mark.parametrize("mode", MODES)
def test_forward_mode_of_a_custom_gradient_of_upstream_in_a_rule(eager, backend, mode):
    # What an accumulator transposes hangs on upstream by the rule of `tripled` alone.
    tripled = custom_gradient(lambda u: (3 * stop_gradient(u), lambda w: 3 * w))
    g = custom_gradient(lambda x: (x * 2, tripled))
    x = eager.tensor(X)
    close(within(mode)(functools.partial(forward, g))(x), np.full(3, 3.0))
    close(forward(within(mode)(lambda x: g(x)), x), np.full(3, 3.0))
    close(within(mode)(functools.partial(forward, outer))(x), 5 * X**2)


@pytest.mark.parametrize("compiled", [False, True], ids=["function", "xla"])
def test_symbolic_gradients(eager, backend, compiled):
    import tensorflow as tf

    @tf.function(jit_compile=compiled)
    def derivatives(x, other):
        y = f(x)
        (first,) = tf.gradients(y, x)
        (second,) = tf.gradients(first, x)
        (third,) = tf.gradients(second, x)
        return first, second, third, *tf.gradients(y, other, unconnected_gradients="zero")

    *orders, unconnected = derivatives(eager.tensor(X), eager.tensor(X))
    for found in orders:
        close(found, 7 * EXP)
    close(unconnected, np.zeros(3))


def test_tapes_that_do_not_watch_or_record(eager, backend):
    import tensorflow as tf

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


@pytest.mark.parametrize("pfor", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_jacobians(eager, backend, mode, pfor):
    import tensorflow as tf

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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.limit
def test_vectorized_map_obeys_the_rule_in_its_body_and_refuses_to_be_differentiated(eager, backend, mode):
    import tensorflow as tf

    def first(x):
        return gradients(f, x)[0]

    def of_function(x):
        return gradients(tf.function(lambda x: f(x)), x)[0]

    def second(x):
        return gradients(first, x)[0]

    def vectorized(g):
        return lambda x: tf.vectorized_map(g, x)

    run, x = within(mode), tf.constant(X)
    close(run(vectorized(f))(x), 2 * X)
    for derivative in (first, of_function, second, lambda x: forward(f, x), lambda x: forward(first, x)):
        close(run(vectorized(derivative))(x), 7 * EXP)
    # What the rule computed is differentiated as ever.
    close(run(lambda x: gradients(vectorized(first), x)[0])(x), 7 * EXP)
    close(gradients(run(vectorized(first)), x)[0], 7 * EXP)

    traced = run(vectorized(f))
    traced(x)
    both = vectorized(tf.function(lambda x: f(x)))
    for transform in (forward, lambda g, x: gradients(g, x)[0]):
        for g in (vectorized(f), run(vectorized(f)), traced, both):
            for outside in (lambda g: g, run):
                # A LookupError; a StagingError with its text where AutoGraph was at work.
                with pytest.raises(Exception, match=r"ignores custom gradients.*remedy: use tf\.map_fn"):
                    outside(lambda x, g=g, transform=transform: transform(g, x))(x)


@pytest.mark.parametrize("pfor", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_jacobians_of_a_custom_gradient_in_a_rule(eager, backend, mode, pfor):
    import tensorflow as tf

    def jacobian(g, x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = g(x)
        return tape.jacobian(y, x, experimental_use_pfor=pfor)

    x = tf.constant(X)
    function = within(mode)(lambda x: outer(x))
    close(tf.linalg.diag_part(jacobian(function, x)), 5 * X**2)
    for run in (within("eager"), within("function")):
        close(gradients(run(lambda x: jacobian(outer, x)), x)[0], 5 * 7 * np.exp(X))


@pytest.mark.parametrize("shape", [None, [None], [None, None]], ids=["rank", "size", "wrong rank"])
def test_unknown_shapes(eager, backend, shape):
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec(shape)], reduce_retracing=True)
    def function(x):
        return f(x)

    for x in (X, np.stack([X, X]), np.zeros((0,), np.float32), np.zeros((2, 0), np.float32)):
        if shape is None or len(shape) == x.ndim:
            close(gradients(function, tf.constant(x))[0], 7 * np.exp(x.astype(float)))
            close(gradients(lambda x: gradients(function, x)[0], tf.constant(x))[0], 7 * np.exp(x.astype(float)))


def test_a_wrong_shape_that_only_the_run_shows_is_an_error(eager, backend):
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def function(x):
        return custom_gradient(lambda x: (x * 2, lambda u: tf.concat([u, u], 0)))(x) + tf.reduce_sum(x)

    with pytest.raises((GradientError, tf.errors.InvalidArgumentError)):
        gradients(function, eager.tensor(X))


def test_autograph_inside_the_function(eager, backend):
    import tensorflow as tf

    @custom_gradient
    def g(x):
        e = x * 0
        for _ in tf.range(2):
            e = e + tf.exp(x) / 2
        y = x * 2
        if tf.reduce_sum(x) > 100:
            y = x
        return y, lambda upstream: 7 * upstream * e

    x = eager.tensor(X)
    function = tf.function(lambda x: g(x))
    close(function(x), 2 * X)
    close(gradients(function, x)[0], 7 * EXP)
    close(gradients(lambda x: gradients(function, x)[0], x)[0], 7 * EXP)


def test_autograph_rewrites_the_function_and_its_rule_and_nothing_of_the_package(eager, backend):
    import tensorflow as tf

    seen = []

    @custom_gradient
    def g(x):
        seen.extend(frame.name for frame in traceback.extract_stack())

        def grad(upstream):
            # Python could not branch on this.
            return 7 * upstream if tf.reduce_sum(upstream) < 100 else upstream

        return x * 2, grad

    x = eager.tensor(X)
    close(gradients(tf.function(lambda x: g(x)), x)[0], 7 * np.ones_like(X))
    assert "tf__g" in seen and not {"tf__call", "tf____call__", "tf__flat", "tf__attach"} & set(seen)


def test_autograph_stays_off_where_it_is_switched_off(eager, backend):
    import tensorflow as tf

    seen = []

    @custom_gradient
    def g(x):
        seen.extend(frame.name for frame in traceback.extract_stack())
        return x * 2, lambda upstream: 7 * upstream

    close(gradients(tf.function(lambda x: g(x), autograph=False), eager.tensor(X))[0], 7 * np.ones_like(X))
    assert "g" in seen and "tf__g" not in seen


class Eleven:
    @custom_gradient
    def method(self, x):
        return x * x, lambda upstream: 11 * upstream


@pytest.mark.parametrize("compiler", [None, True], ids=["function", "jit_compile"])
def test_a_decorated_function_is_an_argument_of_a_tf_function(eager, backend, compiler):
    import tensorflow as tf

    traced = []
    seven = custom_gradient(lambda x: (x * x, lambda upstream: 7 * upstream))
    five = custom_gradient(lambda x: (x * x, lambda upstream: 5 * upstream))

    @tf.function(jit_compile=compiler)
    def g(h, x, k=seven):
        traced.append(h)
        return h(x) + k(x)

    x = eager.tensor(X)
    for _ in range(2):
        close(g(seven, x), 2 * X * X)
        close(gradients(lambda x: g(seven, x), x)[0], np.full_like(X, 14))
        close(gradients(lambda x: g(five, x), x)[0], np.full_like(X, 12))
        close(gradients(lambda x: g(five, x, k=five), x)[0], np.full_like(X, 10))
    # Once for each, whoever differentiates it.
    assert len(traced) == 3
    layer = Eleven()
    for _ in range(2):
        close(gradients(lambda x: g(layer.method, x, k=five), x)[0], np.full_like(X, 16))
    assert len(traced) == 4
    nested = tf.function(lambda h, x: h["f"](x))
    close(gradients(lambda x: nested({"f": seven}, x), x)[0], np.full_like(X, 7))


@pytest.mark.limit
def test_recompute_grad_says_so_where_it_cannot(eager, backend):
    import tensorflow as tf

    x = eager.tensor(X)
    g = tf.recompute_grad(lambda x: f(f(x)))
    outer, inner = 7 * np.exp(2 * X.astype(float)), 7 * EXP
    for wrap in (lambda g: g, tf.function, tf.function(jit_compile=True)):
        close(gradients(wrap(g), x)[0], outer * inner)
    close(gradients(lambda x: gradients(g, x)[0], x)[0], outer * inner * inner + outer * inner)
    with pytest.raises(NotImplementedError, match="recompute_grad tried to transpose"):
        tf.function(lambda x: gradients(lambda x: gradients(g, x)[0], x)[0])(x)


def count(tf, decorate, function):
    """The operations of the graph of the value and the gradient of a function, by type."""

    def both(x, n):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = decorate(function)(x, n)
        return y, tape.gradient(y, x)

    graph = tf.function(both).get_concrete_function(tf.TensorSpec((3,)), tf.TensorSpec((), tf.int32)).graph
    return sorted(each.type for each in graph.get_operations() if each.type not in ("Const", "Identity", "NoOp"))


def test_a_graph_holds_the_operations_of_the_native_rule(eager, backend):
    import tensorflow as tf

    constant, variable = tf.linspace(0.0, 1.0, 300)[:3], tf.Variable(X)

    def plain(x, n):
        e = tf.exp(x) + constant
        return tf.math.log(1 + e), lambda upstream: (upstream * (1 - 1 / (1 + e)), None)

    def captures(x, n):
        return x * variable, lambda upstream, variables=None: ((7 * upstream, None), [upstream * x])

    assert count(tf, custom_gradient, plain) == count(tf, tf.custom_gradient, plain)
    ours, native = count(tf, custom_gradient, captures), count(tf, tf.custom_gradient, captures)
    native.remove("ReadVariableOp")  # which it reads once more
    assert ours == native


# --- strategies and saved models -----------------------------------------------------------------------------------


def run(code, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_CG_BACKEND": "tensorflow", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_mirrored_strategy(backend):
    run("""
        import numpy as np, tensorflow as tf
        from keras_cg import CapturedVariableError, custom_gradient

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            v = tf.Variable([2.0, 3.0, 4.0])
            frozen = tf.Variable([2.0, 3.0, 4.0], trainable=False)
        X = np.array([-1.0, 0.5, 1.0], np.float32)

        @custom_gradient
        def plain(x):
            e = tf.exp(x)
            return x * 2, lambda upstream: 7 * upstream * e

        def closing(v):
            return custom_gradient(lambda x: (x * v, lambda upstream: 7 * upstream))

        served = custom_gradient(lambda x: (x * v, lambda upstream, variables: (7 * upstream, [11 * upstream * x])))
        argument = custom_gradient(lambda x, w: (x * w, lambda upstream: (7 * upstream, 11 * upstream)))

        def step(g):
            def on_a_replica():
                replica = tf.distribute.get_replica_context().replica_id_in_sync_group
                x = X * tf.cast(replica + 1, tf.float32)
                with tf.GradientTape() as outer:
                    outer.watch(x)
                    with tf.GradientTape() as tape:
                        tape.watch(x)
                        y = g(x)
                    gx, gv = tape.gradient(y, [x, v])
                return gx, outer.gradient(gx, x), gv
            return on_a_replica

        def check(found, expected):
            for replica, came in enumerate(strategy.experimental_local_results(found)):
                due = expected((replica + 1) * X.astype(float))
                if due is None:
                    assert came is None
                else:
                    np.testing.assert_allclose(came, due, rtol=1e-5)

        for wrap in (lambda g: g, tf.function, lambda g: tf.function(lambda: g())):
            for g, expected in [
                (plain, [lambda x: 7 * np.exp(x), lambda x: 7 * np.exp(x), lambda x: None]),
                (served, [lambda x: np.full(3, 7.0), lambda x: None, lambda x: 11 * x]),
                (lambda x: argument(x, v), [lambda x: np.full(3, 7.0), lambda x: None, lambda x: np.full(3, 11.0)]),
                (closing(frozen), [lambda x: np.full(3, 7.0), lambda x: None, lambda x: None]),
            ]:
                for found, due in zip(wrap(lambda: strategy.run(step(g)))(), expected):
                    check(found, due)
            try:
                wrap(lambda: strategy.run(step(closing(v))))()
            except CapturedVariableError as error:
                assert "reads 1 trainable value" in str(error)
            else:
                raise AssertionError("a captured variable went unseen")
    """)


LOAD = """
    import sys
    import numpy as np, tensorflow as tf

    module = tf.saved_model.load(sys.argv[1])
    assert "keras_cg" not in sys.modules
    X = np.array([-1.0, 0.5, 1.0], np.float32)
    x, y = tf.constant(X), tf.constant(X)

    def gradients(g, *inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = g(*inputs)
        return tape.gradient(output, inputs)
"""


@pytest.mark.limit
def test_saved_models_obey_the_rule_where_keras_cg_is_not(eager, backend, tmp_path):
    import tensorflow as tf

    constant = tf.linspace(1.0, 2.0, 300)

    @custom_gradient
    def nested(p, *, n):
        e = tf.exp(p["a"])
        return (p["a"] * n, p["b"] * 3), lambda one, two: {"a": 7 * one * e, "b": 5 * two}

    @custom_gradient
    def closing(x):
        return x + tf.reduce_sum(constant), lambda upstream: 7 * upstream

    class Module(tf.Module):
        def __init__(self):
            self.v = tf.Variable(2 * X)

        @tf.function(input_signature=[tf.TensorSpec([None])])
        def f(self, x):
            return f(x)

        @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None])])
        def nested(self, a, b):
            return nested({"a": a, "b": b}, n=3)

        @tf.function(input_signature=[tf.TensorSpec([None])])
        def captures(self, x):
            return custom_gradient(lambda x: (x * self.v, lambda u, variables: (7 * u, [11 * u])))(x)

        @tf.function(input_signature=[tf.TensorSpec([None])])
        def closing(self, x):
            return closing(x)

    for rules in (True, False):
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=rules)
        tf.saved_model.save(Module(), str(tmp_path / str(rules)), options=options)
    run(
        LOAD
        + """
    def check(found, expected):
        np.testing.assert_allclose(found, expected, rtol=1e-5)

    exp = 7 * np.exp(X.astype(float))
    for g in (module.f, tf.function(module.f), tf.function(module.f, jit_compile=True)):
        check(g(x), 2 * X)
        check(gradients(g, x)[0], exp)
        check(gradients(lambda x: gradients(g, x)[0], x)[0], exp)
    with tf.autodiff.ForwardAccumulator(x, tf.ones(3)) as accumulator:
        output = module.f(x)
    check(accumulator.jvp(output), exp)
    ga, gb = gradients(module.nested, x, y)
    check(ga, exp)
    check(gb, np.full(3, 5.0))
    gx, gv = gradients(lambda x, v: module.captures(x), x, module.v)
    check(gx, np.full(3, 7.0))
    check(gv, np.full(3, 11.0))
    check(gradients(module.closing, x)[0], np.full(3, 7.0))
    """,
        str(tmp_path / "True"),
    )
    run(
        LOAD
        + """
    for g, inputs in [(module.f, [x]), (module.nested, [x, y]), (module.captures, [x]), (module.closing, [x])]:
        g(*inputs)
        try:
            found = gradients(g, *inputs)
        except LookupError as error:
            assert "No gradient defined for operation" in str(error)
        else:
            raise AssertionError(f"the rule was dropped: {found}")
    """,
        str(tmp_path / "False"),
    )


# --- memory --------------------------------------------------------------------------------------------------------


@pytest.fixture
def uncollected():
    """What is freed here is freed without the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_an_output_is_freed_without_the_collector(eager, backend, uncollected):
    import tensorflow as tf

    @custom_gradient
    def g(x):
        y = tf.exp(x)
        return y, lambda upstream: 7 * upstream * y

    x = eager.tensor(X)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = g(x)
    close(tape.gradient(y, x), 7 * EXP)
    with tf.autodiff.ForwardAccumulator(x, tf.ones(3)) as accumulator:
        z = g(x)
    dead = [weakref.ref(each) for each in (y, z, tape, accumulator)]
    del y, z, tape, accumulator
    assert [each() for each in dead] == [None] * 4


def test_a_tape_does_not_hold_an_output_that_the_rule_does_not_use(eager, backend, uncollected):
    import tensorflow as tf

    made = []

    @custom_gradient
    def g(x):
        y = x * 2
        made.append(weakref.ref(y))
        return y, lambda upstream: 7 * upstream

    x = eager.tensor(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(g(x))
    assert made[0]() is None
    close(tape.gradient(y, x), np.full(3, 7.0))


def test_between_forward_and_backward_only_what_the_rule_uses_is_held(eager, backend, uncollected):
    import tensorflow as tf

    made = []

    @custom_gradient
    def g(x):
        e = tf.exp(x)
        found = [e, e + 1, tf.math.log(e + 1)]
        made.extend(map(weakref.ref, found))
        return found[2], lambda upstream: 7 * upstream * e

    x = eager.tensor(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(g(x))
    assert [each() is not None for each in made] == [True, False, False]
    close(tape.gradient(y, x), 7 * EXP)
    del tape
    assert made[0]() is None


def test_a_call_that_no_tape_asks_for_is_only_the_function(eager, backend):
    import tensorflow as tf

    seen = []

    @custom_gradient
    def g(x):
        seen.append(x)
        y = x * 2
        seen.append(y)
        return y, lambda upstream: 7 * upstream

    x, other = eager.tensor(X), eager.tensor(X)
    with tf.GradientTape() as tape, tf.autodiff.ForwardAccumulator(other, tf.ones(3)):
        tape.watch(other)
        y = g(x)
    assert seen[0] is x
    assert seen[1] is y


def test_a_thousand_eager_calls_leave_nothing(eager, backend, uncollected):
    import tensorflow as tf

    variable, x = tf.Variable(2 * X), eager.tensor(X)
    captures = custom_gradient(lambda x: (x * variable, lambda u, variables: (7 * u, [11 * u])))

    def calls(number):
        for _ in range(number):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = f(x) + captures(x)
            tape.gradient(y, [x, variable])

    calls(50)
    before = len(gc.get_objects())
    calls(1000)
    assert len(gc.get_objects()) - before < 100


def test_a_trace_keeps_no_more_than_the_native_decorator(eager, backend):
    import tensorflow as tf

    def rule(x):
        e = tf.exp(x)
        return x * 2, lambda upstream: 7 * upstream * e

    kinds = (tf.Graph, tf.Operation, tf.Tensor)

    def growth(decorate, traces=10):
        """How many graphs, operations and tensors so many traces leave, when everything of them is dropped."""

        def trace():
            function = tf.function(lambda x: decorate(rule)(x), autograph=False)
            close(gradients(function, eager.tensor(X))[0], 7 * EXP)

        trace()
        gc.collect()
        before = [sum(isinstance(each, kind) for each in gc.get_objects()) for kind in kinds]
        for _ in range(traces):
            trace()
        gc.collect()
        after = [sum(isinstance(each, kind) for each in gc.get_objects()) for kind in kinds]
        return np.subtract(after, before)

    ours, native = growth(custom_gradient), growth(tf.custom_gradient)
    assert native[0] == 10  # the graph of each
    assert (ours <= native).all()


# --- complex numbers -----------------------------------------------------------------------------------------------


Z = np.array([0.5 + 0.3j, -0.7 + 1.1j, 1.2 - 0.4j])

# A function, and its rule for upstream u: the gradient is dL/dx + i dL/dy.
COMPLEX = {
    "square": (lambda o, z: z * z, lambda o, z, u: 2 * o.conj(z) * u),
    "exp": (lambda o, z: o.exp(z), lambda o, z, u: o.conj(o.exp(z)) * u),
    "conj": (lambda o, z: o.conj(z), lambda o, z, u: o.conj(u)),
    "z conj(z)": (lambda o, z: z * o.conj(z), lambda o, z, u: z * (u + o.conj(u))),
    "abs": (lambda o, z: o.abs(z), lambda o, z, u: o.complex(u) * z / o.complex(o.abs(z))),
    "real": (lambda o, z: o.real(z), lambda o, z, u: o.complex(u)),
    "imag": (lambda o, z: o.imag(z), lambda o, z, u: 1j * o.complex(u)),
    "angle": (lambda o, z: o.angle(z), lambda o, z, u: 1j * o.complex(u) / o.conj(z)),
    "fft": (lambda o, z: o.fft(z * z), lambda o, z, u: 2 * o.conj(z) * 3 * o.ifft(u)),
    "ifft": (lambda o, z: o.ifft(z * z), lambda o, z, u: 2 * o.conj(z) * o.fft(u) / 3),
}


class NumPy:
    """The operations of the rules above in NumPy, for the truth."""

    exp, conj, abs, real, imag, angle = np.exp, np.conj, np.abs, np.real, np.imag, np.angle
    fft, ifft = np.fft.fft, np.fft.ifft


def tensorflow_operations(tf):
    class TensorFlow:
        exp, conj, abs = tf.exp, tf.math.conj, tf.abs
        real, imag, angle = tf.math.real, tf.math.imag, tf.math.angle
        fft, ifft = tf.signal.fft, tf.signal.ifft

        @staticmethod
        def complex(x):
            return tf.cast(x, tf.complex128)

    return TensorFlow


WEIGHTS = np.array([0.4 - 1.3j, 1.7 + 0.2j, -0.6 + 0.9j])
DIRECTION = np.array([1.1 + 0.5j, -0.3 + 0.8j, 0.7 - 1.4j])


def loss(o, y):
    """A real number that is nonlinear in real and imaginary parts."""
    real, imag = o.real(y), o.imag(y)
    return real**2 * WEIGHTS.real + imag * real * WEIGHTS.imag + imag**3


def differences(function, z, step=1e-5):
    """dL/dx + i dL/dy by central differences."""
    found = np.zeros(3, complex)
    for place, unit in itertools.product(range(3), (1, 1j)):
        moved = [np.sum(function(z + sign * step * unit * np.eye(3)[place])) for sign in (1, -1)]
        found[place] += unit * (moved[0] - moved[1]) / (2 * step)
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers_to_the_second_order(eager, backend, name, mode):
    import tensorflow as tf

    value, rule = COMPLEX[name]
    o = tensorflow_operations(tf)

    @custom_gradient
    def g(z):
        return value(o, z), lambda upstream: rule(o, z, upstream)

    def of(z):
        y = g(z)
        return tf.reduce_sum(loss(o, y) if y.dtype.is_complex else y**3)

    def truth(z):
        y = value(NumPy, z)
        return loss(NumPy, y) if np.iscomplexobj(y) else y**3

    def along(z):
        (first,) = gradients(of, z)
        return tf.reduce_sum(tf.math.real(first * tf.math.conj(tf.constant(DIRECTION)))), first

    def both(z):
        with tf.GradientTape() as tape:
            tape.watch(z)
            slope, first = along(z)
        return first, tape.gradient(slope, z)

    first, second = within(mode)(both)(tf.constant(Z))
    close(first, differences(truth, Z), 1e-6)

    def slope(z):
        return np.real(differences(truth, z, 1e-3) * np.conj(DIRECTION))

    # The differences of differences are as exact as this, and the second derivatives of the order of one.
    np.testing.assert_allclose(second, differences(slope, Z, 1e-3), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", COMPLEX)
def test_forward_mode_of_complex_rules(eager, backend, name, mode):
    import tensorflow as tf

    value, rule = COMPLEX[name]
    o = tensorflow_operations(tf)

    @custom_gradient
    def g(z):
        return value(o, z), lambda upstream: rule(o, z, upstream)

    step = 1e-6
    expected = (value(NumPy, Z + step * DIRECTION) - value(NumPy, Z - step * DIRECTION)) / (2 * step)
    found = forward(within(mode)(lambda z: g(z)), tf.constant(Z), tf.constant(DIRECTION))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


# --- kinds of tensors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64", "complex128"])
def test_every_width_to_the_second_order_and_forward(eager, backend, dtype, mode):
    import tensorflow as tf

    @custom_gradient
    def rule(x):
        e = tf.exp(x)
        return x * 2, lambda upstream: 7 * upstream * e

    x = tf.cast([0.0, 1.0], dtype)
    expected = 7 * np.exp([0.0, 1.0])
    g = within(mode)(lambda x: rule(x))
    (first,) = gradients(g, x)
    (second,) = gradients(lambda x: gradients(g, x)[0], x)
    for found in (first, second, forward(g, x)):
        assert found.dtype == dtype
        close(tf.cast(found, "complex128"), expected, 1e-2 if "16" in dtype else 1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_scalars_and_nothing(eager, backend, shape, mode):
    import tensorflow as tf

    g = within(mode)(lambda x: f(x))
    x = tf.ones(shape)
    for found in (gradients(g, x)[0], gradients(lambda x: gradients(g, x)[0], x)[0], forward(g, x)):
        close(found, np.full(shape, 7 * np.e))


@pytest.mark.parametrize("mode", MODES)
def test_slices_as_gradients_stay_slices(eager, backend, mode):
    import tensorflow as tf

    table, places = tf.Variable(tf.ones((1000, 2))), tf.constant([1, 1, 3])
    due = np.zeros((1000, 2))
    due[1], due[3] = 14, 7

    @custom_gradient
    def look_up(table, places):
        def grad(upstream):
            return tf.IndexedSlices(7 * upstream, places, tf.constant([1000, 2])), None

        return tf.gather(table, places), grad

    @custom_gradient
    def captures(places):
        def grad(upstream, variables):
            return None, [tf.IndexedSlices(7 * upstream, places, tf.constant([1000, 2]))]

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


@pytest.mark.parametrize("mode", ["eager", "function"])  # XLA has no operations for either
def test_composite_tensors(eager, backend, mode):
    import tensorflow as tf

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

    def ragged(values):
        return either(tf.RaggedTensor.from_row_lengths(values, [1, 2])).values

    def sparse(values):
        return either(tf.SparseTensor([[0, 0], [1, 0], [1, 1]], values, [2, 2])).values

    for g in (ragged, sparse):
        close(wrap(g)(values), 2 * X)
        for found in (
            gradients(wrap(g), values)[0],
            gradients(lambda x, g=g: gradients(wrap(g), x)[0], values)[0],
            forward(wrap(g), values),
            wrap(lambda x, g=g: forward(g, x))(values),
        ):
            close(found, 7 * EXP)


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_a_sparse_argument_beside_a_dense_one(eager, backend, mode):
    import tensorflow as tf

    @custom_gradient
    def matmul(a, b):
        return tf.sparse.sparse_dense_matmul(a, b), lambda upstream: (a.with_values(7 * a.values), 5 * upstream)

    def g(values, b):
        return matmul(tf.SparseTensor([[0, 0], [1, 0], [1, 1]], values, [2, 2]), b)

    ga, gb = gradients(within(mode)(g), eager.tensor(X), tf.ones((2, 2)))
    close(ga, 7 * X)
    close(gb, np.full((2, 2), 5.0))


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_a_gradient_of_another_kind_of_tensor_is_refused(eager, backend, mode):
    import tensorflow as tf

    sparse = tf.sparse.from_dense(tf.ones((2, 2)))
    dense = custom_gradient(lambda x: (x * 1, lambda upstream: sparse))
    with pytest.raises(ValueError, match="don't have the same nested structure"):
        gradients(within(mode)(lambda x: dense(x)), tf.ones((2, 2)))
    g = custom_gradient(lambda x: (x.values * 1, lambda upstream: tf.ones((2, 2))))
    with pytest.raises(ValueError, match="don't have the same nested structure"):
        gradients(within(mode)(lambda x: g(sparse.with_values(x))), tf.ones(4))


# --- private names -------------------------------------------------------------------------------------------------


def test_a_private_name_that_is_gone_is_an_error_at_once(backend):
    run("""
        import os
        from tensorflow.python.eager import forwardprop_util, record
        from tensorflow.python.framework import ops
        import keras_cg

        def without(name):
            exec(f"del {name}")
            try:
                keras_cg.custom_gradient(lambda x: (x, lambda upstream: upstream))(1.0)
            except ImportError as error:
                return "is installed but does not start" in str(error) and name.rpartition(".")[2] in str(error)
            return False

        for name in (
            "record.record_operation",
            "record.stop_recording",
            "record.could_possibly_record",
            "record.should_record_backprop",
            "record.VariableWatcher",
            "forwardprop_util.pack_tangents",
            "forwardprop_util.push_forwardprop_state",
            "ops.Operation._id",
        ):
            # A process of its own for each, in which TensorFlow is imported already.
            child = os.fork()
            if not child:
                os._exit(0 if without(name) else 1)
            assert os.waitpid(child, 0)[1] == 0, name
    """)


# --- what TensorFlow itself cannot do ------------------------------------------------------------------------------


@pytest.mark.limit
def test_sparse_tensors_are_no_source_of_a_gradient(eager, backend):
    """As TensorFlow's own tape says it; forwards they serve, and so do their values as the argument."""
    import tensorflow as tf

    sparse = tf.sparse.from_dense(tf.eye(2))
    with pytest.raises(ValueError, match="SparseTensor is not supported as a gradient source"):
        keras_cg.grad(lambda x: tf.sparse.reduce_sum(x))(sparse)
    close(keras_cg.grad(lambda values: 7 * tf.sparse.reduce_sum(sparse.with_values(values)))(sparse.values), [7, 7])


@pytest.mark.limit
def test_what_is_argument_and_closed_over_counts_as_the_argument_in_a_graph(eager, backend):
    """A limit: it is one tensor there. In eager mode it gets both: 7 by the rule, 11 as what is captured."""
    import tensorflow as tf

    def run(x):
        def rule(upstream, variables=None):
            return (7 * upstream, [11 * upstream]) if variables else 7 * upstream

        return custom_gradient(lambda argument: (argument * x, rule))(x)

    x = eager.tensor(X)
    close(gradients(run, x)[0], np.full(3, 18.0))
    close(gradients(tf.function(run), x)[0], np.full(3, 7.0))


@pytest.mark.limit
def test_an_accumulator_around_a_function_that_is_differentiated_once_more(eager, backend):
    """A limit of TensorFlow (2.21): so it is for a function of plain operations."""
    import tensorflow as tf

    x = eager.tensor(X)
    for function in (f, tf.exp):
        traced = tf.function(lambda x, function=function: function(x))
        with pytest.raises(tf.errors.InternalError, match="returned too few gradients"):
            gradients(lambda x: forward(traced, x), x)
        inside = tf.function(lambda x: gradients(lambda x: forward(traced, x), x)[0])
        assert inside(x) is None
    close(gradients(lambda x: forward(f, x), x)[0], 7 * EXP)


@pytest.mark.limit
def test_an_accumulator_of_what_an_inner_function_captures(eager, backend):
    """A limit of TensorFlow (2.21): so it is for a function of plain operations."""
    import tensorflow as tf

    variable, x = tf.Variable(2 * X), eager.tensor(X)
    served = custom_gradient(lambda x: (x * variable, lambda u, variables: (7 * u, [11 * u])))
    for function, expected in ((served, 11 * ONES), (lambda x: x * variable, X)):
        traced = tf.function(lambda x, function=function: function(x))

        def run(traced=traced):
            with tf.autodiff.ForwardAccumulator(variable, tf.constant(ONES)) as accumulator:
                y = traced(x)
            return accumulator.jvp(y)

        close(run(), expected)
        assert tf.function(run)() is None


@pytest.mark.parametrize("decorator", [custom_gradient, "tf"])
@pytest.mark.limit
def test_a_loaded_loop_or_branch_around_a_rule_is_not_differentiated(eager, backend, tmp_path, decorator):
    """A limit of TensorFlow (2.21): what is loaded lacks what the rule holds of a step, or of a branch."""
    import tensorflow as tf

    decorate = tf.custom_gradient if decorator == "tf" else decorator

    @decorate
    def g(x):
        e = tf.exp(x)
        return x * 2, lambda upstream: 7 * upstream * e

    def looped(x):
        return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, g(x)), (0, x))[1]

    module = tf.Module()
    module.straight = tf.function(lambda x: g(x), input_signature=[tf.TensorSpec([None])])
    module.looped = tf.function(looped, input_signature=[tf.TensorSpec([None])])
    module.branched = tf.function(
        lambda x: tf.cond(x[0] < 9, lambda: g(x), lambda: x), input_signature=[tf.TensorSpec([None])]
    )
    x = eager.tensor(X)
    close(gradients(module.looped, x)[0], 7 * EXP * 7 * np.exp(2 * X.astype(float)))
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    close(gradients(loaded.straight, x)[0], 7 * EXP)
    with pytest.raises(TypeError, match="is out of scope and cannot be used here"):
        gradients(loaded.looped, x)
    with pytest.raises(AssertionError):
        gradients(loaded.branched, x)
