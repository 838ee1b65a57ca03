"""`GradientClipping` where the loss is multiplied by a loss scale: trained weights against closed forms."""

import numpy as np
import pytest

from keras_cg import recipes
from with_keras.test_keras_layers import NORM, RATE, UPSTREAM, X, fit, weighed
from with_keras.training import MODES, own_steps, shift, trains

SCALE = 2.0**8

LIMITS = {
    "value": ({"value": 1.5}, np.clip(UPSTREAM, -1.5, 1.5)),
    # Times the loss scale it is more than float16 can hold.
    "a large value": ({"value": 1000.0}, UPSTREAM),
    "norm": ({"norm": 2.0}, UPSTREAM * 2 / NORM),
    "an endless norm": ({"norm": 3e38}, UPSTREAM),
}
two_modes = pytest.mark.parametrize("mode", ["eager", "default"])


def scaled(keras, growth=2000, rate=RATE):
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate), SCALE, growth)


def moved(keras, model):
    """By how much gradient descent moved the shift, in units of the gradient."""
    return -keras.ops.convert_to_numpy(model.get_layer("shift").shift) / RATE


def trainee(keras, layer, optimizer, mode, kind=None, **options):
    model = (kind or keras.Sequential)([keras.layers.Input(X.shape[1:]), shift(X.shape), layer])
    model.compile(optimizer, weighed(keras, UPSTREAM), **MODES[mode], **options)
    return model


@trains
@pytest.mark.limit
def test_a_rule_that_is_not_linear_gets_upstream_times_the_scale(keras):
    """A limit: so does a recipe by itself, of which no layer knows the scale."""
    layer = keras.layers.Lambda(lambda x: recipes.clip_gradient(x, value=1.5))
    model = trainee(keras, layer, scaled(keras), "eager")
    fit(model)
    np.testing.assert_allclose(moved(keras, model), np.clip(UPSTREAM * SCALE, -1.5, 1.5) / SCALE, rtol=1e-6)


@trains
@pytest.mark.parametrize(
    ("name", "mode"), [*[(name, "default") for name in LIMITS], ("value", "eager"), ("norm", "eager")]
)
def test_a_scale_that_grows(keras, layers, name, mode):
    """It doubles after every step, also inside of an epoch."""
    keras.config.set_dtype_policy("mixed_float16")
    config, gradient = LIMITS[name]
    model = trainee(keras, layers.GradientClipping(**config), scaled(keras, growth=1), mode)
    fit(model, epochs=2, steps=2)
    assert float(model.optimizer.dynamic_scale.numpy()) == SCALE * 2**4
    np.testing.assert_allclose(moved(keras, model), 4 * gradient, rtol=2e-3)


@trains
@pytest.mark.parametrize("given", [SCALE, "dynamic"])
def test_a_fixed_scale(keras, layers, given):
    """`loss_scale_factor` of an optimizer; the layer is told, or finds it."""
    config, gradient = LIMITS["norm"]
    layer = layers.GradientClipping(**config, loss_scale=given, dtype="mixed_float16")
    model = trainee(keras, layer, keras.optimizers.SGD(RATE, loss_scale_factor=SCALE), "default")
    fit(model)
    np.testing.assert_allclose(moved(keras, model), gradient, rtol=2e-3)


@trains
def test_several_layers_one_of_them_twice(keras, layers):
    keras.config.set_dtype_policy("mixed_float16")
    first, twice = layers.GradientClipping(value=0.125), layers.GradientClipping(norm=4.0)
    inputs = keras.Input(X.shape[1:])
    shifted = shift(X.shape)(inputs)
    model = keras.Model(inputs, twice(shifted) + 2 * twice(first(shifted)))
    model.compile(scaled(keras), weighed(keras, UPSTREAM))
    fit(model)
    # Through both ways the norm is cut to 4 first.
    arrived = UPSTREAM * 4 / NORM
    np.testing.assert_allclose(moved(keras, model), arrived + np.clip(arrived, -0.125, 0.125), rtol=2e-3)


@trains
def test_regularizers_and_other_losses_stay(keras, layers):
    keras.config.set_dtype_policy("mixed_float16")

    class Shift(keras.layers.Layer):
        def build(self, input_shape):
            self.shift = self.add_weight(
                shape=X.shape, initializer="ones", regularizer=lambda weight: 0.5 * keras.ops.sum(weight)
            )

        def call(self, inputs):
            self.add_loss(0.25 * keras.ops.cast(keras.ops.sum(self.shift), "float32"))
            return inputs + self.shift

    model = keras.Sequential([Shift(), layers.GradientClipping(value=0.125)])
    model.compile(scaled(keras), weighed(keras, UPSTREAM))
    fit(model)
    expected = 1 - RATE * (np.clip(UPSTREAM, -0.125, 0.125) + 0.75)
    np.testing.assert_allclose(model.trainable_weights[0].numpy(), expected, rtol=2e-3)


