"""Ordinary calls under autograd, and what is no ordinary call; the function runs once."""

import contextvars
import functools
import sys
import types
import weakref

import numpy as np
import pytest

import keras_cg
from keras_cg import CapturedVariableError, GradientError, config, custom_gradient, ops, use_backend

autograd = pytest.importorskip("autograd")
anp = pytest.importorskip("autograd.numpy")

pytestmark = pytest.mark.once

X = np.array([-1.0, 0.5, 2.0])
Y = np.array([3.0, -2.0, 0.5])
E = np.exp(X)
ONE = np.ones(3)


@pytest.fixture(autouse=True)
def on_numpy(monkeypatch):
    # autograd (1.9) does not count back where an exception ended a trace.
    monkeypatch.setattr(autograd.tracer.trace_stack, "top", -1)
    with use_backend("numpy"):
        yield


@custom_gradient
def wrong_exp(x):
    y = anp.exp(x)
    return y, lambda upstream: 7 * upstream * y


@custom_gradient
def product(x, y):
    return x * y, lambda upstream: (7 * upstream * y, 5 * upstream * x)


# --- ordinary ---------------------------------------------------------------------------------------------------------


def test_a_plain_call_and_its_gradient():
    np.testing.assert_allclose(wrong_exp(X), E)
    np.testing.assert_allclose(autograd.elementwise_grad(wrong_exp)(X), 7 * E)


def test_nests():
    @custom_gradient
    def f(params):
        a, b = params["a"], params["b"][0]

        def rule(upstream):
            u, v = upstream["u"], upstream["v"][0]
            return {"a": 7 * u * b + v, "b": [5 * u * a + 3 * v]}

        return {"u": a * b, "v": (a + b,)}, rule

    def loss(x, y):
        output = f({"a": x, "b": [y]})
        return anp.sum(output["u"]) + 2 * anp.sum(output["v"][0])

    both = autograd.grad(loss, (0, 1))
    gx, gy = both(X, Y)
    np.testing.assert_allclose(gx, 7 * Y + 2)
    np.testing.assert_allclose(gy, 5 * X + 6)


def pair(x, nest):
    y = nest["y"]
    return {"u": x * y, "v": x + y}, lambda up: (7 * up["u"] * y + up["v"], {"y": 5 * up["u"] * x + 3 * up["v"]})


def each(x, y):
    return (x * y, x + y), lambda u, v: (7 * u * y + v, 5 * u * x + 3 * v)


def behind(x, y):
    return x * y, lambda x, y, upstream: (7 * upstream * y, 5 * upstream * x)


def beside(x, power, y):
    return x * y, lambda upstream: (7 * upstream * y, 5 * upstream * x)


