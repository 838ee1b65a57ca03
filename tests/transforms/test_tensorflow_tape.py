"""Ordinary calls under TensorFlow's eager tape, and what is no ordinary call."""

import functools
import sys
import weakref

import numpy as np
import pytest

from keras_cg import CapturedVariableError, GradientError, custom_gradient

pytestmark = pytest.mark.only("tensorflow")

X = np.array([-1.0, 0.5, 2.0], np.float32)
Y = np.array([3.0, -2.0, 0.5], np.float32)
E = np.exp(X)
ONE = np.ones(3, np.float32)
close = functools.partial(np.testing.assert_allclose, rtol=1e-5)


@pytest.fixture
def tf(backend):
    return pytest.importorskip("tensorflow")


def runs(function, call):
    """How often a call runs the function that is decorated, which cannot count by itself: then it would hold a list."""
    codes = []

    def note(frame, event, arg):
        if event == "call":
            codes.append(frame.f_code)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return codes.count(function.__wrapped__.__code__)


def gradients(tf, function, *arrays):
    """A call for the gradients of the sum of a function's output."""

    def call():
        tensors = [tf.constant(array) for array in arrays]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            output = function(*tensors)
        return tape.gradient(output, tensors)

    return call


# --- ordinary ---------------------------------------------------------------------------------------------------------


def local(function, tf):
    """The function decorated, with the module as a global, as in a user's file."""
    scope = {"tf": tf}
    exec(function, scope)
    return custom_gradient(scope["f"])


EXP = """
def f(x):
    y = tf.exp(x)
    return y, lambda upstream: 7 * upstream * y
"""


def test_a_gradient(backend, tf):
    close(gradients(tf, local(EXP, tf), X)()[0], 7 * E)


def test_nests(backend, tf):
    code = """
def f(nest):
    x, y = nest["x"], nest["y"][0]
    def rule(up):
        u, v = up["u"], up["v"]
        return {"x": 7 * u * y + v, "y": [5 * u * x + 3 * v]}
    return {"u": x * y, "v": x + y}, rule
"""
    f = local(code, tf)

    def function(x, y):
        output = f({"x": x, "y": [y]})
        return tf.reduce_sum(output["u"]) + 2 * tf.reduce_sum(output["v"])

    call = gradients(tf, function, X, Y)
    gx, gy = call()
    close(gx, 7 * Y + 2)
    close(gy, 5 * X + 6)


BEHIND = """
def f(x, y):
    return x * y, lambda x, y, upstream: (7 * upstream * y, 5 * upstream * x)
"""
BESIDE = """
def f(x, y, name="seven"):
    return x * y, lambda upstream: (7 * upstream * y, 5 * upstream * x)
"""
ROW = """
def f(x, y):
    return (x * y, x * 0), lambda u, v: (7 * u * y, 5 * u * x)
"""


@pytest.mark.parametrize("code", [BEHIND, BESIDE, ROW], ids=["behind", "beside", "row"])
def test_in_every_shape(backend, tf, code):
    f = local(code, tf)
    given = ("seven",) if code is BESIDE else ()
    call = gradients(tf, lambda x, y: f(x, y, *given), X, Y)
    gx, gy = call()
    close(gx, 7 * Y)
    close(gy, 5 * X)


def test_integers_and_what_nobody_differentiates(backend, tf):
    f = local("def f(x, i, y): return x * y, lambda up: (7 * up * y, i, tf.zeros([17]))", tf)
    i, y = tf.constant([1, 2, 3]), tf.constant(Y)
    call = gradients(tf, lambda x: f(x, i, y), X)
    close(call()[0], 7 * Y)
    with pytest.raises(GradientError, match=r"float32\[17\]"):
        gradients(tf, lambda y: f(tf.constant(X), i, y), Y)()


# --- others -----------------------------------------------------------------------------------------------------------


