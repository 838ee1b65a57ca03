"""What a rule may return, and what it gets for anything else; the messages word for word are in test_errors.py."""

import collections
import dataclasses
import functools
import types
import warnings

import numpy as np
import pytest
from wrong_rules import X, Y

from keras_cg import GradientError, custom_gradient, ops, recipes, vjp

SEVEN, FIVE = np.full(3, 7.0), np.full(3, 5.0)

# A result is read by its structure: here is one of each kind, and what depends on dtypes and shapes.
IN_EVERY_MODE = (
    "test_over_all_leaves_with_those_left_at_their_defaults",
    "test_none_for_a_whole_nest",
    "test_a_number_for_a_scalar",
    "test_a_real_gradient_is_cast_to_the_dtype_of_its_argument[float64]",
    "test_a_real_gradient_is_cast_to_the_dtype_of_its_argument[int32]",
    "test_a_numpy_array_where_the_framework_converts_it_exactly",
    "test_a_missing_sum_over_a_broadcast_axis_is_named[small1-axis 1]",
    "test_complex_for_real",
)

Point = collections.namedtuple("Point", "a b")


@dataclasses.dataclass
class Pair:
    a: object
    b: object


zeros_if_none = lambda gradient, shape=(3,): np.zeros(shape) if gradient is None else gradient


# --- accepted ------------------------------------------------------------------------------------------------------


def test_over_all_leaves_with_those_left_at_their_defaults(frame):
    """It runs in every mode; test_any_arguments.py has all forms of a result, eagerly most of all."""
    f = custom_gradient(lambda x, n=2, y=None, *, scale=1.0: (x * y, lambda u: (7 * u, None, 5 * u, None)))
    frame.check(lambda x, y: f(x, y=y), [X, Y], [SEVEN, FIVE], X * Y)


def test_none_for_a_whole_nest(frame):
    decorated = custom_gradient(lambda p, y: (p[0] * p[1] * y, lambda upstream: (None, 5 * upstream)))
    gx, gy = frame.gradients(lambda x, y: decorated([x, x], y), X, Y)
    np.testing.assert_allclose(zeros_if_none(gx), np.zeros(3))
    np.testing.assert_allclose(gy, FIVE)


@pytest.mark.parametrize("nothing", [None, 0], ids=str)
def test_two_readings_that_differ_at_integers_alone(eager, nothing):
    """Nothing for a whole pytree, in what is also a flat list."""
    decorated = custom_gradient(lambda p, k, name: (p[0] * 2.0, lambda upstream: (nothing, 7 * upstream, None)))
    (gx,) = eager.gradients(lambda x: decorated([x, ops.asarray([1, 2, 3])], ops.asarray([1, 2, 3]), "name"), X)
    np.testing.assert_allclose(zeros_if_none(gx), np.zeros(3))


def test_a_reading_with_a_gradient_of_a_static_argument_gives_way(eager):
    decorated = custom_gradient(lambda p, name: (p[0] * p[1], lambda upstream: (None, 5 * upstream)))
    gx, gy = eager.gradients(lambda x, y: decorated([x, y], "name"), X, Y)
    np.testing.assert_allclose(zeros_if_none(gx), np.zeros(3))
    np.testing.assert_allclose(gy, FIVE)


@pytest.mark.parametrize("order", [1, -1])
def test_static_leaves_count_for_the_order_of_a_flat_result(eager, order):
    """As it was written down, the tensor comes first, and in the order of the keys the static leaf."""
    decorated = custom_gradient(lambda p: (p["b"] * p["a"], lambda upstream: (7 * upstream, None)[::order]))
    with pytest.raises(GradientError, match="order"):
        eager.gradients(lambda x: decorated({"b": x, "a": 2.0}), X)


def test_a_list_is_no_dict_with_the_keys_0_and_1(eager):
    decorated = custom_gradient(lambda p, y: (p[0] * p[1] * y, lambda upstream: ([7 * upstream] * 2, 5 * upstream)))
    with pytest.raises(GradientError, match="in the wrong structure"):
        eager.gradients(lambda x, y: decorated({0: x, 1: x}, y), X, Y)


def test_a_rule_without_any_gradient_warns_once_for_its_function(eager):
    stopped = lambda nothing: lambda x, n: (x * n, lambda upstream: nothing)

    def found(function):
        function.__qualname__ = f"{function.__name__} of {eager.name}"  # the process may have tried another framework
        f = custom_gradient(function)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (gx,) = eager.gradients(lambda x: f(x, 3), X)
        np.testing.assert_allclose(zeros_if_none(gx), np.zeros(3))
        return [str(each.message).splitlines() for each in caught if issubclass(each.category, UserWarning)]

    def forgets(x, n):
        def rule(upstream):
            7 * upstream

        return x * n, rule

    ((first, where, *_),) = found(forgets)
    assert first == f"the rule of forgets of {eager.name} returned no gradient for any argument."
    assert where.startswith(f"    rule: {__file__}:")
    # The function may be defined again at each call.
    assert found(forgets) == found(stopped(0)) == found(stopped((0, None))) == []
    assert [len(found(stopped((None, None)))) for _ in range(3)] == [1, 0, 0]


def test_no_warning_of_a_recipe_without_arguments(eager):
    root = recipes.custom_root(lambda x: x * x - 2, lambda f, x0: x0)
    eager.gradients(lambda x: root(x), X)