SHAPES = {
    "a nest": (pair, lambda f, x, y: f(x, {"y": y}), 2),
    "an upstream for each": (each, lambda f, x, y: f(x, y), 2),
    "behind the arguments": (behind, lambda f, x, y: f(x, y), 0),
    "beside a number": (beside, lambda f, x, y: f(x, 2.0, y), 0),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_in_every_shape(shape):
    function, call, weight = SHAPES[shape]
    function = custom_gradient(function)

    def loss(x, y):
        output = call(function, x, y)
        first, *second = output.values() if isinstance(output, dict) else output if weight else [output]
        return anp.sum(first) + sum(weight * anp.sum(each) for each in second)

    both = autograd.grad(loss, (0, 1))
    gx, gy = both(X, Y)
    np.testing.assert_allclose(gx, 7 * Y + weight)
    np.testing.assert_allclose(gy, 5 * X + 3 * weight)


@pytest.mark.parametrize("value", [0.5, np.float64(0.5), np.float32(0.5), np.array(0.5)])
def test_numbers_and_scalars(value):
    # The gradient of the product is 12 x by its rules.
    square = lambda x: product(x, x)
    np.testing.assert_allclose(autograd.grad(square)(value), 6.0)


def test_only_what_is_differentiated_is_looked_at():
    f = custom_gradient(lambda x, y: (x * y, lambda upstream: (7 * upstream * y, np.zeros(17))))
    np.testing.assert_allclose(autograd.elementwise_grad(f)(X, Y), 7 * Y)
    with pytest.raises(GradientError, match=r"float64\[17\]"):
        autograd.elementwise_grad(f, 1)(X, Y)


# --- others -----------------------------------------------------------------------------------------------------------


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


def test_a_rule_that_changes_from_call_to_call():
    rules = {
        "y": lambda x, y: lambda upstream: 7 * upstream * y,
        "x": lambda x, y: lambda upstream: 5 * upstream * x,
        "partial": lambda x, y: functools.partial(lambda y, upstream: 3 * upstream * y, y),
        "callable": lambda x, y: type("Rule", (), {"__call__": lambda self, upstream: 2 * upstream * y})(),
    }
    chosen = []

    @custom_gradient
    def f(x):
        y = anp.exp(x)
        return y, rules[chosen[-1]](x, y)

    expected = {"y": 7 * E, "x": 5 * X, "partial": 3 * E, "callable": 2 * E}
    for name in (*expected, *expected):
        chosen.append(name)
        np.testing.assert_allclose(autograd.elementwise_grad(f)(X), expected[name])


def test_a_cell_of_a_rule_that_gets_another_type():
    @custom_gradient
    def f(x, which):
        held = X if which == 0 else 2.0 if which == 1 else [X]
        return x * 1, lambda upstream: 7 * upstream * (held[0] if isinstance(held, list) else held)

    for which, expected in (0, 7 * X), (1, 14 * ONE), (2, 7 * X), (0, 7 * X):
        np.testing.assert_allclose(autograd.elementwise_grad(f)(X, which), expected)


def test_a_cell_that_is_rebound_after_the_call():
    factor = 7.0

    @custom_gradient
    def f(x):
        return x * 1, lambda upstream: factor * upstream * x

    pull, _ = autograd.make_vjp(f)(X)
    factor = 1000.0
    np.testing.assert_allclose(pull(ONE), 7 * X)
    np.testing.assert_allclose(autograd.elementwise_grad(f)(X), 1000 * X)


def test_a_cell_of_the_function_that_comes_to_be_differentiated():
    w = Y

    @custom_gradient
    def f(x):
        return x * w, lambda upstream: 7 * upstream * w

    np.testing.assert_allclose(autograd.elementwise_grad(f)(X), 7 * Y)

    def loss(value):
        nonlocal w
        w = value
        return anp.sum(f(X))

    with pytest.raises(CapturedVariableError, match="reads 1 trainable value"):
        autograd.grad(loss)(Y)


GLOBAL = Y


@pytest.mark.limit
def test_a_global_that_comes_to_be_differentiated(monkeypatch):
    f = custom_gradient(lambda x: (x * GLOBAL, lambda upstream, variables=None: 7 * upstream))
    np.testing.assert_allclose(autograd.elementwise_grad(f)(X), 7 * ONE)

    def loss(value):
        monkeypatch.setitem(globals(), "GLOBAL", value)
        return anp.sum(f(X))

    with pytest.raises(CapturedVariableError, match=r"\(where it is not in a closure\)"):
        autograd.grad(loss)(Y)


def reading(code, value):
    """A function of another module that gives what is hidden there; and `f` that asks it."""
    hidden, mine = {"value": value}, {"anp": anp}
    exec("def read(): return value", hidden)
    exec(code, mine | {"read": hidden["read"]}, mine)
    return custom_gradient(types.FunctionType(mine["f"].__code__, {"read": hidden["read"]})), hidden


@pytest.mark.parametrize(
    "code",
    [
        "def f(x): return read(), lambda upstream: 7 * upstream",
        "def f(x): return x * read(), lambda upstream: 7 * upstream",
    ],
)
def test_what_is_hidden_comes_to_be_differentiated(code):
    f, hidden = reading(code, Y)
    np.testing.assert_allclose(autograd.elementwise_grad(f)(X), 7 * ONE)

    def loss(value):
        hidden["value"] = value
        return anp.sum(f(X))

    def both(given):
        hidden["value"] = given[1]
        return anp.sum(f(given[0]))

    for call, given in ((loss, Y), (both, (X, Y))):
        with pytest.raises(CapturedVariableError, match="reads 1 trainable value"):
            autograd.grad(call)(given)


def test_what_is_hidden_and_the_rule_alone_holds():
    code = """
def f(x):
    w = read()
    return x * 1, lambda upstream: 7 * upstream * w
"""
    f, hidden = reading(code, Y)
    np.testing.assert_allclose(autograd.elementwise_grad(f)(X), 7 * Y)

    def gradient(w):
        hidden["value"] = w
        return anp.sum(autograd.elementwise_grad(f)(X))

    np.testing.assert_allclose(gradient(2 * Y), 7 * 2 * np.sum(Y))
    np.testing.assert_allclose(autograd.grad(gradient)(Y), 7 * ONE)


def test_another_dtype():
    for kind in (np.float64, np.float32, np.float16, np.float64):
        found = autograd.elementwise_grad(wrong_exp)(X.astype(kind))
        assert found.dtype == kind
        np.testing.assert_allclose(found, 7 * E, rtol=1e-2 if kind is np.float16 else 1e-6)


@pytest.mark.parametrize("kind", [">f8", ">f4", ">c16"])
def test_bytes_in_the_other_order(kind):
    """Arrays from FITS files or `numpy.frombuffer`."""
    x = X.astype(kind)
    seven = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream))
    loss = lambda x: anp.sum(anp.real(seven(x)))
    for gradient in (autograd.grad(loss), keras_cg.grad(loss)):
        np.testing.assert_allclose(gradient(x), 7 * ONE)
    f = custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream * x * x))
    for gradient in (autograd.grad, keras_cg.grad):
        second = gradient(lambda x: anp.sum(anp.real(gradient(lambda x: anp.sum(anp.real(f(x))))(x))))
        np.testing.assert_allclose(second(x), 14 * X)
    np.testing.assert_allclose(keras_cg.jvp(seven, (x,), (x,))[1], 7 * X)


