"""A rule is called by the convention that its signature tells, the same everywhere. The rules are wrong on purpose."""

import functools
import inspect

import numpy as np
import pytest
from wrong_rules import X, Y

from keras_cg import GradientError, custom_gradient, ops, vjp

# A way to call a rule is chosen by its signature: here is one of each kind that a tracer reads in another way.
# test_any_arguments.py has the plain ones in every combination.
IN_EVERY_MODE = (
    "test_one_output[one_positional]",
    "test_one_output[default_captures_a_value]",
    "test_one_output[varargs]",
    "test_one_output[args_and_upstream]",
    "test_one_output[spelled_out_optional_upstream]",
    "test_one_output[partial_by_keyword]",
    "test_one_output[bound_method]",
    "test_two_outputs[two_positionals]",
    "test_two_outputs[two_positionals_and_variables]",
    "test_two_outputs[two_varargs]",
    "test_an_unused_output_has_zeros_upstream",
    "test_the_arguments_that_a_rule_gets",
)


# --- one output, two arguments: x gets 7 * upstream * y, y gets 5 * upstream; upstream is 3 ------------------------


class Rule:
    def __init__(self, y):
        self.y = y

    def __call__(self, upstream):
        return 7 * upstream * self.y, 5 * upstream

    def of_arguments(self, x, y, upstream):
        return 7 * upstream * y, 5 * upstream


ONE_OUTPUT = {
    "one_positional": lambda x, y: (x * y, lambda upstream: (7 * upstream * y, 5 * upstream)),
    "positional_only": lambda x, y: (x * y, lambda upstream, /: (7 * upstream * y, 5 * upstream)),
    "default_captures_a_value": lambda x, y: (x * y, lambda g, y=y, k=7: (k * g * y, 5 * g)),
    "varargs": lambda x, y: (x * y, lambda *dys: (7 * dys[0] * y, 5 * dys[0])),
    "args_and_upstream": lambda x, y: (
        x * y,
        lambda *args, upstream: (7 * upstream * args[1], 5 * upstream + 0 * args[0]),
    ),
    "spelled_out_optional_upstream": lambda x, y: (x * y, lambda x, y, upstream=None: (7 * upstream * y, 5 * upstream)),
    "spelled_out_with_extra_default": lambda x, y: (
        x * y,
        lambda x, y, upstream, k=7: (k * upstream * y, 5 * upstream),
    ),
    "partial": lambda x, y: (x * y, functools.partial(lambda k, upstream: (k * upstream * y, 5 * upstream), 7)),
    "partial_by_keyword": lambda x, y: (
        x * y,
        functools.partial(lambda upstream, k: (k * upstream * y, 5 * upstream), k=7),
    ),
    "callable_object": lambda x, y: (x * y, Rule(y)),
    "bound_method": lambda x, y: (x * y, Rule(y).of_arguments),
}


@pytest.mark.parametrize("name", ONE_OUTPUT)
def test_one_output(frame, name):
    decorated = custom_gradient(ONE_OUTPUT[name])
    frame.check(lambda x, y: 3 * decorated(x, y), [X, Y], [21 * Y, np.full(3, 15.0)], 3 * X * Y)


# --- two outputs: x gets 7 * dy1 + 11 * dy2; the upstreams are 2 and 3 ---------------------------------------------


TWO_OUTPUTS = {
    "two_positionals": lambda x: ((x * 2, x * 3), lambda dy1, dy2: 7 * dy1 + 11 * dy2),
    "two_positionals_and_a_default": lambda x: ((x * 2, x * 3), lambda dy1, dy2, k=7: k * dy1 + 11 * dy2),
    "two_positionals_and_variables": lambda x: ((x * 2, x * 3), lambda dy1, dy2, variables=None: 7 * dy1 + 11 * dy2),
    "two_varargs": lambda x: ((x * 2, x * 3), lambda *dys: 7 * dys[0] + 11 * dys[1]),
}


# torch.compile (2.13) cannot read the positional defaults of a function made while it traces, and here they decide.
UNREADABLE_WHILE_TRACING = ("two_positionals_and_a_default", "two_positionals_and_variables")


@pytest.mark.together
@pytest.mark.parametrize("name", TWO_OUTPUTS)
@pytest.mark.limit
def test_two_outputs(frame, name):
    decorated = custom_gradient(TWO_OUTPUTS[name])
    if frame.mode == "aot_eager" and name in UNREADABLE_WHILE_TRACING:
        with pytest.raises(AssertionError, match="make them keyword-only"):
            frame.gradients(lambda x: decorated(x)[0], X)
        return

    def loss(x):
        first, second = decorated(x)
        return 2 * first + 3 * second

    frame.check(loss, [X], [np.full(3, 7 * 2 + 11 * 3.0)], 13 * X)


def test_an_unused_output_has_zeros_upstream(frame):
    f = custom_gradient(lambda x: ((x * 2, x * 3), lambda dy1, dy2: 7 * dy1 + 11 * (dy2 + 1)))
    frame.check(lambda x: f(x)[0], [X], [np.full(3, 18.0)])


