"""Keras's `model.export` and `ExportArchive`: models that use keras_cg, loaded where there is none."""

import contextlib
import json
import pathlib
import subprocess
import sys
import warnings

import keras
import numpy as np
import onnxruntime
import pytest

import keras_cg
import keras_cg.keras
from export import WARNINGS, models

BACKEND = keras.backend.backend()
SUFFIXES = {"tf_saved_model": "", "onnx": ".onnx", "onnx_fixed": ".onnx", "litert": ".tflite", "torch": ".pt2"}
FORMATS = {
    "jax": ("tf_saved_model",),
    "tensorflow": ("tf_saved_model", "litert", "onnx"),
    # Keras (3.15) has two ways to ONNX there: torch.jit.trace, and torch.export where the shapes are fixed.
    "torch": ("torch", "onnx", "onnx_fixed"),
}[BACKEND]

# What Keras cannot export, with its own decorator or without any, and what is raised.
NOT_KERAS = {
    ("tensorflow", "litert", "int8"): "ConverterError",
    ("tensorflow", "litert", "float8"): "ConverterError",
    ("tensorflow", "onnx", "float8"): "KeyError",
    ("torch", "onnx", "float8"): "RuntimeError",
    ("torch", "onnx_fixed", "int4"): "Fail",
}
CASES = [(name, kind) for kind in FORMATS for name in models.MODELS if (BACKEND, kind, name) not in NOT_KERAS]
FAILING = [(name, kind) for backend, kind, name in NOT_KERAS if backend == BACKEND]

pytestmark = WARNINGS
NO_GRADIENT = "the exported program has no gradient through"


def export(model, kind, path):
    options = {}
    if kind == "torch":
        import torch

        options["dynamic_shapes"] = {0: torch.export.Dim("batch", min=1, max=64)}
    if kind == "onnx_fixed":
        options["input_signature"] = [keras.InputSpec(shape=models.X.shape, dtype="float32")]
    name = kind.removesuffix("_fixed")
    model.export(path, format=name, verbose=False, **options)
    return name, str(path)


def archive(folder, name, **options):
    """The trainable model by an ExportArchive, which takes TensorFlow's own options."""
    import tensorflow as tf

    model, _ = models.trainable()
    found = keras.export.ExportArchive()
    found.track_and_add_endpoint("serve", model, [keras.InputSpec(shape=(None, 3), dtype="float32")])
    found.write_out(str(folder / name), options=tf.saved_model.SaveOptions(**options), verbose=False)
    return "tf_saved_model", str(folder / name)


def jax_programs(folder):
    """The model's function by jax.export, with the derivatives of so many orders."""
    import jax
    import jax.export

    model, _ = models.trainable()
    exported = jax.export.export(jax.jit(lambda x: model(x)))(models.X)
    for order in range(4):
        path = folder / f"{order}.bin"
        path.write_bytes(exported.serialize(vjp_order=order))
        yield f"jax.export {order}", ("jax.export", str(path))


def raised(model, kind, path):
    """What comes of an export that must not succeed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            export(model, kind, path)
            if kind.startswith("onnx"):
                onnxruntime.InferenceSession(path)
    except Exception as error:  # of any package
        return type(error).__name__, str(error)
    raise AssertionError("it was exported")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Everything exported once, and loaded in one process: `(found, expected)` by name."""
    folder = tmp_path_factory.mktemp("exported")
    programs, expected = {}, {}
    with keras_cg.keras.installed():
        made = {name: make() for name, make in models.MODELS.items()}
        for model, _ in made.values():
            model(models.X)  # Keras (3.15) makes ONNX of models that were called alone
        for name, kind in CASES:
            model, expected[name, kind] = made[name]
            path = folder / f"{name.replace(' ', '_')}_{kind}{SUFFIXES[kind]}"
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")  # by an error Keras on torch would take another way
                programs[f"{name} {kind}"] = export(model, kind, path)
            # torch.jit.trace, by which torch makes ONNX of some, traces more often than once.
            assert any(str(each.message).startswith(NO_GRADIENT) for each in told) == (BACKEND == "torch")
        if "tf_saved_model" in FORMATS:
            programs["archive"] = archive(folder, "archive")
            programs["archive without"] = archive(folder, "without", experimental_custom_gradients=False)
        if BACKEND == "jax":
            programs.update(jax_programs(folder))
    np.save(folder / "x.npy", models.X)
    (folder / "programs.json").write_text(json.dumps(programs))
    script = pathlib.Path(__file__).parent / "elsewhere.py"
    done = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "found.json").read_text()), expected


