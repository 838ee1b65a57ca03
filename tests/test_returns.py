"""CONTRACT 3: what a rule may return, and what it gets for anything else. The rules are wrong on purpose."""

import collections
import dataclasses
import functools
import pickle

import numpy as np
import pytest

from keras_cg import CapturedVariableError, GradientError, custom_gradient, ops, recipes, vjp

X = np.array([1.0, 2.0, 3.0], np.float32)
Y = np.array([0.5, -1.0, 2.0], np.float32)
SEVEN, FIVE = np.full(3, 7.0), np.full(3, 5.0)

# A result is read by its structure: here is one of each kind, and what depends on dtypes and shapes.
IN_EVERY_MODE = (
    "test_flat[list]",
    "test_over_all_leaves_with_those_left_at_their_defaults",
    "test_keyword_only_and_further_keywords",
    "test_same_nest[dict]",
    "test_same_nest[ordered dict]",
    "test_same_nest[dataclass]",
    "test_same_nest_in_a_tuple[namedtuple]",
    "test_flat_for_a_nest[list]",
    "test_dict_with_keys_in_another_order",
    "test_none_for_a_whole_nest",
    "test_no_gradient[0]",
    "test_no_gradient_at_all",
    "test_what_stands_at_an_integer_tensor_is_ignored[text]",
    "test_a_number_for_a_scalar",
    "test_a_real_gradient_is_cast_to_the_dtype_of_its_argument",
    "test_a_numpy_array_where_the_framework_converts_it_exactly",
    "test_wrong_shape",
    "test_a_missing_sum_over_a_broadcast_axis_is_named[small1-axis 1]",
    "test_complex_for_real",
    "test_nothing_for_a_nest_in_what_is_also_a_flat_list",
    "test_a_failed_call_leaves_nothing_behind",
)

Point = collections.namedtuple("Point", "a b")


@dataclasses.dataclass
class Pair:
    a: object
    b: object


def zeros_if_none(gradient, shape=(3,)):
    return np.zeros(shape) if gradient is None else gradient


def check_two(frame, function, *more, **keywords):
    """`function(x, y, ...)` whose rule gives 7 for x and 5 for y."""
    decorated = custom_gradient(function)
    output, (gx, gy) = frame.differentiate(lambda x, y: decorated(x, y, *more, **keywords), X, Y)
    np.testing.assert_allclose(output, X * Y)
    np.testing.assert_allclose(gx, SEVEN)
    np.testing.assert_allclose(gy, FIVE)


def check_nest(frame, build, rule):
    """A function of one nest of x and y, made by `build`; `rule(7, 5)` says how its gradients come."""

    @custom_gradient
    def f(nest):
        a, b = (nest[key] for key in ("a", "b")) if isinstance(nest, dict) else _parts(nest)
        return a * b, lambda upstream: rule(7 * upstream, 5 * upstream)

    output, (gx, gy) = frame.differentiate(lambda x, y: f(build(x, y)), X, Y)
    np.testing.assert_allclose(output, X * Y)
    np.testing.assert_allclose(gx, SEVEN)
    np.testing.assert_allclose(gy, FIVE)


def _parts(nest):
    return (nest.a, nest.b) if hasattr(nest, "a") else nest


# --- accepted ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("container", [tuple, list], ids=["tuple", "list"])
def test_flat(frame, container):
    check_two(frame, lambda x, y: (x * y, lambda upstream: container([7 * upstream, 5 * upstream])))


@pytest.mark.parametrize("wrap", [lambda g: g, lambda g: (g,), lambda g: [g]], ids=["bare", "tuple", "list"])
def test_one(frame, wrap):
    decorated = custom_gradient(lambda x: (x * 2, lambda upstream: wrap(7 * upstream)))
    (gx,) = frame.gradients(decorated, X)
    np.testing.assert_allclose(gx, SEVEN)


def test_bare_beside_static_arguments(frame):
    decorated = custom_gradient(lambda x, n, name: (x * n, lambda upstream: 7 * upstream))
    (gx,) = frame.gradients(lambda x: decorated(x, 2, "name"), X)
    np.testing.assert_allclose(gx, SEVEN)


def test_over_all_leaves(frame):
    def f(x, n, y, name):
        return x * y, lambda upstream: (7 * upstream, None, 5 * upstream, "ignored")

    decorated = custom_gradient(f)
    gx, gy = frame.gradients(lambda x, y: decorated(x, 3, y, "name"), X, Y)
    np.testing.assert_allclose(gx, SEVEN)
    np.testing.assert_allclose(gy, FIVE)


