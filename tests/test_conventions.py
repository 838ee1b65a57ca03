"""CONTRACT 2: the rule is called under every convention, everywhere. The rules are wrong on purpose."""

import functools
import inspect
import re

import numpy as np
import pytest

from keras_cg import custom_gradient, grad, ops

X = np.array([1.0, 2.0, 3.0], np.float32)
Y = np.array([0.5, -1.0, 2.0], np.float32)

# A way to call a rule is chosen by its signature: here is one of each kind that a tracer reads in another way.
IN_EVERY_MODE = (
    "test_one_output[one_positional]",
    "test_one_output[default_captures_a_value]",
    "test_one_output[varargs]",
    "test_one_output[args_and_upstream]",
    "test_one_output[spelled_out_optional_upstream]",
    "test_one_output[args_upstream_and_variables]",
    "test_one_output[partial_by_keyword]",
    "test_one_output[bound_method]",
    "test_two_outputs[two_positionals]",
    "test_two_outputs[two_positionals_and_variables]",
    "test_two_outputs[two_varargs]",
    "test_upstream_has_the_structure_of_the_output",
    "test_an_output_that_nobody_used_has_zeros_upstream",
    "test_an_integer_output_has_no_upstream",
    "test_the_rule_may_name_arguments_left_at_their_defaults",
    "test_arguments_given_by_keyword_are_positional_to_the_rule",
    "test_no_convention_fits[two]",
)


# --- one output, two arguments: x gets 7 * upstream * y, y gets 5 * upstream; upstream is 3 ------------------------


def one_positional(x, y):
    def grad(upstream):
        return 7 * upstream * y, 5 * upstream

    return x * y, grad


def one_positional_of_any_name(x, y):
    return x * y, lambda g: (7 * g * y, 5 * g)


def one_positional_with_default(x, y):
    def grad(dy=None):
        return 7 * dy * y, 5 * dy

    return x * y, grad


def positional_only(x, y):
    def grad(upstream, /):
        return 7 * upstream * y, 5 * upstream

    return x * y, grad


def default_captures_a_value(x, y):
    return x * y, lambda g, y=y, k=7: (k * g * y, 5 * g)


def varargs(x, y):
    def grad(*dys):
        (dy,) = dys
        return 7 * dy * y, 5 * dy

    return x * y, grad


def args_and_upstream(x, y):
    def grad(*args, upstream):
        first, second = args
        return 7 * upstream * second, 5 * upstream + 0 * first

    return x * y, grad


def args_and_optional_upstream(x, y):
    def grad(*args, upstream=None):
        if upstream is None:
            (upstream,) = args
        return 7 * upstream * y, 5 * upstream

    return x * y, grad


def spelled_out_upstream(x, y):
    def grad(x, y, upstream):
        return 7 * upstream * y, 5 * upstream

    return x * y, grad


def spelled_out_optional_upstream(x, y):
    def grad(x, y, upstream=None):
        return 7 * upstream * y, 5 * upstream

    return x * y, grad


def spelled_out_with_extra_default(x, y):
    def grad(x, y, upstream, k=7):
        return k * upstream * y, 5 * upstream

    return x * y, grad


def unused_variables(x, y):
    def grad(upstream, variables=None):
        assert variables is None
        return 7 * upstream * y, 5 * upstream

    return x * y, grad


def unused_keyword_only_variables(x, y):
    def grad(*dys, variables=None):
        assert variables is None
        return 7 * dys[0] * y, 5 * dys[0]

    return x * y, grad


def unused_kwargs(x, y):
    def grad(*dys, **kwargs):
        assert not kwargs
        return 7 * dys[0] * y, 5 * dys[0]

    return x * y, grad


def args_upstream_and_variables(x, y):
    def grad(*args, upstream, variables=None):
        return 7 * upstream * args[1], 5 * upstream

    return x * y, grad


def partial(x, y):
    def grad(k, upstream):
        return k * upstream * y, 5 * upstream

    return x * y, functools.partial(grad, 7)


def partial_by_keyword(x, y):
    def grad(upstream, k):
        return k * upstream * y, 5 * upstream

    return x * y, functools.partial(grad, k=7)


class Rule:
    def __init__(self, y):
        self.y = y

    def __call__(self, upstream):
        return 7 * upstream * self.y, 5 * upstream

    def of_arguments(self, x, y, upstream):
        return 7 * upstream * y, 5 * upstream


def callable_object(x, y):
    return x * y, Rule(y)


def bound_method(x, y):
    return x * y, Rule(y).of_arguments


