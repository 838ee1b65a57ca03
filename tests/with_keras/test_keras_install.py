"""`keras_cg.keras.install`: our decorator wherever Keras looks its own up, and its quantised layers trained with it."""

import functools
import gc
import importlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras.ops import custom_gradient as imported_before
from keras.quantizers import Int4QuantizationConfig, Int8QuantizationConfig

import keras_cg
from keras_cg.frontend import decorator
from keras_cg.keras import install, installation, installed, uninstall

pytestmark = [
    # What Keras says of its own decorator on NumPy, and of its own way to make arrays (3.15).
    pytest.mark.filterwarnings("ignore:`custom_gradient` for the numpy backend acts as a pass-through:UserWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]
TRAINABLE = pytest.mark.only("jax", "tensorflow", "torch")
STEPS = 3


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    uninstall()


BACKEND_MODULE = f"keras.src.backend.{keras.backend.backend()}.core"
MODULES = ("keras.ops", "keras.src.ops", "keras.src.ops.core", BACKEND_MODULE)


def decorators():
    """What stands in each place where Keras looks its decorator up."""
    return [importlib.import_module(module).custom_gradient for module in MODULES]


ORIGINALS = decorators()


def are_ours():
    assert {each is keras_cg.custom_gradient for each in decorators()} == {True}


def are_keras_own():
    assert [each is original for each, original in zip(decorators(), ORIGINALS, strict=True)] == [True] * 4


# --- in and out ----------------------------------------------------------------------------------------------------


def test_install_and_uninstall():
    """Twice is harmless, both ways."""
    are_keras_own()
    for change, check in ((install, are_ours), (uninstall, are_keras_own)):
        change()
        check()
        change()
        check()


def test_install_leaves_no_original_in_any_module_of_keras():
    install()
    left = [
        name
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "keras" and any(vars(module).get("custom_gradient") is each for each in ORIGINALS)
    ]
    assert left == []


def test_installed():
    with installed():
        are_ours()
        with installed():
            are_ours()
        are_ours()
    are_keras_own()
    install()
    with installed():
        are_ours()
    are_ours()


def test_blocks_that_overlap():
    """As those of two threads do."""
    first, second = installed(), installed()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert keras.ops.custom_gradient is keras_cg.custom_gradient
    uninstall()
    assert keras.ops.custom_gradient is keras_cg.custom_gradient
    second.__exit__(None, None, None)
    assert keras.ops.custom_gradient is not keras_cg.custom_gradient


def test_an_exception_inside_installed():
    with pytest.raises(ZeroDivisionError), installed():
        _ = 1 / 0
    are_keras_own()


@TRAINABLE
@pytest.mark.parametrize("decorate", [lambda f: imported_before(f), lambda f: keras.ops.custom_gradient(f)])
def test_what_is_decorated_afterwards_has_our_gradient(eager, backend, decorate):
    def function(x, weight):
        # A nest as an argument, a rule that takes the upstream by position: Keras's own does not take it on torch.
        return x["a"] * weight, lambda upstream: ({"a": 7 * upstream}, 5 * upstream)

    with installed():
        decorated = decorate(function)
    assert isinstance(decorated, decorator.CustomGradient)
    gradients = eager.gradients(lambda x, weight: decorated({"a": x}, weight), [1.0, 2.0], [3.0, 4.0])
    np.testing.assert_array_equal(gradients, [[7, 7], [5, 5]])


@pytest.mark.parametrize(
    ("module", "place"),
    [
        ("keras.ops", "keras.ops"),
        ("keras.src.ops", "keras.src.ops"),
        ("keras.src.ops.core", "keras.src.ops.core"),
        (BACKEND_MODULE, "keras.src.backend.core"),
        (None, "keras.src.elsewhere.core"),
    ],
)
def test_a_place_that_has_moved(monkeypatch, module, place):
    if module is None:
        monkeypatch.setattr(installation, "PLACES", (*installation.PLACES, place))
    else:
        monkeypatch.delattr(importlib.import_module(module), "custom_gradient")
    told = rf"Keras {keras.__version__} has no {place}\.custom_gradient: .*changes nothing"
    with pytest.raises(ImportError, match=told):
        install()
    with pytest.raises(ImportError, match=told), installed():
        pass
    monkeypatch.undo()
    are_keras_own()


@pytest.mark.parametrize(("code", "loaded"), [("keras_cg", False), ("keras_cg.keras", True)])
def test_keras_is_imported_when_it_is_needed(code, loaded):
    program = f"import sys, keras_cg; {code}; print('keras' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split()[-1] == str(loaded)


# --- Keras's quantised layers --------------------------------------------------------------------------------------

X = np.random.default_rng(1).normal(size=(8, 3, 4)).astype("float32")
TARGET = np.random.default_rng(2).normal(size=(8, 3, 5)).astype("float32")

CONFIGURATIONS = {
    "int8": lambda: Int8QuantizationConfig(),
    "int4": lambda: Int4QuantizationConfig(),
    "int4_groups": lambda: Int4QuantizationConfig(block_size=2),
    "int4_inputs": lambda: Int4QuantizationConfig(
        weight_quantizer=keras.quantizers.AbsMaxQuantizer(axis=0, value_range=(-8, 7), output_dtype="int8"),
        activation_quantizer=keras.quantizers.AbsMaxQuantizer(axis=-1),
        block_size=None,
    ),
}
LAYERS = {
    "dense": lambda name: keras.layers.Dense(5, activation="tanh", name=name),
    "einsum": lambda name: keras.layers.EinsumDense(
        "abc,cd->abd", (None, 5), bias_axes="d", activation="tanh", name=name
    ),
}


@functools.cache
def quantised(kind, lora):
    """A model with one tower for each configuration: a dense layer, and on it the quantised one, with LoRA or not."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input(X.shape[1:])
    first = {name: keras.layers.Dense(6, activation="tanh", name=f"{name}_first")(inputs) for name in CONFIGURATIONS}
    model = keras.Model(inputs, {name: LAYERS[kind](name)(hidden) for name, hidden in first.items()})
    # Keras collects garbage for each layer that it quantises, which takes long among a framework's objects.
    gc.freeze()
    for name, configuration in CONFIGURATIONS.items():
        layer = model.get_layer(name)
        layer.quantize(config=configuration())
        if lora:
            layer.enable_lora(2, b_initializer="he_uniform")
    gc.unfreeze()
    return model, model.get_weights()


def fresh(kind, lora):
    """The model as it was made, with nothing compiled."""
    model, initial = quantised(kind, lora)
    model.set_weights(initial)
    model.compile()
    return model


def weights(model):
    return {weight.path: np.array(keras.ops.convert_to_numpy(weight)) for weight in model.weights}


def trained(model, **options):
    before = weights(model)
    loss = dict.fromkeys(CONFIGURATIONS, "mse")
    model.compile(keras.optimizers.SGD(0.5), loss, **options)
    model.fit(X, dict.fromkeys(CONFIGURATIONS, TARGET), epochs=STEPS, batch_size=len(X), verbose=0)
    still = [each.path for each in model.trainable_weights if np.allclose(weights(model)[each.path], before[each.path])]
    assert still == []
    return weights(model)


@pytest.fixture
def counted(monkeypatch):
    """The names of our decorated functions that were called."""
    names = []

    def call(function, *args, **kwargs):
        names.append(function.__name__)
        return original(function, *args, **kwargs)

    original = decorator.CustomGradient.__call__
    monkeypatch.setattr(decorator.CustomGradient, "__call__", call)
    return names


def assert_equal(found, expected):
    assert set(found) == set(expected)
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-5, atol=1e-6, err_msg=path)


@TRAINABLE
@pytest.mark.parametrize(
    ("kind", "mode", "lora"), [("dense", "compiled", True), ("einsum", "compiled", False), ("dense", "eager", True)]
)
def test_quantised_layers_train_as_they_do_without(backend, counted, kind, lora, mode):
    # On torch Keras compiles nothing unless it is told to.
    options = {"run_eagerly": mode == "eager"}
    expected = trained(fresh(kind, lora), **options)
    assert not counted
    with installed():
        found = trained(fresh(kind, lora), **options)
    assert len(counted) >= len(CONFIGURATIONS)
    assert_equal(found, expected)