def f_with_defaults(x, n=2, y=None, *, scale=1.0):
    return x * y, lambda upstream: (7 * upstream, None, 5 * upstream, None)


def test_over_all_leaves_with_those_left_at_their_defaults(frame):
    decorated = custom_gradient(f_with_defaults)
    gx, gy = frame.gradients(lambda x, y: decorated(x, y=y), X, Y)
    np.testing.assert_allclose(gx, SEVEN)
    np.testing.assert_allclose(gy, FIVE)


def test_over_given_leaves_without_those_left_at_their_defaults(frame):
    def f(x, n=2, y=None, *, scale=1.0):
        return x * y, lambda upstream: (7 * upstream, 5 * upstream)

    decorated = custom_gradient(f)
    gx, gy = frame.gradients(lambda x, y: decorated(x, y=y), X, Y)
    np.testing.assert_allclose(gx, SEVEN)
    np.testing.assert_allclose(gy, FIVE)


def test_keyword_arguments_in_the_order_of_the_signature(frame):
    def f(x, y):
        return x * y, lambda upstream: (7 * upstream, 5 * upstream)

    decorated = custom_gradient(f)
    gx, gy = frame.gradients(lambda x, y: decorated(y=y, x=x), X, Y)
    np.testing.assert_allclose(gx, SEVEN)
    np.testing.assert_allclose(gy, FIVE)


def test_keyword_only_and_further_keywords(frame):
    def f(*, b, a, **more):
        return a * b * more["c"], lambda upstream: (5 * upstream, 7 * upstream, 3 * upstream)

    decorated = custom_gradient(f)
    ga, gb, gc = frame.gradients(lambda a, b, c: decorated(c=c, a=a, b=b), X, Y, X)
    np.testing.assert_allclose(ga, SEVEN)
    np.testing.assert_allclose(gb, FIVE)
    np.testing.assert_allclose(gc, np.full(3, 3.0))


def test_variadic_arguments(frame):
    def f(*xs):
        return xs[0] * xs[1], lambda upstream: (7 * upstream, 5 * upstream)

    check_two(frame, f)


NESTS = {
    "list": lambda x, y: [x, y],
    "tuple": lambda x, y: (x, y),
    "dict": lambda x, y: {"b": y, "a": x},
    "namedtuple": lambda x, y: Point(x, y),
    "dataclass": lambda x, y: Pair(x, y),
    "ordered dict": lambda x, y: collections.OrderedDict(b=y, a=x),
}
OF_GRADIENTS = {**NESTS, "ordered dict": lambda ga, gb: {"a": ga, "b": gb}}


@pytest.mark.parametrize("kind", NESTS)
def test_same_nest(frame, kind):
    check_nest(frame, NESTS[kind], OF_GRADIENTS[kind])


@pytest.mark.parametrize("kind", NESTS)
def test_same_nest_in_a_tuple(frame, kind):
    check_nest(frame, NESTS[kind], lambda ga, gb: (OF_GRADIENTS[kind](ga, gb),))


@pytest.mark.parametrize("kind", [kind for kind in NESTS if "dict" not in kind])
def test_flat_for_a_nest(frame, kind):
    check_nest(frame, NESTS[kind], lambda ga, gb: (ga, gb))


def test_flat_for_a_dict_with_sorted_keys(frame):
    check_nest(frame, lambda x, y: {"a": x, "b": y}, lambda ga, gb: (ga, gb))


def test_dict_with_keys_in_another_order(frame):
    check_nest(frame, lambda x, y: {"a": x, "b": y}, lambda ga, gb: {"b": gb, "a": ga})


def test_deep_nest_beside_others(frame):
    def f(p, n, q):
        return p["w"][0] * q[0], lambda upstream: ({"w": [7 * upstream]}, None, (5 * upstream,))

    decorated = custom_gradient(f)
    gx, gy = frame.gradients(lambda x, y: decorated({"w": [x]}, "n", (y,)), X, Y)
    np.testing.assert_allclose(gx, SEVEN)
    np.testing.assert_allclose(gy, FIVE)


def test_nest_of_the_arguments_with_tensors_alone(frame):
    def f(p, n):
        return p["w"] * n, lambda upstream: {"w": 7 * upstream}

    decorated = custom_gradient(f)
    (gx,) = frame.gradients(lambda x: decorated({"w": x}, 3), X)
    np.testing.assert_allclose(gx, SEVEN)


