"""`recipes.recompute` around what has a state in Keras: the second run sees what the first saw, and none changes it.

Expected is what the layers do without `recompute`, or a closed form. The rules are wrong on purpose, by a factor of 7,
so that plain differentiation cannot pass.
"""

import re
import threading

import numpy as np
import pytest

import keras_cg
from keras_cg import recipes
from keras_cg.frontend import config
from with_keras.training import MODES, array, trains

X = np.linspace(-1.01, 2, 64).reshape(16, 4).astype(np.float32)
Y = np.cos(np.arange(64)).reshape(16, 4).astype(np.float32)
RATE = 0.125


# --- what every run sees ---------------------------------------------------------------------------------------------


@trains
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("thread", ["the same", "another"])
def test_whether_it_trains_is_what_the_call_around_said(keras, seven, backend, training, thread):
    """A thread of torch's backward pass has none of the state that Keras keeps per thread."""

    class Flagged(keras.layers.Layer):
        def call(self, x, training=None):
            return seven(x) * (2 if training else 3)

    flagged, found = Flagged(), []

    class Block(keras.layers.Layer):
        def call(self, x, training=None):
            return recipes.recompute(lambda x: flagged(x))(x)

    block = Block()
    output, pullback = keras_cg.vjp(lambda x: block(x, training=training), config.active.asarray(X))
    factor = 2 if training else 3
    np.testing.assert_allclose(array(output), factor * X, rtol=1e-6)
    run = lambda: found.append(array(pullback(config.active.asarray(Y))[0]))
    if thread == "another" and backend == "torch":
        other = threading.Thread(target=run)
        other.start()
        other.join()
    else:
        run()
    np.testing.assert_allclose(found[0], 7 * factor * Y, rtol=1e-6)


@pytest.mark.only("torch")
def test_a_compiled_program_in_one_piece(keras, seven, backend):
    import torch

    compiled = torch.compile(recipes.recompute(lambda x: seven(x) * x), fullgraph=True, backend="aot_eager")
    x = torch.tensor(X, requires_grad=True)
    (gradient,) = torch.autograd.grad(compiled(x), x, torch.tensor(Y))
    np.testing.assert_allclose(gradient, 8 * X * Y, rtol=1e-6)


@trains
@pytest.mark.parametrize(
    ("mode", "policy"), [("eager", "float32"), ("default", "mixed_bfloat16"), ("jit", "mixed_float16")]
)
def test_layers_train_as_without(keras, seven, backend, mode, policy):
    if backend == "torch" and mode == "jit":
        # All that Keras does takes torch.compile half a minute.
        mode = "eager"
    keras.config.set_dtype_policy(policy)

    class Block(keras.layers.Layer):
        """Others, one after the other, times a weight of its own, inside of `wrap`."""

        def __init__(self, wrap):
            super().__init__()
            self.wrap = wrap

        def build(self, shape):
            self.w = self.add_weight(shape=(4,), initializer="ones")
            frozen = keras.layers.BatchNormalization(trainable=False)
            inner = [keras.layers.Dense(4, activation="tanh"), frozen, keras.layers.Lambda(seven)]
            self.inner = keras.Sequential([*inner, keras.layers.LayerNormalization()])
            self.inner.build(shape)

        def call(self, x):
            return self.wrap(lambda x: self.inner(x) * self.w)(x)

    found = []
    for wrap in (recipes.recompute, lambda run: run):
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.layers.Dense(4, use_bias=False), Block(wrap), keras.layers.Dense(4)])
        model.compile(keras.optimizers.SGD(RATE), "mse", **MODES[mode])
        model.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0)
        found.append([(each.path, array(each)) for each in model.variables])
    # In half precision JAX rounds elsewhere where it computes again.
    rtol, atol = (1e-5, 1e-6) if policy == "float32" else (1e-3, 1e-3)
    for (path, one), (_, other) in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=path)


@pytest.mark.parametrize("holder", ["alone", "nested", "in a scope"])
def test_the_second_order(keras, backend, holder):
    """Of a variable that a scope replaces, the second run reads the value of the scope, which may be over."""
    variable = keras.Variable(np.full((16, 4), 2, np.float32))
    alone = recipes.recompute(lambda x: x**3 * variable)
    f = recipes.recompute(lambda x: alone(x) * 1) if holder == "nested" else alone

    def loss(x):
        if holder != "in a scope":
            return keras_cg.ops.sum(f(x))
        with keras.StatelessScope([(variable, np.full((16, 4), 5, np.float32))]):
            return keras_cg.ops.sum(f(x))

    gradient = keras_cg.grad(loss)
    x, factor = config.active.asarray(X), 5 if holder == "in a scope" else 2
    np.testing.assert_allclose(array(gradient(x)), 3 * factor * X**2, rtol=1e-5)
    second = keras_cg.grad(lambda x: keras_cg.ops.sum(gradient(x)))(x)
    np.testing.assert_allclose(array(second), 6 * factor * X, rtol=1e-5)


