"""Decorated functions inside Keras's own layers, wrappers and scopes, with its operations inside: the rule counts.

The rules are wrong on purpose, by a factor of 7, so that plain differentiation cannot pass.
"""

import subprocess
import sys

import numpy as np
import pytest

import keras_cg
from with_keras.training import RATE, SLOPE, UPSTREAM, W, X, array, close, fit, plain, trains


def holding(call, **options):
    """A layer without weights whose `call` this is."""
    import keras

    class Holding(keras.layers.Layer):
        supports_masking = True

        def call(self, x):
            return call(x)

        def compute_output_shape(self, shape):
            return shape

    return Holding(**options)


def wrapped(keras, seven):
    """Layers that hold `seven` in one way or another; made when they are called, since some need a scope."""

    @keras_cg.custom_gradient
    def switched(x, *, training):
        assert isinstance(training, bool)
        return x * (1 if training else 1000), lambda upstream: upstream * (7 if training else 1000)

    class Switched(keras.layers.Layer):
        def call(self, x, training=False):
            return switched(x, training=training)

    def in_scope():
        with keras.RematScope(mode="full"):
            return [holding(seven)]

    return {
        "Lambda": lambda: [keras.layers.Lambda(seven)],
        "remat": lambda: [holding(keras.remat(seven))],
        "RematScope": in_scope,
        "training": lambda: [Switched()],
    }


@trains
@pytest.mark.filterwarnings("ignore:.*use_reentrant.*")
@pytest.mark.parametrize("how", ["Lambda", "remat", "RematScope", "training"])
def test_a_function_inside(keras, seven, how):
    layer = plain()
    model = fit([layer, *wrapped(keras, seven)[how]()])
    close(layer.w, W - 2 * RATE * 7 * SLOPE)
    if how == "training":
        close(model.predict(X.astype("float32"), verbose=0), 1000 * X * array(layer.w))


def counted(keras, seeds):
    """A function that multiplies by 1 when it runs for the first time, by 2 then, as the seeds count."""

    @keras_cg.custom_gradient
    def counted(x):
        number = keras.ops.cast(seeds.next()[1], "float32") + 1
        return x * number, lambda upstream: 7 * upstream * x * number

    return counted


@trains
def test_a_seed_generator_inside(keras):
    class Counted(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.seeds = keras.random.SeedGenerator(3)

        def call(self, x):
            return counted(keras, self.seeds)(x)

    first, second = plain(), Counted()
    fit([first, second])
    step = RATE * 7 * (X**2 * UPSTREAM).sum(0)
    close(first.w, W * (1 - step) * (1 - 2 * step))
    assert array(second.seeds.state).tolist() == [3, 2]


@pytest.mark.limit
def test_a_seed_generator_where_a_function_runs_again(keras, backend):
    seeds = keras.random.SeedGenerator(3)
    seeds.next()
    x = keras.ops.convert_to_tensor(W, "float32")
    second = keras_cg.grad(keras_cg.grad(counted(keras, seeds)))
    with pytest.raises(
        RuntimeError, match=r"(?s)^counted.* changes a variable of Keras.*SeedGenerator.*random numbers outside"
    ):
        second(x)
    # JAX traces the function before it runs, and nothing else runs it.
    assert array(seeds.state).tolist() == [3, 1 if backend == "jax" else 2]


# --- the operations of Keras -----------------------------------------------------------------------------------------


def mixture(keras):
    ops = keras.ops

    @keras_cg.custom_gradient
    def mixture(x):
        e = ops.exp(x)
        return ops.sum(ops.tanh(x) * e), lambda upstream: 7 * upstream * ops.where(x > 0, ops.sqrt(e), ops.sin(x))

    return mixture


def test_operations_of_keras_to_every_order(keras, backend):
    x = keras.ops.convert_to_tensor(X, "float32")
    first = keras_cg.grad(mixture(keras))
    close(first(x), 7 * np.where(X > 0, np.exp(X / 2), np.sin(X)))
    if backend != "numpy":
        close(keras_cg.grad(first)(x), 7 * np.where(X > 0, np.exp(X / 2) / 2, np.cos(X)))


@pytest.mark.only("numpy")
@pytest.mark.limit
def test_operations_of_keras_to_second_order_on_numpy(keras):
    ops = keras.ops
    x = X.astype("float32")
    # Nothing differentiates them there, but those that are methods of an array as well.
    with pytest.raises(ValueError, match="setting an array element with a sequence"):
        keras_cg.grad(keras_cg.grad(mixture(keras)))(x)
    summed = keras_cg.custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream * x * ops.sum(x)))
    close(keras_cg.grad(keras_cg.grad(summed))(x), np.full(X.shape, 14 * X.sum()))


@pytest.mark.only("torch", "tensorflow")
def test_a_function_that_runs_again_sees_the_same_precision(keras, backend):
    seen = []

    class Layer(keras.layers.Layer):
        def build(self, shape):
            self.c = self.add_weight(shape=(2,), initializer="ones", trainable=False)

        def call(self, x):
            @keras_cg.custom_gradient
            def scaled(x):
                seen.append(keras.backend.standardize_dtype(self.c.value.dtype))
                return x * self.c, lambda upstream: 7 * upstream * self.c

            return scaled(x)

    layer = Layer(dtype="mixed_float16")
    layer.build((None, 2))
    gradient = keras_cg.grad(lambda x: keras.ops.sum(layer(x) ** 2))
    second = keras_cg.grad(lambda x: keras.ops.sum(gradient(x)))(keras.ops.ones((1, 2)))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(second), [[98.0, 98.0]])
    assert len(seen) > 1 and set(seen) == {"float16"}


@pytest.mark.only("numpy")
@pytest.mark.limit
def test_a_layer_on_numpy_has_no_gradient(keras, seven):
    """A limit: Keras's operations there are NumPy's, and autograd sees through those of keras_cg.ops alone."""
    x = X.astype("float32")
    layer = keras.layers.Dense(2)
    layer.build(X.shape)
    for fails, said in ((layer, "Only input tensors may be passed"), (keras.ops.exp, "setting an array element")):
        with pytest.raises(ValueError, match=said):
            keras_cg.grad(fails)(x)
    close(keras_cg.grad(seven)(x), np.full(X.shape, 7.0))
    assert layer(seven(x)).shape == X.shape


@pytest.mark.only("numpy")
@pytest.mark.limit
def test_keras_on_numpy_needs_jax(backend):
    """A limit of Keras (3.15), with or without keras_cg."""
    code = "import sys; sys.modules['jax'] = None; import keras"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "import of jax halted" in done.stderr


@pytest.mark.only("torch")
@pytest.mark.parametrize("reads_keras", [False, True])
def test_a_call_inside_a_scope_of_keras(keras, torch, reads_keras):
    """An ordinary call, before the scope, in it and after it; another run sees what the first one saw."""

    @keras_cg.custom_gradient
    def f(x):
        return keras.ops.multiply(x, 2) if reads_keras else x * 2, lambda upstream: 7 * upstream * x

    x = keras.ops.convert_to_tensor([1.0, 2.0]).requires_grad_()
    for scope in (keras.StatelessScope(), keras.src.backend.AutocastScope("float16")):
        for inside in (False, True, False):
            if inside:
                with scope:
                    output = f(x)
            else:
                output = f(x)
            (first,) = torch.autograd.grad(output.sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x)
            np.testing.assert_allclose(first.detach().cpu(), [7, 14])
            np.testing.assert_allclose(second.cpu(), [7, 7])