@pytest.mark.together
def test_the_arguments_that_a_rule_gets(frame):
    """Those of the call by position, those left at their defaults, and those that were passed by keyword."""

    def with_args(x, n=2, *, scale=1.0):
        def grad(*args, upstream):
            assert len(args) == 2 and args[1] == 4
            return 7 * upstream * args[0], None, None

        return x * n * scale, grad

    named = lambda x, n=2, y=None: (x * y, lambda x, n, y, upstream: (7 * n * upstream, None, 5 * upstream * x))
    by_position, by_name = custom_gradient(with_args), custom_gradient(named)
    default = custom_gradient(lambda x, n=3: (x * n, lambda x, n, upstream: (11 * n * upstream, None)))
    run = lambda x, y: by_position(x, 4, scale=10.0) + by_name(y=y, x=x) + default(x)
    frame.check(run, [X, Y], [7 * X + 14 + 33, 5 * X])


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

    eager.check(f, [X], [7 * X])


def test_a_rule_without_a_readable_signature(eager):
    # `max` is written in C and hides its signature; of the one-tuple that it gets it gives back the only part.
    with pytest.raises(ValueError):
        inspect.signature(max)
    decorated = custom_gradient(lambda x: ((x * 2,), max))
    eager.check(lambda x: decorated(x)[0], [X], [np.ones(3)])


@pytest.mark.parametrize(
    "rule",
    [lambda first, second: 7 * first + 5 * second, lambda first, second, static: 7 * first + 5 * second],
    ids=["tensors", "leaves"],
)
def test_one_upstream_each_of_an_output_with_a_static_leaf(backend, rule):
    """A rule takes one upstream for each tensor, or for each leaf: then the static leaf has None."""

    output, pullback = vjp(custom_gradient(lambda x: ((2 * x, 3 * x, "static"), rule)), 1.0)
    assert output[2] == "static"
    assert float(pullback((1.0, 10.0, None))[0]) == 7 * 1 + 5 * 10


# Rules with two parameters that the function defines itself, whose code says nearly all; upstream is 1 and 10.
DEFINED_INSIDE = {
    "beside a static leaf": (
        lambda x: ((2 * x, "static", 3 * x), lambda one, two: 7 * one + 5 * two),
        (1.0, None, 10.0),
    ),
    "after an argument": (
        lambda x: ((2 * x, 3 * x), lambda x, upstream: 7 * upstream[0] + 5 * upstream[1] + 0 * x),
        (1.0, 10.0),
    ),
    "beside what is needed": (
        lambda x: ((2 * x, 3 * x), lambda both, needs_input_grad: 7 * both[0] + 5 * both[1]),
        (1.0, 10.0),
    ),
    "beside a default": (lambda x: ((2 * x, 3 * x), lambda both, k=5: 7 * both[0] + k * both[1]), (1.0, 10.0)),
    "by name": (
        lambda x, k=1: ((2 * x, 3 * x), lambda x, k, *, upstream: 7 * upstream[0] + 5 * upstream[1] + 0 * x),
        (1.0, 10.0),
    ),
    "one each": (lambda x: ((2 * x, 3 * x), lambda one, two: 7 * one + 5 * two), (1.0, 10.0)),
}


@pytest.mark.parametrize("name", DEFINED_INSIDE)
def test_two_parameters_of_a_rule_that_the_function_defines(backend, name):
    fun, upstream = DEFINED_INSIDE[name]
    for _ in range(3):  # the first call reads the code
        _, pullback = vjp(custom_gradient(fun), 1.0)
        assert float(pullback(upstream)[0]) == 7 * 1 + 5 * 10


@pytest.mark.parametrize(
    ("fun", "message"),
    [
        (lambda x: ({"b": 2 * x, "a": 3 * x}, lambda one, two: 7 * one + 5 * two), "one by one, but its keys were not"),
        (lambda x: ((x, x, x), lambda one, two: 7 * one + 5 * two), "no calling convention fits"),
    ],
    ids=["unsorted keys", "three outputs"],
)
def test_two_parameters_that_fit_no_output(backend, fun, message):
    def pulled(fun):
        output, pullback = vjp(custom_gradient(fun), ops.asarray(1.0))
        return pullback(output)

    for _ in range(3):
        # Together: JAX calls the rule when it makes the pullback.
        with pytest.raises(TypeError, match=message):
            pulled(fun)


def test_a_rule_whose_further_parameters_have_defaults(backend):
    """It gets one upstream, a nest, where two outputs suggest two; an error says so, at each call, and nothing else."""
    one = ops.asarray([1.0, 2.0])
    rule = lambda dy1, dy2=None: 7 * dy1
    hint = (
        "got one pytree of 2 upstreams as dy1: its other parameters have defaults. Without these it gets one upstream"
    )
    for outputs in (lambda x: (x * 1, x * 2), lambda x: {"a": x * 1, "b": x * 2}):
        f = custom_gradient(lambda x, outputs=outputs: (outputs(x), rule))
        for _ in range(3):
            # Together: JAX 0.8 calls the rule when it makes the pullback.
            with pytest.raises((GradientError, TypeError)) as caught:
                vjp(f, one)[1](outputs(one))
            assert hint in "".join(getattr(caught.value, "__notes__", ())), caught.value
    f = custom_gradient(lambda x: ((x * 1, x * 2), lambda dys, scale=7.0: scale * dys[0]))
    output, pullback = vjp(f, one)
    np.testing.assert_allclose(np.asarray(pullback(output)[0]), [7.0, 14.0])
    f = custom_gradient(lambda x: (x * 1, lambda dy, scale=7.0: "nothing"))
    with pytest.raises(GradientError) as caught:
        vjp(f, one)[1](one)
    assert "upstreams" not in "".join(getattr(caught.value, "__notes__", ()))