def close(came, expected):
    np.testing.assert_allclose(np.asarray(came), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_output_elsewhere(exported, name, kind):
    found, expected = exported
    close(found[f"{name} {kind}"]["output"], expected[name, kind])


# --- gradients -----------------------------------------------------------------------------------------------------

X, W = models.X.astype(float), models.W
# The rule of `cubic` and its derivatives, by the order.
ORDERS = {1: 7 * X**3 * W, 2: 21 * X**2 * W, 3: 42 * X * W}
GRADIENTS = {"custom layer": 0 * X + 14, "operations": 7 * np.exp(X) - 35, "trainable": ORDERS[1]}
# On torch Keras needs torch_xla for a SavedModel.
SAVED_MODEL = pytest.mark.only("jax", "tensorflow")


@SAVED_MODEL
@pytest.mark.parametrize("name", models.MODELS)
def test_a_saved_model_carries_the_gradient(backend, exported, name):
    """By the rule, or as Keras's own decorator and layers have it."""
    found, _ = exported
    expected = GRADIENTS.get(name)
    if expected is None:
        with keras_cg.keras.installed():
            model, _ = models.MODELS[name]()
            gradient = keras_cg.grad(lambda x: model(x))(keras.ops.convert_to_tensor(models.X))
        expected = keras.ops.convert_to_numpy(gradient)
    close(found[f"{name} tf_saved_model"]["order 1"], expected)


@SAVED_MODEL
@pytest.mark.limit
def test_training_goes_on_elsewhere(backend, exported):
    found, _ = exported
    for name in ("trainable tf_saved_model", "archive"):
        close(found[name]["trained"], W - 0.5 * X.sum(0))
        close(found[name]["order 1"], ORDERS[1])
        if BACKEND == "jax":  # jax2tf (0.10) saves the first
            assert found[name]["order 2"] == "LookupError"
        else:
            close(found[name]["order 2"], ORDERS[2])
            close(found[name]["order 3"], ORDERS[3])


@SAVED_MODEL
def test_without_gradients_it_is_refused(backend, exported):
    found, _ = exported
    close(found["archive without"]["output"], X * W)
    assert found["archive without"]["order 1"] == "LookupError"


@pytest.mark.only("torch")
@pytest.mark.parametrize("name", models.MODELS)
def test_a_program_of_torch_has_no_gradient(backend, exported, name):
    found, _ = exported
    assert found[f"{name} torch"]["order 1"] == "absent"


@pytest.mark.only("jax")
@pytest.mark.limit
def test_jax_programs_have_the_orders_that_they_were_saved_with(backend, exported):
    found, _ = exported
    for saved in range(4):
        program = found[f"jax.export {saved}"]
        close(program["output"], X * W)
        for order in range(1, saved + 1):
            close(program[f"order {order}"], ORDERS[order])
        assert program[f"order {saved + 1}"] == "No VJP is available"


# --- what Keras cannot ---------------------------------------------------------------------------------------------


@pytest.mark.only(*{backend for backend, _, _ in NOT_KERAS})
@pytest.mark.parametrize(("name", "kind"), FAILING)
@pytest.mark.limit
def test_what_keras_cannot_export_without_us(backend, name, kind, tmp_path):
    for ours in (True, False):
        with keras_cg.keras.installed() if ours else contextlib.nullcontext():
            model, _ = models.MODELS[name]()
            model(models.X)
            assert raised(model, kind, tmp_path / f"model{SUFFIXES[kind]}")[0] == NOT_KERAS[backend, kind, name]


class Closing(keras.layers.Layer):
    def __init__(self, product):
        super().__init__()
        self.product = product
        self.constant = [keras.ops.convert_to_tensor(models.W)]

    def call(self, x):
        return self.product(x, self.constant[0])


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("product", [models.times, keras.ops.multiply], ids=["ours", "plain"])
@pytest.mark.limit
def test_tf2onnx_makes_an_input_of_a_tensor_that_a_layer_holds(backend, product, tmp_path):
    model = models.sequential(Closing(product))
    model(models.X)
    _, path = export(model, "onnx", tmp_path / "model.onnx")
    assert len(onnxruntime.InferenceSession(path).get_inputs()) == 2


# --- bad input -----------------------------------------------------------------------------------------------------