def test_none_for_a_whole_nest(frame):
    def f(p, y):
        return p[0] * p[1] * y, lambda upstream: (None, 5 * upstream)

    decorated = custom_gradient(f)
    gx, gy = frame.gradients(lambda x, y: decorated([x, x], y), X, Y)
    np.testing.assert_allclose(zeros_if_none(gx), np.zeros(3))
    np.testing.assert_allclose(gy, FIVE)


@pytest.mark.parametrize("nothing", [None, 0, 0.0], ids=["None", "0", "0.0"])
def test_no_gradient(frame, nothing):
    decorated = custom_gradient(lambda x, y: (x * y, lambda upstream: (nothing, 5 * upstream)))
    gx, gy = frame.gradients(decorated, X, Y)
    np.testing.assert_allclose(zeros_if_none(gx), np.zeros(3))
    np.testing.assert_allclose(gy, FIVE)


@pytest.mark.inductor
def test_no_gradient_at_all(frame):
    decorated = custom_gradient(lambda x: (x * 2, lambda upstream: None))
    (gx,) = frame.gradients(lambda x: decorated(x) + 0 * x, X)
    np.testing.assert_allclose(gx, np.zeros(3))


@pytest.mark.parametrize("ignored", [None, 0, "text"], ids=str)
def test_what_stands_at_an_integer_tensor_is_ignored(frame, ignored):
    decorated = custom_gradient(lambda x, n: (x * 2, lambda upstream: (7 * upstream, ignored)))
    gradients = frame.gradients(lambda x: decorated(x, frame.tensor(np.array([1, 2, 3]))), X)
    np.testing.assert_allclose(gradients[0], SEVEN)


def test_a_tensor_at_an_integer_tensor_is_ignored(frame):
    decorated = custom_gradient(lambda x, n: (x * 2, lambda upstream: (7 * upstream, 5 * upstream)))
    gradients = frame.gradients(lambda x: decorated(x, frame.tensor(np.array([1, 2, 3]))), X)
    np.testing.assert_allclose(gradients[0], SEVEN)


@pytest.mark.parametrize("is_nest", [False, True])
def test_an_integer_gradient_of_an_integer_tensor_is_ignored(frame, is_nest):
    n = frame.tensor(np.array([1, 2, 3], np.int32))
    flat = custom_gradient(lambda x, n: (x * 2, lambda upstream: (7 * upstream, n)))
    nest = custom_gradient(lambda parts: (parts["x"] * 2, lambda upstream: {"x": 7 * upstream, "n": n}))
    gradients = frame.gradients(lambda x: nest({"x": x, "n": n}) if is_nest else flat(x, n), X)
    np.testing.assert_allclose(gradients[0], SEVEN)


@pytest.mark.inductor
def test_a_number_for_a_scalar(frame):
    decorated = custom_gradient(lambda x: (x * 2, lambda upstream: 7.0))
    (gx,) = frame.gradients(decorated, np.float32(3.0))
    np.testing.assert_allclose(gx, 7.0)


# JAX says that it has no float64 by default; the cast to it then changes nothing.
@pytest.mark.inductor
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
@pytest.mark.parametrize("came", ["float16", "float64", "int32"])
def test_a_real_gradient_is_cast_to_the_dtype_of_its_argument(frame, came):
    if frame.name == "torch":
        import torch

        cast = functools.partial(torch.Tensor.to, dtype=getattr(torch, came))
    elif frame.name == "tensorflow":
        import tensorflow as tf

        cast = functools.partial(tf.cast, dtype=came)
    else:

        def cast(value):
            return value.astype(came)

    def f(x):
        return x * 2, lambda upstream: cast(upstream * 0 + 1)

    (gx,) = frame.gradients(custom_gradient(f), X)
    assert gx.dtype == np.float32
    np.testing.assert_allclose(gx, np.ones(3))


def test_a_numpy_array_where_the_framework_converts_it_exactly(frame):
    decorated = custom_gradient(lambda x: (x * 2, lambda upstream: np.full(3, 7.0)))
    if frame.name == "torch":
        with pytest.raises(Exception) as caught:
            frame.gradients(decorated, X)
        # torch.compile makes tensors of arrays while it traces, and so stops at the float64 that it finds.
        assert frame.mode != "eager" or "returned no tensor for x" in str(caught.value)
    else:
        (gx,) = frame.gradients(decorated, X)
        assert gx.dtype == np.float32
        np.testing.assert_allclose(gx, SEVEN)


# --- refused -------------------------------------------------------------------------------------------------------