@trains
@pytest.mark.limit
def test_between_the_steps_of_a_recurrent_layer(keras, layers, backend):
    """A loop of JAX or of TensorFlow lets no loss out, so that the layer is told the number."""
    keras.config.set_dtype_policy("mixed_float16")

    class Cell(keras.layers.Layer):
        state_size = output_size = 3

        def __init__(self, **options):
            super().__init__()
            self.clip = layers.GradientClipping(value=0.5, **options)
            self.built = True

        def call(self, inputs, states):
            output = self.clip(inputs + states[0])
            return output, [output]

    def trained(**options):
        recurrent = keras.layers.RNN(Cell(**options))
        weight = shift(X.shape)
        model = keras.Sequential([keras.layers.Input(X.shape[1:]), weight, keras.layers.Reshape((1, 3)), recurrent])
        model.compile(scaled(keras), weighed(keras, UPSTREAM))
        fit(model)
        return moved(keras, model)

    expected = np.clip(UPSTREAM, -0.5, 0.5)
    np.testing.assert_allclose(trained(loss_scale=SCALE), expected, rtol=2e-3)
    if backend == "torch":
        np.testing.assert_allclose(trained(), expected, rtol=2e-3)
        return
    with pytest.raises(Exception, match=r"(?i)tracer|out of scope"):
        trained()


# --- a train_step of one's own ------------------------------------------------------------------------------------


@trains
@two_modes
def test_a_train_step_of_ones_own(keras, layers, mode):
    keras.config.set_dtype_policy("mixed_float16")
    config, gradient = LIMITS["norm"]
    model = trainee(
        keras, layers.GradientClipping(**config), scaled(keras, growth=1), mode, own_steps(weighed(keras, UPSTREAM))
    )
    fit(model, steps=2)
    np.testing.assert_allclose(moved(keras, model), 2 * gradient, rtol=2e-3)


def unknown():
    """The error of a layer called `mine` that does not find the loss scale."""
    told = r"the layer mine does not know the loss scale.*model\.losses.*return_losses=True.*remedy: .*loss_scale=1\.0"
    return pytest.raises(RuntimeError, match=f"(?s){told}")


@trains
@two_modes
@pytest.mark.limit
def test_what_cannot_be_known_is_not_clipped(keras, layers, mode):
    keras.config.set_dtype_policy("mixed_float16")
    layer = layers.GradientClipping(value=1.0, name="mine")
    # A plain optimizer, because the other one leaves steps of NaN out.
    optimizer, kind = keras.optimizers.SGD(RATE), own_steps(weighed(keras, UPSTREAM), with_losses=False)
    model = trainee(keras, layer, optimizer, mode, kind, auto_scale_loss=False)
    if mode == "default" and keras.backend.backend() != "torch":
        fit(model)
        assert np.isnan(moved(keras, model)).all()
        return
    with unknown():
        fit(model)


@trains
def test_outside_of_a_model(keras, layers, eager):
    layer = layers.GradientClipping(value=1.5, dtype="mixed_float16", name="mine")
    with unknown():
        eager.gradients(lambda x: layer(x) * eager.tensor(UPSTREAM.astype(np.float16)), X.astype(np.float16))
    layer = layers.GradientClipping(value=1.5, dtype="mixed_float16", loss_scale=1.0)
    (found,) = eager.gradients(lambda x: layer(x) * eager.tensor(UPSTREAM.astype(np.float16)), X.astype(np.float16))
    np.testing.assert_array_equal(found, np.clip(UPSTREAM, -1.5, 1.5))


def test_the_choice_is_saved(keras, layers, tmp_path):
    made = layers.GradientClipping(value=1.0, dtype="mixed_float16")
    assert made.get_config()["loss_scale"] == "dynamic"
    assert layers.GradientClipping(value=1.0).get_config()["loss_scale"] == 1.0
    assert layers.GradientClipping(value=1.0, loss_scale=8, dtype="mixed_float16").loss_scale == 8
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential(
        [keras.layers.Input((3,)), layers.GradientClipping(value=1.0, dtype="float32", name="mine")]
    )
    model.save(tmp_path / "model.keras")
    keras.config.set_dtype_policy("float32")
    assert keras.saving.load_model(tmp_path / "model.keras").get_layer("mine").loss_scale == "dynamic"
