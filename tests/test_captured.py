"""Values that a function reads and that are no arguments: a gradient that would silently be missing raises instead."""

import pathlib

import numpy as np
import pytest
from outcomes import right_or_refused

import keras_cg
from keras_cg import CapturedVariableError, custom_gradient, ops

pytestmark = pytest.mark.together

X = np.array([1.0, 2.0, 3.0], np.float32)
HERE = pathlib.Path(__file__)


def closing_over(w):
    @custom_gradient
    def closure(x):
        return x * w, lambda upstream: 7 * upstream

    return closure


def test_a_captured_value_that_is_differentiated_raises(eager, backend):
    # Alone and beside the argument: neither may come out as zero or as the plain derivative.
    for f, text in (
        (lambda w: closing_over(w)(eager.tensor(X)), "reads 1 trainable value"),
        (lambda w: closing_over(w)(w), "reads its tensor argument 1 in another way"),
    ):
        with pytest.raises(CapturedVariableError, match=f"closure {text}"):
            eager.gradients(f, X)
    assert issubclass(CapturedVariableError, TypeError)


class Scaled:
    def __init__(self, w):
        self.w = w

    @custom_gradient
    def call(self, x):  # method
        return x * self.w, lambda upstream: 7 * upstream


def in_a_dict(w):
    params = {"w": [w], "unread": w * 2}

    @custom_gradient  # dict
    def f(x):
        return x * params["w"][0], lambda upstream: 7 * upstream

    return f


def in_two_closures(w):
    b = w * 2
    read = lambda: w + b

    @custom_gradient  # closures
    def f(x):
        return x * read(), lambda upstream: 7 * upstream

    return f


def in_a_recipe(w):
    return keras_cg.recipes.straight_through(lambda x: x * w)  # recipe


NAMES = {"method": (lambda w: Scaled(w).call, "self.w"), "dict": (in_a_dict, "params['w'][0]")}


@pytest.mark.parametrize("kind", NAMES)
def test_a_captured_value_has_its_name_and_its_function_a_place(eager, kind):
    make, name = NAMES[kind]
    with pytest.raises(CapturedVariableError, match="reads 1 trainable value that is not") as caught:
        eager.gradients(lambda w: make(w)(eager.tensor(X)), X)
    headline, place, *_ = str(caught.value).splitlines()
    assert headline.endswith(f"among its arguments: {name}")
    number = [each.endswith(f"# {kind}") for each in HERE.read_text().splitlines()].index(True) + 1
    assert place in (f"    function: {HERE}:{number}", f"    function: {HERE}:{number - 1}")


@pytest.mark.only("torch")
def test_a_parameter_has_its_name_in_its_module(torch):
    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False))
            self.scale = torch.nn.Parameter(torch.ones(3))

        @custom_gradient
        def call(self, x):
            return self.inner(x) * self.scale, lambda upstream: 7 * upstream

    module = Outer()
    with pytest.raises(CapturedVariableError, match=r"2 .*: self\.inner\.0\.weight, self\.scale\n"):
        module.call(torch.ones(3))
    with pytest.raises(CapturedVariableError, match=r"1 .*: module\.scale\n"):
        custom_gradient(lambda x: (x * module.scale, lambda upstream: 7 * upstream))(torch.ones(3))


def test_two_captured_values_are_told_in_the_plural(eager, backend):
    with pytest.raises(CapturedVariableError) as caught:
        eager.gradients(lambda w: in_two_closures(w)(eager.tensor(X)), X)
    text = str(caught.value)
    if backend == "jax":  # which differentiates them one by one
        assert "reads 1 trainable value that is not" in text
    else:
        assert "reads 2 trainable values that are not among its arguments: w, b\n" in text.replace("b, w", "w, b")
        assert "nothing about them, so they would" in text
        assert ": pass them as arguments;" in text and "or stop their gradient" in text


def test_a_recipe_does_not_ask_for_variables(eager):
    with pytest.raises(CapturedVariableError, match="trainable value that is not among its arguments: w\n") as caught:
        eager.gradients(lambda w: in_a_recipe(w)(eager.tensor(X)), X)
    text = str(caught.value)
    assert "remedy, one of these: pass it as an argument; or stop its gradient in the function" in text
    assert "`variables`" not in text
    assert f"    function: {HERE}:" in text


def test_a_constant_is_just_a_constant(frame):
    w = frame.tensor(2 * X)
    frame.check(lambda x: closing_over(w)(x), [X], [np.full(3, 7.0)], 2 * X * X)


# The other two frameworks have none.
HAS_VARIABLES = pytest.mark.only("torch", "tensorflow")


def variable(backend, array, trainable=True):
    if backend == "torch":
        import torch

        return torch.nn.Parameter(torch.tensor(array), requires_grad=trainable)
    import tensorflow as tf

    return tf.Variable(array, trainable=trainable)


def variable_gradients(eager, backend, f, variables):
    """The native gradients of `f(X)` for x and for `variables`."""
    if backend == "torch":
        _, (gx,) = eager.differentiate(f, X)
        return [gx, *[None if each.grad is None else each.grad.numpy() for each in variables]]
    import tensorflow as tf

    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return [None if each is None else each.numpy() for each in tape.gradient(y, [x, *variables])]