def refuse(frame, rule, *patterns, arrays=(X, Y)):
    """Runs a function called `culprit` with a bad rule, which must raise with every line of the message."""

    @custom_gradient
    def culprit(x, y):
        return ops.sum(x) * ops.sum(y), rule

    with pytest.raises(Exception) as caught:
        frame.gradients(lambda x, y: culprit(x, y), *arrays)
    text = str(caught.value)
    if frame.mode == "aot_eager":
        # torch.compile wraps what it stopped at into an error of its own, which shows ours.
        assert "GradientError" in text
    else:
        assert isinstance(caught.value, GradientError)
        assert isinstance(caught.value, ValueError)
    assert "culprit" in text
    for pattern in (
        *patterns,
        "got: " if "returned" not in patterns[0] else "",
        "expected: ",
        "usual cause: ",
        "remedy: ",
    ):
        assert pattern in text


def test_too_few(frame):
    refuse(frame, lambda g: 7 * g, "returned 1 gradient.", "expected: 2, one for each tensor argument: x, y")
    refuse(frame, lambda g: (7 * g,), "returned 1 gradient.", "expected: 2, one for each tensor argument: x, y")
    refuse(frame, lambda g: None, "returned 1 gradient.", "expected: 2")
    refuse(frame, lambda g: (), "returned 0 gradients.", "expected: 2")


def test_one_gradient_for_a_list(backend):
    f = custom_gradient(lambda x: (x[0] * x[1], lambda upstream: 7 * upstream))
    one = ops.asarray([1.0, 2.0])
    with pytest.raises(GradientError) as caught:
        vjp(f, [one, one])[1](one)
    assert caught.value.cause == (
        "a gradient was forgotten, or x was meant as one tensor; a list or a tuple is a nest of them."
    )
    assert caught.value.remedy == "return one gradient for each tensor in x, or pass one array."


def test_a_rule_whose_further_parameters_have_defaults(backend):
    """It gets one upstream, a nest, where two outputs suggest two; an error says so, at each call, and nothing else."""
    one = ops.asarray([1.0, 2.0])

    def rule(dy1, dy2=None):
        return 7 * dy1

    hint = "got one nest of 2 upstreams as dy1: its other parameters have defaults. Without these it gets one upstream"
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


def test_too_many(frame):
    refuse(frame, lambda g: (7 * g, g, g), "returned 3 gradients.", "expected: 2, one for each tensor argument: x, y")


def test_wrong_shape(frame):
    refuse(
        frame,
        lambda g: (g * np.ones(2, np.float32) if frame.name != "torch" else g * frame.tensor(np.ones(2)), g),
        "wrong shape for x",
        "[2]",
        "expected: float32[3]",
    )


def test_a_shape_that_would_broadcast_is_wrong(frame):
    refuse(frame, lambda g: (g, g), "wrong shape for x", "got: float32[]", "expected: float32[3]")
    refuse(frame, lambda g: (7.0, g), "wrong shape for x", "[]", "expected: float32[3]")


@pytest.mark.parametrize(
    ("small", "axes"),
    [((3,), "axis 0"), ((4, 1), "axis 1"), ((1, 3), "axis 0"), ((), "axes 0 and 1"), ((1,), "axes 0 and 1")],
)
def test_a_missing_sum_over_a_broadcast_axis_is_named(frame, small, axes):
    function = custom_gradient(lambda x, s: (x * s, lambda upstream: (upstream * s, upstream * x)))
    with pytest.raises(Exception, match=f"usual cause: s was broadcast, and a sum over {axes} is missing"):
        frame.gradients(function, np.ones((4, 3), np.float32), np.ones(small, np.float32))


@pytest.mark.only("numpy")
def test_a_zero_that_numpy_computed_is_a_gradient(eager, backend):
    # Its float64 is a float to Python, too, and 0.0 as a number would say that there is no gradient.
    decorated = custom_gradient(lambda x: (x * 2, lambda upstream: np.sum(0 * upstream)))
    with pytest.raises(GradientError, match=r"got: float64\[\]"):
        eager.gradients(decorated, X.astype(float))


def test_a_swapped_pair_of_shapes(frame):
    refuse(
        frame,
        lambda g: (g + frame.tensor(np.zeros(2, np.float32)), g + frame.tensor(np.zeros(3, np.float32))),
        "wrong shape for x",
        "got: float32[2]",
        "expected: float32[3]",
        arrays=(X, Y[:2]),
    )


