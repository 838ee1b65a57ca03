"""Values that a function reads and that are no arguments: a gradient that would silently be missing raises instead."""

import numpy as np
import pytest
from outcomes import right_or_refused

from keras_cg import CapturedVariableError, custom_gradient

pytestmark = pytest.mark.together

X = np.array([1.0, 2.0, 3.0], np.float32)


def closing_over(w):
    @custom_gradient
    def closure(x):
        return x * w, lambda upstream: 7 * upstream

    return closure


def test_a_captured_value_that_is_differentiated_raises(eager, backend):
    # Alone and beside the argument: neither may come out as zero or as the plain derivative.
    for f in (lambda w: closing_over(w)(eager.tensor(X)), lambda w: closing_over(w)(w)):
        with pytest.raises(Exception) as caught:
            eager.gradients(f, X)
        assert isinstance(caught.value, CapturedVariableError)
        assert isinstance(caught.value, TypeError)
        text = str(caught.value)
        if "closure reads its tensor argument 1 in another way" in text:
            assert backend == "torch"  # which sees that they are one tensor
            continue
        for part in ("closure reads 1 trainable value", "silently get no gradient", "remedy, one of three: "):
            assert part in text
        for remedy in ("pass them as arguments", "a `variables` parameter", "stop their gradient"):
            assert remedy in text


def test_a_constant_is_just_a_constant(frame):
    w = frame.tensor(2 * X)
    output, (gx,) = frame.differentiate(lambda x: closing_over(w)(x), X)
    np.testing.assert_allclose(output, 2 * X * X)
    np.testing.assert_allclose(gx, np.full(3, 7.0))


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

    @custom_gradient
    def f(x):
        return x * w, lambda upstream, variables=None: (None, [5 * upstream])

    if backend == "torch":
        f(eager.tensor(X)).sum().backward()
        np.testing.assert_allclose(w.grad.numpy(), np.full(3, 5.0))
    with pytest.raises(CapturedVariableError, match="Parameter of float32" if backend == "torch" else "Variable"):
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
def test_get_variable_inside(eager, backend, takes_variables):
    import tensorflow as tf

    def rule(upstream, variables=None):
        return (7 * upstream, [11 * upstream]) if variables else 7 * upstream

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


@pytest.mark.only("torch")
@pytest.mark.limit
def test_a_captured_parameter_where_torch_compile_gives_up(backend):
    import torch

    p = torch.nn.Parameter(torch.tensor(2.0))
    f = custom_gradient(lambda x: (x * p, lambda upstream: 7 * upstream))
    with pytest.raises(CapturedVariableError):
        torch.compile(lambda x: f(x) * 1, backend="aot_eager")(torch.ones(1, requires_grad=True))
