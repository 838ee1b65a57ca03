"""Ways to get a silently wrong number that were found once; each stays right, or refused."""

import numpy as np
import pytest

from keras_cg import CapturedVariableError, GradientError, custom_gradient, grad, ops

X = np.array([2.0, 3.0], np.float32)


def value(tensor):
    return np.asarray(tensor)


# --- grad ----------------------------------------------------------------------------------------------------------


def test_one_tensor_passed_twice_to_grad(eager):
    x = eager.tensor(X)
    np.testing.assert_allclose(value(grad(lambda x, y: x * y * y)(x, x)), X**2)
    first, second = grad(lambda x, y: x * y * y, argnums=(0, 1))(x, x)
    np.testing.assert_allclose(value(first), X**2)
    np.testing.assert_allclose(value(second), 2 * X**2)
    first, second = grad(lambda p: p[0] * p[1] * p[1])([x, x])
    np.testing.assert_allclose(value(first), X**2)
    np.testing.assert_allclose(value(second), 2 * X**2)
    np.testing.assert_allclose(value(grad(lambda y: x * y)(x)), X)
    np.testing.assert_allclose(value(grad(lambda y, k: k * y)(x, k=x)), X)


def test_no_confusion_of_levels(eager):
    s = eager.tensor(np.float32(2.0))
    # The inner derivative of a a b b b at b = a is 3 a^4; the outer one 12 a^3.
    assert float(grad(lambda a: grad(lambda b: a * a * b * b * b)(a))(s)) == 12 * 8
    f = custom_gradient(lambda y: (y * s, lambda upstream: 7 * upstream))
    assert float(grad(f)(s)) == 7.0


def test_an_argument_named_twice(backend):
    for argnums in ((0, 0), (0, -1)):
        with pytest.raises(TypeError, match="a tuple of different ones"):
            grad(lambda x: x * x, argnums=argnums)(3.0)


# --- higher orders -------------------------------------------------------------------------------------------------


def test_the_output_keeps_its_rule_in_the_second_derivative(backend):
    through = custom_gradient(lambda x: (ops.floor(x + 0.5), lambda upstream: upstream))
    assert float(grad(grad(lambda x: through(x) ** 2))(2.3)) == 2.0

    # f = x^2 with the gradient 7x: (f^2)' = 14 x^3 and, as f' is 7x, (14 x f(x))' = 14 f + 14 x * 7x = 112 x^2.
    f = custom_gradient(lambda x: (x * x, lambda upstream: 7 * upstream * x))
    assert float(grad(grad(lambda x: f(x) ** 2))(2.0)) == pytest.approx(112 * 4)
    # f(f(x)): 7 f(x) * 7x = 49 x f(x), and then 49 (f(x) + x * 7x) = 392 x^2.
    assert float(grad(grad(lambda x: f(f(x))))(2.0)) == pytest.approx(392 * 4)
    # And once more: of 49 (f(x) + 7 x^2) it is 49 (7x + 14x) = 1029 x.
    assert float(grad(grad(grad(lambda x: f(f(x)))))(2.0)) == pytest.approx(1029 * 2)


@pytest.mark.only("jax")
def test_the_output_keeps_its_rule_under_jit(backend):
    import jax

    f = custom_gradient(lambda x: (x * x, lambda upstream: 7 * upstream * x))
    for transform in (
        jax.jit(jax.grad(jax.grad(lambda x: f(x) ** 2))),
        jax.grad(jax.jit(jax.grad(lambda x: f(x) ** 2))),
        jax.grad(jax.grad(jax.jit(lambda x: f(x) ** 2))),
    ):
        assert float(transform(2.0)) == pytest.approx(112 * 4)


@pytest.mark.only("numpy")
def test_a_rule_that_closes_over_what_is_differentiated(backend):
    import autograd

    def f(w):
        return ops.sum(custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream * w))(w))

    found = autograd.grad(f)(X)
    assert type(found) is np.ndarray
    np.testing.assert_allclose(found, 7 * X)
    np.testing.assert_allclose(autograd.grad(lambda w: ops.sum(autograd.grad(f)(w)))(X), np.full(2, 7.0))


@pytest.mark.only("numpy")
def test_autograd_of_a_python_number(backend):
    import autograd

    f = custom_gradient(lambda x: (x * x, lambda upstream: 7 * upstream))
    assert f(2.0) == 4.0
    assert autograd.grad(f)(2.0) == 7.0
    assert autograd.grad(lambda x: 3 * f(x))(2.0) == 21.0
    assert autograd.grad(lambda p: f(p["a"]))({"a": 2.0}) == {"a": 7.0}
    assert autograd.grad(autograd.grad(lambda x: f(x) ** 2))(2.0) == 14 * 7
    both = custom_gradient(lambda x: ((x * x, ops.sin(x)), lambda first, second: 7 * first + second))
    assert autograd.grad(lambda x: both(x)[0])(2.0) == 7.0


