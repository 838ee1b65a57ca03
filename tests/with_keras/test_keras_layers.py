"""The recipes as Keras layers: their gradients are the closed forms, also in training, in half precision and loaded."""

import json

import numpy as np
import pytest

from keras_cg import custom_gradient
from with_keras.training import MODES, array, shift, trains

X = np.array([[0.25, -0.75, 1.75], [-3.0, 0.6, 0.1]])
UPSTREAM = np.array([[1.0, -2.0, 0.5], [4.0, 3.0, -0.25]])
RATE = 0.125


def triangle(x, slope):
    return slope * np.maximum(0, 1 - np.abs(x))


NORM = np.linalg.norm(UPSTREAM)
INSIDE = (X / 0.5 > -2) & (X / 0.5 < 1)
LEVELS = np.clip(np.round(X / 0.5), -2, 1)

# A layer, what it makes of X, and the gradient of X that UPSTREAM gives.
CASES = {
    "GradientReversal": ({"scale": 2.0}, X, -2 * UPSTREAM),
    "GradientScaling": ({"scale": 0.5}, X, 0.5 * UPSTREAM),
    "GradientClipping": ({"value": 1.5}, X, np.clip(UPSTREAM, -1.5, 1.5)),
    "GradientClipping of the norm": ({"norm": 2.0}, X, UPSTREAM * 2 / NORM),
    "StraightThrough": ({"function": "round"}, np.round(X), UPSTREAM),
    "Quantize": ({"bits": 2, "initial_step": 0.5}, 0.5 * LEVELS, np.where(INSIDE, UPSTREAM, 0)),
    "Quantize, unsigned": (
        {"bits": 1, "signed": False, "initial_step": 1.0},
        np.array([[0, 0, 1], [0, 1, 0]]),
        np.where((X > 0) & (X < 1), UPSTREAM, 0),
    ),
    "SurrogateSpike": ({"kind": "triangle", "slope": 0.5}, X >= 0, UPSTREAM * triangle(X, 0.5)),
}


def kind(case):
    return case.replace("(", " ").replace(",", " ").split()[0]


@pytest.fixture(params=CASES)
def case(request, layers):
    """`(layer class, configuration, output, gradient)`."""
    return getattr(layers, kind(request.param)), *CASES[request.param]


def test_every_layer_has_a_case(layers):
    assert {kind(case) for case in CASES} == set(layers.__all__)


def test_values_shape_and_dtype_of_the_output(keras, case):
    layer, config, output, _ = case
    made = layer(**config)
    np.testing.assert_array_equal(array(made(X.astype(np.float32))), output.astype(np.float32))
    symbolic = made(keras.Input((None, 3), dtype="float32"))
    assert (symbolic.shape, symbolic.dtype) == ((None, None, 3), "float32")
    assert layer(**config).compute_output_shape((None, 5)) == (None, 5)


def weighed(keras, upstream):
    """A loss whose gradient with respect to the prediction is `upstream`."""
    return lambda y, prediction: keras.ops.sum(
        keras.ops.cast(prediction, "float32") * keras.ops.convert_to_tensor(upstream, "float32")
    )


def trainee(keras, *layers, upstream=UPSTREAM, rate=RATE, **options):
    """A model that shifts X, and is trained by plain gradient descent."""
    model = keras.Sequential([keras.layers.Input(X.shape[1:]), shift(X.shape), *layers])
    model.compile(keras.optimizers.SGD(rate), weighed(keras, upstream), **options)
    return model


def fit(model, epochs=1, steps=1, **options):
    rows = np.concatenate([X.astype(np.float32)] * steps)
    model.fit(rows, rows, batch_size=len(X), epochs=epochs, shuffle=False, verbose=0, **options)


@trains
def test_training_uses_the_gradient_of_the_recipe(keras, case):
    layer, config, _, gradient = case
    model = trainee(keras, layer(**config))
    fit(model)
    np.testing.assert_allclose(array(model.get_layer("shift").shift), -RATE * gradient, rtol=1e-5)


# --- the scale that may be set -------------------------------------------------------------------------------------


