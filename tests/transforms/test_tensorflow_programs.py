"""TensorFlow: a compiled program holds the operations of the hand-written rule, and reads values before the step."""

import collections
import math
import re

import numpy as np
import pytest
from late import read_late
from tapes import gradients

from keras_cg import custom_gradient, recipes

pytestmark = pytest.mark.only("tensorflow")

X = np.linspace(-1.0, 1.0, 8, dtype=np.float32)


# --- operations ------------------------------------------------------------------------------------------------------


def log1pexp(x):
    import tensorflow as tf

    e = tf.exp(x)
    return tf.math.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e))


def both(p, n):
    """Two arguments, two outputs, in nests."""
    import tensorflow as tf

    e = tf.exp(p["a"])

    def grad(upstream):
        one, (two,) = upstream["one"], upstream["rest"]
        return {"a": 7 * one * e, "b": 5 * two * p["b"]}, None

    return {"one": p["a"] * p["b"], "rest": (p["b"] * n,)}, grad


def both_flat(a, b):
    import tensorflow as tf

    e = tf.exp(a)
    return (a * b, b * 3), lambda one, two: (7 * one * e, 5 * two * b)


def chain(f, x):
    for _ in range(5):
        x = f(x)
    return x


def ours_of_two(a, b):
    found = custom_gradient(both)({"a": a, "b": b}, 3)
    return found["one"], found["rest"][0]


def native_of_two(a, b):
    import tensorflow as tf

    return tf.custom_gradient(both_flat)(a, b)


# A program of a decorator and of the function of two arguments made with it.
PROGRAMS = {
    "gradient": lambda decorate, two: lambda x: gradients(decorate(log1pexp), x),
    "gradient of two in, two out": lambda decorate, two: lambda x: gradients(two, x, x + 1),
    "gradient of a chain": lambda decorate, two: lambda x: gradients(lambda x: chain(decorate(log1pexp), x), x),
    "second order": lambda decorate, two: lambda x: gradients(lambda x: gradients(decorate(log1pexp), x), x),
    "no gradient needed": lambda decorate, two: lambda x: gradients(lambda y: decorate(log1pexp)(x) * y, x + 1),
}


def programs(name):
    """The program with our decorator, and with that of TensorFlow."""
    import tensorflow as tf

    make = PROGRAMS[name]
    return make(custom_gradient, ours_of_two), make(tf.custom_gradient, native_of_two)


def nodes(program):
    import tensorflow as tf

    graph = tf.function(program).get_concrete_function(tf.TensorSpec(X.shape)).graph
    # A copy is a copy, of one tensor or of several.
    return collections.Counter(each.type.replace("IdentityN", "Identity") for each in graph.get_operations())


def instructions(program, stage):
    """The operations of a program of XLA."""
    import tensorflow as tf

    text = tf.function(program, jit_compile=True).experimental_get_compiler_ir(tf.constant(X))(stage=stage)
    return collections.Counter(re.findall(r"^\s*(?:ROOT )?[%\w.-]+ = .*? ([\w-]+)\(", text, re.M))


def missing(ours, native):
    """What the rule by hand has in addition to ours."""
    assert sum(native.values()) > 3
    # Copies cost nothing: they are aliases in a graph, and XLA drops them.
    assert set(ours - native) <= {"Identity"}, "more than the rule by hand has"
    return set(native - ours)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_holds_the_nodes_of_the_rule_by_hand(backend, name):
    # That of TensorFlow copies every output once more, in search of variables, and makes zeros as upstreams of the
    # copies of its inputs.
    assert missing(*map(nodes, programs(name))) <= {"Identity", "Const"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_xla_gets_the_operations_of_the_rule_by_hand(backend, name):
    ours, native = programs(name)
    assert missing(instructions(ours, "hlo"), instructions(native, "hlo")) <= {"constant", "broadcast"}
    assert not missing(instructions(ours, "optimized_hlo"), instructions(native, "optimized_hlo"))


def test_so_it_is_of_what_a_function_captures(tf):
    constant, variable = tf.linspace(0.0, 1.0, 300)[:8], tf.Variable(X)

    def plain(x):
        e = tf.exp(x) + constant
        return tf.math.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e))

    captures = lambda x: (x * variable, lambda upstream, variables=None: (7 * upstream, [upstream * x]))
    for function, more in ((plain, set()), (captures, {"ReadVariableOp"})):  # which that of TensorFlow reads twice
        ours, native = (nodes(lambda x, d=d: gradients(d(function), x)) for d in (custom_gradient, tf.custom_gradient))
        assert missing(ours, native) <= {"Identity", "Const", "NoOp"} | more


def test_tracing_a_call_does_not_list_the_whole_graph(tf, monkeypatch):
    def listed(self):
        raise AssertionError("all operations of the graph were listed for one call")

    with tf.Graph().as_default():
        x = tf.constant(X)
        monkeypatch.setattr(tf.Graph, "get_operations", listed)
        chain(custom_gradient(log1pexp), x)


# --- the order of reads and assignments ------------------------------------------------------------------------------


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


@pytest.mark.thorough
@pytest.mark.parametrize("optimised", [True, False])
@pytest.mark.limit
def test_grappler_forgets_the_order_where_one_operation_has_two_outputs(tf, optimised):
    """A limit, with nothing around it, and what helps."""
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