@pytest.mark.only("jax")
def test_jax_captured_by_an_outer_transform(backend):
    import jax
    import jax.numpy as jnp

    x, k = jnp.array(X), jnp.array([5.0, 7.0])

    def without(k):
        return custom_gradient(lambda x: (x * k, lambda upstream: 7 * upstream))

    def with_variables(k):
        def rule(upstream, variables=None):
            return (7 * upstream, [11 * upstream]) if variables else 7 * upstream

        return custom_gradient(lambda x: (x * k, rule))

    def value(make):
        return lambda k: jax.value_and_grad(lambda x: make(k)(x).sum())(x)[0]

    def vjp(make):
        return lambda k: jax.vjp(lambda x: make(k)(x), x)[0].sum()

    def square(make):
        return lambda k: jax.grad(lambda x: (make(k)(x) ** 2).sum())(x).sum()

    for outer in (jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f))):
        for build, expected in ((value, 11), (vjp, 11), (square, 154)):
            np.testing.assert_allclose(outer(build(with_variables))(k), np.full(2, expected))
            with pytest.raises(CapturedVariableError):
                outer(build(without))(k)

    def loss(x, k):
        return with_variables(k)(x).sum()

    for transform in (
        jax.grad(loss, (0, 1)),
        jax.jit(jax.grad(loss, (0, 1))),
        jax.grad(jax.jit(loss), (0, 1)),
        jax.jit(jax.grad(jax.jit(loss), (0, 1))),
    ):
        gx, gk = transform(x, k)
        np.testing.assert_allclose(gx, np.full(2, 7.0))
        np.testing.assert_allclose(gk, np.full(2, 11.0))

    def layers(p, x):
        return with_variables(p[1])(with_variables(p[0])(x)).sum()

    for transform in (jax.grad(layers), jax.jit(jax.grad(layers)), jax.grad(jax.jit(layers))):
        first, second = transform([k, k], x)
        np.testing.assert_allclose(first, np.full(2, 77.0))
        np.testing.assert_allclose(second, np.full(2, 11.0))


# --- torch: changes in place ---------------------------------------------------------------------------------------


def exp(torch):
    def f(x):
        y = x.exp()
        return y, lambda upstream: 7 * upstream * y

    return custom_gradient(f)


@pytest.mark.only("torch")
@pytest.mark.parametrize("form", ["closure", "list", "partial", "object", "arguments"])
def test_what_the_rule_uses_is_guarded(backend, form):
    import functools

    import torch

    class Rule:
        def __init__(self, x):
            self.x = x

        def __call__(self, upstream):
            return 7 * upstream * self.x

    forms = {
        "closure": lambda x: lambda upstream: 7 * upstream * x,
        "list": lambda x: (lambda kept: lambda upstream: 7 * upstream * kept[0])([x]),
        "partial": lambda x: functools.partial(lambda x, upstream: 7 * upstream * x, x),
        "object": Rule,
        "arguments": lambda x: lambda *args, upstream: 7 * upstream * args[0],
    }
    f = custom_gradient(lambda x: (x * 1, forms[form](x)))
    x = torch.tensor(X, requires_grad=True)
    z = f(x)
    with torch.no_grad():
        x.mul_(10)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    x.grad = None
    f(x).sum().backward()
    np.testing.assert_allclose(x.grad, 7 * 10 * X)


@pytest.mark.only("torch")
def test_an_output_that_the_rule_uses_is_guarded(backend):
    import torch

    x = torch.zeros(2, requires_grad=True)
    z = exp(torch)(x)
    with torch.no_grad():
        z.add_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


@pytest.mark.only("torch")
def test_what_the_rule_does_not_use_may_change(backend):
    import torch

    f = custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream))
    x = torch.tensor(X, requires_grad=True)
    z = f(x)
    z.mul_(2)
    with torch.no_grad():
        x.mul_(10)
    z.sum().backward()
    np.testing.assert_allclose(x.grad, np.full(2, 14.0))


@pytest.mark.only("torch")
@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x[:1], lambda x: x.reshape(2, 1)], ids=["same", "part", "shape"]
)
@pytest.mark.limit
def test_an_output_that_is_a_view_may_not_be_changed(backend, view):
    import torch

    f = custom_gradient(lambda x: (view(x), lambda upstream: 7 * torch.ones(2)))
    x = torch.tensor(X, requires_grad=True)
    y = x * 1
    z = f(y)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        z.mul_(3)
    z.sum().backward()
    np.testing.assert_allclose(x.grad, np.full(2, 7.0))