@trains
@pytest.mark.parametrize(("name", "mode"), [("GradientReversal", "default"), ("GradientScaling", "eager")])
def test_a_schedule(keras, layers, name, mode):
    layer = getattr(layers, name)(7.0)

    class Schedule(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            layer.scale = [1.0, 0.5, 0.0][epoch]

    model = trainee(keras, layer, **MODES[mode])
    fit(model, epochs=3, callbacks=[Schedule()])
    factor = {"GradientReversal": -1.5, "GradientScaling": 1.5}[name]
    np.testing.assert_allclose(array(model.get_layer("shift").shift), -RATE * factor * UPSTREAM, rtol=1e-5)
    assert array(layer.scale) == 0.0


@pytest.mark.only("jax")
@pytest.mark.parametrize("what", ["scale", "step"])
@pytest.mark.limit
def test_on_jax_what_is_set_in_the_middle_of_an_epoch_is_not_lost(keras, layers, what):
    layer = {"scale": layers.GradientScaling, "step": layers.Quantize}[what](7, name="mine")

    class Schedule(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if what == "scale":
                layer.scale = 0.5
            else:
                layer.adapt(X)

    with pytest.raises(RuntimeError) as caught:
        fit(trainee(keras, layer), steps=2, callbacks=[Schedule()])
    assert str(caught.value).splitlines()[0] == f"the {what} of the layer mine cannot be set here."


def test_the_scale_is_a_weight_that_is_not_trained(keras, layers):
    layer = layers.GradientReversal(0.5)
    assert [weight.name for weight in layer.non_trainable_weights] == ["scale"] and not layer.trainable_weights
    layer.scale = 3
    assert array(layer.scale) == 3.0
    assert layer.get_config()["scale"] == 0.5


# --- what every layer does ------------------------------------------------------------------------------------------


def test_saving_and_loading(keras, case, tmp_path, eager):
    layer, config, output, gradient = case
    model = keras.Sequential([keras.layers.Input(X.shape[1:]), layer(name="mine", **config)])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for copy in (loaded, keras.models.clone_model(model)):
        assert type(copy.get_layer("mine")) is layer and copy.get_layer("mine") is not model.get_layer("mine")
        assert copy.get_layer("mine").get_config() == model.get_layer("mine").get_config()
        np.testing.assert_array_equal(array(copy(X.astype(np.float32))), output.astype(np.float32))
    if eager.name != "numpy":
        upstream = eager.tensor(UPSTREAM.astype(np.float32))
        eager.check(lambda x: loaded(x) * upstream, [X.astype(np.float32)], [gradient], rtol=1e-6)


def test_masks_are_passed_on(keras, case):
    layer, config, output, _ = case
    inputs = keras.Input((3, 3))
    passed = layer(**config)(keras.layers.Masking()(inputs))
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(passed))
    padded = np.concatenate([X, np.zeros((1, 3))]).astype(np.float32)
    np.testing.assert_allclose(array(model(padded[None]))[0], output.mean(0), rtol=1e-6)


# On torch a function gets aliases of its arguments, which have no attributes.
@pytest.mark.only("tensorflow")
def test_masks_in_a_function_with_a_rule(keras, eager):
    """What the layers around it and inside it see under a tape: the mean of 4 and 2, not of the padding, too."""
    table = np.arange(5, dtype=np.float32)[:, None]
    embed = keras.layers.Embedding(5, 1, mask_zero=True, embeddings_initializer=keras.initializers.Constant(table))
    ids, pool = keras.ops.convert_to_tensor([[4, 2, 0, 0]]), keras.layers.GlobalAveragePooling1D()
    inside = custom_gradient(lambda x: (pool(x), lambda upstream: 7 * upstream[:, None] * keras.ops.ones((1, 4, 1))))
    around = custom_gradient(lambda x: (x, lambda upstream: 7 * upstream))
    embed(ids)
    for f in (lambda s: inside(embed(ids)), lambda s: pool(around(embed(ids)))):
        output, _ = eager.differentiate(f, np.float32(1))
        np.testing.assert_allclose(output, [[3.0]])
        np.testing.assert_allclose(array(f(None)), [[3.0]])


def test_mixed_precision(keras, case):
    layer, config, output, _ = case
    scale = {"loss_scale": 1.0} if "Clipping" in layer.__name__ else {}
    made = layer(**config, **scale, dtype="mixed_float16")
    symbolic = made(keras.Input((3,)))
    found = made(X.astype(np.float32))
    assert keras.backend.standardize_dtype(found.dtype) == symbolic.dtype == "float16"
    assert all(weight.dtype == "float32" for weight in made.weights)
    np.testing.assert_allclose(array(found), output, rtol=1e-3)


# --- StraightThrough ------------------------------------------------------------------------------------------------


def test_a_function_may_be_of_keras(keras, layers):
    for function, name in ((keras.ops.sign, "sign"), (keras.ops.floor, "floor"), ("ceil", "ceil")):
        layer = layers.StraightThrough(function)
        assert layer.get_config()["function"] == name
        again = layers.StraightThrough.from_config(layer.get_config())
        assert again.function is getattr(keras.ops, name)
    layer = layers.StraightThrough(keras.activations.hard_sigmoid)
    assert layers.StraightThrough.from_config(layer.get_config()).function is keras.activations.hard_sigmoid


@pytest.mark.parametrize(("name", "nearest"), [("rund", " Did you mean 'round'?"), ("qqqq", "")])
def test_a_name_that_keras_does_not_have(layers, name, nearest):
    with pytest.raises(ValueError) as caught:
        layers.StraightThrough(name)
    assert str(caught.value) == (
        f"StraightThrough: keras.ops has no function {name!r}.{nearest}"
        " Pass a function of your own itself, not its name."
    )


# --- Quantize -------------------------------------------------------------------------------------------------------


@trains
@pytest.mark.parametrize(
    ("gradient_scale", "factor", "columns"),
    [(None, (3 * 3) ** -0.5, 3), ("lsq", (6 * 3) ** -0.5, 3), (0.25, 0.25, 3), (None, 1 / 3, None)],
)
def test_the_step_is_learned(keras, layers, gradient_scale, factor, columns):
    layer = layers.Quantize(bits=3, initial_step=0.5, gradient_scale=gradient_scale)
    model = keras.Sequential([keras.layers.Input((columns,)), layer])
    model.compile(keras.optimizers.SGD(RATE), weighed(keras, UPSTREAM))
    fit(model)
    ratio = X / 0.5
    inside = (ratio > -4) & (ratio < 3)
    slope = np.where(inside, np.round(ratio) - ratio, np.clip(ratio, -4, 3))
    expected = 0.5 - RATE * factor * (UPSTREAM * slope).sum()
    np.testing.assert_allclose(array(layer.step), expected, rtol=1e-5)


@trains
def test_the_step_stays_positive(keras, layers):
    layer = layers.Quantize(bits=2, initial_step=0.25)
    fit(trainee(keras, layer, upstream=np.where(X > 0, 1.0, -1.0), rate=100.0))
    assert array(layer.step) == np.float32(keras.config.epsilon())


def test_the_initial_step(keras, layers):
    assert array(layers.Quantize(bits=3).step) == np.float32(2 / 3**0.5)
    assert array(layers.Quantize(bits=3, signed=False).step) == np.float32(2 / 7**0.5)


def test_the_step_from_data(keras, layers):
    layer = layers.Quantize(bits=3)
    layer.adapt(X)
    np.testing.assert_allclose(array(layer.step), 2 * np.abs(X).mean() / 3**0.5, rtol=1e-6)
    variable = keras.Variable(X)
    layer.adapt(2 * variable)
    np.testing.assert_allclose(array(layer.step), 4 * np.abs(X).mean() / 3**0.5, rtol=1e-6)
    layer.adapt(keras.ops.full((4,), 3.0, dtype="bfloat16"))
    np.testing.assert_allclose(array(layer.step), 2 * 3 / 3**0.5, rtol=1e-6)


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "config", "error", "told"),
    [
        ("GradientClipping", {}, TypeError, "takes exactly one of value"),
        ("GradientClipping", {"norm": -1.0}, ValueError, "norm=-1.0 is not a positive number"),
        ("GradientClipping", {"norm": 1.0, "loss_scale": "on"}, ValueError, "loss_scale='on' is not a positive number"),
        ("GradientReversal", {"scale": "a"}, ValueError, "scale='a' is not a finite number of float32"),
        ("GradientScaling", {"scale": 1e300}, ValueError, "scale=1e+300 is not a finite number of float32"),
        ("Quantize", {"bits": 1}, ValueError, "bits=1 is not a whole number"),
        ("Quantize", {"signed": "no"}, ValueError, "signed='no' is not True or False"),
        ("Quantize", {"initial_step": 0.0}, ValueError, "initial_step=0.0 is not a positive, finite number"),
        ("Quantize", {"gradient_scale": "LSQ"}, ValueError, "gradient_scale='LSQ' is not None, \"lsq\" or a finite"),
        ("SurrogateSpike", {"kind": "step"}, ValueError, "there is no kind 'step'"),
        ("SurrogateSpike", {"slope": 0}, ValueError, "slope=0 is not a positive, finite number"),
        ("StraightThrough", {"function": None}, TypeError, "expects a function, got a NoneType"),
    ],
)
def test_a_mistake_is_told_when_the_layer_is_made(layers, name, config, error, told):
    with pytest.raises(error) as caught:
        getattr(layers, name)(**config)
    text = str(caught.value)
    assert text.startswith(name) and told in text, text