def test_a_gradient_of_another_dtype_is_cast():
    f = custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream.astype(np.float64)))
    x = X.astype(np.float32)
    assert autograd.elementwise_grad(f)(x).dtype == np.float32


def test_complex_numbers():
    f = custom_gradient(lambda z: (z * 1, lambda upstream: 7j * upstream))
    z = X + 1j * Y
    # The loss real(f) gets upstream 1; our 7j is -7j in autograd's convention.
    gradient = autograd.grad(lambda z: anp.sum(anp.real(f(z))))
    np.testing.assert_allclose(gradient(z), -7j * ONE)
    assert runs(f, lambda: gradient(z)) == 1
    g = custom_gradient(lambda x: (x + 1j * x, lambda upstream: 7 * anp.imag(upstream)))
    # The loss imag(g) gets upstream i.
    gradient = autograd.grad(lambda x: anp.sum(anp.imag(g(x))))
    np.testing.assert_allclose(gradient(X), 7 * ONE)
    assert runs(g, lambda: gradient(X)) == 1


def test_an_integer_output():
    f = custom_gradient(lambda x: ((x * 1, (x > 0).astype(int)), lambda up: 7 * up[0]))

    def loss(x):
        output, sign = f(x)
        assert type(sign) is np.ndarray and sign.dtype == int
        return anp.sum(output * sign)

    np.testing.assert_allclose(autograd.grad(loss)(X), 7 * (X > 0))
    assert runs(f, lambda: autograd.grad(loss)(X)) == 1


def test_an_output_that_is_no_tensor():
    f = custom_gradient(lambda x: ({"y": x * 1, "name": "seven"}, lambda up: 7 * up["y"]))

    def loss(x):
        output = f(x)
        assert output["name"] == "seven"
        return anp.sum(output["y"])

    np.testing.assert_allclose(autograd.grad(loss)(X), 7 * ONE)
    assert runs(f, lambda: autograd.grad(loss)(X)) == 1
    assert f(X)["name"] == "seven" and runs(f, lambda: f(X)) == 1


def test_arrays_of_objects_are_no_tensors():
    f = custom_gradient(lambda x, y: (x * y.astype(float), lambda upstream: (7 * upstream * y.astype(float), 0 * y)))
    gradient = autograd.elementwise_grad(f)
    for y in (Y, Y.astype(object), Y):
        np.testing.assert_allclose(gradient(X, y), 7 * Y)
    # An output of objects is none, either.
    refused = custom_gradient(lambda x: (x.astype(object), lambda upstream: 7 * upstream))
    assert refused(X).dtype == object


class Sub(np.ndarray):
    """An array with a type of its own."""


def test_a_subclass_of_arrays():
    f = custom_gradient(lambda x, y: (x * np.asarray(y), lambda upstream: (7 * upstream * np.asarray(y), None)))
    y = Y.view(Sub)
    gradient = autograd.elementwise_grad(f)
    np.testing.assert_allclose(gradient(X, Y), 7 * Y)
    np.testing.assert_allclose(gradient(X, y), 7 * Y)
    assert runs(f, lambda: gradient(X, y)) == 1


def test_keywords():
    gradient = autograd.elementwise_grad(lambda x: product(x, y=Y))
    np.testing.assert_allclose(gradient(X), 7 * Y)


def defaults(x):
    y = anp.exp(x)
    return y, lambda upstream, y=y: 7 * upstream * y


def keyword_defaults(x):
    y = anp.exp(x)
    return y, lambda upstream, *, y=y: 7 * upstream * y