ONE_OUTPUT = [
    one_positional,
    one_positional_of_any_name,
    one_positional_with_default,
    positional_only,
    default_captures_a_value,
    varargs,
    args_and_upstream,
    args_and_optional_upstream,
    spelled_out_upstream,
    spelled_out_optional_upstream,
    spelled_out_with_extra_default,
    unused_variables,
    unused_keyword_only_variables,
    unused_kwargs,
    args_upstream_and_variables,
    partial,
    partial_by_keyword,
    callable_object,
    bound_method,
]


@pytest.mark.parametrize("function", ONE_OUTPUT, ids=lambda function: function.__name__)
def test_one_output(frame, function):
    decorated = custom_gradient(function)
    output, (gx, gy) = frame.differentiate(lambda x, y: 3 * decorated(x, y), X, Y)
    np.testing.assert_allclose(output, 3 * X * Y)
    np.testing.assert_allclose(gx, 21 * Y)
    np.testing.assert_allclose(gy, np.full(3, 15.0))


# --- two outputs: x gets 7 * dy1 + 11 * dy2; the upstreams are 2 and 3 ---------------------------------------------


def two_as_one(x):
    return (x * 2, x * 3), lambda dys: 7 * dys[0] + 11 * dys[1]


def two_positionals(x):
    return (x * 2, x * 3), lambda dy1, dy2: 7 * dy1 + 11 * dy2


def two_positionals_and_a_default(x):
    return (x * 2, x * 3), lambda dy1, dy2, k=7: k * dy1 + 11 * dy2


def two_positionals_and_variables(x):
    return (x * 2, x * 3), lambda dy1, dy2, variables=None: 7 * dy1 + 11 * dy2


def two_positionals_and_keyword_only_variables(x):
    return (x * 2, x * 3), lambda dy1, dy2, *, variables=None: 7 * dy1 + 11 * dy2


def two_varargs(x):
    return (x * 2, x * 3), lambda *dys: 7 * dys[0] + 11 * dys[1]


def two_with_upstream(x):
    return (x * 2, x * 3), lambda *args, upstream: 7 * upstream[0] + 11 * upstream[1]


def two_spelled_out(x):
    return (x * 2, x * 3), lambda x, upstream=None: 7 * upstream[0] + 11 * upstream[1]


TWO_OUTPUTS = [
    two_as_one,
    two_positionals,
    two_positionals_and_a_default,
    two_positionals_and_variables,
    two_positionals_and_keyword_only_variables,
    two_varargs,
    two_with_upstream,
    two_spelled_out,
]


# torch.compile (2.13) cannot read the positional defaults of a function made while it traces, and here they decide.
UNREADABLE_WHILE_TRACING = (two_positionals_and_a_default, two_positionals_and_variables)


@pytest.mark.together
@pytest.mark.parametrize("function", TWO_OUTPUTS, ids=lambda function: function.__name__)
@pytest.mark.limit
def test_two_outputs(frame, function):
    decorated = custom_gradient(function)
    if frame.mode == "aot_eager" and function in UNREADABLE_WHILE_TRACING:
        with pytest.raises(AssertionError, match="make them keyword-only"):
            frame.gradients(lambda x: decorated(x)[0], X)
        return

    def loss(x):
        first, second = decorated(x)
        return 2 * first + 3 * second

    output, (gx,) = frame.differentiate(loss, X)
    np.testing.assert_allclose(output, 13 * X)
    np.testing.assert_allclose(gx, np.full(3, 7 * 2 + 11 * 3.0))


@pytest.mark.together
def test_upstream_has_the_structure_of_the_output(frame):
    @custom_gradient
    def f(x):
        def grad(upstream):
            assert sorted(upstream) == ["a", "b", "name"]
            assert upstream["name"] is None
            (inner,) = upstream["b"]
            return 7 * upstream["a"] + 11 * inner

        return {"b": (x * 2,), "a": x * 3, "name": "static"}, grad

    def loss(x):
        output = f(x)
        assert output["name"] == "static"
        return 2 * output["a"] + 5 * output["b"][0]

    output, (gx,) = frame.differentiate(loss, X)
    np.testing.assert_allclose(output, 16 * X)
    np.testing.assert_allclose(gx, np.full(3, 7 * 2 + 11 * 5.0))


@pytest.mark.inductor
def test_an_output_that_nobody_used_has_zeros_upstream(frame):
    @custom_gradient
    def f(x):
        def grad(dy1, dy2):
            return 7 * dy1 + 11 * (dy2 + 1)

        return (x * 2, x * 3), grad

    (gx,) = frame.gradients(lambda x: f(x)[0], X)
    np.testing.assert_allclose(gx, np.full(3, 18.0))


