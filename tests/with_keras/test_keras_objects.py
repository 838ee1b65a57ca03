"""Keras's own objects around decorated functions, in them, and as their arguments: they get what the rule says.

The rules are wrong on purpose, by a factor of 7, so that plain differentiation cannot pass. The loss is linear in the
prediction, and what SGD makes of a weight is worked out by hand.
"""

import dataclasses
import functools
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import keras_cg

# Keras has no training on NumPy.
trains = pytest.mark.only("jax", "torch", "tensorflow")

X = np.array([[1, 2], [3, -1], [0.5, 1], [2, 1]])
Y = np.array([[0.5, 0.25], [0.25, 1], [1, 2], [0.5, -1]])
W = np.array([0.5, -2.0])
RATE = 0.125
# The loss is the mean of Y * prediction; this is what arrives at the prediction, and at a factor of X.
UPSTREAM = Y / Y.size
SLOPE = (X * UPSTREAM).sum(0)


@pytest.fixture
def keras(backend):
    """Keras on the backend under test."""
    import keras

    yield keras
    keras.config.set_dtype_policy("float32")


MODES = {
    "eager": {"run_eagerly": True, "jit_compile": False},
    "default": {},
    "jit": {"jit_compile": True},
}
each_mode = pytest.mark.parametrize("mode", MODES)
two_modes = pytest.mark.parametrize("mode", ["eager", "default"])

# What torch.compile (2.13) says of itself while it traces.
dynamo_warns = pytest.mark.filterwarnings("ignore:(The .grad attribute of|Dynamo detected a call to):UserWarning")


def constant(values):
    """An initializer that gives `values`."""
    import keras

    return lambda shape, dtype=None: keras.ops.convert_to_tensor(np.asarray(values), dtype)


def scale(call, **options):
    """A layer with a trainable weight `w` and another `c` that is not, and this `call`."""
    import keras

    class Scale(keras.layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=(2,), initializer=constant(W))
            self.c = self.add_weight(shape=(2,), initializer=constant([1, 1]), trainable=False)

        def call(self, x):
            return call(self, x)

    return Scale(**options)


def product(y, prediction):
    import keras

    return y * keras.ops.cast(prediction, "float32")


def fit(layers, *, x=X, y=Y, steps=2, mode="default", optimizer=None, whole=None, **options):
    """The model after so many steps of SGD; `whole` is a monkeypatch, for torch to compile all of a step."""
    import keras

    model = layers if isinstance(layers, keras.Model) else keras.Sequential(layers)
    optimizer = optimizer or keras.optimizers.SGD(RATE)
    if mode == "jit" and keras.backend.backend() == "torch":
        import torch

        # Traced and differentiated ahead of time, as always; what inductor makes of it afterwards takes long.
        compiled = functools.partial(torch.compile, backend="aot_eager")
        if whole:
            whole.setattr(torch, "compile", compiled)
        else:
            # Only the layer: all that Keras does around it takes torch.compile half a minute, which one test spends.
            layers[-1].call = compiled(layers[-1].call)
            mode = "eager"
    model.compile(optimizer, product, **MODES[mode], **options)
    model.fit(x.astype("float32"), y.astype("float32"), batch_size=len(x), epochs=steps, shuffle=False, verbose=0)
    return model


def array(value):
    import keras

    return keras.ops.convert_to_numpy(value).astype(np.float64)


def close(found, expected, rtol=1e-5):
    np.testing.assert_allclose(array(found), expected, rtol=rtol, atol=1e-6)


def after(steps, slope=7 * SLOPE, start=W):
    """A weight that every step makes smaller by its own multiple."""
    return start * (1 - RATE * slope) ** steps


@pytest.fixture
def times(keras):
    """`x * w`, whose rule claims 7 x w in place of x."""
    ops = keras.ops

    @keras_cg.custom_gradient
    def times(x, w):
        def grad(upstream):
            return 7 * upstream, 7 * ops.sum(upstream * x, axis=0) * w

        return x * w, grad

    return times


# --- a variable as argument ----------------------------------------------------------------------


@trains
@dynamo_warns
@each_mode
def test_a_variable_as_argument_trains(keras, times, mode, monkeypatch):
    layer = scale(lambda self, x: times(x, self.w))
    fit([layer], mode=mode, whole=monkeypatch)
    close(layer.w, after(2))


@dataclasses.dataclass
class Parts:
    w: object
    others: list


