"""`GradientClipping` where the loss is multiplied by a loss scale: trained weights against closed forms."""

import numpy as np
import pytest

from keras_cg import recipes
from with_keras.test_keras_layers import NORM, RATE, UPSTREAM, X, fit, weighed
from with_keras.training import MODES, shift, trains

SCALE = 2.0**8

LIMITS = {
    "value": ({"value": 1.5}, np.clip(UPSTREAM, -1.5, 1.5)),
    # Times the loss scale it is more than float16 can hold.
    "a large value": ({"value": 1000.0}, UPSTREAM),
    "norm": ({"norm": 2.0}, UPSTREAM * 2 / NORM),
    "an endless norm": ({"norm": 3e38}, UPSTREAM),
}


def moved(keras, layer, mode="default"):
    """By how much gradient descent under a fixed loss scale moved the shift, in units of the gradient."""
    model = keras.Sequential([keras.layers.Input(X.shape[1:]), shift(X.shape), layer])
    optimizer = keras.optimizers.SGD(RATE, loss_scale_factor=SCALE)
    model.compile(optimizer, weighed(keras, UPSTREAM), **MODES[mode], auto_scale_loss=False)
    fit(model)
    return -keras.ops.convert_to_numpy(model.get_layer("shift").shift) / RATE


@trains
@pytest.mark.limit
def test_a_rule_that_is_not_linear_gets_upstream_times_the_scale(keras):
    """A limit: so does a recipe by itself, of which no layer knows the scale."""
    layer = keras.layers.Lambda(lambda x: recipes.clip_gradient(x, value=1.5))
    np.testing.assert_allclose(moved(keras, layer, "eager"), np.clip(UPSTREAM * SCALE, -1.5, 1.5) / SCALE, rtol=1e-6)


@trains
@pytest.mark.parametrize("name", LIMITS)
def test_a_fixed_scale(keras, layers, name):
    keras.config.set_dtype_policy("mixed_float16")
    config, gradient = LIMITS[name]
    np.testing.assert_allclose(moved(keras, layers.GradientClipping(**config, loss_scale=SCALE)), gradient, rtol=2e-3)


@pytest.mark.limit
def test_in_float16_the_layer_is_told_the_scale(keras, layers):
    told = r"the layer mine computes in float16(?s:.*)remedy: pass loss_scale=1024\.0(?s:.*)loss_scale=1\.0 if nothing"
    with pytest.raises(ValueError, match=told):
        layers.GradientClipping(value=1.0, dtype="mixed_float16", name="mine")
    assert layers.GradientClipping(value=1.0, loss_scale=8, dtype="mixed_float16").get_config()["loss_scale"] == 8
    keras.config.set_dtype_policy("mixed_float16")
    with pytest.raises(ValueError, match=told):
        layers.GradientClipping(value=1.0, dtype="float32", name="mine")