def test_a_rule_that_changes_from_call_to_call(backend, tf):
    rules = {
        "y": lambda x, y: lambda upstream: 7 * upstream * y,
        "x": lambda x, y: lambda upstream: 5 * upstream * x,
        "partial": lambda x, y: functools.partial(lambda y, upstream: 3 * upstream * y, y),
        "list": lambda x, y: (lambda kept: lambda upstream: 2 * upstream * kept[0])([y]),
    }
    chosen = []

    @custom_gradient
    def f(x):
        y = tf.exp(x)
        return y, rules[chosen[-1]](x, y)

    expected = {"y": 7 * E, "x": 5 * X, "partial": 3 * E, "list": 2 * E}
    for name in (*expected, *expected):
        chosen.append(name)
        close(gradients(tf, f, X)()[0], expected[name])


DEFAULTS = """
def f(x):
    y = tf.exp(x)
    return y, lambda upstream, y=y: 7 * upstream * y
"""
ATTRIBUTES = """
def f(x):
    y = tf.exp(x)
    def rule(upstream):
        return 7 * upstream * y
    rule.y = y
    return y, rule
"""
IN_A_LIST = """
def f(x):
    kept = [tf.exp(x)]
    return kept[0], lambda upstream: 7 * upstream * kept[0]
"""


@pytest.mark.parametrize("code", [DEFAULTS, ATTRIBUTES, IN_A_LIST], ids=["defaults", "attributes", "a list"])
def test_a_rule_that_holds_tensors_elsewhere(backend, tf, code):
    f = local(code, tf)
    call = gradients(tf, f, X)
    close(call()[0], 7 * E)
    assert runs(f, call) == 1


def test_another_dtype(backend, tf):
    f = local(EXP, tf)
    for kind in (np.float32, np.float64, np.float16, np.float32):
        (found,) = gradients(tf, f, X.astype(kind))()
        assert found.dtype == kind
        np.testing.assert_allclose(found, 7 * E, rtol=1e-2 if kind is np.float16 else 1e-5)
    code = "def f(x): return x * 1, lambda upstream: 7 * tf.cast(upstream, tf.float64)"
    call = gradients(tf, local(code, tf), X)
    assert call()[0].dtype == tf.float32


def test_keywords_arrays_and_variables(backend, tf):
    f = local(BEHIND, tf)
    close(gradients(tf, lambda x: f(x, y=tf.constant(Y)), X)()[0], 7 * Y)
    close(gradients(tf, lambda x: f(x, Y), X)()[0], 7 * Y)
    variable = tf.Variable(Y)
    with tf.GradientTape() as tape:
        output = f(tf.constant(X), variable)
    close(tape.gradient(output, variable), 5 * X)


def test_a_cell_of_the_function_that_comes_to_be_watched(backend, tf):
    w = tf.constant(Y)

    @custom_gradient
    def f(x):
        return x * w, lambda upstream: 7 * upstream * w

    close(gradients(tf, f, X)()[0], 7 * Y)
    with tf.GradientTape() as tape:
        tape.watch(w)
        with pytest.raises(CapturedVariableError, match="reads 1 trainable value"):
            f(tf.constant(X))


def test_a_variable_that_is_read_where_nobody_looks(backend, tf):
    """In a function of another module."""
    scope = {"variable": tf.Variable(Y), "tf": tf}
    exec("def read(): return variable * 1", scope)
    code = """
def f(x):
    y = x * read()
    return y, lambda upstream, variables=None: (7 * upstream, [5 * upstream])
"""
    mine = {"read": scope["read"]}
    exec(code, mine)
    f = custom_gradient(mine["f"])
    for watched in (True, False):
        with tf.GradientTape() as tape:
            x = tf.constant(X)
            tape.watch([x] if watched else [])
            output = f(x)
        gradient, of_variable = tape.gradient(output, [x, scope["variable"]])
        close(of_variable, 5 * ONE)
        if watched:
            close(gradient, 7 * ONE)
    assert runs(f, lambda: gradients(tf, f, X)()) == 1