@pytest.mark.only("torch")
@pytest.mark.limit
def test_a_function_that_changes_its_argument(backend):
    import torch

    f = custom_gradient(lambda x: (x.mul_(2) * 1, lambda upstream: 7 * upstream))
    with pytest.raises(RuntimeError, match=r"<lambda> changed one of its arguments in place"):
        f(torch.tensor(X, requires_grad=True) * 1)


@pytest.mark.only("torch")
def test_a_module_may_count(backend):
    import torch

    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.scale = 7.0

        def forward(self, x):
            self.count += 1
            return custom_gradient(lambda x: (x * 2, lambda upstream: upstream * self.scale))(x)

    module = Counting()
    x = torch.tensor(X, requires_grad=True)
    (module(x) + module(x)).sum().backward()
    np.testing.assert_allclose(x.grad, np.full(2, 14.0))


@pytest.mark.only("torch")
def test_checkpoint_reads_saved_tensors_once(backend):
    import torch
    from torch.utils.checkpoint import checkpoint

    w = torch.nn.Parameter(torch.tensor(X))
    x = torch.ones(2, requires_grad=True)
    f = custom_gradient(lambda x: (x * w, lambda upstream, variables: (7 * upstream, [11 * upstream])))
    checkpoint(f, x, use_reentrant=False).sum().backward()
    np.testing.assert_allclose(x.grad, np.full(2, 7.0))
    np.testing.assert_allclose(w.grad, np.full(2, 11.0))

    g = custom_gradient(lambda x: (x * x, lambda upstream: 7 * upstream * x))
    (first,) = torch.autograd.grad(checkpoint(g, x, use_reentrant=False).sum(), x, create_graph=True)
    np.testing.assert_allclose(first.detach(), np.full(2, 7.0))
    (second,) = torch.autograd.grad(first.sum(), x)
    np.testing.assert_allclose(second, np.full(2, 7.0))


@pytest.mark.only("torch")
def test_inference_tensors(backend):
    import torch

    f = custom_gradient(lambda x, y: (x * y, lambda upstream: (7 * upstream, 5 * upstream)))
    with torch.inference_mode():
        constant = torch.tensor(X) * 1
    x = torch.tensor(X, requires_grad=True)
    np.testing.assert_allclose(f(constant, constant), X * X)
    f(x, constant).sum().backward()
    np.testing.assert_allclose(x.grad, np.full(2, 7.0))


@pytest.mark.only("torch")
def test_grad_inside_a_function_under_a_transform(backend):
    import torch

    f = custom_gradient(lambda x: (grad(lambda y: y**3)(x), lambda upstream: 7 * upstream))
    np.testing.assert_allclose(torch.func.grad(lambda x: f(x).sum())(torch.tensor(X)), np.full(2, 7.0))
    np.testing.assert_allclose(torch.func.vmap(grad(lambda y: y**3))(torch.tensor(X)), 3 * X**2)


# --- TensorFlow ----------------------------------------------------------------------------------------------------


