"""`recipes.recompute` around what has a state in Keras: the second run sees what the first saw, and changes nothing.

Expected is what the layers do without `recompute`, or what the mask of the forward run says: where `x` is one, it is
the output. The rules are wrong on purpose, by a factor of 7, so that plain differentiation cannot pass.
"""

import numpy as np
import pytest

import keras_cg
from keras_cg import recipes
from keras_cg.frontend import config
from with_keras.training import MODES, array, dynamo_warns, trains

X = np.linspace(-1.01, 2, 64).reshape(16, 4).astype(np.float32)
Y = np.cos(np.arange(64)).reshape(16, 4).astype(np.float32)
RATE = 0.125


# --- a mask ------------------------------------------------------------------------------------------------------


@trains
@pytest.mark.parametrize("training", [True, False])
def test_whether_it_trains_is_what_the_call_around_said(keras, seven, training):
    dropout = keras.layers.Dropout(0.5, seed=3)

    class Block(keras.layers.Layer):
        def call(self, x, training=None):
            return recipes.recompute(lambda x: seven(dropout(x)))(x)

    block = Block()
    x = config.active.asarray(np.ones((16, 4), np.float32))
    output, pullback = keras_cg.vjp(lambda x: block(x, training=training), x)
    mask = array(output)
    assert set(np.unique(mask)) == ({0, 2} if training else {1})
    np.testing.assert_allclose(array(pullback(config.active.asarray(Y))[0]), 7 * mask * Y, rtol=1e-6)


@pytest.mark.only("torch")
@dynamo_warns
def test_a_compiled_dropout_has_one_mask(keras, seven):
    import torch

    dropout = keras.layers.Dropout(0.5, seed=3)
    dropout.build((16, 4))
    masks, x = [], torch.ones(16, 4, requires_grad=True)
    f = torch.compile(recipes.recompute(lambda x: seven(dropout(x, training=True))), backend="aot_eager")
    for step in (1, 2):
        output = f(x)
        (gradient,) = torch.autograd.grad(output, x, torch.tensor(Y))
        masks.append(array(output))
        np.testing.assert_allclose(array(gradient), 7 * masks[-1] * Y, rtol=1e-6)
        assert array(dropout.seed_generator.state).tolist() == [3, step]
    assert (masks[0] != masks[1]).any()


@pytest.mark.parametrize("is_first", [False, True])
def test_seeds_of_several_kinds(keras, seven, backend, is_first):
    """Those of a generator, and Keras's own, which JAX refuses by itself where it traces."""
    keras.utils.set_random_seed(1)
    if not is_first and backend != "jax":
        keras.random.uniform([1])  # whose seeds are made now, and else inside
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


def masked(keras, seven):
    """A dropout, and `7 * x**3 / 3` times its mask: a gradient of `7 * x**2`, and then of `14 * x`, times the mask."""
    dropout = keras.layers.Dropout(0.5, seed=3)
    dropout.build((16, 4))
    return dropout, lambda x: seven(x**3 / 3) * dropout(keras.ops.ones_like(x), training=True)


def nested(f):
    return recipes.recompute(lambda x: recipes.recompute(f)(x) * 1)


HOLDERS = {"alone": recipes.recompute, "nested": nested}


@trains
@pytest.mark.parametrize("holder", HOLDERS)
def test_in_one_another(keras, seven, holder):
    dropout, f = masked(keras, seven)
    x = config.active.asarray(X)
    output, pullback = keras_cg.vjp(HOLDERS[holder](f), x)
    mask = np.round(array(output) / (X**3 / 3))
    for _ in range(2):
        gradient = array(pullback(config.active.asarray(Y))[0])
        np.testing.assert_allclose(gradient, 7 * X**2 * mask * Y, rtol=1e-5)
    assert array(dropout.seed_generator.state).tolist() == [3, 1]
    np.testing.assert_array_equal(np.unique(mask), [0, 2])


