"""tf.function and XLA: captures, control flow, AutoGraph, vectorized loops; in every mode the rule's own number."""

import traceback

import numpy as np
import pytest
from seven_exp import E as EXP
from seven_exp import X, f
from seven_exp import check as close
from tapes import MODES, closing_over, forward, gradients, with_variable_and_tensor, within

from keras_cg import CapturedVariableError, GradientError, custom_gradient

pytestmark = pytest.mark.only("tensorflow")


# --- what a function closes over -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["function", "xla"])
@pytest.mark.parametrize("place", ["plain", "cond", "while_loop"])
@pytest.mark.limit
def test_a_captured_tensor_that_is_differentiated_later_gets_no_number(eager, tf, mode, place):
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
    # The gradient of w is not asked for, so nothing is lost.
    close(gradients(lambda x: function(x, w), x)[0], first)
    close(forward(lambda x: function(x, w), x), first)
    close(forward(lambda w: function(x, w), w), np.full(3, np.nan))
    second = gradients(lambda x: gradients(lambda x: function(x, w), x)[0], x)[0]
    assert second is None or not np.any(second)


def test_captured_constants_are_constants_in_every_order(eager, tf):
    constant = tf.linspace(1.0, 2.0, 1000)  # a large one is an input of the graph

    @custom_gradient
    def g(x):
        e = tf.exp(x)
        return x * constant, lambda upstream: 7 * upstream * e

    x = tf.linspace(-1.0, 1.0, 1000)
    for compiled in (False, True):
        function = tf.function(lambda x: g(x), jit_compile=compiled)
        first = lambda x, function=function: gradients(function, x)[0]
        for found in (first(x), gradients(first, x)[0], forward(function, x), forward(first, x)):
            close(found, 7 * np.exp(x))


def test_a_stopped_gradient_in_a_graph(eager, tf):
    tensor = lambda x, w: custom_gradient(lambda x: (x * tf.stop_gradient(w), lambda upstream: 7 * upstream))(x)
    variable, x = tf.Variable(2 * X), eager.tensor(X)
    for compiled in (False, True):
        within_graph = tf.function(lambda x: gradients(lambda x: tensor(x, x * 3), x)[0], jit_compile=compiled)
        close(within_graph(x), np.full(3, 7.0))
        for w in (eager.tensor(2 * X), variable):
            function = tf.function(lambda x, w=w: tensor(x, w), jit_compile=compiled)
            gx, gw = gradients(lambda x, _, function=function: function(x), x, w)
            close(gx, np.full(3, 7.0))
            assert gw is None


def test_a_tensor_captured_beside_a_variable(eager, tf):
    variable = tf.Variable(2 * X)
    x, w = eager.tensor(X), eager.tensor(3 * X)
    function = tf.function(lambda x, w: with_variable_and_tensor(x, w, variable))
    function(x, w)
    gx, gw, gv = gradients(lambda x, w, _: function(x, w), x, w, variable)
    close(gx, np.full(3, 7.0))
    close(gw, np.full(3, np.nan))
    close(gv, np.full(3, 11.0))
    with pytest.raises(CapturedVariableError, match="is being differentiated and is not among its arguments"):
        tf.function(lambda x: gradients(lambda x: with_variable_and_tensor(x, x * 3, variable), x))(x)


def test_a_sloppy_gradient_of_a_constant_in_a_graph(eager, tf):
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


array_of = lambda tf, w: tf.TensorArray(tf.float32, 3, clear_after_read=False).unstack(w)
twice = lambda tf, step, z: tf.while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, step(i, a)), (0, z))[1]


# What a function reads of `w`, or of an array of it, in addition to its argument.
READS = {
    "array": lambda tf, array: lambda z: z * array.read(1),
    "array in a loop": lambda tf, array: lambda z: twice(tf, lambda i, a: a + array.read(i), z),
    "array that is written": lambda tf, array: lambda z: tf.reduce_sum(array.write(1, z).stack()),
    "variable": lambda tf, w: lambda z: z * w[1],
    "variable, some rows": lambda tf, w: lambda z: z * tf.gather(w, 1),
    "variable in a loop": lambda tf, w: lambda z: twice(tf, lambda i, a: a * w[i], z),
    "variable in a function": lambda tf, w: lambda z: tf.function(lambda z: z * w[0])(z),
}


