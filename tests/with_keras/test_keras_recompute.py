"""`recipes.recompute` around what has a state in Keras: the second run sees what the first saw, and changes nothing.

Expected is what the layers do without `recompute`, or what the mask of the forward run says: where `x` is one, it is
the output. The rules are wrong on purpose, by a factor of 7, so that plain differentiation cannot pass.
"""

import numpy as np
import pytest

import keras_cg
from keras_cg import config, recipes

trains = pytest.mark.only("jax", "torch", "tensorflow")

X = np.linspace(-1, 2, 64).reshape(16, 4).astype(np.float32)
Y = np.cos(np.arange(64)).reshape(16, 4).astype(np.float32)
RATE = 0.125

# What torch.compile (2.13) says of itself while it traces.
dynamo_warns = pytest.mark.filterwarnings("ignore:(The .grad attribute of|Dynamo detected a call to):UserWarning")


@pytest.fixture
def keras(backend):
    """Keras on the backend under test."""
    import keras

    yield keras
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def seven(keras):
    """The identity, whose gradient is 7."""

    @keras_cg.custom_gradient
    def seven(x):
        return x * 1, lambda upstream: 7 * upstream

    return seven


def array(value):
    import keras

    return keras.ops.convert_to_numpy(value).astype(np.float64)


def states(model):
    """The values of all variables of a model, the seeds of its layers included."""
    return {each.path: array(each) for each in model.variables}


def same_states(found, expected, rtol=1e-5, atol=1e-6):
    found, expected = states(found), states(expected)
    assert len(found) == len(expected)
    for (path, one), other in zip(found.items(), expected.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=path)


# --- a mask ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["eager", "compiled"])
def pulled(request, backend):
    """`pulled(f, x, upstream)`: the output of `f`, and its gradient by the framework's own engine.

    Compiled is the whole, where a framework compiles; Keras on torch cannot compile a seed.
    """
    is_compiled = request.param == "compiled"

    def pulled(f, x, upstream):
        if backend == "jax":
            import jax

            def whole(x, upstream):
                output, pullback = jax.vjp(f, x)
                return output, pullback(upstream)[0]

            return (jax.jit(whole) if is_compiled else whole)(x, upstream)
        if backend == "tensorflow":
            import tensorflow as tf

            def whole(x, upstream):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    output = f(x)
                return output, tape.gradient(output, x, upstream)

            whole = tf.function(whole, jit_compile=is_compiled) if is_compiled else whole
            return whole(tf.constant(x), tf.constant(upstream))
        if backend == "torch":
            import torch

            x = torch.tensor(x, requires_grad=True)
            output = (torch.compile(f, backend="aot_eager") if is_compiled else f)(x)
            return output, torch.autograd.grad(output, x, torch.tensor(upstream))[0]
        output, pullback = keras_cg.vjp(f, x)
        return output, pullback(upstream)[0]

    pulled.is_compiled = is_compiled
    return pulled


@trains
@dynamo_warns
def test_a_dropout_has_one_mask(keras, seven, pulled, backend):
    dropout = keras.layers.Dropout(0.5, seed=3)
    dropout.build((16, 4))
    ones = np.ones((16, 4), np.float32)
    masks = []
    for step in (1, 2):
        if backend == "jax" and pulled.is_compiled:
            break  # Keras wants its state to be handed over there: below
        mask, gradient = pulled(recipes.recompute(lambda x: seven(dropout(x, training=True))), ones, Y)
        assert set(np.unique(array(mask))) == {0, 2}
        np.testing.assert_allclose(array(gradient), 7 * array(mask) * Y, rtol=1e-6)
        assert array(dropout.seed_generator.state).tolist() == [3, step]
        masks.append(array(mask))
    assert not masks or (masks[0] != masks[1]).any()