@trains
@pytest.mark.parametrize("holder", ["alone", "nested"])
def test_the_second_order(keras, seven, holder):
    dropout, f = masked(keras, seven)
    x = config.active.asarray(X)
    gradient = keras_cg.grad(lambda x: keras.ops.sum(HOLDERS[holder](f)(x)))
    second = array(keras_cg.grad(lambda x: keras.ops.sum(gradient(x)))(x))
    np.testing.assert_allclose(np.unique(np.round(second / (14 * X), 3)), [0, 2])
    assert array(dropout.seed_generator.state).tolist() == [3, 1]


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("jit", [False, True])
def test_the_second_order_in_a_graph(keras, seven, jit):
    """Without XLA, Grappler once let the first run read the seed that it gave."""
    import tensorflow as tf

    dropout, f = masked(keras, seven)

    @tf.function(jit_compile=jit)
    def both(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                output = recipes.recompute(f)(x)
            gradient = tape.gradient(output, x)
        return output, gradient, outer.gradient(gradient, x)

    for step in (1, 2):
        output, first, second = both(tf.constant(X))
        mask = np.round(array(output) / (X**3 / 3))
        np.testing.assert_allclose(first, 7 * X**2 * mask, rtol=1e-5)
        np.testing.assert_allclose(second, 14 * X * mask, rtol=1e-5)
        assert array(dropout.seed_generator.state).tolist() == [3, step]


@pytest.mark.only("torch")
def test_a_backward_pass_in_other_threads(keras, seven):
    """The threads have none of the state that Keras keeps per thread, as on an accelerator, and no default seeds."""
    import threading

    import torch

    dropout = keras.layers.Dropout(0.5, seed=3)

    class Block(keras.layers.Layer):
        def call(self, x):
            return recipes.recompute(lambda x: seven(dropout(x)) * keras.random.uniform((16, 4)))(x)

    x, found = torch.ones(16, 4, requires_grad=True), []
    output = Block()(x, training=True)
    threads = [
        threading.Thread(target=lambda: found.append(torch.autograd.grad(output.sum(), x, retain_graph=True)[0]))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    for gradient in found:
        np.testing.assert_allclose(gradient, 7 * output.detach(), rtol=1e-6)
    assert array(dropout.seed_generator.state).tolist() == [3, 1]


# --- training ----------------------------------------------------------------------------------------------------


@trains
@pytest.mark.parametrize(
    ("mode", "policy"), [("eager", "float32"), ("default", "mixed_bfloat16"), ("jit", "mixed_float16")]
)
def test_layers_with_a_state_train_as_without(keras, seven, backend, mode, policy):
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
            self.inner = keras.Sequential(
                [
                    keras.layers.Dense(4, activation="tanh"),
                    keras.layers.Dropout(0.5, seed=3),
                    keras.layers.BatchNormalization(momentum=0.5),
                    keras.layers.Lambda(seven),
                    keras.layers.GaussianNoise(0.5, seed=4),
                ]
            )
            self.inner.build(shape)

        def call(self, x):
            return self.wrap(lambda x: self.inner(x) * self.w)(x)

    found = []
    for wrap in (recipes.recompute, lambda run: run):
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.layers.Dense(4, use_bias=False), Block(wrap), keras.layers.Dense(4)])
        model.compile(keras.optimizers.SGD(RATE), "mse", **MODES[mode])
        model.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0)
        # The seeds of the layers are among them.
        found.append([(each.path, array(each)) for each in model.variables])
    # In half precision JAX rounds elsewhere where it computes again.
    rtol, atol = (1e-5, 1e-6) if policy == "float32" else (1e-3, 1e-3)
    for (path, one), (_, other) in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=path)


# --- what cannot be served -------------------------------------------------------------------------------------------


def variables_of(keras):
    """Functions of `x` that read a variable of value 3, whose square is their slope, and how to reach it."""

    layer = keras.layers.Layer()
    variable, frozen = (keras.Variable(np.full(4, 3, np.float32), trainable=trainable) for trainable in (True, False))
    layer.w = layer.add_weight(shape=(4,), initializer=keras.initializers.Constant(3))
    return {
        "trainable": (lambda x: x * variable * variable, variable),
        "not trainable": (lambda x: x * frozen * frozen, frozen),
        "in a layer": (lambda x: x * layer.w * layer.w, layer.w),
    }


