"""Errors say where the code is that is wrong: the place of the rule, and a traceback without frames of keras_cg."""

import functools
import pathlib
import traceback

import numpy as np
import pytest

import keras_cg
from keras_cg import GradientError, custom_gradient, errors, user_code

PACKAGE = pathlib.Path(keras_cg.__file__).parent
HERE = pathlib.Path(__file__)
X = np.arange(1.0, 4.0, dtype=np.float32)


def line_of(marker):
    """The place of the line of this file with a marker in a comment."""
    numbers = [number for number, line in enumerate(HERE.read_text().splitlines(), 1) if line.endswith(f"# {marker}")]
    return f"{HERE}:{numbers[0]}"


def own_frames(error):
    return [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if pathlib.Path(each.filename).is_relative_to(PACKAGE)
    ]


class Callable:
    def __call__(self, upstream):  # object
        return upstream[:2]

    def method(self, upstream):  # method
        return upstream[:2]


def with_weight(weight, upstream):  # partial
    return upstream[:2]


def passing(rule):
    @functools.wraps(rule)
    def wrapper(*args, **kwargs):
        return rule(*args, **kwargs)

    return wrapper


RULES = {
    "lambda": lambda upstream: upstream[:2],  # lambda
    "partial": functools.partial(with_weight, 2.0),
    "method": Callable().method,
    "object": Callable(),
    "wrapper": passing(with_weight),
}
MARKERS = {"wrapper": "partial"}


@pytest.mark.parametrize("kind", RULES)
def test_a_gradient_error_names_the_place_of_the_rule(eager, kind):
    rule = functools.partial(RULES[kind], 2.0) if kind == "wrapper" else RULES[kind]
    with pytest.raises(GradientError) as caught:
        eager.gradients(custom_gradient(lambda x: (2 * x, rule)), X)
    place = line_of(MARKERS.get(kind, kind))
    assert caught.value.location == place
    assert str(caught.value).splitlines()[1] == f"    rule: {place}"


@custom_gradient
def compiled_culprit(x):
    y = 2 * x

    def grad(upstream):  # compiled
        return upstream[:2]

    return y, grad


def test_the_place_of_a_rule_in_every_mode(frame):
    # With fullgraph=True, Dynamo quotes the exception in one of its own.
    with pytest.raises(Exception, match="the rule of compiled_culprit returned") as caught:
        frame.gradients(compiled_culprit, X)
    assert f"    rule: {line_of('compiled')}" in str(caught.value).replace("\\n", "\n").splitlines()


def test_an_error_about_the_signature_of_a_rule_names_the_place(eager):
    @custom_gradient
    def culprit(x):
        return 2 * x, lambda a, b, c: a  # signature

    with pytest.raises(TypeError, match="no calling convention") as caught:
        eager.gradients(culprit, X)
    assert caught.value.location == line_of("signature")
    assert f"    rule: {line_of('signature')}" in str(caught.value).splitlines()


@pytest.mark.only("numpy")
@pytest.mark.parametrize("rule", [len, np.add, 3, int, functools.partial(len), custom_gradient])
def test_what_has_no_code_of_the_user_has_no_place(rule):
    assert user_code.location(rule) is None
    error = errors.locate(ValueError("text"), rule, None)
    assert str(error) == "text" and not hasattr(error, "location")


class Culprit(Exception):
    pass


def raising(x, kind=Culprit):
    raise kind("once")  # raising


@pytest.mark.parametrize("where", ["function", "rule"])
@pytest.mark.parametrize("is_nested", [False, True], ids=["alone", "nested"])
@pytest.mark.parametrize("kind", [Culprit, TypeError, ValueError, AttributeError, KeyError])
def test_an_exception_of_the_user_passes_unchanged(eager, where, is_nested, kind):
    runs = []
    fail = lambda x: runs.append(x) or raising(x, kind)
    function = custom_gradient(fail if where == "function" else lambda x: (2 * x, fail))
    if is_nested:
        inner = function
        function = custom_gradient(lambda x: (inner(x), lambda upstream: upstream)) if where == "function" else inner
    with pytest.raises(kind) as caught:
        eager.gradients(function, X)
    assert caught.value.args == ("once",) and len(runs) == 1
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].name == "raising" and f"{frames[-1].filename}:{frames[-1].lineno}" == line_of("raising")
    assert [each.name for each in frames].count("raising") == 1
    if where == "function":
        assert [each.name for each in own_frames(caught.value)] == ["__call__"]


RETURNED = {
    "no pair": lambda x: 2 * x,
    "no rule": lambda x: (2 * x, 2 * x),
    "nest": lambda x: ({"y": 2 * x}, 7),
    "foreign": lambda x: (2 * x, np.ones(2)),
    "no pair of a nest": lambda x: {"y": 2 * x},
}


@pytest.mark.parametrize("kind", RETURNED)
def test_an_error_of_a_call_shows_one_frame_of_keras_cg(eager, kind):
    function = RETURNED[kind]
    with pytest.raises(TypeError, match="pair") as caught:
        custom_gradient(function)(eager.tensor(X))
    assert [each.name for each in own_frames(caught.value)] == ["__call__"]
    place = f"{HERE}:{function.__code__.co_firstlineno}"
    assert str(caught.value).splitlines()[1] == f"    function: {place}" and caught.value.location == place