@HAS_VARIABLES
def test_variables_are_handed_to_the_rule(eager, backend):
    v, w = variable(backend, 3 * X), variable(backend, 2 * X)

    @custom_gradient
    def f(x):
        def grad(upstream, variables=None):
            assert [tuple(each.shape) for each in variables] == [(3,), (3,)]
            return 7 * upstream, [11 * upstream, 5 * upstream * x]

        return x * v + w, grad

    gx, gv, gw = variable_gradients(eager, backend, f, [v, w])
    np.testing.assert_allclose(gx, np.full(3, 7.0))
    np.testing.assert_allclose(gv, np.full(3, 11.0))
    np.testing.assert_allclose(gw, 5 * X)


@HAS_VARIABLES
def test_without_an_argument_that_is_differentiated(eager, backend):
    w = variable(backend, 2 * X)
    f = custom_gradient(lambda x: (x * w, lambda upstream, variables=None: (None, [5 * upstream])))
    if backend == "torch":
        f(eager.tensor(X)).sum().backward()
        np.testing.assert_allclose(w.grad.numpy(), np.full(3, 5.0))
    with pytest.raises(CapturedVariableError, match="among its arguments: w\n"):
        variable_gradients(eager, backend, closing_over(w), [w])


@HAS_VARIABLES
def test_frozen_variables_are_constants(eager, backend):
    w = variable(backend, 2 * X, trainable=False)
    gx, gw = variable_gradients(eager, backend, closing_over(w), [w])
    np.testing.assert_allclose(gx, np.full(3, 7.0))
    assert gw is None


# --- values of one framework ---------------------------------------------------------------------------------------


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("takes_variables", [True, False])
def test_get_variable_inside(eager, tf, takes_variables):
    rule = lambda upstream, variables=None: (7 * upstream, [11 * upstream]) if variables else 7 * upstream

    @custom_gradient
    def f(x):
        ones = tf.compat.v1.ones_initializer()
        w = tf.compat.v1.get_variable("inner_weight", shape=[3], initializer=ones, use_resource=True)
        return x * w, rule if takes_variables else lambda upstream: 7 * upstream

    def run():
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.constant(X)
            y = f(x)
            weights = tf.compat.v1.global_variables()
            found = tf.gradients(y, [x, *weights])
            session.run(tf.compat.v1.global_variables_initializer())
            return np.stack(session.run(found))

    # Without `variables` the weight would silently get no gradient.
    if takes_variables:
        right_or_refused(run, [np.full(3, 7.0), np.full(3, 11.0)], TypeError, NotImplementedError, match="inner_weight")
        return
    with pytest.raises((CapturedVariableError, NotImplementedError), match="inner_weight"):
        run()


@pytest.mark.only("jax", "numpy", "tensorflow")
def test_an_argument_that_is_also_captured(frame):
    """A body of a loop closes over what is passed, too. With `variables`, or where it is stopped, the rule serves."""

    def loss(w, body):
        def f(x, w):
            return body(x), lambda upstream: (7 * upstream, 5 * upstream)

        return custom_gradient(f)(ops.stop_gradient(w) + 1, w)

    run = lambda: frame.gradients(lambda w: loss(w, lambda x: x * w), X)
    if frame.name == "tensorflow" and frame.mode != "eager":
        assert np.isnan(run()).all()  # a graph does not know yet what will be differentiated
        return
    with pytest.raises(CapturedVariableError) as caught:
        run()
    name = "test_an_argument_that_is_also_captured.<locals>.loss.<locals>.f"
    assert str(caught.value).splitlines()[0] == (
        f"{name} reads its tensor argument 2 in another way, too, which the gradient of that argument may leave out."
    )
    (found,) = frame.gradients(lambda w: loss(w, lambda x: x * ops.stop_gradient(w)), X)
    np.testing.assert_allclose(found, np.full(3, 5.0))


@pytest.mark.only("torch")
@pytest.mark.limit
def test_a_captured_parameter_where_torch_compile_gives_up(torch):
    p = torch.nn.Parameter(torch.tensor(2.0))
    f = custom_gradient(lambda x: (x * p, lambda upstream: 7 * upstream))
    with pytest.raises(CapturedVariableError):
        torch.compile(lambda x: f(x) * 1, backend="aot_eager")(torch.ones(1, requires_grad=True))


@pytest.mark.only("torch")
def test_a_captured_value_in_an_operation_with_out(torch):
    w = torch.tensor([2.0, 3.0], requires_grad=True)

    @custom_gradient
    def f(x, out):
        return torch.mul(x, w, out=torch.empty(2)) if out is None else torch.mul(
            x, 2, out=w
        ), lambda upstream: 7 * upstream

    for out in (None, "w"):
        with pytest.raises(CapturedVariableError, match=r"(?s)test_a_captured.*f reads a value.*usual cause: .*`out=`"):
            f(torch.ones(2, requires_grad=True), out)