@pytest.mark.parametrize("where", ["trainable", "not trainable", "in a layer"])
def test_a_variable_that_is_assigned_before_the_backward_pass(keras, backend, where):
    f, variable = variables_of(keras)[where]
    x, upstream = config.active.asarray(X[0]), config.active.asarray(Y[0])
    _, pullback = keras_cg.vjp(recipes.recompute(f), x)
    np.testing.assert_allclose(array(pullback(upstream)[0]), 9 * Y[0], rtol=1e-6)
    variable.assign(np.full(4, 10, np.float32))
    if backend == "jax":
        np.testing.assert_allclose(array(pullback(upstream)[0]), 9 * Y[0], rtol=1e-6)
        return
    what = {
        "torch": r"a Parameter of float32\[4\]",
        "tensorflow": rf"a variable \({variable.value.name}\)" if backend == "tensorflow" else "",
        "numpy": rf"a Keras variable \({variable.path}\)",
    }[backend]
    with pytest.raises(
        RuntimeError, match=rf"^recompute\(.*\) reads {what} that was assigned or changed in place since"
    ):
        pullback(upstream)


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize(("where", "jit"), [("trainable", False), ("in a layer", True)])
def test_a_variable_that_is_assigned_in_a_graph(keras, where, jit):
    import tensorflow as tf

    f, variable = variables_of(keras)[where]

    @tf.function(jit_compile=jit)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = recipes.recompute(f)(x)
        variable.assign(tf.fill([4], 10.0))
        return tape.gradient(output, x)

    np.testing.assert_array_equal(gradient(tf.constant(X[0])), np.full(4, np.nan))


def test_a_variable_that_the_function_itself_changes(keras, backend):
    """It is what it was in the first run; on NumPy, where a product would read it later, that raises."""
    count = keras.Variable(np.float32(0), trainable=False)

    def f(x):
        count.assign_add(1.0)
        return x * x * count

    x = config.active.asarray(X[0])
    for step in (1, 2):
        if backend == "numpy":
            _, pullback = keras_cg.vjp(recipes.recompute(f), x)
            with pytest.raises(RuntimeError, match=r"reads a Keras variable \(variable.*\) that was assigned"):
                pullback(x)
        else:
            found = keras_cg.grad(lambda x: keras.ops.sum(recipes.recompute(f)(x)))(x)
            np.testing.assert_allclose(array(found), 2 * step * X[0], rtol=1e-6)
        assert array(count) == step


def refused(said):
    return pytest.raises(RuntimeError, match=rf"(?s)^recompute\(.*<lambda>\) {said}.*usual cause: .*remedy: ")


@trains
@pytest.mark.limit
def test_a_function_that_assigns_to_what_is_trained(keras, backend):
    layer = keras.layers.SpectralNormalization(keras.layers.Dense(4, name="inner"), name="outer")
    layer.build((None, 4))
    output, pullback = keras_cg.vjp(recipes.recompute(lambda x: layer(x, training=True)), config.active.asarray(X))
    if backend == "jax":
        np.testing.assert_allclose(array(pullback(output)[0]), array(output) @ array(layer.layer.kernel).T, rtol=1e-4)
        return
    with refused(f"assigns to a trainable variable of Keras: {layer.layer.kernel.path}"):
        pullback(output)


@trains
@pytest.mark.limit
def test_a_layer_that_is_not_built_yet(keras, backend):
    layer = keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.5, seed=3)])
    f = recipes.recompute(lambda x: layer(x, training=True))
    x = config.active.asarray(X)
    if backend == "jax":
        with refused("builds a layer while it is traced: its variables would have no values afterwards"):
            keras_cg.vjp(f, x)
        return
    output, pullback = keras_cg.vjp(f, x)
    kernel = array(layer.layers[0].kernel)
    mask = np.round(array(output) / (X @ kernel))
    np.testing.assert_allclose(
        array(pullback(config.active.asarray(Y))[0]), (mask * Y) @ kernel.T, rtol=1e-4, atol=1e-5
    )
    assert array(layer.layers[1].seed_generator.state).tolist() == [3, 1]


@trains
@pytest.mark.limit
def test_a_layer_that_adds_a_loss(keras, backend):
    layer = keras.layers.Dense(4, activity_regularizer="l2")
    layer.build((None, 4))
    with refused("adds a loss to a layer, which would not be differentiated outside of it"):
        keras_cg.vjp(recipes.recompute(lambda x: layer(x)), config.active.asarray(X))


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