@pytest.mark.parametrize("place", READS)
@pytest.mark.limit
def test_what_a_graph_may_not_lose(eager, tf, place):
    is_variable = place.startswith("variable")
    z, w = tf.constant(2.0), tf.Variable(X, trainable=False) if is_variable else tf.constant(X)

    def run(z, w):
        read = READS[place](tf, w if is_variable else array_of(tf, w))
        return custom_gradient(lambda z: (read(z), lambda u: 7 * u))(z)

    traced = tf.function(run)
    traced(z, w)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([z, w])
        y = traced(z, w)
        loss = y + tf.reduce_sum(w)
    assert tape.gradient(y, z) == 7
    assert np.all(np.isnan(tape.gradient(loss, w)))
    # A tape inside of the graph is known while it is traced.
    with pytest.raises(CapturedVariableError):
        tf.function(lambda z: gradients(lambda w: run(z, w), w))(z)


def test_what_is_argument_and_closed_over_is_captured(eager, tf):
    """In eager mode it gets both gradients: 7 by the rule, 11 as what is captured. A graph cannot tell them apart."""

    def run(x):
        rule = lambda upstream, variables=None: (7 * upstream, [11 * upstream]) if variables else 7 * upstream
        return custom_gradient(lambda argument: (argument * x, rule))(x)

    x, traced = eager.tensor(X), tf.function(run)
    close(gradients(run, x)[0], np.full(3, 18.0))
    traced(x)
    close(gradients(traced, x)[0], np.full(3, np.nan))
    with pytest.raises(CapturedVariableError):
        tf.function(lambda x: gradients(run, x))(x)


@pytest.mark.limit
def test_a_reference_variable_that_a_function_makes_is_named(eager, tf):
    @custom_gradient
    def g(x):
        w = tf.compat.v1.get_variable("made_inside", initializer=2 * X, use_resource=False)
        return x * w, lambda u, variables: (7 * u, [11 * u])

    with tf.Graph().as_default(), pytest.raises(CapturedVariableError, match=r"'made_inside'.*use_resource=False"):
        g(tf.constant(X))


# --- control flow ----------------------------------------------------------------------------------------------------


def power(tf, x):
    return tf.while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, f(a)), (0, x), maximum_iterations=2)[1]


