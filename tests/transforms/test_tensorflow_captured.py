"""TensorFlow, eagerly: what a function reads and no tape shows is refused, or given to the rule, as in a graph."""

import numpy as np
import pytest
from seven_exp import X
from seven_exp import check as close
from tapes import MODES, ONES, within

from keras_cg import CapturedVariableError, custom_gradient

pytestmark = pytest.mark.only("tensorflow")

TENSOR = None


def by_numpy(tf, *tensors):
    return tf.ensure_shape(tf.numpy_function(lambda *arrays: np.multiply.reduce(arrays), tensors, tf.float32), [3])


class Owner:
    def __init__(self, w):
        self.w = w


# Functions of x and w whose output depends on w, though eagerly no tape shows it.
UNSEEN = {
    "argument": lambda tf, x, w: by_numpy(tf, x, w),
    "computed": lambda tf, x, w: by_numpy(tf, x, w * 2),
    "factor": lambda tf, x, w: x * by_numpy(tf, w),
    "beside": lambda tf, x, w: by_numpy(tf, x, w) * tf.stop_gradient(w),
}
# The same, where the gradient is stopped, or there is none.
STOPPED = {
    "stopped": lambda tf, x, w: x * tf.stop_gradient(w),
    "stopped later": lambda tf, x, w: tf.stop_gradient(x * w * 2),
    "integers": lambda tf, x, w: x * tf.cast(tf.cast(w, tf.int32), tf.float32),
    "compared": lambda tf, x, w: tf.where(w > 2, x, 2 * x),
    "unused": lambda tf, x, w: (w * 2, x * 2)[1],
}


def differentiate(tf, f, w):
    """The gradients of a function of x that reads w."""
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch([x] if isinstance(w, tf.Variable) else [x, w])
        y = f(x)
    return tape.gradient(y, [x, w])


def plain(upstream):
    return 7 * upstream


def served(upstream, variables=None):
    return (7 * upstream, [11 * upstream]) if variables else 7 * upstream


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("kind", [*UNSEEN, *STOPPED])
def test_a_variable_that_no_derivative_shows(eager, tf, kind, mode):
    """It is refused, or given to the rule; one whose gradient is stopped is a constant. The function runs once."""
    w, runs = tf.Variable(2 * X), tf.Variable(0)

    def run(rule):
        @custom_gradient
        def f(x):
            runs.assign_add(1)
            return (UNSEEN | STOPPED)[kind](tf, x, w), rule

        return within(mode)(lambda: differentiate(tf, f, w))()

    if kind in UNSEEN:
        with pytest.raises(CapturedVariableError, match="reads 1 trainable value that is not among its arguments: w\n"):
            run(plain)
        runs.assign(0)
    gx, gw = run(served if kind in UNSEEN else plain)
    close(gx, 7 * ONES)
    assert runs == 1
    if kind in UNSEEN:
        close(gw, 11 * ONES)
    else:
        assert gw is None


@pytest.mark.parametrize("place", ["cell", "default", "attribute", "global"])
@pytest.mark.parametrize("kind", [*UNSEEN, *STOPPED])
def test_a_tensor_that_no_derivative_shows(eager, tf, place, kind):
    global TENSOR
    w = TENSOR = tf.constant(2 * X)
    body, owner = (UNSEEN | STOPPED)[kind], Owner(w)
    read = {
        "global": lambda rule: lambda x: (body(tf, x, TENSOR), rule),
        "attribute": lambda rule: lambda x: (body(tf, x, owner.w), rule),
        "default": lambda rule: lambda x, w=w: (body(tf, x, w), rule),
        "cell": lambda rule: lambda x: (body(tf, x, w), rule),
    }[place]
    if kind in UNSEEN:
        with pytest.raises(CapturedVariableError):
            differentiate(tf, custom_gradient(read(plain)), w)
    for rule in (served,) if kind in UNSEEN else (served, plain):
        gx, gw = differentiate(tf, custom_gradient(read(rule)), w)
        close(gx, 7 * ONES)
        if kind in UNSEEN:
            close(gw, 11 * ONES)
        else:
            assert gw is None