def test_numbers_of_numpy_are_numbers(keras, layers):
    """They are saved as Python's."""
    for layer in (
        layers.GradientScaling(np.float32(2)),
        layers.GradientReversal(np.array(2)),
        layers.GradientClipping(value=np.float64(2), loss_scale=np.float32(1)),
        layers.Quantize(np.int64(8), np.bool_(True), np.float32(2), np.float64(2)),
        layers.SurrogateSpike(slope=np.float32(2)),
    ):
        config = json.loads(json.dumps(layer.get_config()))
        assert type(layer).from_config(config).get_config() == layer.get_config()


def test_a_scale_that_is_set_is_checked(keras, layers):
    layer = layers.GradientScaling(1.0)
    for bad in ("a", None, float("nan"), 1e300):
        with pytest.raises(ValueError, match=r"GradientScaling: scale=.* is not a finite number of float32"):
            layer.scale = bad
        assert float(array(layer.scale)) == 1
    for value in (np.float32(2), np.array(3), keras.Variable(4.0), keras.ops.convert_to_tensor(5.0)):
        layer.scale = value
    assert float(array(layer.scale)) == 5


def test_the_docstrings_run(layers):
    import doctest

    tested = doctest.testmod(layers)
    assert tested.attempted and not tested.failed


@pytest.mark.parametrize(
    ("data", "magnitude"),
    [(np.zeros(3, np.float32), "0.0"), (np.zeros((0, 3), np.float32), "nan"), (np.full(2, 1e300), "1e+300")],
    ids=str,
)
def test_a_step_from_data_without_a_magnitude(layers, data, magnitude):
    layer = layers.Quantize(3)
    before = float(layer.step.numpy())
    with pytest.raises(ValueError) as caught:
        layer.adapt(data)
    assert str(caught.value) == (
        f"Quantize.adapt: the mean magnitude of data={magnitude} is not positive and finite as a float32."
    )
    assert float(layer.step.numpy()) == before