backward_culprit = custom_gradient(lambda x: (2 * x, lambda upstream: upstream[:2]))
total = lambda f: lambda x: keras_cg.ops.sum(f(x))


DERIVATIVES = {
    "grad": lambda f, x: keras_cg.grad(total(f))(x),
    "value_and_grad": lambda f, x: keras_cg.value_and_grad(total(f))(x),
    "vjp": lambda f, x: keras_cg.vjp(f, x)[1](x),
    "jvp": lambda f, x: keras_cg.jvp(f, (x,), (x,)),
    "jacobian": lambda f, x: keras_cg.jacobian(f)(x),
    "hessian": lambda f, x: keras_cg.hessian(total(f))(x),
}


@pytest.mark.parametrize("name", DERIVATIVES)
@pytest.mark.parametrize("is_ours", [True, False], ids=["message", "exception"])
def test_a_derivative_shows_few_frames_and_the_message_once(eager, name, is_ours):
    function, kind, text = (backward_culprit, GradientError, "the rule of") if is_ours else (raising, Culprit, "once")
    with pytest.raises(kind, match=text) as caught:
        DERIVATIVES[name](function, eager.tensor(X))
    assert 1 <= len(own_frames(caught.value)) <= 3
    shown = "".join(traceback.format_exception(caught.value))
    if is_ours:
        assert shown.count(str(caught.value).partition("\n")[0]) == 1
        assert len(shown.splitlines()) < 60


@pytest.mark.parametrize("text", ["", "inner"])
def test_the_cause_of_the_users_exception_stays(eager, text):
    def function(x):
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise Culprit(text) from error

    with pytest.raises(Culprit) as caught:
        keras_cg.vjp(function, eager.tensor(X))
    assert type(caught.value.__cause__) is KeyError


WRONG_CALLS = {
    "argnums": lambda x: keras_cg.grad(total(backward_culprit), 3)(x),
    "no loss": lambda x: keras_cg.grad(lambda x: "text")(x),
    "upstream": lambda x: keras_cg.vjp(lambda x: 2 * x, x)[1]("text"),
    "tangents": lambda x: keras_cg.jvp(lambda x: 2 * x, (x,), x),
    "complex": lambda x: keras_cg.jacobian(lambda x: 2 * x)(x),
    "no function": lambda x: keras_cg.jvp(3, (x,), (x,)),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_wrong_call_of_a_derivative_shows_few_frames(eager, name):
    x = eager.tensor(X.astype(np.complex64)) if name == "complex" else eager.tensor(X)
    with pytest.raises((TypeError, ValueError)) as caught:
        WRONG_CALLS[name](x)
    assert 1 <= len(own_frames(caught.value)) <= 3


@pytest.mark.only("numpy")
def test_all_frames_are_shown_on_request_and_of_a_bug_of_keras_cg(backend, monkeypatch):
    culprit = custom_gradient(lambda x: 2 * x)
    with monkeypatch.context() as patch:
        patch.setenv("KERAS_CG_TRACEBACK", "full")
        with pytest.raises(TypeError) as caught:
            culprit([np.ones(2)])
        assert [each.name for each in own_frames(caught.value)][-1] == "checked_pair"
        with pytest.raises(GradientError) as caught:
            keras_cg.grad(total(backward_culprit))(X)
        assert len(own_frames(caught.value)) > 3
    monkeypatch.setattr(keras_cg.frontend.call.pytree, "split", None)
    with pytest.raises(TypeError) as caught:
        culprit([np.ones(2)])
    assert len(own_frames(caught.value)) > 1


@pytest.mark.only("tensorflow")
def test_a_function_inside_one_that_autograph_rewrote_has_its_name(tf):
    @tf.function
    def program(x):
        @custom_gradient
        def culprit(z):
            return 2 * z

        return culprit(x)

    with pytest.raises(TypeError, match=r"TypeError: program\.<locals>\.culprit must return a pair"):
        program(tf.constant(X))


SLICES = {
    "too many rows": ([4, 2], [2, 2]),
    "too few rows": ([2, 2], [2, 2]),
    "other columns": ([3, 1], [2, 1]),
    "columns of unknown size": (None, [2, 1]),
}


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("name", [*SLICES, "right", "right, of unknown size"])
def test_slices_of_the_wrong_shape_at_run_time(tf, name):
    size, shape = SLICES.get(name, (None if "unknown" in name else [3, 2], [2, 2]))

    @custom_gradient
    def culprit(x):
        def grad(upstream):
            return tf.IndexedSlices(7 * tf.ones(shape), [0, 2], None if size is None else tf.constant(size))

        return 2 * x, grad

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float32)])
    def program(x):
        (gradient,) = tf.gradients(culprit(x), x)
        return gradient.values

    if name in SLICES:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"culprit returned a gradient of the wrong shape"):
            program(tf.ones((3, 2)))
    else:
        np.testing.assert_array_equal(program(tf.ones((3, 2))), np.full((2, 2), 7.0))