@pytest.mark.only("tensorflow")
def test_an_upstream_of_slices(eager, backend):
    import tensorflow as tf

    f = custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream))
    for wrap in (lambda f: f, tf.function):
        x = eager.tensor(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = wrap(lambda x: tf.gather(f(x), [0, 0]))(x)
        np.testing.assert_allclose(tape.gradient(y, x), [14.0, 0.0])


@pytest.mark.only("tensorflow")
def test_gradients_of_slices_are_checked(eager, backend):
    import tensorflow as tf

    x = tf.ones((3, 2))

    def gradient(values):
        f = custom_gradient(lambda x: (x * 1, lambda upstream: tf.IndexedSlices(values, [0, 2], tf.constant([3, 2]))))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    np.testing.assert_allclose(tf.convert_to_tensor(gradient(7 * tf.ones((2, 2)))), [[7, 7], [0, 0], [7, 7]])
    with pytest.raises(GradientError, match="wrong shape for x"):
        gradient(tf.ones((2, 5)))


@pytest.mark.only("tensorflow")
def test_forward_mode_of_what_is_captured(eager, backend):
    import tensorflow as tf

    x, v, one = eager.tensor(X), tf.Variable([5.0, 7.0]), tf.ones(2)
    f = custom_gradient(lambda x: (x * v, lambda upstream, variables=None: (7 * upstream, [11 * upstream])))
    for wrap in (lambda f: f, tf.function):
        with tf.autodiff.ForwardAccumulator(v, one) as accumulator:
            y = wrap(lambda x: f(x))(x)
        np.testing.assert_allclose(accumulator.jvp(y), np.full(2, 11.0))
        with tf.autodiff.ForwardAccumulator([x, v], [one, one]) as accumulator:
            y = wrap(lambda x: f(x))(x)
        np.testing.assert_allclose(accumulator.jvp(y), np.full(2, 18.0))
    k = tf.constant([5.0, 7.0])
    with pytest.raises(CapturedVariableError), tf.autodiff.ForwardAccumulator(k, one):
        custom_gradient(lambda x: (x * k, lambda upstream: 7 * upstream))(x)


@pytest.mark.only("tensorflow")
def test_a_variable_whose_gradient_is_stopped(eager, backend):
    import tensorflow as tf

    x, v = eager.tensor(X), tf.Variable([5.0, 7.0])
    f = custom_gradient(lambda x: (x * tf.stop_gradient(v), lambda upstream: 7 * upstream))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    gx, gv = tape.gradient(y, [x, v])
    np.testing.assert_allclose(gx, np.full(2, 7.0))
    assert gv is None


@pytest.mark.only("tensorflow")
def test_a_captured_tensor_in_a_graph(eager, backend):
    import tensorflow as tf

    @tf.function
    def inside(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            w = x * 3
            y = custom_gradient(lambda x: (x * w, lambda upstream: 7 * upstream))(x)
        return tape.gradient(y, x)

    with pytest.raises(CapturedVariableError):
        inside(eager.tensor(X))


@pytest.mark.only("tensorflow")
def test_our_errors_keep_their_class_in_a_graph(eager, backend):
    import tensorflow as tf

    @tf.function
    def inside(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = custom_gradient(lambda x: (x * 2, lambda upstream: (upstream, upstream)))(x)
        return tape.gradient(y, x)

    with pytest.raises(GradientError, match="returned 2 gradients"):
        inside(eager.tensor(X))


# --- messages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [lambda u, *, k: u, lambda u, variables: u, lambda variables, upstream: upstream],
    ids=["keyword", "variables", "variables first"],
)
def test_a_parameter_that_nothing_fills(eager, rule):
    f = custom_gradient(lambda x: (x * 2, rule))
    with pytest.raises(TypeError, match="no calling convention fits the signature of its rule"):
        eager.gradients(f, X)


@pytest.mark.parametrize("result", [lambda g: (each for each in (g, g)), lambda g: {1, 2}, lambda g: NotImplemented])
def test_a_result_that_is_no_sequence_is_named(eager, result):
    f = custom_gradient(lambda x, y: (x * y, result))
    with pytest.raises(GradientError, match=r"got: a (generator|set|NotImplementedType)"):
        eager.gradients(f, X, X)


class TestRandomNumbers:
    """A function that must run again for the derivative of its gradient, and would draw others."""

    @pytest.mark.only("numpy", "tensorflow")
    @pytest.mark.parametrize("where", ["float", "integer"])
    @pytest.mark.limit
    def test_refused(self, backend, eager, where):
        kept = []
        draws = iter(np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], np.float32))

        @custom_gradient
        def dropout(x):
            mask = eager.tensor(next(draws))
            output = x * mask if where == "float" else (x, eager.tensor(np.asarray(eager.array(mask), np.int32)))
            return output, lambda upstream: 7 * (upstream if where == "float" else upstream[0]) * mask

        def loss(x):
            output = dropout(x)
            kept.append(output)  # for TensorFlow, which looks at what somebody still has
            return ops.sum((output if where == "float" else output[0]) ** 2)

        gradient = grad(loss)
        with pytest.raises(RuntimeError) as caught:
            grad(lambda x: ops.sum(gradient(x)))(eager.tensor([1.0, 2.0, 3.0]))
        for part in (
            "dropout (",
            "test_hostile.py:",
            ") ran again for a derivative of its gradient, and its rule is not that of the first run.",
            "got: mask is another float32[3]",
            "usual cause: the function draws random numbers, or reads something that has changed since.",
            "remedy: draw or read it outside, and pass it as an argument.",
        ):
            assert part in str(caught.value)

    @pytest.mark.only("numpy", "tensorflow")
    def test_nan_is_the_same_again(self, backend, eager):
        @custom_gradient
        def masked(x):
            return x * eager.tensor([1.0, np.nan, 1.0]), lambda upstream: 7 * upstream

        gradient = grad(lambda x: ops.sum(masked(x) ** 2))
        second = grad(lambda x: ops.sum(gradient(x)))(eager.tensor([1.0, 2.0, 3.0]))
        np.testing.assert_allclose(eager.array(second), [98.0, 98.0, 98.0])