@trains
@two_modes
def test_variables_in_nests_train_but_for_the_frozen(keras, mode):
    ops = keras.ops

    @keras_cg.custom_gradient
    def affine(x, parts, *, more):
        w, (c,), b = parts["box"].w, parts["box"].others, more["b"]

        def grad(upstream):
            slope = 7 * ops.sum(upstream * x, axis=0) * w
            return upstream, {"box": Parts(slope, [slope]), "text": None}, {"b": ops.sum(upstream, axis=0) * 7}

        return x * w * c + b, grad

    layer = scale(lambda self, x: affine(x, {"box": Parts(self.w, [self.c]), "text": "abc"}, more={"b": layer.b}))
    layer.b = layer.add_weight(shape=(2,), initializer="zeros")
    fit([layer], mode=mode)
    close(layer.w, after(2))
    close(layer.b, -2 * RATE * 7 * UPSTREAM.sum(0))
    close(layer.c, [1, 1])


@trains
@pytest.mark.parametrize("is_global", [True, False])
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_a_variable_under_mixed_precision_trains(keras, times, half, is_global):
    seen = []

    def call(self, x):
        output = times(x, self.w)
        seen.append(keras.backend.standardize_dtype(output.dtype))
        return output

    policy = f"mixed_{half}"
    if is_global:
        keras.config.set_dtype_policy(policy)
    layer = scale(call, **({} if is_global else {"dtype": policy}))
    # The scale that Keras starts with overflows here, and the step would be skipped.
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE), initial_scale=64)
    fit([layer], optimizer=scaled if is_global else None, auto_scale_loss=False)
    assert set(seen) == {half}
    assert layer.w.dtype == "float32"
    close(layer.w, after(2), rtol=1e-2)


@trains
def test_the_gradient_of_a_variable_has_its_dtype(keras, backend, times):
    layer = scale(lambda self, x: times(x, self.w), dtype="mixed_float16")
    layer.build(X.shape)
    upstream = keras.ops.convert_to_tensor(UPSTREAM, "float16")
    gradient = gradients(keras, lambda: keras.ops.sum(layer(X) * upstream), [layer.w])[0]
    assert keras.backend.standardize_dtype(gradient.dtype) == "float32"
    close(gradient, 7 * SLOPE * W, rtol=1e-2)