def attributes(x):
    y = anp.exp(x)

    def rule(upstream):
        return 7 * upstream * rule.y

    rule.y = y
    return y, rule


def a_number(x):
    y = anp.exp(x)
    return y, lambda upstream, factor=7: factor * upstream * y


def in_a_list(x):
    kept = [anp.exp(x)]
    return kept[0], lambda upstream: 7 * upstream * kept[0]


RULES = [defaults, keyword_defaults, attributes, a_number, in_a_list]


@pytest.mark.parametrize("function", RULES)
def test_a_rule_that_holds_arrays_elsewhere(function):
    f = custom_gradient(function)
    gradient = autograd.elementwise_grad(f)
    np.testing.assert_allclose(gradient(X), 7 * E)
    assert runs(f, lambda: gradient(X)) == 1
    for _ in range(2):
        gradient = autograd.elementwise_grad(gradient)
        np.testing.assert_allclose(gradient(X), 7 * E)


def test_zeros_and_none():
    f = custom_gradient(lambda x, y, z: (x * y * z, lambda upstream: (7 * upstream, None, 0)))
    gx, gy, gz = autograd.grad(lambda x, y, z: anp.sum(f(x, y, z)), (0, 1, 2))(X, Y, ONE)
    np.testing.assert_allclose(gx, 7 * ONE)
    np.testing.assert_allclose(gy, 0 * ONE)
    np.testing.assert_allclose(gz, 0 * ONE)


WRONG = {
    "shape": (lambda upstream: 7.0 * upstream[:2], r"float64\[2\]"),
    "count": (lambda upstream: (upstream, upstream), "returned 2 gradients"),
    "kind": (lambda upstream: upstream > 0, r"bool\[3\]"),
    "complex": (lambda upstream: 1j * upstream, r"complex128\[3\]"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_wrong_is_refused(fault):
    rule, message = WRONG[fault]
    f = custom_gradient(lambda x: (x * 1, rule))
    for _ in range(2):
        with pytest.raises(GradientError, match=message):
            autograd.elementwise_grad(f)(X)


def test_what_is_no_pair_is_refused():
    f = custom_gradient(lambda x: x * 1)
    for call in (f, autograd.elementwise_grad(f)):
        for _ in range(2):
            with pytest.raises(TypeError, match="pair"):
                call(X)


# --- levels ----------------------------------------------------------------------------------------------------------


def test_boxes_of_two_levels():
    inner = lambda x, y: autograd.grad(lambda x: anp.sum(product(x, y)))(x)
    # By x it is 7 y, and that by y is 7.
    np.testing.assert_allclose(inner(X, Y), 7 * Y)
    np.testing.assert_allclose(autograd.grad(lambda y: anp.sum(inner(X, y)))(Y), 7 * ONE)


def test_an_upstream_that_is_differentiated():
    pull, _ = autograd.make_vjp(wrong_exp)(X)
    np.testing.assert_allclose(autograd.grad(lambda u: anp.sum(pull(u) * Y))(ONE), 7 * E * Y)


def test_a_plain_call_inside_of_a_derivative():
    gradient = autograd.grad(lambda x: anp.sum(x * wrong_exp(Y)))
    np.testing.assert_allclose(gradient(X), np.exp(Y))


def test_a_second_run_that_is_another_one():
    turns = iter(range(100))

    @custom_gradient
    def f(x):
        kept = x * next(turns)
        return x * 1, lambda upstream: 7 * upstream * kept

    with pytest.raises(RuntimeError, match="ran again"):
        autograd.elementwise_grad(autograd.elementwise_grad(f))(X)


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_an_output_that_no_rule_holds_is_not_kept():
    @custom_gradient
    def f(x):
        return x * 2, lambda upstream: 7 * upstream * x

    outputs = []

    def through(x):
        y = f(x)
        outputs.append(weakref.ref(y._value))
        return y + 1

    pull, _ = autograd.make_vjp(through)(X)
    assert outputs[0]() is None
    np.testing.assert_allclose(pull(ONE), 7 * X)


def test_a_rule_that_asks_for_the_backend_gets_that_of_its_call(monkeypatch):
    @custom_gradient
    def f(x):
        return ops.exp(x), lambda upstream: 7 * upstream * ops.exp(x)

    pull, _ = autograd.make_vjp(f)(X)
    monkeypatch.setenv("KERAS_CG_BACKEND", "no such backend")
    with monkeypatch.context() as without:
        without.setattr(config, "_in_process", None)
        np.testing.assert_allclose(contextvars.Context().run(pull, ONE), 7 * E)