# What only NumPy reads of a tensor, where a graph does not show it.
BY_NUMPY = {
    "list": lambda tf, w: lambda held=[w]: by_numpy(tf, held[0]),
    "dict": lambda tf, w: lambda held={"w": w}: by_numpy(tf, held["w"]),
    "array": lambda tf, w: (lambda held: lambda: by_numpy(tf, held.read(0)))(written(tf, w)),
    "method": lambda tf, w: w.numpy,
}


def written(tf, w):
    return tf.TensorArray(tf.float32, 1, clear_after_read=False).write(0, w)


@pytest.mark.limit
@pytest.mark.parametrize("read", BY_NUMPY.values(), ids=BY_NUMPY)
def test_a_tensor_in_a_list_that_numpy_reads_is_a_limit(eager, tf, read):
    w = tf.constant(2 * X)
    read = read(tf, w)
    gx, gw = differentiate(tf, custom_gradient(lambda x: (x * read(), lambda upstream: 7 * upstream)), w)
    close(gx, 7 * ONES)
    assert gw is None


def test_an_array_that_was_written_to(eager, tf):
    """What TensorFlow wraps it in claims another class, and has no `__dict__`."""
    w = tf.constant(2 * X)
    held = written(tf, w)
    with pytest.raises(CapturedVariableError, match="a tensor that is being differentiated"):
        differentiate(tf, custom_gradient(lambda x: (x * held.read(0), lambda upstream: 7 * upstream)), w)


@pytest.mark.limit
def test_what_a_graph_cannot_show_is_unknown(eager, tf):
    w = tf.Variable(2 * X)
    read = lambda x: tf.constant(x.numpy() * w.numpy())
    with pytest.raises(CapturedVariableError, match="arguments: w\n"):
        differentiate(tf, custom_gradient(lambda x: (read(x), lambda upstream: 7 * upstream)), w)
    served = custom_gradient(lambda x: (read(x), lambda upstream, variables: (7 * upstream, [11 * upstream])))
    gx, gw = differentiate(tf, served, w)
    close(gx, 7 * ONES)
    close(gw, 11 * ONES)


def test_a_variable_that_nothing_watches_is_a_constant(eager, tf):
    w, x = tf.Variable(2 * X), tf.constant(X)
    f = custom_gradient(lambda x: (tf.constant(x.numpy() * w.numpy()), lambda upstream: 7 * upstream))
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(x)
        y = f(x)
    close(tape.gradient(y, x), 7 * ONES)


def test_several_that_no_derivative_shows_have_no_order(eager, tf):
    w, v = tf.Variable(2 * X), tf.constant(3 * X)
    for body in (lambda x: by_numpy(tf, x, w) * v, lambda x: by_numpy(tf, x, v) * w, lambda x: by_numpy(tf, x, w, v)):
        f = custom_gradient(lambda x, body=body: (body(x), lambda u, variables: (7 * u, [11 * u] * len(variables))))
        with tf.GradientTape() as tape:
            tape.watch(v)
            with pytest.raises(CapturedVariableError, match="several of them"):
                f(tf.constant(X))


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.limit
def test_a_variable_that_is_stopped_beside_another_one(eager, tf, mode):
    a, b = tf.Variable(2 * X), tf.Variable(3 * X)
    rule = lambda upstream, variables: (7 * upstream, [11 * upstream] * len(variables))
    f = custom_gradient(lambda x: (x * a * tf.stop_gradient(b * 1), rule))
    ga, gb = within(mode)(lambda: [differentiate(tf, f, each)[1] for each in (a, b)])()
    close(ga, 11 * ONES)
    assert (gb is None) == (mode == "function")