@pytest.mark.only("jax")
def test_a_key_of_jax_needs_no_gradient(jax):
    """What stands in its place is ignored, too; a rule cannot know whether a seed came as a key or as a number."""
    for key in (jax.random.key(0), jax.random.split(jax.random.key(0), 4)):
        for gradients in (
            lambda u: (7 * u, 5 * u),
            lambda u: (7 * u, None, 5 * u),
            lambda u: (7 * u, u, 5 * u),
            lambda u, key=key: (7 * u, key, 5 * u),
        ):
            f = custom_gradient(lambda x, key, y, gradients=gradients: (x * y, gradients))
            first = jax.grad(lambda x, y, f=f, key=key: f(x, key, y).sum(), (0, 1))
            for both in (first, jax.jit(first)):
                np.testing.assert_allclose(both(X, Y), (SEVEN, FIVE))
        f = custom_gradient(lambda params: (params["x"] * 2, lambda upstream: {"x": 7 * upstream, "key": None}))
        g = custom_gradient(lambda x, key: (x * 2, lambda upstream: 7 * upstream))
        for call in (lambda x, key=key: f({"x": x, "key": key}), lambda x, key=key: g(x, key)):
            np.testing.assert_allclose(jax.vmap(jax.grad(call))(X), SEVEN)


def test_a_number_for_a_scalar(frame):
    frame.check(custom_gradient(lambda x: (x * 2, lambda upstream: 7.0)), [np.float32(3.0)], [7.0])


# JAX says that it has no float64 by default; the cast to it then changes nothing.
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
        cast = lambda value: value.astype(came)
    (gx,) = frame.gradients(custom_gradient(lambda x: (x * 2, lambda upstream: cast(upstream * 0 + 1))), X)
    assert gx.dtype == np.float32
    np.testing.assert_allclose(gx, np.ones(3))


def test_a_numpy_array_where_the_framework_converts_it_exactly(frame):
    decorated = custom_gradient(lambda x: (x * 2, lambda upstream: np.full(3, 7.0)))
    if frame.name == "torch":
        with pytest.raises(Exception) as caught:
            frame.gradients(decorated, X)
        # torch.compile makes tensors of arrays while it traces, and so stops at the float64 that it finds.
        assert frame.mode != "eager" or "returned something that is not a tensor for x" in str(caught.value)
    else:
        (gx,) = frame.gradients(decorated, X)
        assert gx.dtype == np.float32
        np.testing.assert_allclose(gx, SEVEN)


# --- what a flat list that could be read in two ways means ---------------------------------------------------------


def test_nothing_in_a_flat_list_that_can_mean_one_thing_only(eager):
    decorated = custom_gradient(lambda params, x: (params[0] * params[1] * x, lambda g: (None, 5 * g, 7 * g)))
    eager.check(lambda x, y: decorated([x, y], x), [X, Y], [SEVEN, FIVE])


# --- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_nested", [False, True])
def test_one_gradient_for_a_list(backend, is_nested):
    one = ops.asarray([1.0, 2.0])
    f = custom_gradient(lambda x: ((x[0][1] if is_nested else x[0]) * 2, lambda upstream: 7 * upstream))
    with pytest.raises(GradientError) as caught:
        vjp(f, [[one, one], [one]] if is_nested else [one, one])[1](one)
    assert caught.value.cause == (
        "a gradient was forgotten, or x was meant as one tensor; a list or a tuple is a pytree of them."
    )
    assert caught.value.remedy == "return one gradient for each tensor in x, or pass one array."


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


def test_complex_for_real(frame):
    """A tensor; for a number see test_errors.py."""
    turned = frame.tensor(np.array([1j, 2j, 3j], np.complex64))
    decorated = custom_gradient(lambda x: (x * 2, lambda upstream: turned))
    with pytest.raises(Exception, match="wrong kind for x") as caught:
        frame.gradients(lambda x: decorated(x), X)
    assert "got: complex64[3]" in str(caught.value) and "expected: float32[3]" in str(caught.value)


def test_the_argument_is_named_by_its_path(eager):
    @custom_gradient
    def culprit(params, *, scale):
        return params["layers"][1].a * scale, lambda upstream: (upstream[:2], upstream)

    with pytest.raises(GradientError) as caught:
        eager.gradients(lambda x, y: culprit({"layers": [None, Pair(x, 2)]}, scale=y), X, Y)
    assert "for params['layers'][1].a." in str(caught.value)


class Row(list):
    pass


@pytest.mark.parametrize("kind", [Row, types.MappingProxyType], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("place", ["alone", "beside a tensor"])
def test_an_output_that_is_a_container_which_is_not_opened(eager, backend, kind, place):
    def f(x):
        made = Row([3 * x]) if kind is Row else kind({"a": 3 * x})
        return (made if place == "alone" else (x, made)), lambda upstream: 7 * x

    x = eager.tensor(np.array([2.0], np.float32))
    where = "output" if place == "alone" else r"output\[1\]"
    if kind is Row and backend == "tensorflow":  # which opens it
        output = custom_gradient(f)(x)
        np.testing.assert_array_equal(eager.array((output if place == "alone" else output[1])[0]), [6.0])
        return
    with pytest.raises(TypeError, match=f"f: the {where} is a .*, and its elements would silently get no gradient"):
        vjp(custom_gradient(f), x)


class Held:
    def __init__(self, value):
        self.value = value


@pytest.mark.limit
def test_an_output_that_is_an_object_passes(eager):
    f = custom_gradient(lambda x: (Held(3 * x), lambda upstream: 7 * x))
    (found,) = eager.gradients(lambda x: f(x).value + x, np.array([2.0], np.float32))
    np.testing.assert_allclose(found, [1.0])  # the rule says 1 + 7 * 2


@pytest.mark.limit
def test_an_output_that_is_a_number_of_python_is_no_tensor(frame):
    f = custom_gradient(lambda x: (3.0, lambda upstream: 7 * upstream))
    (found,) = frame.gradients(lambda x: f(x) * x, np.array([2.0], np.float32))
    np.testing.assert_allclose(found, [3.0])  # the rule says 3 + 7 * 2