def test_wrong_nest(frame):
    refuse(frame, lambda g: {"x": g, "y": g}, "wrong structure", "'x': *", "expected: (x, y)")
    refuse(frame, lambda g: ((g, g),), "wrong structure", "expected: (x, y)")
    refuse(frame, lambda g: (g, {"y": g}), "wrong structure", "expected: (x, y)")


def test_wrong_keys(eager):
    @custom_gradient
    def culprit(params):
        return params["w"] * 2, lambda upstream: {"v": 7 * upstream}

    with pytest.raises(GradientError) as caught:
        eager.gradients(lambda x: culprit({"w": x}), X)
    assert "wrong structure" in str(caught.value)
    assert "'v'" in str(caught.value) and 'expected: (params["w"])' in str(caught.value).replace("'", '"')


@pytest.mark.parametrize("nothing", [None, 0], ids=str)
def test_nothing_for_a_nest_in_what_is_also_a_flat_list(frame, nothing):
    @custom_gradient
    def culprit(params, x, name):
        return params[0] * params[1] * x, lambda upstream: (nothing, 7 * upstream, None)

    with pytest.raises(Exception) as caught:
        frame.gradients(lambda x, y: culprit([x, y], x, "name"), X, Y)
    for line in (
        "the rule of",
        "culprit returned gradients that fit its arguments in two ways.",
        "got: (*, *, *)",
        "expected: (params[0], params[1], x, name)",
        "usual cause: None or 0 for a whole nest, in a result that is also a flat list with one part per leaf.",
        "remedy: return the same nest as the arguments, with None at each leaf that has no gradient.",
    ):
        assert line in str(caught.value)


def test_nothing_for_a_nest_beside_a_number(eager):
    @custom_gradient
    def culprit(params, z, n):
        return params[0] * params[1] * z * n, lambda upstream: (None, 7 * upstream, None)

    # The gradient of z, none being that of all params, or that of params[1]?
    with pytest.raises(GradientError, match="in two ways"):
        eager.gradients(lambda x, y: culprit([x, y], x, 2), X, Y)


def test_a_reading_that_gives_a_static_argument_a_gradient_is_none(eager):
    decorated = custom_gradient(lambda params, n: (params[0] * params[1] * n, lambda upstream: (None, 7 * upstream)))
    assert not np.any(eager.gradients(lambda x, y: decorated([x, y], 2), X, Y)[0])
    np.testing.assert_allclose(eager.gradients(lambda x, y: decorated([x, y], 2), X, Y)[1], SEVEN)
    decorated = custom_gradient(lambda p, n, y: (p[0] * p[2] * n * y, lambda u: (None, 5 * u, 7 * u)))
    _, gy, gz = eager.gradients(lambda x, y, z: decorated([x, "mode", y], 3, z), X, Y, X)
    np.testing.assert_allclose(gy, FIVE)
    np.testing.assert_allclose(gz, SEVEN)


def test_nothing_in_a_flat_list_that_can_mean_one_thing_only(eager):
    decorated = custom_gradient(lambda params, x: (params[0] * params[1] * x, lambda g: (None, 5 * g, 7 * g)))
    gx, gy = eager.gradients(lambda x, y: decorated([x, y], x), X, Y)
    np.testing.assert_allclose(gx, SEVEN)
    np.testing.assert_allclose(gy, FIVE)


def test_complex_for_real(frame):
    refuse(
        frame,
        lambda g: (
            (g + frame.tensor(np.zeros(3, np.float32))) * 1j if frame.name != "tensorflow" else tf_complex(g),
            g,
        ),
        "wrong kind for x",
        "complex",
        "expected: float32[3]",
    )


def tf_complex(g):
    import tensorflow as tf

    return tf.complex(g + tf.zeros(3), tf.ones(3))


@pytest.mark.parametrize("value", ["text", object()], ids=["string", "object"])
def test_no_tensor(frame, value):
    refuse(frame, lambda g: (value, g), "returned no tensor for x", "expected: float32[3]")


def test_the_argument_is_named_by_its_path(eager):
    @custom_gradient
    def culprit(params, *, scale):
        return params["layers"][1].a * scale, lambda upstream: (upstream[:2], upstream)

    def run(x, y):
        return culprit({"layers": [None, Pair(x, 2)]}, scale=y)

    with pytest.raises(GradientError) as caught:
        eager.gradients(run, X, Y)
    assert "for params['layers'][1].a." in str(caught.value)