def test_what_shows_it_registers_no_gradient(eager, tf):
    from tensorflow.python.framework.ops import gradient_registry

    w = tf.Variable(2 * X)
    inner = custom_gradient(lambda x: (tf.round(x), lambda upstream: upstream))
    f = custom_gradient(lambda x: (x * inner(tf.stop_gradient(w)), lambda upstream: 7 * upstream))
    before = len(gradient_registry.list())
    close(differentiate(tf, f, w)[0], 7 * ONES)
    assert len(gradient_registry.list()) == before
    # What the inner rule leads to is a source.
    f = custom_gradient(lambda x: (by_numpy(tf, x, inner(w * 1)), lambda upstream: 7 * upstream))
    with pytest.raises(CapturedVariableError):
        differentiate(tf, f, w)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("read", [lambda tf, x, w: x * w, UNSEEN["argument"]], ids=["product", "numpy"])
def test_a_variable_that_an_inner_tf_function_reads(eager, tf, read, mode):
    if mode == "xla" and read is UNSEEN["argument"]:
        pytest.skip("XLA has no callback")
    w, runs = tf.Variable(2 * X), []
    inner = tf.function(lambda x: read(tf, x, w))

    @custom_gradient
    def f(x):
        runs.append(None)
        return inner(x), lambda upstream, variables: (7 * upstream, [11 * upstream])

    gx, gw = within(mode)(lambda: differentiate(tf, f, w))()
    close(gx, 7 * ONES)
    close(gw, 11 * ONES)
    assert len(runs) == 1
    with pytest.raises(CapturedVariableError, match="arguments: w\n"):
        differentiate(tf, custom_gradient(lambda x: (inner(x), lambda upstream: 7 * upstream)), w)


def test_a_list_of_tensors_beside_an_argument(eager, tf):
    """A list as an operation of TensorFlow makes it is no argument with a gradient, and refused where it needs one."""
    x, w = tf.constant(X), tf.constant(2 * X)
    stack = lambda handle: tf.raw_ops.TensorListStack(input_handle=handle, element_shape=[], element_dtype=tf.float32)
    f = custom_gradient(lambda x, handle: (x * stack(handle), lambda upstream: (7 * upstream, None)))
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        handle = tf.raw_ops.TensorListFromTensor(tensor=w * 1, element_shape=tf.constant([], tf.int32))
        with pytest.raises(CapturedVariableError):
            f(x, handle)


def test_a_cache_that_the_first_run_fills_is_no_source(eager, tf):
    """What it holds comes from the captured tensor, which gets the rule's gradient as it is."""

    def f(w):
        cache, owner = {}, Owner(None)

        def g(x):
            if not cache:
                cache["w"] = owner.w = w * 2
            return x * cache["w"], lambda upstream, variables: (7 * upstream, [11 * upstream])

        return custom_gradient(g)

    w = tf.constant(2 * X)
    gx, gw = differentiate(tf, lambda x: f(w)(x), w)
    close(gx, 7 * ONES)
    close(gw, 11 * ONES)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_cache_of_a_tensor_that_may_be_another_one_is_refused(eager, tf, is_alone):
    """Another run reads the cache, so that it does not tell what the first one read."""
    w, v, cache = tf.constant(2 * X), tf.Variable(X), {}
    held = [w]

    @custom_gradient
    def f(x):
        if not cache:
            cache["w"] = held[0] * 2
        read = cache["w"] if is_alone else cache["w"] * v
        return x * read, lambda upstream, variables: (7 * upstream, [11 * upstream] * len(variables))

    with pytest.raises(CapturedVariableError, match=r"(?s)usual cause: a cache that the function fills with it\."):
        differentiate(tf, f, w)


def test_a_run_is_noted_before_another_rule_runs(eager, tf):
    """To find what a function captures, the backend differentiates the outputs, and so may call a rule inside."""
    owner, w = Owner(None), tf.Variable([2.0], trainable=False)

    @custom_gradient
    def inner(x):
        def grad(upstream):
            owner.k = 5.0
            return upstream

        return x * 1, grad

    @custom_gradient
    def outer(x):
        owner.k = 3.0
        return inner(x * w), lambda upstream, variables: (7 * upstream * owner.k, [11 * upstream])

    x = tf.constant([1.0])
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        y = outer(x)
    close(tape.gradient(y, [x, w]), [[21], [11]])