COMPOSED = {
    "while_loop": power,
    "cond": lambda tf, x: tf.cond(x[0] < 0, lambda: f(x), lambda: x),
    "foldl": lambda tf, x: tf.foldl(lambda a, b: a + f(b), x, initializer=tf.zeros(())),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", COMPOSED)
def test_control_flow_to_the_second_order(eager, tf, name, mode):
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


def test_inputs_of_an_outer_graph_as_outputs(eager, tf):
    g = custom_gradient(lambda x, y: ((x, y * x, y), lambda a, b, c: (7 * a + 5 * b, 3 * b + 2 * c)))
    run = lambda x, y: tf.cond(x[0] < 9, lambda: tf.add_n([k * each for k, each in enumerate(g(x, y), 1)]), lambda: x)
    # Recorded by a tape while the branch is traced, and only later.
    for function in (lambda x, y: gradients(run, x, y), lambda x, y: gradients(tf.function(run), x, y)):
        gx, gy = tf.function(function)(eager.tensor(X), eager.tensor(2 * X))
        close(gx, np.full(3, 7.0 + 2 * 5))
        close(gy, np.full(3, 2 * 3.0 + 3 * 2))


def first(x):
    return gradients(f, x)[0]


def vectorized(g):
    import tensorflow as tf

    return lambda x: tf.vectorized_map(g, x)


IN_A_BODY = {
    "first": lambda tf: vectorized(first),
    "second": lambda tf: vectorized(lambda x: gradients(first, x)[0]),
    "forward": lambda tf: vectorized(lambda x: forward(f, x)),
    # What the rule computed is differentiated as ever.
    "first of first": lambda tf: lambda x: gradients(vectorized(first), x)[0],
}


@pytest.mark.parametrize("mode", ["eager", pytest.param("xla", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", IN_A_BODY)
def test_vectorized_map_obeys_the_rule_in_its_body(tf, name, mode):
    close(within(mode)(IN_A_BODY[name](tf))(tf.constant(X)), 7 * EXP)


@pytest.mark.parametrize("mode", ["eager", "function", pytest.param("xla", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("transform", [forward, lambda g, x: gradients(g, x)[0]], ids=["forward", "reverse"])
@pytest.mark.limit
def test_vectorized_map_refuses_to_be_differentiated(tf, transform, mode):
    run, x = within(mode), tf.constant(X)
    traced = run(vectorized(f))
    close(traced(x), 2 * X)
    close(gradients(run(vectorized(first)), x)[0], 7 * EXP)
    for g in (traced, run(vectorized(f)), vectorized(tf.function(lambda x: f(x)))):
        for outside in (lambda g: g, run)[: 1 + (mode != "eager")]:
            # A LookupError; a StagingError with its text where AutoGraph was at work.
            with pytest.raises(Exception, match=r"ignores custom gradients.*remedy: use tf\.map_fn"):
                outside(lambda x, g=g: transform(g, x))(x)


@pytest.mark.limit
def test_recompute_grad_says_so_where_it_cannot(eager, tf):
    x = eager.tensor(X)
    g = tf.recompute_grad(lambda x: f(f(x)))
    outer, inner = 7 * np.exp(2 * X.astype(float)), 7 * EXP
    for wrap in (lambda g: g, tf.function, tf.function(jit_compile=True)):
        close(gradients(wrap(g), x)[0], outer * inner)
    close(gradients(lambda x: gradients(g, x)[0], x)[0], outer * inner * inner + outer * inner)
    with pytest.raises(NotImplementedError, match="recompute_grad tried to transpose"):
        tf.function(lambda x: gradients(lambda x: gradients(g, x)[0], x)[0])(x)


# --- AutoGraph, and functions as arguments ---------------------------------------------------------------------------


@pytest.mark.parametrize("is_on", [True, False])
def test_autograph_rewrites_the_function_and_its_rule_and_nothing_of_the_package(eager, tf, is_on):
    """Nor anything where it is switched off."""
    seen = []

    @custom_gradient
    def g(x):
        seen.extend(frame.name for frame in traceback.extract_stack())

        def grad(upstream):
            # Python could not branch on this.
            return 7 * upstream if not is_on or tf.reduce_sum(upstream) < 100 else upstream

        return x * 2, grad

    close(gradients(tf.function(lambda x: g(x), autograph=is_on), eager.tensor(X))[0], 7 * np.ones_like(X))
    assert {"tf__g", "g"} & set(seen) == {"tf__g" if is_on else "g"}
    assert not {"tf__call", "tf____call__", "tf__flat", "tf__attach"} & set(seen)


@pytest.mark.limit
@pytest.mark.parametrize("way", ["argument", "default", "nested", "method"])
def test_a_decorated_function_is_no_argument_of_a_tf_function(eager, tf, way):
    seven = custom_gradient(lambda x: (x * x, lambda upstream: 7 * upstream))

    class Layer:
        @custom_gradient
        def method(self, x):
            return x * x, lambda upstream: 7 * upstream

    apply = lambda x, h=seven: (h["f"] if isinstance(h, dict) else h)(x)
    x, args = (
        eager.tensor(X),
        {"argument": (seven,), "default": (), "nested": ({"f": seven},), "method": (Layer().method,)},
    )
    with pytest.raises(TypeError) as caught:
        tf.function(apply)(x, *args[way])
    name = "method" if way == "method" else "<lambda>"
    assert f"{name} cannot be an argument of a tf.function, which" in str(caught.value)
    close(gradients(tf.function(lambda x: apply(x, *args[way])), x)[0], np.full_like(X, 7))