def test_a_failed_call_leaves_nothing_behind(frame):
    bad = []

    @custom_gradient
    def f(x):
        return x * 2, lambda upstream: "text" if bad else 7 * upstream

    for _ in range(2):
        bad.append(True)
        with pytest.raises(Exception, match=r"GradientError|returned no tensor"):
            frame.gradients(lambda x: f(x), X)
        bad.clear()
        (gx,) = frame.gradients(lambda x: f(x), X)
        np.testing.assert_allclose(gx, SEVEN)


# --- what a message says, as data ----------------------------------------------------------------------------------

LABELS = {"location": "rule", "got": "got", "expected": "expected", "cause": "usual cause", "remedy": "remedy"}


def raised(frame, rule, *arrays):
    """The error of a function called `culprit` with a bad rule, whose lines are its data and nothing else."""

    @custom_gradient
    def culprit(x, y):
        return x * y, rule

    with pytest.raises(GradientError) as caught:
        frame.gradients(lambda x, y: culprit(x, y), *arrays)
    error = caught.value
    assert error.function.endswith("culprit")
    headline, *told = str(error).splitlines()
    assert error.function in headline and (error.argument or "") in headline
    said = {label: getattr(error, name) for name, label in LABELS.items()}
    assert told == [f"    {label}: {text}" for label, text in said.items() if text is not None]
    return error


def test_the_data_of_a_wrong_shape(eager):
    error = raised(eager, lambda g: (7 * g, 5 * g), np.ones((4, 3), np.float32), Y)
    assert (error.argument, error.got, error.expected) == ("y", "float32[4, 3]", "float32[3]")
    assert error.cause == "y was broadcast, and a sum over axis 0 is missing."
    assert error.remedy == "sum it over axis 0, and reshape it if needed; nothing is broadcast or summed for you."


def test_the_data_of_no_tensor(eager):
    error = raised(eager, lambda g: ("text", g), X, Y)
    assert (error.argument, error.got, error.expected) == ("x", "a str", "float32[3]")


def test_the_data_of_a_wrong_structure(eager):
    error = raised(eager, lambda g: {"x": g, "y": g}, X, Y)
    assert (error.argument, error.expected) == (None, "(x, y)")
    assert "'x': *" in error.got


def test_the_data_of_a_wrong_count(eager):
    error = raised(eager, lambda g: (7 * g,), X, Y)
    assert (error.argument, error.got) == (None, None)
    assert error.expected == "2, one for each tensor argument: x, y"


def test_the_data_of_a_recipe(eager):
    with pytest.raises(GradientError) as caught:
        recipes.straight_through(ops.sum)(eager.tensor(X))
    error = caught.value
    assert error.function in str(error) and error.argument is None
    assert ("float32[]" in error.got, "float32[3]" in error.expected) == (True, True)
    assert error.cause.startswith("a function that reduces") and error.remedy.startswith("return the structure")


def test_the_data_of_a_captured_value(eager):
    def run(w):
        def culprit(x):
            return x * w, lambda upstream: 7 * upstream

        return custom_gradient(culprit)(eager.tensor(X))

    with pytest.raises(CapturedVariableError) as caught:
        eager.gradients(run, Y)
    error = caught.value
    assert error.function.endswith("culprit")
    assert (error.argument, error.got, error.expected, error.cause) == (None, None, None, None)
    assert error.remedy.startswith("pass them as arguments; give the rule a `variables` parameter")
    assert f"    remedy, one of three: {error.remedy}" in str(error).splitlines()


def test_the_data_of_a_pickled_error(eager):
    error = raised(eager, lambda g: (g[:2], g), X, Y)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is GradientError and str(copy) == str(error)
    assert (copy.function, copy.got, copy.remedy) == (error.function, "float32[2]", error.remedy)


@pytest.mark.parametrize("kind", [GradientError, CapturedVariableError])
def test_an_error_of_somebody_else_has_no_data(kind):
    error = kind("a message")
    assert str(error) == "a message"
    assert {getattr(error, name) for name in ("function", "argument", *LABELS)} == {None}


@pytest.mark.only("tensorflow")
def test_the_data_of_what_tensorflow_raises_anew(eager, backend):
    import tensorflow as tf

    @custom_gradient
    def culprit(x):
        return 2 * x, lambda upstream: upstream[:2]

    @tf.function
    def program(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = culprit(x)
        return tape.gradient(y, x)

    with pytest.raises(GradientError, match="wrong shape for x") as caught:
        program(tf.constant(X))
    assert caught.value.got is None
    assert caught.value.__context__.got == "float32[2]"