def test_seeds_of_several_kinds(keras, seven, backend):
    """Of a generator, of a layer, and of nobody: JAX refuses the last one by itself, where it traces."""
    seeds = keras.random.SeedGenerator(5)
    ones = np.ones((16, 4), np.float32)

    @recipes.recompute
    def f(x):
        noise = keras.random.uniform((16, 4), seed=seeds) + keras.random.uniform((16, 4), seed=seeds)
        if backend != "jax":
            noise = noise + keras.random.uniform((16, 4))
        return seven(x) * config.active.asarray(noise)

    x = config.active.asarray(ones)
    output, pullback = keras_cg.vjp(f, x)
    for _ in range(2):
        np.testing.assert_allclose(array(pullback(config.active.asarray(Y))[0]), 7 * array(output) * Y, rtol=1e-5)
    assert array(seeds.state).tolist() == [5, 2]
    assert (array(f(x)) != array(output)).all()


# --- training ----------------------------------------------------------------------------------------------------


def around(keras, layers, wrap, **options):
    """A layer whose call is `layers` one after the other, inside of `wrap`."""

    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__(**options)
            self.inner = layers()

        def build(self, shape):
            for layer in self.inner:
                layer.build(shape)

        def call(self, x):
            def run(x):
                for layer in self.inner:
                    x = layer(x)
                return x

            return wrap(run)(x)

    return Block()


def twins(keras, layers, mode="default", steps=3, **options):
    """A model with `recompute` around some layers, and one without, after the same training."""
    models = []
    for wrap in (recipes.recompute, lambda run: run):
        keras.utils.set_random_seed(7)
        block = around(keras, layers, wrap, **options)
        model = keras.Sequential([keras.layers.Dense(4, use_bias=False), block, keras.layers.Dense(4)])
        model.compile(keras.optimizers.SGD(RATE), "mse", **MODES[mode])
        model.fit(X, Y, batch_size=8, epochs=steps, shuffle=False, verbose=0)
        models.append(model)
    return models


MODES = {
    "eager": {"run_eagerly": True, "jit_compile": False},
    "default": {"jit_compile": False},
    "jit": {"jit_compile": True},
}


def stack(keras):
    @keras_cg.custom_gradient
    def seven(x):
        return x * 1, lambda upstream: 7 * upstream

    return [
        keras.layers.Dense(4, activation="tanh"),
        keras.layers.Dropout(0.5, seed=3),
        keras.layers.BatchNormalization(momentum=0.5),
        keras.layers.Lambda(seven),
        keras.layers.GaussianNoise(0.5, seed=4),
    ]


@trains
@dynamo_warns
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_layers_with_a_state_train_as_without(keras, backend, mode, policy):
    if backend == "torch" and mode == "jit":
        mode = "eager"  # all that Keras does takes torch.compile half a minute: below
    same_states(*twins(keras, lambda: stack(keras), mode, dtype=policy))


class Seeded:
    """Layers of a state of several kinds."""


@trains
@pytest.mark.parametrize("kind", ["attention", "gru", "lstm", "rnn"])
def test_whole_blocks_train_as_without(keras, kind):
    def layers():
        if kind == "attention":
            attention = keras.layers.MultiHeadAttention(2, 2, dropout=0.5, seed=3)
            attention.build((None, 4, 1), (None, 4, 1))
            inner = holding(keras, lambda x: attention(x, x), attention)
        else:
            make = {"gru": keras.layers.GRU, "lstm": keras.layers.LSTM, "rnn": keras.layers.SimpleRNN}[kind]
            inner = make(1, dropout=0.4, recurrent_dropout=0.4, return_sequences=True, seed=3)
            inner.build((None, 4, 1))
        return [Built(keras, (4, 1)), inner, Built(keras, (4,))]

    same_states(*twins(keras, layers))


def Built(keras, shape):
    return keras.layers.Reshape(shape)


def holding(keras, call, *layers):
    class Holding(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.held = list(layers)

        def build(self, shape):
            pass

        def call(self, x):
            return call(x)

    return Holding()