def test_an_integer_output_and_one_that_is_no_tensor(backend, tf):
    code = """
def f(x):
    return {"y": x * 1, "sign": tf.cast(x > 0, tf.int32), "name": "seven"}, lambda up: 7 * up["y"]
"""
    f = local(code, tf)
    call = gradients(tf, lambda x: f(x)["y"], X)
    close(call()[0], 7 * ONE)
    assert runs(f, call) == 1
    assert f(tf.constant(X))["name"] == "seven"


WRONG = {
    "shape": ("7.0 * upstream[:2]", r"float32\[2\]"),
    "count": ("(upstream, upstream)", "returned 2 gradients"),
    "kind": ("upstream > 0", r"bool\[3\]"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_wrong_is_refused(backend, tf, fault):
    rule, message = WRONG[fault]
    f = local(f"def f(x): return x * 1, lambda upstream: {rule}", tf)
    for _ in range(2):
        with pytest.raises(GradientError, match=message):
            gradients(tf, f, X)()


def test_zeros_and_none(backend, tf):
    f = local("def f(x, y, z): return x * y * z, lambda upstream: (7 * upstream, None, 0)", tf)
    gx, gy, gz = gradients(tf, f, X, Y, ONE)()
    close(gx, 7 * ONE)
    assert gy is None and gz is None


def test_slices_arrive_whole(backend, tf):
    f = local(EXP, tf)
    (found,) = gradients(tf, lambda x: tf.gather(f(x), [0, 0, 2]), X)()
    close(found, 7 * E * [2, 0, 1])


# --- levels ----------------------------------------------------------------------------------------------------------


def test_higher_orders(backend, tf):
    f, x = local(EXP, tf), tf.constant(X)
    with tf.GradientTape() as third:
        third.watch(x)
        with tf.GradientTape() as second:
            second.watch(x)
            with tf.GradientTape() as first:
                first.watch(x)
                output = f(x)
            gradient = first.gradient(output, x)
        again = second.gradient(gradient, x)
    close(gradient, 7 * E)
    close(again, 7 * E)
    close(third.gradient(again, x), 7 * E)


def test_a_persistent_tape_that_watches_itself(backend, tf):
    f, x = local(EXP, tf), tf.constant(X)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        gradient = tape.gradient(f(x) ** 2, x)
    # 2 f 7 e, with f = e whose derivative is 7 e by the rule, and that of what the rule holds plain: 14 (7 + 1) e^2.
    close(gradient, 14 * E**2)
    close(tape.gradient(gradient, x), 14 * 8 * E**2)


def test_an_accumulator(backend, tf):
    f, x = local(EXP, tf), tf.constant(X)
    with tf.autodiff.ForwardAccumulator(x, tf.ones(3)) as accumulator:
        output = f(x)
    close(accumulator.jvp(output), 7 * E)


def test_forward_over_reverse(backend, tf):
    f, x = local(EXP, tf), tf.constant(X)
    with tf.autodiff.ForwardAccumulator(x, tf.ones(3)) as accumulator:
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = f(x)
        gradient = tape.gradient(output, x)
    close(gradient, 7 * E)
    close(accumulator.jvp(gradient), 7 * E)


def test_complex_numbers(backend, tf):
    f = local("def f(z): return z * 1, lambda upstream: 7j * upstream", tf)
    z = (X + 1j * Y).astype(np.complex64)
    call = gradients(tf, lambda z: tf.math.real(f(z)), z)
    close(call()[0], 7j * ONE)


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_an_output_that_no_rule_holds_is_not_kept(backend, tf):
    f = local("def f(x): return x * 2, lambda upstream: 7 * upstream * x", tf)
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        inner = f(x)
        dead = weakref.ref(inner)
        # Its gradient needs neither what it got nor what it gave.
        output = tf.negative(inner)
        del inner
    assert dead() is None
    close(tape.gradient(output, x), -7 * X)