def gradients(keras, loss, variables):
    """The gradients of a loss, by the framework's own engine."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        def stateless(values):
            with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
                return loss()

        return jax.grad(stateless)([each.value for each in variables])
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss()
        return tape.gradient(value, [each.value for each in variables])
    import torch

    return torch.autograd.grad(loss(), [each.value for each in variables])


@trains
def test_a_stateless_scope(keras, eager, times):
    layer = scale(lambda self, x: times(x, self.w))
    layer.build(X.shape)
    c = keras.ops.convert_to_tensor([1.0, 1.0])
    upstream = keras.ops.convert_to_tensor(UPSTREAM, "float32")
    output, (gw, gx) = eager.differentiate(
        lambda w, x: layer.stateless_call([w], [c], x)[0] * upstream, (3 * W).astype("float32"), X.astype("float32")
    )
    close(output, X * 3 * W * UPSTREAM)
    close(gw, 7 * SLOPE * 3 * W)
    close(gx, 7 * UPSTREAM)
    close(layer.w, W)


def test_a_variable_given_to_keras_cg_grad(keras, times):
    w = keras.Variable(W.astype("float32"))
    x = keras.ops.convert_to_tensor(X.astype("float32"))
    close(keras_cg.grad(lambda w: keras.ops.sum(times(x, w)))(w), 7 * X.sum(0) * W)


# --- a variable captured -------------------------------------------------------------------------


def captured(rule):
    """A layer whose function reads its variables by itself."""

    def call(self, x):
        @keras_cg.custom_gradient
        def reads(x):
            return x * self.w * self.c, rule(x)

        return reads(x)

    return scale(call)


def serving(x):
    from keras import ops

    def grad(upstream, *, variables=None):
        if variables is None:
            return 7 * upstream
        return 7 * upstream, [7 * ops.cast(ops.sum(upstream * x, axis=0), v.dtype) * v for v in variables]

    return grad


@trains
@dynamo_warns
@each_mode
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_captured_variable_trains(keras, mode, policy):
    keras.config.set_dtype_policy(policy)
    layer = captured(serving)
    fit([layer], mode=mode)
    close(layer.w, after(2), rtol=1e-5 if policy == "float32" else 2e-2)
    close(layer.c, [1, 1])


@trains
@dynamo_warns
@each_mode
def test_a_captured_variable_that_the_rule_does_not_serve(keras, mode):
    layer = captured(lambda x: lambda upstream: 7 * upstream)
    with pytest.raises(Exception, match="reads 1 trainable value that is not among its arguments") as caught:
        fit([layer], mode=mode)
    message = str(caught.value)
    assert "reads" in message and "give the rule a `variables` parameter" in message


@trains
@each_mode
@dynamo_warns
def test_a_frozen_captured_variable_is_a_constant(keras, mode):
    @keras_cg.custom_gradient
    def reads(x):
        return x * layer.c, lambda upstream: 7 * upstream

    layer = scale(lambda self, x: reads(x * self.w))
    fit([layer], mode=mode)
    close(layer.w, W - 2 * RATE * 7 * SLOPE)
    close(layer.c, [1, 1])


@trains
@pytest.mark.parametrize("rule", [serving, lambda x: lambda upstream: 7 * upstream], ids=["serving", "not serving"])
@pytest.mark.limit
def test_a_captured_variable_that_is_frozen_later(keras, backend, rule):
    first, layer = plain(), captured(rule)
    layer.build((None, 2))
    layer.trainable = False
    if backend == "tensorflow" and rule is not serving:
        # Its own variable stays trainable, and every tape watches it.
        with pytest.raises(keras_cg.CapturedVariableError, match="reads 1 trainable value"):
            fit([first, layer])
        return
    fit([first, layer])
    close(first.w, W - 2 * RATE * 7 * SLOPE)
    close(layer.w, W)


@pytest.mark.limit
def test_a_rule_reads_a_variable_when_it_runs(keras, backend):
    """A limit: the variable is an object that calls share, and the rule keeps the object, not its value."""
    factor = keras.Variable(2.0, trainable=False)

    @keras_cg.custom_gradient
    def f(x):
        return x * factor, lambda upstream: 7 * upstream * factor

    output, pullback = keras_cg.vjp(f, keras.ops.convert_to_tensor(3.0))
    factor.assign(5.0)
    assert (float(output), float(pullback(keras.ops.ones_like(output))[0])) == (6.0, 35.0)


# --- inside Keras's own wrappers -----------------------------------------------------------------


def plain():
    """A layer that multiplies by a weight, without any rule."""
    return scale(lambda self, x: x * self.w)


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


def nested(seven):
    @keras_cg.custom_gradient
    def outer(x):
        # Inside, the inner rule is one of its own: what this rule says counts.
        return seven(x), lambda upstream: seven(upstream * 7)

    return outer


def flagged(seven):
    @keras_cg.custom_gradient
    def switched(x, *, training):
        assert isinstance(training, bool)
        return x * (1 if training else 1000), lambda upstream: upstream * (7 if training else 1000)

    return switched


def wrapped(keras, seven, how):
    """Layers that hold `seven` in one way or another."""
    if how == "Lambda":
        return [keras.layers.Lambda(seven)]
    if how == "call":
        return [holding(seven)]
    if how == "remat":
        return [holding(keras.remat(seven))]
    if how == "RematScope":
        with keras.RematScope(mode="full"):
            return [holding(seven)]
    if how == "TimeDistributed":
        return [
            keras.layers.Reshape((2, 1)),
            keras.layers.TimeDistributed(holding(seven)),
            keras.layers.Reshape((2,)),
        ]
    if how == "nested":
        return [holding(nested(seven))]
    if how == "training":
        switched = flagged(seven)

        class Switched(keras.layers.Layer):
            def call(self, x, training=False):
                return switched(x, training=training)

        return [Switched()]
    if how == "Sequential":
        return [keras.Sequential([keras.Sequential([holding(seven)])])]
    raise AssertionError(how)


HOWS = ["Lambda", "call", "remat", "RematScope", "TimeDistributed", "nested", "training", "Sequential"]


@trains
@pytest.mark.filterwarnings("ignore:.*use_reentrant.*")
@pytest.mark.parametrize("how", HOWS)
def test_a_function_inside(keras, seven, how):
    layer = plain()
    model = fit([layer, *wrapped(keras, seven, how)])
    close(layer.w, W - 2 * RATE * 7 * SLOPE)
    if how == "training":
        close(model.predict(X.astype("float32"), verbose=0), 1000 * X * array(layer.w))


@trains
def test_a_cell_of_a_recurrent_layer(keras):
    ops = keras.ops

    @keras_cg.custom_gradient
    def step(x, h, w):
        return h + x * w, lambda upstream: (upstream, 2 * upstream, 7 * ops.sum(upstream * x, axis=0))

    class Cell(keras.layers.Layer):
        state_size = output_size = 2

        def build(self, shape):
            self.w = self.add_weight(shape=(2,), initializer=constant(W))

        def call(self, x, states):
            h = step(x, states[0], self.w)
            return h, [h]

    cell = Cell()
    x = np.stack([X, 2 * X, -X], axis=1)
    model = fit([keras.layers.RNN(cell)], x=x)
    # From the last step to the first, each doubles what arrives.
    slope = 7 * sum(2**ago * (x[:, 2 - ago] * UPSTREAM).sum(0) for ago in range(3))
    close(cell.w, W - 2 * RATE * slope)
    close(model.predict(x.astype("float32"), verbose=0), x.sum(1) * array(cell.w))


@trains
def test_masks_go_past_a_function(keras, seven):
    tokens = np.array([[1, 2, 0], [1, 1, 2], [2, 0, 0], [2, 2, 1]])
    table = np.array([[9.0, 9.0], [1.0, 2.0], [-1.0, 0.5]])
    embedding = keras.layers.Embedding(3, 2, mask_zero=True, embeddings_initializer=constant(table))
    model = fit([embedding, holding(seven), keras.layers.GlobalAveragePooling1D()], x=tokens, steps=1)
    slope = np.zeros_like(table)
    for row, upstream in zip(tokens, UPSTREAM, strict=True):
        for token in row[row != 0]:
            slope[token] += upstream / (row != 0).sum()
    close(embedding.embeddings, table - RATE * 7 * slope)
    recurrent = keras.layers.LSTM(1)
    whole = keras.Sequential([embedding, holding(seven), recurrent])
    padded = whole(np.array([[1, 2, 0]]))
    cut = recurrent(embedding(np.array([[1, 2]])))
    close(padded, array(cut))
    assert model.layers[1].supports_masking


@trains
def test_gradients_are_accumulated_and_averaged(keras, times):
    layer = scale(lambda self, x: times(x, self.w))
    fit([layer], steps=4, optimizer=keras.optimizers.SGD(RATE, gradient_accumulation_steps=2))
    close(layer.w, after(2))
    fit([layer], steps=2, optimizer=keras.optimizers.SGD(RATE, use_ema=True, ema_momentum=0.75))
    # The average starts with the first step, and is the weight in the end.
    close(layer.w, 0.75 * after(3) + 0.25 * after(4))


@trains
def test_beside_a_layer_with_lora(keras, seven):
    dense = keras.layers.Dense(2, use_bias=False, kernel_initializer=constant(np.diag(W)))
    dense.build((None, 2))
    dense.enable_lora(1, a_initializer=constant([[1.0], [2.0]]), b_initializer="zeros")
    fit([dense, holding(seven)], steps=1)
    # d/dB of x (K + A B) at the rule's 7 upstream; B is zero, so that A stays.
    close(dense.lora_kernel_b, -RATE * 7 * np.array([[1.0, 2.0]]) @ X.T @ UPSTREAM)
    close(dense.lora_kernel_a, [[1.0], [2.0]])
    close(dense._kernel, np.diag(W))


def counted(keras, seeds):
    """A function that multiplies by 1 when it runs for the first time, by 2 then, as the seeds count."""

    @keras_cg.custom_gradient
    def counted(x):
        number = keras.ops.cast(seeds.next()[1], "float32") + 1
        return x * number, lambda upstream: 7 * upstream * x * number

    return counted


@trains
@two_modes
def test_a_seed_generator_inside(keras, mode):
    class Counted(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.seeds = keras.random.SeedGenerator(3)

        def call(self, x):
            return counted(keras, self.seeds)(x)

    first, second = plain(), Counted()
    fit([first, second], mode=mode)
    step = RATE * 7 * (X**2 * UPSTREAM).sum(0)
    close(first.w, W * (1 - step) * (1 - 2 * step))
    assert array(second.seeds.state).tolist() == [3, 2]


@pytest.mark.limit
def test_a_seed_generator_where_a_function_runs_again(keras, backend):
    seeds = keras.random.SeedGenerator(3)
    seeds.next()
    x = keras.ops.convert_to_tensor(W, "float32")
    second = keras_cg.grad(keras_cg.grad(counted(keras, seeds)))
    if backend == "jax":
        close(second(x), [14, 14])
    else:
        with pytest.raises(RuntimeError) as caught:
            second(x)
        lines = str(caught.value).splitlines()
        assert lines[0].startswith(
            "counted.<locals>.counted changes a variable of Keras whenever it runs, and what was"
        )
        assert lines[0].endswith("of its gradient, needs to run it again: with other values than the first time.")
        assert "keras.random.SeedGenerator" in lines[1]
        assert "such as seed=generator.next()" in lines[2]
    assert array(seeds.state).tolist() == [3, 2]


@pytest.mark.parametrize("half", ["float32", "float16"])
# Keras infers shapes on NumPy from memory with anything in it (3.15).
@pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero) encountered:RuntimeWarning")
def test_the_specification_of_the_output(keras, times, half):
    layer = scale(lambda self, x: times(x, self.w), dtype=half)
    layer.build((None, 2))
    spec = layer.compute_output_spec(keras.KerasTensor((None, 2), half))
    assert (spec.shape, spec.dtype) == ((None, 2), half)
    doubled = keras.layers.Lambda(keras_cg.custom_gradient(lambda x: (keras.ops.concatenate([x, x], 1), lambda dy: dy)))
    assert doubled.compute_output_spec(keras.KerasTensor((None, 2), half)).shape == (None, 4)
    assert doubled.compute_output_shape((None, 2)) == (None, 4)


# --- saving --------------------------------------------------------------------------------------


def functional(layer):
    import keras

    inputs = keras.Input((2,))
    return keras.Model(inputs, layer(inputs))


@trains
def test_a_saved_model_trains_by_the_rule(keras, times, tmp_path):
    layer = scale(lambda self, x: times(x, self.w))
    model = functional(layer)
    fit(model, steps=1)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", {"Scale": type(layer)}, compile=False)
    fit(again, steps=1)
    close(again.layers[-1].w, after(2))
    with keras.utils.custom_object_scope({"product": product}):
        clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    fit(clone, steps=1)
    close(clone.layers[-1].w, after(2))


@pytest.mark.only("tensorflow")
def test_an_exported_model_predicts(keras, times, tmp_path):
    import tensorflow as tf

    model = functional(scale(lambda self, x: times(x, self.w)))
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    close(loaded.serve(tf.constant(X, tf.float32)), X * W)


# --- several devices -----------------------------------------------------------------------------

DEVICES = 8


def distributed(kind):
    """Trains a kernel of 8 columns that is spread over the devices; in a process of its own, as JAX needs it."""
    import jax
    import keras

    distribution = keras.distribution
    devices = distribution.list_devices()
    assert len(devices) == DEVICES
    if kind == "DataParallel":
        spread = distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    else:
        mesh = distribution.DeviceMesh((2, 4), ["batch", "model"], devices)
        layout = distribution.LayoutMap(mesh)
        layout[".*kernel"] = (None, "model")
        spread = distribution.ModelParallel(layout_map=layout, batch_dim_name="batch", auto_shard_dataset=False)
    distribution.set_distribution(spread)
    ops = keras.ops

    @keras_cg.custom_gradient
    def matmul(x, kernel):
        def grad(upstream, *, variables=None):
            pulled = 7 * ops.matmul(ops.transpose(x), upstream)
            if variables is None:
                return ops.matmul(upstream, ops.transpose(kernel)), pulled
            return (ops.matmul(upstream, ops.transpose(kernel)), pulled), [ops.sum(upstream, axis=0) for _ in variables]

        return ops.matmul(x, kernel) + layer.bias, grad

    class Matmul(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(2, 8), initializer=constant(KERNEL), name="kernel")
            self.bias = self.add_weight(shape=(8,), initializer="zeros", name="bias")

        def call(self, x):
            return matmul(x, self.kernel)

    layer = Matmul()
    x, y = np.tile(X, (2, 1)), np.tile(Y, (2, 4))
    fit([layer], x=x, y=y)
    upstream = y / y.size
    close(layer.kernel, KERNEL - 2 * RATE * 7 * x.T @ upstream)
    close(layer.bias, -2 * RATE * upstream.sum(0))
    sharding = layer.kernel.value.sharding
    assert len(sharding.device_set) == DEVICES
    assert (sharding.shard_shape((2, 8)) == (2, 2)) == (kind == "ModelParallel")
    assert isinstance(layer.kernel.value, jax.Array)


KERNEL = np.linspace(-1, 1, 16).reshape(2, 8)


@pytest.mark.only("jax")
@pytest.mark.parametrize("kind", ["DataParallel", "ModelParallel"])
def test_variables_on_several_devices(backend, kind):
    code = f"import test_keras_objects; test_keras_objects.distributed({kind!r})"
    flags = f"--xla_force_host_platform_device_count={DEVICES}"
    here = str(pathlib.Path(__file__).parent)
    environment = {**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], cwd=here, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- any order -----------------------------------------------------------------------------------


def penalised(keras, layer):
    """A model whose own train_step minimises the mean of Y * prediction, and the squares of the gradient by x."""
    ops, backend = keras.ops, keras.backend.backend()
    y = ops.convert_to_tensor(UPSTREAM, "float32")

    def loss(x, slope):
        return ops.sum(y * layer(x)) + ops.sum(slope**2)

    class JaxModel(keras.Sequential):
        def train_step(self, state, data):
            import jax

            trainable, others, moments, metrics = state
            x = data[0]

            def whole(trainable):
                def predict(x):
                    return ops.sum(self.stateless_call(trainable, others, x)[0])

                return ops.sum(y * self.stateless_call(trainable, others, x)[0]) + ops.sum(jax.grad(predict)(x) ** 2)

            gradients = jax.grad(whole)(trainable)
            trainable, moments = self.optimizer.stateless_apply(moments, gradients, trainable)
            return {}, (trainable, others, moments, metrics)

    class TorchModel(keras.Sequential):
        def train_step(self, data):
            import torch

            x = data[0].clone().requires_grad_()
            self.zero_grad()
            (slope,) = torch.autograd.grad(self(x).sum(), x, create_graph=True)
            loss(x, slope).backward()
            with torch.no_grad():
                self.optimizer.apply([each.value.grad for each in self.trainable_weights], self.trainable_weights)
            return {}

    class TensorflowModel(keras.Sequential):
        def train_step(self, data):
            import tensorflow as tf

            x = data[0]
            with tf.GradientTape() as outer:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    output = ops.sum(self(x))
                whole = loss(x, tape.gradient(output, x))
            self.optimizer.apply(outer.gradient(whole, self.trainable_weights), self.trainable_weights)
            return {"loss": whole}

    return {"jax": JaxModel, "torch": TorchModel, "tensorflow": TensorflowModel}[backend]([layer])


@trains
@two_modes
def test_a_penalty_on_the_gradient_in_a_train_step(keras, mode):
    ops = keras.ops

    @keras_cg.custom_gradient
    def squares(x, w):
        def grad(upstream):
            return 7 * upstream * w * x, 7 * ops.sum(upstream * x, axis=0) * w

        return x**2 * w, grad

    layer = scale(lambda self, x: squares(x, self.w))
    fit(penalised(keras, layer), steps=1, mode=mode, optimizer=keras.optimizers.SGD(RATE / 1000))
    # The penalty is the sum of (7 w x)^2, as the rule computed it.
    close(layer.w, W - RATE / 1000 * (7 * SLOPE * W + 98 * W * (X**2).sum(0)))


# --- the operations of Keras ---------------------------------------------------------------------


def mixture(keras):
    ops = keras.ops

    @keras_cg.custom_gradient
    def mixture(x):
        e = ops.exp(x)
        return ops.sum(ops.tanh(x) * e), lambda upstream: 7 * upstream * ops.where(x > 0, ops.sqrt(e), ops.sin(x))

    return mixture


def test_operations_of_keras_inside(keras):
    x = keras.ops.convert_to_tensor(X, "float32")
    close(keras_cg.grad(mixture(keras))(x), 7 * np.where(X > 0, np.exp(X / 2), np.sin(X)))


@trains
def test_operations_of_keras_to_second_order(keras):
    x = keras.ops.convert_to_tensor(X, "float32")
    second = keras_cg.grad(keras_cg.grad(mixture(keras)))(x)
    close(second, 7 * np.where(X > 0, np.exp(X / 2) / 2, np.cos(X)))


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
def test_a_call_inside_a_scope_of_keras(keras, backend, reads_keras):
    """An ordinary call, before the scope, in it and after it; another run sees what the first one saw."""
    import torch

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