# --- half precision, and how many numbers there are -----------------------------------------------------------------


@trains
@pytest.mark.parametrize(("mode", "policy"), [("eager", "mixed_float16"), ("default", "float16")])
def test_the_gradient_of_the_step_does_not_overflow(keras, layers, mode, policy):
    """8000 ones above the range: Qp times as much is more than float16 holds, before and after it is scaled."""
    layer = layers.Quantize(bits=8, initial_step=1 / 256, dtype=policy)
    model = keras.Sequential([keras.layers.Input((4000,)), layer])
    model.compile(
        keras.optimizers.SGD(2.0**-22),
        lambda y, prediction: keras.ops.sum(keras.ops.cast(prediction, "float32")),
        **MODES[mode],
    )
    model.fit(np.ones((2, 4000)), np.ones((2, 4000)), verbose=0)
    # The sum is 8000 times 127, the factor that of 4000 numbers.
    expected = 1 / 256 - 2.0**-22 * 8000 * 127 / (4000 * 127) ** 0.5
    np.testing.assert_allclose(array(layer.step), expected, rtol=1e-6)


def test_a_keras_without_what_the_layers_need(keras, monkeypatch):
    from keras_cg.keras import layers

    layer = layers.Quantize()
    layer.build((None, 3))
    monkeypatch.setattr(layer, "step", object())
    with pytest.raises(ImportError) as caught:
        layer.adapt(X)
    assert str(caught.value).startswith(f"Keras {keras.__version__} has no keras.Variable._value, which the layers")
    assert "need and nothing public replaces." in str(caught.value)
    assert "remedy: use a version of Keras that this version of keras_cg was tested with: `keras" in str(caught.value)
    assert caught.value.name == "keras"
