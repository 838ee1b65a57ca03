"""TensorFlow: what is compiled holds the operations of the rule by hand, of `tf.custom_gradient`, and no others."""

import collections
import re

import numpy as np
import pytest

from keras_cg import custom_gradient

pytestmark = pytest.mark.only("tensorflow")

X = np.linspace(-1.0, 1.0, 8, dtype=np.float32)


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


def slope(f, *inputs):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = f(*inputs)
    return tape.gradient(y, inputs)


def ours_of_two(a, b):
    found = custom_gradient(both)({"a": a, "b": b}, 3)
    return found["one"], found["rest"][0]


def native_of_two(a, b):
    import tensorflow as tf

    return tf.custom_gradient(both_flat)(a, b)


# A program of a decorator and of the function of two arguments made with it.
PROGRAMS = {
    "forward": lambda decorate, two: decorate(log1pexp),
    "gradient": lambda decorate, two: lambda x: slope(decorate(log1pexp), x),
    "two in, two out": lambda decorate, two: lambda x: two(x, x + 1),
    "gradient of two in, two out": lambda decorate, two: lambda x: slope(two, x, x + 1),
    "chain": lambda decorate, two: lambda x: chain(decorate(log1pexp), x),
    "gradient of a chain": lambda decorate, two: lambda x: slope(lambda x: chain(decorate(log1pexp), x), x),
    "second order": lambda decorate, two: lambda x: slope(lambda x: slope(decorate(log1pexp), x), x),
    "no gradient needed": lambda decorate, two: lambda x: slope(lambda y: decorate(log1pexp)(x) * y, x + 1),
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
    """What the rule by hand has besides all that ours has."""
    assert sum(native.values()) > 3
    assert not ours - native, "more than the rule by hand has"
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


def test_an_operation_too_many_is_seen(backend):
    import tensorflow as tf

    def more(x):
        y, rule = log1pexp(x)
        return y, lambda upstream: tf.sin(rule(upstream))

    for count in (nodes, lambda program: instructions(program, "hlo")):
        ours = count(lambda x: slope(custom_gradient(more), x))
        native = count(lambda x: slope(tf.custom_gradient(log1pexp), x))
        assert [name.lower() for name in (ours - native).elements()] in (["sin"], ["sine"])
        with pytest.raises(AssertionError, match="more than the rule by hand has"):
            missing(ours, native)


def test_tracing_a_call_does_not_list_the_whole_graph(backend, monkeypatch):
    import tensorflow as tf

    def listed(self):
        raise AssertionError("all operations of the graph were listed for one call")

    with tf.Graph().as_default():
        x = tf.constant(X)
        monkeypatch.setattr(tf.Graph, "get_operations", listed)
        chain(custom_gradient(log1pexp), x)