@pytest.mark.inductor
def test_an_integer_output_has_no_upstream(frame):
    @custom_gradient
    def f(x):
        def grad(dy1, dy2):
            assert dy2 is None
            return 7 * dy1

        return (x * 2, ops.argmax(x)), grad

    output, (gx,) = frame.differentiate(lambda x: f(x)[0], X)
    np.testing.assert_allclose(output, 2 * X)
    np.testing.assert_allclose(gx, np.full(3, 7.0))


@pytest.mark.together
def test_the_rule_gets_the_arguments_it_was_called_with(frame):
    @custom_gradient
    def f(x, n=2, *, scale=1.0):
        def grad(*args, upstream):
            assert len(args) == 2
            assert args[1] == 4
            return 7 * upstream * args[0], None, None

        return x * n * scale, grad

    (gx,) = frame.gradients(lambda x: f(x, 4, scale=10.0), X)
    np.testing.assert_allclose(gx, 7 * X)


def test_the_rule_may_name_arguments_left_at_their_defaults(frame):
    @custom_gradient
    def f(x, n=2):
        def grad(x, n, upstream):
            return 7 * n * upstream, None

        return x * n, grad

    (gx,) = frame.gradients(lambda x: f(x), X)
    np.testing.assert_allclose(gx, np.full(3, 14.0))


def test_arguments_given_by_keyword_are_positional_to_the_rule(frame):
    @custom_gradient
    def f(x, n=2, y=None):
        def grad(x, n, y, upstream):
            assert n == 2
            return 7 * upstream, None, 5 * upstream * x

        return x * y, grad

    gx, gy = frame.gradients(lambda x, y: f(y=y, x=x), X, Y)
    np.testing.assert_allclose(gx, np.full(3, 7.0))
    np.testing.assert_allclose(gy, 5 * X)


def test_a_jitted_rule(eager, backend):
    compile_rule = {
        "jax": lambda: __import__("jax").jit,
        "torch": lambda: __import__("torch").compile(backend="eager"),
        "tensorflow": lambda: __import__("tensorflow").function,
        "numpy": lambda: lambda rule: functools.wraps(rule)(lambda *args, **kwargs: rule(*args, **kwargs)),
    }[backend]()

    @custom_gradient
    def f(x):
        @compile_rule
        def grad(x, upstream):
            return 7 * upstream * x

        return x * 2, grad

    (gx,) = eager.gradients(f, X)
    np.testing.assert_allclose(gx, 7 * X)


def test_a_rule_without_a_readable_signature(eager):
    # `max` is written in C and hides its signature; of the one-tuple that it gets it gives back the only part.
    with pytest.raises(ValueError):
        inspect.signature(max)
    decorated = custom_gradient(lambda x: ((x * 2,), max))
    (gx,) = eager.gradients(lambda x: decorated(x)[0], X)
    np.testing.assert_allclose(gx, np.ones(3))


@pytest.mark.parametrize(
    "rule",
    [
        lambda: 1,
        lambda a, b: 1,
        lambda a, b, c: 1,
        lambda x, y, z, upstream: 1,
        lambda a, b, *rest: 1,
    ],
    ids=["none", "two", "three", "four arguments and upstream", "two and more"],
)
def test_no_convention_fits(frame, rule):
    @custom_gradient
    def clumsy(x, y):
        return x * y, rule

    with pytest.raises(Exception) as caught:
        frame.gradients(lambda x, y: clumsy(x, y), X, Y)
    text = str(caught.value)
    if frame.mode == "aot_eager":
        # torch.compile reports in its own words, with what it stopped at: a call that does not fit, or our error.
        assert "Argument mismatch" in text or "no calling convention fits the signature of its rule" in text
        return
    assert isinstance(caught.value, TypeError)
    assert "no calling convention fits the signature of its rule" in text
    assert "clumsy" in text
    assert "2 positional arguments" in text and "1 output leaf" in text
    for form in ("grad(upstream)", "grad(dy1, dy2, ...)", "grad(*dys)", "grad(*args, upstream)", "`variables`"):
        assert form in text
    assert re.search(r"got: <lambda>\(", text)


@pytest.mark.parametrize(
    "rule",
    [lambda first, second: 7 * first + 5 * second, lambda first, second, static: 7 * first + 5 * second],
    ids=["tensors", "leaves"],
)
def test_one_upstream_each_of_an_output_with_a_static_leaf(backend, rule):
    """A rule takes one upstream for each tensor, or for each leaf: then the static leaf has None."""

    @custom_gradient
    def f(x):
        return (2 * x, 3 * x, "static"), rule

    def total(x):
        first, second, static = f(x)
        assert static == "static"
        return first + 10 * second

    assert float(grad(total)(1.0)) == 7 * 1 + 5 * 10