@pytest.mark.only("jax", "torch", "tensorflow")
def test_weights_that_a_scope_replaces(keras, backend):
    """As in `stateless_call`: what stands in the place of a weight is differentiated."""
    layer = keras.layers.Dense(1, use_bias=False)
    layer.build((None, 1))
    block = recipes.recompute(lambda x: 7 * layer(x))

    def loss(w, x):
        with keras.StatelessScope([(layer.kernel, w)]):
            return keras_cg.ops.sum(block(block(x)))

    w, x = (config.active.asarray(np.full((1, 1), value, np.float32)) for value in (3, 2))
    gw, gx = keras_cg.grad(loss, (0, 1))(w, x)
    np.testing.assert_allclose([array(gw).item(), array(gx).item()], [49 * 2 * 3 * 2, 49 * 9], rtol=1e-6)


@pytest.mark.only("jax", "torch", "tensorflow")
def test_in_a_lambda(keras, backend):
    layer = keras.layers.Lambda(recipes.recompute(lambda x: x**3))
    gradient = keras_cg.grad(lambda x: keras_cg.ops.sum(layer(x)))
    np.testing.assert_allclose(array(gradient(config.active.asarray(X))), 3 * X**2, rtol=1e-5)


# --- what cannot be served -------------------------------------------------------------------------------------------


LAYERS = {
    "Dropout": (lambda layers: layers.Dropout(0.5, seed=3), "changes a variable of Keras"),
    "BatchNormalization": (lambda layers: layers.BatchNormalization(), "changes a variable of Keras"),
    "SpectralNormalization": (lambda layers: layers.SpectralNormalization(layers.Dense(4)), "changes a variable"),
    "a regularizer": (lambda layers: layers.Dense(4, activity_regularizer="l2"), "adds a loss to a layer of Keras"),
    "not built": (lambda layers: layers.Dense(4), r"creates a variable of Keras \(.*\)"),
    "keras.random": (None, "(changes|creates) a variable of Keras"),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.limit
def test_a_function_that_changes_the_state_of_keras(keras, backend, kind):
    make, does = LAYERS[kind]
    if make is None:
        function = lambda x: x * keras.random.uniform((16, 4))
    else:
        layer = make(keras.layers)
        function = lambda x: layer(x, training=True) if layer._call_has_training_arg else layer(x)
        if kind != "not built":
            layer.build((16, 4))
    x = config.active.asarray(X)
    before = [array(each) for each in (layer.variables if make and kind != "not built" else [])]
    with pytest.raises(RuntimeError) as caught:
        recipes.recompute(function)(x)
    head, *facts = str(caught.value).splitlines()
    again = "whenever it runs, and needs to run again: for its gradient, or for the derivative of that."
    assert re.fullmatch(rf"recompute\(.*<lambda>\) {does}.* {again}", head)
    assert facts == [
        "    usual cause: a keras.random.SeedGenerator, a layer that draws random numbers, counts or averages (Dropout,"
        " BatchNormalization), a layer that was not built before, or `add_loss`, inside of it.",
        "    remedy: build layers and add losses outside; draw the random numbers outside, and pass them as an"
        " argument; and use keras.remat or keras.RematScope in the place of keras_cg.recipes.recompute.",
    ]
    for old, new in zip(before, layer.variables if before else (), strict=True):
        np.testing.assert_array_equal(old, array(new))
    # Outside, Keras works as before.
    np.testing.assert_array_equal(array(keras.random.uniform((3,), seed=1)), array(keras.random.uniform((3,), seed=1)))


@pytest.mark.limit
def test_a_placeholder(keras, backend):
    @recipes.recompute
    def block(x, others, *, scale):
        return x * 2

    inputs = keras.Input([4])
    for args, kwargs, label in (
        ((inputs, {}), {"scale": 1}, "x"),
        ((X, {"a": [inputs]}), {"scale": 1}, r"others\['a'\]\[0\]"),
        ((X, {}), {"scale": inputs}, "scale"),
    ):
        with pytest.raises(
            TypeError, match=rf"(?s)^recompute\(.*block\): the argument {label} is a KerasTensor.*remedy:"
        ):
            block(*args, **kwargs)
